"""Saves all weights of a model to one safetensors file, and loads all of them or raises.

Keras' `load_weights` only warns about some mismatches. Here a missing weight, an extra weight, or a wrong
shape or dtype raises an error that names the weight, before anything is assigned. The format holds only
arrays.
"""

import pathlib

import ml_dtypes
import numpy as np

from keras_attn.files import replaced_file
from keras_attn.layers.layer_slots import run_without_values
from keras_attn.models.model_copies import finalize_layers
from keras_attn.models.weight_names import match_names, named_weights

_FLOATS = {
    "float16": np.dtype("float16"),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float32": np.dtype("float32"),
    "float64": np.dtype("float64"),
}
# As safetensors calls them. NumPy has no 8-bit floats.
_KNOWN = {"F16", "BF16", "F32", "F64", "BOOL", "I8", "U8", "I16", "U16", "I32", "U32", "I64", "U64"}


def save_weights(model, path, metadata=None):
    """Writes all the model's weights to `path`, under the names from `named_weights`; the write is atomic.

    Args:
        model: A `keras.Model`, built.
        path: Path of the file.
        metadata: Dict of strings, stored with the weights (see `read_metadata`).

    Raises:
        ValueError: if the model is not built.
        OSError: if the file cannot be written; an existing file is not changed then.
    """
    if not model.built:
        raise ValueError(f"{model.name} has no weights yet. Call it once, or build it, before it is saved.")
    arrays = {name: np.asarray(variable) for name, variable in named_weights(model).items()}
    write_weights(arrays, path, metadata)


def write_weights(arrays, path, metadata=None):
    """Writes a dict of arrays to the safetensors file `path`, by way of a temporary file.

    Args:
        arrays: Dict of NumPy arrays.
        path: Path of the file; its folder is created if missing.
        metadata: Dict of strings, stored with the arrays (see `read_metadata`).

    Raises:
        ValueError: if an array has a dtype that `read_weights` would refuse.
        OSError: if the file cannot be written, for lack of space or permission; an existing file is not
            changed then.

    Example:

    ```python
    write_weights({"kernel": np.ones((2, 3))}, "arrays.safetensors")
    assert read_weights("arrays.safetensors")["kernel"].shape == (2, 3)
    ```
    """
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    arrays = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    for name, array in arrays.items():
        if array.dtype.name not in _FLOATS and array.dtype.kind not in "biu":
            raise ValueError(
                f"{name} must hold floats, integers or booleans. Received: dtype={array.dtype.name}."
            )
    with replaced_file(path) as aside:
        try:
            save_file(arrays, aside, metadata=metadata)
        except SafetensorError as error:
            raise OSError(str(error)) from error


def read_metadata(path):
    """The dict of strings that was written with the arrays in the safetensors file `path`.

    Raises:
        FileNotFoundError, ValueError: as `read_weights`.

    Example:

    ```python
    write_weights({"kernel": np.ones((2, 3))}, "arrays.safetensors", metadata={"update": "100"})
    assert read_metadata("arrays.safetensors")["update"] == "100"
    ```
    """
    from safetensors import safe_open

    return _read_file(path, lambda: safe_open(path, "numpy").metadata() or {})


def read_weights(path):
    """The dict of arrays in the safetensors file `path`.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is damaged, or holds a dtype that NumPy does not have, an 8-bit float for instance.
    """
    from safetensors.numpy import load_file

    _read_header(path)
    return _read_file(path, lambda: load_file(path))


def read_shapes(path):
    """The shapes of the arrays in the safetensors file `path`, a dict of tuples; only its header is read.

    Raises:
        FileNotFoundError, ValueError: as `read_weights`.

    Example:

    ```python
    write_weights({"kernel": np.ones((2, 3))}, "arrays.safetensors")
    assert read_shapes("arrays.safetensors") == {"kernel": (2, 3)}
    ```
    """
    return {name: shape for name, (shape, _) in _read_header(path).items()}


