"""What a run's folder holds: `run.json`, the record of the run, and the states that it resumes from."""

import concurrent.futures
import dataclasses
import itertools
import json
import math
import pathlib

import keras
import numpy as np
import tensorflow as tf

from keras_attn.files import read_json, remove_unfinished, replaced_file
from keras_attn.models import read_metadata, read_weights, write_weights
from keras_attn.runs.recipe import RECORD
from keras_attn.runs.recipe_fields import PLANNED, fields_where
from keras_attn.training import training_state
from keras_attn.training.state import constants_of_state, state_variables

_NUM_EXAMPLES = 3
# What a run writes after its record. In a folder without a record, these are not a run's.
_AFTER_RECORD = ("translator", "text_generator", "checkpoints", "tensorboard", "history.csv")
# Settings that may differ when a run goes on: when it ends and how often it is saved.
_MAY_CHANGE = fields_where("may_change")
# Names of data, which may change too: checksums tell whether their content is the same.
_NAMES_OF_DATA = fields_where("names_data")
_PROGRESS = "progress"


def first_texts(texts):
    """The first few of some texts that are not blank, a list."""
    return list(itertools.islice((text for text in texts if text.strip()), _NUM_EXAMPLES))


def read_record(folder):
    """The record in a run folder, or None where there is none.

    Raises:
        ValueError: if the file is damaged.
    """
    file = folder / RECORD
    if not file.exists():
        return None
    record = read_json(file)
    is_record = isinstance(record, dict)
    if not is_record or not all(isinstance(record.get(name), dict) for name in ("recipe", "data", "results")):
        raise ValueError(
            f"{file} is damaged: it holds no recipe, data and results. Choose another folder, or restore the file."
        )
    return record


def check_no_files_of_others(folder):
    """Raises ValueError if a folder without a record holds what a run would overwrite."""
    others = [name for name in _AFTER_RECORD if (folder / name).exists()]
    if others:
        raise ValueError(
            f"{folder} holds no run, but {', '.join(others)}, which a run would overwrite. Choose another folder."
        )


def write_record(folder, record):
    """Writes the record to a run folder."""
    with replaced_file(folder / RECORD) as aside:
        aside.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def example_texts(folder):
    """Texts of a run's validation data, by which its export is warmed up; None if the folder is not of a run that has some.

    Args:
        folder: Path of a run, or of the task that it made.

    Example: `example_texts("runs/mine")`
    """
    folder = pathlib.Path(folder)
    for run_folder in (folder, folder.parent):
        try:
            record = read_record(run_folder)
        except ValueError:  # damaged, or a file of this name that is no record of ours
            continue
        texts = record.get("examples") if record else None
        if not isinstance(texts, list):
            continue
        examples = first_texts(text for text in texts if isinstance(text, str))
        if examples:
            return examples
    return None


def has_ended(record):
    """Whether the run was trained and evaluated to its end."""
    return bool(record["results"].get("ended"))


def differences(before, recipe, may_change=_MAY_CHANGE + _NAMES_OF_DATA):
    """How the recipe of a run that is to go on differs from that of the folder, a list of texts.

    Args:
        before: Dict, the recipe in the record of a folder.
        recipe: The `Recipe` of the run that is to go on there.
        may_change: Names of fields that do not count.
    """
    after = json.loads(json.dumps(dataclasses.asdict(recipe)))
    texts = []
    for name in after:
        # A record of an earlier version lacks what that version did not know.
        if name in may_change or name not in before or before[name] == after[name]:
            continue
        theirs = before[name]
        ours = after[name]
        if isinstance(theirs, dict) and isinstance(ours, dict):
            keys = [key for key in {**theirs, **ours} if theirs.get(key) != ours.get(key)]
            texts += [f"{name}.{key}={theirs.get(key)!r} there, {ours.get(key)!r} here" for key in keys]
        else:
            texts.append(f"{name}={theirs!r} there, {ours!r} here")
    return texts


def changed_data(record, checksums, names):
    """The names of data that have changed since a record was written, a list without doubles.

    Args:
        record: The record in a folder.
        checksums: Dict from a part of the data to its checksums, a list or a string, or None.
        names: Dict from the part to a name for each checksum, a list or a string.
    """
    recorded = record.get("checksums", {})
    changed = []
    for part, ours in json.loads(json.dumps(checksums)).items():
        # A record of an earlier version lacks what that version did not know.
        if part not in recorded or recorded[part] == ours:
            continue
        theirs = _as_list(recorded[part])
        ours = _as_list(ours)
        known = _as_list(names[part])
        if len(theirs) != len(ours):
            changed += known
        else:
            changed += [name for name, one, other in zip(known, theirs, ours) if one != other]
    return list(dict.fromkeys(changed))


def _as_list(value):
    return value if isinstance(value, list) else [value]


def holds_unfinished(folder, recipe):
    """Whether a folder holds a run of a recipe that has not ended."""
    record = read_record(pathlib.Path(folder))
    if record is None or has_ended(record):
        return False
    return not differences(record["recipe"], with_plan_of(record, recipe), _MAY_CHANGE)


