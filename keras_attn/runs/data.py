"""The pairs and the recipe of a run, from the data that a user names."""

import os
import pathlib

from keras_attn.data import (
    date_pairs,
    multi30k_pairs,
    read_plain_text,
    read_text_pairs,
    read_tsv,
    reverse_pairs,
    shakespeare_text,
)
from keras_attn.runs.built_in_recipes import (
    DATES,
    MULTI30K,
    MULTI30K_TOKENIZED,
    PLAIN_TEXT,
    REVERSE,
    SHAKESPEARE,
    TEXT_FILES,
)
from keras_attn.runs.held_out import DataSplits, held_out
from keras_attn.runs.run_record import holds_unfinished

# Built-in data by name: functions of the split, the folder of the data and two languages.
_BUILT_IN = {
    "dates": lambda split, folder, languages: date_pairs(split),
    "reverse": lambda split, folder, languages: reverse_pairs(split),
    "multi30k": lambda split, folder, languages: multi30k_pairs(split, *languages, folder=folder),
    "multi30k-tokenized": lambda split, folder, languages: multi30k_pairs(
        split, *languages, folder=folder, tokenized=True
    ),
}


def default_recipe(data, language_model=False):
    """The default recipe for `data`, which has the form of `Recipe.data`.

    Args:
        data: Tuple of strings, or of tuples of strings.
        language_model: Whether files hold plain text for a language model.
    """
    recipes = {
        "dates": DATES,
        "reverse": REVERSE,
        "shakespeare": SHAKESPEARE,
        "multi30k": MULTI30K,
        "multi30k-tokenized": MULTI30K_TOKENIZED,
    }
    corpora = tuple(map(tuple, corpora_in(data)))
    others = PLAIN_TEXT if language_model else TEXT_FILES
    return recipes.get(corpora[0][0], others).replace(data=corpora[0] if len(corpora) == 1 else corpora)


def is_for_any_files(recipe):
    """Whether a recipe names files, whose settings are to be fitted, and no built-in data."""
    corpora = corpora_in(recipe.data)
    built_in = {"shakespeare"} if recipe.is_language_model else _BUILT_IN
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
    train = [open_pairs(corpus, "train", **options) for corpus in corpora]
    if corpora[0][0] in _BUILT_IN:
        if len(corpora) == 1 and (recipe.validation or recipe.test):
            raise ValueError(
                f"{corpora[0][0]} has validation and test parts of its own: give no files for them."
            )
        validation, test = (open_pairs(corpora[0], split, **options) for split in ("validation", "test"))
    elif recipe.validation is None:
        train[0], validation, test = held_out(train[0], others=train[1:])
    if recipe.validation:
        validation = _read(recipe.validation)
    if recipe.test or corpora[0][0] not in _BUILT_IN:
        test = _read(recipe.test) if recipe.test else None
    return DataSplits(train[0] if len(train) == 1 else train, validation, test)


def _open_text_splits(recipe, corpora):
    if len(corpora) != 1:
        raise ValueError(
            f"A language model learns from one text, of one file or several. Received: data={recipe.data}."
        )
    [names] = corpora
    text = shakespeare_text(recipe.data_dir) if names == ["shakespeare"] else read_plain_text(*names)
    splits = held_out(text, recipe.documents)
    if recipe.validation:
        splits = DataSplits(text, read_plain_text(*recipe.validation), None)
    return splits._replace(test=read_plain_text(*recipe.test) if recipe.test else None)


def open_data(data, validation=None, test=None, folder=None, languages=("en", "de")):
    """The recipe and the `DataSplits` for a name or files.

    Args:
        data: List of strings: `["dates"]`, `["reverse"]`, `["multi30k"]`, `["multi30k-tokenized"]`, one TSV
            file, or a source and a target file (plain or .gz); or a list of several of these lists.
        validation, test: Lists of one or two files, as in `data`, only if `data` are files. Without
            validation files, a tenth of the pairs, at most 1,000, is held out, whole sources.
        folder: Folder of Multi30k; without it, the data are downloaded.
        languages: The source and the target language of Multi30k.

    Returns:
        A `Recipe` and `DataSplits`.

    Raises:
        ValueError, FileNotFoundError: saying which file is wrong, and where.
    """
    recipe = default_recipe(data).replace(
        validation=validation and tuple(validation),
        test=test and tuple(test),
        data_dir=folder and str(folder),
        source_language=languages[0],
        target_language=languages[1],
    )
    return recipe, open_splits(recipe)


def open_pairs(data, split="test", folder=None, languages=("en", "de")):
    """The `TextPairs` of files, or of a name and a `split` (train, validation or test)."""
    open_split = _BUILT_IN.get(data[0]) if len(data) == 1 else None
    return _read(data) if open_split is None else open_split(split, folder, languages)


def data_name(data):
    """A name for the run folder: `dates`, `multi30k`, or the first file's name without endings."""
    return pathlib.Path(corpora_in(data)[0][0]).name.partition(".")[0] or "run"


def corpora_in(data):
    """`Recipe.data` as a list of corpora, each a list of strings."""
    if not data:
        return []
    is_single = isinstance(data[0], str | os.PathLike)
    return [[os.fspath(part) for part in corpus] for corpus in ([data] if is_single else data)]


def free_folder(path, recipe=None):
    """`path`, or the first of `path`-2, `path`-3, ... that does not exist.

    Args:
        path: Path.
        recipe: `Recipe`; a folder with a run of this recipe that has not ended is taken, too: the run goes on there.
    """
    candidate, number = pathlib.Path(path), 2
    while candidate.exists() and not (recipe is not None and holds_unfinished(candidate, recipe)):
        candidate, number = pathlib.Path(f"{path}-{number}"), number + 1
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
