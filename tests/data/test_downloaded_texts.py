"""Corpora from a folder, or downloaded and checked."""

import gzip
import hashlib
import re

import keras
import pytest

from keras_attn.data import PlainText, downloaded_texts, multi30k_pairs, shakespeare_text

TEXTS = {
    "train.en": "A dog.\nTwo cats.\n",
    "train.de": "Ein Hund.\nZwei Katzen.\n",
    "val.en": "A bird.\n",
    "val.de": "Ein Vogel.\n",
    "test_2016_flickr.en": "A fish.\nA horse.\nA cow.\n",
    "test_2016_flickr.de": "Ein Fisch.\nEin Pferd.\nEine Kuh.\n",
    "input.txt": "First Citizen:\nBefore we proceed, hear me speak.\n",
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.delenv("KERAS_ATTN_DATA", raising=False)
    for name, text in TEXTS.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


@pytest.fixture
def no_network(monkeypatch):
    def refuse(**arguments):
        raise AssertionError(f"a given folder must be enough, asked for {arguments}")

    monkeypatch.setattr(keras.utils, "get_file", refuse)


@pytest.mark.parametrize(
    ("split", "sources", "last_target"),
    [
        ("train", ["A dog.", "Two cats."], "Zwei Katzen."),
        ("validation", ["A bird."], "Ein Vogel."),
        ("test", ["A fish.", "A horse.", "A cow."], "Eine Kuh."),
    ],
)
def test_reads_a_given_folder_in_either_direction(folder, no_network, split, sources, last_target):
    pairs = multi30k_pairs(split, folder=folder)
    assert pairs.sources == sources
    assert pairs.targets[-1] == last_target
    assert pairs.name == f"multi30k {split} en-de"
    turned = multi30k_pairs(split, source_language="de", target_language="en", folder=str(folder))
    assert (turned.sources, turned.targets) == (pairs.targets, pairs.sources)


def test_the_third_language(folder, no_network):
    (folder / "val.fr").write_text("Un oiseau.\n", encoding="utf-8")
    pairs = multi30k_pairs("validation", source_language="fr", target_language="de", folder=folder)
    assert (pairs.sources, pairs.targets) == (["Un oiseau."], ["Ein Vogel."])
    assert pairs.name == "multi30k validation fr-de"
    names = [name.replace(".gz", "") for name in downloaded_texts._SHA256]
    assert len(set(downloaded_texts._SHA256.values())) == len(names) == len(set(names)) == 18
    assert {name.rpartition(".")[2] for name in names} == set(downloaded_texts.LANGUAGES)


def test_reads_the_folder_of_the_environment_variable(folder, no_network, monkeypatch):
    monkeypatch.setenv("KERAS_ATTN_DATA", str(folder))
    assert multi30k_pairs("validation").sources == ["A bird."]


def test_a_given_folder_goes_before_the_environment_variable(folder, no_network, monkeypatch):
    monkeypatch.setenv("KERAS_ATTN_DATA", str(folder / "elsewhere"))
    assert multi30k_pairs("validation", folder=folder).sources == ["A bird."]


def test_reads_gzipped_files(folder, no_network):
    for name, text in TEXTS.items():
        (folder / name).unlink()
        (folder / f"{name}.gz").write_bytes(gzip.compress(text.encode("utf-8")))
    assert multi30k_pairs("test", folder=folder).targets == ["Ein Fisch.", "Ein Pferd.", "Eine Kuh."]


def test_a_missing_file_lists_what_was_looked_for(folder, no_network):
    (folder / "val.de").unlink()
    looked_for = re.escape(f"{folder / 'val.de'} and {folder / 'val.de.gz'}")
    with pytest.raises(FileNotFoundError, match=f"`val.de` was not found. Looked for {looked_for}"):
        multi30k_pairs("validation", folder=folder)


@pytest.mark.parametrize("variable", [None, ""])
def test_downloads_with_address_and_checksum(folder, monkeypatch, variable):
    asked = []

    def get_file(**arguments):
        asked.append(arguments)
        return str(folder / arguments["fname"].removesuffix(".gz"))

    monkeypatch.setattr(keras.utils, "get_file", get_file)
    if variable is not None:
        monkeypatch.setenv("KERAS_ATTN_DATA", variable)
    assert multi30k_pairs("test").sources == ["A fish.", "A horse.", "A cow."]
    root = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw"
    assert [(call["origin"], call["file_hash"], call["hash_algorithm"]) for call in asked] == [
        (
            f"{root}/test_2016_flickr.en.gz",
            "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9",
            "sha256",
        ),
        (
            f"{root}/test_2016_flickr.de.gz",
            "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8",
            "sha256",
        ),
    ]


def test_tokenized_files_have_names_addresses_and_sums_of_their_own(folder, monkeypatch):
    asked = []

    def get_file(**arguments):
        asked.append((arguments["origin"].rpartition("/task1/")[2], arguments["file_hash"][:7]))
        return str(folder / arguments["fname"].replace(".lc.norm.tok", ""))

    monkeypatch.setattr(keras.utils, "get_file", get_file)
    pairs = multi30k_pairs("validation", tokenized=True)
    assert pairs.name == "multi30k validation en-de, tokenized"
    assert asked == [("tok/val.lc.norm.tok.en", "46573ce"), ("tok/val.lc.norm.tok.de", "97232bd")]
    for language in ("en", "de"):
        (folder / f"val.lc.norm.tok.{language}").write_text("a bird .\n")
    assert multi30k_pairs("validation", folder=folder, tokenized=True).sources == ["a bird ."]


def test_keras_get_file_accepts_these_arguments_and_checks_the_sum(folder, monkeypatch, tmp_path):
    """The real `get_file`, fed from a file: a right sum passes, a wrong one is an error that says what to do."""
    monkeypatch.setattr(downloaded_texts, "_MULTI30K", folder.as_uri())
    (folder / "raw").mkdir()
    sums = {}
    for name in ("val.en", "val.de"):
        data = TEXTS[name].encode("utf-8")
        (folder / "raw" / f"{name}.gz").write_bytes(data)
        sums[f"{name}.gz"] = hashlib.sha256(data).hexdigest()
    real_get_file = keras.utils.get_file
    monkeypatch.setattr(
        keras.utils, "get_file", lambda **kw: real_get_file(**kw, cache_dir=str(tmp_path / "cache"))
    )
    (tmp_path / "cache").mkdir()
    monkeypatch.setattr(downloaded_texts, "_SHA256", sums)
    assert multi30k_pairs("validation").targets == ["Ein Vogel."]
    monkeypatch.setattr(downloaded_texts, "_SHA256", dict.fromkeys(sums, "0" * 64))
    with pytest.raises(FileNotFoundError, match=r"`val\.en\.gz` could not be downloaded .*KERAS_ATTN_DATA"):
        multi30k_pairs("validation")


def test_bad_arguments(folder):
    with pytest.raises(ValueError, match=r"must be one of train, validation, test\. Received: split='val'"):
        multi30k_pairs("val", folder=folder)
    for source, target in [("en", "it"), ("fr", "fr"), (None, "de")]:
        with pytest.raises(
            ValueError, match=f"must be two of en, de, fr.*{source!r}, target_language={target!r}"
        ):
            multi30k_pairs("train", source_language=source, target_language=target, folder=folder)


def test_shakespeare_comes_from_a_folder(folder, monkeypatch):
    assert shakespeare_text(folder) == PlainText(TEXTS["input.txt"], "tiny-shakespeare")
    monkeypatch.setenv("KERAS_ATTN_DATA", str(folder))
    assert shakespeare_text().text == TEXTS["input.txt"]
    (folder / "input.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"tinyshakespeare's `input\.txt` was not found. Looked for"):
        shakespeare_text()


def test_shakespeare_is_downloaded_and_checked(folder, monkeypatch):
    file = folder / "input.txt"

    def get_file(fname, origin, file_hash, hash_algorithm, cache_subdir):
        assert (fname, cache_subdir, hash_algorithm) == ("input.txt", "datasets/tinyshakespeare", "sha256")
        assert re.fullmatch("https://.*/tinyshakespeare/input[.]txt", origin)
        if file_hash != hashlib.sha256(file.read_bytes()).hexdigest():
            raise ValueError("Incomplete or corrupted file detected.")
        return str(file)

    monkeypatch.setattr(keras.utils, "get_file", get_file)
    with pytest.raises(FileNotFoundError, match=r"could not be downloaded \(Incomplete.*KERAS_ATTN_DATA"):
        shakespeare_text()
    monkeypatch.setattr(
        downloaded_texts, "_SHAKESPEARE_SHA256", hashlib.sha256(file.read_bytes()).hexdigest()
    )
    assert shakespeare_text().text == TEXTS["input.txt"]
