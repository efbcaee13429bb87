"""Where TensorFlow's softmax of bfloat16 is as good as one in float32, so that nothing need be converted for it."""

import functools

import keras

from keras_attn.ops.compilers import is_compiled_graph, is_inference_scope
from keras_attn.ops.tensorflow_order import is_tensorflow_on_cpu


def is_softmax_rounded_once(dtype):
    """Whether the softmax of bfloat16 is that in float32, rounded, in the graph that is traced.

    oneDNN's kernel computes in float32. TensorFlow's own, which a machine without oneDNN takes, and XLA's round each
    exponential: shares are then wrong by up to 8 %. So this machine is asked, and for graphs that another machine may run,
    or a compiler, it is False. So it is for float16, in which a masked logit would be infinite.

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
        # So many that a sum in bfloat16 would lose most of them.
        logits = tf.cast(tf.linspace([-8.0], [0.0], 1031, axis=-1), "bfloat16")
        wide = tf.nn.softmax(tf.cast(logits, "float32"))
        return bool(tf.reduce_all(tf.nn.softmax(logits) == tf.cast(wide, "bfloat16")))
