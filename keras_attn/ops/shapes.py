from keras import ops


def shape_to_keep(x):
    """The shape of `x` to reshape to: its sizes, with -1 for one that is not known before the run.

    Where several are not known, `keras.ops.shape`. In a graph that takes ops at every step, and one axis can do without.

    Example:

    ```python
    shape_to_keep(keras.KerasTensor((None, 5, 12)))  # (-1, 5, 12)
    ```
    """
    sizes = tuple(x.shape)
    return ops.shape(x) if sizes.count(None) > 1 else tuple(-1 if size is None else size for size in sizes)
