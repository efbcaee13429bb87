"""One long text for language models, and its windows."""

import dataclasses
import pathlib

import numpy as np
import tensorflow as tf

from keras_attn.data.seeded_batches import SeededBatches
from keras_attn.data.text_files import read_text

TRAINING_SHARE = 0.9


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
        training = PlainText(self.text[:first], f"{self.name}, training")
        validation = PlainText(self.text[first:], f"{self.name}, validation")
        return training, validation


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
    text = ""
    for file in files:
        if text and not text.endswith("\n"):
            text += "\n"
        text += read_text(file)
    return PlainText(text, ", ".join(pathlib.Path(file).name for file in files))


@dataclasses.dataclass(frozen=True, eq=False)
class WindowUpdate:
    """The windows of one optimizer update, of `length` tokens from `starts` on."""

    starts: np.ndarray
    length: int

    @property
    def num_tokens(self):
        return len(self.starts) * self.length

    num_real = num_positions = num_tokens


class TextWindows(SeededBatches):
    """An endless sequence of batches of windows of one text; each token's label is the token after it.

    Each epoch cuts the text into windows from a new random offset and takes them in random order, so no token
    occurs twice in an epoch. A remainder of less than a batch of windows is left out. Commonly, windows are
    drawn with replacement: an epoch then misses a third of the text.

    Args:
        token_ids: Integers (N,), the whole text.
        window_length: Integer T, the number of tokens of a window.
        batch_size: Integer, the number of windows of an update.
        shuffle: Whether offset and order are random. Otherwise the windows start at the first token.
        seed, num_micro_batches, num_devices, worker: As in `TranslationBatches`; `batch_size` is rounded up
            so that it can be divided among them.

    Raises:
        ValueError: if the text is too short for one batch.

    Example:

    ```python
    from keras_attn.data import TextWindows
    from keras_attn.text import ByteTokenizer

    token_ids = ByteTokenizer().encode(["To be, or not to be, that is the question"])[0]
    windows = TextWindows(token_ids, window_length=7, batch_size=2)
    inputs, labels, weights = next(iter(windows.dataset()))
    assert inputs["token_ids"].shape == labels.shape == (2, 7)
    ```
    """

    def __init__(
        self,
        token_ids,
        window_length,
        batch_size,
        shuffle=True,
        seed=0,
        num_micro_batches=1,
        num_devices=1,
        worker=(0, 1),
    ):
        super().__init__(seed, num_micro_batches, num_devices, worker)
        self._token_ids = np.asarray(token_ids, np.int32)
        self._length = window_length
        self._batch_size = self._whole_rows(batch_size)
        self._shuffle = shuffle
        if not self.plan(0):
            raise ValueError(
                f"A text must have more than {self._batch_size} windows of {window_length} tokens (one update). "
                "Give more text, a smaller `batch_size` (`max_tokens` of a recipe), or shorter windows. "
                f"Received: {len(self._token_ids):,} tokens."
            )

    def report(self):
        """One line about the size of an epoch."""
        return (
            f"Tokens: {len(self._token_ids):,}, in windows of {self._length}, {self._batch_size} an update; "
            f"batches: {len(self):,}."
        )

    def _make_plan(self, epoch):
        # Each window is followed by one more token, its last label.
        generator = self._generator(epoch)
        first = int(generator.integers(self._length)) if self._shuffle else 0
        starts = np.arange(first, len(self._token_ids) - self._length, self._length)
        if self._shuffle:
            starts = generator.permutation(starts)
        num_updates = len(starts) // self._batch_size
        parts = starts[: num_updates * self._batch_size].reshape(num_updates, self._batch_size)
        return [WindowUpdate(part, self._length) for part in parts]

    def _element_spec(self):
        ids = tf.TensorSpec((None, self._length), tf.int32)
        return {"token_ids": ids}, ids, tf.TensorSpec((None,), tf.float32)

    def _batch(self, update, number):
        starts = update.starts[self._my_rows(number)]
        windows = self._token_ids[starts[:, np.newaxis] + np.arange(self._length + 1)]
        return {"token_ids": windows[:, :-1]}, windows[:, 1:], self._weights(len(starts), update)


def consecutive_windows(token_ids, window_length, batch_size):
    """The whole text in consecutive windows, for evaluation: every token but the first is predicted once.

    Args:
        token_ids: Integers (N,), none of them 0.
        window_length: Integer T.
        batch_size: Integer B, the number of windows of a batch; the last batch may have fewer.

    Yields:
        Pairs of int32 arrays (B, T): the input tokens, and the token that follows each; 0 after the end of
        the text.

    Example:

    ```python
    from keras_attn.data import consecutive_windows

    [(inputs, labels)] = consecutive_windows([5, 6, 7, 8], window_length=2, batch_size=3)
    assert inputs.tolist() == [[5, 6], [7, 0]]
    assert labels.tolist() == [[6, 7], [8, 0]]
    ```
    """
    token_ids = np.asarray(token_ids, np.int32)
    num_pads = -(len(token_ids) - 1) % window_length
    inputs = np.pad(token_ids[:-1], (0, num_pads)).reshape(-1, window_length)
    labels = np.pad(token_ids[1:], (0, num_pads)).reshape(-1, window_length)
    for first in range(0, len(inputs), batch_size):
        batch = slice(first, first + batch_size)
        yield inputs[batch], labels[batch]
