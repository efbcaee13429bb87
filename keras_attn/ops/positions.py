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


def token_positions(padding_mask, segment_ids=None):
    """The positions of the tokens of padded rows: how many real tokens come before each one in its row.

    This is the rule for positions wherever none are given: pads count for nothing, before a row's tokens, after them or
    between them, so that a row's first real token has position 0. A pad has the position of the real token before it, or 0.
    Packed sequences each count from 0.

    Args:
        padding_mask: Boolean (B, T), True at real tokens.
        segment_ids: Integers (B, T), or None. Each of the sequences packed into a row has an id of its own.

    Returns:
        Int32 tensor (B, T), less than T.

    Example:

    ```python
    padding_mask = keras.ops.convert_to_tensor([[False, False, True, True, True, False]])
    token_positions(padding_mask)  # [[0, 0, 0, 1, 2, 2]]
    ```
    """
    is_token = ops.cast(padding_mask, "int32")
    up_to = ops.cumsum(is_token, axis=1)
    if segment_ids is not None:
        before = up_to - is_token
        up_to = up_to - _at_start_of_run(before, segment_ids)
    return ops.maximum(up_to - 1, 0)


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
    index = successive_positions(ops.shape(segment_ids)[1])
    return index - _at_start_of_run(index, segment_ids)


def largest_in_segment(values, segment_ids):
    """At each token the largest of non-negative values in its segment, or in its row without segments.

    Args:
        values: Integers (B, T), or (..., T) without segments.
        segment_ids: Integers (B, T), or None.

    Returns:
        Int32 tensor (B, T), or (..., 1) without segments.

    Example:

    ```python
    segment_ids = keras.ops.convert_to_tensor([[1, 1, 1, 2, 2, 0]])
    largest_in_segment(segment_positions(segment_ids), segment_ids)  # [[2, 2, 2, 1, 1, 0]]
    ```
    """
    values = ops.cast(values, "int32")
    if segment_ids is None:
        return ops.max(values, axis=-1, keepdims=True, initial=0)
    run, _ = _runs(segment_ids)
    return _largest_in_run(values, run)


def _at_start_of_run(values, segment_ids):
    """At each token the value, which never falls within a row, of the first token with its segment id."""
    run, starts = _runs(segment_ids)
    return _largest_in_run(starts * values, run)


def _runs(segment_ids):
    """The number of the run of equal ids that each token is in, and 1 where a run starts, else 0: integers (B, T)."""
    batch_size, length = ops.shape(segment_ids)
    first = ops.ones_like(segment_ids[:, :1], dtype="int32")
    starts = ops.cast(segment_ids[:, 1:] != segment_ids[:, :-1], "int32")
    starts = ops.concatenate([first, starts], axis=1)
    run = ops.cumsum(starts, axis=1) - 1 + length * ops.arange(batch_size, dtype="int32")[:, None]
    return run, starts


def _largest_in_run(values, run):
    batch_size, length = ops.shape(run)
    run = ops.reshape(run, (-1,))
    # One run more than needed: on PyTorch, Keras takes 0 to mean that the number is unknown.
    largest = ops.segment_max(ops.reshape(values, (-1,)), run, batch_size * length + 1)
    return ops.reshape(ops.take(largest, run), (batch_size, length))
