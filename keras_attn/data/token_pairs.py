"""Text pairs as flat arrays of token ids, from which batches are made."""

import collections
import contextlib
import dataclasses
import json
import pathlib
import tempfile
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from keras_attn.data.text_files import checksum, file_line
from keras_attn.files import folder_digest, read_json, remove_unfinished, replaced_folder

_TEXTS_PER_TOKENIZER_CALL = 4096
_SIDES = ("source", "target")

RaggedIds = collections.namedtuple("RaggedIds", ["values", "row_splits"])
RaggedIds.__doc__ = """Rows of token ids of any length.

values: int32 array, one row after the other.
row_splits: int64 array; row i is `values[row_splits[i] : row_splits[i + 1]]`.
"""

TokenPairs = collections.namedtuple("TokenPairs", ["sources", "targets", "counts", "over_long"])
TokenPairs.__doc__ = """The token ids of the encoder's inputs and of the targets, corpus by corpus.

sources: `RaggedIds`, each row a source and END, or what a `PairForm` makes of it.
targets: `RaggedIds`, each row START, or what a `PairForm` has in its place, a target and END.
counts: tuple of integers, the pairs of each corpus.
over_long: tuple of tuples of integers, the 1-based lines, in the user's files, of the pairs of each corpus that were left out.
"""


@dataclasses.dataclass(frozen=True)
class PairForm:
    """What stands around the tokens of a pair: by default END after both sides, and START before the target.

    Args:
        source_token_ids: Function from strings (B,) to the ragged ids (B, None) of sources, with all that stands around
            them and nothing cut; or None for the tokenizer's ids and END.
        target_start: Tuple of integers, what the decoder reads before a target; all but the first are predicted, too. None
            means the target tokenizer's START.
        label_padding: Integer, the label that marks padding. With 0, no token may have the id 0; with -1, one may.

    Example:

    ```python
    form = PairForm(target_start=(2, 7), label_padding=-1)  # START and the token of a language
    ```
    """

    source_token_ids: Callable | None = None
    target_start: tuple | None = None
    label_padding: int = 0


_DESCRIPTION = "tokens.json"
_MADE_OF = "made_of.txt"
_TEXTS_THAT_STAND_FOR_ALL = 64
_DTYPE = np.dtype("<i4")


def tokenize_pairs(
    corpora, source_tokenizer, target_tokenizer, max_sequence_length, folder=None, form=PairForm()
):
    """The token ids of the pairs whose sides, with END, have at most `max_sequence_length` tokens each.

    Args:
        corpora: List of `TextPairs`.
        source_tokenizer, target_tokenizer: Tokenizers of `keras_attn.text`.
        max_sequence_length: Integer.
        folder: Path of an empty folder to write the ids to; `open_token_pairs` maps them into memory. None:
            they are held in memory.
        form: `PairForm`.

    Returns:
        `TokenPairs`; with a folder, the result of `open_token_pairs`.

    Raises:
        ValueError: if a tokenizer returns an id outside its vocabulary or the id of the padding.
    """
    parts = _Parts(folder)
    counts = []
    over_long = []
    source_ids = form.source_token_ids or source_tokenizer.tokenize
    after_source = [] if form.source_token_ids else [source_tokenizer.end_token_id]
    start = [target_tokenizer.start_token_id] if form.target_start is None else list(form.target_start)
    smallest = 1 if form.label_padding == 0 else 0
    for pairs in corpora:
        counts.append(0)
        over_long.append([])
        for first in range(0, len(pairs), _TEXTS_PER_TOKENIZER_CALL):
            rows = slice(first, first + _TEXTS_PER_TOKENIZER_CALL)
            sources = _tokenize(pairs.sources, rows, source_ids, source_tokenizer, "source", smallest)
            targets = _tokenize(
                pairs.targets, rows, target_tokenizer.tokenize, target_tokenizer, "target", smallest
            )
            source_lengths = row_lengths(sources) + len(after_source)
            target_lengths = row_lengths(targets) + len(
                start
            )  # the decoder reads no END, and predicts no START
            fits = np.maximum(source_lengths, target_lengths) <= max_sequence_length
            over_long[-1] += [file_line(pairs.sources, first + row) for row in np.flatnonzero(~fits)]
            counts[-1] += int(fits.sum())
            parts.append(
                _with_special_ids(sources, fits, [], after_source),
                _with_special_ids(targets, fits, start, [target_tokenizer.end_token_id]),
            )
    return parts.all(counts, over_long)


