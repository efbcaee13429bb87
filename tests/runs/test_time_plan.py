"""A run for some minutes on a machine that becomes slower, or fast again, by a clock that the test moves."""

import csv
import json
import types

import numpy as np
import pytest
from helpers_recipes import TINY

from keras_attn import runs
from keras_attn.data import TextPairs
from keras_attn.models import read_weights
from keras_attn.runs import time_plan, training_run
from keras_attn.runs.optimizer import make_optimizer
from keras_attn.runs.progress import Progress
from keras_attn.runs.time_plan import Costs, Rest, planned_rest
from keras_attn.runs.translation_run import TranslationRun
from keras_attn.training import TranslationQuality

RECIPE = runs.Recipe(
    model={**TINY, "dropout": 0.1, "max_sequence_length": 16},
    tokenizer="bytes",
    max_tokens=64,
    learning_rate=0.01,
    dtype="float32",
    metric="exact_match",
    num_averaged=1,
    num_beams=1,
    max_length=4,
    minutes=1.0,
)


class KilledError(Exception):
    pass


class Clock:
    """Seconds that pass when a batch or a validation is done: so many for each update, by its number."""

    def __init__(self, monkeypatch, seconds_of, validation=0.5):
        self.now, self.rates, self.killed_at = 0.0, [], None
        time = types.SimpleNamespace(monotonic=lambda: self.now, strftime=lambda form: "now")
        monkeypatch.setattr(training_run, "time", time)
        monkeypatch.setattr(time_plan, "time", time)
        monkeypatch.setattr(training_run, "seconds_per_update", lambda model, batches: 1.0)
        # What takes long and does not matter here.
        monkeypatch.setattr(TranslationRun, "film", None)
        monkeypatch.setattr(TranslationRun, "validators", lambda run: [run.quality])
        on_batch_end, on_epoch_end = Progress.on_train_batch_end, TranslationQuality.on_epoch_end

        def batch_end(progress, batch, logs=None):
            self.now += seconds_of(progress.updates)
            optimizer = progress.model.optimizer
            self.rates.append(float(optimizer._learning_rate(optimizer.iterations - 1)))
            on_batch_end(progress, batch, logs)
            if progress.updates == self.killed_at:
                raise KilledError

        def epoch_end(quality, epoch, logs=None):
            self.now += validation
            on_epoch_end(quality, epoch, logs)

        monkeypatch.setattr(Progress, "on_train_batch_end", batch_end)
        monkeypatch.setattr(TranslationQuality, "on_epoch_end", epoch_end)


def make_data():
    texts = [f"{a}{b}" for a in "abcd" for b in "efgh"]
    pairs = TextPairs(texts, [text.upper() for text in texts], "capitals")
    return runs.DataSplits(pairs, pairs, None)


