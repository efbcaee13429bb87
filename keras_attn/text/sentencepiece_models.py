"""Models of subwords as sentencepiece models, which a graph applies.

Byte-pair encoding by a list of merges is sentencepiece's own, with the rank of the merge that makes a piece as its
score. A list may have several merges for one piece, as it has where it was made from a sentencepiece model. But what
happens to the characters of a piece until they are that piece depends on nothing outside it. So one merge makes it in
all texts, and the others never do; joining the characters of the piece alone shows which. For the same reason
sentencepiece, which joins any two neighbours that spell a piece, never joins others than these two.

Reference:
    - Kudo and Richardson, 2018 (arXiv:1808.06226)
    - Sennrich et al., 2016 (arXiv:1508.07909), section 3.2
"""

import itertools
import math
import struct

import tensorflow as tf

from keras_attn.text.resources import import_package
from keras_attn.text.sentencepiece_tokenizer import shared_graph_tokenizer

# sentencepiece's numbers of kinds of models, and of pieces.
UNIGRAM, BPE = 1, 2
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
# Below the score of every merge.
_CHARACTER_SCORE = -1e9
# An empty map of characters: its trie has no branch. Without a map, sentencepiece would write a line to stderr.
_NO_CHARACTERS = struct.pack("<I", 1024) + bytes(1024) + b"\0"
# Put around words that are one token whatever the merges say. It does not spell any byte.
_EDGE = "\n"


class SentencePieceModel(tf.Module):
    """A sentencepiece model whose ids are mapped to those of a vocabulary.

    Args:
        proto: The sentencepiece model, a `ModelProto`.
        token_ids: List of int, the id for each piece of the model; below zero for a piece that is dropped.
    """

    def __init__(self, proto, token_ids):
        super().__init__()
        self._graph_tokenizer = shared_graph_tokenizer(proto.SerializeToString(deterministic=True))
        self._token_ids = tf.constant(token_ids, tf.int32)
        self._drops = min(token_ids) < 0

    def tokenize(self, words):
        """The ids of each word: strings of shape (N,) to ragged int32 of shape (N, None)."""
        return self._kept(self._graph_tokenizer.tokenize(words))[0]

    def tokenize_with_offsets(self, words):
        """Like `tokenize`, and the first byte in its word of each token, and the byte after its last."""
        return self._kept(*self._graph_tokenizer.tokenize_with_offsets(words))

    def _kept(self, pieces, *offsets):
        token_ids = pieces.with_values(tf.gather(self._token_ids, pieces.values))
        results = [token_ids] + [tf.cast(x, tf.int32) for x in offsets]
        if not self._drops:
            return tuple(results)
        is_kept = token_ids.with_values(token_ids.values >= 0)
        return tuple(tf.ragged.boolean_mask(x, is_kept) for x in results)


class NamedPieces(tf.Module):
    """A sentencepiece model whose pieces get the ids of a vocabulary by their text.

    Characters that the model does not know are pieces, too, a run of them one; the vocabulary may have them.

    Args:
        content: The model, as `bytes`.
        vocabulary: Dictionary from piece to id.
        unknown_id: Id of the pieces that it lacks.
        whole_words: Pattern of RE2, or `None`: words that match it are one piece.
    """

    def __init__(self, content, vocabulary, unknown_id, whole_words=None):
        super().__init__()
        read_proto(content)
        self._graph_tokenizer = shared_graph_tokenizer(content, tf.string)
        pieces = tf.constant(list(vocabulary))
        ids = tf.constant(list(vocabulary.values()), tf.int32)
        entries = tf.lookup.KeyValueTensorInitializer(pieces, ids)
        self._table = tf.lookup.StaticHashTable(entries, default_value=unknown_id)
        self._whole_words = whole_words

    def tokenize(self, words):
        """The ids of each word: strings of shape (N,) to ragged int32 of shape (N, None)."""
        rest, whole = self._parted(words)
        pieces = tf.concat([self._graph_tokenizer.tokenize(rest), whole], axis=1)
        return pieces.with_values(self._table.lookup(pieces.values))

    def tokenize_with_offsets(self, words):
        """Like `tokenize`, and the first byte in its word of each token, and the byte after its last."""
        rest, whole = self._parted(words)
        pieces, starts, stops = self._graph_tokenizer.tokenize_with_offsets(rest)
        whole_starts = whole.with_values(tf.zeros_like(whole.values, tf.int32))
        whole_stops = whole.with_values(tf.strings.length(whole.values))
        starts = tf.concat([tf.cast(starts, tf.int32), whole_starts], axis=1)
        stops = tf.concat([tf.cast(stops, tf.int32), whole_stops], axis=1)
        pieces = tf.concat([pieces, whole], axis=1)
        return pieces.with_values(self._table.lookup(pieces.values)), starts, stops

    def _parted(self, words):
        """The words that sentencepiece cuts, "" in place of others; and ragged (N, None) those that are one piece."""
        if self._whole_words is None:
            is_whole = tf.zeros_like(words, tf.bool)
        else:
            is_whole = tf.strings.regex_full_match(words, self._whole_words)
        whole = tf.RaggedTensor.from_row_lengths(
            tf.boolean_mask(words, is_whole), tf.cast(is_whole, tf.int64)
        )
        return tf.where(is_whole, "", words), whole


