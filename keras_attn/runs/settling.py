"""What a run is: recipe, data and folder, settled from the words of a person, the same in Python and on the command line.

The words are settled in one order. A recipe that is given, or else that of the run in the folder, or else that of the data, is
the beginning; the words replace what it says; and what is still open in a new run is fitted to the data.
"""

import dataclasses
import os
import pathlib

from keras_attn.data import PlainText, TextPairs
from keras_attn.runs.built_in_recipes import PLAIN_TEXT, TEXT_FILES
from keras_attn.runs.data import data_name, default_recipe, free_folder, is_for_any_files, open_splits
from keras_attn.runs.fitted import FittedRecipe, fit_recipe
from keras_attn.runs.fitted_start import fit_start
from keras_attn.runs.fitted_text import fit_text_recipe
from keras_attn.runs.held_out import DataSplits, held_out
from keras_attn.runs.recipe import Recipe
from keras_attn.runs.run_record import RECORD
from keras_attn.runs.student_recipe import fit_student_recipe, student_recipe
from keras_attn.runs.teachers import teacher_folders
from keras_attn.runs.time_plan import PLANNED

# Words about the checkpoint that a run begins with, which become `start_options`; so do languages, of a user's own data.
_OF_THE_START = ("text_prefix", "purpose", "ignored_fields")
_LANGUAGES = ("source_language", "target_language")
# What the folder of `start_from` says.
_NOT_WITH_START = ("model", "tokenizer", "vocabulary_size", "documents")


@dataclasses.dataclass(frozen=True)
class SettledRun:
    """What a run is to be.

    Args:
        recipe: `Recipe`.
        data: `DataSplits`.
        folder: `pathlib.Path`.
        fitted: The `FittedRecipe` whose recipe it is, or None if nothing was fitted.
    """

    recipe: Recipe
    data: DataSplits
    folder: pathlib.Path
    fitted: FittedRecipe | None = None


def settle_training(data, folder, recipe, given, *, size=None, language_model=False):
    """The `SettledRun` of `train`, whose arguments these are; `given` is a dict of its words."""
    given = _checked_words(given, _OF_THE_START)
    splits, names = _opened(data)
    folder, before = _folder_and_recipe(folder)
    recipe = _loaded(recipe)
    is_new = recipe is None and before is None
    beginning = recipe or before or _default_recipe(splits, names, language_model)
    if language_model and not beginning.is_language_model:
        raise ValueError(
            "`language_model` (--language-model) is for plain text. Received data or a recipe of text pairs."
        )
    if names:
        beginning = beginning.replace(data=default_recipe(names, language_model).data)
    own_data = splits is not None or is_for_any_files(beginning)
    if "start_from" in given:
        if size is not None:
            _refuse_with_start(["size"])
        if language_model:
            _refuse_with_start(["language_model"])
        is_of_folder = recipe is None and before is not None
        beginning = _with_start(beginning, given, own_data, is_new=is_new, folder=is_of_folder and folder)
    elif words := [name for name in _OF_THE_START if name in given]:
        raise ValueError(
            f"{' and '.join(f'`{name}`' for name in words)} (--text-prefix, --purpose, --ignored-fields) say more about the checkpoint of --from "
            "(`start_from`), which is not given."
        )
    fields = {name: value for name, value in given.items() if name not in (*_OF_THE_START, *_START_FIELDS)}
    if size is not None:
        if "model" in fields:
            raise ValueError(
                f"Give `size` or `model`, not both. Received: size={size!r}, model={fields['model']}."
            )
        beginning = beginning.with_size(size)
    settled = _replaced(beginning, fields)
    splits = _split(splits, settled, folder, before)
    fitted = None
    if is_new and (settled.start_from or own_data):
        fit = fit_text_recipe if settled.is_language_model else fit_recipe
        fit = fit_start if settled.start_from else fit
        fitted = fit(splits, settled, [*fields, *(["model"] if size else [])])
        settled = fitted.recipe
    return SettledRun(settled, splits, folder or _free_folder(settled, ""), fitted)


def settle_distillation(teachers, folder, data, recipe, given, **of_student):
    """The `SettledRun` of `distill`, whose arguments these are; `given` is a dict of its words."""
    given = _checked_words(given)
    splits, names = _opened(data)
    folder, before = _folder_and_recipe(folder)
    recipe = _loaded(recipe)
    if not (teachers or recipe or before):
        raise ValueError(
            "Give a teacher, or the --output (`folder`) of a run that is to go on. A teacher is a translator, or the run that "
            "made it."
        )
    teacher_folders(teachers)  # an error before data are read, or downloaded
    if recipe is None and not teachers:
        recipe = before
    fitted = None
    if recipe is None and not _is_run(teachers[0]):
        recipe, fitted = _recipe_for_student(
            teachers, splits, names, given, references=of_student["references"] is not False
        )
    settled = student_recipe(teachers, recipe, **of_student)
    if names:
        given = {**given, "data": default_recipe(names).data}
    elif splits is not None:
        settled = dataclasses.replace(settled, data=())
    settled = settled.replace(**given)
    if fitted is not None:
        fitted = dataclasses.replace(fitted, recipe=settled)
    splits = _split(splits, settled, folder, before)
    return SettledRun(settled, splits, folder or _free_folder(settled, "-student"), fitted)


