"""Folders that are there whole or not at all."""

import contextlib
import pathlib
import tempfile


@contextlib.contextmanager
def replaced_folder(folder, marker, kind):
    """A folder to build in, which takes the place of `folder` when the block ends without an error.

    Args:
        folder: Path; missing, empty, or of the same kind, and then replaced.
        marker: Name of a file that every folder of this kind holds.
        kind: Its name in messages, "translator" for instance.

    Yields:
        `pathlib.Path` of a new, empty folder beside `folder`, to be renamed to it.

    Raises:
        ValueError: if `folder` holds something else.
    """
    folder = pathlib.Path(folder)
    if folder.exists() and (
        not folder.is_dir() or (any(folder.iterdir()) and not (folder / marker).is_file())
    ):
        raise ValueError(f"{folder} exists and holds no {kind}. Choose another folder, or remove it.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as aside:
        built, older = pathlib.Path(aside, "new"), pathlib.Path(aside, "older")
        built.mkdir()
        yield built
        if folder.exists():
            folder.rename(older)
        built.rename(folder)
