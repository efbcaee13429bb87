"""`train` and `distill`: what a user asks for becomes a recipe, data and a folder, and the run is carried out.

The arguments, which are the options of the command line too, are called words. They are settled once and in one order. First
comes a recipe: the one that is given, else that of the run in the folder, else that of the first teacher's run, else the default
of the data. The words replace what it says. In a new run, settings that nobody gave are fitted to the data.

The way of `keras-attn train a.en a.de`:

- here, `settle_training`: data.py opens the files and holds out a part, pair_settings.py fits the settings;
- training_run.py, `TrainingRun.go`: the steps of every run, from the lock on its folder to the record in it; translation_run.py
  has what pairs have of their own: tokenizers, model, batches, scores;
- optimizer.py, and `model.fit` with the callbacks of progress.py, which count, save and stop;
- evaluation.py: BLEU, chrF and exact match at the end.

The others need no reading for that: run_folder.py saves and resumes, time_plan.py is for `minutes`, tensorboard_logs.py and
attention_views.py write what one looks at, processes.py is for several processes.
"""

import dataclasses
import os
import pathlib

from keras_attn.data import PlainText, TextPairs
from keras_attn.runs.data import (
    DataSplits,
    data_name,
    default_recipe,
    free_folder,
    held_out,
    is_for_any_files,
    open_splits,
)
from keras_attn.runs.distillation import (
    DistillationRun,
    fit_student_recipe,
    student_recipe,
    teacher_folders,
    with_layers,
)
from keras_attn.runs.language_model_run import LanguageModelRun
from keras_attn.runs.pair_settings import FittedRecipe, fit_recipe
from keras_attn.runs.processes import Processes, all_devices
from keras_attn.runs.recipe import Recipe, holds_run
from keras_attn.runs.recipe_fields import PLANNED, fields_where
from keras_attn.runs.starting_model import fit_start
from keras_attn.runs.text_settings import fit_text_recipe
from keras_attn.runs.translation_run import TranslationRun
from keras_attn.terminal import say

# Words about the checkpoint that a run begins with. They become `start_options`, and so do the languages if the data are a user's.
_CHECKPOINT_WORDS = ("text_prefix", "purpose", "ignored_fields")
_LANGUAGES = ("source_language", "target_language")
_START_FIELDS = ("start_from", "start_options")


def train(data=None, folder=None, recipe=None, verbose=1, *, size=None, language_model=False, **words):
    """Trains a translator or a language model: tokenizers, batches, model, `fit`, averaging, evaluation.

    The command `keras-attn train` calls this function with its options, so the same words give the same run.

    The run folder holds `run.json` (recipe, versions, results), `translator/` or `text_generator/` (for `load`: the
    best so far, at any time of the run), `checkpoints/` (weights of some epochs, the best ones, and the last
    states of the run), `tokenizer/`, `history.csv`, `log.txt` and `tensorboard/`. Ctrl-C stops
    training after the current update, saves the state and evaluates the best weights so far; a second Ctrl-C skips
    the evaluation. A run that was stopped, or killed at any time, continues from its last state when it is called
    again with the same recipe and data. On one processor, the result is bitwise the same. A run that has ended
    continues when it is given more epochs or minutes.

    Args:
        data: `TextPairs` or `PlainText`, of which a part is held out for validation; or `DataSplits` of them; or a name or
            files, as in `Recipe.data`: `"dates"`, `["a.en", "a.de"]`, `["pairs.tsv"]`. Defaults to the files of the recipe.
        folder: Path of the run folder: a new one, or that of a run of the same recipe and data. Defaults to the next free
            `runs/NAME`, `NAME` being the first file's.
        recipe: A `Recipe`, or what `Recipe.load` reads: a TOML file, a run's folder, its `run.json`, or the name of a built-in
            recipe. Defaults to that of the run in `folder`. In a new folder, it defaults to the recipe of built-in data, and
            for all other data to settings that are fitted to them.
        verbose: 0 is silent; 1 shows the fitted settings, lines and, on a terminal, a progress bar.
        size: Named size of the model, as in `Recipe.with_size`.
        language_model: Boolean, whether files are plain text for a language model.
        **words: Fields of the recipe that have other values than its own, such as `minutes=30`. Settings are fitted around
            them. With `start_from="FOLDER"`, training begins with the weights of a translator, see docs/training.md;
            `text_prefix`, `purpose`, `source_language` and `target_language` then say what its files leave open. `minutes`
            plans `epochs`, `steps_per_epoch`, `warmup_steps` and `schedule`, so they cannot be given beside it. `epochs` alone
            replace the `minutes` of a recipe or of a run.

    Returns:
        `Translator`, or `TextGenerator`.

    Raises:
        ValueError: if `folder` holds a run that has ended, or a different one, or another process trains there, or
            the data do not fit the recipe, or two words exclude each other.
        TypeError: for a word that is no field of a recipe.
        OSError: if the folder cannot be written; the last state of the run is named.
        FloatingPointError: when the loss is no longer finite.

    Example:

    ```python
    pairs = keras_attn.data.TextPairs(["a b", "b c", "c d"] * 9, ["A B", "B C", "C D"] * 9, "capitals")
    small = {"size": "tiny", "num_encoder_layers": 1, "num_decoder_layers": 1, "max_sequence_length": 16}
    translator = train(pairs, "runs/capitals", verbose=0, model=small, epochs=1, steps_per_epoch=9, warmup_steps=2)
    ```
    """
    settled = settle_training(data, folder, recipe, words, size=size, language_model=language_model)
    return _carry_out(settled, verbose)


