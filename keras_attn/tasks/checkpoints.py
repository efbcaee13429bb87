"""A task from the folder of a checkpoint."""

import importlib
import pathlib

import tensorflow as tf

from keras_attn import opennmt
from keras_attn.files import read_json
from keras_attn.huggingface import is_sentence_transformer
from keras_attn.huggingface.dry_run import dry_run
from keras_attn.tasks.heads import EMBEDDER, HEADS, OPENNMT, head_of

CONFIG_FILE = "config.json"


def holds_checkpoint(folder):
    """Whether a folder is a checkpoint, as the hub holds it, or as OpenNMT-tf leaves it."""
    is_of_hub = (pathlib.Path(folder) / CONFIG_FILE).is_file() or is_sentence_transformer(folder)
    return is_of_hub or opennmt.holds_checkpoint(folder)


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
    head, about = _head(folder)
    make = getattr(importlib.import_module(head.module), head.function)
    try:
        return make(folder, *about, **options)
    except TypeError as error:
        if "unexpected keyword argument" not in str(error):
            raise
        raise ValueError(f"A {head.task} of a checkpoint has no such option: {error}.") from error


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


def _head(folder):
    """The `Head` of a checkpoint, and what its function takes after the folder."""
    if is_sentence_transformer(folder):
        return EMBEDDER, ({},)
    if not (folder / CONFIG_FILE).is_file() and opennmt.holds_checkpoint(folder):
        return OPENNMT, ()
    config = read_json(folder / CONFIG_FILE)
    return HEADS[head_of(config)], (config,)
