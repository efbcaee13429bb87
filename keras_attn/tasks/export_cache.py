"""Exports of saved tasks that are made to be served here: in the user's cache, found by what they were made from.

A SavedModel is a program, so none is run that lies in a folder which was named as a run, a task or a checkpoint. An export
that is made of such a folder lies outside of it, where only this user can write. Its name is a checksum of everything that it depends on:
the content of the folder, the code that made it and its versions.
"""

import atexit
import contextlib
import hashlib
import importlib.metadata
import json
import os
import pathlib
import platform
import shutil
import stat
import tempfile

import keras

from keras_attn.export.fingerprint import fingerprint_problems
from keras_attn.files import folder_aside, folder_digest, remove_abandoned
from keras_attn.ops import processor_flags
from keras_attn.terminal import say, stage, stages_shown

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

CACHE_VARIABLE = "KERAS_ATTN_CACHE"
MOST_EXPORTS = 16
MOST_BYTES = 16 * 2**30
_LOCK = "in_use"
_VERSION = "1"
_PACKAGES = ("tensorflow", "keras", "tensorflow-text", "numpy")
# What graphs of quantised models are made for.
_INSTRUCTIONS = {"avx2", "avx512f", "avx512_bf16", "avx512_vnni", "avx_vnni", "amx_bf16", "amx_int8"}
# Descriptors of the lock files of the exports that this process uses: they keep their locks until it ends.
_in_use = []


def cached_export(folder, name, load, options=None):
    """The version folder of an export of a saved task: one that was made of the same content, or a new one.

    It is not removed while a process uses it. Beyond 16 exports or 16 GiB, those that were unused for longest are removed.

    Args:
        folder: Path of the saved task or checkpoint.
        name: String, the model's name.
        load: Function that reads the task in a folder.
        options: Dict of other arguments of `load`, all of them JSON values.

    Returns:
        A pair: the path of the version folder, and the `content_of` the folder.

    Raises:
        ValueError, OSError: if the folder cannot be read, changes meanwhile, or cannot be exported.

    Example:

    ```
    version, content = cached_export("runs/dates/translator", "dates", keras_attn.Translator.load)
    ```
    """
    content = content_of(folder)
    options = options or {}
    key = _key(content, name, options)
    cache, problem = _cache_folder()
    if cache is not None and (version := _find(cache / key, name)):
        return version, content
    if problem is not None:
        say(f"{problem} The export is made in a temporary folder.")
        cache = _temporary_folder()
    place = cache / key
    say(f"Exporting {folder} to {place / name} ...")
    remove_abandoned(cache)
    with folder_aside(place) as built:
        with stages_shown("the export"):
            stage("reading the task", done=0.0)
            task = load(folder, **options)
            task.export(built / name)
        if content_of(folder) != content:
            raise ValueError(f"{folder} was changed while it was exported. Try again.")
        (built / _LOCK).touch()
        built.chmod(0o700)
        version = _find(place, name)
        if version is None:  # and no other process has made it meanwhile
            _remove(place)  # a damaged one
            try:
                built.rename(place)
            except OSError:
                if not place.exists():
                    raise
            version = _find(place, name)
    if version is None:
        raise OSError(f"The export in {place} is not what was written there a moment ago.")
    _evict(cache)
    return version, content


def content_of(folder):
    """A checksum of all that a task in a folder is read from.

    Raises:
        ValueError, OSError: as `keras_attn.files.folder_digest`.
    """
    folder = pathlib.Path(folder)
    # OpenNMT-tf averages checkpoints into a folder of the run, which has the vocabularies.
    is_part = (folder / "checkpoint").is_file() and not [*folder.glob("*.yml"), *folder.glob("*.yaml")]
    return folder_digest(folder.resolve().parent if is_part else folder)


def _key(content, name, options):
    """What an export depends on, as the name of a folder."""
    parts = {
        "content": content,
        "name": name,
        "options": options,
        "code": _code_digest(),
        "versions": {package: _version(package) for package in _PACKAGES},
        "keras": [
            keras.backend.backend(),
            keras.config.floatx(),
            keras.config.dtype_policy().name,
            keras.config.image_data_format(),
        ],
        "processor": [platform.machine(), sorted(processor_flags() & _INSTRUCTIONS)],
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _code_digest():
    package = pathlib.Path(__file__).resolve().parents[1]
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(f"{path.relative_to(package).as_posix()} ".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cache_folder():
    """(the folder of exports or None, why nothing can be written there or None)."""
    try:
        given = os.environ.get(CACHE_VARIABLE)
        home = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
        root = pathlib.Path(os.path.realpath(given or pathlib.Path(home, "keras_attn")))
        folder = root / "exports"
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
    except (
        OSError,
        RuntimeError,
    ) as error:  # a file is in its place, it cannot be written, or nobody is at home
        return None, f"There is no cache for exports: {error}."
    for path in (root, folder):
        if not _is_own(path):
            return None, f"Others can write to {path}, so nothing in it is used."
    return folder, None if os.access(folder, os.W_OK) else f"{folder} cannot be written."


def _is_own(path):
    """Whether a path is a folder, no link, and only this user can change what is in it."""
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode):
        return False
    return not hasattr(os, "geteuid") or (status.st_uid == os.geteuid() and not status.st_mode & 0o022)


def _temporary_folder():
    """A new folder, which is removed when this process ends."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="keras_attn-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _find(place, name):
    """The version folder of a kept export, which is then in use until this process ends; None if there is none or it is damaged."""
    descriptor = _locked(place, exclusive=False)
    if descriptor is None:
        return None
    version = place / name / _VERSION
    if not _is_own(place) or fingerprint_problems(version) != []:
        os.close(descriptor)
        return None
    with contextlib.suppress(OSError):  # a file system that cannot be written
        os.utime(place / _LOCK)  # used now, for `_evict`
    _in_use.append(descriptor)
    return version


def _locked(place, *, exclusive):
    """The descriptor of the lock file of a kept export; None if there is none, or a lock for this process alone cannot be had."""
    try:
        descriptor = os.open(place / _LOCK, os.O_RDONLY)
    except OSError:
        return None
    try:
        if fcntl is not None:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB if exclusive else fcntl.LOCK_SH)
        if os.path.samestat(os.fstat(descriptor), os.stat(place / _LOCK)):
            return descriptor
    except OSError:  # in use, or removed since it was opened
        pass
    os.close(descriptor)
    return None


def _remove(place):
    """Removes a kept export; its name is free at once."""
    with folder_aside(place) as aside, contextlib.suppress(FileNotFoundError):
        place.rename(aside / place.name)


def _evict(cache):
    """Removes the exports that were unused for longest, beyond the bounds, unless a process uses them."""
    if fcntl is None:  # it cannot be told which are in use
        return
    last_used = {place: _time_of_use(place) for place in cache.iterdir() if not place.name.startswith(".")}
    num_bytes = 0
    for number, place in enumerate(sorted(last_used, key=last_used.get, reverse=True), 1):
        num_bytes += sum(path.lstat().st_size for path in place.rglob("*"))
        if number == 1 or (number <= MOST_EXPORTS and num_bytes <= MOST_BYTES):
            continue
        if (descriptor := _locked(place, exclusive=True)) is not None:
            _remove(place)
            os.close(descriptor)


def _time_of_use(place):
    try:
        return os.stat(place / _LOCK).st_mtime_ns
    except OSError:
        return 0
