"""The masks of a call. `CallMasks` joins those of an attention layer; the path of a mask is described in ops/masks.py."""

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
        segment_ids, key_segment_ids: Integers (B, T) and (B, S). The latter default to the former.

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
        segment_ids=None,
        key_segment_ids=None,
    ):
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

    def as_rule(self, layout, query, scores_shape, keys, **fields):
        """Every mask as one `MaskRule` over heads.

        Args:
            layout: `HeadLayout` of the layer.
            query: The queries (B, <axes>, D).
            scores_shape: The shape (B, <lead>, N, T, S) of the attention scores.
            keys: Tensor (..., S, X) of the keys.
            **fields: The other fields of the `MaskRule`.

        Raises:
            ValueError: if a mask does not fit, naming it and both shapes.
        """
        keys_shape = (*scores_shape[:-3], scores_shape[-1])  # (B, <lead>, S)
        return MaskRule(
            query_mask=_query_vector(self.query_mask, "query_mask", layout, query),
            key_mask=_key_vector(self.key_mask, "value_mask", layout, keys_shape, keys),
            prefix_mask=_key_vector(self.prefix_mask, "prefix_mask", layout, keys_shape, keys),
            query_segment_ids=_query_vector(self.segment_ids, "segment_ids", layout, query),
            key_segment_ids=_key_vector(self.key_segment_ids, "key_segment_ids", layout, keys_shape, keys),
            pairs=self._pairs(layout, scores_shape),
            **fields,
        )

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
    return layout.padding(with_exact_sizes(mask, query, range(1, len(query.shape) - 1), name))


def _key_vector(mask, name, layout, keys_shape, keys):
    """A mask (B, <axes>) of keys as (B, <lead>, S), checked."""
    if mask is None:
        return None
    mask = layout.padding(mask)
    check_mask_shape(mask, keys_shape, name, exact_axes=1)
    return with_exact_sizes(mask, keys, [-2], name)
