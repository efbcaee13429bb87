"""Cross-entropy over tokens that ignores padding."""

import math
import numbers

import keras
from keras import ops

from keras_attn.checks import check_rate, concrete_values
from keras_attn.compat.keras import comes_from_activation, implicit_mask
from keras_attn.training.crossentropy import smoothed_crossentropy

_SMALLEST = 2.0**-126  # the smallest float32 that is not flushed to zero
_REDUCTIONS = ("mean_with_sample_weight", "sum")
# Rows that are looked at to tell probabilities from logits, how far from 1 the sum of a softmax in bfloat16 may
# be, and how many numbers in [0, 1] with such sums are no chance.
_ROWS_TO_CHECK = 16
_SUM_TOLERANCE = 4e-3
_FEWEST_TO_CHECK = 8
_ACTIVATIONS = ("Softmax", "Sigmoid")


@keras.saving.register_keras_serializable(package="keras_attn")
class LabelSmoothedCrossentropy(keras.losses.Loss):
    """Cross-entropy of integer labels with label smoothing, averaged over the tokens that are not padding.

    The target distribution of a token is `1 - label_smoothing` on its label plus `label_smoothing / V` on
    every one of the V tokens of the vocabulary; 0 gives plain cross-entropy. Keras smooths one-hot labels
    only, and divides by the number of positions, padded ones included. Here the value is the sum over real
    tokens divided by their number, so neither the loss nor the size of its gradient depends on how much
    padding a batch has, and NaN logits at padded positions affect neither. If there is no real token, the
    loss and its gradient are 0. An implicit Keras mask on the logits is also applied.

    The logits are what comes before a softmax. The output of a `Dense(V, activation="softmax")`, and any other rows of
    probabilities, are refused unless `from_logits=False` is given: a softmax of a softmax would train on wrong numbers
    without a word. Keras' losses take the logits from before the softmax, but only on some backends.

    The value is at least float32 whatever the dtype of the logits. By default it is the mean over one batch,
    so batches with different numbers of tokens have equal weight, for example with gradient accumulation (see
    `reduction`).

    Args:
        label_smoothing: Float in `[0, 1)`, the probability mass spread over the vocabulary. The default, 0, smooths nothing: it is
            plain cross-entropy. Vaswani et al. have 0.1.
        pad_token_id: Integer, the label that marks padding. It may lie outside the vocabulary.
        reduction: `"mean_with_sample_weight"`, or `"sum"` of the weighted values: with the weights from
            `keras_attn.data.TranslationBatches`, this is the mean over a whole update, for any number of
            batches and devices.
        name: String, the name of the loss.
        from_logits: Boolean, False if the model ends with a softmax. Logits are more exact: a probability under
            float32's smallest number counts as that number, and has no gradient.

    Call arguments:
        y_true: Labels, integers of shape `(B, T)`.
        y_pred: Logits, or probabilities with `from_logits=False`, floats of shape `(B, T, V)`.
        sample_weight: Optional weights of shape `(B,)` or `(B, T)`, multiplied into the tokens' weights;
            the result is then the weighted mean, or sum.

    Returns:
        Scalar float32 tensor (float64 under `keras.config.set_floatx("float64")`). A label outside the
        vocabulary that is not `pad_token_id` makes it NaN. So do probabilities in place of logits, and negative
        numbers in place of probabilities, in a compiled graph, where no error can be raised.

    Raises:
        ValueError: If an argument is out of range, the shapes do not fit, or `y_pred` holds probabilities in place
            of logits.

    Example:

    ```python
    loss = LabelSmoothedCrossentropy(label_smoothing=0.1)
    labels = [[4, 2, 0]]
    logits = keras.random.normal((1, 3, 7))
    value = loss(labels, logits)
    ```

    References: [Szegedy et al., 2016](https://arxiv.org/abs/1512.00567), section 7;
    [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 5.4.
    """

    def __init__(
        self,
        label_smoothing=0.0,
        pad_token_id=0,
        reduction="mean_with_sample_weight",
        name="label_smoothed_crossentropy",
        *,
        from_logits=True,
    ):
        if reduction not in _REDUCTIONS:
            raise ValueError(f"`reduction` must be one of {_REDUCTIONS}. Received: reduction={reduction!r}.")
        super().__init__(name=name, reduction=reduction, dtype=at_least_float32())
        self.label_smoothing = float(check_rate("label_smoothing", label_smoothing))
        self.pad_token_id = checked_token_id(pad_token_id)
        self.from_logits = bool(from_logits)

    def __call__(self, y_true, y_pred, sample_weight=None):
        # Padding has to be part of the weights before Keras reduces: it divides by the sum of the weights.
        labels, weights = labels_and_weights(y_true, y_pred, sample_weight, self.pad_token_id)
        # Before Keras casts: a cast tensor no longer tells which operation made it.
        return super().__call__(labels, logits_of(y_pred, self.from_logits), sample_weight=weights)

    def call(self, y_true, logits):
        return token_negative_log_likelihood(y_true, logits, self.pad_token_id, self.label_smoothing)

    def get_config(self):
        return {
            "label_smoothing": self.label_smoothing,
            "pad_token_id": self.pad_token_id,
            "reduction": self.reduction,
            "name": self.name,
            "from_logits": self.from_logits,
        }


