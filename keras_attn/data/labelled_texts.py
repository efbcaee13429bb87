"""Texts with labels, and batches of them for training a classifier."""

import collections.abc
import dataclasses

import numpy as np
import tensorflow as tf

from keras_attn.checks import check_positive
from keras_attn.data.seeded_batches import SeededBatches
from keras_attn.data.text_files import Lines

_TEXTS_PER_TOKENIZER_CALL = 4096


@dataclasses.dataclass(frozen=True)
class LabelledTexts:
    """Texts, or pairs of texts, and the label of each.

    Args:
        texts: List of strings.
        labels: As many strings.
        pairs: As many second texts, or None.
        name: The name of this set in messages.

    Raises:
        ValueError: If the lists differ in length, or are empty.

    Example:

    ```python
    from keras_attn.data import LabelledTexts

    data = LabelledTexts(["What a film!", "Never again."], ["good", "bad"])
    assert data.label_names == ["bad", "good"]
    ```
    """

    texts: collections.abc.Sequence[str]
    labels: collections.abc.Sequence[str]
    pairs: collections.abc.Sequence[str] | None = None
    name: str = "labelled texts"

    def __post_init__(self):
        columns = {"texts": self.texts, "labels": self.labels, "pairs": self.pairs}
        lengths = {name: len(column) for name, column in columns.items() if column is not None}
        if len(set(lengths.values())) > 1 or not lengths["texts"]:
            raise ValueError(f"There must be as many labels as texts, and at least one. Received: {lengths}.")

    def __len__(self):
        return len(self.texts)

    @property
    def label_names(self):
        """The different labels, sorted."""
        return sorted(set(self.labels))


def read_labelled_texts(file):
    """Reads a UTF-8 file of a text, a tab and a label in each line; or of two texts and a label.

    Args:
        file: Path.

    Returns:
        `LabelledTexts`.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If a line has another number of columns than the first, or an empty label; the message names the line.

    Example:

    ```python
    import pathlib

    from keras_attn.data import read_labelled_texts

    pathlib.Path("films.tsv").write_text("What a film!\\tgood\\nNever again.\\tbad\\n", encoding="utf-8")
    assert read_labelled_texts("films.tsv").label_names == ["bad", "good"]
    ```
    """
    rows = [line.split("\t") for line in Lines(file)]
    width = len(rows[0]) if rows else 0
    for number, row in enumerate(rows, start=1):
        if len(row) not in (2, 3) or len(row) != width or not row[-1].strip():
            received = f"{len(row)} columns"
            if not row[-1].strip():
                received += ", an empty label"
            raise ValueError(
                f"{file}, line {number}: each line must be a text, a tab and a label, or two texts and a label, as the "
                f"first line is. Received: {received}."
            )
    if not rows:
        raise ValueError(f"{file} is empty.")
    texts = [row[0] for row in rows]
    labels = [row[-1].strip() for row in rows]
    pairs = [row[1] for row in rows] if width == 3 else None
    return LabelledTexts(texts, labels, pairs, name=str(file))


@dataclasses.dataclass(frozen=True, eq=False)
class LabelledUpdate:
    """The rows of one optimizer update, and its sizes in tokens."""

    rows: np.ndarray
    length: int
    num_real: int

    @property
    def num_positions(self):
        return len(self.rows) * self.length

    @property
    def num_tokens(self):
        return self.num_real


