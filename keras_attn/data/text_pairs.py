"""Pairs of sentences, and the files they are read from."""

import collections.abc
import dataclasses
import pathlib

from keras_attn.data.text_files import Column, Lines


class OneColumnError(ValueError):
    """A file that was to hold pairs has one column: it is one side of them, or plain text."""


@dataclasses.dataclass(frozen=True)
class TextPairs:
    """Sentences in one language and their translations, pair by pair.

    All sources of text for training or evaluation return this type, so a recipe works the same whether its
    pairs were generated, downloaded or read from a user's files.

    Args:
        sources: List or other sequence of strings, the sentences to translate. Lines of files stay on disk.
        targets: As many strings, `targets[i]` being the translation of `sources[i]`.
        name: The name of this set in messages and run folders.

    Raises:
        ValueError: If the two lists differ in length.

    Example:

    ```python
    from keras_attn.data import TextPairs

    pairs = TextPairs(sources=["4 July 2016"], targets=["2016-07-04"], name="one date")
    assert len(pairs) == 1
    ```
    """

    sources: collections.abc.Sequence[str]
    targets: collections.abc.Sequence[str]
    name: str = "pairs"

    def __post_init__(self):
        if len(self.sources) != len(self.targets):
            raise ValueError(
                "`sources` and `targets` must hold as many texts as each other. "
                f"Received: len(sources)={len(self.sources)}, len(targets)={len(self.targets)}."
            )

    def __len__(self):
        return len(self.sources)


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
    sources = Lines(source_file)
    targets = Lines(target_file)
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

    Columns are split at tabs only. Quotes are text, as is usual in such corpora; Python's `csv` would swallow
    pairs at an unbalanced quote. Lines end as in `read_text_pairs`.

    Args:
        file: Path of the file. It has no header line.

    Returns:
        `TextPairs`, one pair a line, in the order of the file.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If the file is empty, a folder, broken gzip or not UTF-8, or if a line does not have
            exactly two columns, or one of them is blank. The message names file and line.

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
    lines = Lines(file)
    for number, line in enumerate(lines, start=1):
        if line.count("\t") != 1:
            num_columns = line.count("\t") + 1
            received = "1 column" if num_columns == 1 else f"{num_columns} columns"
            message = (
                f"{file}, line {number}: a line must have two columns, source and target, with one tab between. "
                f"Received: {received}."
            )
            if number == num_columns == 1:
                raise OneColumnError(
                    f"{message} If the translations are in a file of their own, give two files: {file} and its translations."
                )
            raise ValueError(message)
    sources = Column(lines, 0)
    targets = Column(lines, 1)
    _refuse_blank(sources, file, "source column")
    _refuse_blank(targets, file, "target column")
    return TextPairs(sources, targets, name=pathlib.Path(file).name)


def _refuse_blank(texts, file, what):
    blank = [number for number, text in enumerate(texts, start=1) if not text.strip()]
    if not blank:
        return
    others = ""
    if len(blank) > 1:
        others = f", also {', '.join(map(str, blank[1:10]))}"
    if len(blank) > 10:
        others += " ..."
    raise ValueError(
        f"{file}, line {blank[0]}: the {what} is blank, so its pair has one side only. Fill it, or remove the "
        f"pair from both sides. Received: {len(blank)} blank of {len(texts)} lines{others}."
    )
