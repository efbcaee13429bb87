import math

import keras
import numpy as np
import pytest

from keras_attn.training import (
    InverseSquareRootSchedule,
    NoamSchedule,
    WarmupCosineSchedule,
    WarmupLinearSchedule,
)


def noam(update, hidden_dim, warmup_steps):
    return hidden_dim**-0.5 * min(update**-0.5, update * warmup_steps**-1.5)


def inverse_square_root(update, learning_rate, warmup_steps, initial):
    if update < warmup_steps:
        return initial + (learning_rate - initial) * update / warmup_steps
    return learning_rate * math.sqrt(warmup_steps / update)


def fall(update, share):
    """0.3 at update 7, 0.01 from update 29 on, `share` of the way left in between."""
    if update < 7:
        return 0.3 * update / 7
    return 0.01 + (0.3 - 0.01) * share(min((update - 7) / 22, 1.0))


CASES = {
    "noam": (NoamSchedule(17, 7), lambda update: noam(update, 17, 7)),
    "inverse_square_root": (
        InverseSquareRootSchedule(0.3, 7, 0.01),
        lambda update: inverse_square_root(update, 0.3, 7, 0.01),
    ),
    "cosine": (
        WarmupCosineSchedule(0.3, 7, 29, 0.01),
        lambda update: fall(update, lambda progress: math.cos(math.pi * progress / 2) ** 2),
    ),
    "linear": (
        WarmupLinearSchedule(0.3, 7, 29, 0.01),
        lambda update: fall(update, lambda progress: 1 - progress),
    ),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("step", [0, 1, 5, 6, 7, 69, 10**6, 2**31 - 1, 10**12])
def test_rate_of_update_follows_the_formula(case, step):
    schedule, expected = CASES[case]
    np.testing.assert_allclose(float(schedule(step)), expected(step + 1), rtol=1e-6)


def test_noam_by_hand():
    schedule = NoamSchedule(hidden_dim=4, warmup_steps=4)
    # 1/2 * 1/8, then the peak 1/2 * 1/2 at update 4, then 1/2 * 1/8 at update 64.
    assert float(schedule(0)) == pytest.approx(1 / 16)
    assert float(schedule(3)) == pytest.approx(1 / 4)
    assert float(schedule(63)) == pytest.approx(1 / 16)


def test_inverse_square_root_by_hand():
    schedule = InverseSquareRootSchedule(0.8, warmup_steps=4, initial_learning_rate=0.4)
    assert float(schedule(0)) == pytest.approx(0.5)
    assert float(schedule(3)) == pytest.approx(0.8)
    assert float(schedule(15)) == pytest.approx(0.4)


@pytest.mark.parametrize("kind", [WarmupCosineSchedule, WarmupLinearSchedule])
def test_falls_by_hand(kind):
    schedule = kind(0.8, warmup_steps=4, total_steps=12, final_learning_rate=0.2)
    assert float(schedule(1)) == pytest.approx(0.4)
    assert float(schedule(3)) == pytest.approx(0.8)
    assert float(schedule(7)) == pytest.approx(0.5)  # half way, half way down
    assert float(schedule(11)) == pytest.approx(0.2)
    assert float(kind(0.8, 4, 12)(11)) == pytest.approx(0.0, abs=1e-7)


@pytest.mark.parametrize("kind", [WarmupCosineSchedule, WarmupLinearSchedule])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"learning_rate": -1.0}, "`learning_rate` must be a positive finite number"),
        ({"warmup_steps": 0}, "`warmup_steps` must be a positive integer"),
        ({"total_steps": 2.5}, "`total_steps` must be a positive integer"),
        ({"total_steps": 4}, "`total_steps` must be greater than `warmup_steps`"),
        (
            {"final_learning_rate": 0.2},
            "`final_learning_rate` must be a number between 0 and `learning_rate`",
        ),
    ],
)
def test_falls_refuse_bad_arguments(kind, arguments, message):
    with pytest.raises(ValueError, match=message):
        kind(**{"learning_rate": 0.1, "warmup_steps": 4, "total_steps": 12, **arguments})


@pytest.mark.parametrize("case", CASES)
def test_peak_falls_on_update_warmup_steps(case):
    schedule, _ = CASES[case]
    rates = [float(schedule(step)) for step in range(23)]
    assert int(np.argmax(rates)) == 7 - 1
    assert np.all(np.diff(rates[:7]) > 0)
    assert np.all(np.diff(rates[6:]) < 0)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", ["int32", "int64", "float16", "bfloat16", "float32"])
