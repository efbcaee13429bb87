"""The special and added tokens of a tokenizer, from the files that may list them, as transformers joins these."""

from keras_attn.text.json_parts import added_token
from keras_attn.text.pipeline_tokenizer import ROLES

_OPTIONS = {"single_word": False, "lstrip": False, "rstrip": False, "special": False}
_NAMES = {"content", "normalized"} | set(_OPTIONS)


def named_roles(defaults, fields):
    """{role: token} of special tokens in the order of `ROLES`; a null takes away a default."""
    given = {role: fields.get(role, defaults.get(role)) for role in ROLES}
    return {role: text_of(token) for role, token in given.items() if token is not None}


def text_of(token):
    """The text of a token, which a file may give with its options."""
    text = token
    if isinstance(token, dict):
        text = token.get("content")
    if not isinstance(text, str):
        raise ValueError(f"A special token must be a text. Received: {token!r:.100}")
    return text


def tokens_in_files(fields, numbers_of_added, tokens_of_file, special):
    """{id: token} of the added tokens that the files list.

    Args:
        fields: Dict, those of tokenizer_config.json. Its `added_tokens_decoder` takes the place of all other lists.
        numbers_of_added: {token: id}, the content of added_tokens.json.
        tokens_of_file: List of objects, the added tokens of tokenizer.json.
        special: Texts, those of added_tokens.json that are special.
    """
    if "added_tokens_decoder" in fields:
        by_id = fields["added_tokens_decoder"] or {}
        return {int(number): _token(token, number) for number, token in by_id.items()}
    by_id = {}
    for text, number in numbers_of_added.items():
        is_special = text in special
        token = {"content": text, "normalized": not is_special, "special": is_special}
        by_id[number] = _token(token, number)
    return by_id | {token["id"]: token for token in tokens_of_file}


def extra_tokens(fields):
    """The special tokens of a folder that have no role, texts or objects with options."""
    extra = fields.get("extra_special_tokens") or fields.get("additional_special_tokens") or []
    named, unnamed = (extra, []) if isinstance(extra, dict) else ({}, extra)
    named = {**named, **(fields.get("model_specific_special_tokens") or {})}
    for name, value in fields.items():
        if name.endswith("_token") and name not in ROLES and isinstance(value, str):
            named[name] = value
    return list(named.values()) + list(unnamed)


def join_tokens(own, in_files, named, extra, numbers, most):
    """The added tokens of a tokenizer, as tokenizer.json lists them.

    Args:
        own: List of objects, those that it has before others are added.
        in_files: {id: token} of `tokens_in_files`.
        named: List of texts or objects, the tokens of the roles.
        extra: List of texts or objects, further special tokens.
        numbers: {piece: id}, the vocabulary.
        most: Integer, the number of rows of the model, or None. A token that no file gives an id gets the next one if
            there is a row for it; otherwise it is left out.

    Returns:
        List of objects.
    """
    tokens = {token["content"]: token for token in own}
    role_tokens = {text_of(token) for token in named}
    added = [
        token
        for _, token in sorted(in_files.items())
        if _without_id(tokens.get(token["content"])) != _without_id(token)
    ]
    known = tokens.keys() | {token["content"] for token in added}
    # If a token is named twice in different ways, the options of the later one hold.
    different = [token for i, token in enumerate(named + extra) if token not in (named + extra)[:i]]
    added += [_special(token) for token in different if text_of(token) not in known]
    ids = {token["content"]: token["id"] for token in own}
    used = set(numbers.values()) | set(ids.values())
    for token in added:
        text = token["content"]
        number = numbers.get(text, ids.get(text, token.get("id")))
        if number is None:
            number = max(used, default=-1) + 1
            if most is None or number >= most:
                continue
        ids[text] = number
        used.add(number)
        tokens[text] = {**token, "id": number, "special": token["special"] or text in role_tokens}
    return sorted(tokens.values(), key=lambda token: token["id"])


def _token(token, number):
    """An object with all options. A special token is not looked for in normalized text, unless that is said."""
    known = {name: value for name, value in token.items() if name in _NAMES}
    return {**_OPTIONS, "normalized": not known.get("special", False), **known, "id": int(number)}


def _without_id(token):
    if token is None:
        return None
    return {name: value for name, value in token.items() if name != "id"}


def _special(token):
    if isinstance(token, dict):
        return _without_id(_token({"special": True, **token}, 0))
    return _without_id(added_token(token, 0))
