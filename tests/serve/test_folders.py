"""What a folder is taken for."""

import os

import pytest

from keras_attn.serve import folders
from keras_attn.serve.folders import Version, find_version, find_versions


def make_version(folder):
    folder.mkdir(parents=True)
    (folder / "saved_model.pb").touch()
    return folder


class Task:
    """Stands for `Translator`, whose export takes long."""

    @classmethod
    def load(cls, folder):
        cls.loaded.append(folder)
        return cls()

    def export(self, folder):
        return make_version(folder / str(max([0, *(int(path.name) for path in folder.glob("*"))]) + 1))


@pytest.fixture(autouse=True)
def tasks(monkeypatch, tmp_path):
    monkeypatch.setattr(folders, "_MARKERS", {"translator.json": Task.load})
    monkeypatch.setattr(Task, "loaded", [], raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Task


def make_translator(folder):
    folder.mkdir(parents=True)
    (folder / "translator.json").touch()
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
def test_a_run_is_exported_aside_under_its_name_until_it_changes(tmp_path, tasks, capsys, inner):
    translator = make_translator(tmp_path / "mine" / "translator")
    wanted = Version("mine", 1, tmp_path / "mine" / "served" / "mine" / "1", translator)
    assert find_version(tmp_path / "mine" / inner) == wanted
    assert capsys.readouterr().out == f"Exporting {translator} to {wanted.folder.parent} ...\n"
    assert find_version(tmp_path / "mine" / inner) == wanted
    assert tasks.loaded == [translator]
    later = wanted.folder.joinpath("saved_model.pb").stat().st_mtime + 5
    os.utime(translator / "translator.json", (later, later))
    assert find_version(tmp_path / "mine" / inner).number == 2
    assert [path.name for path in wanted.folder.parent.iterdir()] == ["2"]


def test_a_saved_translator_is_exported_to_the_cache(tmp_path, tasks):
    version = find_version(make_translator(tmp_path / "german"))
    assert version[:2] == ("german", 1)
    assert version.folder.is_relative_to(tmp_path / "cache" / "keras_attn" / "served")
    assert [path.name for path in (tmp_path / "german").iterdir()] == ["translator.json"]
    assert find_version(make_translator(tmp_path / "other" / "german")).folder != version.folder


def test_names_are_different(tmp_path):
    same = [make_version(tmp_path / place / "dates" / "1") for place in "ab"]
    with pytest.raises(
        ValueError, match=r"Models must have different names. Received: 'dates' for .*a/dates/1, .*b/dates/1"
    ):
        find_versions(same)


def test_a_folder_with_nothing_in_it_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="There is nothing to serve in"):
        find_version(tmp_path)
