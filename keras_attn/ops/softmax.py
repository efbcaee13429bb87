"""The softmax over the last axis, by the operations that suit the backend and the shape."""

import functools

import keras
from keras import ops

from keras_attn.ops.graph_purpose import (
    is_compiled_graph,
    is_inference_scope,
    is_tensorflow_on_cpu,
    runs_op_by_op,
)
from keras_attn.ops.precision import is_at_least_float32


def row_softmax(logits):
    """exp(logits) / sum(exp(logits)) over the last axis of (..., T, S)."""
    if logits.shape[-1] == 1:
        # 1, or NaN for a NaN. Keras' softmax warns about a single key, but a sequence of one token is an ordinary input.
        return ops.exp(logits - logits)
    if logits.shape[-2] == 1 and is_at_least_float32(logits):
        # A decoding step has one query. Starting TensorFlow's softmax kernel takes longer than all of these ops.
        return ops.exp(ops.log_softmax(logits, axis=-1))
    if len(logits.shape) <= 5:
        return ops.softmax(logits, axis=-1)
    # TensorFlow's softmax kernel for CPUs takes at most five axes.
    shape = ops.shape(logits)
    return ops.reshape(ops.softmax(ops.reshape(logits, (-1, shape[-1])), axis=-1), shape)


def log_normalizer(logits, largest=None):
    """log(sum(exp(logits))) over the last axis of (..., V), which is kept: log-probabilities are logits less this.

    TensorFlow's softmax kernel (oneDNN) computes exponentials faster than its kernel for exponentials alone. The
    largest share of the softmax is exp(largest logit) / sum.

    Args:
        logits: Floats (..., V).
        largest: Floats (..., 1), the largest of them, if it is known.

    Returns:
        Floats (..., 1).

    Example:

    ```python
    log_normalizer(keras.ops.zeros((2, 8)))  # [[2.0794], [2.0794]]
    ```
    """
    if not runs_op_by_op(logits):
        if largest is None:
            return ops.logsumexp(logits, axis=-1, keepdims=True)
        largest = ops.where(ops.isfinite(largest), largest, ops.zeros_like(largest))
        return largest + ops.log(ops.sum(ops.exp(logits - largest), axis=-1, keepdims=True))
    shares = ops.softmax(ops.reshape(logits, (-1, ops.shape(logits)[-1])), axis=-1)
    share = ops.max(shares, axis=-1, keepdims=True, initial=0)
    if largest is None:
        largest = ops.max(logits, axis=-1, keepdims=True, initial=-float("inf"))
    return largest - ops.reshape(ops.log(share), ops.shape(largest))


def is_softmax_rounded_once(dtype):
    """Whether the traced graph's softmax of bfloat16 is TensorFlow's softmax in float32, rounded once.

    If so, nothing has to be converted for it. oneDNN's kernel computes in float32. TensorFlow's own kernel, which a machine
    without oneDNN takes, and XLA round each exponential: shares are then wrong by up to 8 %. The answer is measured on this
    machine. It is False for graphs that another machine or a compiler may run, and for float16, in which a masked logit
    would be infinite.

    Args:
        dtype: A float dtype, or its name.

    Returns:
        Boolean, False for other dtypes, backends and devices.

    Example:

    ```python
    is_softmax_rounded_once("float32")  # False
    ```
    """
    if keras.backend.standardize_dtype(dtype) != "bfloat16" or not is_tensorflow_on_cpu():
        return False
    return not (is_inference_scope() or is_compiled_graph()) and _rounds_once()


@functools.cache
def _rounds_once():
    import tensorflow as tf

    with tf.init_scope():
        # Enough numbers that a sum in bfloat16 would lose most of them.
        logits = tf.cast(tf.linspace([-8.0], [0.0], 1031, axis=-1), "bfloat16")
        wide = tf.nn.softmax(tf.cast(logits, "float32"))
        return bool(tf.reduce_all(tf.nn.softmax(logits) == tf.cast(wide, "bfloat16")))
