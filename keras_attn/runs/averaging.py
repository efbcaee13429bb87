"""A translator whose weights are the mean of several checkpoints."""

import hashlib
import json

import keras
import numpy as np

from keras_attn.models import assign_weights, average_weights, read_metadata
from keras_attn.runs.ensembles import tokenizer_files
from keras_attn.tasks import Translator

# Entries of a model's config that say nothing about the meaning of its weights.
_OF_NO_MEANING = {"name", "dtype", "trainable", "shared_layer", "made_under", "build_config"}
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
    """What the weights of a translator are the weights of, before it is trained: the metadata of a run's weight files.

    Weights have a common meaning, and so a mean, if all these are equal. Two trainings from other random weights have none,
    even on the same data.
    """
    values = hashlib.sha256()
    for weight in translator.model.weights:
        values.update(np.ascontiguousarray(keras.ops.convert_to_numpy(weight)).data)
    return {**_meaning(translator), _FIRST_WEIGHTS: values.hexdigest()}


def _meaning(translator):
    texts = {"configuration": json.dumps(_stripped(keras.saving.serialize_keras_object(translator.model)))}
    for name, tokenizer in translator.tokenizers.items():
        files = {file: hashlib.sha256(data).hexdigest() for file, data in tokenizer_files(tokenizer).items()}
        texts[name.replace("_", " ")] = json.dumps(files)
    return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}


def _stripped(config):
    if isinstance(config, list | tuple):
        return [_stripped(part) for part in config]
    if isinstance(config, dict):
        return {name: _stripped(part) for name, part in config.items() if name not in _OF_NO_MEANING}
    return config


def _check_origins(checkpoints, folder, translator):
    known = {name: (folder, value) for name, value in _meaning(translator).items()}
    for path in checkpoints:
        metadata = read_metadata(path)
        for name in {**known, _FIRST_WEIGHTS: None}.keys() & metadata.keys():  # if a run wrote the file
            other, expected = known.setdefault(name, (path, metadata[name]))
            if metadata[name] != expected:
                raise ValueError(
                    f"The weights in {path} and in {other} have no common meaning: they belong to another {name}. Average "
                    "checkpoints of one run, or of runs with the same --from, with a translator of theirs."
                )
