"""A causal mask that TensorFlow writes into the logits, where any other mask is one more pass over all of them."""

from keras import ops

from keras_attn.ops.attention import MASKED


def with_later_keys_masked(logits, first):
    """Logits (..., t, s), very low where key j of s comes after query i of t: where j > first + i.

    A graph that is not compiled writes into the logits themselves, if nothing else reads them. XLA takes long to compile it.

    Args:
        logits: Float tensor (..., t, s) of TensorFlow, not float16; t and s are known.
        first: Integer, the last key that the first query sees.

    Returns:
        Floats (..., t, s), in the dtype of `logits`.

    Example:

    ```python
    with_later_keys_masked(keras.ops.zeros((2, 3)), first=0)  # [[0, -1e30, -1e30], [0, 0, -1e30]]
    ```
    """
    import tensorflow as tf

    num_queries, num_keys = logits.shape[-2:]
    num_diagonals = num_keys - first - 1
    if num_diagonals <= 0:
        return logits
    # One diagonal has no axis of diagonals.
    axes = (num_diagonals,) if num_diagonals > 1 else ()
    low = ops.full((*ops.shape(logits)[:-2], *axes, min(num_queries, num_diagonals)), MASKED, logits.dtype)
    if None in logits.shape:
        # TensorFlow then infers from a known rank of several diagonals that the logits have one axis more.
        low = tf.compat.v1.placeholder_with_default(low, None)
    return tf.linalg.set_diag(logits, low, k=(first + 1, num_keys - 1))
