"""The softmax over the last axis, by the operations that suit the backend and the shape."""

from keras import ops


def row_softmax(logits):
    """exp(logits) / sum(exp(logits)) over the last axis of (..., T, S)."""
    if logits.shape[-1] == 1:
        # Keras warns about a softmax over a single key, but a sequence of one token is an ordinary input.
        return ops.exp(logits - logits)
    if logits.shape[-2] == 1:
        # A decoding step has one query. Starting TensorFlow's softmax kernel takes longer than all of these ops.
        return ops.exp(ops.log_softmax(logits, axis=-1))
    if len(logits.shape) <= 5:
        return ops.softmax(logits, axis=-1)
    # TensorFlow's softmax kernel for CPUs takes at most five axes.
    shape = ops.shape(logits)
    return ops.reshape(ops.softmax(ops.reshape(logits, (-1, shape[-1])), axis=-1), shape)
