"""Trains a model from a recipe and data."""

import pathlib

from keras_attn.runs.language_model_run import LanguageModelRun
from keras_attn.runs.translation_run import TranslationRun
from keras_attn.runs.workers import Workers, all_devices


def train(recipe, data, folder, verbose=1):
    """Runs a recipe: tokenizers, batches, model, `fit`, averaging, evaluation; the result is a `Translator`,
    or for a language model a `TextGenerator`.

    The run folder holds `run.json` (recipe, versions, results), `translator/` or
    `text_generator/` (for `load`: the
    best so far, at any time of the run), `checkpoints/` (weights of some epochs, the best ones, and the last
    states of the run), `tokenizer/`, `history.csv`, `log.txt` and `tensorboard/`. Ctrl-C stops
    training after the current update, saves the state and evaluates the best weights so far; a second Ctrl-C skips
    the evaluation. A run that was stopped, or killed at any time, continues from its last state when it is called
    again with the same recipe and data. On one processor, the result is bitwise the same. A run that has ended
    continues when it is given more epochs.

    Args:
        recipe: A `Recipe`.
        data: `DataSplits`.
        folder: Path of the run folder: a new one, or that of a run of the same recipe and data.
        verbose: 0 is silent; 1 shows lines and, on a terminal, a progress bar.

    Returns:
        `Translator`, or `TextGenerator`.

    Raises:
        ValueError: if `folder` holds a run that has ended, or a different one, or another process trains there, or
            the data do not fit the recipe.
        OSError: if the folder cannot be written; the last state of the run is named.
        FloatingPointError: when the loss is no longer finite.

    Example:

    ```python
    pairs = keras_attn.data.TextPairs(["a b", "b c", "c d"], ["A B", "B C", "C D"], "capitals")
    small = {**DATES.model, "num_encoder_layers": 1, "num_decoder_layers": 1}
    recipe = DATES.replace(model=small, epochs=1, num_beams=1)
    translator = train(recipe, DataSplits(pairs, pairs, None), "runs/capitals", verbose=0)
    ```
    """
    with all_devices():
        run = LanguageModelRun if recipe.is_language_model else TranslationRun
        return run(recipe, data, pathlib.Path(folder), verbose, Workers()).go()
