"""Writes the pages of the reference: an index, a page for each room and for each public name. git ignores them."""

import importlib
import inspect
import pathlib
import reprlib
import shutil

from keras_attn import task_registry
from site_parts.docstrings import to_restructured_text

ROOMS = {
    "layers": "Layers",
    "models": "Models",
    "tasks": "Tasks: strings in, answers out",
    "training": "Training",
    "text": "Tokenizers",
    "data": "Data",
    "generation": "Decoding",
    "runs": "Runs",
    "export": "Exports",
    "huggingface": "Checkpoints",
    "opennmt": "OpenNMT-tf's checkpoints",
    "serve": "The server",
    "inspection": "Seeing: attention captured, masks checked",
    "plots": "Pictures",
    "ops": "Formulas",
}


def public_names(module):
    """The names that a room offers, in alphabetical order."""
    own = [
        name
        for name, value in vars(module).items()
        if getattr(value, "__module__", "") == module.__name__
        and not name.startswith("_")
        and callable(value)
    ]
    names = [name for name in getattr(module, "__all__", own) if _home(module, name) == module]
    return sorted(names, key=str.lower)


def _home(module, name):
    """The room that a name is documented in, for what one room makes and another offers too."""
    maker = ".".join(getattr(getattr(module, name), "__module__", module.__name__).split(".")[:2])
    if maker.startswith("keras_attn.") and maker != module.__name__:
        room = importlib.import_module(maker)
        if name in getattr(room, "__all__", ()):
            return room
    return module


def write_pages(folder):
    """Writes the reference's source files.

    Args:
        folder: `pathlib.Path`, which is emptied first.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    index = [_title("Reference"), _toctree(ROOMS)]
    for room, title in ROOMS.items():
        module = importlib.import_module(f"keras_attn.{room}")
        names = public_names(module)
        classes = [name for name in names if inspect.isclass(getattr(module, name))]
        others = [name for name in names if name not in classes]
        about = f"``keras_attn.{room}``. {_summary(module)}"
        index += [_title(title, "-"), about, _table(room, module, classes), _more(room, others)]
        _write(
            folder / f"{room}.rst",
            _title(title),
            about,
            _table(room, module, classes),
            _table(room, module, others),
        )
        for name in names:
            # Reached by the room's table, and by search; the side bar would have hundreds of them on each page.
            _write(
                folder / room / f"{name}.rst",
                ":orphan:",
                _title(name),
                f"In :doc:`keras_attn.{room} </docs/api/{room}>`.",
                _directive(room, name, getattr(module, name)),
            )
    _write(folder / "index.rst", *index)


def _table(room, module, names):
    """A row for each name: a link to its page, and what it is in a sentence."""
    if not names:
        return ""
    lines = [".. list-table::", "   :class: reference-index", "   :widths: 3 7", ""]
    for name in names:
        lines += [f"   * - {_link(room, name)}", f"     - {_summary(getattr(module, name))}"]
    return "\n".join(lines)


def _more(room, names):
    """The names of functions in a line: the room's page has their sentences."""
    if not names:
        return ""
    links = ", ".join(_link(room, name) for name in names)
    return f"Functions: {links}."


def _link(room, name):
    return f":doc:`{name} </docs/api/{room}/{name}>`"


def _summary(value):
    """The first paragraph of a docstring, or the value of a constant, in a line of reStructuredText."""
    if not (callable(value) or inspect.ismodule(value)):
        value = list(value) if isinstance(value, dict) else value
        return f"``{reprlib.repr(value)}``"
    paragraph = (inspect.getdoc(value) or "").split("\n\n")[0]
    return " ".join(" ".join(to_restructured_text(paragraph.split("\n"))).split())


def room_name(room, name):
    return f"keras_attn.{room}.{name}"


def _directive(room, name, value):
    if inspect.isclass(value):
        # The fields of a named tuple are in its docstring.
        fields = ", ".join(getattr(value, "_fields", ()))
        lines = [f".. autoclass:: {room_name(room, name)}", "   :members:"]
        if fields:
            lines.append(f"   :exclude-members: {fields}")
        if name in task_registry.CLASS_NAMES:  # most of what a task does, its base class does
            lines.append("   :inherited-members:")
        return "\n".join(lines)
    if callable(value):
        return f".. autofunction:: {room_name(room, name)}"
    return f".. autodata:: {room_name(room, name)}"


def _title(text, underline="="):
    return f"{text}\n{underline * len(text)}"


def _toctree(pages):
    lines = [".. toctree::", "   :hidden:", ""]
    return "\n".join(lines + [f"   {page}" for page in pages])


def _write(path, *paragraphs):
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "\n\n".join(paragraph for paragraph in paragraphs if paragraph)
    path.write_text(text + "\n", encoding="utf-8")


def setup(app):
    app.connect("builder-inited", lambda app: write_pages(pathlib.Path(app.confdir) / "api"))
    return {"parallel_read_safe": True}
