"""Pairs of sentences, and the files they are read from."""

import dataclasses
import gzip
import itertools
import pathlib
import zlib

_GZIP_MAGIC = b"\x1f\x8b"
_UTF8_BOM = b"\xef\xbb\xbf"


@dataclasses.dataclass(frozen=True)
class TextPairs:
    """Sentences in one language beside their translations, row by row.

    Everything that yields text for training or evaluation returns this one type, so a recipe does not
    care whether its pairs were generated, downloaded or read from a user's files.

    Args:
        sources: List of strings, the sentences to translate.
        targets: List of strings of the same length, `targets[i]` being the translation of `sources[i]`.
        name: What messages and run folders call this set.

    Raises:
        ValueError: If the two lists differ in length.

    Example:

    ```python
    from keras_attn.data import TextPairs

    pairs = TextPairs(sources=["4 July 2016"], targets=["2016-07-04"], name="one date")
    assert len(pairs) == 1
    ```
    """

    sources: list[str]
    targets: list[str]
    name: str = "pairs"

    def __post_init__(self):
        if len(self.sources) != len(self.targets):
            raise ValueError(
                "`sources` and `targets` must hold as many texts as each other. "
                f"Received: len(sources)={len(self.sources)}, len(targets)={len(self.targets)}."
            )

    def __len__(self):
        return len(self.sources)


def checked_size(split, size, splits):
    """The number of pairs to draw of a split, by default that of the table `splits`, or a ValueError."""
    if split not in splits:
        raise ValueError(f"`split` must be one of {', '.join(splits)}. Received: split={split!r}.")
    size = splits[split] if size is None else size
    if not isinstance(size, int) or size < 1:
        raise ValueError(f"`size` must be a positive integer, a number of pairs. Received: size={size!r}.")
    return size


def read_text_pairs(source_file, target_file):
    """Reads two aligned UTF-8 text files, one sentence a line, plain or gzipped.

    Line i of one file is the translation of line i of the other. Only LF and CRLF end a line:
    `str.splitlines` would also split at U+2028, NEL or a form feed inside a sentence, and shift every
    pair after it. A byte order mark is dropped; a missing newline at the end is fine.

    Args:
        source_file: Path of the file with the sentences to translate.
        target_file: Path of the file with their translations.

    Returns:
        `TextPairs`, one pair a line, in the order of the files.

    Raises:
        FileNotFoundError: If one of the files does not exist.
        ValueError: If a file is empty, a folder, broken gzip or not UTF-8, if the files differ in their
            number of lines, or if a line is blank in either. The message names file and line.

    Example:

    ```python
    import pathlib
    import tempfile

    from keras_attn.data import read_text_pairs

    folder = pathlib.Path(tempfile.mkdtemp())
    (folder / "train.en").write_text("A dog.\\nTwo cats.\\n", encoding="utf-8")
    (folder / "train.de").write_text("Ein Hund.\\nZwei Katzen.\\n", encoding="utf-8")
    pairs = read_text_pairs(folder / "train.en", folder / "train.de")
    assert pairs.targets == ["Ein Hund.", "Zwei Katzen."]
    ```
    """
    sources, targets = _read_lines(source_file), _read_lines(target_file)
    if len(sources) != len(targets):
        raise ValueError(
            "The source and the target file must have as many lines as each other, line i of one being the "
            f"translation of line i of the other. Received: {len(sources)} lines in {source_file} and "
            f"{len(targets)} lines in {target_file}."
        )
    _refuse_blank(sources, source_file, "line")
    _refuse_blank(targets, target_file, "line")
    return TextPairs(sources, targets, name=pathlib.Path(source_file).name)


def read_tsv(file):
    """Reads pairs from one UTF-8 file with two tab-separated columns, source and target, plain or gzipped.

    Columns are split at tabs alone: quotes are text, as in the corpora that come in this form, so Python's
    `csv` would swallow pairs at an unbalanced quote. Lines end as in `read_text_pairs`.

    Args:
        file: Path of the file. It has no header line.

    Returns:
        `TextPairs`, one pair a line, in the order of the file.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If the file is empty, a folder, broken gzip or not UTF-8, or if a line has not exactly
            two columns or a blank one. The message names file and line.

    Example:

    ```python
    import pathlib
    import tempfile

    from keras_attn.data import read_tsv

    file = pathlib.Path(tempfile.mkdtemp()) / "pairs.tsv"
    file.write_text("A dog.\\tEin Hund.\\n", encoding="utf-8")
    assert read_tsv(file).targets == ["Ein Hund."]
    ```
    """
    rows = [line.split("\t") for line in _read_lines(file)]
    for number, row in enumerate(rows, start=1):
        if len(row) != 2:
            raise ValueError(
                f"{file}, line {number}: a line must have two columns, source and target, with one tab between. "
                f"Received: {len(row)} column{'s' if len(row) > 1 else ''}."
            )
    sources, targets = [row[0] for row in rows], [row[1] for row in rows]
    _refuse_blank(sources, file, "source column")
    _refuse_blank(targets, file, "target column")
    return TextPairs(sources, targets, name=pathlib.Path(file).name)


def read_text(file):
    """The text of a UTF-8 file, plain or gzipped, without a byte order mark; an error that names file and line."""
    data = _read_data(file)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        for number, line in enumerate(data.split(b"\n"), start=1):
            _decode(line, file, number)
        raise


def _read_lines(file):
    lines = _read_data(file).split(b"\n")
    if not lines[-1]:  # What follows the newline at the end is no line.
        lines.pop()
    return [_decode(line.removesuffix(b"\r"), file, number) for number, line in enumerate(lines, start=1)]


def _read_data(file):
    data = _read_bytes(file).removeprefix(_UTF8_BOM)
    if not data:
        raise ValueError(f"{file} is empty. Give a file with text.")
    return data


def _read_bytes(file):
    path = pathlib.Path(file)
    if path.is_dir():
        raise ValueError(f"{file} is a folder. Give a text file, plain or .gz.")
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise FileNotFoundError(f"{file} does not exist. Check the path.") from None
    # By content and not by name: some clients unpack a .gz while downloading and keep its name.
    if not data.startswith(_GZIP_MAGIC):
        return data
    try:
        return gzip.decompress(data)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{file} is not a whole gzip file ({error}). Download or pack it again.") from None


def _decode(line, file, number):
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{file}, line {number}: the text must be UTF-8 (convert it, for instance with iconv). "
            f"Received: byte 0x{line[error.start]:02x} at position {error.start + 1} of the line."
        ) from None


def _refuse_blank(texts, file, what):
    blank = [number for number, text in enumerate(texts, start=1) if not text.strip()]
    if blank:
        others = ", ".join(map(str, itertools.islice(blank, 1, 10)))
        raise ValueError(
            f"{file}, line {blank[0]}: the {what} is blank, so its pair has one side only. Fill it, or remove the "
            f"pair from both sides. Received: {len(blank)} blank of {len(texts)} lines"
            + (f", also {others}{' ...' if len(blank) > 10 else ''}." if others else ".")
        )
