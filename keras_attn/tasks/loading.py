"""Loads what a folder holds: a task of any kind, saved or a checkpoint."""

import pathlib

from keras_attn.huggingface import checkpoint_folder
from keras_attn.tasks.checkpoints import holds_checkpoint, load_checkpoint
from keras_attn.tasks.fill_mask import FillMask
from keras_attn.tasks.image_classifier import ImageClassifier
from keras_attn.tasks.question_answerer import QuestionAnswerer
from keras_attn.tasks.task_files import config_file_of, holds_task, reading
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
    ImageClassifier,
)
# Every kind of task, by the file that tells the kind of a saved one.
TASKS = {config_file_of(task_class): task_class for task_class in _KINDS}


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
    for task_class in TASKS.values():
        if holds_task(folder, task_class):
            return task_class.load(folder)
    path = pathlib.Path(folder)
    if not path.is_dir():
        raise FileNotFoundError(f"There is no folder {folder}.")
    advice = (
        " It holds an export; give the folder of what was exported."
        if any(path.glob("**/saved_model.pb"))
        else " Give the folder of a run, of a saved task, or of a checkpoint as the hub has it."
    )
    raise FileNotFoundError(
        f"{folder} holds no saved task ({', '.join(TASKS)}) and no checkpoint (config.json).{advice}"
    )
