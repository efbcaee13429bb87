"""The key/value cache: a value that functions take and return, and change only inside of `overwriting_scope`.

A cache is a pair `(key, value)` with shapes (B, N, S, H) and (B, N, S, Hv), or a `KeyValueCache` that starts with this
pair. The head axis comes before the time axis, so that attention needs no transpose. S is its capacity in
slots; a slot not yet written is 0. No op here becomes an XLA-only op on TensorFlow, so a served graph runs
where XLA is off.
"""

import collections

import keras
from keras import ops

from keras_attn.ops.graph_purpose import (
    axis_size,
    computed_once,
    is_compiled_scope,
    overwritten_tensors,
    runs_op_by_op,
)

KeyValueCache = collections.namedtuple(
    "KeyValueCache", ["key", "value", "positions", "sizes"], defaults=(None, None)
)
KeyValueCache.__doc__ = """The cache of one attention layer, which may say the positions of its slots.

`keras.tree` flattens it like every namedtuple, and a field that is None becomes a leaf that is None.

Args:
    key: Floats (B, N, S, H).
    value: Floats (B, N, S, Hv).
    positions: Integers (S,) or (B, S), the positions of the slots if they are not successive, negative at slots that hold
        no key; or None.
    sizes: Pair of B and S where they are known only in the run, int32 scalars that all layers of a step share; or None.

Example:

```python
cache = KeyValueCache(*empty_cache(batch_size=2, num_heads=4, length=32, key_dim=16))
```
"""


def empty_cache(
    batch_size, num_heads, length, key_dim, value_dim=None, dtype="float32", num_value_heads=None
):
    """A cache of `length` slots of zeros; `value_dim` and `num_value_heads` are those of the keys unless given.

    Example:

    ```python
    key_cache, value_cache = empty_cache(batch_size=2, num_heads=4, length=32, key_dim=16)  # (2, 4, 32, 16) each
    ```
    """
    key_shape = (batch_size, num_heads, length, key_dim)
    value_shape = (batch_size, num_value_heads or num_heads, length, value_dim or key_dim)
    return ops.zeros(key_shape, dtype=dtype), ops.zeros(value_shape, dtype=dtype)


def write_cache(cache, key, value, index):
    """The cache with `key` and `value` of T slots written from slot `index` on.

    Args:
        cache: Pair of (B, N, S, H) and (B, N, S, Hv), or a `KeyValueCache`.
        key: Tensor (B, N, T, H).
        value: Tensor (B, N, T, Hv).
        index: Integer scalar, the first slot to write; `index + T` must not pass S (slots past it are dropped, or
            refused where a TensorFlow graph takes batches of any size).

    Returns:
        A cache like the one given, its other fields unchanged.

    Example:

    ```python
    cache = empty_cache(batch_size=2, num_heads=4, length=32, key_dim=16)
    one_token = keras.random.normal((2, 4, 1, 16))
    cache = write_cache(cache, one_token, one_token, index=5)
    ```
    """
    pair = cache[:2]
    new_pair = [ops.cast(new, stored.dtype) for stored, new in zip(pair, (key, value))]
    if key.shape[-2] is not None and (is_compiled_scope() or all(map(runs_op_by_op, pair))):
        sizes = getattr(cache, "sizes", None)
        if sizes is None:
            sizes = (axis_size(pair[0], 0), axis_size(pair[0], -2))
        return _with_pair(cache, _with_rows_written(pair, new_pair, index, sizes))
    return _with_pair(cache, [_write(stored, new, index) for stored, new in zip(pair, new_pair)])


def unshared(caches):
    """A structure of cache tensors; in a graph that runs op by op, each has memory that no other tensor has.

    Empty caches of equal shape are often one tensor: TensorFlow computes equal operations once.

    Example:

    ```python
    cache = unshared(empty_cache(batch_size=2, num_heads=4, length=32, key_dim=16))
    ```
    """

    def copied(x):
        if not runs_op_by_op(x) or keras.backend.standardize_dtype(x.dtype) != "float32":
            return x
        import tensorflow as tf

        return tf.raw_ops.DeepCopy(x=x)

    return keras.tree.map_structure(copied, caches)


def _with_pair(cache, pair):
    """A cache with another key and value: a `KeyValueCache` with the same other fields, or else a pair."""
    if isinstance(cache, KeyValueCache):
        return cache._replace(key=pair[0], value=pair[1])
    return tuple(pair)


def _with_rows_written(pair, new_pair, index, sizes):
    """Writes only the new slots, as rows of a matrix of all slots.

    A `where` goes through the whole cache, and XLA then computes the new keys again for every slot.
    """
    new_caches = []
    for stored, new in zip(pair, new_pair):
        _, num_heads, _, size = stored.shape
        indices = computed_once(_row_indices, index, *sizes, num_heads, new.shape[-2])
        rows = _written_rows(stored, indices, ops.reshape(new, (-1, size)))
        new_caches.append(_as_cache(rows, stored, sizes[1]))
    return new_caches


def _as_cache(rows, stored, num_slots):
    """The matrix of all slots in the shape of `stored`, (B, N, S, H)."""
    _, num_heads, _, size = stored.shape
    if isinstance(num_slots, int):
        return ops.reshape(rows, (-1, num_heads, num_slots, size))
    cache = ops.reshape(rows, computed_once(_cache_shape, num_heads, num_slots, size))
    cache.set_shape(stored.shape)  # which TensorFlow forgets if the shape is a tensor
    return cache


