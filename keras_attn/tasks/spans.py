"""Spans of texts in graphs: flat tensors of all spans of a batch, one after the other."""

import collections

import tensorflow as tf

Spans = collections.namedtuple("Spans", ["rows", "labels", "scores", "starts", "ends"])
Spans.__doc__ = """Spans, or tokens, of the texts of a batch, in order; each value has the shape (number of spans,).

rows: int64, the number of the text.
labels: strings.
scores: float32.
starts, ends: int32, the first byte in the text, and the one after the last.
"""


def repaired(texts):
    """Strings (B,) with U+FFFD in the place of bytes that are no UTF-8: what tokenizers read."""
    return tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8")


def flat_tokens(framed, source, starts, ends):
    """The row, the first byte and the byte after the last of each token that `Framed` has of one of its texts.

    Args:
        framed: `Framed`.
        source: 0 for the first text, 1 for the second.
        starts, ends: Ragged int32 (B, None), of all tokens of these texts, also of those that were cut.
    """
    places = tf.ragged.boolean_mask(framed.places, framed.sources == source)
    rows = places.value_rowids()
    tokens = tf.gather(starts.row_starts(), rows) + tf.cast(places.values, tf.int64)
    return rows, tf.gather(starts.values, tokens), tf.gather(ends.values, tokens)


def joined(spans, tags, begins):
    """`Spans` of tokens, of which successive ones of a row with the same tag are one span.

    Args:
        spans: `Spans`, one for each token.
        tags: Strings, what must be the same.
        begins: Booleans, True at tokens that begin a span whatever is before.
    """
    same = (tags[1:] == tags[:-1]) & (spans.rows[1:] == spans.rows[:-1]) & ~begins[1:]
    is_first = tf.concat([tf.ones_like(begins[:1]), ~same], axis=0)
    is_last = tf.concat([~same, tf.ones_like(begins[:1])], axis=0)
    number = tf.cumsum(tf.cast(is_first, tf.int32)) - 1
    return Spans(
        tf.boolean_mask(spans.rows, is_first),
        tf.boolean_mask(spans.labels, is_first),
        tf.math.segment_mean(spans.scores, number),
        tf.boolean_mask(spans.starts, is_first),
        tf.boolean_mask(spans.ends, is_last),
    )


def whole_characters(texts, rows, starts, ends):
    """`starts` and `ends` moved apart to the next characters: tokens of bytes may be parts of one."""
    span_text = tf.gather(texts, rows)

    def size_of(count):
        return tf.strings.length(tf.strings.substr(span_text, tf.zeros_like(count), count, unit="UTF8_CHAR"))

    is_empty = ends <= starts
    before = num_characters(texts, rows, tf.where(is_empty, starts, starts + 1)) - tf.where(is_empty, 0, 1)
    return size_of(before), size_of(num_characters(texts, rows, ends))


def num_characters(texts, rows, places):
    """How many characters of their texts are before these bytes."""
    before = tf.strings.substr(tf.gather(texts, rows), tf.zeros_like(places), places)
    return tf.strings.length(before, unit="UTF8_CHAR")


def span_texts(texts, rows, starts, ends):
    """The bytes of their texts between `starts` and `ends`."""
    return tf.strings.substr(tf.gather(texts, rows), starts, tf.maximum(ends - starts, 0))


def marked(texts, spans):
    """The texts with each span written [span](label)."""
    # Two tokens may be parts of one character: the first is written.
    is_new = spans.ends > _ends_before(spans)
    spans = Spans(*(tf.boolean_mask(values, is_new) for values in spans))
    before = _ends_before(spans)
    starts = tf.maximum(spans.starts, before)
    pieces = tf.strings.join(
        [
            span_texts(texts, spans.rows, before, starts),
            "[",
            span_texts(texts, spans.rows, starts, spans.ends),
            "](",
            spans.labels,
            ")",
        ]
    )
    num_rows = tf.size(texts, tf.int64)
    pieces = tf.RaggedTensor.from_value_rowids(pieces, spans.rows, num_rows).to_tensor("")
    last = tf.math.unsorted_segment_max(spans.ends, spans.rows, num_rows)
    rest = tf.strings.substr(texts, tf.maximum(last, 0), tf.strings.length(texts))
    return tf.strings.reduce_join(tf.concat([pieces, rest[:, tf.newaxis]], axis=1), axis=1)


def _ends_before(spans):
    """Where the span before each ends in the same text, 0 for the first."""
    is_same_row = tf.concat([[False], spans.rows[1:] == spans.rows[:-1]], axis=0)[: tf.size(spans.rows)]
    ends_before = tf.concat([[0], spans.ends], axis=0)[: tf.size(spans.rows)]
    return tf.where(is_same_row, ends_before, 0)
