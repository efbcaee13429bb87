"""The data of a run: opened by the names that a user gives, and a part held out for validation.

What is held out are whole sources, so that no text is validated that was trained on.
"""

import collections
import hashlib
import os
import pathlib
import random
import unicodedata

import numpy as np

from keras_attn.data import (
    PlainText,
    TextPairs,
    date_pairs,
    multi30k_pairs,
    read_plain_text,
    read_text_pairs,
    read_tsv,
    reverse_pairs,
    shakespeare_text,
)
from keras_attn.data.text_files import Rows
from keras_attn.runs.recipe import Recipe
from keras_attn.runs.run_folder import holds_unfinished

DataSplits = collections.namedtuple("DataSplits", ["train", "validation", "test"])
DataSplits.__doc__ = (
    """Three `TextPairs`: for training, for validation, and for the final scores only (or None)."""
)

# Built-in pairs by name: functions of the split, the folder of the data and two languages.
_BUILT_IN_PAIRS = {
    "dates": lambda split, folder, languages: date_pairs(split),
    "reverse": lambda split, folder, languages: reverse_pairs(split),
    "multi30k": lambda split, folder, languages: multi30k_pairs(split, *languages, folder=folder),
    "multi30k-tokenized": lambda split, folder, languages: multi30k_pairs(
        split, *languages, folder=folder, tokenized=True
    ),
}
_BUILT_IN_TEXT = "shakespeare"
_MOST_HELD_OUT = 1000
# The share of the data that are scored from which on a note says that they are trained on too.
_MOST_SHARED = 0.01
# Shorter lines of running text are not counted: they repeat for good reasons, as the name of a speaker does, or "Yes.".
_CHARACTERS_OF_A_LINE = 40
_MOST_SHARED_LINES = 0.1


def default_recipe(data, language_model=False):
    """The default recipe for `data`, which has the form of `Recipe.data`.

    Args:
        data: Tuple of strings, or of tuples of strings.
        language_model: Whether files hold plain text for a language model.
    """
    corpora = corpora_in(data)
    name = corpora[0][0]
    if name == _BUILT_IN_TEXT or name in _BUILT_IN_PAIRS:
        recipe = Recipe.load(name.replace("-", "_"))
    elif language_model:
        recipe = Recipe.load("plain_text")
    else:
        recipe = Recipe.load("text_pairs")
    return recipe.replace(data=_one_or_several(corpora))


def is_for_any_files(recipe):
    """Whether the data of a recipe are files, to which settings are fitted, rather than built-in data."""
    corpora = corpora_in(recipe.data)
    built_in = {_BUILT_IN_TEXT} if recipe.is_language_model else _BUILT_IN_PAIRS
    return bool(corpora) and corpora[0][0] not in built_in


def open_splits(recipe):
    """The `DataSplits` that a recipe names, of pairs, or of texts for a language model.

    Raises:
        ValueError, FileNotFoundError: saying which file is wrong, and where.
    """
    corpora = corpora_in(recipe.data)
    if not corpora:
        raise ValueError("The recipe names no data. Set `data`, or give --data.")
    if recipe.is_language_model:
        return _open_text_splits(recipe, corpora)
    options = {"folder": recipe.data_dir, "languages": (recipe.source_language, recipe.target_language)}
    is_built_in = corpora[0][0] in _BUILT_IN_PAIRS
    train = [open_pairs(corpus, "train", **options) for corpus in corpora]
    validation = None
    test = None
    if is_built_in:
        if len(corpora) == 1 and (recipe.validation or recipe.test):
            raise ValueError(
                f"{corpora[0][0]} has validation and test parts of its own: give no files for them."
            )
        validation = open_pairs(corpora[0], "validation", **options)
        test = open_pairs(corpora[0], "test", **options)
    elif recipe.validation is None:
        train[0], validation, _ = held_out(train[0], others=train[1:])
    if recipe.validation:
        validation = _read(recipe.validation)
    if recipe.test:
        test = _read(recipe.test)
    return DataSplits(_one_or_several(train), validation, test)


def _one_or_several(corpora):
    return corpora[0] if len(corpora) == 1 else corpora


def as_corpora(pairs):
    """One or several `TextPairs` as a list."""
    return [pairs] if isinstance(pairs, TextPairs) else list(pairs)


def _open_text_splits(recipe, corpora):
    if len(corpora) != 1:
        raise ValueError(
            f"A language model learns from one text, of one file or several. Received: data={recipe.data}."
        )
    [names] = corpora
    is_built_in = names == [_BUILT_IN_TEXT]
    text = shakespeare_text(recipe.data_dir) if is_built_in else read_plain_text(*names)
    splits = held_out(text, recipe.documents)
    if recipe.validation:
        splits = DataSplits(text, read_plain_text(*recipe.validation), None)
    if recipe.test:
        splits = splits._replace(test=read_plain_text(*recipe.test))
    return splits


def open_pairs(data, split="test", folder=None, languages=("en", "de")):
    """The `TextPairs` of files, or of a name and a `split` (train, validation or test)."""
    open_split = _BUILT_IN_PAIRS.get(data[0]) if len(data) == 1 else None
    return _read(data) if open_split is None else open_split(split, folder, languages)