def epochs_of(folder):
    with open(folder / "history.csv", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def slow_after(number, seconds=5.0):
    return lambda updates: 1.0 if updates < number else seconds


def test_time_that_is_used_up_is_told_as_such():
    plan = time_plan.new_plan_report(Rest(40, 4), Rest(1, 1), -2.0, 0.073)
    assert plan.startswith("An update takes 73 ms now, and no time is left: 1 more in 1 epoch, not 40,")
    assert "2 s are left" in time_plan.new_plan_report(Rest(40, 4), Rest(20, 2), 2.0, 0.073)
    report = training_run.time_report
    assert report(51.2, 180.0, has_time=True, is_low=False) == "Trained for 51 s."
    late = report(51.2, 180.0, has_time=False, is_low=False)
    assert late == "Trained for 51 s, evaluated for 180 s: more than `minutes`."
    assert "as long as the limit" in report(51.2, 180.0, has_time=False, is_low=True)


@pytest.mark.extended
def test_a_machine_that_becomes_slower_ends_in_time_with_its_schedule_complete(tmp_path, monkeypatch):
    clock = Clock(monkeypatch, slow_after(3))
    runs.train(make_data(), tmp_path, RECIPE, verbose=0)
    log, epochs = (tmp_path / "log.txt").read_text(), epochs_of(tmp_path)
    assert clock.now <= 60
    assert "An update takes 5000 ms now" in log
    # 45 updates in 5 epochs, the warm-up of 4, were planned; the rate rises, falls without a jump, and ends near 0.
    assert 9 <= len(clock.rates) <= 14
    assert 2 <= len(epochs) <= 5
    peak = int(np.argmax(clock.rates))
    assert 3 <= peak <= 5
    assert clock.rates[peak] > 0.7 * RECIPE.learning_rate
    assert np.all(np.diff(clock.rates[peak:]) < 0)
    assert clock.rates[-1] < 0.1 * RECIPE.learning_rate
    results = json.loads((tmp_path / "run.json").read_text())["results"]
    assert (results["ended"], results["epochs"]) == (True, len(epochs))
    with pytest.raises(ValueError, match=rf"more than {len(epochs)} epochs"):
        runs.train(make_data(), tmp_path, verbose=0)


@pytest.mark.extended
def test_a_run_that_its_minutes_ended_can_be_given_more_epochs(tmp_path, monkeypatch):
    clock = Clock(monkeypatch, slow_after(3))
    runs.train(make_data(), tmp_path, RECIPE, verbose=0)
    num_epochs = len(epochs_of(tmp_path))
    assert num_epochs <= 5
    clock.rates.clear()
    runs.train(make_data(), tmp_path, epochs=num_epochs + 1, verbose=0)
    assert len(clock.rates) == 9  # an epoch as first planned
    assert len(epochs_of(tmp_path)) == num_epochs + 1
    assert clock.rates[-1] < 1e-3 * RECIPE.learning_rate


@pytest.mark.extended
def test_a_machine_that_becomes_fast_again_trains_as_first_planned(tmp_path, monkeypatch):
    clock = Clock(monkeypatch, lambda updates: 4.0 if 2 <= updates < 5 else 0.5, validation=0.1)
    runs.train(make_data(), tmp_path, RECIPE, verbose=0)
    assert clock.now <= 60
    # What the schedule has passed quickly meanwhile does not come back: 18 updates would have been left without.
    assert 22 <= len(clock.rates) <= 45
    assert clock.rates[-1] < 0.01 * RECIPE.learning_rate
    assert len(epochs_of(tmp_path)) == 5


@pytest.mark.extended
def test_slow_validations_become_fewer(tmp_path, monkeypatch):
    clock = Clock(monkeypatch, slow_after(99), validation=9.0)
    runs.train(make_data(), tmp_path, RECIPE, verbose=0)
    assert clock.now <= 60
    assert len(epochs_of(tmp_path)) < 5
    assert clock.rates[-1] < 0.1 * RECIPE.learning_rate


@pytest.mark.extended
@pytest.mark.parametrize("killed_at", [6, 9])
def test_killed_after_a_new_plan_it_goes_on_to_the_same_bits(tmp_path, monkeypatch, killed_at):
    recipe = RECIPE.replace(save_updates=1)
    clock = Clock(monkeypatch, slow_after(2))
    runs.train(make_data(), tmp_path / "whole", recipe, verbose=0)
    rates = list(clock.rates)
    clock.now, clock.rates, clock.killed_at = 0.0, [], killed_at
    with pytest.raises(KilledError):
        runs.train(make_data(), tmp_path / "killed", recipe, verbose=0)
    clock.killed_at, clock.rates = None, []
    runs.train(make_data(), tmp_path / "killed", recipe, verbose=0)
    np.testing.assert_array_equal(clock.rates, rates[-len(clock.rates) :])
    names = {path.name for path in (tmp_path / "whole" / "checkpoints").glob("state-*")}
    assert names == {path.name for path in (tmp_path / "killed" / "checkpoints").glob("state-*")}
    for name in (*(f"checkpoints/{name}" for name in names), "translator/model.safetensors"):
        whole, killed = (read_weights(tmp_path / run / name) for run in ("whole", "killed"))
        for key, array in whole.items():
            np.testing.assert_array_equal(array, killed[key], err_msg=f"{name}: {key}")


@pytest.mark.parametrize(
    ("rest", "most", "seconds", "costs", "strict", "expected"),
    [
        # Before the first validation a quarter is left for evaluation.
        (Rest(45, 5), 45, 60, Costs(1.0, None, 0.0), False, None),
        (Rest(45, 5), 45, 60, Costs(1.08, None, 0.0), False, None),
        (Rest(45, 5), 45, 60, Costs(1.1, None, 0.0), True, Rest(40, 5)),
        (Rest(45, 5), 45, 60, Costs(5.0, None, 0.0), False, Rest(5, 5)),
        (Rest(45, 5), 45, 60, Costs(15.0, None, 0.0), False, Rest(3, 3)),
        (Rest(45, 5), 45, 60, Costs(100.0, None, 0.0), False, Rest(1, 1)),
        (Rest(45, 5), 45, -5, Costs(1.0, 1.0, 1.0), False, Rest(1, 1)),
        # Afterwards what it takes, and fewer where it takes more than half.
        (Rest(45, 5), 45, 60, Costs(1.0, 1.0, 5.0), False, None),
        (Rest(45, 5), 45, 60, Costs(1.0, 10.0, 5.0), False, Rest(34, 2)),
        # Fast again, there is never more than first planned.
        (Rest(10, 5), 40, 60, Costs(1.0, 1.0, 5.0), False, Rest(40, 5)),
        (Rest(10, 5), 40, 60, Costs(4.5, 1.0, 5.0), False, None),
        (Rest(40, 5), 40, 600, Costs(1.0, 1.0, 5.0), False, None),
    ],
)
def test_what_there_is_time_for(rest, most, seconds, costs, strict, expected):
    assert planned_rest(rest, most, seconds, costs, strict=strict) == expected


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["cosine", "linear", "inverse_square_root", "noam", "constant"])
@pytest.mark.parametrize("steps", [1, 3])
def test_a_schedule_goes_on_faster_from_where_it_is(name, steps):
    recipe = RECIPE.replace(schedule=name, warmup_steps=4, gradient_accumulation_steps=steps)
    first, later = (make_optimizer(recipe, 8, 40) for _ in range(2))

    def rates(optimizer, updates):
        return [float(optimizer._learning_rate(steps * update)) for update in updates]

    assert rates(first, range(40)) == rates(later, range(40))
    later.pace.assign([10, 10, 3.0])
    np.testing.assert_allclose(rates(later, range(10, 20)), rates(first, range(10, 40, 3)), rtol=1e-6)
    assert any(variable is later.pace for variable in later.variables)
