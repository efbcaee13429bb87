"""The tokenizer in a folder of Hugging Face, from whichever files the folder has."""

import json
import pathlib

from keras_attn.files import read_json
from keras_attn.huggingface.tokenizer_descriptions import (
    from_byte_level_files,
    from_sentencepiece,
    from_word_list,
)
from keras_attn.text import PipelineTokenizer

_ROLES = ("bos_token", "eos_token", "unk_token", "pad_token", "cls_token", "sep_token", "mask_token")
_MODEL_FILES = (
    "sentencepiece.bpe.model",
    "spiece.model",
    "sentencepiece.model",
    "tokenizer.model",
    "spm.model",
)
# The largest published tokenizer.json has 35 MB.
_MAX_BYTES = 2**28


def read_tokenizer(folder, side="source"):
    """Reads the tokenizer in a folder.

    tokenizer.json is used where there is one. Otherwise it is vocab.txt, vocab.json with merges.txt, a sentencepiece
    model, or Marian's source.spm and target.spm with vocab.json, and tokenizer_config.json says what they leave open.

    Args:
        folder: Path of the folder, as the hub holds it.
        side: "source" or "target"; only Marian's two sentencepiece models differ.

    Returns:
        A `PipelineTokenizer`.

    Raises:
        FileNotFoundError: If the folder has none of these files.
        ValueError: If a file is damaged, too large, or has a part that is not understood.

    Example:

    ```
    import json, pathlib, tempfile
    from keras_attn.huggingface.tokenizers import read_tokenizer

    with tempfile.TemporaryDirectory() as folder:
        words = "[PAD]\\n[UNK]\\n[CLS]\\n[SEP]\\n[MASK]\\nhi\\n"
        pathlib.Path(folder, "vocab.txt").write_text(words)
        tokenizer = read_tokenizer(folder)
    assert tokenizer.preprocess(["Hi hi"])[0].to_list() == [[2, 5, 5, 3]]
    ```
    """
    if side not in ("source", "target"):
        raise ValueError(f"`side` must be 'source' or 'target'. Received: side={side!r}.")
    folder = pathlib.Path(folder)
    config = {
        **_read_object(folder / "special_tokens_map.json"),
        **_read_object(folder / "tokenizer_config.json"),
    }
    roles = {role: _content(config[role]) for role in _ROLES if config.get(role)}
    model_type = _read_object(folder / "config.json").get("model_type")
    if (folder / "tokenizer.json").is_file():
        return _with_roles(_read_object(folder / "tokenizer.json"), roles)
    extra = _added_tokens(folder, config)
    if (folder / "vocab.txt").is_file():
        return _with_roles(*from_word_list(_read_lines(folder / "vocab.txt"), config, roles, extra))
    vocabulary = _read_object(folder / "vocab.json")
    if vocabulary and (folder / "merges.txt").is_file():
        merges = _read_lines(folder / "merges.txt")
        return _with_roles(*from_byte_level_files(vocabulary, merges, model_type, config, roles, extra))
    names = (f"{side}.spm",) if vocabulary and (folder / f"{side}.spm").is_file() else _MODEL_FILES
    for name in names:
        if (folder / name).is_file():
            content = _checked_size(folder / name).read_bytes()
            kind = "marian" if name.endswith(".spm") else model_type
            return _with_roles(*from_sentencepiece(content, kind, vocabulary, config, roles, extra))
    raise FileNotFoundError(
        f"`folder` must hold tokenizer.json, vocab.txt, vocab.json with merges.txt, one of {list(_MODEL_FILES)}, or "
        f"source.spm and target.spm with vocab.json. Received: folder={str(folder)!r}."
    )


def _with_roles(description, roles):
    # A role may name a token that the file does not have: those of a class of transformers, unused.
    known = {
        token.get("content") for token in description.get("added_tokens") or [] if isinstance(token, dict)
    }
    model = description.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocabulary, dict):
        known |= set(vocabulary)
    elif isinstance(vocabulary, list):
        known |= {
            entry[0]
            for entry in vocabulary
            if isinstance(entry, list) and entry and isinstance(entry[0], str)
        }
    return PipelineTokenizer(description, {role: token for role, token in roles.items() if token in known})


def _read_object(path):
    """The object in a JSON file, {} if there is no such file."""
    if not path.is_file():
        return {}
    content = read_json(_checked_size(path))
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a JSON object. Received: {json.dumps(content)[:50]}.")
    return content


def _read_lines(path):
    return _checked_size(path).read_text(encoding="utf-8").split("\n")


def _checked_size(path):
    size = path.stat().st_size
    if size > _MAX_BYTES:
        raise ValueError(
            f"{path} must have at most {_MAX_BYTES} bytes, as tokenizers do. Received: {size} bytes."
        )
    return path


def _content(token):
    """The text of a token, which a file may give with its options."""
    text = token.get("content") if isinstance(token, dict) else token
    if not isinstance(text, str):
        raise ValueError(f"A special token must be a text. Received: {token!r:.100}")
    return text


def _added_tokens(folder, config):
    """The objects of added tokens that are listed outside of tokenizer.json, and names without ids."""
    listed = []
    for number, token in (config.get("added_tokens_decoder") or {}).items():
        options = {
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": True,
            "special": False,
        }
        listed.append({"id": int(number), **options, **token})
    known = {token["content"] for token in listed}
    for content, number in _read_object(folder / "added_tokens.json").items():
        if content not in known:
            listed.append(
                {
                    "id": number,
                    "content": content,
                    "single_word": False,
                    "lstrip": False,
                    "rstrip": False,
                    "normalized": False,
                    "special": False,
                }
            )
    names = [_content(token) for token in config.get("additional_special_tokens") or []]
    return listed, names
