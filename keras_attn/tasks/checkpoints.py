"""A task from the folder of a checkpoint."""

import importlib
import pathlib

from keras_attn.files import read_json
from keras_attn.tasks.heads import HEADS, head_of

CONFIG_FILE = "config.json"


def holds_checkpoint(folder):
    """Whether a folder is a checkpoint, as the hub holds it.

    Args:
        folder: Path.

    Example:

    ```python
    load = load_checkpoint if holds_checkpoint("runs/dates") else load_task
    task = load("runs/dates")
    ```
    """
    return (pathlib.Path(folder) / CONFIG_FILE).is_file()


def load_checkpoint(folder, **options):
    """The task that a checkpoint's model is for: its weights, its tokenizer, and what its files say of decoding.

    Args:
        folder: Path of a folder with config.json, safetensors files and the files of a tokenizer.
        **options: As the task takes them, see `text_generator` and `translator` in `keras_attn.tasks`' modules of
            checkpoints: `max_length` or `num_beams`, for example. What the files say is the default.

    Returns:
        A `TextGenerator` or a `Translator`.

    Raises:
        FileNotFoundError: if a file is missing.
        ValueError: if there is no task for the model, or a file is damaged or not understood.

    Example: `load_checkpoint("opus-mt-en-de", num_beams=1)`.
    """
    folder = pathlib.Path(folder)
    config = read_json(folder / CONFIG_FILE)
    head = HEADS[head_of(config)]
    make = getattr(importlib.import_module(head.module), head.function)
    try:
        return make(folder, config, **options)
    except TypeError as error:
        if "unexpected keyword argument" not in str(error):
            raise
        raise ValueError(f"A {head.task} of a checkpoint has no such option: {error}.") from error