def _read_header(path):
    """{name: (shape, dtype)} of a file, all of whose dtypes can be read."""
    from safetensors import safe_open

    def read():
        with safe_open(path, "numpy") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 -- no dict
            return {name: (tuple(part.get_shape()), part.get_dtype()) for name, part in slices.items()}

    header = _read_file(path, read)
    for name, (_, dtype) in header.items():
        if dtype not in _KNOWN:
            raise ValueError(f"{path} holds {name} with dtype {dtype}. Known: {', '.join(sorted(_KNOWN))}.")
    return header


def _read_file(path, read):
    from safetensors import SafetensorError

    if not pathlib.Path(path).is_file():
        raise FileNotFoundError(f"There is no weight file {path}.")
    try:
        return read()
    except (SafetensorError, ValueError) as error:
        raise ValueError(f"{path} is damaged or not a safetensors file: {error}.") from error


def load_weights(model, path, rename=str):
    """Reads the weights that `save_weights` wrote into a model of the same configuration.

    Layer names made by Keras, "dense_3" for instance, count up within a process. If the file has other such
    names, these layers are matched by their rank among their siblings.

    Args:
        model: A `keras.Model`, built.
        path: Path of the safetensors file.
        rename: Function from a name in the file to that in the model, for files of other versions.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is damaged, or its weights are not exactly the model's; nothing is assigned then.

    Example:

    ```python
    model = keras_attn.models.Seq2SeqTransformer.from_preset("tiny", vocabulary_size=100)
    save_weights(model, "model.safetensors")
    twin = keras_attn.models.Seq2SeqTransformer.from_preset("tiny", vocabulary_size=100)
    load_weights(twin, "model.safetensors")
    ```
    """
    arrays = read_weights(path)
    assign_weights(model, {rename(name): array for name, array in arrays.items()}, path)


def assign_weights(model, arrays, source="the weights"):
    """Assigns a dict of arrays, as `read_weights` returns it, to the model's weights.

    Floats of any width are cast to a float weight; a weight of integers or booleans takes only its own dtype.

    Args:
        model: A `keras.Model`, built.
        arrays: Dict of NumPy arrays.
        source: String or path, the name of the arrays in messages.

    Raises:
        ValueError: if names, shapes or dtypes are not the model's, or a value is NaN or infinite; nothing is assigned
            then.
    """
    arrays = {name: np.asarray(array) for name, array in arrays.items()}
    variables = _matched(model, {name: array.shape for name, array in arrays.items()}, source)
    for name, variable in variables.items():
        _check_values(name, arrays[name], variable.dtype, source)
    for name, variable in variables.items():
        variable.assign(_cast(arrays[name], variable.dtype))
    finalize_layers(model)


def check_sizes(make_model, config, path, rename=str):
    """Checks that a file has a model's weights before the model is made, so that no file can fill the memory.

    The model is made without values for its variables. Before that, the sizes in its configuration are
    compared with the contents of the file, because layers may also compute tables from these sizes.

    Args:
        make_model: Function without arguments that returns the `keras.Model`, built.
        config: The dict from which the model is made, nested or not. Integers whose names are those of sizes
            ("hidden_dim", "vocabulary_size", "num_heads") must not exceed the number of values in the file,
            and those of layers ("num_layers") the number of arrays.
        path: Path of the safetensors file.
        rename: Function from a name in the file to that in the model.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the weights of the model are not those of the file; and what `make_model` raises.

    Example:

    ```python
    sizes = {"vocabulary_size": 11, "num_layers": 1, "hidden_dim": 4, "num_heads": 2, "intermediate_dim": 3}
    save_weights(DecoderTransformer.from_sizes(**sizes), "model.safetensors")
    check_sizes(lambda: DecoderTransformer.from_sizes(**sizes), sizes, "model.safetensors")
    ```
    """
    shapes = {rename(name): shape for name, shape in read_shapes(path).items()}
    num_values = sum(int(np.prod(shape, dtype=object)) for shape in shapes.values())
    for name, value in _named_sizes(config):
        most = len(shapes) if name.endswith("layers") else num_values
        if value > most:
            raise ValueError(
                f"{path} does not hold the weights of this model: it has {num_values:,} values in {len(shapes):,} "
                f"arrays. Received: {name}={value}."
            )

    run_without_values(lambda: _matched(make_model(), shapes, path))


