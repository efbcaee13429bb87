"""Saved states: taken between two steps, written behind the next ones, and the last ones kept, whatever happens to the disk."""

import os
import time

import keras
import numpy as np
import pytest

from keras_attn.models import write_weights
from keras_attn.runs.run_folder import SavedStates, state_snapshots
from keras_attn.training import restore_training_state, training_state

ARRAYS = {"a": np.arange(7.0), "count": np.int64(3)}


def save(states, *updates):
    for update in updates:
        arrays = {**ARRAYS, "update": np.int64(update)}
        states.save(update, lambda arrays=arrays: arrays, {"update": update, "best": -np.inf})
    states.wait()


def test_the_last_states_are_kept(tmp_path):
    log = []
    states = SavedStates(tmp_path / "run", num_kept=2, log=log.append)
    assert states.load() is None
    save(states, 5, 10, 15)
    assert sorted(os.listdir(tmp_path / "run")) == [
        "state-00000010.safetensors",
        "state-00000015.safetensors",
    ]
    arrays, progress = states.load()
    assert progress == {"update": 15, "best": -np.inf}
    np.testing.assert_array_equal(arrays["a"], ARRAYS["a"])
    assert log[-2:] == ["saving state-00000015.safetensors", "saved state-00000015.safetensors"]


def test_what_a_killed_process_left_is_removed_and_a_damaged_state_passed_over(tmp_path):
    log = []
    states = SavedStates(tmp_path, log=log.append)
    save(states, 5, 10)
    (tmp_path / ".unfinished-77-0-state-00000015.safetensors").write_bytes(b"half")
    os.truncate(tmp_path / "state-00000010.safetensors", 100)
    _, progress = states.load()
    assert progress["update"] == 5
    assert "state-00000010.safetensors cannot be used: " in log[-1]
    assert not list(tmp_path.glob(".*"))
    os.truncate(tmp_path / "state-00000005.safetensors", 0)
    with pytest.raises(ValueError, match=r"None of the 2 states .* can be read"):
        states.load()


def test_the_newest_state_is_known_only_when_it_is_written(tmp_path, monkeypatch):
    def write_slowly(arrays, path, metadata=None):
        time.sleep(0.3)
        write_weights(arrays, path, metadata=metadata)

    monkeypatch.setattr("keras_attn.runs.run_folder.write_weights", write_slowly)
    states = SavedStates(tmp_path)
    states.save(5, ARRAYS.copy, {})
    assert states.newest() == tmp_path / "state-00000005.safetensors"
    states.wait()


def test_a_full_disk_is_an_error_that_names_the_last_state(tmp_path, monkeypatch):
    states = SavedStates(tmp_path)
    save(states, 5)

    def full_disk(arrays, path, metadata=None):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("safetensors.numpy.save_file", full_disk)
        with pytest.raises(OSError, match=r"state-00000010.*No space left.*last state is .*state-00000005"):
            save(states, 10)
    assert os.listdir(tmp_path) == ["state-00000005.safetensors"]
    save(states, 15)
    assert states.load()[1]["update"] == 15


def test_an_error_is_not_lost_when_the_next_state_is_saved(tmp_path):
    (tmp_path / "file").write_text("no folder")
    states = SavedStates(tmp_path / "file")
    states.save(5, ARRAYS.copy, {})
    with pytest.raises(OSError, match=r"could not be written: .*The last state is none"):
        states.save(10, ARRAYS.copy, {})


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
