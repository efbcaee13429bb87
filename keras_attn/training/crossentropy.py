"""The label-smoothed cross-entropy of rows of logits, and its gradient.

The logits (R, V) of a large vocabulary are by far the largest tensor of a training step, and each pass over them costs
about as much as a layer. Their gradient is probabilities minus a target that is nearly all one number, times a factor for
each row. Automatic differentiation takes twice as many passes, and makes NaN of 0 * NaN, so padding would need one more.

Where a TensorFlow graph made the logits as the product of rows (R, D) and a transposed table (V, D), as the output of
`TokenEmbedding`, the loss is differentiated by these two factors: the probabilities are then needed in two products only, and
the target and the row factors act on what is small. TensorFlow, which computes one operation after the other, is spared
three passes. The factors are read from the graph, as Keras' own losses read the input of a Softmax operation.
"""

import dataclasses
import math
from typing import Any

from keras import ops

from keras_attn.compat.tensorflow import is_for_xla

# Smaller probabilities (losses above 69 nats) may be inexact or 0.
_SMALLEST_EXACT = 1e-30


def smoothed_crossentropy(labels, logits, label_smoothing=0.0):
    """The cross-entropy of each row, (R,), with `1 - label_smoothing` at its label plus `label_smoothing / V` everywhere.

    Args:
        labels: int32 (R,), inside the vocabulary.
        logits: Floats (R, V), at least float32.
        label_smoothing: Float.

    Example:

    ```python
    values = smoothed_crossentropy(keras.ops.array([3, 0]), keras.ops.zeros((2, 5)))  # log(5) each
    ```
    """
    factors = factors_of_product(logits)
    if factors is None:
        return _differentiated_by_logits(labels, logits, label_smoothing)
    rows, table = factors
    return _differentiated_by_factors(labels, logits, label_smoothing, rows, table)


def factors_of_product(logits):
    """The rows (R, D) and the table (V, D) whose product a TensorFlow graph took, then cast or reshaped; None if unknown.

    Example:

    ```python
    factors_of_product(keras.ops.ones((2, 5)))  # None: no graph made it
    ```
    """
    operation = getattr(logits, "op", None)  # of a TensorFlow graph
    while operation is not None and operation.type in ("Cast", "Reshape"):
        operation = operation.inputs[0].op
    if operation is None or operation.type != "MatMul" or operation.inputs[1].op.type != "Transpose":
        return None
    if operation.get_attr("transpose_a") or operation.get_attr("transpose_b"):
        return None
    rows = operation.inputs[0]
    table = operation.inputs[1].op.inputs[0]
    if table.shape[0] != logits.shape[-1]:
        return None
    return rows, table


def _differentiated_by_logits(labels, logits, label_smoothing):
    @ops.custom_gradient
    def crossentropy(logits):
        values, probabilities = _values(labels, logits, label_smoothing, lambda: ops.mean(logits, axis=-1))

        # PyTorch also passes the forward arguments, and the incoming gradient by keyword.
        def gradient(*args, upstream=None):
            upstream = args[-1] if upstream is None else upstream
            return CrossentropyGradient(probabilities, labels, label_smoothing, values, upstream).by_logits()

        return values, gradient

    return crossentropy(logits)


def _differentiated_by_factors(labels, logits, label_smoothing, rows, table):
    @ops.custom_gradient
    def crossentropy(rows, table):
        def mean_logits():  # by D numbers of each row in place of V
            mean_column = ops.mean(ops.cast(table, logits.dtype), axis=0, keepdims=True)
            return ops.sum(ops.cast(rows, logits.dtype) * mean_column, axis=-1)

        values, probabilities = _values(labels, logits, label_smoothing, mean_logits)

        def gradient(upstream):
            gradient = CrossentropyGradient(probabilities, labels, label_smoothing, values, upstream)
            return gradient.by_factors(rows, table)

        return values, gradient

    return crossentropy(rows, table)


