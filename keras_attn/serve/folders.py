"""From a folder that a user names to a version folder: of a model, of a version, of a run, or of a saved task."""

import collections
import hashlib
import os
import pathlib
import shutil

from keras_attn.tasks import checkpoint_folder, load_task
from keras_attn.tasks.loading import TASKS
from keras_attn.tasks.task_files import folder_name_of
from keras_attn.terminal import say

Version = collections.namedtuple("Version", ["name", "number", "folder", "task"], defaults=[None])
Version.__doc__ = """What is served: the model's name, the version's number, the folder with `saved_model.pb`, and that of
the task it is an export of, or None where that is not known."""

_MODEL_FILE = "saved_model.pb"
# The file that tells what a folder holds, and what reads it. A checkpoint is a task too.
_MARKERS = {marker: task_class.load for marker, task_class in TASKS.items()}
_MARKERS |= dict.fromkeys(("config.json", "checkpoint"), load_task)  # of the hub, and of OpenNMT-tf
_TASK_FOLDERS = tuple(map(folder_name_of, TASKS.values()))


def find_versions(folders):
    """The `Version` of each folder; runs and saved tasks are exported aside.

    Args:
        folders: Paths of model folders (the newest version is taken), version folders, run folders, or folders of saved
            translators, text generators and other tasks, or of checkpoints; or names of checkpoints on the hub.

    Returns:
        A list of `Version`s.

    Raises:
        ValueError: if two have the same name.
        FileNotFoundError: if a folder is none of these.
    """
    versions = [find_version(folder) for folder in folders]
    for name, count in collections.Counter(version.name for version in versions).items():
        if count > 1:
            same = [str(folder) for folder, version in zip(folders, versions) if version.name == name]
            raise ValueError(f"Models must have different names. Received: {name!r} for {', '.join(same)}.")
    return versions


def find_version(folder):
    """The `Version` of one folder, see `find_versions`."""
    folder = checkpoint_folder(folder)
    resolved = folder.resolve()
    if (folder / _MODEL_FILE).is_file():
        if resolved.name.isdecimal():
            return Version(resolved.parent.name, int(resolved.name), folder)
        return Version(resolved.name, 1, folder)
    if newest := newest_version(folder):
        return Version(resolved.name, int(newest.name), newest)
    if saved := _saved_task(folder):
        exported = _exported(*saved)
        return Version(exported.parent.name, int(exported.name), exported, saved[0])
    raise FileNotFoundError(
        f"There is nothing to serve in {folder}: it holds no exported model ({_MODEL_FILE}), no version of one, no run, "
        "no saved translator, text generator or other task, and no checkpoint."
    )


def newest_version(folder):
    """The version folder with the highest number in a model's folder, or None."""
    versions = [path.parent for path in pathlib.Path(folder).glob(f"*/{_MODEL_FILE}")]
    return max(
        (path for path in versions if path.name.isdecimal()), key=lambda path: int(path.name), default=None
    )


def _saved_task(folder):
    """(the folder of a task, its marker, the model's name), where the folder is one or is a run that has one."""
    for marker in _MARKERS:
        if (folder / marker).is_file():
            is_of_run = folder.resolve().name in _TASK_FOLDERS
            return folder, marker, (folder.resolve().parent if is_of_run else folder.resolve()).name
        for name in _TASK_FOLDERS:
            if (folder / name / marker).is_file():
                return folder / name, marker, folder.resolve().name
    return None


def _exported(folder, marker, name):
    """The newest version of an export of a saved task, which is made where there is none that is newer than the task."""
    for place in _places(folder):
        newest = newest_version(place / name)
        if newest and (newest / _MODEL_FILE).stat().st_mtime >= (folder / marker).stat().st_mtime:
            return newest
    place = next(place for place in _places(folder) if _is_writable(place))
    say(f"Exporting {folder} to {place / name} ...")
    exported = _MARKERS[marker](folder).export(place / name)
    for older in (place / name).iterdir():
        if older.name.isdecimal() and int(older.name) < int(exported.name):
            shutil.rmtree(older)
    return exported


def _places(folder):
    """Where exports of a saved task may lie: in its run, or in the user's cache."""
    folder = folder.resolve()
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    places = [cache / "keras_attn" / "served" / hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]]
    return [folder.parent / "served", *places] if folder.name in _TASK_FOLDERS else places


def _is_writable(place):
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(place, os.W_OK)
