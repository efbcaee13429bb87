"""Several translators as one, from their folders."""

import pathlib
import tempfile

from keras_attn.models import Ensemble, Seq2SeqTransformer
from keras_attn.tasks import Translator, load_task


def ensemble_translators(translators, folder):
    """Writes several translators as one, whose tokens are chosen by the mean of their probabilities.

    It decodes as the first of them does, without its shortlist, and is evaluated, exported, served and distilled like any
    other.

    Args:
        translators: Paths of two or more saved `Translator`s, of the runs that made them, or of checkpoints.
        folder: Path that the new translator is saved to.

    Returns:
        The `Translator`, whose model is an `Ensemble`.

    Raises:
        FileNotFoundError, ValueError: if there are fewer than two, or as in `load_ensemble`.

    Example: `runs.ensemble_translators(["runs/mine", "runs/mine-2"], "both")`.
    """
    if len(translators) < 2:
        raise ValueError(f"An ensemble is made of two translators or more. Received: {len(translators)}.")
    together = load_ensemble(translators)
    together.save(folder)
    return together


def load_ensemble(folders):
    """The `Translator` of a folder, or of several as an `Ensemble` with the options of the first.

    A shortlist is left out: members would weigh differently by the tokens of the other rows of a batch.

    Args:
        folders: Paths of translators, of the runs that made them, or of checkpoints.

    Raises:
        FileNotFoundError, ValueError: if a folder holds no translator, or several translators do not have the same
            tokenizers and conventions, or one of them is not of a single `Seq2SeqTransformer`; the message names the
            folder.
    """
    translators = [_load(folder) for folder in folders]
    first = translators[0]
    if len(translators) == 1:
        return first
    for folder, translator in zip(folders, translators):
        if not isinstance(translator.model, Seq2SeqTransformer):
            raise ValueError(
                f"Several translators that answer together must each be of one Seq2SeqTransformer. {folder} holds a "
                f"{type(translator.model).__name__}."
            )
    expected = _conventions(first)
    for folder, translator in zip(folders[1:], translators[1:]):
        if found := [name for name, value in _conventions(translator).items() if value != expected[name]]:
            raise ValueError(
                f"Translators that answer together must read and write the same tokens. {folder} has other "
                f"{', '.join(found)} than {folders[0]}. Give runs that share their tokenizers: one begun --from the other, or its "
                "student."
            )
    return first.replaced(
        model=Ensemble([translator.model for translator in translators]),
        max_length=min(translator.max_length for translator in translators),
        shortlist=None,
    )


def _load(folder):
    translator = load_task(folder)
    if not isinstance(translator, Translator):
        raise ValueError(
            f"A teacher, or a part of an ensemble, must be a translator. {folder} holds a {translator.name}."
        )
    if translator.languages is not None:
        raise ValueError(
            f"A multilingual translator can be no teacher and no part of an ensemble. Received: {folder}."
        )
    return translator


def _conventions(translator):
    return {
        "source tokenizer": tokenizer_files(translator.source_tokenizer),
        "target tokenizer": tokenizer_files(translator.target_tokenizer),
        "START": translator.start_token_id,
        "tokens around sources": translator.source_form,
    }


def tokenizer_files(tokenizer):
    """What a tokenizer saves: equal for equal tokenizers."""
    with tempfile.TemporaryDirectory() as folder:
        saved = pathlib.Path(folder) / "tokenizer"
        tokenizer.save(saved)
        return {path.name: path.read_bytes() for path in sorted(saved.rglob("*")) if path.is_file()}
