"""Tokenizers of this library as the files from which transformers' AutoTokenizer makes one with the same ids."""

import base64
import json
import pathlib

from keras_attn.checks import choose
from keras_attn.files import replaced_file
from keras_attn.huggingface.tokenizer_classes import CLASSES, words_parts
from keras_attn.text import (
    ByteTokenizer,
    PipelineTokenizer,
    SentencePieceTokenizer,
    WordPieceTokenizer,
    json_parts,
)
from keras_attn.text.byte_level import BYTE_CHARACTERS
from keras_attn.text.sentencepiece_models import (
    BPE,
    CONTROL,
    NORMAL,
    UNIGRAM,
    UNKNOWN,
    USER_DEFINED,
    merges_of,
    read_proto,
    unknown_id_of,
)

# The special tokens around a text and around a pair, by the kind of the model: as in `template_processing`.
_TEMPLATES = {
    "encoder": ("START A END", "START A END B:1 END:1"),
    "seq2seq": ("A END", "A END B:1 END:1"),
    "decoder": ("START A", "START A B:1"),
}
_WORD_PIECE_DEFAULTS = {"continuing_subword_prefix": "##", "max_input_chars_per_word": 100}
# The fields that `tokenizers` wants in parts of these types, and their defaults.
_DEFAULT_FIELDS = {
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
    from keras_attn.huggingface import read_tokenizer, save_tokenizer
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
    description, roles = _description_and_roles(tokenizer)
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **roles}
    if not isinstance(tokenizer, PipelineTokenizer):
        description |= {"version": "1.0", "truncation": None, "padding": None}
        description["post_processor"] = _template(template, roles, tokenizer)
        config["split_special_tokens"] = True
    else:
        if tokenizer.split_special_tokens:
            config["split_special_tokens"] = True
        if tokenizer.framing.from_left:
            config["truncation_side"] = "left"
    config["model_input_names"] = ["input_ids", "attention_mask"]
    if kind == "encoder":
        config["model_input_names"].insert(1, "token_type_ids")
    if max_length is not None:
        config["model_max_length"] = max_length
    return {"tokenizer.json": description, "tokenizer_config.json": config}


def write_files(files, folder):
    """Writes JSON files to a folder, which is created if missing."""
    for name, content in files.items():
        with replaced_file(pathlib.Path(folder) / name) as aside:
            aside.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", "utf-8")


def _description_and_roles(tokenizer):
    """The content of tokenizer.json but for what differs by the kind of model, and {role: token}."""
    for tokenizer_class, describe in _DESCRIPTIONS.items():
        if isinstance(tokenizer, tokenizer_class):
            return describe(tokenizer)
    names = ", ".join(tokenizer_class.__name__ for tokenizer_class in _DESCRIPTIONS)
    raise ValueError(f"`tokenizer` must be one of {names}. Received: {type(tokenizer).__name__}.")


def _pipeline(tokenizer):
    description = tokenizer.description
    if description["model"].get("type") == "SentencePiece":
        raise ValueError(
            "A tokenizer that was read from a sentencepiece model and an architecture's own ids has no tokenizer.json. "
            "Copy its files."
        )
    if (description.get("truncation") or {}).get("max_length") is None:
        description.pop("truncation", None)  # the side alone, which is in tokenizer_config.json
    model = description.pop("model")
    parts = _completed(description)
    if model.get("type") == "WordPiece":
        model = {**_WORD_PIECE_DEFAULTS, **model}
    return {"version": "1.0", **parts, "model": model}, dict(tokenizer.special_tokens)


def _completed(part):
    """A part of a tokenizer.json with the fields that `tokenizers` asks for, where older files leave them to its defaults."""
    if isinstance(part, list):
        return [_completed(inner) for inner in part]
    if not isinstance(part, dict):
        return part
    kind = part.get("type")
    defaults = _DEFAULT_FIELDS.get(kind, {}) if isinstance(kind, str) else {}
    return defaults | {name: _completed(inner) for name, inner in part.items()}


def _word_piece(tokenizer):
    fields = {"do_lower_case": tokenizer.lowercase, "strip_accents": tokenizer.strip_accents}
    numbers = {piece: number for number, piece in enumerate(tokenizer.vocabulary)}
    roles = CLASSES["BertTokenizer"].roles
    description = words_parts(numbers, fields, roles)
    roles = {role: token for role, token in roles.items() if token in numbers}
    description["added_tokens"] = [json_parts.added_token(token, numbers[token]) for token in roles.values()]
    description["model"] |= _WORD_PIECE_DEFAULTS
    description["decoder"] |= {"prefix": "##", "cleanup": False}
    return description, {**roles, "bos_token": roles["cls_token"], "eos_token": roles["sep_token"]}


