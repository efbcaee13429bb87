"""The masks of a call. `CallMasks` joins those of an attention layer; the path of a mask is described in ops/masks.py.

Padding is also set to 0 before it is read. The gradient of a weight is a sum over all positions of an input times a
gradient, and NaN * 0 is NaN, so it is not enough to hide padding from real tokens. A model does this once for all of its
blocks, and a block for all of its layers: inside `clean_padding` it is not done again.
"""

import contextlib
import contextvars
import dataclasses
from typing import Any

from keras import ops

from keras_attn.ops import (
    MaskRule,
    as_boolean_mask,
    check_mask_shape,
    combine_masks,
    implicit_mask,
    is_constant,
    keep,
    mask_fits,
    mask_poison,
    with_exact_sizes,
)

# The masks of an attention layer's inputs, see `BaseLayer`. A mask of pairs, or of segments, covers queries and keys. A mask
# of keys counts as a mask for the whole call, because the output of padded queries is not used.
ATTENTION_MASK_ARGUMENTS = (
    ("query", "query_mask", "value_mask", "key_mask", "attention_mask", "segment_ids"),
    ("value", "value_mask", "key_mask", "attention_mask", "segment_ids"),
    ("key", "key_mask", "value_mask", "attention_mask", "segment_ids"),
)

# The sequences that are known to hold zeros at padding, inside `clean_padding`; None outside. This is not an argument,
# because layers between a model and its attention may be a user's own. It saves time and does not change what real tokens get.
_CLEAN_SEQUENCES = contextvars.ContextVar("clean_sequences", default=None)


@dataclasses.dataclass(frozen=True)
class TokenInfo:
    """What a call knows about the tokens of one sequence (B, T, D).

    Args:
        padding_mask: Boolean, or 0 and 1, (B, T), True at real tokens; or None.
        positions: Integers (T,) or (B, T), or None.
        segment_ids: Integers (B, T), 0 at padding; or None.
    """

    padding_mask: Any = None
    positions: Any = None
    segment_ids: Any = None

    @property
    def real_tokens(self):
        """True at tokens that are not padding: booleans (B, T), or None."""
        return real_token_mask(self.padding_mask, self.segment_ids)


def combined_padding_mask(padding_mask, sequence, name=None):
    """The padding mask of a sequence: the argument (B, T) and the mask that Keras carries on the sequence, or None.

    Values are not checked here: the attention layer does that.

    Args:
        padding_mask: Boolean, or 0 and 1, (B, T), or None.
        sequence: Tensor (B, T, D), or None.
        name: The argument's name, if its shape is to be checked here, so that the message names this argument.
    """
    carried_mask = implicit_mask(sequence)
    if padding_mask is None:
        return carried_mask
    if sequence is None or carried_mask is padding_mask:
        return padding_mask
    padding_mask = ops.convert_to_tensor(padding_mask)
    if name is not None:
        check_mask_shape(padding_mask, sequence.shape[:-1], name, exact_axes=1)
    return combine_with_carried_mask(carried_mask, padding_mask)


def combine_with_carried_mask(carried_mask, padding_mask):
    """The padding mask (B, T), 0 and 1 of any dtype, with 0 where the mask that Keras carries is False.

    Args:
        carried_mask: Boolean (B, T), or None.
        padding_mask: Boolean, or 0 and 1, (B, T), or None. If one of the two is None, the other is returned.

    Raises:
        ValueError: if they differ in the number of axes.
    """
    if carried_mask is None:
        return padding_mask
    if padding_mask is None:
        return carried_mask
    padding_mask = ops.convert_to_tensor(padding_mask)
    if len(carried_mask.shape) != len(padding_mask.shape):
        raise ValueError(
            "A mask that Keras carries must have as many axes as the padding mask. "
            f"Received: shapes {tuple(carried_mask.shape)} and {tuple(padding_mask.shape)}."
        )
    return ops.where(carried_mask, padding_mask, ops.zeros((), dtype=padding_mask.dtype))


def real_token_mask(padding_mask, segment_ids=None):
    """True at tokens that neither argument marks as padding: booleans (B, <axes>), or None. Values are not checked here."""
    is_token = None
    if padding_mask is not None:
        is_token = ops.cast(padding_mask, "bool")
    in_segment = None
    if segment_ids is not None:
        in_segment = ops.not_equal(segment_ids, 0)
    return combine_masks(is_token, in_segment)


