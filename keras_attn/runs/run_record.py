"""`run.json`, the record of a run: its recipe, data and results, and whether a folder holds the same run."""

import dataclasses
import itertools
import json
import math
import pathlib

from keras_attn.files import read_json, replaced_file
from keras_attn.runs.time_plan import PLANNED

RECORD = "run.json"
_NUM_EXAMPLES = 3
# What a run writes after its record, so that without a record it is somebody else's.
_AFTER_RECORD = ("translator", "text_generator", "checkpoints", "tensorboard", "history.csv")
# What may differ when a run goes on: when it ends and how often it is saved.
_MAY_CHANGE = ("epochs", "patience", "stop_at", "minutes", "save_updates", "save_minutes")
# Names of data, which may change too: checksums tell whether their content is the same.
_NAMES_OF_DATA = ("data", "validation", "test", "data_dir")


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
    parts = (
        [record.get(name) for name in ("recipe", "data", "results")] if isinstance(record, dict) else [None]
    )
    if not all(isinstance(part, dict) for part in parts):
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
    for place in (folder, folder.parent):
        try:
            record = read_record(place)
        except ValueError:  # damaged, or a file of this name that is no record of ours
            continue
        texts = record.get("examples") if record else None
        if isinstance(texts, list) and (
            texts := first_texts(text for text in texts if isinstance(text, str))
        ):
            return texts
    return None


def has_ended(record):
    """Whether the run was trained and evaluated to its end."""
    return bool(record["results"].get("ended"))


def differences(before, recipe, may_change=(*_MAY_CHANGE, *_NAMES_OF_DATA)):
    """The settings by which two recipes are those of different runs: a list of texts.

    Args:
        before: Dict, the recipe in the record of a folder.
        recipe: The `Recipe` of the run that is to go on there.
        may_change: Names of fields that do not count.
    """
    after = json.loads(json.dumps(dataclasses.asdict(recipe)))
    found = []
    for name in after:
        # A record of an earlier version lacks what that version did not know.
        if name in may_change or name not in before or before[name] == after[name]:
            continue
        theirs, ours = before[name], after[name]
        if isinstance(theirs, dict) and isinstance(ours, dict):
            keys = [key for key in {**theirs, **ours} if theirs.get(key) != ours.get(key)]
            found += [f"{name}.{key}={theirs.get(key)!r} there, {ours.get(key)!r} here" for key in keys]
        else:
            found.append(f"{name}={theirs!r} there, {ours!r} here")
    return found


def changed_data(record, checksums, names):
    """The names of data that are not those of a record any more, a list without doubles.

    Args:
        record: The record in a folder.
        checksums: Dict from a part of the data to checksums, a list or a string, or None.
        names: Dict from the part to what the checksums are of, a list or a string.
    """
    there = record.get("checksums", {})
    found = []
    for part, ours in json.loads(json.dumps(checksums)).items():
        # A record of an earlier version lacks what that version did not know.
        if part not in there or there[part] == ours:
            continue
        theirs, known = (
            value if isinstance(value, list) else [value] for value in (there[part], names[part])
        )
        ours = ours if isinstance(ours, list) else [ours]
        if len(theirs) != len(ours):
            found += known
        else:
            found += [name for name, one, other in zip(known, theirs, ours) if one != other]
    return list(dict.fromkeys(found))


def holds_unfinished(folder, recipe):
    """Whether a folder holds a run of a recipe that has not ended."""
    record = read_record(pathlib.Path(folder))
    if record is None or has_ended(record):
        return False
    return not differences(record["recipe"], with_plan_of(record, recipe), _MAY_CHANGE)


def with_plan_of(record, recipe):
    """A recipe for some minutes with the plan of the run of a record, in proportion to the minutes of that run.

    Those are what it was planned for, or what it took. A run that was not planned for minutes and has not ended keeps
    its epochs.
    """
    before = record["recipe"]
    minutes = before.get("minutes") or (has_ended(record) and record["results"]["training_seconds"] / 60)
    if not recipe.minutes or not minutes:
        return recipe
    plan = {name: before[name] for name in PLANNED}
    plan["epochs"] = max(1, round(plan["epochs"] * recipe.minutes / minutes))
    return recipe.replace(**plan)


def is_extended(record, recipe):
    """Whether a recipe lets the run of a record train longer than the record's own recipe does."""
    before = record["recipe"]
    more_epochs = recipe.epochs > before["epochs"]
    if before.get("minutes") and recipe.minutes is None:  # which may have been too few for the epochs
        more_epochs = recipe.epochs > epochs_done(record)
    more_epochs |= (recipe.minutes or 0) > (before.get("minutes") or math.inf)
    other_end = any(getattr(recipe, name) != before.get(name) for name in ("patience", "stop_at"))
    return more_epochs or other_end


def epochs_done(record):
    """The epochs after which the run of a record ended: those of its recipe, or fewer if its minutes were too few."""
    epochs = record["recipe"]["epochs"]
    return record["results"].get("epochs", epochs) if record["recipe"].get("minutes") else epochs
