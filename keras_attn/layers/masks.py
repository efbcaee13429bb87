"""The masks of a call: padding masks are joined and obeyed before any projection, all others become one `MaskRule`."""

import contextlib
import contextvars

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

# The masks of an attention layer's inputs, see `BaseLayer`. A mask of pairs, or of segments, is for queries and keys; one of
# the keys is the mask of a whole call, because what padded queries get is not used.
ATTENTION_MASK_ARGUMENTS = (
    ("query", "query_mask", "value_mask", "key_mask", "attention_mask", "segment_ids"),
    ("value", "value_mask", "key_mask", "attention_mask", "segment_ids"),
    ("key", "key_mask", "value_mask", "attention_mask", "segment_ids"),
)


def combined_padding_mask(padding_mask, sequence, name=None):
    """The padding mask of a sequence: the argument (B, T), and the mask that Keras carries on the sequence, or None.

    Values are not checked here: the attention layer does that.

    Args:
        padding_mask: Boolean, or 0 and 1, (B, T), or None.
        sequence: Tensor (B, T, D), or None.
        name: The argument's name, if its shape is to be checked here, so that the message names this argument.
    """
    implicit = implicit_mask(sequence)
    if padding_mask is None or sequence is None or implicit is padding_mask:
        return implicit if padding_mask is None else padding_mask
    padding_mask = ops.convert_to_tensor(padding_mask)
    if name is not None:
        check_mask_shape(padding_mask, sequence.shape[:-1], name, exact_axes=1)
    return joined(implicit, padding_mask)


def joined(mask, padding_mask):
    """The padding mask (B, T), 0 and 1 of any dtype, where the boolean `mask` (B, T) is True, and 0 elsewhere; or the one given.

    Args:
        mask, padding_mask: Tensors, or None.

    Raises:
        ValueError: if they differ in the number of axes.
    """
    if mask is None or padding_mask is None:
        return padding_mask if mask is None else mask
    padding_mask = ops.convert_to_tensor(padding_mask)
    if len(mask.shape) != len(padding_mask.shape):
        raise ValueError(
            "A mask that Keras carries must have as many axes as the padding mask. "
            f"Received: shapes {tuple(mask.shape)} and {tuple(padding_mask.shape)}."
        )
    return ops.where(mask, padding_mask, ops.zeros((), dtype=padding_mask.dtype))


