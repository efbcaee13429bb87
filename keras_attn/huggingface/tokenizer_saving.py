"""Tokenizers of this library as the files from which transformers' AutoTokenizer makes one with the same ids."""

import base64
import json
import pathlib

from keras_attn.checks import choose
from keras_attn.files import replaced_file
from keras_attn.huggingface.tokenizer_classes import CLASSES, words_parts
from keras_attn.text import ByteTokenizer, PipelineTokenizer, SentencePieceTokenizer, WordPieceTokenizer
from keras_attn.text.byte_level import BYTE_CHARACTERS
from keras_attn.text.byte_level_bpe_tokenizer import added_token
from keras_attn.text.decoders import SPELLED_OUT
from keras_attn.text.sentencepiece_models import merges_of, read_proto

# sentencepiece's kinds of pieces, and of models
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)
_UNIGRAM, _BPE = 1, 2
# The special tokens around a text and around a pair, by the kind of the model. A and B are texts, B's tokens of type 1.
_TEMPLATES = {
    "encoder": ("START A END", "START A END B END"),
    "seq2seq": ("A END", "A END B END"),
    "decoder": ("START A", "START A B"),
}

_OF_WORD_PIECE = {"continuing_subword_prefix": "##", "max_input_chars_per_word": 100}
# What `tokenizers` takes for the fields of a part, and wants to be told.
_FIELDS = {
    "ByteLevel": {"add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    "RobertaProcessing": {"trim_offsets": True, "add_prefix_space": True},
    "WordPiece": {"prefix": "##", "cleanup": True},  # the decoder
}


def save_tokenizer(tokenizer, folder, kind="encoder", max_length=None):
    """Writes tokenizer.json and tokenizer_config.json, from which AutoTokenizer and `read_tokenizer` make this tokenizer.

    Special tokens are put around a text as the kind of model needs them, except that a `PipelineTokenizer` keeps its
    own template. The names of special tokens in a text are read as text, by transformers too, which heeds
    `split_special_tokens`; `tokenizers` by itself does so after `tokenizer.encode_special_tokens = True`.

    Args:
        tokenizer: A tokenizer of `keras_attn.text`.
        folder: Path; it is created if missing.
        kind: "encoder": START, text, END; "seq2seq": text, END; "decoder": START, text.
        max_length: Integer, the most tokens that the model takes, or None.

    Raises:
        ValueError: if the tokenizer has a part that tokenizer.json cannot express.
        OSError: if a file cannot be written.

    Example:

    ```
    import tempfile
    from keras_attn.huggingface.tokenizer_saving import save_tokenizer
    from keras_attn.huggingface.tokenizer_loading import read_tokenizer
    from keras_attn.text import WordPieceTokenizer

    tokenizer = WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "play", "##ing"])
    with tempfile.TemporaryDirectory() as folder:
        save_tokenizer(tokenizer, folder, "seq2seq")
        same = read_tokenizer(folder)
    assert same.preprocess(["playing"])[0].to_list() == [[4, 5, 3]]
    ```
    """
    write_files(tokenizer_files(tokenizer, kind, max_length), folder)


def tokenizer_files(tokenizer, kind, max_length):
    """{name of a file: its content} of a tokenizer, for `write_files`; the arguments and errors are those of `save_tokenizer`."""
    template = choose("kind", kind, _TEMPLATES)
    describe = next((d for known, d in _DESCRIPTIONS.items() if isinstance(tokenizer, known)), None)
    if describe is None:
        names = ", ".join(known.__name__ for known in _DESCRIPTIONS)
        raise ValueError(f"`tokenizer` must be one of {names}. Received: {type(tokenizer).__name__}.")
    description, roles = describe(tokenizer)
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **roles}
    if not isinstance(tokenizer, PipelineTokenizer):
        description |= {"version": "1.0", "truncation": None, "padding": None}
        description["post_processor"] = _template(template, roles, tokenizer)
        config["split_special_tokens"] = True
    else:
        config |= {"split_special_tokens": True} if tokenizer.split_special_tokens else {}
        config |= {"truncation_side": "left"} if tokenizer.framing.from_left else {}
    types = ["token_type_ids"] if kind == "encoder" else []
    config["model_input_names"] = ["input_ids", *types, "attention_mask"]
    if max_length is not None:
        config["model_max_length"] = max_length
    return {"tokenizer.json": description, "tokenizer_config.json": config}


def write_files(files, folder):
    """Writes JSON files to a folder, which is created if missing."""
    for name, content in files.items():
        with replaced_file(pathlib.Path(folder) / name) as aside:
            aside.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", "utf-8")


def _pipeline(tokenizer):
    description = tokenizer.description
    if description["model"].get("type") == "SentencePiece":
        raise ValueError(
            "A tokenizer that was read from a sentencepiece model and an architecture's own ids has no tokenizer.json. "
            "Copy its files."
        )
    if (description.get("truncation") or {}).get("max_length") is None:
        description.pop("truncation", None)  # the side alone, which is in tokenizer_config.json
    model, parts = description.pop("model"), _completed(description)
    if model.get("type") == "WordPiece":
        model = {**_OF_WORD_PIECE, **model}
    return {"version": "1.0", **parts, "model": model}, dict(tokenizer.special_tokens)


def _completed(part):
    """A part of a tokenizer.json with the fields that `tokenizers` asks for, where older files leave them to its defaults."""
    if isinstance(part, list):
        return [_completed(inner) for inner in part]
    if not isinstance(part, dict):
        return part
    kind = part.get("type")
    fields = _FIELDS.get(kind, {}) if isinstance(kind, str) else {}
    return {**fields, **{name: _completed(inner) for name, inner in part.items()}}


