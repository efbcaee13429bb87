"""The softmax over the last axis, by the operations that suit the backend and the shape."""

from keras import ops

from keras_attn.ops.compilers import runs_op_by_op
from keras_attn.ops.precision import is_at_least_float32


def row_softmax(logits):
    """exp(logits) / sum(exp(logits)) over the last axis of (..., T, S)."""
    if logits.shape[-1] == 1:
        # Keras warns about a softmax over a single key, but a sequence of one token is an ordinary input.
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
