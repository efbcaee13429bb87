"""The folder of a saved translator: JSON, tokenizer files and a safetensors file, which contain no code."""

import json
import re

import keras

from keras_attn.files import read_json, replaced_folder, restored_folder
from keras_attn.models import (
    RNNSeq2Seq,
    Seq2SeqGeneration,
    Seq2SeqTransformer,
    check_sizes,
    load_weights,
    save_weights,
)
from keras_attn.text import load_tokenizer

OPTIONS = ("num_beams", "length_penalty", "max_length", "jit_compile")

_CONFIG_FILE = "translator.json"
_WEIGHTS_FILE = "model.safetensors"

# Keras' description of any model whose class is registered.
_FORMAT = 2
# Version 0.1 described a model by its class and its sizes. Its embeddings and its position encodings were
# separate.
_FORMAT_OF_SIZES = 1
_MODELS = {"Seq2SeqTransformer": Seq2SeqTransformer.from_sizes, "RNNSeq2Seq": RNNSeq2Seq}
_RENAMED = {
    r"^token_embedding/": "source_embedding/token_embedding/",
    r"^(source|target)_embedding/": r"\1_embedding/token_embedding/",
    r"^encoder_position_encoding/": "source_embedding/position_encoding/",
    r"^decoder_position_encoding/": "target_embedding/position_encoding/",
}


def write_translator(translator, folder):
    """Implements `Translator.save`."""
    model = translator.model
    if not isinstance(model, keras.Model):
        raise ValueError(
            f"A translator with a model that is no keras.Model cannot be saved. Received: {type(model).__name__}."
        )
    description = _description(model)
    with replaced_folder(folder, _CONFIG_FILE, "translator") as built:
        shared = translator.target_tokenizer is translator.source_tokenizer
        config = {
            "format": _FORMAT,
            "model": description,
            "shared_tokenizer": shared,
            "options": {name: getattr(translator, name) for name in OPTIONS},
        }
        (built / _CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        save_weights(model, built / _WEIGHTS_FILE)
        translator.source_tokenizer.save(built / "source_tokenizer")
        if not shared:
            translator.target_tokenizer.save(built / "target_tokenizer")


def _description(model):
    """Keras' description of a model, without its compile config, which belongs to training."""
    if any(keras.backend.standardize_dtype(weight.dtype) == "int8" for weight in model.weights):
        raise ValueError(
            "A translator with a quantised model cannot be saved. Save it before, and call "
            "`translator.model.quantize(...)` again after `Translator.load`."
        )
    description = keras.saving.serialize_keras_object(model)
    return {
        name: part for name, part in description.items() if name not in ("compile_config", "build_config")
    }


def read_translator(folder):
    """The model, the two tokenizers and the options in a folder: the arguments of `Translator`."""
    folder = _translator_in(restored_folder(folder))
    config = _read_config(folder)
    weights = folder / _WEIGHTS_FILE

    def make_model():
        try:
            return _model_from(config)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{folder / _CONFIG_FILE} describes no model: {error}") from error

    is_old = config["format"] == _FORMAT_OF_SIZES and config.get("model_class") != "RNNSeq2Seq"
    rename = _new_name if is_old else str
    check_sizes(make_model, config["model"], weights, rename)
    model = make_model()
    load_weights(model, weights, rename)
    source_tokenizer = load_tokenizer(folder / "source_tokenizer")
    shared = config["shared_tokenizer"]
    target_tokenizer = source_tokenizer if shared else load_tokenizer(folder / "target_tokenizer")
    return model, source_tokenizer, target_tokenizer, config["options"]


def _translator_in(folder):
    """The folder, or the translator in a run folder."""
    inner = restored_folder(folder / "translator")
    return inner if (inner / _CONFIG_FILE).is_file() and not (folder / _CONFIG_FILE).is_file() else folder


def _model_from(config):
    if config["format"] == _FORMAT_OF_SIZES:
        return _MODELS[config.get("model_class", "Seq2SeqTransformer")](**config["model"])
    # In safe mode, Keras creates only objects of its own and of registered classes, and runs no code from the
    # file.
    model = keras.saving.deserialize_keras_object(config["model"], safe_mode=True)
    if not isinstance(model, keras.Model) or not isinstance(model, Seq2SeqGeneration):
        raise ValueError(f"it holds a {type(model).__name__}")
    return model


def _new_name(name):
    """The current name of a weight, given its name in version 0.1."""
    for pattern, new in _RENAMED.items():
        if re.match(pattern, name):
            return re.sub(pattern, new, name)
    return name


def _read_config(folder):
    path = folder / _CONFIG_FILE
    if not path.is_file():
        is_export = any(folder.glob("**/saved_model.pb"))
        advice = (
            " It holds an export; give the folder of the run or of the saved translator." if is_export else ""
        )
        raise FileNotFoundError(f"There is no translator in {folder}: it has no {_CONFIG_FILE}.{advice}")
    try:
        config = read_json(path)
        if config["format"] not in (_FORMAT_OF_SIZES, _FORMAT):
            raise ValueError(f"it has format {config['format']!r}, this version reads formats 1 and 2")
        values = {**config["options"], "shared_tokenizer": config["shared_tokenizer"]}
        if config["format"] == _FORMAT_OF_SIZES:
            values |= config["model"]
        if not all(map(_is_scalar, values.values())) or set(config["options"]) != set(OPTIONS):
            raise ValueError("it holds something else than a translator's options")
        return config
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} cannot be read: {error!r}.") from error


def _is_scalar(value):
    return value is None or isinstance(value, bool | int | float | str)
