"""Folders of saved tasks: JSON, tokenizer files and a safetensors file, which contain no code.

A description of a model that comes from a stranger may ask Keras for memory and time in proportion to its own size alone.
Variables are checked against the weight file, see `keras_attn.models.check_sizes`; everything else here: constants, operations
on constants, which Keras runs at once, models in models, and layers without weights.
"""

import contextlib
import json
import math

import keras

from keras_attn.compat.keras import all_layers, calls_of, functional_model
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
from keras_attn.models.model_copies import check_comes_back, describe_model, rebuild_model
from keras_attn.text import load_tokenizer

_WEIGHTS_FILE = "model.safetensors"
# What Python, NumPy and Keras raise for descriptions that no model was saved as.
_ERRORS_OF_DESCRIPTIONS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    NotImplementedError,
    RecursionError,
    TypeError,
    ValueError,
)
# The limits of a description.
MOST_DEPTH = 100  # of lists and objects in each other; each model in a model takes three or four
MOST_INTEGER = 2**24  # of a layer of Keras, a number of pads for instance
MOST_VALUES = 2**28  # of one row of what an operation gives: a gigabyte in float32
_FEWEST_CALLS = 1000
_CALLS_PER_OBJECT = 20
# Keras' names for values that are no layers. It has others, which run code.
_VALUES = {"__keras_tensor__", "__tensor__", "__numpy__", "__bytes__", "__ellipsis__", "__slice__"}
# A text's dtype can name a size: NumPy makes 400 MB of one letter in "U100000000".
_DTYPES = {
    "bool",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex64",
    "complex128",
}
# Layers of Keras that run a file or a pickle, and import other libraries before they refuse it.
_PROGRAMS = {"TFSMLayer", "TorchModuleWrapper"}
_ANY_INTEGER = ("seed", "salt", "vocabulary")


def write_task(task, folder):
    """Implements `Task.save`."""
    declared = type(task).declaration()
    description = _model_description(task)
    with replaced_folder(folder, declared.config_file, task.name) as built:
        config = {"format": task.saved_format, "model": description}
        tokenizers = dict(task.tokenizers)
        if len(tokenizers) > 1:  # one object for all is saved once
            first, *others = tokenizers
            config["shared_tokenizer"] = all(tokenizers[name] is tokenizers[first] for name in others)
            if config["shared_tokenizer"]:
                tokenizers = {first: tokenizers[first]}
        names = task.saved_options + task.saved_lists
        config["options"] = {name: getattr(task, name) for name in names}
        if more := task.more_to_save():
            config |= {"format": task.saved_format + 1, **more}
        text = json.dumps(config, indent=2) + "\n"
        (built / declared.config_file).write_text(text, encoding="utf-8")
        # LoRA is merged, as in what Keras saves.
        saved_model = merge_lora(task.model) if has_lora(task.model) else task.model
        save_weights(saved_model, built / _WEIGHTS_FILE)
        for name, tokenizer in tokenizers.items():
            tokenizer.save(built / name)
        task.write_more(built)


def read_task(task_class, folder):
    """Implements `Task.load`."""
    folder = task_folder(folder, task_class.declaration())
    with _reading_config(folder, task_class) as config:
        _check_config(config, task_class)
        more = task_class.from_saved(config, folder)
    with reading(folder):
        model = _read_model(task_class, folder, config)
        tokenizers = _read_tokenizers(folder, config, task_class.tokenizer_names)
        return task_class(model, **tokenizers, **config["options"], **more)


def _model_description(task):
    """Keras' description of a task's model, without compile configs, which belong to training.

    Raises:
        ValueError: if the model is no `keras.Model`, is quantised in a way that is not `Task.quantize`'s, or would come
            back without its weights, policies or quantisation, or is refused by `check_description`.
    """
    model = task.model
    if not isinstance(model, keras.Model):
        raise ValueError(
            f"{task.article} {task.name} with a model that is no keras.Model cannot be saved. Received: {type(model).__name__}."
        )
    quantization = quantization_of(model)
    if quantization not in (None, *QUANTIZATIONS):
        raise ValueError(
            f"{task.article} {task.name} with a {type(model).__name__} in {quantization} cannot be saved. Save it before, and "
            f"quantise it again after `{type(task).__name__}.load`."
        )
    description = _without_compile_configs(describe_model(model))
    try:
        check_description(description)
    except ValueError as error:
        raise ValueError(
            f"{task.article} {task.name} with this model cannot be saved: of its description, {error}."
        ) from error
    if type(model).__module__.partition(".")[0] in ("keras", "keras_attn"):
        description.pop("build_config", None)  # these make their weights when they are made
    try:
        check_comes_back(model, lambda: model_from_description(description, type(model)))
    except TypeError as error:  # of a class that is not registered
        why = str(error).partition(" Full object config")[0]
        raise ValueError(f"A model of the class {type(model).__name__} cannot be saved: {why}") from None
    return description