@contextlib.contextmanager
def clean_padding(*sequences):
    """Layers that are called inside get sequences without padding.

    Args:
        *sequences: Pairs of a sequence and its mask, as in `without_padding`.

    Yields:
        List of the sequences without padding.
    """
    clean_sequences = []
    newly_cleaned = []
    for sequence, is_token in sequences:
        clean_sequence = without_padding(sequence, is_token)
        clean_sequences.append(clean_sequence)
        if is_token is not None and not is_padding_clean():
            newly_cleaned.append(clean_sequence)
    token = _CLEAN_SEQUENCES.set(newly_cleaned)
    try:
        yield clean_sequences
    finally:
        _CLEAN_SEQUENCES.reset(token)


def with_clean_padding(function, masks):
    """A function of sequences that runs inside `clean_padding`.

    Whether there is anything to clean is decided here, not when the function runs: recomputation runs it a second time,
    outside of the model's `clean_padding`.

    Args:
        function: Function of sequences.
        masks: List with the mask of each sequence, as in `without_padding`.
    """
    if is_padding_clean():
        masks = [None] * len(masks)

    def run(*sequences):
        with clean_padding(*zip(sequences, masks)) as clean_sequences:
            return function(*clean_sequences)

    return run


def is_padding_clean():
    """Whether the code runs inside `clean_padding`."""
    return _CLEAN_SEQUENCES.get() is not None


def is_known_clean(x):
    """Whether `x` is one of the sequences that the `clean_padding` around this code has set to 0 at padding."""
    return any(x is sequence for sequence in _CLEAN_SEQUENCES.get() or ())


def without_padding(x, is_token):
    """A sequence with zeros at its padding, in value and in gradient.

    Args:
        x: Floats (B, <axes>, D).
        is_token: Booleans (B, <axes>), True at real tokens, or None for no padding.
    """
    if is_token is None or is_padding_clean():
        return x
    return keep(x, ops.expand_dims(is_token, -1))


def check_attention_mask_rank(mask, sequence, name, padding_name, axes="(B, T, T)"):
    """Refuses an attention mask without a batch axis in a block.

    A mask with as many rows as queries could be a padding mask as well as a mask for every row, and would be taken for the
    latter.

    Args:
        mask: The mask, or None.
        sequence: Floats (B, T, D), the queries.
        name, padding_name: Strings, the names of its argument and of the one that takes a padding mask.
        axes: String, the shape that it must have.

    Raises:
        ValueError: for a mask of fewer than 3 axes.
    """
    if mask is None:
        return
    shape = tuple(ops.convert_to_tensor(mask).shape)
    if len(shape) < 3:
        raise ValueError(
            f"`{name}` must have the shape {axes}. Received: {name} of shape {shape}, sequence of shape "
            f"{tuple(sequence.shape)}. Pass a padding mask as `{padding_name}`, or as `mask[:, None, :]`; a mask that "
            "holds for every row, as `mask[None]`."
        )


# What to do with a mask of two axes that is not (T, S).
PAIRS_HINT = (
    " Pass a padding mask (B, S) as `value_mask`, or as `mask[:, None, :]`; a mask (T, S) that holds for every row, as "
    "`mask[None]`."
)


