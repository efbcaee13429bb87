"""Dropout: which inputs are dropped, how the others are scaled, and that the gradient drops the same."""

import keras
import numpy as np
import pytest
from helpers_layers import function_gradients
from keras import ops

from keras_attn.layers.dropout import Dropout

SHAPE = (3, 5, 7)  # an odd number of inputs: random bytes are drawn in fours


@pytest.mark.parametrize("rate", [25.5 / 256, 0.5, 0.93, 0.999])
def test_a_share_is_dropped_and_the_mean_stays(rate):
    x = np.ones((1009, 997), "float32")
    y = ops.convert_to_numpy(Dropout(rate, seed=1)(x, training=True))
    kept = y[y != 0]
    np.testing.assert_allclose(kept, 1 / (1 - rate), rtol=2e-4)  # the rate is a multiple of 2^-16
    assert (y == 0).mean() == pytest.approx(rate, abs=4 * np.sqrt(rate * (1 - rate) / x.size))
    # Neighbours share a random number of 32 bits, but nothing of it; and those of a column a threshold.
    flat = (y.ravel()[:-1] == 0).reshape(-1, 2)
    assert (flat[:, 0] & flat[:, 1]).mean() == pytest.approx(rate**2, abs=4 / np.sqrt(len(flat)))
    of_columns = (y == 0).mean(axis=0)
    np.testing.assert_allclose(of_columns, rate, atol=1 / 256 + 5 * np.sqrt(rate * (1 - rate) / len(y)))


def test_each_call_drops_others_and_a_seed_the_same():
    x = np.ones(SHAPE, "float32")
    one, same = Dropout(0.4, seed=5), Dropout(0.4, seed=5)
    first, second = one(x, training=True), one(x, training=True)
    assert ops.any(first != second)
    np.testing.assert_array_equal(first, same(x, training=True))
    np.testing.assert_array_equal(second, same(x, training=True))


def test_outside_training_and_at_rate_0_nothing_happens(rng):
    x = rng.normal(size=SHAPE).astype("float32")
    np.testing.assert_array_equal(Dropout(0.4)(x), x)
    np.testing.assert_array_equal(Dropout(0.0)(x, training=True), x)


def test_a_dropped_nan_is_gone():
    y = ops.convert_to_numpy(Dropout(0.5, seed=2)(np.full(SHAPE, np.nan, "float32"), training=True))
    assert set(np.unique(np.isnan(y))) == {False, True}
    assert (y[~np.isnan(y)] == 0).all()


def test_the_gradient_drops_the_same(rng):
    x = rng.normal(size=SHAPE).astype("float32")
    y = ops.convert_to_numpy(Dropout(0.3, seed=4)(x, training=True))
    gradient = function_gradients(lambda x: Dropout(0.3, seed=4)(x["x"], training=True), {"x": x})["x"]
    np.testing.assert_allclose(gradient, y / x, rtol=1e-5)


def test_half_precision_and_configuration():
    layer = Dropout(0.25, dtype="mixed_bfloat16")
    y = layer(ops.ones(SHAPE, "bfloat16"), training=True)
    assert keras.backend.standardize_dtype(y.dtype) == "bfloat16"
    again = Dropout.from_config(layer.get_config())
    assert (again.rate, again.dtype_policy.name) == (0.25, "mixed_bfloat16")


def test_a_batch_of_unknown_size():
    inputs = keras.Input((5, 8))
    model = keras.Model(inputs, keras.layers.Dense(8)(Dropout(0.5)(inputs)))
    model.compile("sgd", "mse")
    history = model.fit(np.ones((7, 5, 8)), np.zeros((7, 5, 8)), batch_size=3, verbose=0).history
    assert np.isfinite(history["loss"]).all()