def labels_and_weights(y_true, y_pred, sample_weight, pad_token_id):
    """The labels of the real tokens, and the weight of each token in a mean.

    Args:
        y_true: Labels, integers of shape `(B, T)`.
        y_pred: Logits of shape `(B, T, V)`; an implicit Keras mask on them is applied.
        sample_weight: None, or weights of shape `(B,)` or `(B, T)`.
        pad_token_id: Integer, the label that marks padding.

    Returns:
        The labels, int32 `(B, T)`, and the weights, floats `(B, T)`. The label of every token with weight 0
        is replaced by `pad_token_id`, so that its logits, which may be NaN, are never multiplied by 0.

    Raises:
        ValueError: If the shapes do not fit.
    """
    # Read from the argument itself: any tensor made from it has lost the mask.
    mask = implicit_mask(y_pred)
    labels = ops.cast(y_true, "int32")
    _check_shapes(labels, ops.convert_to_tensor(y_pred))
    is_token = ops.not_equal(labels, pad_token_id)
    if mask is not None:
        is_token = ops.logical_and(is_token, ops.cast(mask, "bool"))
    weights = ops.cast(is_token, at_least_float32())
    if sample_weight is not None:
        weights = ops.where(is_token, _token_sample_weight(sample_weight, labels), weights)
    labels = ops.where(ops.equal(weights, 0), pad_token_id, labels)
    return labels, weights


def token_negative_log_likelihood(labels, logits, pad_token_id=0, label_smoothing=0.0):
    """Cross-entropy of each token with its label-smoothed target, 0 at padding.

    Losses and metrics all call this function, so that on the same logits they share graph nodes, and the
    softmax is computed once.

    Args:
        labels: Integers of shape `(B, T)`.
        logits: Floats of shape `(B, T, V)`.
        pad_token_id: Integer, the label that marks padding.
        label_smoothing: Float in `[0, 1)`, the probability mass spread over the vocabulary.

    Returns:
        Floats of shape `(B, T)` in at least float32; NaN where a label is outside the vocabulary, and everywhere
        if `logits` are probabilities, where no error can be raised. The gradient is 0 wherever the incoming gradient is
        0, even for NaN logits. In a TensorFlow graph it goes past logits that are a product of rows and a transposed
        table, as those of `TokenEmbedding`, to these two: take that of `tf.identity(logits)` to have it by the logits.

    Raises:
        ValueError: If the shapes do not fit, or `logits` are the output of a softmax.

    Example:

    ```python
    logits = keras.random.normal((1, 3, 7))
    values = token_negative_log_likelihood([[4, 2, 0]], logits, label_smoothing=0.1)
    ```

    Reference: [Szegedy et al., 2016](https://arxiv.org/abs/1512.00567), section 7.
    """
    labels = ops.cast(labels, "int32")
    logits = ops.convert_to_tensor(logits_of(logits))
    _check_shapes(labels, logits)
    logits = ops.cast(logits, at_least_float32(logits.dtype))
    vocabulary_size = logits.shape[-1]
    flat_labels = ops.clip(ops.reshape(labels, (-1,)), 0, vocabulary_size - 1)
    flat_logits = ops.reshape(logits, (-1, vocabulary_size))  # (B*T, V)
    values = smoothed_crossentropy(flat_labels, flat_logits, label_smoothing)
    values = ops.reshape(values, ops.shape(labels))  # (B, T)
    in_vocabulary = ops.logical_and(ops.greater_equal(labels, 0), ops.less(labels, vocabulary_size))
    are_valid = ops.logical_and(in_vocabulary, ops.logical_not(_are_probabilities(flat_logits)))
    values = ops.where(are_valid, values, math.nan)
    return ops.where(ops.equal(labels, pad_token_id), 0.0, values)


