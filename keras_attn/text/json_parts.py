"""The parts of a tokenizer.json: reading them, so that none is overlooked, and the objects that this library writes.

Reference:
    - https://github.com/huggingface/tokenizers
"""


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


def added_token(content, token_id, lstrip=False):
    """A special token as `added_tokens` lists it."""
    return {
        "id": token_id,
        "content": content,
        "single_word": False,
        "lstrip": lstrip,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }


def replace(text, content):
    """A normalizer or decoder: each `text` becomes `content`."""
    return {"type": "Replace", "pattern": {"String": text}, "content": content}


def replace_regex(pattern, content):
    """A normalizer: each match of a regular expression becomes `content`."""
    return {"type": "Replace", "pattern": {"Regex": pattern}, "content": content}


def normalizers(steps):
    """A normalizer of several steps, or None if there are none."""
    return {"type": "Sequence", "normalizers": steps} if steps else None


def pre_tokenizers(*steps):
    """A pre-tokenizer of several steps."""
    return {"type": "Sequence", "pretokenizers": list(steps)}


def split(pattern):
    """A pre-tokenizer: each match of a regular expression is a word."""
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def metaspace(scheme, split=True):
    """sentencepiece's pre-tokenizer, or decoder: a space is "▁", and texts begin with one by the scheme."""
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split}


def byte_level(*, add_prefix_space, trim_offsets, use_regex):
    """GPT-2's pre-tokenizer, or decoder: bytes are spelled as visible characters."""
    return {
        "type": "ByteLevel",
        "add_prefix_space": add_prefix_space,
        "trim_offsets": trim_offsets,
        "use_regex": use_regex,
    }


def sentencepiece_decoder(*, has_prefix=True):
    """The decoder of sentencepiece models: "▁" is a space, and a byte may be a piece.

    Args:
        has_prefix: Boolean, whether a space that was put before the text is taken away.
    """
    steps = [replace("▁", " "), {"type": "ByteFallback"}, {"type": "Fuse"}]
    if has_prefix:
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {"type": "Sequence", "decoders": steps}


def template_processing(single, pair, special_ids):
    """The post-processor that puts special tokens around one text and around a pair.

    Args:
        single, pair: Lists of words: "A" and "B" stand for texts, other words for special tokens; a word that ends with
            ":1" is of type 1.
        special_ids: Dict from special tokens to their ids.
    """
    return {
        "type": "TemplateProcessing",
        "single": [_template_part(word) for word in single],
        "pair": [_template_part(word) for word in pair],
        "special_tokens": {
            token: {"id": token, "ids": [number], "tokens": [token]} for token, number in special_ids.items()
        },
    }


def _template_part(word):
    name = word.removesuffix(":1")
    kind = "Sequence" if name in ("A", "B") else "SpecialToken"
    return {kind: {"id": name, "type_id": int(name != word)}}
