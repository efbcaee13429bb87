"""The teachers of a distillation: one translator, or several as an ensemble, with what their student takes from them."""

import hashlib
import pathlib
import tempfile

from keras_attn.huggingface import checkpoint_folder
from keras_attn.models import Ensemble
from keras_attn.tasks import Translator, load_task
from keras_attn.tasks.task_files import folder_of

_BYTES_AT_ONCE = 1 << 24


def load_teacher(folders):
    """The `Translator` that teaches: that of a folder, or several as an `Ensemble`, with the options of the first.

    Args:
        folders: Paths of translators, of the runs that made them, or of checkpoints.

    Raises:
        FileNotFoundError, ValueError: if a folder holds no translator, or several translators do not have the same
            tokenizers and conventions; the message names the folder.
    """
    teachers = [_load(folder) for folder in folders]
    first = teachers[0]
    if len(teachers) == 1:
        return first
    expected = _conventions(first)
    for folder, teacher in zip(folders[1:], teachers[1:]):
        if found := [name for name, value in _conventions(teacher).items() if value != expected[name]]:
            raise ValueError(
                f"Several teachers must read and write the same tokens. {folder} has other {', '.join(found)} than "
                f"{folders[0]}."
            )
    return Translator(
        Ensemble([teacher.model for teacher in teachers]),
        first.source_tokenizer,
        first.target_tokenizer,
        num_beams=first.num_beams,
        length_penalty=first.length_penalty,
        max_length=min(teacher.max_length for teacher in teachers),
        options=first.options,
        start_token_id=first.start_token_id,
        source_form=first.source_form,
    )


def teachers_checksum(folders):
    """A short checksum of the files of teachers: another one for other weights, tokenizers or options, or another order."""
    digest = hashlib.sha256()
    for folder in teacher_folders(folders):
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            digest.update(f"{path.relative_to(folder)} {path.stat().st_size}\n".encode())
            with open(path, "rb") as file:
                while block := file.read(_BYTES_AT_ONCE):
                    digest.update(block)
    return digest.hexdigest()[:16]


def teacher_folders(folders):
    """The folders that teachers lie in: a list of paths.

    Args:
        folders: As in `load_teacher`.

    Raises:
        FileNotFoundError: if one does not exist.

    Example: `runs.teacher_folders(["runs/teacher"])` is `[pathlib.Path("runs/teacher/translator")]`.
    """
    found = [folder_of(checkpoint_folder(folder), Translator) for folder in folders]
    for folder in found:
        if not folder.is_dir():
            raise FileNotFoundError(
                f"There is no teacher {folder}. Give the folder of a translator, or of the run that made it."
            )
    return found


def _load(folder):
    teacher = load_task(folder)
    if not isinstance(teacher, Translator):
        raise ValueError(f"A teacher must be a translator. {folder} holds a {teacher.name}.")
    if teacher.languages is not None:
        raise ValueError(f"A multilingual translator is no teacher here. Received: {folder}.")
    return teacher


def _conventions(teacher):
    return {
        "source tokenizer": _files(teacher.source_tokenizer),
        "target tokenizer": _files(teacher.target_tokenizer),
        "START": teacher.start_token_id,
        "tokens around sources": teacher.source_form,
    }


def _files(tokenizer):
    """What a tokenizer saves: equal for equal tokenizers."""
    with tempfile.TemporaryDirectory() as folder:
        saved = pathlib.Path(folder) / "tokenizer"
        tokenizer.save(saved)
        return {path.name: path.read_bytes() for path in sorted(saved.rglob("*")) if path.is_file()}
