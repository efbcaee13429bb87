"""Masks as boolean tensors: True where a query may attend to a key.

Every mask here is computed from integer positions or token ids, has the two trailing axes (T, S), and is joined
to the others with `&`. B is the batch, T the query length, S the key length, N the number of heads.
"""

import dataclasses
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_attn.ops.eager import concrete_values


def padding_mask(token_ids, pad_token_id=0):
    """True at real tokens: (B, S) integers in, (B, S) booleans out.

    Example:

    ```python
    padding_mask(keras.ops.convert_to_tensor([[5, 7, 0]]))  # [[True, True, False]]
    ```
    """
    return ops.not_equal(token_ids, pad_token_id)


def causal_mask(query_positions, key_positions):
    """True where a key is not later than the query: (..., T) and (..., S) integers in, (..., T, S) out.

    Example:

    ```python
    positions = keras.ops.arange(3)
    causal_mask(positions, positions)  # [[True, False, False], [True, True, False], [True, True, True]]
    ```
    """
    return ops.greater_equal(ops.expand_dims(query_positions, -1), ops.expand_dims(key_positions, -2))


def sliding_window_mask(query_positions, key_positions, sliding_window):
    """True within `sliding_window - 1` positions on either side, as Keras' `sliding_window` means it.

    (..., T) and (..., S) integers in, (..., T, S) out.

    Example:

    ```python
    positions = keras.ops.arange(3)
    sliding_window_mask(positions, positions, 2)  # [[True, True, False], [True, True, True], [False, True, True]]
    ```
    """
    distance = ops.expand_dims(query_positions, -1) - ops.expand_dims(key_positions, -2)
    return ops.less(ops.abs(distance), sliding_window)


def segment_mask(query_segment_ids, key_segment_ids):
    """True where query and key are of the same segment: (..., T) and (..., S) integers in, (..., T, S) out.

    Example:

    ```python
    segment_ids = keras.ops.convert_to_tensor([1, 1, 2])  # two sequences packed into one row
    segment_mask(segment_ids, segment_ids)  # [[True, True, False], [True, True, False], [False, False, True]]
    ```
    """
    return ops.equal(ops.expand_dims(query_segment_ids, -1), ops.expand_dims(key_segment_ids, -2))


@dataclasses.dataclass(frozen=True)
class MaskRule:
    """Which query may attend to which key, as rules to be worked out for all pairs or for a block of them.

    All rules hold at once. The rules over vectors cost T + S values, so that blockwise attention never needs a
    tensor of all pairs.

    Args:
        query_positions, key_positions: Integers (T,) or (..., T), and (S,) or (..., S).
        causal: Boolean, a query sees keys at its own position and before.
        prefix_mask: Boolean (..., S), True at keys that every query sees in spite of `causal` (prefix LM; Raffel et
            al. 2020, section 3.2.1).
        sliding_window: Integer, a query sees keys less than this away on either side.
        num_sink_tokens: Integer, the first positions, which every query sees in spite of `sliding_window` (Xiao et
            al. 2024, section 3.2).
        query_segment_ids, key_segment_ids: Integers (..., T) and (..., S), a query sees keys of its own segment.
        query_mask, key_mask: Boolean (..., T) and (..., S), False at queries and keys that take no part.
        pairs: Boolean, broadcasts to (..., N, T, S).
        offset: Integer where it is known that query t stands at position `offset + t`, and key s at position s: what
            no query of a block can see is then left out without looking at it.

    Example:

    ```python
    positions = keras.ops.arange(5)
    rule = MaskRule(query_positions=positions, key_positions=positions, causal=True, sliding_window=2)
    rule.block()  # booleans (1, 5, 5), to broadcast to (..., N, T, S)
    ```
    """

    query_positions: Any = None
    key_positions: Any = None
    causal: bool = False
    prefix_mask: Any = None
    sliding_window: int | None = None
    num_sink_tokens: int = 0
    query_segment_ids: Any = None
    key_segment_ids: Any = None
    query_mask: Any = None
    key_mask: Any = None
    pairs: Any = None
    offset: int | None = None

    def block(self, queries=slice(None), keys=slice(None)):
        """The mask of the queries and keys in two slices, to broadcast to (..., N, t, s), or None."""
        masks = [self._order(queries, keys), self._window(queries, keys)]
        if self.query_segment_ids is not None:
            masks.append(segment_mask(*_sliced(self.query_segment_ids, queries, self.key_segment_ids, keys)))
        masks = [ops.expand_dims(mask, -3) for mask in masks if mask is not None]
        if self.query_mask is not None:
            masks.append(ops.expand_dims(self.query_mask[..., queries], (-3, -1)))
        if self.key_mask is not None:
            masks.append(ops.expand_dims(self.key_mask[..., keys], (-3, -2)))
        if self.pairs is not None:
            masks.append(slice_pairs(self.pairs, queries, keys))
        return combine_masks(*masks)

    def visible_keys(self, queries, num_keys):
        """Slices of the keys outside which the queries of a slice, with its ends given, see nothing."""
        if self.offset is None or self.prefix_mask is not None or not (self.causal or self.sliding_window):
            return [slice(0, num_keys)]
        first, last = self.offset + queries.start, self.offset + queries.stop - 1
        start, stop = 0, num_keys
        if self.sliding_window:
            start = clip_index(first - self.sliding_window + 1, 0, num_keys)
            stop = clip_index(last + self.sliding_window, 0, num_keys)
        if self.causal:
            stop = clip_index(last + 1, 0, num_keys)
        if not self.sliding_window or not self.num_sink_tokens:
            return [slice(start, stop)]
        sinks = clip_index(start, 0, self.num_sink_tokens)
        return [slice(0, sinks), slice(start, stop)]

    def every_query_sees_itself(self, num_queries, num_keys):
        """Whether it is known that every query may attend to the key at its own position."""
        others = (self.query_mask, self.key_mask, self.query_segment_ids, self.pairs)
        sizes = (self.offset, num_queries, num_keys)
        if any(x is not None for x in others) or not all(isinstance(size, int) for size in sizes):
            return False
        return 0 <= self.offset <= num_keys - num_queries

    def _order(self, queries, keys):
        if not self.causal:
            return None
        mask = causal_mask(*_sliced(self.query_positions, queries, self.key_positions, keys))
        if self.prefix_mask is not None:
            mask = ops.logical_or(mask, self.prefix_mask[..., keys][..., None, :])
        return mask

    def _window(self, queries, keys):
        if not self.sliding_window:
            return None
        positions = _sliced(self.query_positions, queries, self.key_positions, keys)
        mask = sliding_window_mask(*positions, self.sliding_window)
        if self.num_sink_tokens:
            mask = ops.logical_or(mask, (positions[1] < self.num_sink_tokens)[..., None, :])
        return mask


