"""A snapshot is of the moment when it was taken, whenever it is looked at."""

import keras
import numpy as np
import pytest

from keras_attn.runs.snapshots import state_snapshots
from keras_attn.training import restore_training_state, training_state


@pytest.mark.parametrize("options", [{}, {"gradient_accumulation_steps": 2}], ids=["adam", "accumulated"])
def test_a_snapshot_is_the_state_when_it_was_taken(options, rng):
    model = keras.Sequential(
        [keras.Input((3,)), keras.layers.Dense(5), keras.layers.Dropout(0.5), keras.layers.Dense(2)]
    )
    model.compile(keras.optimizers.Adam(0.1, use_ema=True, ema_momentum=0.7, **options), "mse")
    x, y = rng.normal(size=(23, 3)), rng.normal(size=(23, 2))
    take = state_snapshots(model)
    states, snapshots = [], []
    for _ in range(3):
        states.append(training_state(model))
        snapshots.append(take())
        model.fit(x, y, batch_size=7, verbose=0)
        # At its end `fit` gives weights and averages one JAX array, which a second `fit` cannot donate twice.
        restore_training_state(model, training_state(model))
    for state, snapshot in zip(states, snapshots):
        taken = snapshot()
        assert taken.keys() == state.keys()
        for name, array in state.items():
            assert taken[name].dtype == array.dtype
            np.testing.assert_array_equal(taken[name], array)
    assert any((states[0][name] != states[2][name]).any() for name in states[0])
