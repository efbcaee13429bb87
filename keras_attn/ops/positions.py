"""Positions of tokens as integers, and the sinusoidal encoding of them."""

import numpy as np
from keras import ops


def sinusoidal_encoding(positions, hidden_dim, max_wavelength=10000, interleaved=True):
    """PE(pos, 2i) = sin(pos / w^(2i / D)), PE(pos, 2i + 1) = cos(pos / w^(2i / D)), in float32.

    An odd `hidden_dim` has one sine more than cosines.

    Args:
        positions: Integers (...).
        hidden_dim: Integer D, the size of the encoding.
        max_wavelength: The longest wavelength w, in units of 2 pi positions.
        interleaved: Boolean, whether sines and cosines alternate, as in the paper; otherwise all sines come first, as in
            Marian and fairseq.

    Returns:
        Float32 tensor (..., D).

    Example:

    ```python
    encoding = sinusoidal_encoding(keras.ops.arange(10), hidden_dim=16)  # (10, 16)
    ```

    Reference: [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 3.5.
    """
    channels = np.arange(hidden_dim)
    if not interleaved:
        channels = np.concatenate([channels[::2], channels[1::2]])
    rates = (float(max_wavelength) ** -((channels // 2 * 2) / hidden_dim)).astype("float32")
    angles = ops.expand_dims(ops.cast(positions, "float32"), -1) * ops.convert_to_tensor(rates)
    return ops.where(channels % 2 == 0, ops.sin(angles), ops.cos(angles))


def successive_positions(length, start_index=0):
    """`length` positions, each one more than the last.

    Args:
        length: Integer, or integer scalar.
        start_index: Integer, or integer scalar, the first position.

    Returns:
        Int32 tensor (length,).

    Example:

    ```python
    successive_positions(3, start_index=5)  # [5, 6, 7]
    ```
    """
    return ops.arange(length, dtype="int32") + ops.cast(start_index, "int32")


def segment_positions(segment_ids):
    """Positions that start again at 0 wherever the segment id changes.

    Args:
        segment_ids: Integers (B, T). Each of the sequences packed into a row has an id of its own.

    Returns:
        Int32 tensor (B, T).

    Example:

    ```python
    segment_positions(keras.ops.convert_to_tensor([[1, 1, 1, 2, 2, 0]]))  # [[0, 1, 2, 0, 1, 0]]
    ```
    """
    batch_size, length = ops.shape(segment_ids)
    first = ops.ones_like(segment_ids[:, :1], dtype="int32")
    starts = ops.cast(segment_ids[:, 1:] != segment_ids[:, :-1], "int32")
    starts = ops.concatenate([first, starts], axis=1)
    index = successive_positions(length)
    run = ops.cumsum(starts, axis=1) - 1 + length * ops.arange(batch_size, dtype="int32")[:, None]
    run = ops.reshape(run, (-1,))
    # One segment more than needed: on PyTorch, Keras takes 0 to mean that the number is unknown.
    start_of_run = ops.segment_max(ops.reshape(starts * index, (-1,)), run, batch_size * length + 1)
    return index - ops.reshape(ops.take(start_of_run, run), ops.shape(segment_ids))
