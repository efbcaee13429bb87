"""Where in a text the tokens of a `PipelineTokenizer` stand.

Every step keeps the order of characters, and here also those that it would remove. So the characters of the words,
counted in order, are those of the normalized texts, and each of these comes from a cluster, a character with its
marks, which is normalized alone.
"""

import tensorflow as tf

from keras_attn.text.added_tokens import REMOVED, has_mark, is_added
from keras_attn.text.byte_level import spelled
from keras_attn.text.patterns import CUT, WHITE_SPACE
from keras_attn.text.pre_tokenizers import PREFIX, is_no_word

# Parts of Hangul syllables are composed like marks; a run of white space may become one.
_CHARACTER = r"(?s)."
_CLUSTER = rf"(?s)[{WHITE_SPACE}]+|" + r"[\x{1100}-\x{11FF}]+|.[\p{M}\x{FF9E}\x{FF9F}]*"


def tokenize_with_offsets(texts, added, normalizer, pre_tokenizer, model):
    """The ids of texts, each with its first byte in its text and the byte after its last, ragged int32 of (B, None).

    Args:
        texts: String tensor of shape (B,).
        added: `AddedTokens`.
        normalizer: Function of a string tensor, or `None`.
        pre_tokenizer: `PreTokenizer` that keeps what it removes.
        model: What gives words their ids.
    """
    pieces = added.cut(texts, keeps_space=True)
    pieces, starts, stops = _normalized(pieces, normalizer)
    pieces = added.cut_normalized(pieces, keeps_space=True)
    # Where each piece, and each word, begins among the characters of all texts.
    places = tf.cumsum(_num_characters(pieces.values), exclusive=True)
    is_first = tf.ragged.range(pieces.row_lengths()).values == 0
    words = pre_tokenizer(tf.where(has_mark(pieces.values), "", pieces.values), is_first)
    word_places = tf.repeat(places, words.row_lengths()) + _before_in_row(
        words, _num_characters(words.values)
    )
    has_prefix = tf.concat([[False], tf.equal(words.values, PREFIX)], axis=0)[:-1]
    ids, first, last = _tokens(words.values, model, pre_tokenizer.spells_bytes)
    lengths = ids.row_lengths()
    # A prefix is not in the text.
    earliest = tf.repeat(word_places + tf.cast(has_prefix, tf.int32), lengths)
    first = tf.maximum(tf.repeat(word_places, lengths) + first, earliest)
    last = tf.maximum(tf.repeat(word_places, lengths) + last, first)
    token_rows = tf.RaggedTensor.from_row_lengths(ids, words.row_lengths()).merge_dims(1, 2)

    added_ids = added.ids_of(pieces.values)
    has_id = added_ids >= 0
    where = tf.boolean_mask(places, has_id)
    sizes = tf.boolean_mask(_num_characters(pieces.values), has_id)
    counts = tf.cast(has_id, tf.int64)
    added_ids = tf.boolean_mask(added_ids, has_id)

    def in_texts(word_values, added_values):
        """One row for each text, of values of the tokens of words and of added tokens."""
        added_rows = tf.RaggedTensor.from_row_lengths(added_values, counts)
        rows = tf.concat([token_rows.with_values(word_values), added_rows], axis=1)
        return pieces.with_values(rows).merge_dims(1, 2)

    first = in_texts(first, where)
    last = in_texts(last, where + sizes)
    # An empty token begins and ends at the start of the next character.
    starts = tf.concat([starts, [0]], axis=0)
    stops = tf.concat([[0], stops], axis=0)
    begins = tf.gather(starts, tf.minimum(first.values, tf.size(starts) - 1))
    ends = tf.where(last.values > first.values, tf.gather(stops, last.values), begins)
    return in_texts(token_rows.values, added_ids), first.with_values(begins), first.with_values(ends)


