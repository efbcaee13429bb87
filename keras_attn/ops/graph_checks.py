"""Checks of values: at once where they can be seen, and when the graph runs where they cannot.

Eagerly a wrong value raises. A TensorFlow graph raises when it runs. XLA, JAX's `jit` and PyTorch's compiler can raise
nothing, so there a layer's outputs become NaN (`mask_poison` in masks.py).
"""

import keras
import numpy as np
from keras import ops

from keras_attn.ops.compilers import is_compiled_scope


def concrete_values(tensor):
    """The tensor's values as a NumPy array if they can be seen (eagerly), None while a graph is traced."""
    try:
        return np.asarray(ops.convert_to_numpy(tensor))
    except Exception:  # each backend refuses to show a traced value with an exception of its own
        return None


def can_raise_in_graph(tensor):
    """Whether `tensor` is in a TensorFlow graph that is not known to be for a compiler.

    XLA, which a traced function cannot see coming, leaves out what `raise_in_graph` adds.
    """
    if keras.backend.backend() != "tensorflow" or is_compiled_scope():
        return False
    return not isinstance(tensor, keras.KerasTensor) and concrete_values(tensor) is None


def raise_in_graph(condition, *message):
    """Lets the TensorFlow graph that is being traced raise when it runs, unless the condition holds.

    Args:
        condition: Boolean scalar.
        *message: Strings, and tensors whose values become a part of the message.

    Returns:
        A context manager: what is computed inside it waits for the check.
    """
    import tensorflow as tf  # Neither Keras nor its ops can add an assertion to a graph.

    return tf.control_dependencies([tf.raw_ops.Assert(condition=condition, data=message)])
