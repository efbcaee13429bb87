import collections
import random

from keras_attn.data import TextPairs, date_pairs, multi30k_pairs, read_text_pairs, read_tsv

DataSplits = collections.namedtuple("DataSplits", ["train", "validation", "test"])
DataSplits.__doc__ = (
    """Three `TextPairs`: to learn from, to choose by, and for the final number only (or None)."""
)

_HELD_OUT = 1000


def dates(seed=0):
    """The built-in dates, from a seed."""
    return DataSplits(*(date_pairs(split, seed=seed) for split in ("train", "validation", "test")))


def multi30k(source_language="en", target_language="de", folder=None):
    """Multi30k; see `keras_attn.data.multi30k_pairs` for where its files come from."""
    splits = ("train", "validation", "test")
    return DataSplits(*(multi30k_pairs(split, source_language, target_language, folder) for split in splits))


def files(train, validation=None, test=None, seed=0):
    """Your own text files.

    Args:
        train, validation, test: One path of a TSV, or two paths of aligned text files, plain or .gz. Without
            validation files, every tenth training pair, at most 1,000, is held out for it, drawn from `seed`.
        seed: Integer.
    """
    train = _read(train)
    if validation is not None:
        validation = _read(validation)
    else:
        train, validation = _hold_out(train, seed)
    return DataSplits(train, validation, None if test is None else _read(test))


def _read(paths):
    if len(paths) == 1:
        return read_tsv(paths[0])
    if len(paths) == 2:
        return read_text_pairs(*paths)
    raise ValueError(
        f"Data must be one TSV file, or a source and a target file. Received: {len(paths)} files."
    )


def _hold_out(pairs, seed):
    count = min(_HELD_OUT, len(pairs) // 10)
    if count == 0:
        raise ValueError(
            f"{pairs.name} has {len(pairs)} pairs, too few to hold some out for validation. Give validation files."
        )
    held_out = set(random.Random(seed).sample(range(len(pairs)), count))

    def part(name, keep):
        rows = [row for row in range(len(pairs)) if keep(row)]
        return TextPairs(
            [pairs.sources[row] for row in rows],
            [pairs.targets[row] for row in rows],
            f"{pairs.name} ({name})",
        )

    return part("training part", lambda row: row not in held_out), part(
        "held out", lambda row: row in held_out
    )
