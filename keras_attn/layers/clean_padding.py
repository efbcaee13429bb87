"""Zeros at padding, written before anything reads it.

Masked keys have the weight 0, but that does not stop a NaN: the gradient of a weight is a sum over all positions of an input
times a gradient, and NaN * 0 is NaN. So padding is set to 0 where it comes in: by a model once for all of its blocks, else by a
block for all of its layers, else by the layer. Inside `clean_padding_scope` it is not done again.
"""

import contextlib
import contextvars

from keras import ops

from keras_attn.layers.masks import real_token_mask
from keras_attn.ops import combine_masks, keep, mask_fits

# The sequences that the scope has cleaned; None outside of one. This is not an argument, because layers between a model and its
# attention may be a user's own. It saves time and does not change what real tokens get.
_CLEAN_SEQUENCES = contextvars.ContextVar("clean_sequences", default=None)


def clean_padding(x, is_token):
    """A sequence with zeros at its padding, in value and in gradient.

    Args:
        x: Floats (B, <axes>, D).
        is_token: Booleans (B, <axes>), True at real tokens, or None for no padding.
    """
    if is_token is None or is_clean_padding_scope():
        return x
    return keep(x, ops.expand_dims(is_token, -1))


@contextlib.contextmanager
def clean_padding_scope(*sequences):
    """Cleans sequences; layers that are called in this scope then do not clean theirs.

    Args:
        *sequences: Pairs of a sequence and its mask, as in `clean_padding`.

    Yields:
        List of the sequences with zeros at their padding.
    """
    clean_sequences = []
    newly_cleaned = []
    for sequence, is_token in sequences:
        clean_sequence = clean_padding(sequence, is_token)
        clean_sequences.append(clean_sequence)
        if is_token is not None and not is_clean_padding_scope():
            newly_cleaned.append(clean_sequence)
    outer_scope = _CLEAN_SEQUENCES.set(newly_cleaned)
    try:
        yield clean_sequences
    finally:
        _CLEAN_SEQUENCES.reset(outer_scope)


def on_clean_sequences(function, masks):
    """A function that calls `function` on its sequences, cleaned, in a `clean_padding_scope`.

    The outer scope is asked here, not when the function runs: recomputation runs it a second time, outside of that scope.

    Args:
        function: Function of sequences.
        masks: List with the mask of each sequence, as in `clean_padding`.
    """
    if is_clean_padding_scope():
        masks = [None] * len(masks)

    def run(*sequences):
        with clean_padding_scope(*zip(sequences, masks)) as clean_sequences:
            return function(*clean_sequences)

    return run


def is_clean_padding_scope():
    """Whether the code runs inside `clean_padding_scope`."""
    return _CLEAN_SEQUENCES.get() is not None


def _is_cleaned_by_scope(x):
    return any(x is sequence for sequence in _CLEAN_SEQUENCES.get() or ())


def clean_attention_inputs(masks, query, value, key, *, positions_hide_keys, own_key_is_seen):
    """Cleans the inputs of attention before any projection: padding, and if they are known all rows that take no part.

    Args:
        masks: `CallMasks` of the call.
        query, value, key: Floats (B, <axes>, D).
        positions_hide_keys, own_key_is_seen: As in `participants`.

    Returns:
        The query, value and key; and a boolean, whether all queries that see no key, and all keys that no query sees, are 0.
    """
    queries = None
    keys = None
    if len(query.shape) == 3:
        queries, keys = participants(
            masks,
            query.shape,
            value.shape,
            positions_hide_keys=positions_hide_keys,
            own_key_is_seen=own_key_is_seen,
        )
    are_known = queries is not None and keys is not None
    if not are_known:
        if is_clean_padding_scope():
            return query, value, key, False
        queries, keys = real_queries_and_keys(masks, query.shape, value.shape)
    cleaned = {}

    def clean(x, mask):
        if mask is None or _is_cleaned_by_scope(x):
            return x
        entry = (id(x), id(mask))
        if entry not in cleaned:  # query, key and value may be one tensor, which is cleaned once
            cleaned[entry] = keep(x, ops.expand_dims(mask, -1))
        return cleaned[entry]

    return clean(query, queries), clean(value, keys), clean(key, keys), are_known


def participants(masks, query_shape, value_shape, *, positions_hide_keys, own_key_is_seen):
    """The queries that see some key, and the keys that some query sees, where the padding masks alone tell.

    Args:
        masks: `CallMasks` of the call.
        query_shape, value_shape: The shapes (B, T, D) and (B, S, D).
        positions_hide_keys: Boolean, whether a causal mask or a window hides keys too.
        own_key_is_seen: Boolean, whether these let every query see the key at its own index.

    Returns:
        Booleans (B, T) and (B, S), or with an axis of size 1. Each is None if nothing is masked, if it would take the mask of
        all pairs to tell, or if a mask does not fit, for which `CallMasks.as_rule` raises.
    """
    if masks.attention_mask is not None or masks.segment_ids is not None:
        return None, None
    for mask, shape in ((masks.query_mask, query_shape), (masks.key_mask, value_shape)):
        if mask is not None and tuple(mask.shape) != tuple(shape[:-1]):
            return None, None
    if own_key_is_seen and masks.query_mask is masks.key_mask:
        return masks.query_mask, masks.key_mask
    if positions_hide_keys:
        return None, None
    some_query = _any_of_row(masks.query_mask)
    some_key = _any_of_row(masks.key_mask)
    return combine_masks(masks.query_mask, some_key), combine_masks(masks.key_mask, some_query)


def real_queries_and_keys(masks, query_shape, value_shape):
    """The queries and keys that are not padding, whether or not they see each other.

    Args:
        masks: `CallMasks` of the call.
        query_shape, value_shape: The shapes (B, <axes>, D).

    Returns:
        Booleans (B, <axes>) of queries, and of keys. Each is None if there is no padding, or if a mask does not fit, for
        which `CallMasks.as_rule` raises.
    """
    queries = real_token_mask(
        _fitting(masks.query_mask, query_shape), _fitting(masks.segment_ids, query_shape)
    )
    keys = real_token_mask(
        _fitting(masks.key_mask, value_shape), _fitting(masks.key_segment_ids, value_shape)
    )
    return queries, keys


def _any_of_row(mask):
    """(B, T) -> (B, 1), True where a row has some True. None stays None."""
    return None if mask is None else ops.any(mask, axis=-1, keepdims=True)


def _fitting(mask, shape):
    """The mask if it fits a sequence of this shape, else None."""
    if mask is not None and mask_fits(mask, shape[:-1], exact_axes=1):
        return mask
    return None