def with_plan_of(record, recipe):
    """A recipe that has `minutes`, with the plan in a run's record; more minutes give as many times more epochs.

    The minutes of the record are those of its recipe, or those that the run took, if it has ended. Without either, or without
    `minutes` in the recipe, it stays as it is.
    """
    before = record["recipe"]
    minutes = before.get("minutes")
    if not minutes and has_ended(record):
        minutes = record["results"]["training_seconds"] / 60
    if not recipe.minutes or not minutes:
        return recipe
    plan = {name: before[name] for name in PLANNED}
    plan["epochs"] = max(1, round(plan["epochs"] * recipe.minutes / minutes))
    return recipe.replace(**plan)


def is_extended(record, recipe):
    """Whether a recipe lets the run of a record train longer than the record's own recipe does."""
    before = record["recipe"]
    more_epochs = recipe.epochs > before["epochs"]
    if before.get("minutes") and recipe.minutes is None:  # the minutes may have ended before the epochs
        more_epochs = recipe.epochs > epochs_done(record)
    more_minutes = (recipe.minutes or 0) > (before.get("minutes") or math.inf)
    other_end = any(getattr(recipe, name) != before.get(name) for name in ("patience", "stop_at"))
    return more_epochs or more_minutes or other_end


def epochs_done(record):
    """The epochs of a run that has ended: those of its recipe, or fewer if its minutes were over before."""
    epochs = record["recipe"]["epochs"]
    if not record["recipe"].get("minutes"):
        return epochs
    return record["results"].get("epochs", epochs)


class SavedStates:
    """Writes and reads the files `state-UPDATE.safetensors` of a folder.

    A write runs in a thread while training continues; the next write waits for it. The previous file is
    complete at all times, and is kept until the new one is complete.

    Args:
        folder: Path.
        num_kept: Integer, the number of newest states that are kept.
        log: Function of a string, called when a write begins and when it has ended.
    """

    def __init__(self, folder, num_kept=2, log=lambda text: None):
        self.folder = pathlib.Path(folder)
        self.num_kept = num_kept
        self.log = log
        self._writer = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="checkpoints")
        self._written = None

    def save(self, update, snapshot, progress):
        """Writes a state in the background, after the previous one is written.

        Args:
            update: Integer, the number of updates so far.
            snapshot: Function without arguments, called in the background, that returns a dict of NumPy
                arrays.
            progress: A value that JSON can hold.

        Raises:
            OSError: if the write before this one failed.
        """
        self.wait()
        self._written = self._writer.submit(self._write, update, snapshot, progress)

    def wait(self):
        """Waits until everything is written.

        Raises:
            OSError: if a write failed; the message names the last complete state.
        """
        written, self._written = self._written, None
        if written is None:
            return
        try:
            written.result()
        except OSError as error:
            raise OSError(f"{error} The last state is {self.newest() or 'none'}.") from error

    def newest(self):
        """The path of the last state, or None. Waits for a state that is being written."""
        if self._written is not None:
            concurrent.futures.wait([self._written])  # `wait` reports a failure
        paths = self._paths()
        return paths[-1] if paths else None

    def load(self, clean=True):
        """The last state that can be read, (arrays, progress), or None where there is none.

        A damaged file is logged, and the one before it is used.

        Args:
            clean: Whether the unfinished files of a killed process are removed.

        Raises:
            ValueError: if there are states, and all of them are damaged.
        """
        if clean:
            remove_unfinished(self.folder)
        paths = self._paths()
        for path in reversed(paths):
            try:
                return read_weights(path), json.loads(read_metadata(path)[_PROGRESS])
            except (ValueError, KeyError, RecursionError) as error:
                self.log(f"{path} cannot be used: {error}")
        if paths:
            raise ValueError(
                f"None of the {len(paths)} states in {self.folder} can be read. Train in another folder."
            )
        return None

    def _write(self, update, snapshot, progress):
        path = self.folder / f"state-{update:08d}.safetensors"
        self.log(f"saving {path.name}")
        write_weights(snapshot(), path, metadata={_PROGRESS: json.dumps(progress)})
        self.log(f"saved {path.name}")
        for older in self._paths()[: -self.num_kept]:
            older.unlink(missing_ok=True)

    def _paths(self):
        return sorted(self.folder.glob("state-*.safetensors"))


def state_snapshots(model):
    """A function that takes snapshots of a model's state at almost no cost for a step.

    TensorFlow's variables share their memory with values read from them until they are assigned to, so
    nothing is copied when a snapshot is taken. JAX donates the memory to the next step, and PyTorch writes
    into it: there, everything is copied at once.

    Args:
        model: A compiled `keras.Model`, built.

    Returns:
        Function without arguments that takes a snapshot. It returns another function without arguments, which
        any thread may call, and which returns what `keras_attn.training.training_state` would have returned.
    """
    if keras.backend.backend() == "tensorflow":
        return _read_by_tensorflow(model)
    return lambda: _copied(model)


def _copied(model):
    state = training_state(model)
    return lambda: state


def _read_by_tensorflow(model):
    variables = state_variables(model)
    constants = constants_of_state(model)
    # In a graph, because so many calls from Python take longer than all the rest.
    read = tf.function(
        lambda: [variable.value.read_value() for variable in variables.values()], autograph=False
    )

    def take():
        values = read()

        def arrays():
            state = {name: np.array(value) for name, value in zip(variables, values, strict=True)}
            return state | constants

        return arrays

    return take