def distill(
    teachers=(),
    folder=None,
    data=None,
    recipe=None,
    verbose=1,
    *,
    size=None,
    layers=None,
    references=None,
    num_beams=None,
    length_penalty=None,
    **words,
):
    """Trains a student on its teachers' translations of the training sources, as the command `keras-attn distill` does.

    The run folder is that of `train`, with `teacher.jsonl`, the translations.

    Args:
        teachers: Folders of translators, or of the runs that made them; several translate as an ensemble. None for a run that
            goes on.
        folder: Path of the run folder. Defaults to the next free `runs/NAME-student`, `NAME` being the data's.
        data: As in `train`. Defaults to the data of the first teacher's run.
        recipe: A `Recipe`, or what `Recipe.load` reads, as in `train`. Defaults to that of the run in `folder`, then to that of
            the first teacher's run, then to settings that are fitted to the data.
        verbose: As in `train`.
        size, layers, references, num_beams, length_penalty: As in `student_recipe`.
        **words: Fields of the recipe that have other values than its own, such as `epochs=30`.

    Returns:
        `Translator`.

    Raises:
        FileNotFoundError: if there is no such teacher.
        ValueError: as `train`, and if there is neither a teacher nor a run that goes on, or no data are known.

    Example:

    ```python
    pairs = keras_attn.data.TextPairs(["a b", "b c", "c d"] * 9, ["A B", "B C", "C D"] * 9, "capitals")
    small = {"size": "tiny", "num_encoder_layers": 1, "num_decoder_layers": 1, "max_sequence_length": 16}
    short = {"model": small, "epochs": 1, "steps_per_epoch": 3, "warmup_steps": 2}
    student = distill(["runs/dates"], "runs/student", pairs, verbose=0, **short)
    ```
    """
    teaching = {"references": references, "num_beams": num_beams, "length_penalty": length_penalty}
    settled = settle_distillation(
        teachers, folder, data, recipe, words, size=size, layers=layers, teaching=teaching
    )
    return _carry_out(settled, verbose)


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


def _carry_out(settled, verbose):
    recipe = settled.recipe
    fitted = settled.fitted
    with all_devices():
        processes = Processes()
        if verbose and fitted and processes.is_first:
            say(fitted.report())
        arguments = (recipe, settled.data, settled.folder, verbose, processes)
        if recipe.is_language_model:
            return LanguageModelRun(*arguments).go()
        if recipe.distill is not None:
            return DistillationRun(*arguments).go()
        start = fitted.start if fitted else None
        return TranslationRun(*arguments, start=start).go()


