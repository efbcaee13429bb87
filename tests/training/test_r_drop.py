import keras
import numpy as np
import pytest
import tensorflow as tf
from test_losses import PAD, T, V, loss_by_hand, value_and_gradient

from keras_attn.data import each_row_twice
from keras_attn.models import Seq2SeqTransformer
from keras_attn.training import LabelSmoothedCrossentropy, RDropCrossentropy

B = 3


def make_batch(seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(1, V, (B, T))
    labels[0, 3:] = PAD
    labels[2, 1:] = PAD
    return np.repeat(labels, 2, axis=0), rng.normal(size=(2 * B, T, V)).astype("float32") * 3


def probabilities(logits):
    exponentials = np.exp(np.asarray(logits, "float64") - logits.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def divergence(of, from_):
    return np.sum(of * np.log(of / from_), axis=-1)


def papers_loss(labels, logits, alpha, label_smoothing):
    """Equation 3 of the paper, the mean over the real tokens of one copy, in float64."""
    first, second = probabilities(logits[::2]), probabilities(logits[1::2])
    both_ways = (divergence(first, second) + divergence(second, first)) / 2
    real = labels[::2] != PAD
    crossentropies = [loss_by_hand(labels[copy::2], logits[copy::2], label_smoothing) for copy in (0, 1)]
    return sum(crossentropies) + alpha * np.sum(both_ways * real) / np.sum(real)


@pytest.mark.parametrize(("alpha", "label_smoothing"), [(5.0, 0.1), (0.7, 0.0)])
def test_value_and_gradient_are_those_of_the_paper(alpha, label_smoothing):
    labels, logits = make_batch()
    loss = RDropCrossentropy(alpha, label_smoothing)
    value, gradient = value_and_gradient(lambda z: loss(labels, z), logits)
    assert value == pytest.approx(papers_loss(labels, logits, alpha, label_smoothing) / 2, rel=1e-6)
    for index in [(0, 0, 4), (1, 0, 4), (3, 4, labels[3, 4]), (4, 0, labels[4, 0]), (5, 0, 7)]:
        step = np.zeros(logits.shape)
        step[index] = 1e-5
        up, down = (papers_loss(labels, logits + sign * step, alpha, label_smoothing) for sign in (1, -1))
        assert gradient[index] == pytest.approx((up - down) / 4e-5, abs=1e-6)
    assert not gradient[labels == PAD].any()


def test_equal_copies_add_nothing():
    labels, logits = make_batch(1)
    logits = np.repeat(logits[::2], 2, axis=0)
    with_r_drop, without = (
        value_and_gradient(lambda z, loss=loss: loss(labels, z), logits)
        for loss in (RDropCrossentropy(5.0, 0.1), LabelSmoothedCrossentropy(0.1))
    )
    assert with_r_drop[0] == without[0]
    np.testing.assert_allclose(with_r_drop[1], without[1], atol=1e-7)


def test_alpha_0_is_the_crossentropy_of_all_rows():
    labels, logits = make_batch(2)
    expected = LabelSmoothedCrossentropy(0.1)(labels, logits)
    assert float(RDropCrossentropy(0.0, 0.1)(labels, logits)) == float(expected)


def test_nan_in_padding_reaches_neither_value_nor_gradient():
    labels, logits = make_batch(3)
    loss = RDropCrossentropy(5.0, 0.1)
    value, gradient = value_and_gradient(lambda z: loss(labels, z), logits)
    logits[labels == PAD] = np.nan
    with_nan, gradient_with_nan = value_and_gradient(lambda z: loss(labels, z), logits)
    assert with_nan == value
    np.testing.assert_array_equal(gradient_with_nan, gradient)


@pytest.mark.parametrize("gap", [60.0, 6e4])
def test_distributions_far_apart_stay_finite(gap):
    logits = np.zeros((2, 1, 3), "float32")
    logits[0, 0, 1], logits[1, 0, 2] = gap, gap
    value, gradient = value_and_gradient(lambda z: RDropCrossentropy(4.0)([[1], [1]], z), logits)
    # Each copy is sure of its own token: KL is the gap in both directions; the second copy's crossentropy is the gap too.
    assert value == pytest.approx(2 * gap + gap / 2, rel=1e-5)
    assert np.isfinite(gradient).all()


def test_weights_sum_to_the_mean_over_an_update():
    labels, logits = make_batch(4)
    weights = np.full(2 * B, 1 / np.sum(labels != PAD), "float32")
    loss = RDropCrossentropy(5.0, 0.1, reduction="sum")
    assert float(loss(labels, logits, sample_weight=weights)) == pytest.approx(
        papers_loss(labels, logits, 5.0, 0.1) / 2, rel=1e-6
    )


def test_each_row_comes_twice_with_half_of_its_weight():
    inputs = {"ids": np.arange(21).reshape(3, 7), "mask": np.arange(3) > 0}
    batches = each_row_twice(tf.data.Dataset.from_tensors((inputs, np.arange(3), [1.0, 2.0, 5.0])))
    [(x, y, weights)] = batches.as_numpy_iterator()
    np.testing.assert_array_equal(x["ids"], np.arange(21).reshape(3, 7)[[0, 0, 1, 1, 2, 2]])
    np.testing.assert_array_equal(x["mask"], [False, False, True, True, True, True])
    np.testing.assert_array_equal(y, [0, 0, 1, 1, 2, 2])
    np.testing.assert_array_equal(weights, [0.5, 0.5, 1.0, 1.0, 2.5, 2.5])


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_a_model_is_penalised_for_its_dropout_alone(dropout):
    model = Seq2SeqTransformer.from_sizes(
        13,
        num_encoder_layers=1,
        num_decoder_layers=1,
        hidden_dim=10,
        num_heads=2,
        intermediate_dim=11,
        dropout=dropout,
    )
    inputs = {
        "encoder_token_ids": np.array([[4, 5, 6, 3], [7, 3, 0, 0]]),
        "decoder_token_ids": np.array([[2, 8, 9], [2, 10, 0]]),
    }
    labels = np.array([[8, 9, 3], [10, 3, 0]])
    [(x, y)] = each_row_twice(tf.data.Dataset.from_tensors((inputs, labels)))
    keras.utils.set_random_seed(5)
    logits = model(x, training=True)
    added = float(RDropCrossentropy(5.0)(y, logits)) - float(LabelSmoothedCrossentropy()(y, logits))
    assert (abs(added) < 1e-6) if dropout == 0 else (added > 1e-3)


def test_a_saved_loss_is_the_same():
    loss = RDropCrossentropy(3.0, 0.2, -1, "sum", "mine")
    again = keras.losses.deserialize(keras.losses.serialize(loss))
    assert type(again) is RDropCrossentropy
    assert again.get_config() == loss.get_config()


@pytest.mark.parametrize("alpha", [-1.0, float("nan"), "5"])
def test_wrong_weights_are_named(alpha):
    with pytest.raises(ValueError, match=r"`alpha` must be a number, 0 or more\. Received: alpha="):
        RDropCrossentropy(alpha)


def test_rows_without_copies_are_named():
    with pytest.raises(ValueError, match=r"needs each row twice.*Received: y_pred.shape=\(3, 5, 11\)"):
        RDropCrossentropy()(np.ones((3, 5), int), np.zeros((3, 5, 11), "float32"))