def logits_of(y_pred, from_logits=True):
    """The logits in what a model gave: itself, or the logarithms of its probabilities.

    Args:
        y_pred: Floats of shape `(B, T, V)`.
        from_logits: Boolean, whether they are logits.

    Returns:
        Floats of shape `(B, T, V)`. Logarithms are at least float32, and NaN for negative numbers.

    Raises:
        ValueError: If logits are the output of a softmax or sigmoid, where the tensor tells.
    """
    if not from_logits:
        return _logarithms(ops.convert_to_tensor(y_pred))
    if comes_from_activation(y_pred) or getattr(getattr(y_pred, "op", None), "type", None) in _ACTIVATIONS:
        raise ValueError(_not_logits("the output of a softmax or sigmoid"))
    return y_pred


def _are_probabilities(logits):
    """Whether logits (rows, V) are all in [0, 1] and sum to 1 in each row, a boolean scalar; eagerly, never True.

    Raises:
        ValueError: If they are, eagerly.
    """
    rows = ops.stop_gradient(logits[:_ROWS_TO_CHECK])
    is_in_range = ops.logical_and(ops.greater_equal(rows, 0), ops.less_equal(rows, 1))
    is_one = ops.less(ops.abs(ops.sum(rows, axis=-1) - 1), _SUM_TOLERANCE)
    are_enough = ops.shape(rows)[0] * rows.shape[1] >= _FEWEST_TO_CHECK
    are_probabilities = ops.logical_and(ops.logical_and(ops.all(is_in_range), ops.all(is_one)), are_enough)
    if concrete_values(are_probabilities):
        raise ValueError(_not_logits("rows of numbers between 0 and 1 whose sums are 1"))
    return are_probabilities


def _not_logits(received):
    return (
        "`y_pred` must be logits, as before a softmax. Leave out the activation of the model's last layer, which is more "
        f"exact, or give `from_logits=False`. Received: y_pred={received}."
    )


def _logarithms(probabilities):
    probabilities = ops.cast(probabilities, at_least_float32(probabilities.dtype))
    # One logarithm of numbers that have one: NaN probabilities of padding would make its gradient NaN.
    is_positive = ops.greater_equal(probabilities, _SMALLEST)
    logarithms = ops.log(ops.where(is_positive, probabilities, 1.0))
    is_zero = ops.less(ops.abs(probabilities), _SMALLEST)
    return ops.where(is_positive, logarithms, ops.where(is_zero, math.log(_SMALLEST), math.nan))


def _token_sample_weight(sample_weight, labels):
    sample_weight = ops.cast(sample_weight, at_least_float32())
    is_per_sequence = len(sample_weight.shape) == 1 and len(labels.shape) == 2
    expected = labels.shape[:1] if is_per_sequence else labels.shape
    if not _may_be_equal(sample_weight.shape, expected):
        raise ValueError(
            "`sample_weight` must have the shape (B,) or (B, T) of the labels' shape (B, T). "
            f"Received: sample_weight.shape={tuple(sample_weight.shape)}, y_true.shape={tuple(labels.shape)}."
        )
    return sample_weight[:, None] if is_per_sequence else sample_weight


def _check_shapes(labels, logits):
    if logits.shape[-1:] == (None,) or not _may_be_equal(labels.shape, logits.shape[:-1]):
        raise ValueError(
            "Labels of shape (B, T) need logits of shape (B, T, V) with a known V. "
            f"Received: y_true.shape={tuple(labels.shape)}, y_pred.shape={tuple(logits.shape)}."
        )


def _may_be_equal(shape, other):
    return len(shape) == len(other) and all(
        a is None or b is None or a == b for a, b in zip(shape, other, strict=True)
    )


def at_least_float32(dtype=None):
    """The dtype of losses and metrics: `dtype`, by default `keras.config.floatx()`, but at least float32."""
    dtype = keras.config.floatx() if dtype is None else keras.backend.standardize_dtype(dtype)
    return keras.backend.result_type(dtype, "float32")


def checked_token_id(pad_token_id):
    """`pad_token_id` as an int, or a ValueError."""
    if isinstance(pad_token_id, bool) or not isinstance(pad_token_id, numbers.Integral):
        raise ValueError(f"`pad_token_id` must be an integer. Received: pad_token_id={pad_token_id!r}.")
    return int(pad_token_id)
