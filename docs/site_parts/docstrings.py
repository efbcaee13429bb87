"""Our docstrings are Markdown with Google's sections; Sphinx reads reStructuredText."""

import inspect
import re

_FENCE = re.compile(r"^( *)```(\w*)$")
_CODE_OR_LINK = re.compile(r"`([^`]+)`|\[([^\]\[]+)\]\((https?://[^)\s]+)\)")


def to_restructured_text(lines):
    """The lines of a docstring with fences, links and code as reStructuredText has them.

    Args:
        lines: List of strings, without the indent of the docstring.

    Returns:
        List of strings.
    """
    converted, code_indent = [], None
    for line in lines:
        fence = _FENCE.match(line)
        if fence and code_indent is None:
            code_indent = fence[1]
            language = fence[2] or "python"
            converted += ["", f"{code_indent}.. code-block:: {language}", ""]
        elif fence:
            code_indent = None
            converted.append("")
        elif code_indent is not None:
            converted.append("   " + line if line.strip() else "")
        else:
            converted.append(line)
    text = "\n".join(converted)
    return _outside_code_blocks(text).split("\n")


def _outside_code_blocks(text):
    # A code block is the directive and all lines that are indented deeper.
    parts = re.split(r"(^ *\.\. code-block::.*\n(?:(?: *\n)|(?: {3,}.*\n))*)", text, flags=re.MULTILINE)
    return "".join(part if index % 2 else _inline(part) for index, part in enumerate(parts))


def _inline(text):
    """Code, links and plain words of a text without code blocks. Code and links may go over the end of a line."""
    parts, start = [], 0
    for found in _CODE_OR_LINK.finditer(text):
        parts.append(_escaped(text[start : found.start()]))
        start = found.end()
        code, words, address = found.groups()
        one_line = " ".join((code or words).split())
        parts.append(f"``{one_line}``" if code else f"`{one_line.replace('`', '')} <{address}>`__")
        # A literal ends before a space or a mark only; this mark is not shown.
        parts.append("\\ " if text[start : start + 1].isalnum() else "")
    return "".join([*parts, _escaped(text[start:])])


def _escaped(text):
    return re.sub(r"[*|]", r"\\\g<0>", text)


def _process(app, what, name, value, options, lines):
    if isinstance(value, property):
        # napoleon would take what stands before a colon for its type: it is left out.
        app.property_docstrings[name] = _returns_as_text(to_restructured_text(lines))
        lines.clear()
    else:
        # A constant has no docstring but that of its type.
        lines[:] = to_restructured_text(lines) if callable(value) else []


def _process_property(app, what, name, value, options, lines):
    if isinstance(value, property):
        lines[:] = app.property_docstrings[name]


def _returns_as_text(lines):
    converted, inside = [], False
    for line in lines:
        if line == "Returns:":
            inside = True
            converted += [".. rubric:: Returns", ""]
        else:
            inside = inside and (not line or line.startswith(" "))
            converted.append(line.removeprefix("    ") if inside else line)
    return converted


def _signature(app, what, name, value, options, signature, return_annotation):
    # Keras' layers have a `__new__` of `*args, **kwargs`, which hides the arguments of `__init__`.
    if inspect.isclass(value) and inspect.isfunction(value.__init__):
        _self, *parameters = inspect.signature(value.__init__).parameters.values()
        # The docstring says what each argument is.
        parameters = [parameter.replace(annotation=parameter.empty) for parameter in parameters]
        return str(inspect.Signature(parameters)), None
    return None


def setup(app):
    app.property_docstrings = {}
    # napoleon has the usual priority of 500.
    app.connect("autodoc-process-docstring", _process, priority=400)
    app.connect("autodoc-process-docstring", _process_property, priority=600)
    app.connect("autodoc-process-signature", _signature)
    return {"parallel_read_safe": True}
