"""Trains a model from data, with a recipe or with settings fitted to the data."""

import dataclasses
import os
import pathlib

from keras_attn.data import PlainText, TextPairs
from keras_attn.runs.built_in_recipes import PLAIN_TEXT, TEXT_FILES
from keras_attn.runs.data import DataSplits, default_recipe, held_out, is_for_any_files, open_splits
from keras_attn.runs.distillation_run import DistillationRun
from keras_attn.runs.fitted import fit_recipe
from keras_attn.runs.fitted_start import fit_start
from keras_attn.runs.fitted_text import fit_text_recipe
from keras_attn.runs.language_model_run import LanguageModelRun
from keras_attn.runs.recipe import Recipe
from keras_attn.runs.run_record import RECORD
from keras_attn.runs.translation_run import TranslationRun
from keras_attn.runs.workers import Workers, all_devices
from keras_attn.terminal import say


def train(data, folder, recipe=None, verbose=1, start=None, **given):
    """Trains a translator or a language model: tokenizers, batches, model, `fit`, averaging, evaluation.

    The run folder holds `run.json` (recipe, versions, results), `translator/` or `text_generator/` (for `load`: the
    best so far, at any time of the run), `checkpoints/` (weights of some epochs, the best ones, and the last
    states of the run), `tokenizer/`, `history.csv`, `log.txt` and `tensorboard/`. Ctrl-C stops
    training after the current update, saves the state and evaluates the best weights so far; a second Ctrl-C skips
    the evaluation. A run that was stopped, or killed at any time, continues from its last state when it is called
    again with the same recipe and data. On one processor, the result is bitwise the same. A run that has ended
    continues when it is given more epochs or minutes.

    Args:
        data: `TextPairs` or `PlainText`, of which a part is held out for validation; or `DataSplits` of them; or a name or
            files, as in `Recipe.data`: `"dates"`, `["a.en", "a.de"]`, `["pairs.tsv"]`.
        folder: Path of the run folder: a new one, or that of a run of the same recipe and data.
        recipe: A `Recipe`. Defaults to that of the run in `folder`. In a new folder, it defaults to the recipe of built-in
            data, and for all other data to settings that are fitted to them.
        verbose: 0 is silent; 1 shows the fitted settings, lines and, on a terminal, a progress bar.
        start: The `Translator` that `start_from` of the recipe names, if it is loaded already.
        **given: Fields of the recipe that have other values than its own, such as `minutes=30`. Settings are fitted around
            them. With `start_from="FOLDER"`, training begins with the weights of a translator, see docs/training.md.

    Returns:
        `Translator`, or `TextGenerator`.

    Raises:
        ValueError: if `folder` holds a run that has ended, or a different one, or another process trains there, or
            the data do not fit the recipe.
        OSError: if the folder cannot be written; the last state of the run is named.
        FloatingPointError: when the loss is no longer finite.

    Example:

    ```python
    pairs = keras_attn.data.TextPairs(["a b", "b c", "c d"] * 9, ["A B", "B C", "C D"] * 9, "capitals")
    small = {"size": "tiny", "num_encoder_layers": 1, "num_decoder_layers": 1, "max_sequence_length": 16}
    translator = train(pairs, "runs/capitals", verbose=0, model=small, epochs=1, steps_per_epoch=9, warmup_steps=2)
    ```
    """
    folder = pathlib.Path(folder)
    recipe, data, fitted = _settled(data, folder, recipe, given)
    report = fitted and fitted.report()
    with all_devices():
        workers = Workers()
        if verbose and report and workers.is_first:
            say(report)
        if recipe.is_language_model:
            return LanguageModelRun(recipe, data, folder, verbose, workers).go()
        start = start or (fitted and fitted.start)
        run = TranslationRun if recipe.distill is None else DistillationRun
        return run(recipe, data, folder, verbose, workers, start).go()


def _settled(data, folder, recipe, given):
    """The recipe, the `DataSplits`, and the `FittedRecipe`, or None."""
    is_new = recipe is None and not (folder / RECORD).is_file()
    if recipe is None and not is_new:
        recipe = Recipe.load(folder)
    is_start = is_new and given.get("start_from") is not None
    if isinstance(data, DataSplits | TextPairs | PlainText):
        is_text = isinstance(data.train if isinstance(data, DataSplits) else data, PlainText)
        recipe = _given(recipe or (PLAIN_TEXT if is_text else TEXT_FILES), given, is_start)
        data = data if isinstance(data, DataSplits) else held_out(data, recipe.documents)
        is_fitted = is_new
    else:
        names = (data,) if isinstance(data, str | os.PathLike) else tuple(data)
        named = default_recipe(names)
        recipe = _given(recipe or named, {**given, "data": named.data}, is_start)
        data = open_splits(recipe)
        is_fitted = is_new and (is_start or is_for_any_files(recipe))
    if not is_fitted:
        return recipe, data, None
    fit = fit_text_recipe if recipe.is_language_model else fit_start if is_start else fit_recipe
    fitted = fit(data, recipe, given)
    return fitted.recipe, data, fitted


def _given(recipe, given, is_start):
    """The recipe with the fields that are given; the sizes of one for fresh weights are not for a trained model."""
    if not is_start:
        return recipe.replace(**given)
    if recipe.is_language_model:
        raise ValueError(
            "`start_from` is for translators. Received: plain text, or a recipe of a language model."
        )
    return dataclasses.replace(recipe, **{"model": {}} | {k: v for k, v in given.items() if v is not None})
