"""The one command that a person may run next: what each command says at its end, by what has happened."""

import pathlib
import shlex

from keras_attn.terminal import printable_line

_BAD_RUN = "When a run is bad"  # the title of a page
# The commands that try what a run makes, by the folder in which it lies.
_TRY = {"translator": "translate", "text_generator": "generate"}


def after_training(folder, kind, example, *, advice=None, was_stopped=False):
    """What comes after a run of training, a line.

    Args:
        folder: Path of the run.
        kind: String, "translator" or "text_generator".
        example: String, a text of the run's data; or None.
        advice: `Advice` if the answers are hardly related to the references, else None.
        was_stopped: Boolean, whether the run was stopped before its end.

    Example: `after_training("runs/dates", "translator", "4th of July 2016")`
    """
    if was_stopped:
        return _line(["train", "--recipe", folder, "--output", folder], "go on from where it stopped")
    if advice is not None:
        row = f', row "{advice.rows[0]}"' if advice.rows else ""
        return f'Next: read "{_BAD_RUN}" in the documentation{row}.'
    return _line([_TRY[kind], folder, printable_line(example or "...")], "try it")


def after_distillation(folder, example, *, advice=None, was_stopped=False):
    """What comes after a run in which a student was trained, a line."""
    if was_stopped:
        return _line(["distill", "--recipe", folder, "--output", folder], "go on from where it stopped")
    return after_training(folder, "translator", example, advice=advice)


def after_combining(folder):
    """What comes after `average` and `ensemble`, a line: the translator has no scores yet."""
    return _line(
        ["evaluate", folder, "--data", "SOURCE", "TARGET"],
        "does it score better than the ones it is made of?",
    )


def after_evaluation(folder):
    """What comes after `evaluate`, a line."""
    return _line(["export", folder, f"saved_models/{_name(folder)}"], "write it for TF Serving")


def after_export(version, task, *, was_verified):
    """What comes after a SavedModel was written, a line."""
    if was_verified:
        return after_verification(version)
    return _line(["verify", version, "--task", task], "check that TF Serving gives the same answers")


def after_verification(version):
    """What comes after an export was found to be right, a line."""
    return _line(["deploy", pathlib.Path(version).parent], "write what serves it with TF Serving in Docker")


def _name(folder):
    """The name of the run to which a folder belongs."""
    path = pathlib.Path(folder)
    return path.parent.name if path.name in _TRY and path.parent.name else path.name


def _line(words, purpose):
    command = shlex.join(["keras-attn", *map(str, words)])
    return f"Next: {command}  # {purpose}"