def data_name(data):
    """A name for the run folder: `dates`, `multi30k`, or the first file's name without endings."""
    return pathlib.Path(corpora_in(data)[0][0]).name.partition(".")[0] or "run"


def corpora_in(data):
    """`Recipe.data` as a list of corpora, each a list of strings."""
    if not data:
        return []
    is_single = isinstance(data[0], str | os.PathLike)
    corpora = [data] if is_single else data
    return [list(map(os.fspath, corpus)) for corpus in corpora]


def free_folder(path, recipe=None):
    """`path`, or the first of `path`-2, `path`-3, ... that does not exist.

    Args:
        path: Path.
        recipe: `Recipe`, or None. A folder with a run of this recipe that has not ended counts as free: the run goes on there.
    """
    candidate = pathlib.Path(path)
    number = 2
    while candidate.exists() and not (recipe is not None and holds_unfinished(candidate, recipe)):
        candidate = pathlib.Path(f"{path}-{number}")
        number += 1
    return candidate


def _read(files):
    if len(files) == 1:
        return read_tsv(files[0])
    if len(files) == 2:
        return read_text_pairs(*files)
    raise ValueError(
        "Data must be `dates`, `reverse`, `multi30k`, one TSV file, or a source and a target file. "
        f"Received {len(files)}: {' '.join(map(str, files))}"
    )


def held_out(data, at_line_breaks=False, others=()):
    """`DataSplits` of `TextPairs` or a `PlainText`: a tenth is for validation, of pairs at most 1,000, and none for tests.

    Pairs with the same source stay together, and a source that is in `others` too is not held out, so that nothing is validated
    that is trained on. If no source is left, as when all are equal, single pairs are held out, and `shared_notes` says so.

    Args:
        data: `TextPairs` or `PlainText`.
        at_line_breaks: As in `PlainText.split`.
        others: List of `TextPairs` that are trained on too.
    """
    if isinstance(data, PlainText):
        training, validation = data.split(at_line_breaks)
        return DataSplits(training, validation, None)
    count = min(_MOST_HELD_OUT, len(data) // 10)
    if count == 0:
        raise ValueError(
            f"{data.name} has {len(data)} pairs, too few to hold some out. Give files for validation."
        )
    rows = _rows_of_whole_sources(data, count, others)
    if not len(rows):
        rows = np.array(sorted(random.Random(0).sample(range(len(data)), count)))
    rest = np.delete(np.arange(len(data)), rows)
    training = _part(data, rest, "the rest")
    validation = _part(data, rows, f"{len(rows):,} held out")
    return DataSplits(training, validation, None)


def _part(pairs, rows, name):
    return TextPairs(Rows(pairs.sources, rows), Rows(pairs.targets, rows), f"{pairs.name}, {name}")


def _rows_of_whole_sources(pairs, count, others):
    """The rows of some sources, about `count`; none if all sources are in `others` too, or the smallest has most of the rows."""
    keys = _keys(pairs.sources)
    _, first_rows, source_of_row, sizes = np.unique(
        keys, return_index=True, return_inverse=True, return_counts=True
    )
    is_shared = np.zeros(len(sizes), bool)
    for other in others:
        is_shared |= np.isin(keys[first_rows], _keys(other.sources))
    # In the order of the data, so that the random choice does not depend on the hashes.
    sources = np.argsort(first_rows)
    sources = sources[~is_shared[sources]]
    chosen = []
    num_rows = 0
    for index in random.Random(0).sample(range(len(sources)), min(count, len(sources))):
        if num_rows + sizes[sources[index]] <= count:
            chosen.append(sources[index])
            num_rows += sizes[sources[index]]
    if not chosen and len(sources):  # each source has more rows than `count`: take the one with the fewest
        smallest = sources[np.argmin(sizes[sources])]
        if 2 * sizes[smallest] <= len(pairs):
            chosen = [smallest]
    return np.flatnonzero(np.isin(source_of_row, chosen))


def _keys(texts):
    """A 64-bit number for each text, equal for texts that differ in white space or Unicode's normal forms alone."""
    digests = (hashlib.blake2b(_read_alike(text), digest_size=8).digest() for text in texts)
    return np.frombuffer(b"".join(digests), np.uint64)


def _read_alike(text):
    return " ".join(unicodedata.normalize("NFKC", text).split()).encode("utf-8", "surrogatepass")


def shared_notes(data):
    """Notes on validation and test data that are trained on too, a list of lines; empty if that is little.

    Args:
        data: `DataSplits`.
    """
    if isinstance(data.train, PlainText):
        trained = set(data.train.text.split("\n"))
        count_shared = _shared_lines
        what = "long lines"
        most_shared = _MOST_SHARED_LINES
    else:
        trained = np.concatenate([_keys(pairs.sources) for pairs in as_corpora(data.train)])
        count_shared = _shared_sources
        what = "sources"
        most_shared = _MOST_SHARED
    notes = []
    for name in ("validation", "test"):
        part = getattr(data, name)
        if part is None:
            continue
        num_shared, total = count_shared(part, trained)
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
