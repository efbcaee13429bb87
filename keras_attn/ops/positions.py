"""Positions as integers in, encodings out."""

import numpy as np
from keras import ops


def sinusoidal_encoding(positions, hidden_dim, max_wavelength=10000):
    """PE(pos, 2i) = sin(pos / w^(2i / D)), PE(pos, 2i + 1) = cos(pos / w^(2i / D)), in float32.

    The last column of an odd `hidden_dim` is a sine.

    Args:
        positions: Integers (...).
        hidden_dim: Integer D, the size of the encoding.
        max_wavelength: The longest wavelength w, in units of 2 pi positions.

    Returns:
        Float32 tensor (..., D).

    Example:

    ```python
    encoding = sinusoidal_encoding(keras.ops.arange(10), hidden_dim=16)  # (10, 16)
    ```

    Reference: [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 3.5.
    """
    channels = np.arange(hidden_dim)
    rates = (float(max_wavelength) ** -((channels // 2 * 2) / hidden_dim)).astype("float32")
    angles = ops.expand_dims(ops.cast(positions, "float32"), -1) * rates
    return ops.where(channels % 2 == 0, ops.sin(angles), ops.cos(angles))
