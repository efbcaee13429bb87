"""Folders of saved tasks: JSON, tokenizer files and a safetensors file, which contain no code."""

import contextlib
import json

import keras

from keras_attn.files import read_json, restored_folder
from keras_attn.models import check_sizes, load_weights, save_weights

# Attributes of every task that are saved, and are arguments of its constructor.
OPTIONS = ("num_beams", "length_penalty", "max_length", "jit_compile")

_WEIGHTS_FILE = "model.safetensors"


def model_description(task):
    """Keras' description of a task's model, without its compile config, which belongs to training.

    Raises:
        ValueError: if the model is no `keras.Model`, or is quantised.
    """
    model, kind = task.model, task.name
    if not isinstance(model, keras.Model):
        raise ValueError(
            f"A {kind} with a model that is no keras.Model cannot be saved. Received: {type(model).__name__}."
        )
    if any(keras.backend.standardize_dtype(weight.dtype) == "int8" for weight in model.weights):
        raise ValueError(
            f"A {kind} with a quantised model cannot be saved. Save it before, and call "
            f"`{kind.replace(' ', '_')}.model.quantize(...)` again after `{type(task).__name__}.load`."
        )
    description = keras.saving.serialize_keras_object(model)
    return {
        name: part for name, part in description.items() if name not in ("compile_config", "build_config")
    }


def options_of(task, names):
    """{name: value} of a task's saved options."""
    return {name: getattr(task, name) for name in names}


def decoding_of(task):
    """A task's `DecodingOptions` as values that JSON can hold."""
    return {k: list(v) if isinstance(v, tuple) else v for k, v in task.options.given().items()}


def write_parts(folder, config_file, config, model):
    """Writes the configuration and the weights."""
    (folder / config_file).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    save_weights(model, folder / _WEIGHTS_FILE)


def inner_folder(folder, name, config_file):
    """The folder, or the folder `name` in it, if it is that of a run."""
    folder = restored_folder(folder)
    inner = restored_folder(folder / name)
    is_run = (inner / config_file).is_file() and not (folder / config_file).is_file()
    return inner if is_run else folder


@contextlib.contextmanager
def reading_config(folder, config_file, kind):
    """Gives what the configuration file holds; what is wrong with it in the block is an error of the file.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it cannot be read, or the block raises for what it holds.
    """
    path = folder / config_file
    if not path.is_file():
        is_export = any(folder.glob("**/saved_model.pb"))
        advice = (
            f" It holds an export; give the folder of the run or of the saved {kind}." if is_export else ""
        )
        raise FileNotFoundError(f"There is no {kind} in {folder}: it has no {config_file}.{advice}")
    try:
        yield read_json(path)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} cannot be read: {error!r}.") from error


def check_options(options, names, values, kind):
    """Raises ValueError unless `options` are those named, and all `values` are plain."""
    if not all(map(_is_scalar, values.values())) or set(options) != set(names):
        raise ValueError(f"it holds something else than a {kind}'s options")


def model_of(description, mixin):
    """The model that Keras' description says, of any registered class that has the mixin."""
    # In safe mode, Keras creates only objects of its own and of registered classes, and runs no code from the
    # file.
    model = keras.saving.deserialize_keras_object(description, safe_mode=True)
    if not isinstance(model, keras.Model) or not isinstance(model, mixin):
        raise ValueError(f"it holds a {type(model).__name__}")
    return model


def read_model(folder, config_file, config, make, rename=str):
    """The model that `make` makes, with the weights in the folder, whose names `rename` maps to the current ones."""

    def make_model():
        try:
            return make()
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{folder / config_file} describes no model: {error}") from error

    weights = folder / _WEIGHTS_FILE
    check_sizes(make_model, config["model"], weights, rename)
    model = make_model()
    load_weights(model, weights, rename)
    return model


def _is_scalar(value):
    return value is None or isinstance(value, bool | int | float | str)