class WholeWords(tf.Module):
    """A model of merges where some words are one token whatever the merges say: `ignore_merges`."""

    def __init__(self, model):
        super().__init__()
        self._model = model

    def tokenize(self, words):
        return self._model.tokenize(tf.strings.join([_EDGE, words, _EDGE]))

    def tokenize_with_offsets(self, words):
        token_ids, starts, stops = self._model.tokenize_with_offsets(tf.strings.join([_EDGE, words, _EDGE]))
        sizes = tf.repeat(tf.strings.length(words), token_ids.row_lengths())
        starts = starts.with_values(tf.maximum(starts.values - 1, 0))
        return token_ids, starts, stops.with_values(tf.minimum(stops.values - 1, sizes))


class KnownWords(tf.Module):
    """A model of words that looks those up that are one token, which most are; the others are spelled.

    Args:
        model: What gives words their ids.
        pieces: List of `str`, the words to try.
    """

    def __init__(self, model, pieces):
        super().__init__()
        self._model = model
        ids = model.tokenize(tf.constant(pieces))
        is_one = tf.equal(ids.row_lengths(), 1)
        entries = tf.lookup.KeyValueTensorInitializer(
            tf.boolean_mask(pieces, is_one), tf.ragged.boolean_mask(ids, is_one).values
        )
        self._table = tf.lookup.StaticHashTable(entries, default_value=-1)

    def tokenize(self, words):
        known = self._table.lookup(words)
        is_known = known >= 0
        rest = self._model.tokenize(tf.boolean_mask(words, ~is_known))
        known = tf.RaggedTensor.from_tensor(tf.boolean_mask(known, is_known)[:, tf.newaxis])
        # The row of each word: the spelled words come first, then the known ones.
        before = tf.cumsum(tf.cast(is_known, tf.int64))
        rows = tf.where(is_known, rest.nrows() + before - 1, tf.range(tf.size(words, tf.int64)) - before)
        return tf.gather(tf.concat([rest, known], axis=0), rows)

    def tokenize_with_offsets(self, words):
        return self._model.tokenize_with_offsets(words)


class Charsmap(tf.Module):
    """A normalizer: the map of characters in a sentencepiece model, without the rest of the model."""

    def __init__(self, content):
        super().__init__()
        size = struct.unpack("<I", content[:4])[0] if len(content) > 4 else 0
        if not size or size % 4 or size > len(content) - 4:
            raise ValueError(
                f"`precompiled_charsmap` must be one of sentencepiece. Received: {len(content)} bytes."
            )
        proto = _empty_proto(UNIGRAM)
        proto.normalizer_spec.precompiled_charsmap = content
        _add(proto, "\0unknown", 0.0, UNKNOWN)
        _add(proto, "a", 0.0, NORMAL)  # A model must have a piece.
        self._pieces = shared_graph_tokenizer(proto.SerializeToString(deterministic=True), tf.string)

    def __call__(self, texts):
        # The pieces, known or unknown, join to the normalized text.
        return tf.strings.reduce_join(self._pieces.tokenize(texts), axis=-1)


