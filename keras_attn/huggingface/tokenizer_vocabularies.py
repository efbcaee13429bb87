"""The vocabularies in files of a tokenizer that are older than tokenizer.json: word lists, merges, sentencepiece models."""

import base64

from keras_attn.huggingface.tokenizer_classes import (
    MBART_50_LANGUAGES,
    MBART_LANGUAGES,
    Vocabulary,
    extra_ids,
    pegasus_extra,
)
from keras_attn.huggingface.tokenizer_tokens import extra_tokens, text_of
from keras_attn.text.sentencepiece_models import read_proto

# sentencepiece's kinds of pieces
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4


def word_list(lines):
    """The `Vocabulary` in the lines of a vocab.txt, BERT's list of pieces."""
    pieces = [line.rstrip() for line in lines]
    if pieces and not pieces[-1]:
        pieces.pop()
    return Vocabulary({piece: number for number, piece in enumerate(pieces)}, None, None, None)


def merge_list(pieces, lines):
    """The `Vocabulary` in a vocab.json and the lines of a merges.txt."""
    # The last line is empty, and so may the file's first be a comment on its version.
    merges = [line.split(" ") for line in lines if line and not line.startswith("#version")]
    return Vocabulary(pieces, merges, None, None)


def sentencepiece_vocabulary(content, name, fields, roles):
    """The `Vocabulary` that a class of transformers makes of a sentencepiece model, whose ids some of them move.

    Args:
        content: The model, as `bytes`.
        name: The class's, one of `SENTENCEPIECE_CLASSES`.
        fields: Dict, those of tokenizer_config.json.
        roles: {role: token}.

    Returns:
        The `Vocabulary`, and the tokens that the model itself sets aside: list of (piece, whether it stands for no text).
    """
    proto = read_proto(content)
    charsmap = base64.b64encode(proto.normalizer_spec.precompiled_charsmap).decode("ascii") or None
    pieces = [(piece.piece, piece.score) for piece in proto.pieces]
    unknown_id = next(number for number, piece in enumerate(proto.pieces) if piece.type == _UNKNOWN)
    set_aside = [
        (piece.piece, piece.type == _CONTROL)
        for piece in proto.pieces
        if piece.type in (_CONTROL, _USER_DEFINED)
    ]
    vocabulary = SENTENCEPIECE_CLASSES[name](pieces, charsmap, unknown_id, fields, roles)
    return vocabulary, set_aside


def _unmoved(pieces, charsmap, unknown_id, fields, roles):
    return Vocabulary([list(piece) for piece in pieces], None, charsmap, unknown_id)


def _t5(pieces, charsmap, unknown_id, fields, roles):
    return _unmoved([*pieces, *_unscored(extra_ids(fields))], charsmap, unknown_id, fields, roles)


def _pegasus(pieces, charsmap, unknown_id, fields, roles):
    masked, *unknown = pegasus_extra(fields)
    first = [roles["pad_token"], roles["eos_token"], roles.get("mask_token"), masked]
    first = [name for name in dict.fromkeys(first) if name is not None]
    moved = [*_unscored(first), *((name, -100.0) for name in unknown)]
    number = unknown_id + len(moved) - 2
    return _unmoved([*moved, *pieces[2:]], charsmap, number, fields, roles)


def _fairseq(*after):
    """The layout of fairseq: four tokens come before the pieces of the model, whose own three are left out."""

    def vocabulary(pieces, charsmap, unknown_id, fields, roles):
        first = [roles.get(role, name) for role, name in _FAIRSEQ.items()]
        last = [*after, roles.get("mask_token", "<mask>")]
        moved = [*_unscored(first), *pieces[3:], *_unscored(last)]
        return _unmoved(moved, charsmap, 3, fields, roles)

    return vocabulary


_FAIRSEQ = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}


def _nllb(pieces, charsmap, unknown_id, fields, roles):
    merges = _merges({piece: number for number, (piece, _) in enumerate(pieces)})
    names = [roles.get(role, name) for role, name in _FAIRSEQ.items()] + [piece for piece, _ in pieces]
    if "added_tokens_decoder" not in fields:
        # The model was trained with these ids; transformers 5 puts the mask before the languages.
        names += [*map(text_of, extra_tokens(fields)), roles.get("mask_token", "<mask>")]
    names = dict.fromkeys(names)
    return Vocabulary({name: number for number, name in enumerate(names)}, merges, charsmap, None)


def _merged(pieces, charsmap, unknown_id, fields, roles):
    numbers = {piece: number for number, (piece, _) in enumerate(pieces)}
    return Vocabulary(numbers, _merges(numbers), charsmap, None)


def _merges(numbers):
    """The merges that transformers makes of the pieces of a model, in the order of their ids."""
    merges = []
    for piece, number in numbers.items():
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in numbers and right in numbers:
                merges.append((number, len(left), len(right), numbers[left], numbers[right], left, right))
    return [list(merge[-2:]) for merge in sorted(merges)]


def _unscored(names):
    return [(name, 0.0) for name in names]


SENTENCEPIECE_CLASSES = {
    "AlbertTokenizer": _unmoved,
    "GemmaTokenizer": _merged,
    "LlamaTokenizer": _merged,
    "MBartTokenizer": _fairseq(*MBART_LANGUAGES),
    "MBart50Tokenizer": _fairseq(*MBART_50_LANGUAGES),
    "NllbTokenizer": _nllb,
    "PegasusTokenizer": _pegasus,
    "T5Tokenizer": _t5,
    "XLMRobertaTokenizer": _fairseq(),
}
