"""Atomic writing of files and folders: each is complete or missing, never half-written.

New content is written next to the old, under a temporary name, and replaces it in one step. A killed process
leaves the complete old or new version, and perhaps an unfinished one next to it, which `remove_unfinished`
deletes.
"""

import contextlib
import difflib
import hashlib
import itertools
import json
import os
import pathlib
import shutil
import socket
import stat
import sys

from keras_attn.compat.system import exchange_folders

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

_UNFINISHED = ".unfinished-"
_OLDER = ".older-"
_LOCK = "lock"
_MOST_FILES = 10_000
_numbers = itertools.count()


@contextlib.contextmanager
def replaced_file(path):
    """Yields a temporary file to write, which replaces `path` when the block ends without an error.

    The file gets the mode that `open` gives a new file, whatever code writes it.

    Args:
        path: Path; its folder is created if missing. A link is followed.

    Yields:
        `pathlib.Path` of an empty file next to `path`, whose name ends with the name of `path`.

    Raises:
        OSError: if it cannot be written, for lack of space or permission; an existing file at `path` is then
            unchanged.

    Example:

    ```python
    with replaced_file("runs/history.csv") as aside:
        aside.write_text("epoch,loss\\n")
    ```
    """
    target = pathlib.Path(os.path.realpath(path))
    aside = _temporary_path(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(aside, "xb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        yield aside
        aside.chmod(mode)  # the block may have put another file there
        _write_through(aside)
        os.replace(aside, target)
    except OSError as error:
        raise OSError(
            f"{path} could not be written: {error}. What stood there before is untouched."
        ) from error
    finally:
        with contextlib.suppress(OSError):
            aside.unlink()


@contextlib.contextmanager
def replaced_folder(folder, marker, kind):
    """Yields a temporary folder to fill, which replaces `folder` when the block ends without an error.

    Args:
        folder: Path. It may be missing, empty, or a folder of the same kind, which is replaced. A link is
            followed.
        marker: Name of a file that every folder of this kind holds.
        kind: The kind's name in messages, for example "translator".

    Yields:
        `pathlib.Path` of a new, empty folder next to `folder`.

    Raises:
        ValueError: if `folder` holds something else.
    """
    folder = pathlib.Path(os.path.realpath(restored_folder(folder)))
    may_be_replaced = not folder.exists() or (
        folder.is_dir() and ((folder / marker).is_file() or not any(folder.iterdir()))
    )
    if not may_be_replaced:
        raise ValueError(f"{folder} exists and holds no {kind}. Choose another folder, or remove it.")
    _discard(_older_path(folder))  # left by a process that was killed before it removed it
    with folder_aside(folder) as built:
        yield built
        if not folder.exists():
            built.rename(folder)
        elif not exchange_folders(built, folder):
            _replace_in_two_steps(built, folder)


@contextlib.contextmanager
def folder_aside(folder):
    """Yields a new, empty folder next to `folder` for the block to rename; removes what still has its name.

    A parent folder that was missing is removed again if the block leaves nothing there.

    Args:
        folder: Path; its parent folder is created if missing.

    Yields:
        `pathlib.Path`.
    """
    folder = pathlib.Path(folder)
    aside = _temporary_path(folder)
    parent_is_new = not folder.parent.exists()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        aside.mkdir()
    except OSError as error:
        raise OSError(
            f"{folder.parent} cannot hold a new folder: {error.strerror}. Choose another folder."
        ) from error
    try:
        yield aside
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        if parent_is_new:
            with contextlib.suppress(OSError):  # not empty: it holds what the block has made
                folder.parent.rmdir()


def restored_folder(folder):
    """Puts `folder` back if a process was killed while replacing it. Readers call this first.

    This can only happen on file systems that cannot exchange two folders in one step.

    Args:
        folder: Path.

    Returns:
        `pathlib.Path` of `folder`.
    """
    target = pathlib.Path(os.path.realpath(folder))
    older = _older_path(target)
    if older.is_dir() and not target.exists():
        # Another process may put it back at the same time.
        with contextlib.suppress(FileNotFoundError):
            older.rename(target)
    return pathlib.Path(folder)


@contextlib.contextmanager
def locked_folder(folder):
    """Locks `folder` during the block: no other process gets its lock. The system frees it when a process ends.

    Args:
        folder: Path of an existing folder. The lock is the file `lock` in it, which holds the process id.

    Raises:
        ValueError: if another process holds the lock; the message names its process id.
    """
    if fcntl is None:  # Windows
        yield
        return
    path = pathlib.Path(folder) / _LOCK
    descriptor = _lock(path)
    try:
        os.ftruncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode())
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _lock(path):
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            process = os.read(descriptor, 32).decode() or "unknown"
            os.close(descriptor)
            raise ValueError(
                f"{path.parent} is in use by process {process}. Wait until it ends, stop it, or choose another folder."
            ) from None
        # The process that held the lock may have removed the file since it was opened here.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return descriptor
        os.close(descriptor)


def not_there(path):
    """The sentence for a path that does not exist, with the one of nearly the same name that does.

    Args:
        path: Path.

    Returns:
        A string.

    Example:

    ```python
    assert not_there("no/such/file") == "no/such/file does not exist. Check the path."
    ```
    """
    nearest = _nearest(pathlib.Path(path))
    advice = "Check the path." if nearest is None else f"There is {nearest}."
    return f"{path} does not exist. {advice}"


def _nearest(path):
    """`path` with each name that does not exist replaced by the nearest one that does; None if there is none."""
    if path.exists():
        return path
    if path.parent == path:
        return None
    parent = _nearest(path.parent)
    try:
        names = [inner.name for inner in parent.iterdir()] if parent is not None else []
    except OSError:  # a file, or not to be read
        return None
    names = [name for name in names if not name.startswith(".")]
    found = difflib.get_close_matches(path.name, names, n=1, cutoff=0.75)
    return parent / found[0] if found else None


def read_json(path):
    """The value in a JSON file.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is not JSON, or nested too deeply for Python.
    """
    try:
        return json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged or no JSON: {error}.") from error


def folder_digest(folder):
    """A checksum of the names and the content of all files in a folder, the key of whatever is cached of it.

    Paths and dates are no such key: they can stay the same while the content changes. A gigabyte takes about a second.
    Links are followed. Files and folders whose names begin with a dot are left out: nothing here reads them.

    Args:
        folder: Path.

    Returns:
        A string of 64 hexadecimal digits.

    Raises:
        OSError: if a file cannot be read.
        ValueError: if there are more than 10,000 files and folders.

    Example:

    ```python
    folder = pathlib.Path(tempfile.mkdtemp())
    (folder / "model.json").write_text("{}")
    digest = folder_digest(folder)
    (folder / "model.json").write_text("[]")
    assert folder_digest(folder) != digest
    ```
    """
    digest = hashlib.sha256()
    for path in _all_files(pathlib.Path(folder), (), itertools.count(1)):
        with open(path, "rb") as file:
            checksum = hashlib.file_digest(file, "sha256").digest()
        name = os.fsencode(path.relative_to(folder).as_posix())
        digest.update(len(name).to_bytes(8, "little") + name + checksum)
    return digest.hexdigest()


def _all_files(folder, outer_folders, numbers):
    """The files in a folder and its subfolders, in the order of their names; `outer_folders` are those around it."""
    real = os.path.realpath(folder)
    if real in outer_folders:  # a link to one of the folders around it
        return
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        if next(numbers) > _MOST_FILES:
            raise ValueError(
                f"There are more than {_MOST_FILES:,} files and folders, {path} for instance. Give a folder that holds a model "
                "and nothing else."
            )
        if path.is_dir():
            yield from _all_files(path, (*outer_folders, real), numbers)
        elif path.is_file():
            yield path


def remove_unfinished(folder):
    """Removes the unfinished files of killed processes from `folder`. No process may be writing to it."""
    for path in pathlib.Path(folder).glob(f"{_UNFINISHED}*"):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def remove_abandoned(folder):
    """Removes unfinished files whose processes no longer run on this machine; other processes may be writing to `folder`."""
    for path in pathlib.Path(folder).glob(f"{_UNFINISHED}{_host()}-*"):
        process = path.name.removeprefix(f"{_UNFINISHED}{_host()}-").partition("-")[0]
        if not process.isdecimal() or _is_running(int(process)):
            continue
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _host():
    """A short name of this machine, without a dash."""
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]


def _is_running(process):
    if sys.platform == "win32":  # there, signal 0 would end the process
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's process
        return True
    return True


def _temporary_path(path):
    """An unused path next to `path`."""
    return path.with_name(f"{_UNFINISHED}{_host()}-{os.getpid()}-{next(_numbers)}-{path.name}")


def _older_path(folder):
    """Where `_replace_in_two_steps` keeps the older folder between its steps."""
    return folder.with_name(f"{_OLDER}{folder.name}")


def _write_through(path):
    """Flushes a file to disk. Otherwise a power cut could leave the new name without the content."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def _replace_in_two_steps(built, folder):
    """Between the two steps, the older folder has a name from which `restored_folder` restores it."""
    older = _older_path(folder)
    folder.rename(older)
    try:
        built.rename(folder)
    except OSError:
        restored_folder(folder)
        raise
    _discard(older)


def _discard(older):
    # Renamed first, so that a folder with the older folder's name is always complete.
    unfinished = _temporary_path(older)
    with contextlib.suppress(FileNotFoundError):
        older.rename(unfinished)
        shutil.rmtree(unfinished, ignore_errors=True)