def unigram_model(pieces, scores, unknown_id, byte_fallback):
    """A unigram model from its pieces in the order of their ids.

    Raises:
        ValueError: If the pieces are not as sentencepiece needs them.
    """
    if len(set(pieces)) != len(pieces) or "" in pieces:
        raise ValueError(
            "The vocabulary of a Unigram model must hold each piece once, and none may be empty."
        )
    proto = _empty_proto(UNIGRAM)
    proto.trainer_spec.byte_fallback = byte_fallback
    # sentencepiece needs an unknown piece; no text contains its name.
    _add(proto, "\0unknown", 0.0, UNKNOWN)
    for piece, score in zip(pieces, scores, strict=True):
        _add(proto, piece, score, BYTE if byte_fallback and piece in _BYTES else NORMAL)
    _check_bytes(byte_fallback, pieces)
    return SentencePieceModel(proto, [_dropped(unknown_id), *range(len(pieces))])


def bpe_model(vocabulary, merges, unknown_id, byte_fallback, whole_words=()):
    """A model of merges.

    Args:
        vocabulary: Dictionary from piece to id.
        merges: List of pairs of pieces, the first merge first.
        unknown_id: Id of a stretch of characters that the vocabulary lacks, or `None`: it is dropped.
        byte_fallback: Whether such a character is spelled by `<0x00>` to `<0xFF>`.
        whole_words: Pieces that are one token where they are a whole word.

    Raises:
        ValueError: If a merge makes a piece that is not in the vocabulary.
    """
    ranks = _ranks(vocabulary, merges)
    proto = _empty_proto(BPE)
    proto.trainer_spec.byte_fallback = byte_fallback
    _add(proto, "\0unknown", 0.0, UNKNOWN)
    token_ids = [_dropped(unknown_id)]
    for piece, number in vocabulary.items():
        kind = BYTE if byte_fallback and piece in _BYTES else NORMAL
        if kind == BYTE or piece in ranks or len(piece) == 1:
            score = -float(ranks[piece]) if piece in ranks else _CHARACTER_SCORE
            _add(proto, piece, score, kind)
            token_ids.append(number)
    _check_bytes(byte_fallback, vocabulary)
    if not whole_words:
        return SentencePieceModel(proto, token_ids)
    _add(proto, _EDGE, _CHARACTER_SCORE, NORMAL)
    token_ids.append(-1)
    for piece in whole_words:
        _add(proto, f"{_EDGE}{piece}{_EDGE}", 0.0, USER_DEFINED)
        token_ids.append(vocabulary[piece])
    return WholeWords(SentencePieceModel(proto, token_ids))


def merges_of(scores):
    """The list of merges by which byte-pair encoding does what sentencepiece does with pieces and scores.

    sentencepiece joins the neighbours that spell the piece of the highest score. Within a piece nothing outside it matters,
    so each piece is always made from the same two parts, and one merge for it is enough.

    Args:
        scores: Dictionary from piece to score, without pieces for bytes and special tokens.

    Returns:
        List of pairs of pieces, the first merge first.

    Raises:
        ValueError: If two pieces that merges make have one score, or a part of a piece is none of the pieces.
    """
    ranks = {piece: -score for piece, score in scores.items()}

    def rank(pair):
        return ranks.get("".join(pair), math.inf)

    merges = {piece: _last_merge(piece, rank) for piece in scores if len(piece) > 1}
    merges = {piece: parts for piece, parts in merges.items() if parts is not None}
    pieces = sorted(merges, key=ranks.get)
    for left, right in itertools.pairwise(pieces):
        if ranks[left] == ranks[right]:
            raise ValueError(
                f"Pieces must have different scores to be a list of merges. Received: {left!r}, {right!r}."
            )
    for piece in pieces:
        if missing := [part for part in merges[piece] if part not in scores]:
            raise ValueError(f"The parts of {piece!r} must be pieces. Received: no piece {missing[0]!r}.")
    return [merges[piece] for piece in pieces]


