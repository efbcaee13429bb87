"""The folder of a saved translator: JSON, tokenizer files and a safetensors file, nothing that could carry code."""

import json
import pathlib

import keras

from keras_attn.export import replaced_folder
from keras_attn.models import (
    RNNSeq2Seq,
    Seq2SeqGeneration,
    Seq2SeqTransformer,
    load_weights,
    save_weights,
)
from keras_attn.text import load_tokenizer

OPTIONS = ("num_beams", "length_penalty", "max_length", "jit_compile")

_CONFIG_FILE = "translator.json"
_WEIGHTS_FILE = "model.safetensors"

# Format 1 describes a model by its class, one of these, and by constructor arguments that are JSON scalars. Format 2 holds
# what Keras writes down of any model whose class is registered.
_PLAIN_FORMAT, _OBJECT_FORMAT = 1, 2
_MODELS = {"Seq2SeqTransformer": Seq2SeqTransformer, "RNNSeq2Seq": RNNSeq2Seq}


def write_translator(translator, folder):
    """What `Translator.save` does."""
    with replaced_folder(folder, _CONFIG_FILE, "translator") as built:
        shared = translator.target_tokenizer is translator.source_tokenizer
        config = {
            **_model_config(translator.model),
            "shared_tokenizer": shared,
            "options": {name: getattr(translator, name) for name in OPTIONS},
        }
        (built / _CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        save_weights(translator.model, built / _WEIGHTS_FILE)
        translator.source_tokenizer.save(built / "source_tokenizer")
        if not shared:
            translator.target_tokenizer.save(built / "target_tokenizer")


def read_translator(folder):
    """The model, the two tokenizers and the options in a folder: the arguments of `Translator`."""
    folder = pathlib.Path(folder)
    config = _read_config(folder)
    try:
        model = _model_from(config)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{folder / _CONFIG_FILE} describes no model: {error}") from error
    load_weights(model, folder / _WEIGHTS_FILE)
    source_tokenizer = load_tokenizer(folder / "source_tokenizer")
    shared = config["shared_tokenizer"]
    target_tokenizer = source_tokenizer if shared else load_tokenizer(folder / "target_tokenizer")
    return model, source_tokenizer, target_tokenizer, config["options"]


def _model_config(model):
    if not isinstance(model, keras.Model):
        raise ValueError(
            f"A translator with a model that is no keras.Model cannot be saved. Received: {type(model).__name__}."
        )
    dtype = model.get_config().get("dtype")
    if isinstance(dtype, dict) and dtype["class_name"] == "DTypePolicyMap":
        raise ValueError(
            "A translator with a quantised model cannot be saved. Save it before, and call "
            "`translator.model.quantize(...)` again after `Translator.load`."
        )
    if _MODELS.get(type(model).__name__) is type(model):
        config = {
            name: value for name, value in model.get_config().items() if name not in ("name", "trainable")
        }
        config["dtype"] = model.dtype_policy.name
        if all(map(_is_scalar, config.values())):
            return {"format": _PLAIN_FORMAT, "model_class": type(model).__name__, "model": config}
    return {"format": _OBJECT_FORMAT, "model": keras.saving.serialize_keras_object(model)}


def _model_from(config):
    if config["format"] == _PLAIN_FORMAT:
        return _MODELS[config.get("model_class", "Seq2SeqTransformer")](**config["model"])
    # In safe mode Keras makes objects of its own and of registered classes, and runs no code from the file.
    model = keras.saving.deserialize_keras_object(config["model"], safe_mode=True)
    if not isinstance(model, keras.Model) or not isinstance(model, Seq2SeqGeneration):
        raise ValueError(f"it holds a {type(model).__name__}")
    return model


def _read_config(folder):
    path = folder / _CONFIG_FILE
    if not path.is_file():
        raise FileNotFoundError(f"There is no translator in {folder}: it has no {_CONFIG_FILE}.")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        if config["format"] not in (_PLAIN_FORMAT, _OBJECT_FORMAT):
            raise ValueError(
                f"it has format {config['format']!r}, this version reads formats {_PLAIN_FORMAT} and {_OBJECT_FORMAT}"
            )
        values = {**config["options"], "shared_tokenizer": config["shared_tokenizer"]}
        if config["format"] == _PLAIN_FORMAT:
            values |= config["model"]
        if not all(map(_is_scalar, values.values())) or set(config["options"]) != set(OPTIONS):
            raise ValueError("it holds something else than a translator's options")
        return config
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} cannot be read: {error!r}.") from error


def _is_scalar(value):
    return value is None or isinstance(value, bool | int | float | str)
