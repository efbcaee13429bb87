"""The models of a tokenizer.json: functions from words to token ids."""

import base64
import collections

import tensorflow as tf

from keras_attn.text.byte_level import BYTE_CHARACTERS
from keras_attn.text.json_parts import check_value, read_part
from keras_attn.text.patterns import escaped, one_pattern
from keras_attn.text.sentencepiece_models import (
    KnownWords,
    NamedPieces,
    bpe_model,
    unigram_model,
    whole_model,
)
from keras_attn.text.wordpiece_tokenizer import WordPieceModel

# Replaces each character that the vocabulary lacks, where each is one token.
_UNKNOWN_CHARACTER = "\r"
# Begins the names of ids without a piece. These noncharacters do not occur in texts.
_NO_PIECE = "\U0010ffff\U0010ffff"

WordModel = collections.namedtuple("WordModel", "model pieces unknown_id")
WordModel.__doc__ = (
    """What gives words their ids, the piece of each id, and the id of unknown text or `None`."""
)


def read_model(part, *, spells_bytes):
    """Builds the model of a tokenizer.json.

    Args:
        part: The object `model` of the file. Those of 2020 have no type in it.
        spells_bytes: Whether its words are spelled bytes.

    Returns:
        A `WordModel`. `model.tokenize(words)` maps strings of shape (N,) to ragged int32 ids, and
        `model.tokenize_with_offsets(words)` also gives each token's first byte and the byte after its last.

    Raises:
        ValueError: If the model is not understood.
    """
    if isinstance(part, dict) and "type" not in part:
        part = {"type": type_of_model(part), **part}
    builders = {
        "BPE": lambda **fields: _bpe(spells_bytes, **fields),
        "Unigram": _unigram,
        "WordPiece": _word_piece,
        "SentencePiece": _sentencepiece,
    }
    return read_part(part, "model", builders)


def type_of_model(part):
    """The type of a model, which files of 2020 do not name: what it has tells it. None if nothing does."""
    if not isinstance(part, dict):
        return None
    if "type" in part:
        return part["type"]
    if "merges" in part:
        return "BPE"
    if isinstance(part.get("vocab"), list):
        return "Unigram"
    return "WordPiece" if "continuing_subword_prefix" in part else None


def _bpe(
    spells_bytes,
    vocab,
    merges,
    dropout=None,
    unk_token=None,
    continuing_subword_prefix=None,
    end_of_word_suffix=None,
    fuse_unk=False,
    byte_fallback=False,
    ignore_merges=False,
):
    check_value("model", "dropout", dropout, (None, 0, 0.0))
    check_value("model", "continuing_subword_prefix", continuing_subword_prefix, (None, ""))
    check_value("model", "end_of_word_suffix", end_of_word_suffix, (None, ""))
    known = (False, True) if spells_bytes else (False,)
    check_value("model", "ignore_merges", ignore_merges, known)
    pieces = _pieces_by_id(vocab)
    merges = [tuple(merge.split(" ") if isinstance(merge, str) else merge) for merge in merges]
    unknown_id = None if unk_token is None else vocab[unk_token]
    is_fused = byte_fallback or (fuse_unk and unknown_id is not None)
    unknown = None if is_fused else _unknown_characters(vocab, spells_bytes)
    known_pieces = dict(vocab)
    if unknown and unknown_id is not None:
        if _UNKNOWN_CHARACTER in vocab:
            raise ValueError(
                "A BPE model with an unknown token that is not fused must not have the piece '\\r'."
            )
        known_pieces[_UNKNOWN_CHARACTER] = unknown_id
    model = bpe_model(known_pieces, merges, unknown_id, byte_fallback)
    if ignore_merges:
        whole_words = _words_that_merges_miss(model, vocab)
        model = bpe_model(known_pieces, merges, unknown_id, byte_fallback, whole_words)
    if spells_bytes:  # texts are cut into words
        model = KnownWords(model, list(vocab))
    if unknown:
        model = _Spelled(model, unknown, "" if unknown_id is None else _UNKNOWN_CHARACTER)
    return WordModel(model, pieces, unknown_id)


def _words_that_merges_miss(model, vocabulary):
    """The pieces of spelled bytes that the merges of a model do not make of themselves."""
    pieces = [piece for piece in vocabulary if all(character in BYTE_CHARACTERS for character in piece)]
    if not pieces:
        return []
    ids = model.tokenize(tf.constant(pieces)).to_list()
    return [piece for piece, row in zip(pieces, ids, strict=True) if row != [vocabulary[piece]]]


