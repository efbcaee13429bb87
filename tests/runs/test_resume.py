"""A run that is killed, again and again, ends with the bits of one that was not."""

import csv
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import types

import numpy as np
import pytest
import tensorflow as tf
from helpers_recipes import TINY

from keras_attn import runs
from keras_attn.data import TextPairs
from keras_attn.files import locked_folder
from keras_attn.models import read_weights
from keras_attn.runs.training_run import TrainingRun

CHILD = pathlib.Path(__file__).with_name("train_until_killed.py")
IN_SAVE = ("half_written", "written", "renamed")
RESULTS = ("translator/model.safetensors", "translator/translator.json")
OF_THE_CLOCK = {"tokens_per_second"}


@pytest.fixture(scope="module")
def train(tmp_path_factory):
    """Trains in a new process; gives its exit code and what all of them have printed."""
    errors = tmp_path_factory.mktemp("trainer") / "errors.txt"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with (
        open(errors, "w") as stderr,
        subprocess.Popen([sys.executable, str(CHILD)], **pipes, stderr=stderr) as trainer,
    ):

        def train(folder, size, kind="never", count=0):
            print(json.dumps([str(folder), size, kind, count]), file=trainer.stdin, flush=True)
            answer = trainer.stdout.readline()
            assert answer, errors.read_text()
            return int(answer), errors.read_text()

        yield train


def history(folder):
    with open(folder / "history.csv", encoding="utf-8") as file:
        return [
            {name: value for name, value in row.items() if name not in OF_THE_CLOCK}
            for row in csv.DictReader(file)
        ]


def points(folder):
    """What TensorBoard would draw: for each part and tag, the steps and values in the event files as they are."""
    found = {}
    for path in sorted((folder / "tensorboard").rglob("events.out.tfevents.*")):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                if value.tag not in {*OF_THE_CLOCK, "recipe"}:
                    content = value.tensor.SerializeToString()
                    found.setdefault((path.parent.name, value.tag), []).append((event.step, content))
    return found


def assert_same_run(folder, other):
    assert history(folder) == history(other)
    assert points(folder) == points(other)
    files = sorted(path.name for path in (folder / "checkpoints").iterdir())
    assert files == sorted(path.name for path in (other / "checkpoints").iterdir())
    assert [name for name in files if name.startswith("state-")]
    for name in files:
        arrays, others = (read_weights(path / "checkpoints" / name) for path in (folder, other))
        assert arrays.keys() == others.keys()
        for key, array in arrays.items():
            np.testing.assert_array_equal(array, others[key], err_msg=f"{name}: {key}")
    for name in RESULTS:
        assert (folder / name).exists() == (other / name).exists()
        if (folder / name).exists():
            assert (folder / name).read_bytes() == (other / name).read_bytes()


def killed_at(seed, num_kills, num_in_saves, longest):
    """Seeded moments: batches of a process, and places in its saves."""
    generator = random.Random(seed)
    kills = [(generator.choice(IN_SAVE), generator.randint(1, 2)) for _ in range(num_in_saves)]
    kills += [("batch", generator.randint(1, longest)) for _ in range(num_kills - num_in_saves)]
    generator.shuffle(kills)
    return kills


def check_killed_run(train, tmp_path, size, kills):
    code, errors = train(tmp_path / "whole", size)
    assert code == 0, errors
    folder = tmp_path / "killed"
    num_killed = 0
    for kind, count in kills:
        code, errors = train(folder, size, kind, count)
        assert code in (-signal.SIGKILL, 0), errors
        num_killed += code == -signal.SIGKILL
        if code == 0:
            break
    if code != 0:
        code, errors = train(folder, size)
        assert code == 0, errors
    assert_same_run(tmp_path / "whole", folder)
    return num_killed, (folder / "log.txt").read_text(encoding="utf-8")


def saves_cut_short(log):
    """How often a save began that did not end."""
    return log.count("saving state-") - log.count("saved state-")


@pytest.mark.extended
def test_a_killed_run_goes_on_to_the_same_bits(train, tmp_path):
    # The state before the fifth, with which the run goes on, is one of the middle of an epoch.
    num_killed, log = check_killed_run(train, tmp_path, "small", [("half_written", 5)])
    assert num_killed == 1
    assert saves_cut_short(log) == 1
    assert log.count("Resumed after update") == 1


@pytest.mark.extended
def test_a_killed_run_with_drawn_segmentations_goes_on_to_the_same_bits(train, tmp_path):
    num_killed, log = check_killed_run(train, tmp_path, "sampled", [("batch", 6), ("batch", 9)])
    assert num_killed == 2
    assert log.count("Resumed after update") == 2


@pytest.fixture(scope="module")
def whole(train, tmp_path_factory):
    """The folder of a run of the size `long` that nothing stopped."""
    folder = tmp_path_factory.mktemp("whole")
    code, errors = train(folder, "long")
    assert code == 0, errors
    return folder


