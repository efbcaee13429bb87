"""Loads what a folder holds: a task of any kind, saved or a checkpoint."""

import pathlib

import tensorflow as tf

from keras_attn import opennmt
from keras_attn.files import read_json
from keras_attn.huggingface import checkpoint_folder, is_sentence_transformer
from keras_attn.huggingface.dry_run import dry_run
from keras_attn.task_registry import declarations, task_class
from keras_attn.tasks.checkpoint_heads import task_for, task_with_format
from keras_attn.tasks.saved_tasks import holds_task, reading

CONFIG_FILE = "config.json"


def load_task(folder, **options):
    """Reads the task in a folder: one that was saved, or that a checkpoint of Hugging Face is for.

    Args:
        folder: Path of a saved task, of the run that made it, or of a checkpoint as the hub holds it: config.json,
            safetensors files and the files of a tokenizer; or the name of one on the hub, see
            `keras_attn.huggingface.checkpoint_folder`.
        **options: Of a checkpoint, what its files do not say, or say otherwise: `max_length` or
            `num_beams`, for example, see docs/checkpoints.md.

    Returns:
        The task.

    Raises:
        FileNotFoundError: if a file is missing.
        ValueError: if one is damaged, if the weights do not fit the configuration, or for options of a folder that is
            no checkpoint.

    Example:

    ```python
    task = load_task("runs/dates/translator")
    ```
    """
    folder = checkpoint_folder(folder)
    if holds_checkpoint(folder):
        if options:  # an error may be theirs
            return load_checkpoint(folder, **options)
        with reading(folder):
            return load_checkpoint(folder)
    if options:
        raise ValueError(f"Options are for checkpoints, and {folder} is none. Received: {sorted(options)}.")
    for class_name, declared in declarations().items():
        if holds_task(folder, declared):
            return task_class(class_name).load(folder)
    path = pathlib.Path(folder)
    if not path.is_dir():
        raise FileNotFoundError(f"{folder} is no folder.")
    advice = " Give the folder of a run, of a saved task, or of a checkpoint as the hub has it."
    if any(path.glob("**/saved_model.pb")):
        advice = " It holds an export; give the folder of what was exported."
    files = ", ".join(declared.config_file for declared in declarations().values())
    raise FileNotFoundError(
        f"{folder} holds no saved task ({files}) and no checkpoint (config.json).{advice}"
    )


def holds_checkpoint(folder):
    """Whether a folder is a checkpoint, as the hub holds it, or as OpenNMT-tf leaves it."""
    is_from_hub = (pathlib.Path(folder) / CONFIG_FILE).is_file() or is_sentence_transformer(folder)
    return is_from_hub or opennmt.holds_checkpoint(folder)


def load_checkpoint(folder, **options):
    """The task that a checkpoint's model is for: its weights, its tokenizer, and what its files say of decoding.

    Args:
        folder: Path of a folder with config.json, safetensors files and the files of a tokenizer; or of OpenNMT-tf's, with
            ckpt-N.index and its data, the YAML file of the training and the vocabularies.
        **options: As the task takes them, see docs/checkpoints.md: `max_length` or `num_beams`, for example. What the files
            say is the default.

    Returns:
        A `TextGenerator`, a `Translator`, or another task; of a sentence-transformers folder, or an encoder alone, a
        `TextEmbedder`.

    Raises:
        FileNotFoundError: if a file is missing.
        ValueError: if there is no task for the model, or a file is damaged or not understood.

    Example: `load_checkpoint("opus-mt-en-de", num_beams=1)`.
    """
    folder = pathlib.Path(folder)
    if is_sentence_transformer(folder):
        class_name = task_with_format("sentence-transformers")
    elif not (folder / CONFIG_FILE).is_file() and opennmt.holds_checkpoint(folder):
        class_name = task_with_format("opennmt-tf")
    else:
        class_name = task_for(read_json(folder / CONFIG_FILE))
    return task_class(class_name).from_checkpoint(folder, **options)


def check_checkpoint(folder, **options):
    """Does all that `load_checkpoint` does, but reads no weights, and takes no memory for them.

    Args:
        folder, **options: As in `load_checkpoint`.

    Returns:
        A pair: the name of the task's class, and a dict of the fields without effect by the names of their files: those of
        other programs, which transformers does not read either.

    Raises:
        FileNotFoundError, ValueError: as `load_checkpoint`, for all but the values of weights.

    Example: `check_checkpoint("opus-mt-en-de")  # ("Translator", {})`.
    """
    with dry_run() as fields_without_effect, tf.device("CPU"):
        task = load_checkpoint(folder, **options)
    return type(task).__name__, fields_without_effect