def _unknown_characters(vocabulary, spells_bytes):
    """The RE2 class of the characters that the vocabulary lacks, or `None` if it lacks none."""
    known = sorted(piece for piece in vocabulary if len(piece) == 1)
    if spells_bytes:
        missing = "".join(sorted(set(BYTE_CHARACTERS) - set(known)))
        return f"[{escaped(missing)}]" if missing else None
    if not known:
        return r"[\x00-\x{10FFFF}]"
    return f"[^{escaped(''.join(known))}]"


class _Spelled(tf.Module):
    """A model of words in which the characters that the vocabulary lacks are dropped, or each becomes another."""

    def __init__(self, model, pattern, rewrite):
        super().__init__()
        self._model = model
        self._pattern = pattern
        self._rewrite = rewrite

    def tokenize(self, words):
        return self._model.tokenize(tf.strings.regex_replace(words, self._pattern, self._rewrite))

    def tokenize_with_offsets(self, words):
        characters = tf.strings.unicode_split(words, "UTF-8")
        sizes = tf.strings.length(characters)
        stops = tf.math.cumsum(sizes.to_tensor(), axis=1)
        written = characters.with_values(
            tf.strings.regex_replace(characters.values, self._pattern, self._rewrite)
        )
        ends = tf.math.cumsum(tf.strings.length(written).to_tensor(), axis=1)
        token_ids, starts, after = self._model.tokenize_with_offsets(tf.strings.reduce_join(written, axis=1))
        before = tf.pad(stops, [[0, 0], [1, 0]])
        # A token starts in the first character that ends after its start, and stops in the first that reaches its stop.
        first = tf.searchsorted(ends, starts.to_tensor(), side="right")
        last = tf.searchsorted(ends, after.to_tensor(), side="left")
        lengths = token_ids.row_lengths()
        starts = tf.RaggedTensor.from_tensor(tf.gather(before, first, batch_dims=1), lengths)
        after = tf.RaggedTensor.from_tensor(tf.gather(before, last + 1, batch_dims=1), lengths)
        return token_ids, starts, after


def _unigram(vocab, unk_id=None, byte_fallback=False):
    pieces = [piece for piece, _ in vocab]
    scores = [float(score) for _, score in vocab]
    if unk_id is not None and not 0 <= unk_id < len(pieces):
        raise ValueError(f"`unk_id` must be an id of the vocabulary. Received: unk_id={unk_id!r}.")
    if unk_id is None and not byte_fallback:
        raise ValueError(
            "A Unigram model without an unknown id fails on characters that it lacks. Received: unk_id=None."
        )
    model = unigram_model(pieces, scores, unk_id, byte_fallback)
    return WordModel(model, pieces, unk_id)


def _sentencepiece(proto, vocab, unk_token, looks_up_pieces=False, whole_words=None):
    """A whole sentencepiece model, its normalizer with it. `tokenizers` has no such type; `proto` is base64.

    With `looks_up_pieces` the ids are those of the pieces' texts, also of a text that the model does not know, and words that
    match the pattern `whole_words` are one piece.
    """
    pieces = _pieces_by_id(vocab)
    unknown_id = vocab[unk_token]
    content = base64.b64decode(proto, validate=True)
    if looks_up_pieces:
        pattern = None if whole_words is None else one_pattern(whole_words)
        model = NamedPieces(content, vocab, unknown_id, pattern)
    else:
        model = whole_model(content, vocab, unknown_id)
    return WordModel(model, pieces, unknown_id)


def _word_piece(vocab, unk_token="[UNK]", continuing_subword_prefix="##", max_input_chars_per_word=100):
    pieces = _pieces_by_id(vocab)
    unknown_id = vocab[unk_token]
    if nul := [piece for piece in pieces if "\0" in piece]:
        raise ValueError(f"A WordPiece vocabulary must not have the character NUL. Received: {nul[0]!r}.")
    model = WordPieceModel(
        [piece or f"{_NO_PIECE}{number}" for number, piece in enumerate(pieces)],
        unk_token,
        continuing_subword_prefix,
        int(max_input_chars_per_word),
    )
    return WordModel(model, pieces, unknown_id)


def _pieces_by_id(vocabulary):
    """The piece of each id up to the last; an id without one has ""."""
    if not vocabulary or not all(isinstance(number, int) for number in vocabulary.values()):
        raise ValueError("The vocabulary of a tokenizer must give each piece an int.")
    numbers = set(vocabulary.values())
    # An id far beyond the size of the vocabulary would take that much memory.
    if min(numbers) < 0 or len(numbers) != len(vocabulary) or max(numbers) > 2 * len(vocabulary) + 10**5:
        raise ValueError(
            f"The ids of a vocabulary must differ and lie near its size, {len(vocabulary)}. "
            f"Received: ids from {min(numbers)} to {max(numbers)}, {len(numbers)} different."
        )
    pieces = [""] * (max(numbers) + 1)
    for piece, number in vocabulary.items():
        pieces[number] = piece
    return pieces
