"""Files and folders written aside: whole whenever the process ends, and with the modes that `open` and `mkdir` give."""

import os
import stat
import subprocess
import sys

import pytest

from keras_attn import files
from keras_attn.files import (
    folder_digest,
    not_there,
    read_json,
    remove_unfinished,
    replaced_file,
    replaced_folder,
    restored_folder,
)

# Loads the leaf without the package around it, whose Keras takes seconds.
LIGHT = """
import os, runpy, sys, types

script = sys.argv[1]
package = sys.modules["keras_attn"] = types.ModuleType("keras_attn")
package.__path__ = [os.path.dirname(script)]
files = runpy.run_path(script)
"""
# A process that dies at the COUNT-th change of names, before or after it.
KILLED = f"""{LIGHT}
kind, can_exchange, when, count = sys.argv[2:]
changes = 0

def dying(change):
    def changed(*arguments, **options):
        global changes
        changes += 1
        if changes == int(count) and when == "before":
            os._exit(9)
        try:
            return change(*arguments, **options)
        finally:
            if changes == int(count) and when == "after":
                os._exit(9)
    return changed

functions = files["replaced_folder"].__wrapped__.__globals__
os.rename, os.replace, os.unlink, os.rmdir = map(dying, (os.rename, os.replace, os.unlink, os.rmdir))
functions["exchange_folders"] = dying(functions["exchange_folders"]) if can_exchange == "True" else lambda one, other: False
if kind == "file":
    with files["replaced_file"]("it") as aside:
        aside.write_text("new" * 1000)
else:
    with files["replaced_folder"]("it", "marker", "thing") as built:
        (built / "content").write_text("new" * 1000)
        (built / "marker").write_text("new")
"""


def run_until_killed(folder, *arguments):
    """Whether the process was killed; if not, it has ended without an error."""
    command = [sys.executable, "-c", KILLED, files.__file__, *map(str, arguments)]
    child = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert child.returncode in (0, 9), child.stderr
    return child.returncode == 9


def contents(folder):
    return {path.name: path.read_text() for path in folder.iterdir()}


OLD = {"content": "old" * 999, "marker": "old"}
NEW = {"content": "new" * 1000, "marker": "new"}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("can_exchange", [True, False])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("stood", [True, False])
def test_a_kill_at_any_step_leaves_the_old_or_the_new_folder_whole(tmp_path, can_exchange, when, stood):
    found = []
    for count in range(1, 20):
        place = tmp_path / str(count)
        (place / "it").mkdir(parents=True)
        if stood:
            for name, text in OLD.items():
                (place / "it" / name).write_text(text)
        was_killed = run_until_killed(place, "folder", can_exchange, when, count)
        found.append(contents(restored_folder(place / "it")))
        assert found[-1] in ((OLD if stood else {}), NEW)
        # What was left does not stand in the way of the next, and goes with it.
        with replaced_folder(place / "it", "marker", "thing") as built:
            (built / "marker").write_text("next")
        assert contents(place / "it") == {"marker": "next"}
        remove_unfinished(place)
        assert os.listdir(place) == ["it"]
        if not was_killed:
            break
    assert found[0] != NEW
    assert found[-1] == NEW
    assert len(found) > (4 if stood else 1)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_kill_at_any_step_leaves_the_old_or_the_new_file_whole(tmp_path, when):
    for count in range(1, 9):
        (tmp_path / "it").write_text("old")
        was_killed = run_until_killed(tmp_path, "file", True, when, count)
        assert (tmp_path / "it").read_text() in ("old", "new" * 1000)
        remove_unfinished(tmp_path)
        assert os.listdir(tmp_path) == ["it"]
        if not was_killed:
            break
    assert count > 1
    assert (tmp_path / "it").read_text() == "new" * 1000


def test_a_folder_that_cannot_be_put_in_place_leaves_the_older(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "exchange_folders", lambda one, other: False)
    (tmp_path / "it").mkdir()
    (tmp_path / "it" / "marker").write_text("old")
    rename = os.rename

    def failing(source, destination, **options):
        if "unfinished" in str(source):
            raise PermissionError(13, "Permission denied")
        rename(source, destination, **options)

    monkeypatch.setattr(os, "rename", failing)
    with pytest.raises(PermissionError), replaced_folder(tmp_path / "it", "marker", "thing") as built:
        (built / "marker").write_text("new")
    assert contents(tmp_path / "it") == {"marker": "old"}
    assert os.listdir(tmp_path) == ["it"]


