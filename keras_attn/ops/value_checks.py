"""Checks of the values of tensors, in eager mode and in graphs.

In eager mode a wrong value raises at once. A TensorFlow graph raises when it runs. XLA, JAX's `jit` and
PyTorch's compiler cannot raise, so there a layer's outputs become NaN (`mask_poison` in masks.py), or an index is clamped.
"""

import keras
from keras import ops

from keras_attn.checks import concrete_values
from keras_attn.ops.graph_purpose import is_clamping_scope, is_compiled_scope, is_inference_scope


def is_constant(tensor):
    """Whether it is known, also while a graph is traced, that the tensor has the same values in every run."""
    if concrete_values(tensor) is not None:
        return True
    if keras.backend.backend() != "tensorflow" or isinstance(tensor, keras.KerasTensor):
        return False
    import tensorflow as tf

    return tf.get_static_value(tensor) is not None


def can_raise_in_graph(tensor):
    """Whether `tensor` is in a TensorFlow graph that is not known to be for a compiler.

    XLA leaves out what `raise_in_graph` adds, and a traced function cannot know that XLA will compile it.
    """
    if keras.backend.backend() != "tensorflow" or is_compiled_scope():
        return False
    return not isinstance(tensor, keras.KerasTensor) and concrete_values(tensor) is None


def raise_in_graph(condition, *message):
    """Makes the TensorFlow graph that is being traced raise when it runs, unless the condition holds.

    Args:
        condition: Boolean scalar.
        *message: Strings, and tensors whose values become a part of the message.

    Returns:
        A context manager: operations inside it wait for the check.
    """
    import tensorflow as tf  # Neither Keras nor its ops can add an assertion to a graph.

    return tf.control_dependencies([tf.raw_ops.Assert(condition=condition, data=message)])


def indices_within(indices, size, name):
    """Indices of a table of `size` rows, checked: int32 of the same shape.

    In eager mode an index outside the table raises, and so does a TensorFlow graph when it runs. Compilers (XLA, JAX,
    PyTorch) cannot raise: there, and in graphs that are only run (`inference_scope`, `clamping_scope`), the nearest row is
    taken.

    Args:
        indices: Integers of any dtype and shape.
        size: Integer, the number of rows.
        name: What the indices are, the first words of the message.

    Raises:
        ValueError: if a concrete (eager) index is negative, or `size` or more.

    Example:

    ```python
    indices_within(np.array([[5, 2]]), 7, "Token ids")  # [[5, 2]]
    ```
    """
    values = concrete_values(indices)
    if values is not None and values.size and (values.min() < 0 or values.max() >= size):
        wrong = values[(values < 0) | (values >= size)]
        others = f" and {wrong.size - 1} more" if wrong.size > 1 else ""
        raise ValueError(f"{name} must lie in [0, {size}). Received: {int(wrong[0])}{others}.")
    indices = ops.convert_to_tensor(indices)
    if keras.backend.standardize_dtype(indices.dtype) not in ("int32", "int64"):
        indices = ops.cast(indices, "int64")  # a large uint32, or a NaN, becomes no index of another row
    if is_inference_scope() or is_clamping_scope() or not can_raise_in_graph(indices):
        return _clamped(indices, size)
    lowest = ops.min(indices, initial=0)
    highest = ops.max(indices, initial=0)
    fits = ops.logical_and(lowest >= 0, highest < size)
    with raise_in_graph(fits, f"{name} must lie in [0, {size}). Received values from", lowest, "to", highest):
        return _clamped(indices, size)


def _clamped(indices, size):
    # Before the cast: it would make other numbers of those that int32 cannot hold.
    return ops.cast(ops.clip(indices, 0, size - 1), "int32")
