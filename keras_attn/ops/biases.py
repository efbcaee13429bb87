"""Position biases: numbers added to the logits that depend on the positions of the query and the key.

A pair bias is an immutable value. It computes the bias of any block of (query, key) pairs, and the gradient of its
parameters from the gradient of a block, so that blockwise attention never needs the bias of all pairs. `PairBias` is
the interface. B is the batch, N the heads, T and S the lengths of queries and keys; t and s those of a block.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_attn.ops.precision import at_least_float32
from keras_attn.ops.value_checks import indices_within


def alibi_slopes(num_heads, dtype="float32"):
    """One slope for each head: the geometric sequence that starts at 2^(-8 / N) and has the same ratio.

    If N is not a power of 2, the slopes of the next lower power come first, then every other slope of the next higher
    power, as in the authors' code.

    Args:
        num_heads: Integer N.
        dtype: Dtype of the slopes.

    Returns:
        Float tensor (N,).

    Example:

    ```python
    alibi_slopes(8)  # [1/2, 1/4, 1/8, 1/16, 1/32, 1/64, 1/128, 1/256]
    ```

    Reference: [Press et al., 2022](https://arxiv.org/abs/2108.12409), section 3.
    """
    power = 2 ** (num_heads.bit_length() - 1)
    slopes = np.concatenate([_geometric_slopes(power), _geometric_slopes(2 * power)[::2]])
    return ops.convert_to_tensor(slopes[:num_heads], dtype)


def relative_position_bucket(relative_position, num_buckets=32, max_distance=128, bidirectional=True):
    """The bucket of each relative position: one bucket per distance when near, logarithmically wider ones when far.

    Args:
        relative_position: Integers (...), position of the key minus position of the query.
        num_buckets: Integer, the number of buckets.
        max_distance: Integer. All positions at this distance and beyond share the last bucket.
        bidirectional: Boolean, whether one half of the buckets is for keys after the query. Otherwise these keys share
            bucket 0 with the query's own position.

    Returns:
        Int32 tensor (...), in [0, `num_buckets`).

    Example:

    ```python
    relative_position_bucket(keras.ops.convert_to_tensor([-200, -8, -1, 0, 1, 8]))  # [15, 8, 1, 0, 17, 24]
    ```

    Reference: [Raffel et al., 2020](https://arxiv.org/abs/1910.10683), section 2.1, and the authors' code.
    """
    relative_position = ops.cast(relative_position, "int32")
    if not bidirectional:
        return _bucket_of_distance(ops.maximum(-relative_position, 0), num_buckets, max_distance)
    one_side = num_buckets // 2
    buckets = _bucket_of_distance(ops.abs(relative_position), one_side, max_distance)
    return buckets + ops.where(relative_position > 0, one_side, 0)


class PairBias:
    """A bias of every pair of a query and a key, computed block by block.

    Attributes:
        parameters: Float tensor from which the bias is computed, and which gets the gradient.
        has_query_axis: Boolean, whether axis -2 of `parameters` is the query axis T. If so, a block takes the rows of
            its queries, and gives the gradient of these rows.
    """

    has_query_axis = False

    def block(self, parameters, queries, keys):
        """The bias of the pairs of a block, in at least float32, which broadcasts to (..., N, t, s).

        Args:
            parameters: The attribute; with `has_query_axis`, only its rows for `queries`.
            queries, keys: Slices of the axes T and S.
        """
        raise NotImplementedError(f"`{type(self).__name__}` must define `block(parameters, queries, keys)`.")

    def gradient(self, parameters, upstream, queries, keys):
        """The gradient of `parameters`, in the same shape and dtype.

        Args:
            parameters, queries, keys: As in `block`.
            upstream: Floats (..., N, t, s), the gradient of the block.
        """
        raise NotImplementedError(
            f"`{type(self).__name__}` must define `gradient(parameters, upstream, queries, keys)`."
        )

    def dense(self):
        """The bias of all pairs, which broadcasts to (..., N, T, S)."""
        return self.block(self.parameters, slice(None), slice(None))


@dataclasses.dataclass(frozen=True, eq=False)
class SlopeBias(PairBias):
    """-slope * |query position - key position|: the further away, the lower the logit (ALiBi).

    Args:
        parameters: Floats (N,), the slopes.
        query_positions, key_positions: Integers (T,) or (B, T), and (S,) or (B, S).

    Example:

    ```python
    positions = keras.ops.arange(5)
    bias = SlopeBias(alibi_slopes(4), query_positions=positions, key_positions=positions)
    bias.dense()  # (4, 5, 5)
    ```

    Reference: [Press et al., 2022](https://arxiv.org/abs/2108.12409), section 3.
    """

    parameters: Any
    query_positions: Any
    key_positions: Any

    def block(self, parameters, queries, keys):
        slopes = at_least_float32(parameters)[:, None, None]
        return -slopes * self._distances(slopes.dtype, queries, keys)

    def gradient(self, parameters, upstream, queries, keys):
        distances = self._distances(upstream.dtype, queries, keys)
        upstream = _sum_to(upstream, (*distances.shape[:-3], *upstream.shape[-3:]))
        by_slope = ops.sum(-upstream * distances, axis=(-2, -1))  # (..., N)
        return ops.cast(_sum_to(by_slope, parameters.shape), parameters.dtype)

    def _distances(self, dtype, queries, keys):
        distances = ops.cast(ops.abs(_relative_positions(self, queries, keys)), dtype)
        return ops.expand_dims(distances, -3)  # (..., 1, t, s)


@dataclasses.dataclass(frozen=True, eq=False)
class TableBias(PairBias):
    """table[index(key position - query position)], with a table for each head, or for each head and query.

    It gathers and sums vectors of one entry for every head (and batch row), which is several times as fast as single
    numbers. No tensor has a query, a key and a table axis together.

    Args:
        parameters: Floats (N, 1, R) or (B, N, 1, R); with `has_query_axis`, (N, T, R) or (B, N, T, R).
        query_positions, key_positions: Integers (T,) or (B, T), and (S,) or (B, S).
        index: Function of relative positions, integers (..., t, s), to integers of that shape in [0, R). An integer outside
            raises, but compilers (XLA, JAX) and exported models take the nearest entry.
        has_query_axis: Boolean, whether the table has T rows.

    Raises:
        ValueError: when it is used, if the table has fewer than three axes, or `index` returns no integers or one outside.

    Example:

    ```python
    positions = keras.ops.arange(5)
    table = keras.random.normal((4, 1, 7))  # 4 heads, distances from -3 to 3
    bias = TableBias(table, positions, positions, index=lambda relative: keras.ops.clip(relative, -3, 3) + 3)
    bias.dense()  # (4, 5, 5)
    ```
    """

    parameters: Any
    query_positions: Any
    key_positions: Any
    index: Callable
    has_query_axis: bool = False

    def block(self, parameters, queries, keys):
        entries = self._entries(parameters, queries, keys)
        batched = len(entries.shape) > 2
        table = _entry_vectors(_entries_first(at_least_float32(parameters), batched), batched)
        return _heads_first(ops.take(table, entries, axis=0), batched)

    def gradient(self, parameters, upstream, queries, keys):
        entries = self._entries(parameters, queries, keys)
        batched = len(entries.shape) > 2
        lead = upstream.shape[:-3] if batched else parameters.shape[:-3]
        upstream = _sum_to(upstream, (*lead, parameters.shape[-3], *upstream.shape[-2:]))
        pairs = _entries_first(upstream, batched)
        entries = ops.broadcast_to(entries, ops.shape(pairs)[: len(entries.shape)])
        shape = _entries_first_shape(parameters, batched)
        num_entries = math.prod(shape[: -_num_vector_axes(shape, batched)])
        sums = ops.segment_sum(_entry_vectors(pairs, batched), ops.reshape(entries, (-1,)), num_entries)
        return ops.cast(_heads_first(ops.reshape(sums, shape), batched), parameters.dtype)

    def _entries(self, parameters, queries, keys):
        """The index of each pair's entry in the flattened table: (t, s) or (..., t, s)."""
        if len(parameters.shape) < 3:
            raise ValueError(
                "The table of a `TableBias` must have the shape (N, 1, R) or (B, N, 1, R). "
                f"Received: {tuple(parameters.shape)}."
            )
        *lead, _, num_rows, row_size = ops.shape(parameters)
        entries = self._columns(_relative_positions(self, queries, keys), row_size)
        row = ops.arange(num_rows, dtype="int32")[:, None]  # (T or 1, 1)
        if len(entries.shape) > 2 and lead:
            table = ops.arange(math.prod(lead), dtype="int32")
            row = row + num_rows * ops.reshape(table, (*lead, 1, 1))
        return entries + row_size * row

    def _columns(self, relative_positions, row_size):
        """The entry of each pair in its row. One outside would be an entry of the next row."""
        columns = self.index(relative_positions)
        if isinstance(self.index, functools.partial) and self.index.func is _clip_distance:
            return columns
        dtype = keras.backend.standardize_dtype(columns.dtype)
        if "int" not in dtype:
            raise ValueError(f"`index` of a TableBias must return integers. Received: dtype {dtype}.")
        if not isinstance(row_size, int):
            return columns
        return indices_within(columns, row_size, "What `index` of a TableBias returns")


@dataclasses.dataclass(frozen=True, eq=False)
class DenseBias(PairBias):
    """A bias that is computed already, or learned for each pair.

    Args:
        parameters: Floats that broadcast to (..., N, T, S). If an axis has size 1, that must be known before the run.

    Example:

    ```python
    bias = DenseBias(keras.random.normal((4, 5, 7)))
    bias.block(bias.parameters, slice(None), slice(0, 3))  # (4, 5, 3)
    ```
    """

    parameters: Any

    @property
    def has_query_axis(self):
        shape = self.parameters.shape
        return len(shape) > 1 and shape[-2] != 1

    def block(self, parameters, queries, keys):
        if parameters.shape[-1] != 1:
            parameters = parameters[..., keys]
        return at_least_float32(parameters)

    def gradient(self, parameters, upstream, queries, keys):
        if parameters.shape[-1] == 1:
            return ops.cast(_sum_to(upstream, parameters.shape), parameters.dtype)
        gradient = _sum_to(upstream, (*parameters.shape[:-1], upstream.shape[-1]))
        gradient = ops.cast(gradient, parameters.dtype)
        return _put_keys_back(gradient, keys, ops.shape(parameters)[-1])


def clipped_index(max_distance):
    """A function from relative positions to 0, 1, ..., 2 max_distance. Larger distances are clipped."""
    return functools.partial(_clip_distance, max_distance=max_distance)


def _clip_distance(relative_positions, max_distance):
    return ops.clip(relative_positions, -max_distance, max_distance) + max_distance


def _geometric_slopes(num_heads):
    return 2.0 ** (-8.0 * np.arange(1, num_heads + 1) / num_heads)


def _bucket_of_distance(distance, num_buckets, max_distance):
    buckets = ops.convert_to_tensor(_distance_buckets(num_buckets, max_distance))
    return ops.take(buckets, ops.minimum(distance, max_distance), axis=0)


def _distance_buckets(num_buckets, max_distance):
    """The bucket of each distance from 0 to `max_distance`, int32.

    Computed in float32, which rounds some distances at the edge of a bucket into the bucket below: published
    checkpoints were trained that way.
    """
    num_exact = num_buckets // 2
    distances = np.arange(max_distance + 1)
    ratios = (np.maximum(distances, 1).astype("float32") / np.float32(num_exact)).astype("float64")
    share = np.log(ratios).astype("float32") / np.float32(math.log(max_distance / num_exact))
    far = num_exact + (share * np.float32(num_buckets - num_exact)).astype("int32")
    return np.where(distances < num_exact, distances, np.minimum(far, num_buckets - 1)).astype("int32")


def _relative_positions(bias, queries, keys):
    """Key position minus query position of the pairs of a block: int32 (t, s) or (..., t, s)."""
    query_positions = ops.cast(bias.query_positions, "int32")[..., queries]
    key_positions = ops.cast(bias.key_positions, "int32")[..., keys]
    return ops.expand_dims(key_positions, -2) - ops.expand_dims(query_positions, -1)


def _entries_first_axes(rank, batched):
    """The order in which the axes that choose a table entry come first.

    (..., N, t, x) -> (t, x, ..., N); if the positions have leading axes too, (..., N, t, x) -> (..., t, x, N).
    """
    if batched:
        return (*range(rank - 3), rank - 2, rank - 1, rank - 3)
    return (rank - 2, rank - 1, *range(rank - 2))


def _entries_first(x, batched):
    return ops.transpose(x, _entries_first_axes(len(x.shape), batched))


def _entries_first_shape(x, batched):
    shape = ops.shape(x)
    return tuple(shape[axis] for axis in _entries_first_axes(len(shape), batched))


def _heads_first(x, batched):
    axes = _entries_first_axes(len(x.shape), batched)
    return ops.transpose(x, [axes.index(axis) for axis in range(len(axes))])


def _num_vector_axes(shape, batched):
    return 1 if batched else len(shape) - 2


def _entry_vectors(x, batched):
    """Flattens the axes that choose an entry: (t, x, ..., N) -> (t x, ..., N), (..., t, x, N) -> (... t x, N)."""
    shape = ops.shape(x)
    return ops.reshape(x, (-1, *shape[-_num_vector_axes(shape, batched) :]))


def _put_keys_back(x, keys, num_keys):
    """(..., s) -> (..., S), with zeros at the keys outside the slice."""
    before = 0 if keys.start is None else keys.start
    after = num_keys - before - ops.shape(x)[-1]
    return ops.pad(x, [(0, 0)] * (len(x.shape) - 1) + [(before, after)])


def _sum_to(x, shape):
    """`x` summed over the axes that `shape` lacks or has with size 1: the gradient of broadcasting."""
    num_extra_axes = len(x.shape) - len(shape)
    if num_extra_axes:
        x = ops.sum(x, axis=tuple(range(num_extra_axes)))
    stretched_axes = tuple(axis for axis, size in enumerate(shape) if size == 1 and x.shape[axis] != 1)
    if stretched_axes:
        x = ops.sum(x, axis=stretched_axes, keepdims=True)
    return x
