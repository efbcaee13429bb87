"""Trains a model from data, with a recipe or with settings fitted to the data."""

from keras_attn.runs.distillation_run import DistillationRun
from keras_attn.runs.language_model_run import LanguageModelRun
from keras_attn.runs.settling import settle_distillation, settle_training
from keras_attn.runs.translation_run import TranslationRun
from keras_attn.runs.workers import Workers, all_devices
from keras_attn.terminal import say


def train(data=None, folder=None, recipe=None, verbose=1, *, size=None, language_model=False, **given):
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
        recipe: A `Recipe`, or the path of one: a TOML file, a run's folder, or its `run.json`. Defaults to that of the run in
            `folder`. In a new folder, it defaults to the recipe of built-in data, and for all other data to settings that are
            fitted to them.
        verbose: 0 is silent; 1 shows the fitted settings, lines and, on a terminal, a progress bar.
        size: Named size of the model, as in `Recipe.with_size`.
        language_model: Boolean, whether files are plain text for a language model.
        **given: Fields of the recipe that have other values than its own, such as `minutes=30`. Settings are fitted around
            them. With `start_from="FOLDER"`, training begins with the weights of a translator, see docs/training.md;
            `text_prefix`, `purpose`, `source_language` and `target_language` then say what its files leave open. `minutes`
            goes without what it plans: `epochs`, `steps_per_epoch`, `warmup_steps`, `schedule`. Given alone, `epochs` end the
            plan of a recipe, or of a run, for some minutes.

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
    return _run(
        settle_training(data, folder, recipe, given, size=size, language_model=language_model), verbose
    )


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
    **given,
):
    """Trains a student on its teachers' translations of the training sources, as the command `keras-attn distill` does.

    The run folder is that of `train`, with `teacher.jsonl`, the translations.

    Args:
        teachers: Folders of translators, or of the runs that made them; several translate as an ensemble. None for a run that
            goes on.
        folder: Path of the run folder. Defaults to the next free `runs/NAME-student`, `NAME` being the data's.
        data: As in `train`. Defaults to the data of the first teacher's run.
        recipe: A `Recipe`, or the path of one, as in `train`. Defaults to that of the first teacher's run, or, if the teacher is
            no run, to settings that are fitted to the data.
        verbose: As in `train`.
        size, layers, references, num_beams, length_penalty: As in `student_recipe`.
        **given: Fields of the recipe that have other values than its own, such as `epochs=30`.

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
    of_student = {
        "size": size,
        "layers": layers,
        "references": references,
        "num_beams": num_beams,
        "length_penalty": length_penalty,
    }
    return _run(settle_distillation(tuple(teachers), folder, data, recipe, given, **of_student), verbose)


def _run(settled, verbose):
    recipe, fitted = settled.recipe, settled.fitted
    with all_devices():
        workers = Workers()
        if verbose and fitted and workers.is_first:
            say(fitted.report())
        arguments = recipe, settled.data, settled.folder, verbose, workers
        if recipe.is_language_model:
            return LanguageModelRun(*arguments).go()
        if recipe.distill is not None:
            return DistillationRun(*arguments).go()
        return TranslationRun(*arguments, start=fitted and fitted.start).go()