def _values(labels, logits, label_smoothing, mean_logits):
    """The cross-entropy (R,), and the probabilities (R, V)."""
    probabilities = ops.softmax(logits, axis=-1)
    label_logits = _entries_at(logits, labels)
    values = _negative_log(probabilities, logits, labels, label_logits)
    if label_smoothing:
        values = values + label_smoothing * (label_logits - mean_logits())
    return values, probabilities


def _negative_log(probabilities, logits, labels, label_logits):
    """-log of the probability of each label, exact even if the probability is too small for a float."""
    label_probabilities = _entries_at(probabilities, labels)

    def from_peak():
        # This takes two more passes. `initial` gives an empty batch a maximum. Differences from the peak stay
        # exact, even for logits of 6e4.
        peak = ops.max(logits, axis=-1, initial=-math.inf)
        log_normalizer = -ops.log(ops.max(probabilities, axis=-1, initial=0.0))  # logsumexp(logits) - peak
        return log_normalizer + (peak - label_logits)

    are_exact = ops.all(label_probabilities > _SMALLEST_EXACT)
    return ops.cond(are_exact, lambda: -ops.log(label_probabilities), from_peak)


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
        """Floats (R, V)."""
        # Division by the reciprocal turns NaN * 0 into 0 in a single pass.
        divisor = ops.divide_no_nan(1.0, self.upstream)
        excess = self.probabilities
        if self.label_smoothing:
            excess = excess - self.label_smoothing / excess.shape[-1]
        at_labels = _entries_at(excess, self.labels) - (1 - self.label_smoothing)
        return ops.scatter_update(
            ops.divide_no_nan(excess, divisor[:, None]),
            self._label_indices(),
            ops.divide_no_nan(at_labels, divisor),
        )

    def by_factors(self, rows, table):
        """The gradients by the rows (R, D) and the table (V, D) whose product the logits are, in their dtype, in TensorFlow."""
        import tensorflow as tf

        dtype = table.dtype
        wide = self.probabilities.dtype
        factors = self.upstream[:, None]
        rows = tf.math.multiply_no_nan(tf.cast(rows, wide), factors)
        at_label = 1 - self.label_smoothing
        probabilities = self._finite_probabilities()
        excess = tf.cast(probabilities, dtype)
        if dtype != wide:  # Near a label's probability of 1 the difference would be lost in rounding.
            at_labels = _entries_at(probabilities, self.labels)
            old = tf.cast(at_labels, dtype)
            new = tf.cast(at_labels - at_label, dtype)
            excess = _with_entries_replaced(excess, self._label_indices(), old, new)
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
            zero = tf.zeros([], self.probabilities.dtype)
            return tf.where(self.upstream[:, None] == 0, zero, self.probabilities)

        is_finite = tf.reduce_all(tf.math.is_finite(self.values))
        return tf.cond(is_finite, lambda: self.probabilities, mended)

    def _label_indices(self):
        rows = ops.arange(ops.shape(self.labels)[0], dtype="int32")
        return ops.stack([rows, self.labels], axis=-1)


def _with_entries_replaced(x, indices, old, new):
    """The TensorFlow tensor `x` with new entries at indices (R, 2), where it has the old ones."""
    import tensorflow as tf

    if is_for_xla(tf.compat.v1.get_default_graph()) or tf.config.list_physical_devices("GPU"):
        return tf.tensor_scatter_nd_update(x, indices, new)
    # That would copy all of it. This adds in place: first so that 0 is left, for one sum would be rounded.
    add = tf.raw_ops.ScatterNdNonAliasingAdd
    emptied = add(input=x, indices=indices, updates=-old)
    return add(input=emptied, indices=indices, updates=new)


def _entries_at(values, labels):
    """The entry of each row of values (R, V) at its label, (R,)."""
    return ops.squeeze(ops.take_along_axis(values, labels[:, None], axis=-1), axis=-1)
