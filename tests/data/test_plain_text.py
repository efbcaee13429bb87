import gzip
import hashlib
import re

import keras
import pytest

from keras_attn.data import PlainText, downloaded_texts, read_plain_text, shakespeare_text

TEXT = "First Citizen:\nBefore we proceed, hear me speak.\r\n\nAll:\nSpeak. \u2028 é\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.delenv("KERAS_ATTN_DATA", raising=False)
    (tmp_path / "input.txt").write_bytes(TEXT.encode())
    return tmp_path


def test_a_text_is_read_as_it_is(folder):
    assert read_plain_text(folder / "input.txt") == PlainText(TEXT, "input.txt")
    (folder / "marked.txt.gz").write_bytes(gzip.compress(b"\xef\xbb\xbf" + TEXT.encode()))
    assert read_plain_text(str(folder / "marked.txt.gz")) == PlainText(TEXT, "marked.txt.gz")


def test_the_parts_are_the_text():
    training, validation = PlainText("abcdefghijklmnopqrs", "letters").split()
    assert (training.text, validation.text) == ("abcdefghijklmnopq", "rs")
    assert (training.name, validation.name) == ("letters, training", "letters, validation")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty. Give a file with text."),
        (b"one\ntwo \xff\n", "line 2: the text must be UTF-8"),
        (gzip.compress(b"one")[:-9], "is not a whole gzip file"),
    ],
    ids=["empty", "no-utf8", "cut-gzip"],
)
def test_what_is_no_text_is_refused(tmp_path, content, message):
    (tmp_path / "play.txt").write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(message)):
        read_plain_text(tmp_path / "play.txt")
    with pytest.raises(FileNotFoundError, match="does not exist"):
        read_plain_text(tmp_path / "no.txt")


def test_shakespeare_comes_from_a_folder(folder, monkeypatch):
    assert shakespeare_text(folder) == PlainText(TEXT, "tiny-shakespeare")
    monkeypatch.setenv("KERAS_ATTN_DATA", str(folder))
    assert shakespeare_text().text == TEXT
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
    assert shakespeare_text().text == TEXT
