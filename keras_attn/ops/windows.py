"""Images cut into windows, and which pixels of a window may see each other (Liu et al. 2021, section 3.2).

An image (B, height, width, D) becomes windows (B, W, T, D): W windows of T pixels each, both counted row by row. A
shifted grid of windows starts `shift_size` pixels below and to the right of the image's corner; the pixels before its
first lines are put behind the last ones, into windows that would otherwise be cut short (the paper's cyclic shift).
Sizes of an image need not be known before the run; those of windows and shifts are pairs of integers.
"""

import numpy as np
from keras import ops

from keras_attn.ops.masks import segment_mask


def partition_windows(images, window_size, shift_size=(0, 0)):
    """Images (B, height, width, D) as windows (B, W, T, D), with zeros below and to the right where pixels lack.

    An axis that one window covers is not shifted: that would only part what is together.

    Args:
        images: Tensor (B, height, width, D).
        window_size: Pair of integers, the height and width of a window; T is their product.
        shift_size: Pair of integers, each below that of the window.

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
    num_down, num_across = -(-height // rows), -(-width // columns)
    batch_size, _, _, num_features = ops.shape(windows)
    grid = (batch_size, num_down, num_across, rows, columns, num_features)
    images = ops.transpose(ops.reshape(windows, grid), (0, 1, 3, 2, 4, 5))
    images = ops.reshape(images, (batch_size, num_down * rows, num_across * columns, num_features))
    images = _roll(images, _shifts((height, width), window_size, shift_size))
    return images[:, :height, :width]


def window_mask(height, width, window_size, shift_size=(0, 0), padding_mask=None):
    """True where two pixels of a window were neighbours in the image: one window of the grid, not one put together.

    Args:
        height, width: Integers or integer scalars, the size of the image.
        window_size, shift_size: As in `partition_windows`.
        padding_mask: Boolean (B, height, width), True at real pixels. The others, as those that fill a window up,
            are nobody's neighbours.

    Returns:
        Boolean (B or 1, W, T, T), or None where it is known that all pairs are neighbours.

    Example:

    ```python
    mask = window_mask(8, 6, (4, 3), (2, 1))  # (1, 4, 12, 12)
    ```
    """
    shifts = _shifts((height, width), window_size, shift_size)
    if padding_mask is None and _is_whole((height, width), window_size) and _are_zero(shifts):
        return None
    # The lines before the grid's first: what is put behind the last ones.
    above, left = (
        ops.cast(ops.arange(size, dtype="int32") < shift, "int32")
        for size, shift in zip((height, width), shifts)
    )
    regions = ops.expand_dims(1 + 2 * ops.expand_dims(above, -1) + left, 0)
    if padding_mask is not None:
        regions = ops.where(padding_mask, regions, 0)
    regions = partition_windows(ops.expand_dims(regions, -1), window_size, shift_size)[..., 0]
    return segment_mask(regions, regions)  # Region 0 is filling.


def window_position_bias(table, window_size):
    """The bias of every pair of pixels in a window, which depends on the way from one to the other alone.

    Args:
        table: Floats ((2 M - 1) (2 M' - 1), N) for windows of M by M' pixels: a row for each way between two
            pixels, ordered by its vertical, then its horizontal part, from `1 - M` and `1 - M'` on.
        window_size: Pair of integers M and M'.

    Returns:
        Floats (N, T, T), to be added to the logits.

    Example:

    ```python
    bias = window_position_bias(keras.random.normal((35, 2)), (4, 3))  # (2, 12, 12)
    ```

    Reference: [Liu et al., 2021](https://arxiv.org/abs/2103.14030), equation 4.
    """
    return ops.transpose(ops.take(table, _way_indices(window_size), axis=0), (2, 0, 1))


def _way_indices(window_size):
    """(T, T) integers: the row of the table for a query pixel and a key pixel."""
    rows, columns = window_size
    y, x = (line.reshape(-1) for line in np.indices(window_size))
    down = y[:, None] - y[None, :] + rows - 1
    across = x[:, None] - x[None, :] + columns - 1
    return (down * (2 * columns - 1) + across).astype("int32")


def _shifts(sizes, window_size, shift_size):
    """The shift of each axis: none where one window covers it."""
    return [
        (shift if size > window else 0) if isinstance(size, int) else ops.where(size > window, shift, 0)
        for size, window, shift in zip(sizes, window_size, shift_size)
    ]


def _pad(images, sizes, window_size):
    if _is_whole(sizes, window_size):
        return images
    below, right = (-size % window for size, window in zip(sizes, window_size))
    return ops.pad(images, [[0, 0], [0, below], [0, right], [0, 0]])


def _roll(images, shifts):
    return images if _are_zero(shifts) else ops.roll(images, shifts, axis=(1, 2))


def _is_whole(sizes, window_size):
    """Whether it is known that windows cover the image without padding."""
    return all(isinstance(size, int) and size % window == 0 for size, window in zip(sizes, window_size))


def _are_zero(shifts):
    return all(isinstance(shift, int) and shift == 0 for shift in shifts)
