"""From what a user names to the pairs and the recipe of a run."""

import collections
import pathlib
import random

from keras_attn.data import TextPairs, date_pairs, multi30k_pairs, read_text_pairs, read_tsv
from keras_attn.runs.recipe import DATES, MULTI30K, TEXT_FILES

DataSplits = collections.namedtuple("DataSplits", ["train", "validation", "test"])
DataSplits.__doc__ = (
    """Three `TextPairs`: to learn from, to choose by, and for the final number only (or None)."""
)

_HELD_OUT = 1000


def open_data(data, validation=None, test=None, folder=None, languages=("en", "de")):
    """The recipe and the `DataSplits` that a name or files stand for.

    Args:
        data: List of strings: `["dates"]`, `["multi30k"]`, one TSV file, or a source and a target file (plain or
            .gz).
        validation, test: Lists of one or two files likewise, for files only. Without validation files, every tenth
            pair, at most 1,000, is held out.
        folder: Where Multi30k lies; it is downloaded otherwise.
        languages: The source and the target language of Multi30k.

    Returns:
        A `Recipe` and `DataSplits`.

    Raises:
        ValueError, FileNotFoundError: saying which file is wrong, and where.
    """
    built_in = {"dates": DATES, "multi30k": MULTI30K}
    if data[0] in built_in and len(data) == 1:
        if validation or test:
            raise ValueError(f"{data[0]} has validation and test parts of its own: give no files for them.")
        splits = [open_pairs(data, split, folder, languages) for split in DataSplits._fields]
        return built_in[data[0]], DataSplits(*splits)
    train = _read(data)
    if validation is None:
        train, validation = _hold_out(train)
    else:
        validation = _read(validation)
    return TEXT_FILES, DataSplits(train, validation, None if test is None else _read(test))


def open_pairs(data, split="test", folder=None, languages=("en", "de")):
    """The `TextPairs` that a name (and then `split`: train, validation or test) or files stand for."""
    if list(data) == ["dates"]:
        return date_pairs(split)
    if list(data) == ["multi30k"]:
        return multi30k_pairs(split, *languages, folder=folder)
    return _read(data)


def data_name(data):
    """A name for the run folder: `dates`, `multi30k`, or the first file's name without endings."""
    return pathlib.Path(data[0]).name.partition(".")[0] or "run"


def free_folder(path):
    """`path`, or the first of `path`-2, `path`-3, ... that does not exist."""
    candidate, number = pathlib.Path(path), 2
    while candidate.exists():
        candidate, number = pathlib.Path(f"{path}-{number}"), number + 1
    return candidate


def _read(files):
    if len(files) == 1:
        return read_tsv(files[0])
    if len(files) == 2:
        return read_text_pairs(*files)
    raise ValueError(
        "Data must be `dates`, `multi30k`, one TSV file, or a source and a target file. "
        f"Received {len(files)}: {' '.join(map(str, files))}"
    )


def _hold_out(pairs):
    count = min(_HELD_OUT, len(pairs) // 10)
    if count == 0:
        raise ValueError(
            f"{pairs.name} has {len(pairs)} pairs, too few to hold some out. Give files for validation."
        )
    held_out = set(random.Random(0).sample(range(len(pairs)), count))
    parts = [[], []]
    for row in range(len(pairs)):
        parts[row in held_out].append(row)
    return tuple(
        TextPairs(
            [pairs.sources[row] for row in rows],
            [pairs.targets[row] for row in rows],
            f"{pairs.name}, {name}",
        )
        for rows, name in zip(parts, ("the rest", f"{count} held out"))
    )
