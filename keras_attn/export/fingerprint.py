"""The fingerprint of an exported version: checksums of its graph, variables and assets, which belong together."""

import hashlib
import json
import pathlib

from keras_attn.files import read_json

FINGERPRINT_FILE = "assets.extra/fingerprint.json"

# What a server loads. The files beside it, batching parameters for example, are the user's to edit.
_PARTS = ("saved_model.pb", "variables/*", "assets/**/*")


def write_fingerprint(folder):
    """Writes the checksums of a version's graph, variables and assets next to them.

    Args:
        folder: Path of the version folder.

    Returns:
        `pathlib.Path` of the file.

    Example:

    ```python
    write_fingerprint("saved_models/dates/1")
    ```
    """
    path = pathlib.Path(folder, FINGERPRINT_FILE)
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(_checksums(folder), indent=2) + "\n", encoding="utf-8")
    return path


def fingerprint_problems(folder):
    """How the files of a version differ from those that were exported together.

    Args:
        folder: Path of the version folder.

    Returns:
        A list of strings, empty if nothing differs; None if the version has no fingerprint.

    Example:

    ```python
    assert not fingerprint_problems("saved_models/dates/1")
    ```
    """
    path = pathlib.Path(folder, FINGERPRINT_FILE)
    if not path.is_file():
        return None
    try:
        exported = read_json(path)
    except ValueError as error:
        return [f"{FINGERPRINT_FILE} cannot be read: {error}"]
    if not isinstance(exported, dict):
        return [f"{FINGERPRINT_FILE} must hold an object with a checksum for each file."]
    found = _checksums(folder)
    return [
        *(f"{name} is missing." for name in sorted(set(exported) - set(found))),
        *(f"{name} is not part of this export." for name in sorted(set(found) - set(exported))),
        *(
            f"{name} is not the file that was exported with the others."
            for name in sorted(set(found) & set(exported))
            if found[name] != exported[name]
        ),
    ]


def _checksums(folder):
    folder = pathlib.Path(folder)
    paths = sorted(path for part in _PARTS for path in folder.glob(part) if path.is_file())
    return {path.relative_to(folder).as_posix(): _checksum(path) for path in paths}


def _checksum(path):
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