def _bytes(tokenizer):
    specials = tokenizer.token_strings(tokenizer.special_token_ids)
    vocabulary = {name: number for number, name in enumerate(specials + list(BYTE_CHARACTERS))}
    spelling = json_parts.byte_level(add_prefix_space=False, trim_offsets=False, use_regex=False)
    description = {
        "normalizer": None,
        "pre_tokenizer": spelling,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
        "added_tokens": [json_parts.added_token(name, vocabulary[name]) for name in specials],
        "decoder": spelling,
    }
    return description, _roles(tokenizer)


def _sentencepiece(tokenizer):
    proto = read_proto(tokenizer.model_proto)
    for piece in proto.pieces:
        if piece.type == USER_DEFINED:
            raise ValueError(
                f"tokenizer.json cannot express pieces that users defined. Received: {piece.piece!r}."
            )
    if proto.trainer_spec.treat_whitespace_as_suffix or not proto.normalizer_spec.escape_whitespaces:
        raise ValueError("The model must write a space as ▁ before a word, to become a tokenizer.json.")
    models = {UNIGRAM: _unigram, BPE: _merges}
    if proto.trainer_spec.model_type not in models:
        raise ValueError("A sentencepiece model must be of the types unigram or bpe.")
    names = [piece.piece for piece in proto.pieces]
    splits_words = not any("▁" in name[1:] for name in names)
    has_prefix = proto.normalizer_spec.add_dummy_prefix
    scheme = "always" if has_prefix else "never"
    special = [i for i, piece in enumerate(proto.pieces) if piece.type in (UNKNOWN, CONTROL)]
    description = {
        "normalizer": _normalizer(proto.normalizer_spec),
        "pre_tokenizer": json_parts.metaspace(scheme, split=splits_words),
        "model": models[proto.trainer_spec.model_type](proto),
        "added_tokens": [json_parts.added_token(names[i], i) for i in special],
        "decoder": json_parts.sentencepiece_decoder(has_prefix=has_prefix),
    }
    return description, _roles(tokenizer)


def _normalizer(spec):
    steps = []
    if spec.precompiled_charsmap:
        charsmap = base64.b64encode(spec.precompiled_charsmap).decode("ascii")
        steps.append({"type": "Precompiled", "precompiled_charsmap": charsmap})
    if spec.remove_extra_whitespaces:
        steps.append(json_parts.replace_regex(r"\A +| +\z", ""))
        steps.append(json_parts.replace_regex(" +", " "))
    return json_parts.normalizers(steps)


def _merges(proto):
    scores = {piece.piece: piece.score for piece in proto.pieces if piece.type == NORMAL}
    return {
        "type": "BPE",
        "vocab": {piece.piece: number for number, piece in enumerate(proto.pieces)},
        "merges": [list(pair) for pair in merges_of(scores)],
        "unk_token": proto.pieces[unknown_id_of(proto)].piece,
        "fuse_unk": True,
        "byte_fallback": proto.trainer_spec.byte_fallback,
    }


def _unigram(proto):
    least = min(piece.score for piece in proto.pieces if piece.type == NORMAL)
    # `tokenizers` finds the names of special tokens and bytes in texts, where sentencepiece does not: they cost more
    # than any other way to spell them.
    special_score = 4 * (least - 20)
    vocabulary = []
    for piece in proto.pieces:
        score = piece.score if piece.type == NORMAL else special_score
        vocabulary.append([piece.piece, score])
    return {
        "type": "Unigram",
        "unk_id": unknown_id_of(proto),
        "vocab": vocabulary,
        "byte_fallback": proto.trainer_spec.byte_fallback,
    }


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
    tokens = {"START": roles["bos_token"], "END": roles["eos_token"]}
    special_ids = {
        tokens["START"]: tokenizer.start_token_id,
        tokens["END"]: tokenizer.end_token_id,
    }
    single, pair = texts
    return json_parts.template_processing(_words(single, tokens), _words(pair, tokens), special_ids)


def _words(text, tokens):
    """The words of a template, in which `tokens` replaces names."""
    words = []
    for word in text.split():
        name, colon, type_id = word.partition(":")
        words.append(tokens.get(name, name) + colon + type_id)
    return words


_DESCRIPTIONS = {
    PipelineTokenizer: _pipeline,
    WordPieceTokenizer: _word_piece,
    SentencePieceTokenizer: _sentencepiece,
    ByteTokenizer: _bytes,
}