def check_attention_mask_rank(mask, sequence, name, padding_name, axes="(B, T, T)"):
    """Refuses a mask of pairs in a block that has no axis of the batch.

    With as many rows as queries it could be a padding mask as well as a mask of all rows, and would be taken for the
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
        self.poison = mask_poison(query_mask, value_mask, key_mask, attention_mask, prefix_mask)
        self.query_mask = as_boolean_mask(combined_padding_mask(query_mask, query), "query_mask")
        of_value = as_boolean_mask(combined_padding_mask(value_mask, value), "value_mask")
        of_key = as_boolean_mask(combined_padding_mask(key_mask, None if key is value else key), "key_mask")
        self.key_mask = combine_masks(of_value, None if of_key is of_value else of_key)
        self._given_pairs = attention_mask
        self.attention_mask = as_boolean_mask(attention_mask, "attention_mask")
        self.prefix_mask = as_boolean_mask(prefix_mask, "prefix_mask")
        self.segment_ids = self.key_segment_ids = None
        if segment_ids is not None:
            self.segment_ids = ops.convert_to_tensor(segment_ids)
            given = segment_ids if key_segment_ids is None else key_segment_ids
            self.key_segment_ids = ops.convert_to_tensor(given)

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
        lead_and_keys = (*scores_shape[:-3], scores_shape[-1])

        def of_queries(name):
            mask = getattr(self, name)
            if mask is None:
                return None
            check_mask_shape(mask, query.shape[:-1], name, exact_axes=len(query.shape) - 2)
            return layout.padding(with_exact_sizes(mask, ops.shape(query)[1:-1], name))

        def of_keys(name, argument=None):
            mask = getattr(self, name)
            if mask is None:
                return None
            mask = layout.padding(mask)
            check_mask_shape(mask, lead_and_keys, argument or name, exact_axes=1)
            return with_exact_sizes(mask, [num_keys], argument or name)

        return MaskRule(
            query_mask=of_queries("query_mask"),
            key_mask=of_keys("key_mask", "value_mask"),
            prefix_mask=of_keys("prefix_mask"),
            query_segment_ids=of_queries("segment_ids"),
            key_segment_ids=of_keys("key_segment_ids"),
            pairs=self._pairs(layout, scores_shape),
            **fields,
        )

    def participants(self, query_shape, value_shape, in_order, aligned):
        """Queries that may attend to some key, and keys seen by some query, by the padding masks alone.

        Args:
            query_shape, value_shape: The shapes (B, T, D) and (B, S, D).
            in_order: Boolean, whether a rule of positions hides keys from queries.
            aligned: Boolean, whether such a rule lets every query see the key at its own index.

        Returns:
            Boolean (B, T) and (B, S), or with an axis of size 1. Each is None if it would take the mask of
            all pairs, if nothing is masked, or if a mask does not fit, for which `as_rule` raises.
        """
        masks = [(self.query_mask, query_shape), (self.key_mask, value_shape)]
        if self.attention_mask is not None or self.segment_ids is not None:
            return None, None
        if any(mask is not None and tuple(mask.shape) != tuple(shape[:-1]) for mask, shape in masks):
            return None, None
        if aligned and self.query_mask is self.key_mask:
            return self.query_mask, self.key_mask
        if in_order:
            return None, None
        some_query, some_key = (
            None if mask is None else ops.any(mask, axis=-1, keepdims=True) for mask, _ in masks
        )
        return combine_masks(self.query_mask, some_key), combine_masks(self.key_mask, some_query)

    def real_tokens(self, query_shape, value_shape):
        """Queries and keys that are not padding, whatever hides one from the other.

        Args:
            query_shape, value_shape: The shapes (B, <axes>, D).

        Returns:
            Boolean (B, <axes>) of queries, and of keys. Each is None if there is no padding, or if a mask does not fit, for
            which `as_rule` raises.
        """
        of_queries = (query_shape, self.query_mask, self.segment_ids)
        of_keys = (value_shape, self.key_mask, self.key_segment_ids)
        return tuple(
            real_token_mask(*(x if x is not None and mask_fits(x, shape[:-1], 1) else None for x in masks))
            for shape, *masks in (of_queries, of_keys)
        )

    def _pairs(self, layout, scores_shape):
        if self.attention_mask is None:
            return None
        received = self.attention_mask.shape
        pairs = layout.pairs(self.attention_mask, len(scores_shape))
        is_matrix = len(received) == 2 and len(layout.attended) == 1
        if is_matrix:
            self._check_is_not_padding(received, scores_shape[-2])
        hint = PAIRS_HINT if is_matrix else ""
        check_mask_shape(pairs, scores_shape, "attention_mask", received=received, hint=hint)
        return pairs

    def _check_is_not_padding(self, shape, num_queries):
        """Refuses a mask (B, S) in place of (T, S), as far as a graph shows it: one of B and T is known there, and not the other.

        With as many rows as queries it would be taken for (T, S), and mix the rows of the batch.
        """
        first = shape[0]
        is_batch = (first is None) != (num_queries is None) and first != 1
        if is_batch and not is_constant(self._given_pairs):
            raise ValueError(
                f"`attention_mask` must have the shape (T, S), (B, T, S) or (B, N, T, S), where T is {num_queries}. "
                f"Received: attention_mask of shape {tuple(shape)}, which seems to be (B, S).{PAIRS_HINT}"
            )


# The sequences that are known to hold zeros at padding, inside `clean_padding`; None outside.
_CLEAN = contextvars.ContextVar("clean_padding", default=None)


@contextlib.contextmanager
def clean_padding(*sequences):
    """Layers that are called inside get sequences without padding.

    Args:
        *sequences: Pairs of a sequence and its mask, as in `without_padding`.

    Yields:
        List of the sequences without padding.
    """
    kept = [without_padding(x, is_token) for x, is_token in sequences]
    known = []
    if not is_padding_clean():
        known = [x for x, (_, is_token) in zip(kept, sequences) if is_token is not None]
    token = _CLEAN.set(known)
    try:
        yield kept
    finally:
        _CLEAN.reset(token)


def with_clean_padding(function, *masks):
    """A function of sequences that runs inside `clean_padding`.

    Whether there is anything to do is settled here, not when it runs: recomputation runs it a second time, elsewhere.

    Args:
        function: Function of sequences.
        *masks: The mask of each sequence, as in `without_padding`.
    """
    masks = [None if is_padding_clean() else is_token for is_token in masks]

    def run(*sequences):
        with clean_padding(*zip(sequences, masks)) as kept:
            return function(*kept)

    return run


def is_padding_clean():
    """Whether the code runs inside `clean_padding`."""
    return _CLEAN.get() is not None


def is_known_clean(x):
    """Whether `x` is one of the sequences that the `clean_padding` around this code has set to 0 at padding."""
    return any(x is other for other in _CLEAN.get() or ())


def real_token_mask(padding_mask, segment_ids=None):
    """True at tokens that are padding by neither, booleans (B, <axes>), or None. Values are not checked here."""
    is_token = None if padding_mask is None else ops.cast(padding_mask, "bool")
    in_segment = None if segment_ids is None else ops.not_equal(segment_ids, 0)
    return combine_masks(is_token, in_segment)


def without_padding(x, is_token):
    """A sequence with zeros at its padding, in value and in gradient.

    Args:
        x: Floats (B, <axes>, D).
        is_token: Booleans (B, <axes>), True at real tokens, or None for no padding.
    """
    if is_token is None or is_padding_clean():
        return x
    return keep(x, ops.expand_dims(is_token, -1))