class CallMasks:
    """All masks of a call of an attention layer, as booleans. The inputs are (B, <axes>, D).

    Args:
        query, value, key: The inputs of the call, which may carry Keras masks. `query` may be None.
        query_mask: Boolean, or 0 and 1, (B, <axes>), or None, like every mask here.
        value_mask, key_mask: Boolean, or 0 and 1, (B, <axes>).
        attention_mask: Boolean, or 0 and 1; ends in the attended axes of queries, then of keys.
        prefix_mask: Boolean, or 0 and 1, (B, S).
        segments: Pair of `segment_ids` and `key_segment_ids`, integers (B, T) and (B, S). The latter default to the former.

    Attributes:
        query_mask: Boolean (B, <axes>), or None: the argument and the mask that Keras carries on `query`.
        key_mask: Boolean (B, <axes>), or None: both arguments and the masks that Keras carries on `value` and `key`.
        poison: The scalar to add to the outputs, see `keras_attn.ops.mask_poison`.
        key_arguments: Dict of the arguments, as they were given, that say something about single keys.

    Raises:
        ValueError: if a mask holds values other than 0 and 1, or for key segments without segments.
    """

    def __init__(
        self,
        query,
        value,
        key,
        query_mask=None,
        value_mask=None,
        key_mask=None,
        attention_mask=None,
        prefix_mask=None,
        segments=(None, None),
    ):
        segment_ids, key_segment_ids = segments
        if segment_ids is None and key_segment_ids is not None:
            raise ValueError(
                "`key_segment_ids` says which `segment_ids` see a key, so those must be given too."
            )
        self.key_arguments = {
            "prefix_mask": prefix_mask,
            "value_mask": value_mask,
            "key_mask": key_mask,
            "attention_mask": attention_mask,
            "segment_ids": segment_ids,
        }
        self.poison = mask_poison(query_mask, value_mask, key_mask, attention_mask, prefix_mask)
        self.query_mask = as_boolean_mask(combined_padding_mask(query_mask, query), "query_mask")
        self.key_mask = _mask_of_keys(value, key, value_mask, key_mask)
        self.attention_mask = as_boolean_mask(attention_mask, "attention_mask")
        self.prefix_mask = as_boolean_mask(prefix_mask, "prefix_mask")
        self.segment_ids = None
        self.key_segment_ids = None
        if segment_ids is not None:
            self.segment_ids = ops.convert_to_tensor(segment_ids)
            if key_segment_ids is None:
                key_segment_ids = segment_ids
            self.key_segment_ids = ops.convert_to_tensor(key_segment_ids)

    def as_rule(self, layout, query, scores_shape, num_keys, **fields):
        """Every mask as one `MaskRule` over heads.

        Args:
            layout: `HeadLayout` of the layer.
            query: The queries (B, <axes>, D).
            scores_shape: The shape (B, <lead>, N, T, S) of the attention scores.
            num_keys: Integer or integer scalar S.
            **fields: The other fields of the `MaskRule`.

        Raises:
            ValueError: if a mask does not fit, naming it and both shapes.
        """
        keys_shape = (*scores_shape[:-3], scores_shape[-1])
        return MaskRule(
            query_mask=_query_vector(self.query_mask, "query_mask", layout, query),
            key_mask=_key_vector(self.key_mask, "value_mask", layout, keys_shape, num_keys),
            prefix_mask=_key_vector(self.prefix_mask, "prefix_mask", layout, keys_shape, num_keys),
            query_segment_ids=_query_vector(self.segment_ids, "segment_ids", layout, query),
            key_segment_ids=_key_vector(
                self.key_segment_ids, "key_segment_ids", layout, keys_shape, num_keys
            ),
            pairs=self._pairs(layout, scores_shape),
            **fields,
        )

    def clean_inputs(self, query, value, key, *, in_order, aligned):
        """The inputs with padding set to 0 before any projection, and whether everything that takes no part is 0.

        That is so if the padding masks alone say which queries and keys take part.

        Args:
            query, value, key: Floats (B, <axes>, D).
            in_order: Boolean, whether a rule of positions hides keys from queries.
            aligned: Boolean, whether such a rule lets every query see the key at its own index.
        """
        queries = None
        keys = None
        if len(query.shape) == 3:
            queries, keys = self.participants(query.shape, value.shape, in_order=in_order, aligned=aligned)
        are_known = queries is not None and keys is not None
        if not are_known:
            if is_padding_clean():
                return query, value, key, False
            queries, keys = self.real_tokens(query.shape, value.shape)
        clean = {}  # one tensor stays one tensor, so that it is cleaned once
        for x, mask in ((query, queries), (key, keys), (value, keys)):
            entry = (id(x), id(mask))
            if mask is None or is_known_clean(x):
                clean[entry] = x
            elif entry not in clean:
                clean[entry] = keep(x, ops.expand_dims(mask, -1))
        query = clean[id(query), id(queries)]
        return query, clean[id(value), id(keys)], clean[id(key), id(keys)], are_known

    def participants(self, query_shape, value_shape, *, in_order, aligned):
        """Queries that may attend to some key, and keys seen by some query, by the padding masks alone.

        Args:
            query_shape, value_shape: The shapes (B, T, D) and (B, S, D).
            in_order, aligned: As in `clean_inputs`.

        Returns:
            Boolean (B, T) and (B, S), or with an axis of size 1. Each is None if it would take the mask of
            all pairs, if nothing is masked, or if a mask does not fit, for which `as_rule` raises.
        """
        if self.attention_mask is not None or self.segment_ids is not None:
            return None, None
        for mask, shape in ((self.query_mask, query_shape), (self.key_mask, value_shape)):
            if mask is not None and tuple(mask.shape) != tuple(shape[:-1]):
                return None, None
        if aligned and self.query_mask is self.key_mask:
            return self.query_mask, self.key_mask
        if in_order:
            return None, None
        some_query = _any_of_row(self.query_mask)
        some_key = _any_of_row(self.key_mask)
        return combine_masks(self.query_mask, some_key), combine_masks(self.key_mask, some_query)

    def real_tokens(self, query_shape, value_shape):
        """Queries and keys that are not padding, whatever hides one from the other.

        Args:
            query_shape, value_shape: The shapes (B, <axes>, D).

        Returns:
            Boolean (B, <axes>) of queries, and of keys. Each is None if there is no padding, or if a mask does not fit, for
            which `as_rule` raises.
        """
        queries = real_token_mask(
            _fitting(self.query_mask, query_shape), _fitting(self.segment_ids, query_shape)
        )
        keys = real_token_mask(
            _fitting(self.key_mask, value_shape), _fitting(self.key_segment_ids, value_shape)
        )
        return queries, keys

    def _pairs(self, layout, scores_shape):
        if self.attention_mask is None:
            return None
        received = self.attention_mask.shape
        pairs = layout.pairs(self.attention_mask, len(scores_shape))
        hint = ""
        if len(received) == 2 and len(layout.attended) == 1:
            hint = PAIRS_HINT
            self._check_is_not_padding(received, scores_shape[-2])
        check_mask_shape(pairs, scores_shape, "attention_mask", received=received, hint=hint)
        return pairs

    def _check_is_not_padding(self, shape, num_queries):
        """Refuses a mask (B, S) in place of (T, S), as far as a graph shows it: it knows one of B and T, and not the other.

        With as many rows as queries it would be taken for (T, S), and mix the rows of the batch.
        """
        first = shape[0]
        is_batch = (first is None) != (num_queries is None) and first != 1
        if is_batch and not is_constant(self.key_arguments["attention_mask"]):
            raise ValueError(
                f"`attention_mask` must have the shape (T, S), (B, T, S) or (B, N, T, S), where T is {num_queries}. "
                f"Received: attention_mask of shape {tuple(shape)}, which seems to be (B, S).{PAIRS_HINT}"
            )


