"""Dry runs: checkpoints are opened by the code that loads them, to see whether they load, without reading a weight."""

import contextlib
import contextvars

# A context variable, since a task's own loader stands between `dry_run` and `load_model`, and has no use for it.
_notes = contextvars.ContextVar("dry_run_notes", default=None)


@contextlib.contextmanager
def dry_run():
    """In this block models are made and checked, but their weights are not read.

    Yields:
        Dict from names of files to lists of their fields that change nothing, filled while checkpoints are opened.

    Example:

    ```python
    with dry_run() as notes:
        task = load_task("opus-mt-en-de")  # or the error that it would raise
    notes  # {"config.json": ["author"]}
    ```
    """
    token = _notes.set({})
    try:
        yield _notes.get()
    finally:
        _notes.reset(token)


def is_dry_run():
    """Whether weights are not to be read."""
    return _notes.get() is not None


def note_without_effect(file, names):
    """Notes fields of a file that transformers does not know either, for whoever asked for a dry run.

    Args:
        file: Name of the file.
        names: Names of fields.
    """
    notes = _notes.get()
    if notes is not None and names:
        notes.setdefault(file, []).extend(names)