class LabelledBatches(SeededBatches):
    """An endless sequence of batches of labelled texts, for `model.fit` of an `EncoderWithHead`.

    A batch is `({"token_ids": (B, T), "padding_mask": (B, T)}, labels (B,))`, padded to its longest text. Every text is in
    exactly one batch of an epoch. Token ids are made once, as the tokenizer's `framing` puts special tokens around them.

    Args:
        data: `LabelledTexts`.
        tokenizer: A tokenizer of `keras_attn.text`.
        label_names: List of strings; a label is the index in it.
        batch_size: Integer, the texts of an update.
        max_length: Integer, the most tokens of a text or a pair; longer ones are cut. None for as many as the framing allows.
        token_types: Boolean, whether inputs have `token_type_ids`, for a model that embeds them.
        shuffle: Whether texts come in a new random order each epoch.
        seed: Integer.

    Raises:
        ValueError: If a label is not in `label_names`, or an argument is out of range.

    Example:

    ```python
    from keras_attn.data import LabelledBatches, LabelledTexts
    from keras_attn.text import ByteTokenizer

    data = LabelledTexts(["What a film!", "Never again."], ["good", "bad"])
    batches = LabelledBatches(data, ByteTokenizer(), data.label_names, batch_size=2)
    inputs, labels = next(iter(batches.dataset()))
    assert inputs["token_ids"].shape == (2, 14)
    ```
    """

    def __init__(
        self,
        data,
        tokenizer,
        label_names,
        batch_size=32,
        max_length=None,
        token_types=False,
        shuffle=True,
        seed=0,
    ):
        super().__init__(seed)
        numbers = {name: number for number, name in enumerate(label_names)}
        if unknown := sorted(set(data.labels) - set(numbers)):
            raise ValueError(
                f"The labels of {data.name} must be among {', '.join(numbers)}. Received: {', '.join(unknown[:5])}."
            )
        self._batch_size = check_positive("batch_size", batch_size)
        self._shuffle = shuffle
        self._labels = np.array([numbers[label] for label in data.labels], np.int32)
        names = ("token_ids", "token_type_ids") if token_types else ("token_ids",)
        self._columns = _tokenize(data, tokenizer, max_length, names)
        self._lengths = np.array(list(map(len, self._columns["token_ids"])))

    def report(self):
        """One line about the size of an epoch."""
        return f"Texts: {len(self._labels):,}, batches: {len(self):,}, tokens: {self._lengths.sum():,}."

    def _make_plan(self, epoch):
        rows = np.arange(len(self._labels))
        if self._shuffle:
            rows = self._generator(epoch).permutation(rows)
        batches = [rows[i : i + self._batch_size] for i in range(0, len(rows), self._batch_size)]
        return [self._update(batch) for batch in batches]

    def _update(self, rows):
        lengths = self._lengths[rows]
        return LabelledUpdate(rows, length=max(1, int(lengths.max())), num_real=int(lengths.sum()))

    def _element_spec(self):
        inputs = dict.fromkeys(self._columns, tf.TensorSpec((None, None), tf.int32))
        inputs["padding_mask"] = tf.TensorSpec((None, None), tf.bool)
        return inputs, tf.TensorSpec((None,), tf.int32)

    def _batch(self, update, number):
        inputs = {}
        for name, column in self._columns.items():
            inputs[name] = np.zeros((len(update.rows), update.length), np.int32)
            for batch_row, row in zip(inputs[name], update.rows):
                batch_row[: self._lengths[row]] = column[row]
        inputs["padding_mask"] = np.arange(update.length) < self._lengths[update.rows, np.newaxis]
        return inputs, self._labels[update.rows]


def _tokenize(data, tokenizer, max_length, names):
    """{name: list of arrays} of the texts with their special tokens."""
    columns = {name: [] for name in names}
    for start in range(0, len(data), _TEXTS_PER_TOKENIZER_CALL):
        rows = slice(start, start + _TEXTS_PER_TOKENIZER_CALL)
        first = tokenizer.tokenize(tf.constant(list(data.texts[rows]), tf.string))
        second = None
        if data.pairs is not None:
            second = tokenizer.tokenize(tf.constant(list(data.pairs[rows]), tf.string))
        framed = tokenizer.framing(first, second, max_length)
        for name, column in columns.items():
            ragged = getattr(framed, name)
            column += np.split(ragged.values.numpy(), ragged.row_splits.numpy()[1:-1])
    return columns
