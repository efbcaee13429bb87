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
    present = _checksums(folder)
    problems = []
    for name in sorted(set(exported) - set(present)):
        problems.append(f"{name} is missing.")
    for name in sorted(set(present) - set(exported)):
        problems.append(f"{name} is not part of this export.")
    for name in sorted(set(present) & set(exported)):
        if present[name] != exported[name]:
            problems.append(f"{name} is not the file that was exported with the others.")
    return problems


def _checksums(folder):
    """{path below the folder: SHA-256} of the files that a server loads."""
    folder = pathlib.Path(folder)
    paths = sorted(path for pattern in _PARTS for path in folder.glob(pattern) if path.is_file())
    checksums = {}
    for path in paths:
        with path.open("rb") as file:
            checksums[path.relative_to(folder).as_posix()] = hashlib.file_digest(file, "sha256").hexdigest()
    return checksums
