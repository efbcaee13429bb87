"""A task from the folder of a checkpoint."""

import importlib
import pathlib

from keras_attn.files import read_json
from keras_attn.huggingface import is_sentence_transformer
from keras_attn.tasks.heads import EMBEDDER, HEADS, head_of

CONFIG_FILE = "config.json"


def holds_checkpoint(folder):
    """Whether a folder is a checkpoint, as the hub holds it."""
    return (pathlib.Path(folder) / CONFIG_FILE).is_file() or is_sentence_transformer(folder)


def load_checkpoint(folder, **options):
    """The task that a checkpoint's model is for: its weights, its tokenizer, and what its files say of decoding.

    Args:
        folder: Path of a folder with config.json, safetensors files and the files of a tokenizer.
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
    is_embedder = is_sentence_transformer(folder)
    config = {} if is_embedder else read_json(folder / CONFIG_FILE)
    head = EMBEDDER if is_embedder else HEADS[head_of(config)]
    make = getattr(importlib.import_module(head.module), head.function)
    try:
        return make(folder, config, **options)
    except TypeError as error:
        if "unexpected keyword argument" not in str(error):
            raise
        raise ValueError(f"A {head.task} of a checkpoint has no such option: {error}.") from error
