"""The vocabularies in files that are older than tokenizer.json: word lists, merges, and sentencepiece models.

transformers' tokenizer classes move the ids of a sentencepiece model, each in its way. A function of this kind takes the
unigram `Vocabulary` of the model, the fields of tokenizer_config.json, the roles and the class' further special tokens.
"""

import base64
import collections

from keras_attn.huggingface.tokenizer_tokens import extra_tokens, text_of
from keras_attn.text.sentencepiece_models import CONTROL, USER_DEFINED, unknown_id_of

Vocabulary = collections.namedtuple("Vocabulary", "pieces merges charsmap unknown_id", defaults=[None] * 3)
Vocabulary.__doc__ = """What a tokenizer class gets.

pieces: {piece: id} or, of a unigram model, [piece, score] in the order of the ids.
merges: List of pairs of pieces, or None.
charsmap: The map of characters of sentencepiece, base64, or None.
unknown_id: The id of unknown text in a unigram model, or None.
"""


def word_list(lines):
    """The `Vocabulary` in the lines of a vocab.txt, BERT's list of pieces."""
    pieces = [line.rstrip() for line in lines]
    if pieces and not pieces[-1]:
        pieces.pop()
    return Vocabulary({piece: number for number, piece in enumerate(pieces)})


def merge_list(pieces, lines):
    """The `Vocabulary` in a vocab.json and the lines of a merges.txt."""
    # The first line may be a comment on the version, and the last is empty.
    merges = [line.split(" ") for line in lines if line and not line.startswith("#version")]
    return Vocabulary(pieces, merges)


def sentencepiece_vocabulary(proto):
    """The unigram `Vocabulary` of a sentencepiece model as it is, and the tokens that it sets aside.

    Args:
        proto: `ModelProto`.

    Returns:
        The `Vocabulary`, and a list of pairs (piece, whether it stands for no text).
    """
    charsmap = base64.b64encode(proto.normalizer_spec.precompiled_charsmap).decode("ascii")
    pieces = [[piece.piece, piece.score] for piece in proto.pieces]
    set_aside = [
        (piece.piece, piece.type == CONTROL)
        for piece in proto.pieces
        if piece.type in (CONTROL, USER_DEFINED)
    ]
    return Vocabulary(pieces, None, charsmap or None, unknown_id_of(proto)), set_aside


def unmoved(vocabulary, fields, roles, extra):
    """The vocabulary as the sentencepiece model has it."""
    return vocabulary


def with_extra_pieces(vocabulary, fields, roles, extra):
    """The tokens that only the configuration names come after the pieces of the model."""
    return vocabulary._replace(pieces=vocabulary.pieces + _unscored(extra))


def with_pegasus_tokens_first(vocabulary, fields, roles, extra):
    """Pad, end, the masks and the unused tokens come first, in place of the model's first two pieces."""
    masked, *unknown = extra
    first = [roles["pad_token"], roles["eos_token"], roles.get("mask_token"), masked]
    first = [name for name in dict.fromkeys(first) if name is not None]
    before = _unscored(first) + [[name, -100.0] for name in unknown]
    return vocabulary._replace(
        pieces=before + vocabulary.pieces[2:], unknown_id=vocabulary.unknown_id + len(before) - 2
    )


def in_fairseq_layout(vocabulary, fields, roles, extra):
    """Four tokens come before the pieces of the model, whose own three are left out; languages and the mask after."""
    last = extra + [roles.get("mask_token", "<mask>")]
    pieces = _unscored(_fairseq_tokens(roles)) + vocabulary.pieces[3:] + _unscored(last)
    return vocabulary._replace(pieces=pieces, unknown_id=3)


def with_merges(vocabulary, fields, roles, extra):
    """The pieces numbered as the model has them, and the merges that a BPE model of them needs."""
    numbers = {piece: number for number, (piece, _) in enumerate(vocabulary.pieces)}
    return Vocabulary(numbers, _merges(numbers), vocabulary.charsmap)


def nllb_with_merges(vocabulary, fields, roles, extra):
    """As `with_merges`, in fairseq's layout: its four tokens first, the languages and the mask last."""
    merged = with_merges(vocabulary, fields, roles, extra)
    names = _fairseq_tokens(roles) + list(merged.pieces)
    if "added_tokens_decoder" not in fields:
        # The model was trained with these ids; transformers 5 puts the mask before the languages.
        names += [text_of(token) for token in extra_tokens(fields)]
        names.append(roles.get("mask_token", "<mask>"))
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return merged._replace(pieces=numbers)


def _fairseq_tokens(roles):
    return [
        roles.get("bos_token", "<s>"),
        roles.get("pad_token", "<pad>"),
        roles.get("eos_token", "</s>"),
        roles.get("unk_token", "<unk>"),
    ]


def _merges(numbers):
    """The merges that transformers makes of the pieces of a model, in the order of their ids."""
    merges = []
    for piece, number in numbers.items():
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in numbers and right in numbers:
                rank = number, len(left), len(right), numbers[left], numbers[right]
                merges.append((rank, [left, right]))
    return [pair for _, pair in sorted(merges)]


def _unscored(names):
    return [[name, 0.0] for name in names]
