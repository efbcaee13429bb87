"""Random numbers computed from counters, by integer operations that give the same bits on every backend."""

import numpy as np
from keras import ops

# The golden ratio's bits, as in Steele et al. 2014, "Fast splittable pseudorandom number generators".
_OFFSET = np.int32(0x9E3779B9 - 2**32)


def mix_bits(x):
    """A bijection of int32 in which every output bit depends on every input bit. Products wrap around.

    The constants are those of the search for low-bias hashes by C. Wellons (https://nullprogram.com/blog/2018/07/31/).
    """
    x = ops.bitwise_xor(x, _shift_right(x, 16)) * np.int32(0x7FEB352D)
    x = ops.bitwise_xor(x, _shift_right(x, 15)) * np.int32(0x846CA68B - 2**32)
    return ops.bitwise_xor(x, _shift_right(x, 16))


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
    # `mix_bits` takes 0 to 0: without this the default seed's first number would be the least there is.
    x = mix_bits(seed + _OFFSET)
    for counter in counters:
        x = mix_bits(x + counter)
    return ops.cast(_shift_right(x, 8), "float32") * 2.0**-24


def _shift_right(x, bits):
    """A shift to the right that fills with zeros. Integers are signed, and `ops.right_shift` fills with the sign."""
    return ops.bitwise_and(ops.right_shift(x, bits), (1 << (32 - bits)) - 1)