def test_what_is_of_another_kind_is_not_replaced(tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for name in ("notes", "file"):
        refused = pytest.raises(ValueError, match=f"{name} exists and holds no thing. Choose another folder")
        with refused, replaced_folder(tmp_path / name, "marker", "thing"):
            pytest.fail("The block must not begin.")
    assert contents(tmp_path / "notes") == {"mine.txt": "mine"}
    assert sorted(os.listdir(tmp_path)) == ["file", "notes"]


@pytest.mark.parametrize(("umask", "modes"), [(0o022, (0o755, 0o644)), (0o027, (0o750, 0o640))])
def test_modes_are_those_that_open_and_mkdir_give(tmp_path, umask, modes):
    import numpy as np

    from keras_attn.models import write_weights

    before = os.umask(umask)
    try:
        for _ in range(2):  # new, and in the place of an older one
            with replaced_folder(tmp_path / "folder", "model.safetensors", "thing") as built:
                write_weights({"x": np.ones((2, 3))}, built / "model.safetensors")
            with replaced_file(tmp_path / "file") as aside:
                aside.unlink()
                aside.touch(mode=0o600)
    finally:
        os.umask(before)
    folder = tmp_path / "folder"
    found = [stat.S_IMODE(path.stat().st_mode) for path in (folder, folder / "model.safetensors")]
    assert tuple(found) == modes
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == modes[1]


def test_links_are_followed(tmp_path):
    (tmp_path / "disk" / "folder").mkdir(parents=True)
    (tmp_path / "disk" / "file").write_text("old")
    for name in ("folder", "file"):
        (tmp_path / name).symlink_to(tmp_path / "disk" / name)
    with replaced_file(tmp_path / "file") as aside:
        aside.write_text("new")
    with replaced_folder(tmp_path / "folder", "marker", "thing") as built:
        (built / "marker").write_text("new")
    assert all((tmp_path / name).is_symlink() for name in ("file", "folder"))
    assert (tmp_path / "disk" / "file").read_text() == (tmp_path / "disk" / "folder" / "marker").read_text()
    assert sorted(os.listdir(tmp_path)) == ["disk", "file", "folder"]


def test_an_error_in_the_block_leaves_what_stood_there(tmp_path):
    (tmp_path / "file").write_text("old")

    def fail(error):
        with replaced_file(tmp_path / "file") as aside:
            aside.write_text("half")
            raise error

    with pytest.raises(OSError, match=r"file could not be written: .*full.* is untouched"):
        fail(OSError("the disk is full"))
    with pytest.raises(KeyError):
        fail(KeyError("x"))
    with pytest.raises(OSError, match="is untouched"), replaced_file(tmp_path / "file" / "inside"):
        pass
    assert contents(tmp_path) == {"file": "old"}


def test_json_that_cannot_be_read_names_the_file(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"x": [1]}')
    assert read_json(path) == {"x": [1]}
    for text in (b"{", b"\xff", b"[" * 100_000, b'{"x":' * 100_000, b"9" * 10_000):
        path.write_bytes(text)
        with pytest.raises(ValueError, match=r"config\.json is damaged or no JSON"):
            read_json(path)
    with pytest.raises(FileNotFoundError):
        read_json(tmp_path / "none.json")


def test_a_digest_is_that_of_names_and_content(tmp_path):
    def of(**files):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        for name, content in files.items():
            path = folder / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        return folder_digest(folder)

    first = of(a="1", b__c="23")
    assert of(a="1", b__c="23") == first
    others = [
        of(a="1", b__c="2", d="3"),
        of(a="12", b__c="3"),
        of(ab="1", c="23"),
        of(b="1", a__c="23"),
        of(a="1"),
    ]
    assert len({first, *others}) == 6
    folder = tmp_path / "0"
    (folder / ".hidden").write_text("x")
    (folder / "b" / "around").symlink_to(folder)
    (folder / "dangling").symlink_to(tmp_path / "none")
    os.mkfifo(folder / "pipe")
    assert folder_digest(folder) == first
    (folder / "linked").symlink_to(tmp_path / "1" / "b")
    linked = folder_digest(folder)
    (tmp_path / "1" / "b" / "c").write_text("changed")
    assert len({first, linked, folder_digest(folder)}) == 3


def test_a_folder_of_very_many_files_has_no_digest(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_MOST_FILES", 3)
    for number in range(4):
        (tmp_path / f"{number}").touch()
    with pytest.raises(ValueError, match="more than 3 files and folders"):
        folder_digest(tmp_path)


def test_the_leaf_needs_no_keras():
    code = LIGHT + "assert not {'keras', 'numpy', 'tensorflow'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code, files.__file__], check=True)


def test_a_path_that_is_not_there_is_told_with_the_nearest(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "prices").mkdir(parents=True)
    (tmp_path / "file").touch()
    assert not_there("runs/price") == "runs/price does not exist. There is runs/prices."
    assert not_there("run/price") == "run/price does not exist. There is runs/prices."
    assert not_there("run") == "run does not exist. There is runs."
    for path in ("runs/dates", "other/prices", "file/prices", tmp_path / "none"):
        assert not_there(path) == f"{path} does not exist. Check the path."