def _cache_shape(num_heads, num_slots, size):
    return ops.stack([-1, num_heads, num_slots, size])


def _row_indices(index, batch_size, num_slots, num_heads, num_new):
    """The rows (n,) of the new slots in a matrix of all slots of B times N heads.

    An `index` past the last slot gives one that does not exist, which TensorFlow refuses.
    """
    index = ops.cast(index, "int32")
    end = batch_size * num_heads * num_slots
    index = index + ops.cast(index + num_new > num_slots, "int32") * end
    first = ops.arange(0, end, num_slots, dtype="int32") + index
    if num_new == 1:
        return first
    return ops.reshape(ops.expand_dims(first, -1) + ops.arange(num_new, dtype="int32"), (-1,))


def _written_rows(stored, indices, rows):
    """The matrix of the rows of `stored` with some of them replaced."""
    matrix = ops.reshape(stored, (-1, stored.shape[-1]))
    overwritten = overwritten_tensors()
    is_float32 = keras.backend.standardize_dtype(stored.dtype) == "float32"
    if overwritten is None or id(stored) in overwritten or not is_float32 or is_compiled_scope():
        return ops.scatter_update(matrix, ops.expand_dims(indices, -1), rows)
    import tensorflow as tf

    overwritten[id(stored)] = stored
    return tf.raw_ops.InplaceUpdate(x=matrix, i=indices, v=rows)


def _write(stored, new, index):
    num_new = ops.shape(new)[-2]
    offset = ops.arange(ops.shape(stored)[-2], dtype="int32") - ops.cast(index, "int32")
    written = ops.logical_and(offset >= 0, offset < num_new)
    if new.shape[-2] != 1:
        new = ops.take(new, ops.clip(offset, 0, num_new - 1), axis=-2)
    return ops.where(ops.expand_dims(written, -1), new, stored)


def extend_cache(cache, length):
    """The cache with room for `length` slots. The new ones are empty; their `positions`, if the cache has any, are -1.

    Example:

    ```python
    cache = extend_cache(empty_cache(batch_size=2, num_heads=4, length=32, key_dim=16), length=64)
    ```
    """
    pair = [ops.pad(x, [(0, 0), (0, 0), (0, length - axis_size(x, -2)), (0, 0)]) for x in cache[:2]]
    positions = getattr(cache, "positions", None)
    if positions is not None:
        new_slots = [(0, 0)] * (len(positions.shape) - 1) + [(0, length - axis_size(positions, -1))]
        cache = cache._replace(positions=ops.pad(positions, new_slots, constant_values=-1), sizes=None)
    return _with_pair(cache, pair)


def ring_positions(num_slots, num_sink_tokens, last_positions):
    """The position that each slot of a ring holds, after all positions up to the last were written.

    The first `num_sink_tokens` positions of a ring keep their slots. A later position p goes to slot
    `num_sink_tokens + (p - num_sink_tokens) mod (num_slots - num_sink_tokens)`, where it replaces an older one. Until
    the ring is full, position p is in slot p.

    Args:
        num_slots: Integer C.
        num_sink_tokens: Integer.
        last_positions: Integers (..., 1), the last position written; negative if none was.

    Returns:
        Integers (..., C), negative in slots that hold nothing.

    Example:

    ```python
    ring_positions(num_slots=5, num_sink_tokens=2, last_positions=keras.ops.convert_to_tensor([6]))  # [0, 1, 5, 6, 4]
    ```
    """
    slots = ops.arange(num_slots, dtype="int32")
    period = max(num_slots - num_sink_tokens, 1)
    latest = last_positions - ops.mod(last_positions - slots, period)
    positions = ops.where(slots < num_sink_tokens, slots, latest)
    first = ops.minimum(slots, num_sink_tokens)
    return ops.where(ops.logical_and(positions >= first, positions <= last_positions), positions, -1)


def write_ring(cache, key, value, positions, num_sink_tokens=0):
    """The ring after the keys and values of T successive positions have replaced the oldest.

    Args:
        cache: Pair of (B, K, C, H) and (B, K, C, Hv), or a `KeyValueCache`; C slots are the ring.
        key, value: Tensors (B, K, T, H) and (B, K, T, Hv).
        positions: Integers (T,) or (B, T), each one more than the last. Negative positions are padding, which is not
            written.
        num_sink_tokens: Integer, see `ring_positions`.

    Returns: as of `write_cache`.

    Example:

    ```python
    cache = empty_cache(batch_size=2, num_heads=4, length=8, key_dim=16)
    one_token = keras.random.normal((2, 4, 1, 16))
    cache = write_ring(cache, one_token, one_token, positions=keras.ops.convert_to_tensor([21]))
    ```
    """
    stored = ring_positions(cache[0].shape[-2], num_sink_tokens, positions[..., -1:])
    offset = stored - positions[..., :1]
    written = ops.logical_and(stored >= 0, offset >= 0)[..., None, :, None]
    offset = ops.clip(offset, 0, ops.shape(key)[-2] - 1)
    pair = [
        ops.where(written, _at_slots(ops.cast(new, old.dtype), offset), old)
        for old, new in zip(cache[:2], (key, value))
    ]
    return _with_pair(cache, pair)


def _at_slots(x, index):
    """The entries of x (B, K, T, H) at indices (C,) or (B, C) of the axis T: (B, K, C, H)."""
    if x.shape[-2] == 1:
        return x
    if len(index.shape) == 1:
        return ops.take(x, index, axis=-2)
    return ops.take_along_axis(x, index[:, None, :, None], axis=-2)
