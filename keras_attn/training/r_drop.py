"""R-Drop: two passes with other dropout masks are drawn towards one distribution."""

import keras
from keras import ops

from keras_attn.checks import check_not_negative
from keras_attn.training.losses import LabelSmoothedCrossentropy, at_least_float32


@keras.saving.register_keras_serializable(package="keras_attn")
class RDropCrossentropy(LabelSmoothedCrossentropy):
    """Label-smoothed cross-entropy, and how far two passes of the same row are from each other.

    Dropout makes another model of each pass. Here each row comes twice in a batch, one copy after the other, as
    `keras_attn.data.each_row_twice` arranges it, so that one call of the model makes both passes. To the cross-entropy of
    a token the loss adds `alpha / 4 * (KL(P, Q) + KL(Q, P))` for the distributions P and Q of its two copies. The mean
    over both copies is half of the paper's loss, which is their sum.

    A batch costs twice the time, and the model overfits later: where data are few, give it as many epochs as without.
    Without dropout the two passes are equal, and nothing is added.

    Args:
        alpha: Float, 0 or more, the weight of the divergence: 5 in the paper for translation, 1 for larger models.
        label_smoothing, pad_token_id, reduction: As in `LabelSmoothedCrossentropy`.
        name: String, the name of the loss.

    Call arguments:
        y_true: Labels, integers of shape `(2 * B, T)`; rows 2 i and 2 i + 1 are copies.
        y_pred: Logits, floats of shape `(2 * B, T, V)`.
        sample_weight: As in `LabelSmoothedCrossentropy`; equal for both copies of a row.

    Returns:
        Scalar tensor, as of `LabelSmoothedCrossentropy`.

    Raises:
        ValueError: If an argument is out of range, or the shapes do not fit, or the number of rows is known to be odd.

    Example:

    ```python
    loss = RDropCrossentropy(alpha=5.0, label_smoothing=0.1)
    labels = [[4, 2, 0], [4, 2, 0]]
    logits = keras.random.normal((2, 3, 7))
    value = loss(labels, logits)
    ```

    Reference: [Liang et al., 2021](https://arxiv.org/abs/2106.14448), equations 1 to 3.
    """

    def __init__(
        self,
        alpha=5.0,
        label_smoothing=0.0,
        pad_token_id=0,
        reduction="mean_with_sample_weight",
        name="r_drop_crossentropy",
    ):
        super().__init__(label_smoothing, pad_token_id, reduction, name)
        self.alpha = float(check_not_negative("alpha", alpha))

    def call(self, y_true, y_pred):
        divergence = token_divergence(y_true, y_pred, self.pad_token_id)
        return super().call(y_true, y_pred) + self.alpha / 4 * divergence

    def get_config(self):
        return {"alpha": self.alpha, **super().get_config()}


def token_divergence(labels, logits, pad_token_id=0):
    """KL(P, Q) + KL(Q, P) of each token, for the distributions P and Q of the two copies of its row; 0 at padding.

    Args:
        labels: Integers of shape `(2 * B, T)`.
        logits: Floats of shape `(2 * B, T, V)`; rows 2 i and 2 i + 1 are copies.
        pad_token_id: Integer, the label that marks padding.

    Returns:
        Floats of shape `(2 * B, T)` in at least float32, equal for both copies. The gradient with respect to the logits is
        0 wherever the incoming gradients of both copies are 0, even for NaN logits.

    Raises:
        ValueError: If the number of rows is known to be odd.
    """
    logits = ops.convert_to_tensor(logits)
    if logits.shape[0] is not None and logits.shape[0] % 2:
        raise ValueError(
            "R-Drop needs each row twice, one copy after the other (`keras_attn.data.each_row_twice`). "
            f"Received: y_pred.shape={tuple(logits.shape)}."
        )
    logits = ops.cast(logits, at_least_float32(logits.dtype))
    length, vocabulary_size = ops.shape(logits)[1], logits.shape[-1]
    flat_logits = ops.reshape(logits, (-1, vocabulary_size))  # as in the cross-entropy, to share its softmax
    values = _symmetric_divergence(flat_logits, (-1, 2, length, vocabulary_size))  # (B, T)
    values = ops.reshape(ops.repeat(ops.expand_dims(values, 1), 2, axis=1), ops.shape(labels))
    return ops.where(ops.equal(ops.cast(labels, "int32"), pad_token_id), 0.0, values)


def _symmetric_divergence(flat_logits, shape):
    # Both divergences together are sum((p - q) * (a - b)) for logits a and b: their normalizers cancel. Written by hand for
    # the same reasons as the gradient of the cross-entropy.
    @ops.custom_gradient
    def divergence(flat_logits):
        copies = ops.reshape(flat_logits, shape)
        first, second = (ops.reshape(ops.softmax(flat_logits, axis=-1), shape)[:, copy] for copy in (0, 1))
        gap = copies[:, 0] - copies[:, 1]  # (B, T, V)
        means = [ops.einsum("btv,btv->bt", one, gap) for one in (first, second)]

        def gradient(*args, upstream=None):
            upstream = args[-1] if upstream is None else upstream
            # Division by the reciprocal turns NaN * 0 into 0 in a single pass.
            divisor = ops.expand_dims(ops.divide_no_nan(1.0, upstream), -1)
            of_first = first * (gap + ops.expand_dims(1 - means[0], -1)) - second
            of_second = second * (ops.expand_dims(1 + means[1], -1) - gap) - first
            both = [ops.divide_no_nan(one, divisor) for one in (of_first, of_second)]
            return ops.reshape(ops.stack(both, axis=1), ops.shape(flat_logits))

        return means[0] - means[1], gradient

    return divergence(flat_logits)
