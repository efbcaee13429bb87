"""Dropout of attention scores, computed from the index of each score, so that any block can be computed again."""

import dataclasses
import math
from typing import Any

import numpy as np
from keras import ops

from keras_attn.ops.hashing import mix_bits


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
        planes = mix_bits(mix_bits(_lead_index(lead_shape)) + seed[0])
        row_hashes = mix_bits(planes + ops.expand_dims(rows, -1))
        column_hashes = mix_bits(mix_bits(ops.expand_dims(columns, 0)) + seed[1])
        random = mix_bits(row_hashes + column_hashes)
        threshold = np.int32(math.floor(self.rate * 2**32) - 2**31)
        dropped, kept = ops.zeros((), dtype), ops.convert_to_tensor(1 / (1 - self.rate), dtype)
        return ops.where(random >= threshold, kept, dropped)

    def multiplier_of_all(self, scores):
        """The multiplier of scores (*lead_shape, T, S) that are held as a whole, in their dtype."""
        *lead_shape, num_rows, num_columns = ops.shape(scores)
        rows, columns = (ops.arange(size, dtype="int32") for size in (num_rows, num_columns))
        return self.multiplier(lead_shape, rows, columns, scores.dtype)


def _lead_index(lead_shape):
    """(*lead_shape, 1, 1) integers that number the (T, S) planes."""
    index = ops.zeros((1, 1), dtype="int32")
    for size in lead_shape:
        index = ops.expand_dims(index * size, -3) + ops.reshape(ops.arange(size, dtype="int32"), (-1, 1, 1))
    return index
