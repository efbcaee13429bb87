"""Loads what a folder holds: a translator or a text generator."""

from keras_attn.tasks.text_generator import TextGenerator
from keras_attn.tasks.text_generator_files import holds_text_generator
from keras_attn.tasks.translator import Translator


def load_task(folder):
    """Reads the translator or the text generator in a folder.

    Args:
        folder: Path of a saved task, or of the run that made it.

    Returns:
        A `Translator` or a `TextGenerator`.

    Raises:
        FileNotFoundError: if a file is missing.
        ValueError: if one is damaged, or the weights do not fit the configuration.

    Example:

    ```python
    task = load_task("runs/dates/translator")
    ```
    """
    return (TextGenerator if holds_text_generator(folder) else Translator).load(folder)