def _word_piece(tokenizer):
    fields = {"do_lower_case": tokenizer.lowercase, "strip_accents": tokenizer.strip_accents}
    numbers = {piece: number for number, piece in enumerate(tokenizer.vocabulary)}
    roles = CLASSES["BertTokenizer"].roles
    description = words_parts(numbers, fields, roles)
    roles = {role: token for role, token in roles.items() if token in numbers}
    description["added_tokens"] = [added_token(token, numbers[token]) for token in roles.values()]
    description["model"] |= _OF_WORD_PIECE
    description["decoder"] |= {"prefix": "##", "cleanup": False}
    return description, {**roles, "bos_token": roles["cls_token"], "eos_token": roles["sep_token"]}


def _bytes(tokenizer):
    roles = _roles(tokenizer)
    specials = tokenizer.token_strings(tokenizer.special_token_ids)
    vocabulary = {name: number for number, name in enumerate([*specials, *BYTE_CHARACTERS])}
    return {
        "normalizer": None,
        "pre_tokenizer": {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": False,
            "use_regex": False,
        },
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
        "added_tokens": [added_token(name, vocabulary[name]) for name in specials],
        "decoder": {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": False,
            "use_regex": False,
        },
    }, roles


def _sentencepiece(tokenizer):
    proto = read_proto(tokenizer.model_proto)
    for piece in proto.pieces:
        if piece.type == _USER_DEFINED:
            raise ValueError(
                f"tokenizer.json cannot express pieces that users defined. Received: {piece.piece!r}."
            )
    if proto.trainer_spec.treat_whitespace_as_suffix or not proto.normalizer_spec.escape_whitespaces:
        raise ValueError("The model must write a space as ▁ before a word, to become a tokenizer.json.")
    names = [piece.piece for piece in proto.pieces]
    models = {_UNIGRAM: _unigram, _BPE: _merges}
    if proto.trainer_spec.model_type not in models:
        raise ValueError("A sentencepiece model must be of the types unigram or bpe.")
    splits = not any("▁" in name[1:] for name in names)
    scheme = "always" if proto.normalizer_spec.add_dummy_prefix else "never"
    special = [i for i, piece in enumerate(proto.pieces) if piece.type in (_UNKNOWN, _CONTROL)]
    return {
        "normalizer": _normalizer(proto.normalizer_spec),
        "pre_tokenizer": {
            "type": "Metaspace",
            "replacement": "▁",
            "prepend_scheme": scheme,
            "split": splits,
        },
        "model": models[proto.trainer_spec.model_type](proto),
        "added_tokens": [added_token(names[i], i) for i in special],
        "decoder": SPELLED_OUT
        if scheme == "always"
        else {**SPELLED_OUT, "decoders": SPELLED_OUT["decoders"][:3]},
    }, _roles(tokenizer)


def _normalizer(spec):
    steps = []
    if spec.precompiled_charsmap:
        charsmap = base64.b64encode(spec.precompiled_charsmap).decode("ascii")
        steps.append({"type": "Precompiled", "precompiled_charsmap": charsmap})
    if spec.remove_extra_whitespaces:
        for pattern, content in ((r"\A +| +\z", ""), (" +", " ")):
            steps.append({"type": "Replace", "pattern": {"Regex": pattern}, "content": content})
    return {"type": "Sequence", "normalizers": steps} if steps else None


def _merges(proto):
    scores = {piece.piece: piece.score for piece in proto.pieces if piece.type == _NORMAL}
    return {
        "type": "BPE",
        "vocab": {piece.piece: number for number, piece in enumerate(proto.pieces)},
        "merges": [list(pair) for pair in merges_of(scores)],
        "unk_token": proto.pieces[_unknown_id(proto)].piece,
        "fuse_unk": True,
        "byte_fallback": proto.trainer_spec.byte_fallback,
    }


def _unigram(proto):
    # `tokenizers` finds the names of special tokens and bytes in texts, where sentencepiece does not: they cost more
    # than any other way to spell them.
    least = min(piece.score for piece in proto.pieces if piece.type == _NORMAL)
    vocabulary = [
        [piece.piece, piece.score if piece.type == _NORMAL else 4 * (least - 20)] for piece in proto.pieces
    ]
    return {
        "type": "Unigram",
        "unk_id": _unknown_id(proto),
        "vocab": vocabulary,
        "byte_fallback": proto.trainer_spec.byte_fallback,
    }


def _unknown_id(proto):
    return next(number for number, piece in enumerate(proto.pieces) if piece.type == _UNKNOWN)


def _roles(tokenizer):
    ids = {
        "pad_token": tokenizer.pad_token_id,
        "unk_token": tokenizer.unknown_token_id,
        "bos_token": tokenizer.start_token_id,
        "eos_token": tokenizer.end_token_id,
    }
    known = {role: number for role, number in ids.items() if number is not None}
    return dict(zip(known, tokenizer.token_strings(list(known.values()))))


def _template(texts, roles, tokenizer):
    words = {"START": (roles["bos_token"], tokenizer.start_token_id)}
    words["END"] = (roles["eos_token"], tokenizer.end_token_id)

    def part(word, type_id):
        if word in words:
            return {"SpecialToken": {"id": words[word][0], "type_id": type_id}}
        return {"Sequence": {"id": word, "type_id": type_id}}

    def parts(text):
        before, second, after = text.partition("B")
        first = [part(word, 0) for word in before.split()]
        return first + [part(word, 1) for word in (second + after).split()]

    special = {name: {"id": name, "ids": [number], "tokens": [name]} for name, number in words.values()}
    single, pair = map(parts, texts)
    return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special}


_DESCRIPTIONS = {
    PipelineTokenizer: _pipeline,
    WordPieceTokenizer: _word_piece,
    SentencePieceTokenizer: _sentencepiece,
    ByteTokenizer: _bytes,
}
