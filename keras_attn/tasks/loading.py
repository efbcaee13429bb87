"""Loads what a folder holds: a task of any kind."""

from keras_attn.tasks.fill_mask import FillMask
from keras_attn.tasks.question_answerer import QuestionAnswerer
from keras_attn.tasks.task_files import config_file_of, holds_task
from keras_attn.tasks.text_classifier import TextClassifier
from keras_attn.tasks.text_embedder import TextEmbedder
from keras_attn.tasks.text_generator import TextGenerator
from keras_attn.tasks.token_classifier import TokenClassifier
from keras_attn.tasks.translator import Translator

_KINDS = (
    Translator,
    TextGenerator,
    TextEmbedder,
    TextClassifier,
    TokenClassifier,
    FillMask,
    QuestionAnswerer,
)
# Every kind of task, by the file that tells the kind of a saved one.
TASKS = {config_file_of(task_class): task_class for task_class in _KINDS}


def load_task(folder):
    """Reads the task in a folder: a `Translator`, a `TextGenerator`, or another of this module.

    Args:
        folder: Path of a saved task, or of the run that made it.

    Returns:
        The task.

    Raises:
        FileNotFoundError: if a file is missing.
        ValueError: if one is damaged, or the weights do not fit the configuration.

    Example:

    ```python
    task = load_task("runs/dates/translator")
    ```
    """
    for task_class in TASKS.values():
        if holds_task(folder, task_class):
            return task_class.load(folder)
    # The error says what is missing.
    return Translator.load(folder)
