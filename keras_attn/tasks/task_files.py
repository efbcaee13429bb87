"""Folders of saved tasks: JSON, tokenizer files and a safetensors file, which contain no code.

The file of a task's configuration and the folder in a run are called after the task's `name`.
"""

import contextlib
import json

import keras

from keras_attn.files import read_json, replaced_folder, restored_folder
from keras_attn.models import (
    QUANTIZATIONS,
    check_sizes,
    has_lora,
    load_weights,
    merge_lora,
    quantization_of,
    save_weights,
)
from keras_attn.models.copies import check_comes_back, described, model_from
from keras_attn.tasks.saved_descriptions import check_description, check_outputs, without_compile_configs
from keras_attn.text import load_tokenizer

_WEIGHTS_FILE = "model.safetensors"
_FORMAT = 1
# What Python, NumPy and Keras raise for descriptions that no model was saved as.
_OF_WRONG_DESCRIPTIONS = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError, NotImplementedError),
    *(RecursionError, TypeError, ValueError),
)
_FORMAT_WITH_MORE = 2  # which has what `Task.more_to_save` gave, too


def folder_name_of(task_class):
    """The name of the folder of such a task in the folder of a run."""
    return task_class.name.replace(" ", "_")


def config_file_of(task_class):
    """The name of the file that tells the kind of a saved task."""
    return f"{folder_name_of(task_class)}.json"


def holds_task(folder, task_class):
    """Whether a folder is that of such a task, or of a run that made one."""
    return (folder_of(folder, task_class) / config_file_of(task_class)).is_file()


def write_task(task, folder):
    """Writes a task whose model is known by its description alone, replacing an older one of its kind."""
    description, config_file = model_description(task), config_file_of(type(task))
    with replaced_folder(folder, config_file, task.name) as built:
        config = {"format": _FORMAT, "model": description, "options": options_of(task)}
        if more := task.more_to_save():
            config |= {"format": _FORMAT_WITH_MORE, **more}
        write_parts(built, config_file, config, task.model)
        for name, tokenizer in task.tokenizers.items():
            tokenizer.save(built / name)


def read_task(task_class, folder):
    """The task that `write_task` wrote.

    Raises:
        FileNotFoundError: if a file is missing.
        ValueError: if one is damaged, or the weights do not fit the configuration.
    """
    folder = folder_of(folder, task_class)
    with reading_config(folder, task_class) as config:
        if config["format"] not in (_FORMAT, _FORMAT_WITH_MORE):
            raise ValueError(f"it has format {config['format']!r}, this version reads formats 1 and 2")
        check_options(task_class, config["options"])
        more = task_class.from_saved(config)
    with reading(folder):
        model = read_model(
            folder, config_file_of(task_class), config, lambda: model_of(config["model"], task_class.mixin)
        )
        tokenizers = {name: load_tokenizer(folder / name) for name in task_class.tokenizer_names}
        return task_class(model, **tokenizers, **config["options"], **more)


def model_description(task):
    """Keras' description of a task's model, without compile configs, which belong to training.

    Raises:
        ValueError: if the model is no `keras.Model`, is quantised in a way that is not `Task.quantize`'s, or would come
            back without its weights, policies or quantisation, or is refused by `check_description`.
    """
    model, kind = task.model, task.name
    if not isinstance(model, keras.Model):
        raise ValueError(
            f"{task.article} {kind} with a model that is no keras.Model cannot be saved. Received: {type(model).__name__}."
        )
    quantization = quantization_of(model)
    if quantization not in (None, *QUANTIZATIONS):
        raise ValueError(
            f"{task.article} {kind} with a {type(model).__name__} in {quantization} cannot be saved. Save it before, and "
            f"quantise it again after `{type(task).__name__}.load`."
        )
    description = without_compile_configs(described(model))
    try:
        check_description(description)
    except ValueError as error:
        raise ValueError(
            f"{task.article} {kind} with this model cannot be saved: of its description, {error}."
        ) from error
    if type(model).__module__.partition(".")[0] in ("keras", "keras_attn"):
        description.pop("build_config", None)  # these make their weights when they are made
    try:
        check_comes_back(model, lambda: model_of(description, type(model)))
    except TypeError as error:  # of a class that is not registered
        why = str(error).partition(" Full object config")[0]
        raise ValueError(f"A model of the class {type(model).__name__} cannot be saved: {why}") from None
    return description