def whole_model(content, vocabulary, unknown_id):
    """The model in a sentencepiece file.

    Args:
        content: The file's content, as `bytes`.
        vocabulary: Dictionary from piece to id; pieces without one are unknown.
        unknown_id: Id of what is unknown.

    Raises:
        ValueError: If `content` is no sentencepiece model.
    """
    proto = read_proto(content)
    token_ids = [vocabulary.get(piece.piece, unknown_id) for piece in proto.pieces]
    return SentencePieceModel(proto, token_ids)


def read_proto(content):
    """The `ModelProto` in a sentencepiece file.

    Raises:
        ValueError: If `content` is no sentencepiece model.
    """
    library = import_package("sentencepiece.sentencepiece_model_pb2", "sentencepiece", "A tokenizer")
    proto = library.ModelProto()
    try:
        proto.ParseFromString(content)
    except Exception as error:  # The class of the error depends on the version of protobuf.
        raise ValueError(f"A sentencepiece model of {len(content)} bytes cannot be read: {error}.") from error
    if not any(piece.type == UNKNOWN for piece in proto.pieces):
        raise ValueError(
            f"A sentencepiece model must have an unknown piece. Received: {len(proto.pieces)} pieces."
        )
    return proto


def unknown_id_of(proto):
    """The number of a model's unknown piece."""
    return next(number for number, piece in enumerate(proto.pieces) if piece.type == UNKNOWN)


def _ranks(vocabulary, merges):
    """The rank of the merge that makes each piece; a piece that no text makes has none."""
    merge_ranks = {}
    for rank, (left, right) in enumerate(merges):
        missing = [piece for piece in (left, right, left + right) if piece not in vocabulary]
        if missing:
            raise ValueError(
                f"`merges` must make pieces of the vocabulary. Received: {missing[0]!r}, which is not in it."
            )
        merge_ranks[left, right] = rank
    merged_pieces = {left + right for left, right in merge_ranks}
    ranks = {}
    for piece in merged_pieces:
        cuts = _cuts(piece, merged_pieces)
        if len(cuts) == 1:
            parts = cuts[0]
        else:
            parts = _last_merge(piece, lambda pair: merge_ranks.get(pair, math.inf))
        if parts in merge_ranks:
            ranks[piece] = merge_ranks[parts]
    return ranks


def _cuts(piece, merged_pieces):
    """The pairs of characters and merged pieces that spell this one."""
    size = len(piece)
    return [
        (piece[:cut], piece[cut:])
        for cut in range(1, size)
        if (cut == 1 or piece[:cut] in merged_pieces) and (cut == size - 1 or piece[cut:] in merged_pieces)
    ]


def _last_merge(piece, rank):
    """The two parts that become `piece` when the neighbours of least rank are joined until none are left, or None.

    Args:
        piece: `str`.
        rank: Function from a pair of neighbours to its rank; that of two that are not joined is infinite.
    """
    parts = list(piece)
    last = None
    while len(parts) > 1:
        ranks = [rank(pair) for pair in itertools.pairwise(parts)]
        least = min(ranks)
        if least == math.inf:
            return None
        first = ranks.index(least)
        last = parts[first], parts[first + 1]
        parts[first : first + 2] = ["".join(last)]
    return last


def _check_bytes(byte_fallback, pieces):
    if byte_fallback and (missing := [name for name in _BYTES if name not in pieces]):
        raise ValueError(
            f"`byte_fallback` needs pieces for all 256 bytes. Received a vocabulary without {missing[0]}."
        )


def _dropped(unknown_id):
    return -1 if unknown_id is None else unknown_id


def _empty_proto(model_type):
    library = import_package("sentencepiece.sentencepiece_model_pb2", "sentencepiece", "A tokenizer")
    proto = library.ModelProto()
    proto.trainer_spec.model_type = model_type
    proto.trainer_spec.unk_id = 0
    proto.trainer_spec.bos_id = proto.trainer_spec.eos_id = proto.trainer_spec.pad_id = -1
    proto.normalizer_spec.name = "identity"
    proto.normalizer_spec.precompiled_charsmap = _NO_CHARACTERS
    proto.normalizer_spec.add_dummy_prefix = False
    proto.normalizer_spec.remove_extra_whitespaces = False
    proto.normalizer_spec.escape_whitespaces = False
    return proto


def _add(proto, piece, score, kind):
    proto.pieces.add(piece=piece, score=score, type=kind)
