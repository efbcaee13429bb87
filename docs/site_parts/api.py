"""Writes the pages of the reference: one for each room, one for each public name. git ignores them."""

import importlib
import inspect
import pathlib
import shutil

from keras_attn import task_registry

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
    _write(folder / "index.rst", _title("Reference"), _toctree(ROOMS))
    for room, title in ROOMS.items():
        module = importlib.import_module(f"keras_attn.{room}")
        names = public_names(module)
        summary = [".. autosummary::", "   :nosignatures:", ""] + [f"   ~{room_name(room, n)}" for n in names]
        _write(
            folder / f"{room}.rst",
            _title(title),
            f"``keras_attn.{room}``",
            (module.__doc__ or "").strip().split("\n\n")[0].replace("`", "``"),
            "\n".join(summary),
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


def _title(text):
    return f"{text}\n{'=' * len(text)}"


def _toctree(pages):
    lines = [".. toctree::", "   :maxdepth: 1", ""]
    return "\n".join(lines + [f"   {page}" for page in pages])


def _write(path, *paragraphs):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n\n".join(paragraphs) + "\n", encoding="utf-8")


def setup(app):
    app.connect("builder-inited", lambda app: write_pages(pathlib.Path(app.confdir) / "api"))
    return {"parallel_read_safe": True}
