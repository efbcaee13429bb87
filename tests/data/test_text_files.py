"""Lines that stay on disk: the same as those of a list, wherever blocks are cut."""

import gzip
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_attn.data import text_files
from keras_attn.data.text_files import Column, Lines, Rows, read_text

ALPHABET = st.sampled_from("ab é€🐕\t\r\u2028\x85")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("block", [1, 2, 7, 64])
@given(texts=st.lists(st.text(ALPHABET, max_size=11), min_size=1, max_size=13), ends=st.booleans())
@settings(max_examples=40, deadline=None)
def test_lines_are_those_between_newlines(tmp_path_factory, block, texts, ends):
    data = "\n".join(texts).encode() + b"\n" * ends
    if not data:
        return
    file = tmp_path_factory.mktemp("lines") / "file"
    file.write_bytes(data)
    expected = data.decode().split("\n")
    expected = expected[:-1] if not expected[-1] else expected
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_files, "_BLOCK_BYTES", block)
        lines = Lines(file)
    expected = [line.removesuffix("\r") for line in expected]
    assert list(lines) == expected
    assert lines == expected
    assert lines[1:5:2] == expected[1:5:2]
    assert lines[-1] == expected[-1]
    assert read_text(file) == data.decode()
    with pytest.raises(IndexError):
        lines[len(expected)]


@pytest.mark.parametrize("block", [1, 5, 64])
@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "packed"])
def test_the_first_line_that_is_no_utf8_is_named(tmp_path, monkeypatch, block, pack):
    monkeypatch.setattr(text_files, "_BLOCK_BYTES", block)
    (tmp_path / "a").write_bytes(pack("é\nzwei\nab\n".encode() + b"xy\xe9z\n\xff\n"))
    with pytest.raises(ValueError, match=r"a, line 4: the text must be UTF-8.*byte 0xe9 at position 3 of"):
        Lines(tmp_path / "a")


def test_columns_and_rows_are_parts_of_a_sequence(tmp_path):
    (tmp_path / "a.tsv").write_text("a\tA\nb\tB\nc\tC\n", encoding="utf-8")
    column = Column(Lines(tmp_path / "a.tsv"), 1)
    assert column == ["A", "B", "C"]
    rows = Rows(column, np.array([2, 0]))
    assert (rows == ["C", "A"], rows != ["C"], rows[1:], len(rows)) == (True, True, ["A"], 2)
    assert repr(rows) == "<2 texts, the first 'C'>"
    assert column != "ABC"


CHILD = """
import ctypes, re, sys
from keras_attn.data import read_text_pairs, translation_batches
from keras_attn.text import ByteTokenizer

file, folder = sys.argv[1:]
pairs, tokenizer = read_text_pairs(file, file), ByteTokenizer()
batches = translation_batches(pairs, tokenizer, tokenizer, max_tokens=4096, max_sequence_length=1100, token_folder=folder)
for _ in batches.dataset().take(3):
    pass
# What was freed goes back to the system: what is left is held.
ctypes.CDLL("libc.so.6").malloc_trim(0)
status = open("/proc/self/status").read()
print(len(pairs), pairs.sources[-1], batches.num_pairs, re.search(r"RssAnon:\\s*(\\d+) kB", status)[1])
"""


@pytest.mark.extended
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_neither_lines_nor_token_ids_are_held_in_memory(tmp_path):
    line = "a line of text that says not much " * 30
    (tmp_path / "small").write_text(f"{line}\n" * 200 + "last\n", encoding="utf-8")
    (tmp_path / "large").write_text(f"{line}\n" * 40_000 + "last\n", encoding="utf-8")
    megabytes = {}
    for name in ("small", "large"):
        arguments = [sys.executable, "-c", CHILD, str(tmp_path / name), str(tmp_path / f"{name}-tokens")]
        child = subprocess.run(arguments, capture_output=True, text=True, check=False)
        assert child.returncode == 0, child.stderr
        answer = child.stdout.split()
        megabytes[name] = int(answer[-1]) / 1024
    assert answer[:3] == ["40001", "last", "40001"]
    # The ids alone are 327 MB.
    assert megabytes["large"] - megabytes["small"] < 60