def _mask_of_keys(value, key, value_mask, key_mask):
    """The masks of `value` and `key`, given and carried, as one: booleans (B, <axes>), or None."""
    value_mask = as_boolean_mask(combined_padding_mask(value_mask, value), "value_mask")
    if key is value:
        key = None  # whose mask is known already
    key_mask = as_boolean_mask(combined_padding_mask(key_mask, key), "key_mask")
    if key_mask is value_mask:
        return value_mask
    return combine_masks(value_mask, key_mask)


def _query_vector(mask, name, layout, query):
    """A mask (B, <axes>) of queries as (B, <lead>, T), checked."""
    if mask is None:
        return None
    check_mask_shape(mask, query.shape[:-1], name, exact_axes=len(query.shape) - 2)
    return layout.padding(with_exact_sizes(mask, ops.shape(query)[1:-1], name))


def _key_vector(mask, name, layout, keys_shape, num_keys):
    """A mask (B, <axes>) of keys as (B, <lead>, S), checked."""
    if mask is None:
        return None
    mask = layout.padding(mask)
    check_mask_shape(mask, keys_shape, name, exact_axes=1)
    return with_exact_sizes(mask, [num_keys], name)


def _any_of_row(mask):
    """(B, T) -> (B, 1), True where a row has some True. None stays None."""
    return None if mask is None else ops.any(mask, axis=-1, keepdims=True)


def _fitting(mask, shape):
    """The mask if it fits a sequence of this shape, else None."""
    if mask is not None and mask_fits(mask, shape[:-1], exact_axes=1):
        return mask
    return None
