"""What a folder is taken for."""

import concurrent.futures
import os
import pathlib
import shutil
import threading

import pytest

from keras_attn.export.fingerprint import write_fingerprint
from keras_attn.serve import folders
from keras_attn.serve.folders import Version, find_version, find_versions
from keras_attn.tasks import export_cache
from keras_attn.tasks.export_cache import content_of


def make_version(folder):
    folder.mkdir(parents=True)
    (folder / "saved_model.pb").touch()
    return folder


class Task:
    """Stands for `Translator`, whose export takes long."""

    def __init__(self, folder):
        self.folder = folder

    @classmethod
    def load(cls, folder):
        cls.loaded.append(folder)
        return cls(folder)

    def export(self, folder):
        version = make_version(folder / "1")
        (version / "saved_model.pb").write_text(str(self.folder))
        write_fingerprint(version)
        return version


@pytest.fixture(autouse=True)
def tasks(monkeypatch, tmp_path):
    monkeypatch.setattr(folders, "_MARKERS", {"translator.json": Task.load})
    monkeypatch.setattr(Task, "loaded", [], raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("KERAS_ATTN_CACHE", raising=False)
    return Task


def make_translator(folder, content="{}"):
    folder.mkdir(parents=True)
    (folder / "translator.json").write_text(content)
    return folder


def test_the_newest_version_of_a_model_is_served(tmp_path):
    for number in ("2", "10", "9", "x"):
        make_version(tmp_path / "dates" / number)
    assert find_version(tmp_path / "dates") == Version("dates", 10, tmp_path / "dates" / "10")


def test_a_version_is_served_under_its_models_name(tmp_path):
    make_version(tmp_path / "dates" / "7")
    assert find_version(tmp_path / "dates" / "7") == Version("dates", 7, tmp_path / "dates" / "7")


def test_an_export_in_a_folder_of_any_name_is_version_1(tmp_path):
    assert find_version(make_version(tmp_path / "dates")) == Version("dates", 1, tmp_path / "dates")


def test_the_folder_may_be_the_one_that_we_are_in(tmp_path, monkeypatch):
    monkeypatch.chdir(make_version(tmp_path / "dates" / "7"))
    assert find_version(".")[:2] == ("dates", 7)
    monkeypatch.chdir("..")
    assert find_version(".")[:2] == ("dates", 7)


@pytest.mark.parametrize("inner", ["", "translator"])
def test_a_run_is_exported_to_the_cache_under_its_name_until_it_changes(tmp_path, tasks, capsys, inner):
    translator = make_translator(tmp_path / "mine" / "translator")
    first = find_version(tmp_path / "mine" / inner)
    assert first[:2] == ("mine", 1)
    assert first.folder.is_relative_to(tmp_path / "cache" / "keras_attn" / "exports")
    assert (first.task, first.content) == (translator, content_of(translator))
    assert capsys.readouterr().out == f"Exporting {translator} to {first.folder.parent} ...\n"
    os.utime(translator / "translator.json", (1, 1))
    assert find_version(tmp_path / "mine" / inner) == first
    (translator / "translator.json").write_text("{ }")
    os.utime(translator / "translator.json", (1, 1))
    assert find_version(tmp_path / "mine" / inner).folder != first.folder
    assert tasks.loaded == [translator] * 2
    assert [path.name for path in (tmp_path / "mine").rglob("*")] == ["translator", "translator.json"]


def move(folder):
    return folder.rename(folder.with_name("other"))


def copy(folder):
    return shutil.copytree(folder, folder.with_name("copied"))  # with its dates, as `cp -a`


def swap(folder):
    """Another model comes to the path, with the first one's dates."""
    move(folder)
    make_translator(folder / "translator", "[]")
    return folder


def change_weights(folder):
    (folder / "translator" / "model.safetensors").write_text("other")
    return folder


def change_within(folder):
    (folder / "translator" / "source_tokenizer" / "words").write_text("other")
    return folder


def link(folder):
    """A file is a link to one elsewhere, which changes."""
    weights = folder / "translator" / "model.safetensors"
    weights.unlink()
    (folder / "elsewhere").write_text("other")
    weights.symlink_to(folder / "elsewhere")
    return folder


def leave_as_it_is(folder):
    (folder / "log.txt").write_text("more")
    (folder / "translator" / ".hidden").write_text("more")
    return folder


@pytest.mark.parametrize(
    ("change", "makes"),
    [
        (move, 1),
        (copy, 1),
        (swap, 2),
        (change_weights, 2),
        (change_within, 2),
        (link, 2),
        (leave_as_it_is, 1),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_an_export_is_found_by_content_and_name_alone(tmp_path, tasks, change, makes):
    """Neither by a path nor by dates: every file here has the same."""

    def same_dates():
        for path in tmp_path.rglob("*"):
            os.utime(path, (1, 1), follow_symlinks=False)

    run = tmp_path / "run"
    translator = make_translator(run / "translator")
    (translator / "source_tokenizer").mkdir()
    (translator / "source_tokenizer" / "words").write_text("a")
    (translator / "model.safetensors").write_text("first")
    same_dates()
    first = find_version(run)
    changed = change(run)
    same_dates()
    second = find_version(changed)
    assert len(tasks.loaded) == (2 if changed.name != run.name else makes)  # the name is part of an export
    assert (first.content == second.content) == (makes == 1)
    assert (first.folder == second.folder) == (len(tasks.loaded) == 1)
    assert second.folder.joinpath("saved_model.pb").read_text() == str(tasks.loaded[-1])


PLANTED = """
    . 1 7 served/run/1 served/run/9 translator translator/1 translator/served/run/1
""".split()


@pytest.mark.parametrize("place", PLANTED)
@pytest.mark.parametrize("named", ["run", "run/translator"])
def test_a_saved_model_in_a_run_or_a_saved_task_is_never_served(tmp_path, tasks, capsys, place, named):
    make_translator(tmp_path / "run" / "translator")
    planted = tmp_path / "run" / place
    planted.mkdir(parents=True, exist_ok=True)
    (planted / "saved_model.pb").write_text("evil")
    write_fingerprint(planted)
    (planted / "saved_model.pb").touch()  # newer than the task
    version = find_version(tmp_path / named)
    assert version.folder.is_relative_to(tmp_path / "cache")
    assert version.folder.joinpath("saved_model.pb").read_text() != "evil"
    direct = {"run": [".", "1", "7"], "run/translator": ["translator", "translator/1"]}
    assert ("holds a SavedModel beside" in capsys.readouterr().out) == (place in direct[named])


def test_other_code_other_versions_and_other_settings_are_other_exports(tmp_path, tasks, monkeypatch):
    run = make_translator(tmp_path / "run" / "translator")
    found = [find_version(run).folder]
    monkeypatch.setattr(export_cache, "_code_digest", lambda: "other code")
    found.append(find_version(run).folder)
    monkeypatch.setattr(export_cache, "_version", lambda package: "9.9")
    found.append(find_version(run).folder)
    monkeypatch.setattr(export_cache.keras.config, "floatx", lambda: "float64")
    found.append(find_version(run).folder)
    assert len(set(found)) == len(tasks.loaded) == 4


def exports(tmp_path):
    return tmp_path / "cache" / "keras_attn" / "exports"


def of_another_user(tmp_path, monkeypatch):
    exports(tmp_path).mkdir(parents=True, mode=0o700)
    user = os.geteuid()
    monkeypatch.setattr(export_cache.os, "geteuid", lambda: user + 1)


def writable_by_others(tmp_path, monkeypatch):
    exports(tmp_path).mkdir(parents=True)
    exports(tmp_path).chmod(0o777)


def parent_writable_by_others(tmp_path, monkeypatch):
    exports(tmp_path).mkdir(parents=True)
    exports(tmp_path).parent.chmod(0o777)


def a_link(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    exports(tmp_path).parent.mkdir(parents=True)
    exports(tmp_path).symlink_to(tmp_path / "elsewhere")


def a_file(tmp_path, monkeypatch):
    exports(tmp_path).parent.mkdir(parents=True)
    exports(tmp_path).write_text("")


def read_only(tmp_path, monkeypatch):
    monkeypatch.setattr(export_cache.os, "access", lambda path, mode: False)


def nobody_at_home(tmp_path, monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME")

    def home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(export_cache.pathlib.Path, "home", home)


@pytest.mark.parametrize(
    "spoil",
    [
        of_another_user,
        writable_by_others,
        parent_writable_by_others,
        a_link,
        a_file,
        read_only,
        nobody_at_home,
    ],
    ids=lambda spoil: spoil.__name__,
)
def test_a_cache_that_is_not_the_users_own_is_not_used(tmp_path, tasks, monkeypatch, capsys, spoil):
    temporary = tmp_path / "temporary"
    temporary.mkdir(mode=0o700)
    monkeypatch.setattr(export_cache.tempfile, "mkdtemp", lambda prefix: str(temporary))
    run = make_translator(tmp_path / "run" / "translator")
    spoil(tmp_path, monkeypatch)
    if spoil is of_another_user:
        monkeypatch.setattr(export_cache, "_temporary_folder", lambda: temporary)
        with pytest.raises(OSError, match="is not what was written there"):  # here, all is of the other user
            find_version(run)
    else:
        assert find_version(run).folder.is_relative_to(temporary)
    assert "The export is made in a temporary folder." in capsys.readouterr().out


def test_the_cache_is_for_its_user_alone_and_can_be_moved(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_ATTN_CACHE", str(tmp_path / "there" / "of mine"))
    os.umask(older := os.umask(0))
    version = find_version(make_translator(tmp_path / "run" / "translator"))
    assert version.folder.is_relative_to(tmp_path / "there" / "of mine" / "exports")
    for folder in (version.folder.parents[1], *version.folder.parents[2:4]):
        assert folder.stat().st_mode & 0o777 == 0o700, folder
    assert os.umask(older) == older


def test_a_damaged_or_half_written_export_is_made_again(tmp_path, tasks):
    run = make_translator(tmp_path / "run" / "translator")
    version = find_version(run)
    for damage in (lambda path: path.write_text("cut"), pathlib.Path.unlink):
        damage(version.folder / "saved_model.pb")
        assert find_version(run) == version
        assert version.folder.joinpath("saved_model.pb").read_text() == str(run)
    assert len(tasks.loaded) == 3
    unfinished = exports(tmp_path) / ".unfinished-x" / "run" / "1"
    make_version(unfinished)  # of a process that was killed
    assert find_version(run) == version


def test_a_failed_export_leaves_nothing(tmp_path, tasks, monkeypatch):
    run = make_translator(tmp_path / "run" / "translator")

    def fail(self, folder):
        make_version(folder / "1")
        raise OSError("the disk is full")

    monkeypatch.setattr(tasks, "export", fail)
    with pytest.raises(OSError, match="the disk is full"):
        find_version(run)
    assert list(exports(tmp_path).iterdir()) == []

    def change(self, folder):
        (run / "translator.json").write_text("changed")
        return make_version(folder / "1")

    monkeypatch.setattr(tasks, "export", change)
    with pytest.raises(ValueError, match="was changed while it was exported"):
        find_version(run)
    assert list(exports(tmp_path).iterdir()) == []


def test_two_at_once_have_one_export(tmp_path, tasks, monkeypatch):
    run = make_translator(tmp_path / "run" / "translator")
    both, export = threading.Barrier(2), Task.export

    def export_together(self, folder):
        both.wait(10)
        return export(self, folder)

    monkeypatch.setattr(tasks, "export", export_together)
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        one, other = threads.map(find_version, [run, run])
    assert one == other
    assert len(tasks.loaded) == 2
    assert len(list(exports(tmp_path).iterdir())) == 1


def test_those_unused_for_longest_are_removed_and_none_that_is_in_use(tmp_path, tasks, monkeypatch):
    monkeypatch.setattr(export_cache, "MOST_EXPORTS", 2)
    in_use = []
    monkeypatch.setattr(export_cache, "_in_use", in_use)

    def made(name):
        version = find_version(make_translator(tmp_path / name, name))
        number = len(tasks.loaded)
        os.utime(version.folder.parents[1] / "in_use", (number, number))
        return version.folder

    def stop_serving():
        while in_use:
            os.close(in_use.pop())

    served = made("first")
    kept = in_use.pop()  # another process serves it
    stop_serving()
    folders = [made(name) for name in ("second", "third")]
    assert [folder.exists() for folder in (served, *folders)] == [True, True, True]  # all are in use
    stop_serving()
    fourth = made("fourth")
    assert [folder.exists() for folder in (served, *folders, fourth)] == [True, False, True, True]
    os.close(kept)
    monkeypatch.setattr(export_cache, "MOST_BYTES", 1)
    stop_serving()
    last = made("last")
    assert [path.name for path in exports(tmp_path).iterdir()] == [last.parents[1].name]


def test_names_are_different(tmp_path):
    same = [make_version(tmp_path / place / "dates" / "1") for place in "ab"]
    with pytest.raises(
        ValueError, match=r"Models must have different names. Received: 'dates' for .*a/dates/1, .*b/dates/1"
    ):
        find_versions(same)


def test_a_folder_with_nothing_in_it_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="There is nothing to serve in"):
        find_version(tmp_path)
