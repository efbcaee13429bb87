"""Text files as sequences of lines that stay on disk, checked once from beginning to end."""

import collections.abc
import gzip
import hashlib
import mmap
import pathlib
import shutil
import tempfile
import zlib

import numpy as np

from keras_attn.files import not_there

_GZIP_MAGIC = b"\x1f\x8b"
_UTF8_BOM = b"\xef\xbb\xbf"
_BLOCK_BYTES = 1 << 24
_TEXTS_AT_ONCE = 4096


def checksum(*columns):
    """A short checksum of texts: 16 hexadecimal digits of SHA-256. Another text or another order has another one.

    Args:
        columns: Lists or other sequences of strings.
    """
    digest = hashlib.sha256()
    for texts in columns:
        digest.update(f"{len(texts)}\n".encode())
        for start in range(0, len(texts), _TEXTS_AT_ONCE):
            chunk = "".join(f"{len(text)}:{text}" for text in texts[start : start + _TEXTS_AT_ONCE])
            digest.update(chunk.encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:16]


def file_line(texts, row):
    """The line, from 1, that holds `texts[row]` in the file that the texts were read from.

    Args:
        texts: List or other sequence of strings. Of a list, which knows no file, lines are counted as in a file of it alone.
        row: Integer.
    """
    return texts.line(row) if isinstance(texts, _Texts) else int(row) + 1


class _Texts(collections.abc.Sequence):
    """A sequence of strings that are created on access; a slice is a list of strings.

    A subclass implements `__len__`, `_at(number)` and `line(number)`, the 1-based line of its file.
    """

    def __getitem__(self, index):
        if isinstance(index, slice):
            return [self._at(number) for number in range(*index.indices(len(self)))]
        number = range(len(self))[index]
        return self._at(number)

    def __eq__(self, other):
        if not isinstance(other, collections.abc.Sequence) or isinstance(other, str | bytes):
            return NotImplemented
        return len(self) == len(other) and all(mine == theirs for mine, theirs in zip(self, other))

    __hash__ = None

    def __repr__(self):
        if not len(self):
            return "<no texts>"
        return f"<{len(self):,} texts, the first {self[0]!r:.40}>"


class Lines(_Texts):
    """The lines of a UTF-8 file, plain or gzipped; only their start offsets are held in memory.

    Only LF and CRLF end a line; a byte order mark is dropped; a missing newline at the end is fine. A gzipped
    file is unpacked to a temporary one, which exists as long as the lines are in use.

    Args:
        file: Path.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If it is empty, a folder, broken gzip or not UTF-8; the message names file and line.
    """

    def __init__(self, file):
        self._data, begin = _mapped(file)
        self._starts = _checked_starts(self._data, begin, file)

    def __len__(self):
        return len(self._starts) - 1

    def _at(self, number):
        start, stop = self._starts[number : number + 2].tolist()
        return self._data[start:stop].decode("utf-8").removesuffix("\n").removesuffix("\r")

    def line(self, number):
        """The 1-based line of the file."""
        return int(number) + 1


class Column(_Texts):
    """One of the tab-separated columns of lines."""

    def __init__(self, lines, number):
        self._lines = lines
        self._number = number

    def __len__(self):
        return len(self._lines)

    def _at(self, number):
        return self._lines[number].split("\t")[self._number]

    def line(self, number):
        """The 1-based line of the file."""
        return file_line(self._lines, number)


class Rows(_Texts):
    """Some of the texts of another sequence, by their indices."""

    def __init__(self, texts, numbers):
        self._texts = texts
        self._numbers = np.asarray(numbers)

    def __len__(self):
        return len(self._numbers)

    def _at(self, number):
        return self._texts[int(self._numbers[number])]

    def line(self, number):
        """The 1-based line of the file that these texts are some of."""
        return file_line(self._texts, self._numbers[number])


def read_text(file):
    """The whole text of a UTF-8 file, plain or gzipped, with its line breaks unchanged."""
    data, begin = _mapped(file)
    _checked_starts(data, begin, file)
    return data[begin:].decode("utf-8")


def _mapped(file):
    """The memory-mapped bytes of a file, and the offset where the text begins."""
    path = pathlib.Path(file)
    if path.is_dir():
        raise ValueError(f"{file} is a folder. Give a text file, plain or .gz.")
    if not path.exists():
        raise FileNotFoundError(not_there(file))
    with open(path, "rb") as opened:
        # By content and not by name: some clients unpack a .gz while downloading and keep its name.
        is_packed = opened.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
        data = _unpacked(path, file) if is_packed else _map(opened)
    begin = 0
    if data[: len(_UTF8_BOM)] == _UTF8_BOM:
        begin = len(_UTF8_BOM)
    if len(data) == begin:
        raise ValueError(f"{file} is empty. Give a file with text.")
    return data, begin


def _unpacked(path, file):
    with tempfile.TemporaryFile() as unpacked:
        try:
            with gzip.open(path) as packed:
                shutil.copyfileobj(packed, unpacked, _BLOCK_BYTES)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(
                f"{file} is not a whole gzip file ({error}). Download or pack it again."
            ) from error
        unpacked.flush()
        return _map(unpacked)


def _map(opened):
    opened.seek(0, 2)
    if not opened.tell():  # an empty file cannot be mapped
        return b""
    return mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)


def _checked_starts(data, begin, file):
    """The start of each line and the end of the last, an int64 array. Raises if a line is not UTF-8."""
    parts = [np.array([begin])]
    start = begin
    while start < len(data):
        block = data[start : start + _BLOCK_BYTES]
        if start + len(block) < len(data):
            whole = block.rfind(b"\n") + 1
            if not whole:  # a line that is longer than a block
                newline = data.find(b"\n", start + len(block))
                end = newline + 1 if newline >= 0 else len(data)
                whole = end - start
                block = data[start : start + whole]
            block = block[:whole]
        try:
            block.decode("utf-8")
        except UnicodeDecodeError as error:
            _refuse(block, error, sum(map(len, parts)), file)
        parts.append(start + np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n")) + 1)
        start += len(block)
    if data[len(data) - 1 :] != b"\n":  # No line follows a newline at the end.
        parts.append(np.array([len(data)]))
    return np.concatenate(parts)


def _refuse(block, error, first_line, file):
    line_start = block.rfind(b"\n", 0, error.start) + 1
    number = first_line + block.count(b"\n", 0, error.start)
    raise ValueError(
        f"{file}, line {number}: the text must be UTF-8 (convert it, for instance with iconv). "
        f"Received: byte 0x{block[error.start]:02x} at position {error.start - line_start + 1} of the line."
    ) from None