def json_options(task):
    """A task's `DecodingOptions` as values that JSON can hold."""
    options = {}
    for name, value in task.options.given().items():
        options[name] = list(value) if isinstance(value, tuple) else value
    return options


def task_folder(folder, declared):
    """The folder, or the folder of the task in it, if it is that of a run.

    Args:
        folder: Path.
        declared: The `Declaration` of the task.
    """
    folder = restored_folder(folder)
    inner = restored_folder(folder / declared.file_stem)
    is_run = (inner / declared.config_file).is_file() and not (folder / declared.config_file).is_file()
    return inner if is_run else folder


def holds_task(folder, declared):
    """Whether a folder is that of such a task, or of a run that made one; the arguments are those of `task_folder`."""
    return (task_folder(folder, declared) / declared.config_file).is_file()


@contextlib.contextmanager
def reading(folder):
    """What a damaged or hostile folder makes the block raise is a ValueError that names the folder."""
    try:
        yield
    except (FileNotFoundError, ValueError):
        raise
    except _ERRORS_OF_DESCRIPTIONS as error:
        raise ValueError(f"{folder} is damaged, and cannot be read: {error!r}.") from error


@contextlib.contextmanager
def _reading_config(folder, task_class):
    """Yields what the configuration file holds; what is wrong with it in the block is an error of the file."""
    path = folder / task_class.declaration().config_file
    if not path.is_file():
        advice = ""
        if any(folder.glob("**/saved_model.pb")):
            advice = f" It holds an export; give the folder of the run or of the saved {task_class.name}."
        raise FileNotFoundError(f"There is no {task_class.name} in {folder}: it has no {path.name}.{advice}")
    try:
        yield read_json(path)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} cannot be read: {error!r}.") from error


def _check_config(config, task_class):
    """Raises ValueError unless the format is one that is read, the options are those of the task, and their values are plain."""
    formats = task_class.readable_formats()
    if config["format"] not in formats:
        *others, last = map(str, formats)
        raise ValueError(
            f"it has format {config['format']!r}, this version reads formats {', '.join(others)} and {last}"
        )
    options = config["options"]
    if not isinstance(options, dict):
        raise ValueError(f"its options are {options!r:.50}")
    lists = [options[name] for name in task_class.saved_lists if name in options]
    scalars = [value for name, value in options.items() if name not in task_class.saved_lists]
    if len(task_class.tokenizer_names) > 1:
        scalars.append(config["shared_tokenizer"])
    has_all = set(options) == set(task_class.saved_options + task_class.saved_lists)
    if not has_all or not all(map(is_scalar, scalars)) or not all(map(_is_list_of_strings, lists)):
        raise ValueError(f"it holds something else than a {task_class.name}'s options")


def model_from_description(description, mixin):
    """The model that Keras' description says, of any registered class that has the mixin."""
    model = rebuild_model(_without_compile_configs(description))
    if not isinstance(model, keras.Model) or not isinstance(model, mixin):
        raise ValueError(f"it holds a {type(model).__name__}")
    _check_outputs(model)
    return model


def _read_model(task_class, folder, config):
    """The model that a saved task describes, with the weights in its folder."""
    config_path = folder / task_class.declaration().config_file

    def make_model():
        try:
            return task_class.model_from_saved(config)
        except _ERRORS_OF_DESCRIPTIONS as error:
            raise ValueError(f"{config_path} describes no model: {_reason_of_keras(error)}") from error

    weights = folder / _WEIGHTS_FILE
    rename = task_class.weight_renaming(config)
    try:
        check_description(config["model"])
    except ValueError as error:
        raise ValueError(f"{config_path} describes no model: {error}.") from error
    check_sizes(make_model, config["model"], weights, rename)
    model = make_model()
    load_weights(model, weights, rename)
    return model


def _reason_of_keras(error):
    """What Keras says of the innermost object that it cannot make, without the configs of all objects around it."""
    message = str(error) or type(error).__name__
    return message.partition(" Full object config")[0].rpartition("Exception encountered: ")[2]


def _read_tokenizers(folder, config, names):
    if not names:
        return {}
    first, *others = names
    tokenizers = {first: load_tokenizer(folder / first)}
    for name in others:
        is_shared = config["shared_tokenizer"]
        tokenizers[name] = tokenizers[first] if is_shared else load_tokenizer(folder / name)
    return tokenizers


def is_scalar(value):
    """Whether a value of JSON is no list and no object."""
    return value is None or isinstance(value, bool | int | float | str)


