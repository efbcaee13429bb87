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

    def split(self):
        """Two `PlainText`: the first nine tenths of the characters for training, the rest for validation."""
        first = int(len(self.text) * TRAINING_SHARE)
        return PlainText(self.text[:first], f"{self.name}, training"), PlainText(
            self.text[first:], f"{self.name}, validation"
        )


def read_plain_text(file):
    """Reads a UTF-8 text file, plain or gzipped, as one text, with its line breaks unchanged.

    Args:
        file: Path of the file. A byte order mark is dropped.

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
    return PlainText(read_text(file), pathlib.Path(file).name)


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
