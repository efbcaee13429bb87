"""One vector for each sequence."""

from keras import ops

from keras_attn.ops.nan_guards import keep
from keras_attn.ops.precision import at_least_float32


def pooled(sequence, padding_mask, mode):
    """The vector of each sequence: 0 if it has no real token. What stands at pads is never read.

    Args:
        sequence: Floats (B, T, D).
        padding_mask: Booleans (B, T), True at real tokens.
        mode: A key of `POOLINGS`: "first" or "last" real token, "mean" or "max" over the real tokens.

    Returns:
        Floats (B, D), in the dtype of `sequence`; the mean is computed in at least float32.

    Example:

    ```python
    sequence = keras.ops.convert_to_tensor([[[1.0], [3.0], [7.0]]])
    vectors = pooled(sequence, keras.ops.convert_to_tensor([[True, True, False]]), "mean")  # [[2.0]]
    ```
    """
    return POOLINGS[mode](sequence, padding_mask)


def _first(sequence, mask):
    return _only(sequence, mask & (_number(mask) == 1))


def _last(sequence, mask):
    number = _number(mask)
    return _only(sequence, mask & (number == ops.max(number, axis=1, keepdims=True, initial=0)))


def _mean(sequence, mask):
    total = ops.sum(keep(at_least_float32(sequence), ops.expand_dims(mask, -1)), axis=1)
    count = ops.sum(ops.cast(mask, total.dtype), axis=1, keepdims=True)
    return ops.cast(total / ops.maximum(count, 1), sequence.dtype)


def _max(sequence, mask):
    lowest = ops.where(ops.expand_dims(mask, -1), sequence, ops.cast(-float("inf"), sequence.dtype))
    largest = ops.max(lowest, axis=1, initial=-float("inf"))
    return keep(largest, ops.any(mask, axis=1, keepdims=True))


def _number(mask):
    """The number (B, T) of each real token among those of its row, beginning with 1."""
    return ops.cumsum(ops.cast(mask, "int32"), axis=1)


def _only(sequence, is_wanted):
    """The vectors at the one position of each row where `is_wanted` (B, T) is True."""
    return ops.sum(keep(sequence, ops.expand_dims(is_wanted, -1)), axis=1)


POOLINGS = {"first": _first, "last": _last, "mean": _mean, "max": _max}