def _normalized(pieces, normalizer):
    """The pieces normalized, and the span in its text of what each of their characters was made from."""
    marked = has_mark(pieces.values)
    texts = tf.where(marked, _after_mark(pieces.values), pieces.values)
    if normalizer is None:
        clusters = _split(texts, _CHARACTER)
    else:
        normalized = normalizer(tf.where(marked, "", pieces.values))
        clusters = _split(texts, _CLUSTER)
        joined = tf.strings.reduce_join(clusters.with_values(normalizer(clusters.values)), axis=1)
        # A piece whose clusters normalize differently on their own counts as one cluster, so that other offsets stay right.
        clusters = _split(texts, _CLUSTER, marked | tf.equal(joined, normalized))
    rows = pieces.with_values(clusters).merge_dims(1, 2)
    written = rows.values
    if normalizer is not None:
        is_kept = tf.repeat(marked, clusters.row_lengths()) | tf.equal(normalizer(written), written)
        # In a cluster that normalization does not change, each character has its own span.
        parts = _split(written, _CHARACTER, is_kept)
        rows = rows.with_values(parts).merge_dims(1, 2)
        is_kept = tf.repeat(is_kept, parts.row_lengths())
        written = tf.where(is_kept, rows.values, normalizer(rows.values))
        pieces = pieces.with_values(tf.where(marked, pieces.values, normalized))
    sizes = tf.strings.length(rows.values)
    before = _before_in_row(rows, sizes)
    counts = tf.strings.length(written, unit="UTF8_CHAR")
    return pieces, tf.repeat(before, counts), tf.repeat(before + sizes, counts)


def _split(texts, pattern, is_split=None):
    """The matches of a pattern that matches everything; texts that are not to be split stay whole."""
    cut = tf.strings.regex_replace(texts, pattern, CUT + rb"\0")
    if is_split is not None:
        cut = tf.where(is_split, cut, texts)
    parts = tf.strings.split(cut, CUT)
    return tf.ragged.boolean_mask(parts, parts.with_values(tf.strings.length(parts.values) > 0))


def _tokens(words, model, spells_bytes):
    """The ids of each word, ragged, and flat the first character of each token in its word and the one after its last."""
    words = tf.where(is_no_word(words), "", words)
    if spells_bytes:
        letters = spelled(words)
        ids, first, stop = model.tokenize_with_offsets(letters)
        first, stop = _character_at(letters, ids, first.values, stop.values)
    else:
        ids, first, stop = model.tokenize_with_offsets(words)
        first, stop = first.values, stop.values
    return ids, *_character_at(words, ids, first, stop)


def _character_at(words, ids, first, stop):
    """Bytes in words as characters in words: that of the first, and the one after that of the last."""
    characters = tf.strings.unicode_split(words, "UTF-8")
    ends = tf.cumsum(tf.strings.length(characters.values))
    word_bytes = tf.repeat(tf.cumsum(tf.strings.length(words), exclusive=True), ids.row_lengths())
    before = tf.repeat(tf.cast(characters.row_starts(), tf.int32), ids.row_lengths())
    first_at = tf.searchsorted(ends, word_bytes + first, side="right") - before
    last_at = tf.searchsorted(ends, word_bytes + stop, side="left") + 1 - before
    return first_at, tf.where(stop > first, last_at, first_at)


def _num_characters(pieces):
    """How many characters of the text a piece or a word stands for."""
    first = tf.strings.substr(pieces, 0, 1)
    marked = is_added(pieces) | tf.equal(first, REMOVED)
    rest = tf.where(marked, _after_mark(pieces), pieces)
    # The word after a prefix has one character more than the text.
    return tf.where(tf.equal(pieces, PREFIX), -1, tf.strings.length(rest, unit="UTF8_CHAR"))


def _after_mark(pieces):
    """The pieces without their first byte; a piece that a normalizer emptied has none."""
    lengths = tf.strings.length(pieces)
    return tf.strings.substr(pieces, tf.minimum(lengths, 1), lengths)


def _before_in_row(ragged, sizes):
    """The sum of the sizes before each value in its row."""
    total = tf.concat([[0], tf.cumsum(sizes)], axis=0)
    return total[:-1] - tf.repeat(tf.gather(total, ragged.row_starts()), ragged.row_lengths())
