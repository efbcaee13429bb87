"""The product that gives the logits of a large vocabulary, whose gradient may come in parts."""

import keras
from keras import ops

from keras_attn.ops.compilers import is_compiled_graph, is_inference_scope
from keras_attn.ops.tensorflow_order import is_tensorflow_on_cpu


def logits_product(rows, table):
    """Rows times a table, transposed; the gradient of a cross-entropy of these logits is not computed entry by entry.

    That is so in TensorFlow's graphs, where each operation is a pass over memory, if nothing but casts and changes of shape
    is between the product and the cross-entropy. Any other gradient is that of the product.

    Args:
        rows: Floats (R, D).
        table: Floats (V, D).

    Returns:
        Floats (R, V).

    Example:

    ```python
    rows, table = keras.random.normal((2, 3)), keras.random.normal((5, 3))
    logits = logits_product(rows, table)  # (2, 5)
    ```

    Reference: [Wijmans et al., 2024](https://arxiv.org/abs/2411.09009), who do not keep the logits either.
    """
    if keras.backend.backend() != "tensorflow" or isinstance(rows, keras.KerasTensor) or is_inference_scope():
        return _product(rows, table)
    import tensorflow as tf

    if tf.executing_eagerly():
        return _product(rows, table)

    @tf.custom_gradient
    def multiplied(rows, table):
        def gradient(upstream):
            upstream = tf.convert_to_tensor(upstream)  # of some rows alone it is none
            known = _known_gradient(upstream)
            if known is not None and known.probabilities.shape[-1] == table.shape[0]:
                return known.by_factors(rows, table, _replaced)
            return tf.matmul(upstream, table), tf.matmul(upstream, rows, transpose_a=True)

        return _product(rows, table), gradient

    # Copied because TensorFlow allows tensors here, but no variables.
    logits = multiplied(ops.copy(rows), ops.copy(table))
    logits.op._keras_attn_factors = rows, table
    return logits


def _product(rows, table):
    return ops.einsum("ab,cb->ac", rows, table)


def _replaced(x, positions, old, new):
    """The tensor `x` with new entries at positions (R, 2), where it has the old ones."""
    import tensorflow as tf

    if is_compiled_graph() or not is_tensorflow_on_cpu():
        return tf.tensor_scatter_nd_update(x, positions, new)
    # That would copy all of it. This adds in place: first so that 0 is left, for one sum would be rounded.
    add = tf.raw_ops.ScatterNdNonAliasingAdd
    emptied = add(input=x, indices=positions, updates=-old)
    return add(input=emptied, indices=positions, updates=new)


def _known_gradient(upstream):
    """The `training.CrossentropyGradient` that a gradient is, in another dtype or shape, or None."""
    operation = upstream.op
    while operation.type in ("Cast", "Reshape", "Identity"):
        operation = operation.inputs[0].op
    return getattr(operation, "_keras_attn_crossentropy_gradient", None)