def slice_pairs(x, queries, keys):
    """The block of a tensor that broadcasts to (..., T, S); an axis of size 1 stays."""
    if x.shape[-2] != 1:
        x = x[..., queries, :]
    return x if x.shape[-1] == 1 else x[..., keys]


def clip_index(index, low, high):
    """`index` within [low, high]: integers where all are, else a tensor."""
    if all(isinstance(x, int) for x in (index, low, high)):
        return min(max(index, low), high)
    return ops.minimum(ops.maximum(index, low), high)


def _sliced(of_queries, queries, of_keys, keys):
    return of_queries[..., queries], of_keys[..., keys]


def combine_masks(*masks):
    """The conjunction of the masks that are not None, or None.

    Example:

    ```python
    token_ids, positions = keras.ops.convert_to_tensor([[5, 7, 0]]), keras.ops.arange(3)
    combine_masks(padding_mask(token_ids)[:, None, :], None, causal_mask(positions, positions))  # (1, 3, 3)
    ```
    """
    combined = None
    for mask in masks:
        if mask is not None:
            combined = mask if combined is None else ops.logical_and(combined, mask)
    return combined


def implicit_mask(tensor):
    """The mask that Keras carries on `tensor` (`mask_zero=True`, `Masking`), or None. The tensor is left as it is.

    Keras hands an implicit mask to a call argument only in some signatures, so layers that promise to honour it read
    it here.
    """
    return getattr(tensor, "_keras_mask", None)


def as_boolean_mask(mask, name):
    """`mask` as booleans: bool stays, 0 and 1 of any dtype are cast, other values raise when they can be seen.

    Args:
        mask: A tensor or array, or None.
        name: The argument's name, for the message.

    Raises:
        ValueError: if a concrete (eager) `mask` holds values other than 0 and 1, an additive mask for instance.
    """
    if mask is None:
        return None
    mask = ops.convert_to_tensor(mask)
    if keras.backend.standardize_dtype(mask.dtype) == "bool":
        return mask
    values = concrete_values(mask)
    if values is not None and not np.isin(values, (0, 1)).all():
        found = np.unique(values[~np.isin(values, (0, 1))])[:3].tolist()
        raise ValueError(
            f"`{name}` must be boolean, or hold only 0 and 1 (1 = may be attended). Received values {found}. "
            "What is added to the logits is a bias, not a mask."
        )
    return ops.cast(mask, "bool")


def check_mask_shape(mask, shape, name, exact_axes=0, received=None):
    """Raises ValueError, naming both shapes, when `mask` cannot broadcast to `shape`.

    Sizes unknown before the run (None) pass. The last `exact_axes` axes must match and may not be broadcast.
    `received` is the shape that the user gave, where `mask` was given axes since.
    """
    mask_shape = tuple(mask.shape)
    padded = (1,) * (len(shape) - len(mask_shape)) + mask_shape
    sizes = list(zip(padded, shape))
    fits = len(padded) == len(shape) and all(
        size is None or wanted is None or size == wanted or (size == 1 and axis < len(shape) - exact_axes)
        for axis, (size, wanted) in enumerate(sizes)
    )
    if not fits:
        raise ValueError(
            f"`{name}` must {'have' if exact_axes else 'broadcast to'} shape {tuple(shape)}. "
            f"Received: {name} of shape {mask_shape if received is None else tuple(received)}."
        )