def test_rate_is_float32_whatever_the_dtype_of_step(case, dtype):
    schedule, expected = CASES[case]
    if dtype == "int64" and keras.backend.backend() == "jax":
        pytest.skip("JAX has no int64 unless it is switched on.")
    # 4,095 is no bfloat16 number, and 2,049 no float16 number: the step is one that all dtypes hold.
    rate = schedule(keras.ops.convert_to_tensor(2048, dtype=dtype))
    assert keras.backend.standardize_dtype(rate.dtype) == "float32"
    np.testing.assert_allclose(float(rate), expected(2049), rtol=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_config_round_trip(case):
    schedule, expected = CASES[case]
    copy = type(schedule).from_config(schedule.get_config())
    assert copy.get_config() == schedule.get_config()
    assert float(copy(11)) == pytest.approx(expected(12))


@pytest.mark.parametrize("case", CASES)
def test_optimizer_config_round_trip(case):
    schedule, _ = CASES[case]
    optimizer = keras.optimizers.Adam(schedule)
    copy = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert float(copy.learning_rate) == float(schedule(0))


class WeightRecorder(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.weights = []

    def on_train_begin(self, logs=None):
        self.weights.append(float(self.model.get_weights()[0].item()))

    def on_epoch_end(self, epoch, logs=None):
        self.on_train_begin()


def model_with_gradient_one(schedule):
    """A model whose only weight falls by exactly the learning rate in each update."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    model.compile(keras.optimizers.SGD(schedule), loss=lambda y_true, y_pred: keras.ops.mean(y_pred, axis=-1))
    return model


def rates_of_updates(model, updates):
    recorder = WeightRecorder()
    x = np.ones((1, 1), "float32")
    model.fit(x, x, batch_size=1, epochs=updates, verbose=0, callbacks=[recorder])
    return -np.diff(recorder.weights)


@pytest.mark.parametrize("case", ["noam", "cosine"])
def test_updates_in_fit_have_the_rates_of_the_formula(case):
    schedule, expected = CASES[case]
    rates = rates_of_updates(model_with_gradient_one(schedule), updates=13)
    # The rates of neighbouring updates differ by at least 3 %.
    np.testing.assert_allclose(rates, [expected(update) for update in range(1, 14)], rtol=1e-3)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("case", CASES)
def test_saved_compiled_model_goes_on_at_the_right_update(case, tmp_path):
    schedule, expected = CASES[case]
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    model.compile(keras.optimizers.SGD(schedule), "mean_squared_error", run_eagerly=True)
    x = np.ones((3, 1), "float32")
    model.fit(x, x, batch_size=1, verbose=0)
    model.save(tmp_path / "model.keras")
    optimizer = keras.models.load_model(tmp_path / "model.keras").optimizer
    assert int(optimizer.iterations) == 3
    assert float(optimizer.learning_rate) == pytest.approx(expected(4))


@pytest.mark.parametrize("value", [0, -3, 2.5, "7", None, True])
def test_noam_refuses_what_is_not_a_positive_integer(value):
    with pytest.raises(ValueError, match=r"`hidden_dim` must be a positive integer\. Received: hidden_dim="):
        NoamSchedule(value)
    with pytest.raises(ValueError, match=r"`warmup_steps` must be a positive integer\. Received"):
        NoamSchedule(17, value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"learning_rate": 0.0},
            "`learning_rate` must be a positive finite number. Received: learning_rate=0.0",
        ),
        ({"learning_rate": math.inf}, "`learning_rate` must be a positive finite number"),
        ({"learning_rate": math.nan}, "`learning_rate` must be a positive finite number"),
        ({"learning_rate": "fast"}, "`learning_rate` must be a positive finite number"),
        ({"learning_rate": 0.1, "warmup_steps": 0}, "`warmup_steps` must be a positive integer"),
        ({"learning_rate": 0.1, "initial_learning_rate": 0.2}, "between 0 and `learning_rate`"),
        ({"learning_rate": 0.1, "initial_learning_rate": -0.1}, "between 0 and `learning_rate`"),
    ],
)
def test_inverse_square_root_refuses_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        InverseSquareRootSchedule(**arguments)
