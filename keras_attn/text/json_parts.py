"""Reading the parts of a tokenizer.json: every key is known, or the part is refused."""


def read_part(part, place, builders):
    """Builds a part from its JSON object by the table of its place.

    Args:
        part: What stands in the file.
        place: `str`, the part's name in messages.
        builders: Dictionary from `type` to a function of the fields.

    Returns:
        What the function returns.

    Raises:
        ValueError: If the type is not in the table, or a field is missing, unknown or of another kind.
    """
    name = part.get("type") if isinstance(part, dict) else None
    if not isinstance(name, str) or name not in builders:
        raise ValueError(
            f"The tokenizer's {place} must be one of {sorted(builders)}. Received: type={name!r}."
        )
    try:
        return builders[name](**{key: value for key, value in part.items() if key != "type"})
    except (TypeError, KeyError, AttributeError, IndexError, RuntimeError) as error:
        raise ValueError(
            f"The tokenizer's {place} {name!r} has a field that is missing, unknown or of another kind: {error}."
        ) from error


def check_value(place, name, value, known):
    """Raises a ValueError unless a field's value is one of those that are understood."""
    if value not in known:
        raise ValueError(
            f"The tokenizer's {place} must have {name} in {list(known)}. Received: {name}={value!r}."
        )
    return value


def pattern_of(pattern):
    """The kind, "String" or "Regex", and the text of a pattern."""
    if not isinstance(pattern, dict) or len(pattern) != 1:
        raise ValueError(f"A pattern must be a String or a Regex. Received: pattern={pattern!r}.")
    ((kind, text),) = pattern.items()
    if kind not in ("String", "Regex") or not isinstance(text, str) or not text:
        raise ValueError(f"A pattern must be a String or a Regex. Received: pattern={pattern!r}.")
    return kind, text