def settle_training(data, folder, recipe, words, *, size=None, language_model=False):
    """The `SettledRun` of `train`, whose arguments these are; `words` is a dict."""
    words = _checked_words(words, _CHECKPOINT_WORDS)
    data, names = _data_or_names(data)
    folder, previous = _folder_and_recipe(folder)
    recipe = _loaded(recipe)
    is_new = recipe is None and previous is None
    beginning = recipe or previous or _default_recipe(data, names, language_model=language_model)
    if language_model and not beginning.is_language_model:
        raise ValueError(
            "`language_model` (--language-model) is for plain text. Received data or a recipe of text pairs."
        )
    if names:
        beginning = beginning.replace(data=default_recipe(names, language_model).data)
    own_data = data is not None or is_for_any_files(beginning)
    if "start_from" in words:
        _check_start_words(words, size, language_model)
        goes_on = recipe is None and previous is not None
        previous_folder = folder if goes_on else None
        beginning = _with_start(beginning, words, own_data, is_new=is_new, folder=previous_folder)
    else:
        _check_no_checkpoint_words(words)
    fields = {name: words[name] for name in words if name not in _CHECKPOINT_WORDS + _START_FIELDS}
    settled = _with_words(beginning, fields, size)
    splits = _open_data(data, settled, folder, previous)
    fitted = None
    if is_new and (settled.start_from or own_data):
        fit = _fitting_function(settled)
        fitted = fit(splits, settled, _given_fields(fields, size))
        settled = fitted.recipe
    return SettledRun(settled, splits, folder or _free_folder(settled), fitted)


def settle_distillation(teachers, folder, data, recipe, words, *, size=None, layers=None, teaching=None):
    """The `SettledRun` of `distill`, whose arguments these are; `words` and `teaching` are dicts."""
    words = _checked_words(words)
    teachers = _as_folders(teachers)
    data, names = _data_or_names(data)
    folder, previous = _folder_and_recipe(folder)
    beginning = _loaded(recipe) or previous
    if beginning is None and not teachers:
        raise ValueError(
            "Give a teacher, or the --output (`folder`) of a run that is to go on. A teacher is a translator, or the run that "
            "made it."
        )
    teacher_folders(teachers)  # an error before data are read, or downloaded
    _check_student_words(words, layers)
    if beginning is None and holds_run(teachers[0]):
        # A teacher may have been a student itself.
        beginning = dataclasses.replace(Recipe.load(teachers[0]), distill=None)
    is_new = beginning is None
    if is_new and data is None and not names:
        raise ValueError(
            f"Give the data with --data: there is no run in {teachers[0]}, whose data would be known."
        )
    if is_new:
        beginning = _default_recipe(data, names)
    if names:
        beginning = beginning.replace(data=default_recipe(names).data)
    elif data is not None:
        beginning = dataclasses.replace(beginning, data=())
    beginning = student_recipe(teachers, beginning, layers=layers, **(teaching or {}))
    settled = _with_words(beginning, words, size, layers)
    splits = _open_data(data, settled, folder, previous)
    fitted = None
    if is_new and (data is not None or is_for_any_files(settled)):
        references = settled.distill.get("references", True)
        fitted = fit_student_recipe(splits, settled, _given_fields(words, size), references)
        if layers is not None:
            fitted = dataclasses.replace(fitted, recipe=with_layers(fitted.recipe, layers))
        settled = fitted.recipe
    return SettledRun(settled, splits, folder or _free_folder(settled, ending="-student"), fitted)


def _checked_words(words, more=()):
    """The words that have a value."""
    known = {field.name for field in dataclasses.fields(Recipe)} - {"data"} | set(more)
    if unknown := sorted(set(words) - known):
        raise TypeError(
            f"A run has no setting {', '.join(f'`{name}`' for name in unknown)}. It has: {', '.join(sorted(known))}."
        )
    return {name: value for name, value in words.items() if value is not None}


def _as_folders(folders):
    """One folder, several or None as a list of strings."""
    if folders is None:
        return []
    if isinstance(folders, str | os.PathLike):
        folders = [folders]
    return list(map(os.fspath, folders))


def _data_or_names(data):
    """(the data, None) if they are in memory, else (None, the names of data or files)."""
    if data is None or isinstance(data, DataSplits | TextPairs | PlainText):
        return data, None
    if isinstance(data, str | os.PathLike):
        return None, (data,)
    return None, tuple(data)


def _folder_and_recipe(folder):
    """The folder as a path, and the recipe of the run in it; None where there is none."""
    if folder is None:
        return None, None
    folder = pathlib.Path(folder)
    recipe = Recipe.load(folder) if holds_run(folder) else None
    return folder, recipe


def _loaded(recipe):
    return Recipe.load(recipe) if isinstance(recipe, str | os.PathLike) else recipe


def _default_recipe(data, names, *, language_model=False):
    if names:
        return default_recipe(names, language_model)
    if data is None:
        raise ValueError(
            "Give two text files to train on, or text files with --language-model, or --data NAME, or --recipe FILE, or the "
            "--output of a run that is to go on."
        )
    training = data.train if isinstance(data, DataSplits) else data
    name = "plain_text" if isinstance(training, PlainText) else "text_pairs"
    return Recipe.load(name)