def _is_list_of_strings(values):
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def check_description(description):
    """Raises ValueError if Keras would take much more memory or time to make the described model than it has layers.

    Args:
        description: Value of JSON, as `keras.saving.serialize_keras_object` gives it.

    Raises:
        ValueError: for what is nested too deeply, a constant of a dtype that is none of numbers, an operation on constants alone,
            models that call each other too often, or a size of a layer of Keras that is too large.

    Example:

    ```python
    check_description(keras.saving.serialize_keras_object(keras.Sequential([keras.layers.Dense(3)])))
    ```
    """
    num_objects = 0
    for value in _objects(description):
        num_objects += 1
        name = value["class_name"]
        if isinstance(name, str) and name.startswith("__"):
            _check_value(name, value.get("config"))
        elif name in list(_PROGRAMS):
            raise ValueError(f"it holds a {name}, which runs a program")
        elif _is_of_keras(value) and isinstance(value.get("config"), dict):
            _check_integers(name, value["config"])
        nodes = value.get("inbound_nodes")
        if isinstance(nodes, list | tuple):
            for node in nodes:
                _check_node(value, node)
    most = _FEWEST_CALLS + _CALLS_PER_OBJECT * num_objects
    if _num_calls(description, most) > most:
        raise ValueError(
            f"its models call each other more than {most:,} times, though it describes {num_objects:,} objects"
        )


def _without_compile_configs(value):
    """A description without optimizers, losses and metrics, which belong to training."""
    if isinstance(value, dict):
        return {
            name: _without_compile_configs(part) for name, part in value.items() if name != "compile_config"
        }
    if isinstance(value, list | tuple):
        return type(value)(_without_compile_configs(part) for part in value)
    return value


def _check_outputs(model):
    """Raises ValueError if an operation in a functional model gives more than 2^28 values for a row."""
    for layer in all_layers(model):
        functional = functional_model(layer)
        for operation in getattr(functional, "operations", ()):
            for node in calls_of(operation):
                for output in node.output_tensors:
                    num_values = math.prod(size for size in output.shape if size is not None)
                    if num_values > MOST_VALUES:
                        raise ValueError(
                            f"{operation.name!r} of {layer.name!r} gives a tensor of shape {tuple(output.shape)}, of more than "
                            f"{MOST_VALUES:,} values"
                        )


def _objects(value, depth=0):
    """The dicts with a `class_name` in a description, outer ones first."""
    if depth > MOST_DEPTH:
        raise ValueError(f"it is nested more than {MOST_DEPTH} times")
    if isinstance(value, dict):
        if "class_name" in value:
            yield value
        parts = value.values()
    elif isinstance(value, list | tuple):
        parts = value
    else:
        parts = []
    for part in parts:
        yield from _objects(part, depth + 1)


def _check_value(name, config):
    if name not in _VALUES:
        raise ValueError(f"it holds a {name}, which is no value of a model that can be saved")
    if name in ("__tensor__", "__numpy__") and (
        not isinstance(config, dict) or config.get("dtype") not in list(_DTYPES)
    ):
        raise ValueError(f"it holds a {name} whose dtype is none of {', '.join(sorted(_DTYPES))}")


def _is_of_keras(value):
    return str(value.get("module")).partition(".")[0] == "keras"


def _check_integers(name, config):
    for key, value in config.items():
        if any(part in key for part in _ANY_INTEGER):
            continue
        for number in _few_integers(value):
            if abs(number) > MOST_INTEGER:
                raise ValueError(f"`{key}` of a {name} must be at most {MOST_INTEGER:,}. Received: {number}")


def _few_integers(value):
    """The integers of an argument: of itself, or in short lists like those of shapes, strides and paddings."""
    if isinstance(value, list | tuple) and len(value) <= 16:
        return [number for part in value for number in _few_integers(part)]
    return [value] if isinstance(value, int) else []


def _check_node(layer, node):
    """Keras runs an operation at once, as it makes the model, if it is given no tensor of the model."""
    if isinstance(node, dict) and not any(
        value["class_name"] == "__keras_tensor__" for value in _objects(node)
    ):
        raise ValueError(f"{layer.get('name')!r} is called on no tensor of the model")


def _num_calls(description, most):
    """How often layers are called as a model is made: a model in a model calls its layers as often as it is called itself."""
    shared = {}
    while True:
        before = dict(shared)
        calls = _count_calls(description, shared)
        if shared == before or max([calls, *shared.values()]) > most:
            return max([calls, *shared.values()])


def _count_calls(value, shared):
    """The calls of one part; `shared` has those of parts that are described once and named by a number elsewhere."""
    if isinstance(value, list | tuple):
        return sum(_count_calls(part, shared) for part in value)
    if not isinstance(value, dict):
        return 0
    nodes = value.get("inbound_nodes")
    calls = sum(_count_calls(part, shared) for name, part in value.items() if name != "inbound_nodes")
    calls += "class_name" in value
    for kind in ("shared_object_id", "shared_layer"):
        if kind in value:
            key = (kind, str(value[kind]))
            calls = max(calls, shared.get(key, 0))
            shared[key] = calls
    num_nodes = len(nodes) if isinstance(nodes, list) else 1
    return calls * max(1, num_nodes)
