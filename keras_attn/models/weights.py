"""Weights to and from one safetensors file, all of them or an error.

Keras' `load_weights` only warns about some of what does not fit. Here a file that lacks a weight, holds another, or
holds one of another shape raises, naming it, before anything is assigned. The format holds arrays and nothing else.
"""

import pathlib

import numpy as np

from keras_attn.files import replaced_file


def save_weights(model, path):
    """Writes the model's weights to `path`, under the name they have inside the model; the write is atomic."""
    write_weights({name: np.asarray(variable) for name, variable in _named_weights(model).items()}, path)


def write_weights(arrays, path, metadata=None):
    """Writes a dict of arrays to the safetensors file `path`, aside and then renamed into place.

    Args:
        arrays: Dict of NumPy arrays.
        path: Path of the file; its folder is created if missing.
        metadata: Dict of strings, stored with them (see `read_metadata`).

    Raises:
        OSError: if it cannot be written, for lack of room or of permission; what stood at `path` is untouched then.

    Example:

    ```python
    write_weights({"kernel": np.ones((2, 3))}, "arrays.safetensors")
    assert read_weights("arrays.safetensors")["kernel"].shape == (2, 3)
    ```
    """
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    arrays = {name: np.asarray(array, order="C") for name, array in arrays.items()}
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

    return _of_file(path, lambda: safe_open(path, "numpy").metadata() or {})


def read_weights(path):
    """The dict of arrays in the safetensors file `path`.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is damaged.
    """
    from safetensors.numpy import load_file

    return _of_file(path, lambda: load_file(path))


def _of_file(path, read):
    from safetensors import SafetensorError

    if not pathlib.Path(path).is_file():
        raise FileNotFoundError(f"There is no weight file {path}.")
    try:
        return read()
    except (SafetensorError, ValueError) as error:
        raise ValueError(f"{path} is damaged or not a safetensors file: {error}.") from error


def load_weights(model, path):
    """Reads the weights that `save_weights` wrote into a model of the same configuration.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is damaged, or its names and shapes are not exactly the model's; nothing is assigned then.

    Example:

    ```python
    model = keras_attn.models.Seq2SeqTransformer.from_preset("tiny", vocabulary_size=100)
    save_weights(model, "model.safetensors")
    twin = keras_attn.models.Seq2SeqTransformer.from_preset("tiny", vocabulary_size=100)
    load_weights(twin, "model.safetensors")
    ```
    """
    assign_weights(model, read_weights(path), path)


def assign_weights(model, arrays, source="the weights"):
    """Assigns a dict of arrays, as `read_weights` returns it, to the model's weights; `source` is for messages."""
    weights = _named_weights(model)
    missing, foreign = sorted(set(weights) - set(arrays)), sorted(set(arrays) - set(weights))
    if missing or foreign:
        raise ValueError(
            f"{source} does not hold the weights of this model. "
            f"Missing: {', '.join(missing) or 'none'}. Not in the model: {', '.join(foreign) or 'none'}."
        )
    for name, variable in weights.items():
        if tuple(arrays[name].shape) != tuple(variable.shape):
            raise ValueError(
                f"{source} holds {name} with shape {tuple(arrays[name].shape)}; "
                f"the model's has shape {tuple(variable.shape)}."
            )
    for name, variable in weights.items():
        variable.assign(arrays[name])


def average_weights(paths):
    """The mean, in float64, of the weights in several files of one model, as a dict of arrays.

    Reference: [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 6.1 (checkpoint averaging).

    Raises:
        ValueError: if there is no path, or the files do not hold the same names and shapes.

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
    total = read_weights(paths[0])
    dtypes = {name: array.dtype for name, array in total.items()}
    total = {name: array.astype("float64") for name, array in total.items()}
    for path in paths[1:]:
        arrays = read_weights(path)
        if {name: array.shape for name, array in arrays.items()} != {n: a.shape for n, a in total.items()}:
            raise ValueError(f"{path} and {paths[0]} do not hold weights of the same names and shapes.")
        for name, array in arrays.items():
            total[name] += array
    return {name: (array / len(paths)).astype(dtypes[name]) for name, array in total.items()}


def _named_weights(model):
    # The first part of a path is the model's own name, which two models of one configuration need not share.
    return {weight.path.partition("/")[2]: weight for weight in model.weights}