def record(folder):
    return json.loads((folder / "run.json").read_text(encoding="utf-8"))


@pytest.mark.extended
@pytest.mark.parametrize(
    ("kind", "exit_codes", "is_evaluated"),
    [
        pytest.param("SIGINT", [0], True, marks=pytest.mark.slow),
        ("twice", [1], False),
        ("SIGTERM", [128 + signal.SIGTERM], False),
    ],
)
def test_a_stopped_run_goes_on_to_the_same_bits(train, whole, tmp_path, kind, exit_codes, is_evaluated):
    folder = tmp_path / "stopped"
    code, errors = train(folder, "long", kind, 10)  # in the second epoch
    assert code in exit_codes, errors
    log = (folder / "log.txt").read_text(encoding="utf-8")
    assert "Stopped after update 1" in log
    assert "The same command goes on" in log
    assert ("Ctrl-C again skips" in log) == (kind != "SIGTERM")
    assert ("validation" in record(folder)["results"]) == is_evaluated
    assert not record(folder)["results"].get("ended")
    assert not (folder / "lock").exists()
    assert train(folder, "long")[0] == 0
    assert record(folder)["results"]["ended"]
    assert_same_run(whole, folder)


@pytest.mark.extended
def test_a_run_that_has_ended_can_be_given_more_epochs(train, whole, tmp_path):
    folder = tmp_path / "extended"
    assert train(folder, "short")[0] == 0
    assert len(history(folder)) == 2
    assert train(folder, "short")[0] == 1
    assert train(folder, "long")[0] == 0
    assert_same_run(whole, folder)


@pytest.mark.parametrize(
    ("epoch", "best_epoch", "changes", "why"),
    [
        (2, 0, {}, ""),
        (2, 0, {"patience": 1}, "`patience` is 1, and so many epochs gave no better bleu"),
        (2, 1, {"patience": 1}, ""),
        (1, None, {"patience": 1}, "`patience` is 1"),  # the weights that it began with are the best
        (2, None, {"patience": 3}, ""),
        (2, 1, {"stop_at": 30.0}, "`stop_at` is 30, and bleu was 31"),
        (2, 1, {"stop_at": 32.0}, ""),
        (4, 3, {}, "`epochs` is 4"),
    ],
)
def test_why_a_run_ends(epoch, best_epoch, changes, why):
    run = types.SimpleNamespace(
        recipe=runs.Recipe.load("multi30k")
        .replace(epochs=4, metric="bleu", patience=None, stop_at=None)
        .replace(**changes),
        plan=types.SimpleNamespace(num_epochs=4),
        progress=types.SimpleNamespace(epoch=epoch),
        keep_best=types.SimpleNamespace(best_epoch=best_epoch),
    )
    found = TrainingRun.reason_to_end(run, 31.0)
    assert found.startswith(why)
    assert bool(found) == bool(why)


@pytest.mark.extended
def test_a_run_that_ended_early_says_what_else_to_change(tmp_path, capsys):
    texts = [f"{a}{b}" for a in "abcd" for b in "efgh"]
    pairs = TextPairs(texts, [text.upper() for text in texts], "capitals")
    recipe = runs.Recipe(
        model={**TINY, "max_sequence_length": 16},
        tokenizer="bytes",
        max_tokens=128,
        epochs=3,
        learning_rate=1e-7,
        warmup_steps=1,
        metric="exact_match",
        num_beams=1,
        max_length=4,
        patience=1,
    )

    def lines_of(recipe):
        runs.train(runs.DataSplits(pairs, pairs, None), tmp_path, recipe, verbose=1)
        return capsys.readouterr().out.splitlines()

    assert any(line.startswith("Epoch 2/3") for line in lines_of(recipe))
    ended = "Training ended after epoch 2: `patience` is 1, and so many epochs gave no better exact_match. "
    assert ended + "To train longer, change that too." in lines_of(recipe.replace(epochs=5))
    assert any(line.startswith("Epoch 3/7") for line in lines_of(recipe.replace(epochs=7, patience=2)))


@pytest.mark.extended
def test_a_folder_in_use_is_refused_with_the_process_id(train, tmp_path):
    with locked_folder(tmp_path):
        code, errors = train(tmp_path, "long")
        assert code == 1
        assert f"{tmp_path} is in use by process {os.getpid()}." in errors
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_killed_language_model_goes_on_to_the_same_bits(train, tmp_path):
    num_killed, log = check_killed_run(
        train, tmp_path, "language_model", [("batch", 9), ("written", 3), ("renamed", 1)]
    )
    assert num_killed == 3
    assert log.count("Resumed after update") == 3


@pytest.mark.slow
def test_a_run_of_tiny_killed_twenty_times_ends_with_the_same_bits(train, tmp_path):
    num_killed, log = check_killed_run(train, tmp_path, "tiny", killed_at(7, 20, 8, longest=16))
    assert num_killed == 20
    assert saves_cut_short(log) >= 5