def _check_start_words(words, size, language_model):
    """Raises ValueError for words about a new model, where the run begins with a trained one."""
    refused = [name for name in fields_where("new_model_only") if name in words]
    if size is not None:
        refused.append("size")
    if language_model:
        refused.append("language_model")
    if refused:
        raise ValueError(
            "With --from (`start_from`), the model and the tokenizers are those of the folder. Leave "
            f"{', '.join(f'`{word}`' for word in refused)} out."
        )


def _check_no_checkpoint_words(words):
    refused = [name for name in _CHECKPOINT_WORDS if name in words]
    if refused:
        raise ValueError(
            f"{' and '.join(f'`{name}`' for name in refused)} (--text-prefix, --purpose, --ignored-fields) say more about the checkpoint of --from "
            "(`start_from`), which is not given."
        )


def _check_student_words(words, layers):
    """Raises ValueError for words about tokenizers, which are the teachers', and for layers that are said twice."""
    refused = [name for name in fields_where("new_model_only") if name in words and name != "model"]
    if refused:
        raise ValueError(
            f"The tokenizers of a student are its teachers'. Leave {', '.join(f'`{word}`' for word in refused)} out."
        )
    if layers is not None and "model" in words:
        raise ValueError(
            f"Give `layers` or `model`, not both. Received: layers={layers!r}, model={words['model']}."
        )


def _with_start(recipe, words, own_data, *, is_new, folder):
    """The recipe of a run that begins with the translator in the folder of `start_from`.

    Args:
        recipe: The `Recipe` before.
        words: Dict.
        own_data: Whether the data are a user's own: the languages of built-in data are not names in a model.
        is_new: Whether no recipe was given and no run goes on.
        folder: The folder of the run that goes on, whose recipe it is; else None.
    """
    start_from = os.fspath(words["start_from"])
    if recipe.is_language_model:
        raise ValueError(
            "`start_from` (--from) is for translators. Received: plain text, or a recipe of a language model."
        )
    if not is_new and recipe.start_from:
        if start_from != recipe.start_from:
            raise ValueError(
                f"The run began with {recipe.start_from}. Received: start_from={start_from!r}. Leave --from "
                "(`start_from`) out to go on, or choose another folder."
            )
        return recipe
    if folder:
        raise ValueError(
            f"{folder} holds a run that began with fresh weights. Choose another folder (--output)."
        )
    names = _CHECKPOINT_WORDS
    if own_data:
        names += _LANGUAGES
    options = {name: words[name] for name in names if name in words}
    return dataclasses.replace(
        recipe,
        model={},
        start_from=start_from,
        start_options={**words.get("start_options", {}), **options},
    )


def _with_words(recipe, fields, size, layers=None):
    """The recipe with the size, the layers and the fields that are given.

    Fields that `minutes` plans cannot be given beside it; `epochs` alone replace the minutes of the recipe.
    """
    if size is not None:
        if "model" in fields:
            raise ValueError(
                f"Give `size` or `model`, not both. Received: size={size!r}, model={fields['model']}."
            )
        recipe = recipe.with_size(size)
    if layers is not None:
        recipe = with_layers(recipe, layers)
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


def _given_fields(fields, size):
    """The names of the fields that are given, and so are not fitted."""
    names = list(fields)
    if size is not None:
        names.append("model")
    return names


def _fitting_function(recipe):
    """The function that fits a recipe to its data."""
    if recipe.start_from:
        return fit_start
    return fit_text_recipe if recipe.is_language_model else fit_recipe


def _open_data(data, recipe, folder, previous):
    """The `DataSplits`: of data in memory, of which a part is held out if they have none for validation, or of a recipe's files."""
    if isinstance(data, DataSplits):
        return data
    if data is not None:
        return held_out(data, recipe.documents)
    if previous is not None and not recipe.data:
        raise ValueError(
            f"{folder} holds a run on data that were given in Python: go on with it there, by runs.train(data, {str(folder)!r})."
        )
    return open_splits(recipe)


def _free_folder(recipe, ending=""):
    if not recipe.data:
        raise ValueError("`folder` must be given for data that are no files. Received: folder=None.")
    return free_folder(f"runs/{data_name(recipe.data)}{ending}", recipe)