_START_FIELDS = ("start_from", "start_options")


def _checked_words(given, more=()):
    """The words that have a value."""
    known = {field.name for field in dataclasses.fields(Recipe)} - {"data"} | set(more)
    if unknown := sorted(set(given) - known):
        raise TypeError(
            f"A run has no setting {', '.join(f'`{name}`' for name in unknown)}. It has: {', '.join(sorted(known))}."
        )
    return {name: value for name, value in given.items() if value is not None}


def _opened(data):
    """(data that are in memory, None) or (None, their names)."""
    if data is None or isinstance(data, DataSplits | TextPairs | PlainText):
        return data, None
    return None, (data,) if isinstance(data, str | os.PathLike) else tuple(data)


def _folder_and_recipe(folder):
    """The folder as a path, and the recipe of the run in it; None where there is none."""
    if folder is None:
        return None, None
    folder = pathlib.Path(folder)
    return folder, Recipe.load(folder) if _is_run(folder) else None


def _is_run(folder):
    return (pathlib.Path(folder) / RECORD).is_file()


def _loaded(recipe):
    return Recipe.load(recipe) if isinstance(recipe, str | os.PathLike) else recipe


def _default_recipe(splits, names, language_model):
    if splits is not None:
        is_text = isinstance(splits.train if isinstance(splits, DataSplits) else splits, PlainText)
        return PLAIN_TEXT if is_text else TEXT_FILES
    if names:
        return default_recipe(names, language_model)
    raise ValueError(
        "Give two text files to train on, or text files with --language-model, or --data NAME, or --recipe FILE, or the "
        "--output of a run that is to go on."
    )


def _with_start(recipe, given, own_data, *, is_new, folder):
    """The recipe of a run that begins with the translator in the folder of `start_from`.

    Args:
        recipe: The `Recipe` before.
        given: The words.
        own_data: Whether the data are a user's own: the languages of built-in data are not names in a model.
        is_new: Whether no recipe was given and no run goes on.
        folder: The folder of the run that goes on, whose recipe it is; else False.
    """
    if words := [name for name in _NOT_WITH_START if name in given]:
        _refuse_with_start(words)
    if recipe.is_language_model:
        raise ValueError(
            "`start_from` (--from) is for translators. Received: plain text, or a recipe of a language model."
        )
    if not is_new and recipe.start_from:
        if str(given["start_from"]) != recipe.start_from:
            raise ValueError(
                f"The run began with {recipe.start_from}. Received: start_from={str(given['start_from'])!r}. Leave --from "
                "(`start_from`) out to go on, or choose another folder."
            )
        return recipe
    if folder:
        raise ValueError(
            f"{folder} holds a run that began with fresh weights. Choose another folder (--output)."
        )
    words = (*_OF_THE_START, *(_LANGUAGES if own_data else ()))
    options = {name: given[name] for name in words if name in given}
    start = {
        "start_from": str(given["start_from"]),
        "start_options": {**given.get("start_options", {}), **options},
    }
    return dataclasses.replace(recipe, model={}, **start)


def _refuse_with_start(words):
    raise ValueError(
        "With --from (`start_from`), the model and the tokenizers are those of the folder. Leave "
        f"{', '.join(f'`{word}`' for word in words)} out."
    )


def _replaced(recipe, fields):
    """The recipe with the fields that are given. Minutes plan some fields; epochs end the plan of a recipe for minutes."""
    minutes = fields.get("minutes", recipe.minutes)
    planned = {name: fields[name] for name in PLANNED if name in fields}
    if "epochs" in planned and "minutes" not in fields:
        return dataclasses.replace(recipe, minutes=None, **fields)
    if minutes is not None and planned:
        received = ", ".join(f"{name}={value!r}" for name, value in planned.items())
        raise ValueError(
            f"`minutes` plans {', '.join(f'`{name}`' for name in PLANNED)}. Leave {' and '.join(f'`{name}`' for name in planned)} "
            f"out, or `minutes`. Received: minutes={minutes:g}, {received}."
        )
    return dataclasses.replace(recipe, **fields)


def _split(splits, recipe, folder, before):
    """The `DataSplits`: those in memory, a part held out if need be, or those that a recipe names."""
    if splits is not None:
        return splits if isinstance(splits, DataSplits) else held_out(splits, recipe.documents)
    if before is not None and not recipe.data:
        raise ValueError(
            f"{folder} holds a run on data that were given in Python: go on with it there, by runs.train(data, {str(folder)!r})."
        )
    return open_splits(recipe)


def _free_folder(recipe, ending):
    if not recipe.data:
        raise ValueError("`folder` must be given for data that are no files. Received: folder=None.")
    return free_folder(f"runs/{data_name(recipe.data)}{ending}", recipe)


def _recipe_for_student(teachers, splits, names, given, *, references):
    """(recipe, fitted) for data and a teacher that is no run: fitted to the data, or the recipe of built-in data."""
    if splits is None and not names:
        raise ValueError(
            f"Give the data with --data: there is no run in {teachers[0]}, whose data would be known."
        )
    recipe = _default_recipe(splits, names, language_model=False).replace(**given)
    if splits is None and not is_for_any_files(recipe):
        return recipe, None
    data = _split(splits, recipe, None, None)
    fitted = fit_student_recipe(data, recipe, given, references=references)
    return fitted.recipe, fitted