def sample_pairs(tokens, samplers, dropout, seed, max_sequence_length, folder=None):
    """`TokenPairs` with other segmentations of their texts.

    Args:
        tokens: `TokenPairs`. Where what is drawn of a side is longer than `max_sequence_length`, its ids stay.
        samplers: The `BpeDropout` of the source's and of the target's tokenizer.
        dropout: Float, the share of merges that is left out.
        seed: Tuple of integers.
        max_sequence_length: Integer, as in `tokenize_pairs`.
        folder: Path of an existing folder, where the ids are kept in files without names; or None for memory.
    """
    num_pairs = sum(tokens.counts)
    temporary_folder = contextlib.nullcontext()
    if folder:
        temporary_folder = tempfile.TemporaryDirectory(prefix="sampled-", dir=folder)
    with temporary_folder as folder:  # files that are mapped outlive their folder
        parts = _Parts(folder)
        for first in range(0, num_pairs, _TEXTS_PER_TOKENIZER_CALL):
            rows = np.arange(first, min(first + _TEXTS_PER_TOKENIZER_CALL, num_pairs))
            sides = []
            for number, side in enumerate((tokens.sources, tokens.targets)):
                usual = _select_rows(side, rows)
                generator = np.random.default_rng((*seed, first, number))
                drawn = RaggedIds(*samplers[number](*usual, dropout, generator))
                # The decoder, side 1, reads no END, and predicts no START.
                is_too_long = row_lengths(drawn) - number > max_sequence_length
                choice = np.arange(len(rows)) + len(rows) * is_too_long
                sides.append(_select_rows(_concatenate([drawn, usual]), choice))
            parts.append(*sides)
        return parts.all(tokens.counts, tokens.over_long)


def tokenize_once(
    corpora, source_tokenizer, target_tokenizer, max_sequence_length, folder=None, form=PairForm()
):
    """The result of `tokenize_pairs`, read from the folder if it was written there before, of the same texts and tokenizers.

    Ids of others that are there are replaced. Whenever the process ends, the folder is complete or missing.
    """
    arguments = (corpora, source_tokenizer, target_tokenizer, max_sequence_length)
    if folder is None:
        return tokenize_pairs(*arguments, form=form)
    folder = pathlib.Path(folder)
    made_of = folder / _MADE_OF
    input_checksum = _input_checksum(*arguments, form)
    if not made_of.is_file() or made_of.read_text("utf-8") != input_checksum:
        remove_unfinished(folder.parent)
        with replaced_folder(folder, _DESCRIPTION, "token ids") as new_folder:
            tokenize_pairs(*arguments, new_folder, form)
            (new_folder / _MADE_OF).write_text(input_checksum, encoding="utf-8")
    return open_token_pairs(folder)


def _input_checksum(corpora, source_tokenizer, target_tokenizer, max_sequence_length, form):
    """A checksum of all that the token ids of pairs depend on."""
    parts = [checksum(pairs.sources, pairs.targets) for pairs in corpora]
    with tempfile.TemporaryDirectory() as folder:
        source_tokenizer.save(pathlib.Path(folder) / "source")
        target_tokenizer.save(pathlib.Path(folder) / "target")
        parts.append(folder_digest(folder))
    parts.append(json.dumps([max_sequence_length, form.target_start, form.label_padding]))
    # A function, or a user's class, has no content: what it makes of the first texts stands for it.
    for side, function in (
        ("sources", form.source_token_ids or source_tokenizer.tokenize),
        ("targets", target_tokenizer.tokenize),
    ):
        texts = [text for pairs in corpora for text in getattr(pairs, side)[:_TEXTS_THAT_STAND_FOR_ALL]]
        parts.append(json.dumps(function(tf.constant(texts, tf.string, [len(texts)])).to_list()))
    return checksum(parts)


