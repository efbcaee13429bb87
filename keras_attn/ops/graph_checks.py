"""Checks of the values of tensors, in eager mode and in graphs.

In eager mode a wrong value raises at once. A TensorFlow graph raises when it runs. XLA, JAX's `jit` and
PyTorch's compiler cannot raise, so there a layer's outputs become NaN (`mask_poison` in masks.py).
"""

import keras

from keras_attn.checks import concrete_values
from keras_attn.ops.compilers import is_compiled_scope


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