def options_of(task):
    """{name: value} of a task's saved options."""
    return {name: getattr(task, name) for name in (*task.saved_options, *task.saved_lists)}


def decoding_of(task):
    """A task's `DecodingOptions` as values that JSON can hold."""
    return {k: list(v) if isinstance(v, tuple) else v for k, v in task.options.given().items()}


def write_parts(folder, config_file, config, model):
    """Writes the configuration and the weights; LoRA is merged, as in what Keras saves."""
    (folder / config_file).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    save_weights(merge_lora(model) if has_lora(model) else model, folder / _WEIGHTS_FILE)


def folder_of(folder, task_class):
    """The folder, or the folder of the task in it, if it is that of a run."""
    folder, config_file = restored_folder(folder), config_file_of(task_class)
    inner = restored_folder(folder / folder_name_of(task_class))
    is_run = (inner / config_file).is_file() and not (folder / config_file).is_file()
    return inner if is_run else folder


@contextlib.contextmanager
def reading(folder):
    """What a damaged or hostile folder makes the block raise is a ValueError that names the folder."""
    try:
        yield
    except (FileNotFoundError, ValueError):
        raise
    except _OF_WRONG_DESCRIPTIONS as error:
        raise ValueError(f"{folder} is damaged, and cannot be read: {error!r}.") from error


@contextlib.contextmanager
def reading_config(folder, task_class):
    """Gives what the configuration file holds; what is wrong with it in the block is an error of the file.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it cannot be read, or the block raises for what it holds.
    """
    path, kind = folder / config_file_of(task_class), task_class.name
    if not path.is_file():
        is_export = any(folder.glob("**/saved_model.pb"))
        advice = (
            f" It holds an export; give the folder of the run or of the saved {kind}." if is_export else ""
        )
        raise FileNotFoundError(f"There is no {kind} in {folder}: it has no {path.name}.{advice}")
    try:
        yield read_json(path)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} cannot be read: {error!r}.") from error


def check_options(task_class, options, more=None):
    """Raises ValueError unless `options` are those of the task, and all values, those of `more` too, are plain."""
    lists = {name: options[name] for name in task_class.saved_lists if name in options}
    scalars = {name: value for name, value in {**options, **(more or {})}.items() if name not in lists}
    if (
        set(options) != {*task_class.saved_options, *task_class.saved_lists}
        or not all(map(_is_scalar, scalars.values()))
        or not all(map(_is_list_of_strings, lists.values()))
    ):
        raise ValueError(f"it holds something else than a {task_class.name}'s options")


def model_of(description, mixin):
    """The model that Keras' description says, of any registered class that has the mixin."""
    model = model_from(without_compile_configs(description))
    if not isinstance(model, keras.Model) or not isinstance(model, mixin):
        raise ValueError(f"it holds a {type(model).__name__}")
    check_outputs(model)
    return model


def read_model(folder, config_file, config, make, rename=str):
    """The model that `make` makes, with the weights in the folder, whose names `rename` maps to the current ones."""

    def make_model():
        try:
            return make()
        except _OF_WRONG_DESCRIPTIONS as error:
            why = (str(error) or type(error).__name__).partition(" Full object config")[0]
            raise ValueError(f"{folder / config_file} describes no model: {why}") from error

    weights = folder / _WEIGHTS_FILE
    try:
        check_description(config["model"])
    except ValueError as error:
        raise ValueError(f"{folder / config_file} describes no model: {error}.") from error
    check_sizes(make_model, config["model"], weights, rename)
    model = make_model()
    load_weights(model, weights, rename)
    return model


def _is_scalar(value):
    return value is None or isinstance(value, bool | int | float | str)


def _is_list_of_strings(values):
    return isinstance(values, list) and all(isinstance(value, str) for value in values)
