"""Vocabularies of OpenNMT-tf, one token a line, and the tokenizers that their models are trained with."""

import base64

from keras_attn.opennmt.settings import Settings, read_yaml
from keras_attn.text import PipelineTokenizer
from keras_attn.text.json_parts import added_token, sentencepiece_decoder

BLANK, START, END = SPECIAL = ("<blank>", "<s>", "</s>")
_UNKNOWN = "<unk>"
# No word contains a space, so each word is either one piece or unknown.
_NO_PREFIX = " "


def read_tokenizer(folder, side):
    """The tokenizer of one side of an OpenNMT-tf model.

    Where the YAML file names a sentencepiece model for the tokenization, it splits texts as that does. Without a
    tokenization the texts were split before the training, and its texts are tokens with spaces between them.

    Args:
        folder: Path of an OpenNMT-tf folder, or its `Settings`.
        side: "source" or "target".

    Returns:
        A `PipelineTokenizer`; ids are the numbers of the vocabulary's lines, and unknown tokens have the id after the last.

    Raises:
        FileNotFoundError: if a file is missing.
        ValueError: if the vocabulary is damaged, or the tokenization is not one of these.

    Example: `read_tokenizer("run-en-de", "source").encode(["Hello!"])`.
    """
    settings = folder if isinstance(folder, Settings) else Settings.read(folder)
    ids = _vocabulary(settings.file(settings.data[f"{side}_vocabulary"]))
    model = _sentencepiece_model(settings, side)
    if model is None:
        kind = {
            "model": {
                "type": "WordPiece",
                "vocab": ids,
                "unk_token": _UNKNOWN,
                "continuing_subword_prefix": _NO_PREFIX,
                "max_input_chars_per_word": max(map(len, ids)),
            },
            "pre_tokenizer": {"type": "WhitespaceSplit"},
            "decoder": {"type": "WordPiece", "prefix": _NO_PREFIX, "cleanup": False},
        }
    else:
        proto = base64.b64encode(model).decode("ascii")
        kind = {
            "model": {"type": "SentencePiece", "proto": proto, "vocab": ids, "unk_token": _UNKNOWN},
            "decoder": sentencepiece_decoder(),
        }
    added = [added_token(token, number) for number, token in enumerate(SPECIAL)]
    roles = {"bos_token": START, "eos_token": END, "pad_token": BLANK, "unk_token": _UNKNOWN}
    return PipelineTokenizer({**kind, "added_tokens": added}, roles)


def _vocabulary(path):
    """{token: id}, the unknown one among them."""
    try:
        lines = path.read_text("utf-8").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is damaged: it is no UTF-8 ({error}).") from None
    tokens = [line.rstrip("\r") for line in lines]
    if tuple(tokens[:3]) != SPECIAL:
        raise ValueError(
            f"{path} must begin with the lines {', '.join(SPECIAL)}, as vocabularies of OpenNMT-tf do. "
            f"Received: {tokens[:3]}."
        )
    ids = {token: number for number, token in enumerate(tokens)}
    if len(ids) < len(tokens):
        twice = next(token for number, token in enumerate(tokens) if ids[token] != number)
        raise ValueError(f"{path} must have each token once. Received: {twice!r} twice.")
    if _UNKNOWN in ids:  # an ordinary token here; the unknown id follows the last line's
        ids[f"<{_UNKNOWN}>"] = ids.pop(_UNKNOWN)
    ids.pop("", None)  # a line without a token keeps its number
    return {**ids, _UNKNOWN: len(tokens)}


def _sentencepiece_model(settings, side):
    """The content of the sentencepiece model that the tokenization names, or None without a tokenization."""
    given = settings.data.get(f"{side}_tokenization")
    if isinstance(given, str):
        given = read_yaml(settings.file(given))
    if not given:
        return None
    kind = "OpenNMTTokenizer"
    params = given
    if isinstance(given, dict) and "type" in given:
        kind = given["type"]
        params = given.get("params") or {}
    if isinstance(params, dict):
        if kind == "SpaceTokenizer":
            return None
        if kind == "SentencePieceTokenizer" and "model" in params:
            return settings.file(params["model"]).read_bytes()
        is_plain = set(params) <= {"mode", "sp_model_path", "sp_nbest_size", "sp_alpha", "spacer_annotate"}
        is_plain &= params.get("mode", "none") == "none" and bool(params.get("spacer_annotate", True))
        if kind == "OpenNMTTokenizer" and "sp_model_path" in params and is_plain:
            return settings.file(params["sp_model_path"]).read_bytes()
    raise ValueError(
        f"`{side}_tokenization` must be a SentencePieceTokenizer, an OpenNMTTokenizer with mode none and sp_model_path, or "
        f"nothing: other tokenizers of OpenNMT are no part of a graph. Received: {given!r:.200}. Without it in the YAML file, "
        "texts are tokens with spaces between them."
    )
