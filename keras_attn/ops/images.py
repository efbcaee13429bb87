"""Images as sequences: patches, their positions, and grids of positions resized for images of other sizes.

A grid of patches is counted row by row. Image and patch sizes are pairs of integers; those of images may be unknown
before the run.
"""

import numpy as np
from keras import ops

from keras_attn.ops.precision import at_least_float32

# A position holds a row and a column: row * _ROW + column.
_ROW = 2**16


def image_patches(images, patch_size, pad=False):
    """Images (B, height, width, C) as patches (B, T, p q C): the pixels of each row by row, the channels of each pixel.

    Args:
        images: Tensor (B, height, width, C).
        patch_size: Pair of integers p and q, the height and width of a patch.
        pad: Boolean, whether an image that is not a whole number of patches gets zeros below and to the right (Swin), in
            place of losing the last rows and columns (ViT).

    Returns:
        Tensor (B, T, p q C), T being the product of `grid_size`.

    Example:

    ```python
    patches = image_patches(keras.random.normal((2, 7, 6, 3)), (3, 2))  # (2, 6, 18)
    ```

    Reference: [Dosovitskiy et al., 2021](https://arxiv.org/abs/2010.11929), section 3.1.
    """
    batch_size, height, width, num_channels = ops.shape(images)
    rows, columns = grid_size((height, width), patch_size, pad)
    down, across = patch_size
    num_missing = (rows * down - height, columns * across - width)
    if not _are_zero(num_missing):
        if pad:
            images = ops.pad(images, [[0, 0], [0, num_missing[0]], [0, num_missing[1]], [0, 0]])
        else:
            images = images[:, : rows * down, : columns * across]
    images = ops.reshape(images, (batch_size, rows, down, columns, across, num_channels))
    images = ops.transpose(images, (0, 1, 3, 2, 4, 5))
    return ops.reshape(images, (batch_size, rows * columns, down * across * num_channels))


def grid_size(image_size, patch_size, pad=False):
    """The number of rows and of columns of patches.

    Args:
        image_size: Pair: height and width, integers or integer scalars.
        patch_size, pad: As in `image_patches`.

    Example:

    ```python
    grid_size((7, 6), (3, 2)), grid_size((7, 6), (3, 2), pad=True)  # (2, 3), (3, 3)
    ```
    """
    if pad:
        return tuple(-(-size // patch) for size, patch in zip(image_size, patch_size))
    return tuple(size // patch for size, patch in zip(image_size, patch_size))


def grid_positions(rows, columns, num_special_tokens=0):
    """The positions of a grid's patches: integers that hold a row and a column, both counted from 1.

    Args:
        rows, columns: Integers, or integer scalars: the size of the grid, each less than 32767.
        num_special_tokens: Integer, the number of tokens before the patches. They have the position 0: row 0, column 0.

    Returns:
        Int32 tensor (T,), for `keras_attn.layers.AxialRotaryEmbedding`.

    Example:

    ```python
    positions = grid_positions(2, 3, num_special_tokens=1)  # (7,)
    ```
    """
    row = ops.expand_dims(ops.arange(rows, dtype="int32") + 1, -1)
    column = ops.expand_dims(ops.arange(columns, dtype="int32") + 1, 0)
    positions = ops.reshape(row * _ROW + column, (-1,))
    if not num_special_tokens:
        return positions
    return ops.concatenate([ops.zeros((num_special_tokens,), dtype="int32"), positions], axis=0)


def rows_and_columns(positions):
    """The rows and the columns in the positions of `grid_positions`, two int32 tensors.

    Example:

    ```python
    rows, columns = rows_and_columns(grid_positions(2, 3))  # [1, 1, 1, 2, 2, 2], [1, 2, 3, 1, 2, 3]
    ```
    """
    positions = ops.cast(positions, "int32")
    return positions // _ROW, positions % _ROW


def resized_grid(grid, size, antialias=False):
    """A grid of vectors, resized by bicubic interpolation, as positions are for images of other sizes.

    The numbers are those of torch's `interpolate(mode="bicubic", align_corners=False)`, which ViT, DeiT and DINOv2 use.
    That is two products of matrices, one for each axis.

    Args:
        grid: Floats (rows, columns, D), both sizes known.
        size: Pair of integers, or integer scalars: the new numbers of rows and columns.
        antialias: Boolean, whether a smaller grid is made of means over larger neighbourhoods; this form also has other
            weights (Keys' with a = -0.5 in place of -0.75) in a larger grid.

    Returns:
        Floats (*size, D), at least float32.

    Example:

    ```python
    grid = resized_grid(keras.random.normal((4, 4, 8)), (6, 5))  # (6, 5, 8)
    ```

    References: [Keys, 1981](https://doi.org/10.1109/TASSP.1981.1163711);
    [Dosovitskiy et al., 2021](https://arxiv.org/abs/2010.11929), section 3.2.
    """
    grid = at_least_float32(grid)
    rows, columns = (
        ops.cast(_resizing_matrix(old, new, antialias), grid.dtype) for old, new in zip(grid.shape, size)
    )
    resized = ops.tensordot(rows, grid, axes=1)
    return ops.transpose(ops.tensordot(columns, resized, axes=[[1], [1]]), (1, 0, 2))


def _resizing_matrix(old, new, antialias):
    """Float32 (new, old): how much of each old row is in each new one."""
    scale = old / ops.cast(new, "float32")
    centres = ops.expand_dims((ops.cast(ops.arange(new), "float32") + 0.5) * scale - 0.5, -1)
    if antialias:
        reach = ops.maximum(scale, 1.0)
        weights = _cubic((ops.arange(old, dtype="float32") - centres) / reach, -0.5)
        return weights / ops.sum(weights, axis=-1, keepdims=True)
    # Rows beyond an edge, of which the cubic needs two, are the row at the edge.
    places = np.arange(-2, old + 2)
    edges = np.eye(old, dtype="float32")[np.clip(places, 0, old - 1)]
    return ops.matmul(_cubic(ops.convert_to_tensor(places, "float32") - centres, -0.75), edges)


def _cubic(distances, a):
    """Keys' cubic of distances in samples: 1 at 0, and 0 at 1 and at 2 and beyond."""
    x = ops.abs(distances)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return ops.where(x <= 1, near, ops.where(x < 2, far, ops.zeros_like(x)))


def _are_zero(sizes):
    return all(isinstance(size, int) and size == 0 for size in sizes)
