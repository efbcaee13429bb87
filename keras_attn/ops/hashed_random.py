"""Random numbers that are hashes of counters, the same bits on every backend: any part of them can be computed again."""

import dataclasses
import math
from typing import Any

import numpy as np
from keras import ops

# The golden ratio's bits, as in Steele et al. 2014, "Fast splittable pseudorandom number generators".
_OFFSET = np.int32(0x9E3779B9 - 2**32)


def hashed_uniform(seed, *counters):
    """Uniform floats in [0, 1), float32. Each number depends only on its seed and its counters.

    Args:
        seed: int32 tensor.
        *counters: int32 tensors that broadcast to one shape with it.

    Example:

    ```python
    seeds, rows = keras.ops.convert_to_tensor([3, 3, 5]), keras.ops.arange(3)
    numbers = hashed_uniform(seeds, rows)  # (3,)
    ```
    """
    # `_mix_bits` takes 0 to 0: without this the default seed's first number would be the least there is.
    x = _mix_bits(seed + _OFFSET)
    for counter in counters:
        x = _mix_bits(x + counter)
    return ops.cast(_shift_right(x, 8), "float32") * 2.0**-24


@dataclasses.dataclass(frozen=True)
class ScoreDropout:
    """Which attention scores are dropped, computed from a seed and the index of each score alone.

    `keras.random` draws a whole tensor at once. Attention that never holds all scores computes each block twice, forward
    and for the gradient, and must drop the same scores both times. So the random number of a score is a hash of its
    batch row, head, query and key.

    Args:
        rate: Float in [0, 1), the probability that a score is dropped.
        seed: Integers (2,), as `keras.random.SeedGenerator().next()` gives them.

    Example:

    ```python
    dropout = ScoreDropout(rate=0.1, seed=keras.ops.convert_to_tensor([3, 5]))
    multiplier = dropout.multiplier((2, 4), keras.ops.arange(7), keras.ops.arange(7))  # (2, 4, 7, 7)
    ```
    """

    rate: float
    seed: Any

    def multiplier(self, lead_shape, rows, columns, dtype="float32"):
        """0 where a score is dropped and 1 / (1 - rate) where it stays: floats (*lead_shape, t, s).

        Args:
            lead_shape: The sizes of the axes before (T, S), of batch and heads.
            rows, columns: Integers (t,) and (s,), the indices of the block's queries and keys.
            dtype: The dtype of the result.
        """
        seed = ops.cast(self.seed, "int32")
        # Mixed before the seed is added. Otherwise seed 1 would drop in plane n what seed 0 drops in plane n + 1.
        planes = _mix_bits(_mix_bits(_plane_numbers(lead_shape)) + seed[0])
        row_hashes = _mix_bits(planes + ops.expand_dims(rows, -1))
        column_hashes = _mix_bits(_mix_bits(ops.expand_dims(columns, 0)) + seed[1])
        random = _mix_bits(row_hashes + column_hashes)
        threshold = np.int32(math.floor(self.rate * 2**32) - 2**31)
        dropped = ops.zeros((), dtype)
        kept = ops.convert_to_tensor(1 / (1 - self.rate), dtype)
        return ops.where(random >= threshold, kept, dropped)

    def multiplier_of_all(self, scores):
        """The multiplier of scores (*lead_shape, T, S) that are held as a whole, in their dtype."""
        shape = ops.shape(scores)
        rows = ops.arange(shape[-2], dtype="int32")
        columns = ops.arange(shape[-1], dtype="int32")
        return self.multiplier(shape[:-2], rows, columns, scores.dtype)


def _plane_numbers(lead_shape):
    """(*lead_shape, 1, 1) integers that number the (T, S) planes."""
    index = ops.zeros((1, 1), dtype="int32")
    for size in lead_shape:
        index = ops.expand_dims(index * size, -3) + ops.reshape(ops.arange(size, dtype="int32"), (-1, 1, 1))
    return index


def _mix_bits(x):
    """A bijection of int32 in which every output bit depends on every input bit. Products wrap around.

    The constants are those of the search for low-bias hashes by C. Wellons (https://nullprogram.com/blog/2018/07/31/).
    """
    x = ops.bitwise_xor(x, _shift_right(x, 16)) * np.int32(0x7FEB352D)
    x = ops.bitwise_xor(x, _shift_right(x, 15)) * np.int32(0x846CA68B - 2**32)
    return ops.bitwise_xor(x, _shift_right(x, 16))


def _shift_right(x, bits):
    """A shift to the right that fills with zeros. Integers are signed, and `ops.right_shift` fills with the sign."""
    return ops.bitwise_and(ops.right_shift(x, bits), (1 << (32 - bits)) - 1)
