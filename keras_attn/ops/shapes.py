"""Shapes as arguments of `reshape`."""

from keras import ops


def shape_to_keep(x):
    """The shape of `x` for `reshape`, with -1 for a size that is unknown before the run.

    `keras.ops.shape` adds operations to every step of a graph; a single unknown size can be -1 instead. If several sizes
    are unknown, the result is `keras.ops.shape(x)`.

    Example:

    ```python
    shape_to_keep(keras.KerasTensor((None, 5, 12)))  # (-1, 5, 12)
    ```
    """
    sizes = tuple(x.shape)
    return ops.shape(x) if sizes.count(None) > 1 else tuple(-1 if size is None else size for size in sizes)
