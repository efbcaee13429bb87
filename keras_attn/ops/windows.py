"""Images cut into windows, and which pixels of a window may see each other (Liu et al. 2021, section 3.2).

An image (B, height, width, D) becomes windows (B, W, T, D): W windows of T pixels each, both counted row by row. A
shifted grid of windows starts `shift_size` pixels below and to the right of the image's corner. The rows and columns
before that are moved to the other end of the image, where windows would otherwise be incomplete (the paper's cyclic
shift). Window and shift sizes are pairs of integers; image sizes may be unknown before the run.
"""

import numpy as np
from keras import ops

from keras_attn.ops.masks import segment_mask


def partition_windows(images, window_size, shift_size=(0, 0)):
    """Images (B, height, width, D) as windows (B, W, T, D), with zeros below and to the right where pixels are missing.

    An axis that is covered by one window is not shifted: a shift would only separate neighbours.

    Args:
        images: Tensor (B, height, width, D).
        window_size: Pair of integers, the height and width of a window; T is their product.
        shift_size: Pair of integers, each less than the window's.

    Returns:
        Tensor (B, W, T, D), where W is ceil(height / window height) * ceil(width / window width).

    Example:

    ```python
    windows = partition_windows(keras.random.normal((2, 7, 6, 3)), (4, 3), (2, 1))  # (2, 4, 12, 3)
    ```
    """
    sizes = ops.shape(images)[1:3]
    shifts = _shifts(sizes, window_size, shift_size)
    images = _roll(_pad(images, sizes, window_size), [-shift for shift in shifts])
    batch_size, height, width, num_features = ops.shape(images)
    rows, columns = window_size
    grid = (batch_size, height // rows, rows, width // columns, columns, num_features)
    windows = ops.transpose(ops.reshape(images, grid), (0, 1, 3, 2, 4, 5))
    num_windows = (height // rows) * (width // columns)
    return ops.reshape(windows, (batch_size, num_windows, rows * columns, num_features))


def complete_windows(images, window_size):
    """Images (B, height, width, D) with zeros below and to the right, so that they are a whole number of windows.

    Example:

    ```python
    images = complete_windows(keras.random.normal((2, 7, 6, 3)), (4, 3))  # (2, 8, 6, 3)
    ```
    """
    return _pad(images, ops.shape(images)[1:3], window_size)


def shift_of_several_windows(sizes, window_size, shift_size):
    """The shift, or (0, 0) if one window covers either axis of an image: the rule of the published code.

    Args:
        sizes: Pair of integers, or integer scalars: the height and width of the image.
        window_size, shift_size: As in `partition_windows`.

    Example:

    ```python
    shift_of_several_windows((8, 3), (4, 3), (2, 1)), shift_of_several_windows((8, 4), (4, 3), (2, 1))  # (0, 0), (2, 1)
    ```
    """
    are_several = [size > window for size, window in zip(sizes, window_size)]
    if not all(isinstance(several, bool) for several in are_several):
        are_both = ops.logical_and(are_several[0], are_several[1])
        return tuple(ops.where(are_both, shift, 0) for shift in shift_size)
    if all(are_several):
        return tuple(shift_size)
    return 0, 0


def reverse_windows(windows, height, width, window_size, shift_size=(0, 0)):
    """The images (B, height, width, D) that `partition_windows` made into windows (B, W, T, D).

    Example:

    ```python
    images = keras.random.normal((2, 7, 6, 3))
    windows = partition_windows(images, (4, 3), (2, 1))
    same_images = reverse_windows(windows, 7, 6, (4, 3), (2, 1))
    ```
    """
    rows, columns = window_size
    num_down = -(-height // rows)
    num_across = -(-width // columns)
    batch_size, _, _, num_features = ops.shape(windows)
    grid = (batch_size, num_down, num_across, rows, columns, num_features)
    images = ops.transpose(ops.reshape(windows, grid), (0, 1, 3, 2, 4, 5))
    images = ops.reshape(images, (batch_size, num_down * rows, num_across * columns, num_features))
    images = _roll(images, _shifts((height, width), window_size, shift_size))
    return images[:, :height, :width]


def window_mask(height, width, window_size, shift_size=(0, 0), padding_mask=None):
    """True where two pixels of a window come from the same part of the image.

    Windows at the end hold pixels that the cyclic shift moved from the other end of the image, and zeros that
    pad it.

    Args:
        height, width: Integers or integer scalars, the size of the image.
        window_size, shift_size: As in `partition_windows`.
        padding_mask: Boolean (B, height, width), True at real pixels. The others are masked.

    Returns:
        Boolean (B or 1, W, T, T), or None if it is known that all pairs are allowed.

    Example:

    ```python
    mask = window_mask(8, 6, (4, 3), (2, 1))  # (1, 4, 12, 12)
    ```
    """
    shifts = _shifts((height, width), window_size, shift_size)
    if padding_mask is None and _is_whole((height, width), window_size) and _are_zero(shifts):
        return None
    # The rows above and the columns left of the shifted grid, which the shift moves to the other end.
    above = ops.cast(ops.arange(height, dtype="int32") < shifts[0], "int32")
    left = ops.cast(ops.arange(width, dtype="int32") < shifts[1], "int32")
    regions = ops.expand_dims(1 + 2 * ops.expand_dims(above, -1) + left, 0)
    if padding_mask is not None:
        regions = ops.where(padding_mask, regions, 0)
    regions = partition_windows(ops.expand_dims(regions, -1), window_size, shift_size)[..., 0]
    return segment_mask(regions, regions)  # Region 0 is padding.


def window_position_bias(table, window_size):
    """The bias of every pair of pixels in a window, which depends only on the offset from one pixel to the other.

    Args:
        table: Floats ((2 M - 1) (2 M' - 1), N) for windows of M by M' pixels: a row for each offset between two
            pixels, ordered by its vertical, then its horizontal part, starting at `1 - M` and `1 - M'`.
        window_size: Pair of integers M and M'.

    Returns:
        Floats (N, T, T), a bias for the logits.

    Example:

    ```python
    bias = window_position_bias(keras.random.normal((35, 2)), (4, 3))  # (2, 12, 12)
    ```

    Reference: [Liu et al., 2021](https://arxiv.org/abs/2103.14030), equation 4.
    """
    return ops.transpose(ops.take(table, _offset_indices(window_size), axis=0), (2, 0, 1))


def _offset_indices(window_size):
    """(T, T) integers: the row of the table for a query pixel and a key pixel."""
    rows, columns = window_size
    y, x = (line.reshape(-1) for line in np.indices(window_size))
    down = y[:, None] - y[None, :] + rows - 1
    across = x[:, None] - x[None, :] + columns - 1
    return (down * (2 * columns - 1) + across).astype("int32")


def _shifts(sizes, window_size, shift_size):
    """The shift of each axis, 0 if one window covers the axis."""
    shifts = []
    for size, window, shift in zip(sizes, window_size, shift_size):
        if not isinstance(size, int):
            shift = ops.where(size > window, shift, 0)
        elif size <= window:
            shift = 0
        shifts.append(shift)
    return shifts


def _pad(images, sizes, window_size):
    if _is_whole(sizes, window_size):
        return images
    below, right = (-size % window for size, window in zip(sizes, window_size))
    return ops.pad(images, [[0, 0], [0, below], [0, right], [0, 0]])


def _roll(images, shifts):
    if _are_zero(shifts):
        return images
    return ops.roll(images, shifts, axis=(1, 2))


def _is_whole(sizes, window_size):
    """Whether it is known that the windows cover the image without padding."""
    return all(isinstance(size, int) and size % window == 0 for size, window in zip(sizes, window_size))


def _are_zero(shifts):
    return all(isinstance(shift, int) and shift == 0 for shift in shifts)
