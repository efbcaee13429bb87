"""Translators made of several: averages of weights, and ensembles."""

import hashlib
import json
import pathlib
import tempfile

import keras
import numpy as np

from keras_attn.models import (
    Ensemble,
    Seq2SeqTransformer,
    assign_weights,
    average_weights,
    read_metadata,
)
from keras_attn.tasks import Translator, load_task
from keras_attn.text.tokenizer import CHARACTERS_FILE

# Entries of a model's config that say nothing about the meaning of its weights.
_WITHOUT_MEANING = {"name", "dtype", "trainable", "shared_layer", "made_under", "build_config"}
_FIRST_WEIGHTS = "weights that training began with"


def average_translator(checkpoints, translator, folder):
    """Writes a translator with the mean of the weights in several files.

    Args:
        checkpoints: Paths of weight files of one model, such as `runs/mine/checkpoints/epoch-*.safetensors`.
        translator: Path of a saved `Translator` of that model, for its tokenizers and options.
        folder: Path that the new translator is saved to.

    Returns:
        The `Translator`.

    Raises:
        FileNotFoundError: if a file or the translator is missing.
        ValueError: if the files do not hold the weights of that model; or if a run wrote them, which says in its files
            what they are the weights of: for other tokenizers, another configuration, or other weights that training began
            with. The means of such weights mean nothing.

    Example:

    ```python
    files = ["runs/dates/checkpoints/epoch-011.safetensors", "runs/dates/checkpoints/epoch-012.safetensors"]
    average_translator(files, "runs/dates/translator", "averaged")
    ```

    Reference: [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 6.1.
    """
    averaged = Translator.load(translator)
    _check_origins(checkpoints, translator, averaged)
    assign_weights(averaged.model, average_weights(checkpoints), "The average")
    averaged.save(folder)
    return averaged


def weights_origin(translator):
    """What a run writes into its weight files: checksums of the model's configuration, the tokenizers and the first weights.

    The mean of several weights means something only if all these are equal. Trainings that began with other random weights have
    no such mean, even on the same data.

    Args:
        translator: `Translator` that is not trained yet.
    """
    values = hashlib.sha256()
    for weight in translator.model.weights:
        values.update(np.ascontiguousarray(keras.ops.convert_to_numpy(weight)).data)
    return _meaning(translator) | {_FIRST_WEIGHTS: values.hexdigest()}


def _meaning(translator):
    config = keras.saving.serialize_keras_object(translator.model)
    texts = {"configuration": json.dumps(_stripped(config))}
    for name, tokenizer in translator.tokenizers.items():
        files = {file: hashlib.sha256(data).hexdigest() for file, data in tokenizer_files(tokenizer).items()}
        texts[name.replace("_", " ")] = json.dumps(files)
    return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}


def _stripped(config):
    if isinstance(config, list | tuple):
        return [_stripped(part) for part in config]
    if isinstance(config, dict):
        return {name: _stripped(part) for name, part in config.items() if name not in _WITHOUT_MEANING}
    return config


def _check_origins(checkpoints, folder, translator):
    known = {name: (folder, value) for name, value in _meaning(translator).items()}
    for path in checkpoints:
        metadata = read_metadata(path)
        for name in (known.keys() | {_FIRST_WEIGHTS}) & metadata.keys():  # if a run wrote the file
            other, expected = known.setdefault(name, (path, metadata[name]))
            if metadata[name] != expected:
                raise ValueError(
                    f"The weights in {path} and in {other} have no common meaning: they belong to another {name}. Average "
                    "checkpoints of one run, or of runs with the same --from, with a translator of theirs."
                )


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
    ensemble = load_ensemble(translators)
    ensemble.save(folder)
    return ensemble


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
        conventions = _conventions(translator)
        others = [name for name in expected if conventions[name] != expected[name]]
        if others:
            raise ValueError(
                f"Translators that answer together must read and write the same tokens. {folder} has other "
                f"{', '.join(others)} than {folders[0]}. Give runs that share their tokenizers: one begun --from the other, or its "
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
    """What a tokenizer saves: equal for tokenizers that give equal ids, whatever texts their models have met."""
    with tempfile.TemporaryDirectory() as folder:
        saved = pathlib.Path(folder) / "tokenizer"
        tokenizer.save(saved)
        files = [path for path in sorted(saved.rglob("*")) if path.is_file() and path.name != CHARACTERS_FILE]
        return {path.name: path.read_bytes() for path in files}
