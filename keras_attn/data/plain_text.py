"""One long text, for language models."""

import dataclasses
import pathlib

from keras_attn.data.downloads import data_folder, download, find
from keras_attn.data.text_files import read_text

TRAINING_SHARE = 0.9

_SHAKESPEARE = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"


@dataclasses.dataclass(frozen=True)
class PlainText:
    """A text and its name in messages.

    Args:
        text: String.
        name: String.

    Example:

    ```python
    from keras_attn.data import PlainText

    training, validation = PlainText("To be, or not to be", "Hamlet").split()
    assert training.text == "To be, or not to "
    ```
    """

    text: str
    name: str

    def split(self, at_line_breaks=False):
        """Two `PlainText`: the first nine tenths of the characters for training, the rest for validation.

        Args:
            at_line_breaks: Whether the second part begins with a line.
        """
        first = int(len(self.text) * TRAINING_SHARE)
        if at_line_breaks:
            first = self.text.rfind("\n", 0, first) + 1 or first
        return PlainText(self.text[:first], f"{self.name}, training"), PlainText(
            self.text[first:], f"{self.name}, validation"
        )


def read_plain_text(*files):
    """Reads UTF-8 text files, plain or gzipped, as one text, with its line breaks unchanged.

    Args:
        files: Paths of files. A byte order mark is dropped. A file that does not end with a line break gets one before
            the next begins.

    Returns:
        `PlainText`.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If it is empty, a folder, broken gzip or not UTF-8. The message names file and line.

    Example:

    ```python
    import pathlib
    import tempfile

    from keras_attn.data import read_plain_text

    file = pathlib.Path(tempfile.mkdtemp()) / "play.txt"
    file.write_text("Enter HAMLET.\\n", encoding="utf-8")
    training, validation = read_plain_text(file).split()
    assert len(training.text) == 12
    ```
    """
    texts = [read_text(file) for file in files]
    joined = "".join(text if text.endswith("\n") else f"{text}\n" for text in texts[:-1]) + texts[-1]
    return PlainText(joined, ", ".join(pathlib.Path(file).name for file in files))


def shakespeare_text(folder=None):
    """Reads tiny-shakespeare, 1,115,394 characters of plays in the public domain.

    Args:
        folder: Path of a folder with `input.txt`, or `input.txt.gz`, read as it is. Defaults to the
            environment variable `KERAS_ATTN_DATA`; where that is unset or empty, the file is downloaded once
            from the public repository karpathy/char-rnn into Keras' cache and checked against its SHA-256.

    Returns:
        `PlainText`.

    Raises:
        FileNotFoundError: If the folder lacks the file, or if the download fails.

    Example:

    ```python
    import pathlib
    import tempfile

    from keras_attn.data import shakespeare_text

    folder = pathlib.Path(tempfile.mkdtemp())
    (folder / "input.txt").write_text("First Citizen:\\nBefore we proceed any further, hear me speak.\\n")
    assert shakespeare_text(folder).text.startswith("First Citizen")
    ```
    """
    folder = folder or data_folder()
    file = (
        find("input.txt", folder, "tinyshakespeare")
        if folder
        else download(_SHAKESPEARE, _SHA256, "tinyshakespeare")
    )
    return PlainText(read_text(file), "tiny-shakespeare")
