"""Masks: which query may attend to which key. True means that it may.

The path of a mask, from a model's input to the addition to the logits, is in three files: layers/masks.py, this one, and
attention.py. Models and blocks only pass it on, as an argument.

1. A model computes a padding mask (B, S) from token ids (`padding_mask`), or is given one, and passes it to its blocks,
   which pass it to their attention layers. Keras also carries padding masks on tensors (`implicit_mask`).
2. `CallMasks` in layers/masks.py holds the masks of one call of an attention layer. First join: padding masks given as
   arguments and those that Keras carries become one mask of queries and one of keys. Masks of any dtype become booleans
   (`as_boolean_mask`).
3. `CallMasks.as_rule` checks the shapes (`check_mask_shape`, `with_exact_sizes`) and puts everything into one value, a
   `MaskRule`: these two masks, the attention mask of pairs, positions with their order and window, the prefix, segment
   ids, and which slots of a cache hold a key. Nothing is joined here: each has a field of its own.
4. Second join, `MaskRule.block`, called where attention is computed: the fields become one boolean mask of all pairs, or of
   the pairs of a block.
5. `masked` in attention.py adds 0 to the logits where this mask is True, and -1e30 where it is False.

All forms of attention take the same `MaskRule`. Ops also take a tensor in place of a rule (`as_mask_rule`).

Beside this path, padding is set to 0, so that a NaN in it does not spread: by layers before their projections
(layers/clean_padding.py), and by attention, for queries and keys that are masked entirely (nan_guards.py).

B is the batch, T the query length, S the key length, N the number of heads.
"""

import dataclasses
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_attn.ops.graph_purpose import axis_size, computed_once, is_step_scope
from keras_attn.ops.value_checks import can_raise_in_graph, concrete_values, raise_in_graph


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
    """True within `sliding_window - 1` positions on either side, like Keras' `sliding_window`.

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

    The id 0 is padding: a query with id 0 sees no key, and no query sees a key with id 0.

    Example:

    ```python
    segment_ids = keras.ops.convert_to_tensor([1, 2, 0])  # two sequences packed into one row, and padding
    segment_mask(segment_ids, segment_ids)  # [[True, False, False], [False, True, False], [False, False, False]]
    ```
    """
    query_segment_ids = ops.expand_dims(query_segment_ids, -1)
    key_segment_ids = ops.expand_dims(key_segment_ids, -2)
    return ops.logical_and(ops.equal(query_segment_ids, key_segment_ids), ops.not_equal(key_segment_ids, 0))


