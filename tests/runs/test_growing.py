"""Several processes and several devices learn what one does; what JAX has learned, TensorFlow serves."""

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys

import keras
import numpy as np
import pytest

import keras_attn
from keras_attn import runs
from keras_attn.models import read_weights

pytestmark = [
    pytest.mark.extended,
    pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="starts both backends itself"),
]
CHILD = pathlib.Path(__file__).with_name("train_together.py")
# What is run a few times: to optimize it takes longer than it saves.
QUICK_TO_COMPILE = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
# Of what depends on how the rows are cut: the pads, the clock, and Keras' own mean of the loss over rows.
OF_THE_CUT = {"tokens_per_second", "padding", "loss"}


def start(folder, how, *rest, backend="jax"):
    environment = {**os.environ, "KERAS_BACKEND": backend, "XLA_FLAGS": QUICK_TO_COMPILE}
    return subprocess.Popen(
        [sys.executable, str(CHILD), str(folder), how, *map(str, rest)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(*processes, timeout=400):
    answers = [process.communicate(timeout=timeout) for process in processes]
    for process, (_, errors) in zip(processes, answers):
        assert process.returncode == 0, errors
    return [printed.split()[-1] for printed, _ in answers]


def free_port():
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return listener.getsockname()[1]


def assert_same_run(folder, other, tolerance=1e-5):
    for name in ("best", "epoch-001", "epoch-002"):
        one, two = (read_weights(path / "checkpoints" / f"{name}.safetensors") for path in (folder, other))
        assert one.keys() == two.keys()
        for key, array in one.items():
            np.testing.assert_allclose(two[key], array, rtol=0, atol=tolerance, err_msg=f"{name}: {key}")
    rows, others = (read_history(path) for path in (folder, other))
    assert len(rows) == len(others) == 2
    for row, of_other in zip(rows, others):
        assert row == pytest.approx(of_other, rel=1e-4)


def read_history(folder):
    lines = [line.split(",") for line in (folder / "history.csv").read_text().splitlines()]
    return [
        {name: float(value) for name, value in zip(lines[0], line) if name not in OF_THE_CUT}
        for line in lines[1:]
    ]


@pytest.fixture(scope="module")
def jax_run(tmp_path_factory):
    pytest.importorskip("jax", reason='needs JAX: pip install "keras_attn[peers]"')
    folder = tmp_path_factory.mktemp("growing") / "one"
    finish(start(folder, "one"))
    return folder


def test_two_processes_train_as_one(jax_run, tmp_path):
    port = free_port()
    finish(*(start(tmp_path / "two", "two", port, number) for number in range(2)))
    assert_same_run(jax_run, tmp_path / "two")
    log = (tmp_path / "two" / "log.txt").read_text()
    assert log.count("Epoch 1/2") == 1  # one process validates, and writes


@pytest.mark.slow
def test_two_devices_of_a_process_train_as_one(jax_run, tmp_path):
    assert finish(start(tmp_path / "devices", "devices")) == ["whole"]
    assert_same_run(jax_run, tmp_path / "devices")


@pytest.mark.slow
def test_weights_divided_among_devices_train_as_whole_ones(jax_run, tmp_path):
    assert finish(start(tmp_path / "parallel", "model_parallel")) == ["sharded"]
    assert_same_run(jax_run, tmp_path / "parallel")


def test_what_jax_has_learned_tensorflow_loads_and_exports(jax_run, tmp_path):
    translator = keras_attn.Translator.load(jax_run / "translator")
    record = json.loads((jax_run / "run.json").read_text())
    validation = runs.open_splits(runs.Recipe.load("dates")).validation
    pairs = type(validation)(validation.sources[:17], validation.targets[:17])
    again = runs.evaluate(translator, pairs)
    assert again.chrf == pytest.approx(record["results"]["validation"]["chrf"], abs=1e-9)
    version_folder = translator.export(tmp_path / "exported", signatures=["translate_n_best"])
    runs.check_export(translator, version_folder, pairs.sources[:3])


def test_mirrored_devices_train_as_one(tmp_path):
    finish(*(start(tmp_path / how, how, backend="tensorflow") for how in ("one", "mirrored")))
    assert_same_run(tmp_path / "one", tmp_path / "mirrored")


@pytest.mark.slow
def test_processes_that_were_killed_go_on_from_the_last_state(jax_run, tmp_path):
    folder, port = tmp_path / "killed", free_port()
    processes = [start(folder, "two", port, number, *([17] if number else [])) for number in range(2)]
    processes[1].communicate(timeout=400)
    assert processes[1].returncode == -signal.SIGKILL
    processes[0].kill()  # as a scheduler does, where JAX has not ended it already
    processes[0].communicate()
    port = free_port()
    finish(*(start(folder, "two", port, number) for number in range(2)))
    assert "Resumed after update" in (folder / "log.txt").read_text()
    assert_same_run(jax_run, folder)
