"""The order in which TensorFlow computes parts of attention: it starts an operation as soon as it can, and holds all results."""

import contextlib
import os

import keras
from keras import ops


def is_tensorflow_on_cpu():
    """Whether operations are TensorFlow's, and there is no GPU for them."""
    if keras.backend.backend() != "tensorflow":
        return False
    import tensorflow as tf

    return not tf.config.list_physical_devices("GPU")


def computed_after(tensors):
    """A scope in which operations of a TensorFlow graph start after these tensors are computed.

    The other backends compute in order, or are compilers, which choose an order that needs little memory.

    Example:

    ```python
    with computed_after([keras.ops.zeros(3)]):
        ones = keras.ops.ones(3)
    ```
    """
    if keras.backend.backend() != "tensorflow":
        return contextlib.nullcontext()
    import tensorflow as tf

    return tf.control_dependencies(tensors)


def head_by_head(num_key_heads, function, num_results, *tensors):
    """The results of a function that is called with the heads of one key head after the other, in TensorFlow.

    As many calls as there are processors run at the same time.

    Args:
        num_key_heads: Integer K.
        function: Function of tensors (..., N / K, X, Y) and (..., 1, X, Y) to `num_results` such tensors, in their dtype.
        num_results: Integer.
        *tensors: Tensors (..., N, X, Y) and (..., K, X, Y), all in one dtype.

    Returns:
        A list of tensors (..., N, X, Y) or (..., K, X, Y).
    """
    import tensorflow as tf

    def apart(x):
        shape = ops.shape(x)
        groups = (*shape[:-3], num_key_heads, x.shape[-3] // num_key_heads, *shape[-2:])
        return ops.moveaxis(ops.reshape(x, groups), -4, 0)

    def together(x):
        x = ops.moveaxis(x, 0, -4)
        *lead, groups, heads, rows, columns = ops.shape(x)
        return ops.reshape(x, (*lead, groups * heads, rows, columns))

    found = tf.map_fn(
        lambda heads: tuple(function(*heads)),
        tuple(apart(x) for x in tensors),
        parallel_iterations=os.cpu_count() or 1,
        fn_output_signature=(tensors[0].dtype,) * num_results,
    )
    return [together(x) for x in found]