def _named_sizes(config):
    """The pairs (name, integer) of sizes in nested dicts and lists."""
    if isinstance(config, list | tuple):
        for part in config:
            yield from _named_sizes(part)
    elif isinstance(config, dict):
        for name, value in config.items():
            is_size = str(name).startswith("num_") or str(name).endswith(("_dim", "_size"))
            if isinstance(value, int) and is_size:
                yield str(name), value
            yield from _named_sizes(value)


def _matched(model, shapes, source):
    """The model's variables by the names that a file has for them, {name in the file: variable}."""
    variables = named_weights(model)
    names = match_names(model, shapes)
    if names is None:
        missing = ", ".join(sorted(set(variables) - set(shapes))) or "none"
        foreign = ", ".join(sorted(set(shapes) - set(variables))) or "none"
        raise ValueError(
            f"{source} does not hold the weights of this model. "
            f"Missing: {missing}. Not in the model: {foreign}."
        )
    for own, name in names.items():
        shape = tuple(variables[own].shape)
        if tuple(shapes[name]) != shape:
            own_name = "" if own == name else f"{own} "
            raise ValueError(
                f"{source} holds {name} with shape {tuple(shapes[name])}; the model's {own_name}has shape {shape}."
            )
    return {name: variables[own] for own, name in names.items()}


def _check_values(name, array, dtype, source):
    if dtype in _FLOATS and array.dtype.name in _FLOATS:
        if not np.isfinite(_cast(array, dtype)).all():
            raise ValueError(f"{source} holds {name} with values that are NaN or infinite in {dtype}.")
    elif array.dtype.name != dtype:
        raise ValueError(
            f"{source} holds {name} with dtype {array.dtype.name}; the model's has dtype {dtype}."
        )


def _cast(array, dtype):
    with np.errstate(over="ignore"):  # an infinite value is refused
        return array.astype(_FLOATS.get(dtype, array.dtype), copy=False)


def average_weights(paths):
    """The mean, in float64, of the weights in several files of one model, as a dict of arrays.

    Reference: [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 6.1 (checkpoint averaging).

    Raises:
        ValueError: if there is no path, the files do not hold the same names, shapes and dtypes, integers differ, or a
            value is NaN or infinite.

    Example:

    ```python
    model = keras_attn.models.Seq2SeqTransformer.from_preset("tiny", vocabulary_size=100)
    save_weights(model, "epoch-1.safetensors")
    save_weights(model, "epoch-2.safetensors")
    assign_weights(model, average_weights(["epoch-1.safetensors", "epoch-2.safetensors"]))
    ```
    """
    paths = list(paths)
    if not paths:
        raise ValueError("`paths` must name at least one weight file. Received none.")
    first = read_weights(paths[0])
    total = {
        name: _summand(name, array, paths[0]) for name, array in first.items() if array.dtype.name in _FLOATS
    }
    for path in paths[1:]:
        arrays = read_weights(path)
        if _kinds(arrays) != _kinds(first):
            raise ValueError(
                f"{path} and {paths[0]} do not hold weights of the same names, shapes and dtypes."
            )
        for name, array in arrays.items():
            if name in total:
                total[name] += _summand(name, array, path)
            elif not np.array_equal(array, first[name]):
                raise ValueError(
                    f"{name} holds integers, which have no mean, and differs in {path} and {paths[0]}."
                )
    means = {name: (total[name] / len(paths)).astype(first[name].dtype) for name in total}
    return first | means


def _summand(name, array, path):
    _check_values(name, array, array.dtype.name, path)
    return array.astype("float64")


def _kinds(arrays):
    return {name: (array.shape, array.dtype.name) for name, array in arrays.items()}
