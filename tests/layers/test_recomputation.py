"""A block that recomputes its activations in the gradient trains to the weights of one that keeps them."""

import types

import keras
import numpy as np
import pytest
from helpers_layers import BACKEND, assert_equal, function_gradients
from keras import ops

from keras_attn.layers import DecoderBlock, EncoderBlock, MultiHeadAttention

pytestmark = pytest.mark.extended

B, T, S, D = 6, 5, 7, 12
MODES = {
    "tensorflow": ({"jit_compile": False}, {"jit_compile": True}),
    "jax": ({"run_eagerly": True}, {}),
    "torch": ({},),
}[BACKEND]


class Normed(keras.layers.Layer):
    """A mixing layer with a state that training changes; counts its calls."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.norm = keras.layers.BatchNormalization(momentum=0.5)
        self.drop = keras.layers.Dropout(0.25)
        self.count = types.SimpleNamespace(calls=0)

    def build(self, input_shape):
        self.norm.build(input_shape)

    def call(self, inputs):
        # `training` comes from the layers around it.
        self.count.calls += 1
        return self.drop(self.norm(inputs))


def make_model(remat, dtype="float32"):
    """Every drop there is, a block that is called twice, a state that changes and a loss from within."""
    drops = {"dropout": 0.3, "stochastic_depth": 0.25, "remat": remat, "dtype": dtype}
    source, target = keras.Input((None, D)), keras.Input((None, D))
    source_mask = keras.Input((None,), dtype="bool")
    # A gradient of its own within the block's, and a dtype of its own: under a half-precision block its weights must
    # not be rounded.
    options = {"dropout": 0.25, "activity_regularizer": "l2", "dtype": "float32"}
    wide = MultiHeadAttention(3, 5, memory_efficient=True, **options)
    encoder = EncoderBlock(17, self_attention=wide, normalize_first=True, **drops)
    x = encoder(encoder(source, padding_mask=source_mask), padding_mask=source_mask)
    x = EncoderBlock(17, self_attention=Normed(), **drops)(x)
    decoder = DecoderBlock(17, 3, attention_dropout=0.25, **drops)
    y = decoder(target, x, encoder_padding_mask=source_mask)
    y = DecoderBlock(17, 2, normalize_first=True, parallel=True, attention_dropout=0.25, **drops)(y)
    return keras.Model([source, target, source_mask], y)


def make_data():
    rng = np.random.default_rng(3)
    mask = rng.random((B, S)) < 0.7
    inputs = [rng.normal(size=(B, S, D)), rng.normal(size=(B, T, D))]
    labels = rng.normal(size=(B, T, D)).astype("float32")
    return [*(x.astype("float32") for x in inputs), mask], labels


def train(remat, mode, dtype="float32"):
    """Losses, and every variable, seeds and moving statistics included."""
    keras.utils.set_random_seed(7)
    model = make_model(remat, dtype)
    model.compile(keras.optimizers.SGD(0.05), "mse", **mode)
    history = model.fit(*make_data(), batch_size=3, epochs=2, shuffle=False, verbose=0)
    return np.array(history.history["loss"]), [ops.convert_to_numpy(v.value) for v in model.variables]


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_losses_weights_seeds_and_statistics_are_the_same(mode):
    kept, recomputed = train(False, mode), train(True, mode)
    np.testing.assert_allclose(recomputed[0], kept[0], rtol=1e-6)
    assert len(kept[1]) == len(recomputed[1])
    for expected, actual in zip(kept[1], recomputed[1]):
        if expected.dtype.kind == "f":
            assert_equal([actual], [expected])
        else:
            np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("remat", [False, True])
def test_the_block_runs_once_more_for_the_gradient(remat):
    mixing = Normed()
    block = EncoderBlock(17, self_attention=mixing, remat=remat)
    x = np.random.default_rng(5).normal(size=(B, T, D)).astype("float32")
    block(x)
    before = mixing.count.calls
    gradient = function_gradients(lambda given: block(given["x"], training=True) ** 2, {"x": x})["x"]
    assert np.isfinite(gradient).all()
    if BACKEND == "jax":  # which traces once, and replays what it traced
        import jax

        program = str(jax.make_jaxpr(lambda x: block(x))(x))
        assert ("checkpoint" in program or "remat" in program) == remat
    else:
        assert mixing.count.calls - before == (2 if remat else 1)


def test_each_training_call_draws_anew():
    block = EncoderBlock(17, 3, dropout=0.5, remat=True)
    x = np.ones((B, T, D), "float32")
    one, two = (ops.convert_to_numpy(block(x, training=True)) for _ in range(2))
    assert not np.allclose(one, two, atol=1e-3)
    np.testing.assert_array_equal(ops.convert_to_numpy(block(x)), ops.convert_to_numpy(block(x)))


def test_a_loss_added_within_counts_once():
    totals = []
    for remat in (False, True):
        keras.utils.set_random_seed(3)
        block = EncoderBlock(
            17, self_attention=MultiHeadAttention(3, 5, activity_regularizer="l2"), remat=remat
        )
        block(np.ones((B, T, D), "float32"))
        assert len(block.losses) == 4
        totals.append(float(ops.convert_to_numpy(sum(block.losses))))
    assert totals[1] == pytest.approx(totals[0], rel=1e-6)
    assert totals[0] > 0.1
