"""The key/value cache as a value: a pair of tensors that goes in and comes out.

A cache is `(key, value)` with shapes (B, N, S, H) and (B, N, S, Hv): heads before time, so that attention reads it
without a transpose. S is its capacity in slots; a slot not yet written is 0. No op here becomes an XLA-only op on
TensorFlow, so a served graph runs where XLA is off.
"""

from keras import ops


def empty_cache(batch_size, num_heads, length, key_dim, value_dim=None, dtype="float32"):
    """A cache of `length` slots of zeros.

    Example:

    ```python
    key_cache, value_cache = empty_cache(batch_size=2, num_heads=4, length=32, key_dim=16)  # (2, 4, 32, 16) each
    ```
    """
    value_dim = key_dim if value_dim is None else value_dim
    return tuple(
        ops.zeros((batch_size, num_heads, length, size), dtype=dtype) for size in (key_dim, value_dim)
    )


def write_cache(cache, key, value, index):
    """The cache with `key` and `value` of T slots written from slot `index` on.

    Args:
        cache: Pair of (B, N, S, H) and (B, N, S, Hv).
        key: Tensor (B, N, T, H).
        value: Tensor (B, N, T, Hv).
        index: Integer scalar, the first slot to write; `index + T` must not pass S (slots past it are dropped).

    Example:

    ```python
    cache = empty_cache(batch_size=2, num_heads=4, length=32, key_dim=16)
    one_token = keras.random.normal((2, 4, 1, 16))
    cache = write_cache(cache, one_token, one_token, index=5)
    ```
    """
    return tuple(_write(stored, new, index) for stored, new in zip(cache, (key, value)))


def _write(stored, new, index):
    new = ops.cast(new, stored.dtype)
    num_new = ops.shape(new)[-2]
    offset = ops.arange(stored.shape[-2], dtype="int32") - ops.cast(index, "int32")
    written = ops.logical_and(offset >= 0, offset < num_new)
    if new.shape[-2] != 1:
        new = ops.take(new, ops.clip(offset, 0, num_new - 1), axis=-2)
    return ops.where(ops.expand_dims(written, -1), new, stored)


def extend_cache(cache, length):
    """The cache with room for `length` slots, the new ones empty.

    Example:

    ```python
    cache = extend_cache(empty_cache(batch_size=2, num_heads=4, length=32, key_dim=16), length=64)
    ```
    """
    return tuple(ops.pad(x, [(0, 0), (0, 0), (0, length - x.shape[-2]), (0, 0)]) for x in cache)
