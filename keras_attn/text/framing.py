"""Sequences as an encoder takes them: one text or a pair, with special tokens around and between, cut to a length."""

import collections

import tensorflow as tf

from keras_attn.text.templates import Template, filled, num_special, truncated

Framed = collections.namedtuple("Framed", ["token_ids", "token_type_ids", "is_cut", "sources", "places"])
Framed.__doc__ = """Texts, or pairs of texts, with special tokens: ragged int32 (B, None), and booleans (B,).

token_ids, token_type_ids: what a model takes.
is_cut: whether a text was shortened.
sources: 0 at tokens of the first text, 1 at those of the second, -1 at special tokens; or None.
places: the number of each token in its own text, -1 at special tokens; or None.
"""


class Framing:
    """How a tokenizer's texts become sequences.

    Args:
        template: `Template`.
        max_length: Integer, the most tokens of a sequence, or None.
        strategy, from_left: As in `truncated`. If the one text that is to be shortened is not enough, the other is too.
    """

    def __init__(self, template, max_length=None, strategy="longest_first", from_left=False):
        self.template = template
        self.max_length = max_length
        self.strategy = strategy
        self.from_left = from_left

    @classmethod
    def of_ids(cls, start_token_id, end_token_id):
        """START, the text, END; with a second text also that and END, of type 1. Ids that are None are left out."""
        start, end = ([] if number is None else [(number,)] for number in (start_token_id, end_token_id))
        single = [*[(None, 0, ids) for ids in start], (0, 0, ()), *[(None, 0, ids) for ids in end]]
        return cls(Template(single, [*single, (1, 1, ()), *[(None, 1, ids) for ids in end]]))

    def num_special(self, of_pairs=False):
        """How many special tokens a text, or a pair, gets."""
        return num_special(self.template.pair if of_pairs else self.template.single)

    def __call__(self, first, second=None, max_length=None, strategy=None, with_places=False):
        """`Framed` for ids of texts, and of second texts.

        Args:
            first, second: Ragged int32 (B, None), without special tokens; `second` may be None.
            max_length, strategy: Instead of this object's own.
            with_places: Boolean, whether `sources` and `places` are wanted.

        Raises:
            ValueError: if `max_length` has no room for the special tokens.
        """
        parts = self.template.single if second is None else self.template.pair
        limits = num_special(parts), max_length, strategy
        shortened = self._shortened(first, second, *limits)
        token_ids, token_type_ids = filled(parts, *shortened)
        whole = first.row_lengths() + (0 if second is None else second.row_lengths()) + limits[0]
        sources = places = None
        if with_places:
            unnamed = [(source, kind, (-1,) * len(special)) for source, kind, special in parts]
            sources, _ = filled(unnamed, *(_all(ids, number) for number, ids in enumerate(shortened)))
            places, _ = filled(unnamed, *self._shortened(_places(first), _places(second), *limits))
        return Framed(token_ids, token_type_ids, whole > token_ids.row_lengths(), sources, places)

    def _shortened(self, first, second, num_special, max_length, strategy):
        length = self.max_length if max_length is None else max_length
        if length is None:
            return first, second
        if length < num_special:
            raise ValueError(
                f"`max_length` must have room for {num_special} special tokens. Received: max_length={length}."
            )
        room, strategy = length - num_special, strategy or self.strategy
        for one in dict.fromkeys((strategy, "longest_first")) if second is not None else (strategy,):
            first, second = truncated(first, second, room, one, self.from_left)
        return first, second


def _places(ids):
    return None if ids is None else tf.cast(tf.ragged.range(ids.row_lengths()), tf.int32)


def _all(ids, value):
    return None if ids is None else ids.with_values(tf.fill(tf.shape(ids.values), value))