def open_token_pairs(folder):
    """The `TokenPairs` that were written to a folder; the ids stay on disk and are read batch by batch."""
    folder = pathlib.Path(folder)
    description = read_json(folder / _DESCRIPTION)
    sides = []
    for side in _SIDES:
        row_splits = _row_splits(np.fromfile(folder / f"{side}_lengths.bin", _DTYPE))
        values = np.empty(0, _DTYPE)
        if row_splits[-1]:  # an empty file cannot be mapped
            values = np.memmap(folder / f"{side}_ids.bin", _DTYPE, "r")
        if len(values) != row_splits[-1]:
            raise ValueError(
                f"{folder} is damaged: it holds {len(values):,} {side} ids of {row_splits[-1]:,}. Remove it."
            )
        sides.append(RaggedIds(values, row_splits))
    return TokenPairs(*sides, tuple(description["counts"]), tuple(map(tuple, description["over_long"])))


class _Parts:
    """Collects the ids of both sides, chunk by chunk, in lists in memory or in files."""

    def __init__(self, folder):
        self._folder = folder and pathlib.Path(folder)
        self._parts = ([], [])

    def append(self, *ragged):
        for name, parts, side in zip(_SIDES, self._parts, ragged):
            if self._folder is None:
                parts.append(side)
                continue
            for what, array in {"ids": side.values, "lengths": row_lengths(side)}.items():
                with open(self._folder / f"{name}_{what}.bin", "ab") as file:
                    file.write(array.astype(_DTYPE).tobytes())

    def all(self, counts, over_long):
        """`TokenPairs` of all ids that were collected."""
        if self._folder is None:
            sides = [_concatenate(parts) for parts in self._parts]
            return TokenPairs(*sides, tuple(counts), tuple(map(tuple, over_long)))
        description = json.dumps({"counts": counts, "over_long": over_long})
        (self._folder / _DESCRIPTION).write_text(description, encoding="utf-8")
        return open_token_pairs(self._folder)


def row_lengths(ragged):
    """The number of ids in each row, an int64 array."""
    return np.diff(ragged.row_splits)


def _tokenize(texts, rows, tokenize, tokenizer, side, smallest):
    token_ids = tokenize(tf.constant(texts[rows], tf.string))
    ragged = RaggedIds(token_ids.values.numpy(), token_ids.row_splits.numpy())
    wrong = np.flatnonzero((ragged.values < smallest) | (ragged.values >= tokenizer.vocabulary_size))
    if wrong.size:
        row = np.searchsorted(ragged.row_splits, wrong[0], side="right") - 1
        line = file_line(texts, rows.start + row)
        reason = ", 0 being the padding," if smallest else ""
        raise ValueError(
            f"The {side} tokenizer's ids must be from {smallest}{reason} to `vocabulary_size` - 1. "
            f"Received: id {ragged.values[wrong[0]]} in line {line}, vocabulary_size={tokenizer.vocabulary_size}."
        )
    return ragged


def _with_special_ids(ragged, keep, before, after):
    """The rows that are kept, with ids added before and after each."""
    lengths = row_lengths(ragged)
    row_splits = _row_splits(lengths[keep] + len(before) + len(after))
    values = np.empty(row_splits[-1], np.int32)
    is_own = np.ones(len(values), bool)
    for offset, token_id in enumerate(before):
        is_own[row_splits[:-1] + offset] = False
        values[row_splits[:-1] + offset] = token_id
    for offset, token_id in enumerate(reversed(after), start=1):
        is_own[row_splits[1:] - offset] = False
        values[row_splits[1:] - offset] = token_id
    values[is_own] = ragged.values[np.repeat(keep, lengths)]
    return RaggedIds(values, row_splits)


def _select_rows(ragged, rows):
    """Some of the rows, in their order."""
    lengths = row_lengths(ragged)[rows]
    row_splits = _row_splits(lengths)
    indices = np.arange(row_splits[-1]) + np.repeat(ragged.row_splits[rows] - row_splits[:-1], lengths)
    return RaggedIds(ragged.values[indices], row_splits)


def _concatenate(parts):
    if not parts:
        return RaggedIds(np.empty(0, np.int32), np.zeros(1, np.int64))
    values = np.concatenate([part.values for part in parts])
    return RaggedIds(values, _row_splits(np.concatenate([row_lengths(part) for part in parts])))


def _row_splits(lengths):
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
