"""Loads what a folder holds: a translator, a text generator, or a checkpoint."""

from keras_attn.huggingface import checkpoint_folder
from keras_attn.tasks.checkpoints import holds_checkpoint, load_checkpoint
from keras_attn.tasks.text_generator import TextGenerator
from keras_attn.tasks.text_generator_files import holds_text_generator
from keras_attn.tasks.translator import Translator


def load_task(folder, **options):
    """Reads the task in a folder: one that was saved, or that a checkpoint of Hugging Face is for.

    Args:
        folder: Path of a saved task, of the run that made it, or of a checkpoint as the hub holds it: config.json,
            safetensors files and the files of a tokenizer; or the name of one on the hub, see
            `keras_attn.huggingface.checkpoint_folder`.
        **options: Of a checkpoint, what its files do not say, or say otherwise, see `load_checkpoint`.

    Returns:
        A `Translator` or a `TextGenerator`.

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
        return load_checkpoint(folder, **options)
    if options:
        raise ValueError(f"Options are for checkpoints, and {folder} is none. Received: {sorted(options)}.")
    return (TextGenerator if holds_text_generator(folder) else Translator).load(folder)
