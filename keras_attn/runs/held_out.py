"""What is held out of training data for validation: whole sources, so that no text is validated that was trained on."""

import collections
import hashlib
import random
import unicodedata

import numpy as np

from keras_attn.data import PlainText, TextPairs
from keras_attn.data.text_files import Rows

DataSplits = collections.namedtuple("DataSplits", ["train", "validation", "test"])
DataSplits.__doc__ = (
    """Three `TextPairs`: for training, for validation, and for the final scores only (or None)."""
)

_MOST_HELD_OUT = 1000
# Of the data that are scored: a note says that more was trained on too.
_MOST_SHARED = 0.01
# A shorter line of running text may stand in it often by right: the name of a speaker, "Yes.".
_CHARACTERS_OF_A_LINE = 40
_MOST_SHARED_LINES = 0.1


def held_out(data, at_line_breaks=False, others=()):
    """`DataSplits` of `TextPairs` or a `PlainText`: a tenth is for validation, of pairs at most 1,000, and none for tests.

    Pairs with the same source stay together, and a source that `others` have too is not held out: what is validated was
    not trained on. Where there is no such source, as when all are equal, single pairs are held out all the same, and
    `shared_notes` says so.

    Args:
        data: `TextPairs` or `PlainText`.
        at_line_breaks: As in `PlainText.split`.
        others: List of `TextPairs` that are trained on too.
    """
    if isinstance(data, PlainText):
        return DataSplits(*data.split(at_line_breaks), None)
    count = min(_MOST_HELD_OUT, len(data) // 10)
    if count == 0:
        raise ValueError(
            f"{data.name} has {len(data)} pairs, too few to hold some out. Give files for validation."
        )
    rows = _rows_of_whole_sources(data, count, others)
    if not len(rows):
        rows = np.array(sorted(random.Random(0).sample(range(len(data)), count)))
    parts = np.delete(np.arange(len(data)), rows), rows
    training, validation = (
        TextPairs(Rows(data.sources, part), Rows(data.targets, part), f"{data.name}, {name}")
        for part, name in zip(parts, ("the rest", f"{len(rows):,} held out"))
    )
    return DataSplits(training, validation, None)


def _rows_of_whole_sources(pairs, count, others):
    """The rows of some sources, about `count`: none where the sources cannot be parted."""
    keys = _keys(pairs.sources)
    _, first_rows, source_of_row, sizes = np.unique(
        keys, return_index=True, return_inverse=True, return_counts=True
    )
    is_shared = np.zeros(len(sizes), bool)
    for other in others:
        is_shared |= np.isin(keys[first_rows], _keys(other.sources))
    # In the order of the data, so that a choice by the seed does not depend on the hashes.
    sources = np.argsort(first_rows)
    sources = sources[~is_shared[sources]]
    chosen, num_rows = [], 0
    for index in random.Random(0).sample(range(len(sources)), min(count, len(sources))):
        if num_rows + sizes[sources[index]] <= count:
            chosen.append(sources[index])
            num_rows += sizes[sources[index]]
    if not chosen and len(sources):  # each source has many targets: the one with the fewest
        smallest = sources[np.argmin(sizes[sources])]
        chosen = [smallest] if 2 * sizes[smallest] <= len(pairs) else []
    return np.flatnonzero(np.isin(source_of_row, chosen))


def _keys(texts):
    """A 64-bit number for each text, the same for texts that tokenizers read alike: Unicode's forms and white space aside."""
    digests = (hashlib.blake2b(_read_alike(text), digest_size=8).digest() for text in texts)
    return np.frombuffer(b"".join(digests), np.uint64)


def _read_alike(text):
    return " ".join(unicodedata.normalize("NFKC", text).split()).encode("utf-8", "surrogatepass")


def shared_notes(data):
    """What to say of validation and test data that are trained on too: a list of lines, none where that is little.

    Args:
        data: `DataSplits`.
    """
    if isinstance(data.train, PlainText):
        trained, shared, what = set(data.train.text.split("\n")), _shared_lines, "long lines"
        most_shared = _MOST_SHARED_LINES
    else:
        corpora = [data.train] if isinstance(data.train, TextPairs) else data.train
        trained = np.concatenate([_keys(pairs.sources) for pairs in corpora])
        shared, what, most_shared = _shared_sources, "sources", _MOST_SHARED
    notes = []
    for name in ("validation", "test"):
        part = getattr(data, name)
        num_shared, total = (0, 0) if part is None else shared(part, trained)
        if num_shared > most_shared * total:
            notes.append(
                f"Note: {num_shared:,} of {total:,} {what} of the {name} data are trained on too, so that their scores say "
                f"little about new texts. Give other files with --{name}."
            )
    return notes


def _shared_sources(pairs, trained):
    keys = _keys(pairs.sources)
    return int(np.isin(keys, trained).sum()), len(keys)


def _shared_lines(text, trained):
    lines = [line for line in text.text.split("\n") if len(line) >= _CHARACTERS_OF_A_LINE]
    return sum(line in trained for line in lines), len(lines)
