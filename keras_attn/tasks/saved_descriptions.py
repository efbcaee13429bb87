"""What a stranger's description of a model may ask of Keras: memory and time in proportion to its own size.

Variables are checked against the weight file, see `keras_attn.models.check_sizes`. This is about everything else: constants, operations
on constants, which Keras runs at once, models in models, and layers without weights.
"""

import math

from keras_attn.compat.keras import all_layers, calls_of, functional_model

MOST_DEPTH = 100  # of lists and objects in each other; each model in a model takes three or four
MOST_INTEGER = 2**24  # of a layer of Keras, a number of pads for instance
MOST_VALUES = 2**28  # of one row of what an operation gives: a gigabyte in float32
_FEWEST_CALLS = 1000
_CALLS_PER_OBJECT = 20
# Keras' names for values that are no layers. It has others, which run code.
_VALUES = {"__keras_tensor__", "__tensor__", "__numpy__", "__bytes__", "__ellipsis__", "__slice__"}
# A text's dtype can name a size: NumPy makes 400 MB of one letter in "U100000000".
_DTYPES = {
    *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
}
# Layers of Keras that run a file or a pickle, and import other libraries before they refuse it.
_PROGRAMS = {"TFSMLayer", "TorchModuleWrapper"}
_ANY_INTEGER = ("seed", "salt", "vocabulary")


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
        for node in nodes if isinstance(nodes, list | tuple) else ():
            _check_node(value, node)
    most = _FEWEST_CALLS + _CALLS_PER_OBJECT * num_objects
    if _num_calls(description, most) > most:
        raise ValueError(
            f"its models call each other more than {most:,} times, though it describes {num_objects:,} objects"
        )


def without_compile_configs(value):
    """A description without optimizers, losses and metrics, which belong to training."""
    if isinstance(value, dict):
        return {
            name: without_compile_configs(part) for name, part in value.items() if name != "compile_config"
        }
    if isinstance(value, list | tuple):
        return type(value)(without_compile_configs(part) for part in value)
    return value


def check_outputs(model):
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
    else:
        parts = value if isinstance(value, list | tuple) else ()
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
        calls = _calls_of(description, shared)
        if shared == before or max([calls, *shared.values()]) > most:
            return max([calls, *shared.values()])


def _calls_of(value, shared):
    """The calls of one part; `shared` has those of parts that are described once and named by a number elsewhere."""
    if isinstance(value, list | tuple):
        return sum(_calls_of(part, shared) for part in value)
    if not isinstance(value, dict):
        return 0
    nodes = value.get("inbound_nodes")
    calls = sum(_calls_of(part, shared) for name, part in value.items() if name != "inbound_nodes")
    calls += "class_name" in value
    for kind in ("shared_object_id", "shared_layer"):
        if kind in value:
            key = kind, str(value[kind])
            calls = shared[key] = max(calls, shared.get(key, 0))
    return calls * max(1, len(nodes) if isinstance(nodes, list) else 1)
