"""From a folder that a user names to a version folder: of a model, of a version, of a run, or of a saved task."""

import collections
import pathlib

from keras_attn.task_registry import declarations, task_class
from keras_attn.tasks import checkpoint_folder, load_task
from keras_attn.tasks.export_cache import cached_export
from keras_attn.terminal import say

Version = collections.namedtuple(
    "Version", ["name", "number", "folder", "task", "content", "options"], defaults=[None, None, None]
)
Version.__doc__ = """What is served.

name: String, the model's name.
number: Integer.
folder: Path of the folder with `saved_model.pb`.
task: Path of the saved task that it was exported from for this server; or None.
content: String, the checksum of what that folder held.
options: Dict, with which the task was loaded.
"""

_MODEL_FILE = "saved_model.pb"
# The file that tells what a folder holds, and what reads it. A checkpoint is a task too.
_MARKERS = {declared.config_file: task_class(name).load for name, declared in declarations().items()}
_MARKERS |= dict.fromkeys(("config.json", "checkpoint"), load_task)  # of the hub, and of OpenNMT-tf
_TASK_FOLDERS = tuple(declared.file_stem for declared in declarations().values())


def find_versions(folders, ignored_fields=()):
    """The `Version` of each folder; runs and saved tasks are exported to the user's cache.

    A SavedModel is a program. It is run only if the folder that is named is one, or a folder of versions of one, and holds
    nothing else that can be served: never because it lies in a run, a saved task or a checkpoint.

    Args:
        folders: Paths of model folders (the newest version is taken), version folders, run folders, or folders of saved
            translators, text generators and other tasks, or of checkpoints; or names of checkpoints on the hub.
        ignored_fields: Of the checkpoints among them, as in `keras_attn.huggingface.load_model`.

    Returns:
        A list of `Version`s.

    Raises:
        ValueError: if two have the same name.
        FileNotFoundError: if a folder is none of these.
    """
    versions = [find_version(folder, ignored_fields) for folder in folders]
    for name, count in collections.Counter(version.name for version in versions).items():
        if count > 1:
            same = [str(folder) for folder, version in zip(folders, versions) if version.name == name]
            raise ValueError(f"Models must have different names. Received: {name!r} for {', '.join(same)}.")
    return versions


def find_version(folder, ignored_fields=()):
    """The `Version` of one folder, see `find_versions`."""
    folder = checkpoint_folder(folder)
    resolved = folder.resolve()
    is_version = (folder / _MODEL_FILE).is_file()
    newest = newest_version(folder)
    saved_task = _saved_task(folder)
    if saved_task:
        task_folder, marker, name = saved_task
        if is_version or newest:
            say(
                f"{folder} holds a SavedModel beside {marker}. It is not run: a model is served that is exported now from {task_folder}. "
                "To serve the SavedModel, give a folder that holds nothing else."
            )
        load = _MARKERS[marker]
        options = {}
        if ignored_fields and load is load_task:
            options["ignored_fields"] = list(ignored_fields)
        version, content = cached_export(task_folder, name, load, options)
        return Version(name, int(version.name), version, task_folder, content, options)
    if is_version:
        if resolved.name.isdecimal():
            return Version(resolved.parent.name, int(resolved.name), folder)
        return Version(resolved.name, 1, folder)
    if newest:
        return Version(resolved.name, int(newest.name), newest)
    raise FileNotFoundError(
        f"There is nothing to serve in {folder}: it holds no exported model ({_MODEL_FILE}), no version of one, no run, "
        "no saved translator, text generator or other task, and no checkpoint."
    )


def newest_version(folder):
    """The version folder with the highest number in a model's folder, or None."""
    exports = [path.parent for path in pathlib.Path(folder).glob(f"*/{_MODEL_FILE}")]
    versions = [path for path in exports if path.name.isdecimal()]
    return max(versions, key=lambda path: int(path.name), default=None)


def _saved_task(folder):
    """The folder of a task, its marker and the model's name, if a folder is that of a task or of a run that has one."""
    resolved = folder.resolve()
    for marker in _MARKERS:
        if (folder / marker).is_file():
            is_in_run = resolved.name in _TASK_FOLDERS
            name = resolved.parent.name if is_in_run else resolved.name
            return folder, marker, name
        for task_name in _TASK_FOLDERS:
            if (folder / task_name / marker).is_file():
                return folder / task_name, marker, resolved.name
    return None