@dataclasses.dataclass(frozen=True)
class MaskRule:
    """Which query may attend to which key, as rules that are computed for all pairs or for a block of them.

    All rules hold at once. Most rules are vectors of queries and keys, T + S values, so that blockwise attention never
    needs a tensor of all pairs.

    Args:
        query_positions, key_positions: Integers (T,) or (..., T), and (S,) or (..., S).
        causal: Boolean, a query sees keys at its own position and before.
        prefix_mask: Boolean (..., S), True at keys that every query sees in spite of `causal` (prefix LM; Raffel et
            al. 2020, section 3.2.1).
        sliding_window: Integer, a query sees keys at a distance less than this, on either side.
        num_sink_tokens: Integer, how many of the first positions every query sees in spite of
            `sliding_window` (Xiao et al. 2024, section 3.2).
        query_segment_ids, key_segment_ids: Integers (..., T) and (..., S), a query sees keys of its own segment. The id
            0 is padding, see `segment_mask`.
        query_mask, key_mask: Boolean (..., T) and (..., S), False at padding.
        slot_mask: Boolean (..., S), False at slots of a cache that hold no key.
        pairs: Boolean, broadcasts to (..., N, T, S).
        offset: Integer, if it is known that query t has position `offset + t`, and key s has position s.
            Blocks of queries then skip the keys that none of them can see.
        queries_are_finite, keys_are_finite: Boolean, True if queries that see no key, or keys (and values)
            that no query sees, cannot hold NaN or Inf. A layer that set padding to 0 knows this; for keys, so
            does a layer that reads a cache which it wrote. It saves a pass over the tensors.

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
    slot_mask: Any = None
    pairs: Any = None
    offset: int | None = None
    queries_are_finite: bool = False
    keys_are_finite: bool = False

    def all_pairs(self):
        """All rules as one mask that broadcasts to (..., N, T, S), or None. The layers of a step share it."""
        return computed_once(MaskRule.block, self)

    def block(self, queries=slice(None), keys=slice(None)):
        """All rules as one mask of the queries and keys in two slices, which broadcasts to (..., N, t, s), or None."""
        # Masks of keys come first: their conjunction is small.
        # Axes are added one at a time: LiteRT has no slice that adds two.
        masks = [
            ops.expand_dims(ops.expand_dims(_slice_last(mask, keys), -2), -3)
            for mask in (self.key_mask, self.slot_mask)
            if mask is not None
        ]
        between_pairs = [
            self._order(queries, keys),
            self._window(queries, keys),
            self._segments(queries, keys),
        ]
        masks += [ops.expand_dims(mask, -3) for mask in between_pairs if mask is not None]
        if self.query_mask is not None:
            masks.append(ops.expand_dims(ops.expand_dims(_slice_last(self.query_mask, queries), -1), -3))
        if self.pairs is not None:
            masks.append(_slice_pairs(self.pairs, queries, keys))
        return combine_masks(*masks)

    def visible_keys(self, queries, num_keys):
        """The keys that queries of a slice may see, as a list of slices. The slice of queries has known ends."""
        if self.offset is None or self.prefix_mask is not None or not (self.causal or self.sliding_window):
            return [slice(0, num_keys)]
        first = self.offset + queries.start
        last = self.offset + queries.stop - 1
        start = 0
        stop = num_keys
        if self.sliding_window:
            start = _clip_index(first - self.sliding_window + 1, 0, num_keys)
            stop = _clip_index(last + self.sliding_window, 0, num_keys)
        if self.causal:
            stop = _clip_index(last + 1, 0, num_keys)
        if not self.sliding_window or not self.num_sink_tokens:
            return [slice(start, stop)]
        sinks = _clip_index(start, 0, self.num_sink_tokens)
        return [slice(0, sinks), slice(start, stop)]

    def num_open_keys(self, queries, num_keys):
        """The number of first keys that come before all queries of a slice, so that the causal order hides none; 0 if unknown."""
        if not self.causal or self.sliding_window or not _are_integers(self.offset, queries.start, num_keys):
            return 0
        return _clip_index(self.offset + queries.start, 0, num_keys)

    def every_query_sees_itself(self, num_queries, num_keys):
        """Whether it is known that every query may attend to the key at its own position."""
        others = (self.query_mask, self.key_mask, self.slot_mask, self.query_segment_ids, self.pairs)
        if any(x is not None for x in others) or not _are_integers(self.offset, num_queries, num_keys):
            return False
        # What is left, order and window, never hides the key at a query's own position. Is there such a key for all?
        return 0 <= self.offset <= num_keys - num_queries

    def _order(self, queries, keys):
        if not self.causal:
            return None
        query_positions, key_positions = self._positions(queries, keys)
        mask = causal_mask(query_positions, key_positions)
        if self.prefix_mask is not None:
            mask = ops.logical_or(mask, _slice_last(self.prefix_mask, keys)[..., None, :])
        return mask

    def _window(self, queries, keys):
        if not self.sliding_window:
            return None
        query_positions, key_positions = self._positions(queries, keys)
        mask = sliding_window_mask(query_positions, key_positions, self.sliding_window)
        if self.num_sink_tokens:
            mask = ops.logical_or(mask, (key_positions < self.num_sink_tokens)[..., None, :])
        return mask

    def _segments(self, queries, keys):
        if self.query_segment_ids is None:
            return None
        query_segment_ids = _slice_last(self.query_segment_ids, queries)
        return segment_mask(query_segment_ids, _slice_last(self.key_segment_ids, keys))

    def _positions(self, queries, keys):
        return _slice_last(self.query_positions, queries), _slice_last(self.key_positions, keys)


def as_mask_rule(mask, query, key):
    """The `mask` of queries (..., N, T, H) and keys (..., K, S, H) as a `MaskRule`.

    Args:
        mask: `MaskRule`, or a tensor of booleans, or 0 and 1, that broadcasts to (..., N, T, S), or None.

    Raises:
        ValueError: if a tensor does not broadcast to that shape, or holds other values, see `as_boolean_mask`.
    """
    if mask is None or isinstance(mask, MaskRule):
        return mask or MaskRule()
    mask = as_boolean_mask(mask, "mask")
    # When JAX infers shapes, sizes may be symbols that cannot be compared.
    shape = [size if isinstance(size, int) else None for size in (*query.shape[:-1], key.shape[-2])]
    check_mask_shape(mask, shape, "mask")
    while len(mask.shape) < 2:
        mask = ops.expand_dims(mask, 0)
    return MaskRule(pairs=mask)


def _slice_last(x, part):
    """`x[..., part]`, or `x` itself if `part` is the whole axis."""
    is_whole = part.start is None and part.stop is None
    return x if is_whole else x[..., part]


def _slice_pairs(x, queries, keys):
    """The queries and keys of two slices, of a tensor that broadcasts to (..., T, S). An axis of size 1 stays."""
    is_whole = queries.start is None and queries.stop is None
    if len(x.shape) > 1 and x.shape[-2] != 1 and not is_whole:
        x = x[..., queries, :]
    return x if x.shape[-1] == 1 else _slice_last(x, keys)


def _are_integers(*values):
    return all(isinstance(value, int) for value in values)


def _clip_index(index, low, high):
    """`index` within [low, high]: an integer if all three are, else a tensor."""
    if _are_integers(index, low, high):
        return min(max(index, low), high)
    return ops.minimum(ops.maximum(index, low), high)


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


def as_boolean_mask(mask, name):
    """`mask` as booleans: booleans are not changed, 0 and 1 of any dtype are cast, other values are refused.

    In eager mode other values raise. A TensorFlow graph raises when it runs, with the same message in an
    `InvalidArgumentError`. Compilers (XLA, JAX, PyTorch) cannot raise: pass the same masks to `mask_poison`,
    and add its result to the outputs.

    Args:
        mask: A tensor or array, or None.
        name: The argument's name, for the message.

    Returns:
        Booleans of the shape of `mask`, or None.

    Raises:
        ValueError: if a concrete (eager) `mask` holds values other than 0 and 1, an additive mask for instance.

    Example:

    ```python
    as_boolean_mask(keras.ops.convert_to_tensor([1.0, 0.0]), "attention_mask")  # [True, False]
    ```
    """
    if mask is None:
        return None
    mask = ops.convert_to_tensor(mask)
    if keras.backend.standardize_dtype(mask.dtype) == "bool":
        return mask
    boolean = ops.cast(mask, "bool")
    values = concrete_values(mask)
    must = f"`{name}` must be boolean, or hold only 0 and 1 (1 = may be attended). Received values"
    hint = "What is added to the logits is a bias, not a mask."
    if values is not None and not np.isin(values, (0, 1)).all():
        wrong_values = np.unique(values[~np.isin(values, (0, 1))])[:3].tolist()
        raise ValueError(f"{must} {wrong_values}. {hint}")
    if can_raise_in_graph(mask):
        fits = _equals(mask, boolean)
        wrong = ops.min(ops.where(fits, np.inf, ops.cast(mask, "float32")), initial=np.inf)
        with raise_in_graph(ops.all(fits), must, wrong, hint):
            return ops.cast(mask, "bool")
    return boolean


def mask_poison(*masks):
    """0, or NaN if one of the masks holds values other than 0 and 1. It is added to the masked outputs.

    This makes wrong masks visible where a compiler cannot raise, see `as_boolean_mask`.

    Args:
        *masks: Masks as the caller passed them: tensors or arrays of any dtype, or None.

    Returns:
        A float scalar for `poisoned`, or None if all masks are boolean or were checked eagerly.

    Example:

    ```python
    attention_mask = keras.ops.convert_to_tensor([1.0, 0.0])
    poisoned(keras.ops.ones(3), mask_poison(attention_mask))  # [1.0, 1.0, 1.0]
    ```
    """
    are_masks = None
    for mask in masks:
        if mask is None:
            continue
        mask = ops.convert_to_tensor(mask)
        is_boolean = keras.backend.standardize_dtype(mask.dtype) == "bool"
        if not is_boolean and concrete_values(mask) is None:
            is_mask = ops.all(_equals(mask, ops.cast(mask, "bool")))
            are_masks = combine_masks(are_masks, is_mask)
    if are_masks is None:
        return None
    return ops.where(are_masks, 0.0, float("nan"))


def poisoned(x, poison):
    """`x` plus the result of `mask_poison`. If either is None, `x` is not changed."""
    if x is None or poison is None:
        return x
    return ops.add(x, ops.cast(poison, x.dtype))


def _equals(mask, boolean):
    """True at values of a mask that equal its boolean, 0 or 1. NaN equals nothing."""
    return ops.equal(mask, ops.cast(boolean, mask.dtype))


def check_mask_shape(mask, shape, name, exact_axes=0, received=None, hint=""):
    """Raises ValueError, naming both shapes, when `mask` cannot broadcast to `shape`.

    Sizes unknown before the run (None) pass, see `with_exact_sizes`. The last `exact_axes` axes must match and may not be
    broadcast. `received` is the shape that the user gave, if axes were added to `mask` since. `hint` ends the message.
    """
    if mask_fits(mask, shape, exact_axes):
        return
    must = "have" if exact_axes else "broadcast to"
    received = mask.shape if received is None else received
    raise ValueError(
        f"`{name}` must {must} shape {tuple(shape)}. Received: {name} of shape {tuple(received)}.{hint}"
    )


def mask_fits(mask, shape, exact_axes=0):
    """Whether `check_mask_shape` lets a mask pass."""
    mask_shape = tuple(mask.shape)
    padded = (1,) * (len(shape) - len(mask_shape)) + mask_shape
    return len(padded) == len(shape) and all(
        size is None or wanted is None or size == wanted or (size == 1 and axis < len(shape) - exact_axes)
        for axis, (size, wanted) in enumerate(zip(padded, shape))
    )


def with_exact_sizes(mask, x, axes, name):
    """`mask`, whose last axes must have the sizes of axes of `x`, checked when the graph runs if they are unknown before.

    Only a size of 1 has to be found: it would broadcast, and one value would apply to a whole axis. Only
    TensorFlow traces functions without knowing sizes. There the graph raises when it runs; with XLA,
    compilation fails. Nothing is checked in a `step_scope`, whose masks are the search's own.

    Args:
        mask: A mask with at least one axis more than there are `axes`.
        x: The tensor that is masked.
        axes: Integers, the axes of `x` that the last axes of the mask belong to.
        name: The argument's name, for the message.

    Returns:
        The mask to use from here on.

    Example:

    ```python
    x = keras.ops.ones((2, 3, 5))
    with_exact_sizes(keras.ops.ones((2, 3), "bool"), x, [1], "value_mask")
    ```
    """
    known = mask.shape[-len(axes) :]
    are_known = None not in (*known, *(x.shape[axis] for axis in axes))
    if are_known or is_step_scope() or not can_raise_in_graph(mask):
        return mask
    received = ops.shape(mask)
    sizes = ops.convert_to_tensor([axis_size(x, axis) for axis in axes], dtype="int32")
    tail = ops.convert_to_tensor(received[-len(known) :], dtype="int32")
    must = f"`{name}` must have the sizes of what it masks in its last axes,"
    with raise_in_graph(ops.all(tail == sizes), must, sizes, "Received sizes:", tail):
        # XLA leaves the check out, but cannot concatenate tensors of other sizes.
        no_rows = ops.zeros((0, *received[1 : -len(known)], *ops.unstack(sizes)), mask.dtype)
        return ops.concatenate([mask, no_rows], axis=0)
