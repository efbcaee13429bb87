"""The gradient of a cross-entropy, by its logits or by what they are a product of.

The logits (R, V) of a large vocabulary are by far the largest tensor of a training step. Their gradient is probabilities
minus a target that is nearly all one number, times a factor for each row. The product of rows (R, D) and a table (V, D) that gave
the logits needs it in two products only, and there the target and the factors may act on what is small. TensorFlow, which
computes one operation after the other, is spared three passes so; compilers have none of them.

`ops.logits_product` and the loss know of each other by attributes of operations of the graph: the product's output is marked
with its factors, and the loss's gradient with a `CrossentropyGradient`.
"""

import dataclasses
from typing import Any

from keras import ops


@dataclasses.dataclass(frozen=True)
class CrossentropyGradient:
    """The gradient of a label-smoothed cross-entropy by its logits: `upstream * (probabilities - target)`.

    The target of a row is `1 - label_smoothing` at its label plus `label_smoothing / V` everywhere.

    Args:
        probabilities: Floats (R, V), the softmax of the logits.
        labels: int32 (R,), inside the vocabulary.
        label_smoothing: Float.
        values: Floats (R,), the cross-entropy of each row: not finite if the row's logits are not.
        upstream: Floats (R,), the gradient by `values`. Rows where it is 0 have the gradient 0, even for NaN logits.

    Example:

    ```python
    probabilities = keras.ops.ones((2, 5)) / 5
    upstream = values = keras.ops.ones((2,))
    gradient = CrossentropyGradient(probabilities, keras.ops.array([3, 0]), 0.0, values, upstream)
    by_logits = gradient.by_logits()  # -0.8 at the labels, 0.2 elsewhere
    ```
    """

    probabilities: Any
    labels: Any
    label_smoothing: float
    values: Any
    upstream: Any

    def by_logits(self):
        """Floats (R, V), which a product made by `ops.logits_product` knows."""
        # Division by the reciprocal turns NaN * 0 into 0 in a single pass.
        divisor = ops.divide_no_nan(1.0, self.upstream)
        excess = self.probabilities
        if self.label_smoothing:
            excess = excess - self.label_smoothing / excess.shape[-1]
        at_labels = pick(excess, self.labels) - (1 - self.label_smoothing)
        gradient = ops.scatter_update(
            ops.divide_no_nan(excess, divisor[:, None]),
            self._positions(),
            ops.divide_no_nan(at_labels, divisor),
        )
        if hasattr(gradient, "op"):  # a tensor of a TensorFlow graph
            gradient.op._keras_attn_crossentropy_gradient = self
        return gradient

    def by_factors(self, rows, table, replaced):
        """The gradients by rows (R, D) and a table (V, D) whose product the logits are, in their dtype.

        `replaced` is a function of a tensor, positions, the entries there and the new ones: it returns the tensor with these.
        """
        import tensorflow as tf

        dtype, wide = table.dtype, self.probabilities.dtype
        factors = self.upstream[:, None]
        rows = tf.math.multiply_no_nan(tf.cast(rows, wide), factors)
        at_label = 1 - self.label_smoothing
        probabilities = self._finite_probabilities()
        excess = tf.cast(probabilities, dtype)
        if dtype != wide:  # Near a label's probability of 1 the difference would be lost in rounding.
            at_labels = pick(probabilities, self.labels)
            entries = tf.cast(at_labels, dtype), tf.cast(at_labels - at_label, dtype)
            excess = replaced(excess, self._positions(), *entries)
        by_rows = tf.cast(tf.matmul(excess, table), wide)
        # oneDNN is slow to read the larger matrix transposed.
        by_table = tf.cast(tf.transpose(tf.matmul(tf.cast(rows, dtype), excess, transpose_a=True)), wide)
        if dtype == wide:
            by_rows -= at_label * tf.gather(table, self.labels)
            by_table -= at_label * tf.math.unsorted_segment_sum(rows, self.labels, table.shape[0])
        if self.label_smoothing:
            wide_table = tf.cast(table, wide)
            by_rows -= self.label_smoothing * tf.reduce_mean(wide_table, axis=0)
            by_table -= self.label_smoothing / table.shape[0] * tf.reduce_sum(rows, axis=0)
        return tf.cast(tf.math.multiply_no_nan(by_rows, factors), dtype), tf.cast(by_table, dtype)

    def _finite_probabilities(self):
        """The probabilities, with 0 in rows that do not count: only if there is a row to mend, for it takes a pass."""
        import tensorflow as tf

        def mended():
            return tf.where(
                self.upstream[:, None] == 0, tf.zeros([], self.probabilities.dtype), self.probabilities
            )

        is_finite = tf.reduce_all(tf.math.is_finite(self.values))
        return tf.cond(is_finite, lambda: self.probabilities, mended)

    def _positions(self):
        rows = ops.arange(ops.shape(self.labels)[0], dtype="int32")
        return ops.stack([rows, self.labels], axis=-1)


def pick(values, labels):
    """The entry of each row of values (R, V) at its label, (R,).

    Example:

    ```python
    picked = pick(keras.ops.array([[1.0, 2.0], [3.0, 4.0]]), keras.ops.array([1, 0]))  # [2.0, 3.0]
    ```
    """
    return ops.squeeze(ops.take_along_axis(values, labels[:, None], axis=-1), axis=-1)


def mean_logits(logits):
    """The mean of each row of logits (R, V), without a pass over those that `ops.logits_product` gave.

    Example:

    ```python
    means = mean_logits(keras.ops.array([[1.0, 2.0, 6.0]]))  # [3.0]
    ```
    """
    rows, table = _factors(logits)
    if table is None or table.shape[0] != logits.shape[-1]:
        return ops.mean(logits, axis=-1)
    mean_column = ops.mean(ops.cast(table, logits.dtype), axis=0, keepdims=True)
    return ops.sum(ops.cast(rows, logits.dtype) * mean_column, axis=-1)


def _factors(logits):
    """The rows and the table whose product logits are, in another dtype or shape; None for both where that is unknown."""
    operation = getattr(logits, "op", None)  # of a TensorFlow graph
    while operation is not None and operation.type in ("Cast", "Reshape", "Identity"):
        operation = operation.inputs[0].op
    return getattr(operation, "_keras_attn_factors", (None, None))
