"""The teachers of a distillation: where they lie, and whether they are still the same."""

import hashlib

from keras_attn.files import folder_digest
from keras_attn.huggingface import checkpoint_folder
from keras_attn.tasks import Translator
from keras_attn.tasks.saved_tasks import task_folder


def teachers_checksum(folders):
    """A short checksum of the files of teachers: another one for other weights, tokenizers or options, or another order."""
    digests = [folder_digest(folder) for folder in teacher_folders(folders)]
    return hashlib.sha256(" ".join(digests).encode()).hexdigest()[:16]


def teacher_folders(folders):
    """The folders that teachers lie in: a list of paths.

    Args:
        folders: As in `load_ensemble`.

    Raises:
        FileNotFoundError: if one does not exist.

    Example: `runs.teacher_folders(["runs/teacher"])` is `[pathlib.Path("runs/teacher/translator")]`.
    """
    declared = Translator.declaration()
    found = [task_folder(checkpoint_folder(folder), declared) for folder in folders]
    for folder in found:
        if not folder.is_dir():
            raise FileNotFoundError(
                f"There is no teacher {folder}. Give the folder of a translator, or of the run that made it."
            )
    return found
