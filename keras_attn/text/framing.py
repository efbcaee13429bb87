"""Sequences as an encoder takes them: one text or a pair, with special tokens around and between, cut to a length."""

import collections
import functools

import tensorflow as tf

from keras_attn.text.templates import FIRST_TEXT, Part, Template, filled, num_special, truncated

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
    def from_ids(cls, start_token_id, end_token_id):
        """START, the text, END; with a second text also that and END, of type 1. Ids that are None are left out."""
        single = [FIRST_TEXT]
        if start_token_id is not None:
            single.insert(0, Part(None, 0, (start_token_id,)))
        pair = [Part(1, 1)]
        if end_token_id is not None:
            single.append(Part(None, 0, (end_token_id,)))
            pair.append(Part(None, 1, (end_token_id,)))
        return cls(Template(single, single + pair))

    def num_special(self, *, is_pair=False):
        """How many special tokens a text, or a pair, gets."""
        return num_special(self.template.pair if is_pair else self.template.single)

    def __call__(self, first, second=None, max_length=None, strategy=None, with_places=False):
        """`Framed` for ids of texts, and of second texts.

        Args:
            first, second: Ragged int32 (B, None), without special tokens; `second` may be None.
            max_length, strategy: Instead of this object's own.
            with_places: Boolean, whether `sources` and `places` are wanted.

        Raises:
            ValueError: if `max_length` has no room for the special tokens.
        """
        if second is None:
            parts = self.template.single
            lengths = first.row_lengths()
        else:
            parts = self.template.pair
            lengths = first.row_lengths() + second.row_lengths()
        shorten = functools.partial(self._shortened, num_special(parts), max_length, strategy)
        short_first, short_second = shorten(first, second)
        token_ids, token_type_ids = filled(parts, short_first, short_second)
        is_cut = lengths + num_special(parts) > token_ids.row_lengths()
        sources = places = None
        if with_places:
            unnamed = [part._replace(special=(-1,) * len(part.special)) for part in parts]
            sources, _ = filled(unnamed, _all(short_first, 0), _all(short_second, 1))
            short_places = shorten(_places(first), _places(second))
            places, _ = filled(unnamed, *short_places)
        return Framed(token_ids, token_type_ids, is_cut, sources, places)

    def _shortened(self, num_special, max_length, strategy, first, second):
        length = self.max_length if max_length is None else max_length
        if length is None:
            return first, second
        if length < num_special:
            raise ValueError(
                f"`max_length` must have room for {num_special} special tokens. Received: max_length={length}."
            )
        room = length - num_special
        strategies = [strategy or self.strategy]
        if second is not None and strategies != ["longest_first"]:
            strategies.append("longest_first")
        for one in strategies:
            first, second = truncated(first, second, room, one, from_left=self.from_left)
        return first, second


def _places(ids):
    if ids is None:
        return None
    return tf.cast(tf.ragged.range(ids.row_lengths()), tf.int32)


def _all(ids, value):
    if ids is None:
        return None
    return ids.with_values(tf.fill(tf.shape(ids.values), value))
