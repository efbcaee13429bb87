"""All of a training's state goes out and comes back, or an error says what does not fit."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_attn.training import (
    InverseSquareRootSchedule,
    NoamSchedule,
    PerUpdateSchedule,
    averaged_weights,
    restore_training_state,
    training_state,
)


def make_model(width=5, **options):
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [keras.Input((3,)), keras.layers.Dense(width), keras.layers.Dropout(0.5), keras.layers.Dense(2)]
    )
    model.compile(keras.optimizers.Adam(0.1, use_ema=True, ema_momentum=0.7, **options), "mse")
    return model


def fit(model, epochs):
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(23, 3)), rng.normal(size=(23, 2))
    model.fit(x, y, batch_size=7, epochs=epochs, shuffle=False, verbose=0)


def values(model):
    return [ops.convert_to_numpy(weight) for weight in model.weights]


@pytest.mark.extended
def test_training_goes_on_from_a_state_to_the_same_bits():
    whole = make_model()
    fit(whole, 2)
    state = training_state(whole)
    copied = {name: array.copy() for name, array in state.items()}
    # At its end `fit` gives weights and averages one JAX array, which a second `fit` cannot donate twice.
    restore_training_state(whole, state)
    fit(whole, 3)
    for name, array in state.items():  # training on has not changed what was taken
        np.testing.assert_array_equal(array, copied[name])
    resumed = make_model()
    keras.utils.set_random_seed(99)
    restore_training_state(resumed, state)
    fit(resumed, 3)
    for one, other in zip(values(whole), values(resumed)):
        np.testing.assert_array_equal(one, other)
    without_seeds = make_model()
    fresh = training_state(without_seeds)
    seeds = {name for name, array in state.items() if array.dtype.kind in "iu" and array.shape == (2,)}
    assert len(seeds) == 1
    restore_training_state(without_seeds, {name: (fresh if name in seeds else state)[name] for name in state})
    fit(without_seeds, 3)
    assert any((one != other).any() for one, other in zip(values(whole), values(without_seeds)))


def test_a_state_that_does_not_fit_changes_nothing():
    model = make_model()
    fit(model, 1)
    before = values(model)
    state = training_state(model)
    name = next(iter(state))
    with pytest.raises(ValueError, match=r"holds model/0000 with shape \(2,\)"):
        restore_training_state(model, {**state, name: np.zeros(2)})
    with pytest.raises(ValueError, match=r"Missing: model/0000\. Not in the model: other"):
        restore_training_state(
            model, {"other" if key == name else key: array for key, array in state.items()}
        )
    with pytest.raises(ValueError, match="not that of this model and optimizer"):
        restore_training_state(make_model(gradient_accumulation_steps=2), state)
    for one, other in zip(values(model), before):
        np.testing.assert_array_equal(one, other)


@pytest.mark.extended
def test_the_moving_average_is_in_use_within_the_block_alone():
    model = make_model()
    fit(model, 2)  # `fit` leaves the averages in the weights at its end
    raw = [value + 0.1 for value in values(model)]
    model.set_weights(raw)
    with averaged_weights(model):
        averages = values(model)
    assert all((one != other).any() for one, other in zip(averages, raw))
    for one, other in zip(values(model), raw):
        np.testing.assert_array_equal(one, other)

    def fail_inside():
        with averaged_weights(model):
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_inside()
    for one, other in zip(values(model), raw):
        np.testing.assert_array_equal(one, other)


def test_without_moving_averages_the_block_changes_nothing():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile("adam", "mse")
    before = values(model)
    with averaged_weights(model):
        for one, other in zip(values(model), before):
            np.testing.assert_array_equal(one, other)


def test_a_schedule_per_update_has_one_rate_for_all_batches_of_an_update():
    schedule = InverseSquareRootSchedule(0.01, 5)
    accumulated = PerUpdateSchedule(schedule, 3)
    for step in range(40):
        assert float(accumulated(step)) == float(schedule(step // 3))
    loaded = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(accumulated))
    assert float(loaded(17)) == float(accumulated(17))
    with pytest.raises(ValueError, match="`gradient_accumulation_steps` must be a positive integer"):
        PerUpdateSchedule(NoamSchedule(8), 0)


def two_alike(frozen=None):
    """Two layers whose weights have equal shapes; one of them may be frozen before the model is compiled."""
    keras.utils.set_random_seed(5)
    model = keras.Sequential(
        [keras.Input((3,)), keras.layers.Dense(3, name="d0"), keras.layers.Dense(3, name="d1")]
    )
    if frozen is not None:
        model.get_layer(frozen).trainable = False
    model.compile(keras.optimizers.Adam(0.1, use_ema=True, ema_momentum=0.5), "mse")
    return model


@pytest.mark.parametrize("frozen", ["d0", "d1"])
def test_each_weight_has_its_own_average_after_a_layer_was_frozen(frozen):
    model = two_alike()
    x = np.random.default_rng(6).normal(size=(7, 3))
    averages = None
    for _ in range(3):
        model.train_on_batch(x, x[:, ::-1])
        now = values(model)
        averages = now if averages is None else [0.5 * a + 0.5 * b for a, b in zip(averages, now)]
    model.get_layer(frozen).trainable = False
    with averaged_weights(model):
        for one, other in zip(values(model), averages, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6)
    for one, other in zip(values(model), now, strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_state_of_an_optimizer_of_other_weights_is_refused():
    state = training_state(two_alike("d0"))
    restore_training_state(two_alike("d0"), state)
    with pytest.raises(ValueError, match="optimizer of other weights: freeze and thaw the same layers"):
        restore_training_state(two_alike("d1"), state)
