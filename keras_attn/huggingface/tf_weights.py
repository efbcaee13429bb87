"""tf_model.h5: the weights as transformers' TF classes saved them, under the names and in the shapes of safetensors files.

Names go "tf_bert_model/bert/encoder/layer_._0/attention/self/query/kernel:0" -> "bert.encoder.layer.0.attention.self.query.weight",
as version 4 of transformers did it (`convert_tf_weight_name_to_pt_weight_name`), so that one table of names serves both.
"""

import collections
import contextlib
import math
import re

import numpy as np

FILE = "tf_model.h5"
_KINDS = {
    "beta": "bias",
    "embeddings": "weight",
    "gamma": "weight",
    "kernel": "weight",
    "moving_mean": "running_mean",
    "moving_variance": "running_var",
}
_MODEL_GROUP = "top_level_model_weights"  # owned by the model, not by a layer
_DTYPES = ("float16", "float32", "float64")

H5Tensor = collections.namedtuple("H5Tensor", "path dtype shape start is_transposed h5_shape")
H5Tensor.__doc__ = """One weight of a file of Keras.

path: the file; dtype: as NumPy calls it; shape: as in safetensors files; start: the path of the dataset in the file;
is_transposed: whether the dataset is a matrix with inputs first; h5_shape: the shape of the dataset.
"""


def read_tensors(path):
    """{name as in safetensors files: `H5Tensor`} of a tf_model.h5. No weight is read.

    Raises:
        ValueError: if the file is damaged, or a weight is missing, stored twice, compressed, not of floats, or behind a
            link or in another file.
    """
    tensors = {}
    with _opened(path) as file:
        layers = _names(file, "layer_names", path)
        if _MODEL_GROUP in file and _MODEL_GROUP not in layers:
            layers.append(_MODEL_GROUP)
        for layer in layers:
            group = _item(file, layer, path)
            for weight in _names(group, "weight_names", path):
                tensor = _tensor(path, f"{layer}/{weight}", _item(group, weight, path), weight)
                name = torch_name(weight)
                if name in tensors:
                    raise ValueError(f"{name} is twice in {path}: {tensors[name].start}, {tensor.start}.")
                tensors[name] = tensor
    num_bytes = sum(math.prod(tensor.shape) * np.dtype(tensor.dtype).itemsize for tensor in tensors.values())
    if num_bytes > path.stat().st_size:
        raise ValueError(
            f"{path} is damaged: its weights have {num_bytes} bytes, it has {path.stat().st_size}."
        )
    return tensors


def read(tensor, rows=slice(None)):
    """One `H5Tensor` as an array, or some rows of it."""
    with _opened(tensor.path) as file:
        dataset = file[tensor.start]
        if tensor.h5_shape == tensor.shape and not tensor.is_transposed and tensor.shape:
            return np.asarray(dataset[rows])
        array = np.asarray(dataset)
    if tensor.is_transposed:
        array = array.T
    return array.reshape(tensor.shape)[rows]


def torch_name(weight):
    """The name in safetensors files of the weight that a TF class calls `weight`."""
    name = re.sub(r":\d+$", "", weight)
    name = re.sub(r"/[^/]*___([^/]*)/", r"/\1/", name)
    parts = [part for part in name.replace("_._", "/").split("/") if part]
    if len(parts) > 1:
        del parts[0]  # the model's own scope
    # A shared embedding lies in a scope of its own name.
    parts = [part for i, part in enumerate(parts) if i == 0 or part != parts[i - 1] or part.isdigit()]
    parts[-1] = _KINDS.get(parts[-1], parts[-1])
    return ".".join(parts)


def _tensor(path, start, dataset, weight):
    import h5py

    if not isinstance(dataset, h5py.Dataset):
        raise ValueError(f"{start} in {path} must be a dataset.")
    shape = dataset.shape
    if dataset.dtype.name not in _DTYPES or shape is None:
        raise ValueError(f"{start} in {path} must hold floats. Received: dtype {dataset.dtype}.")
    if dataset.external or dataset.is_virtual or dataset.chunks is not None:
        raise ValueError(
            f"{start} in {path} must be one plain block of this file, as Keras writes it: neither compressed nor in "
            "another file."
        )
    declared = math.prod(shape) * dataset.dtype.itemsize
    stored = dataset.id.get_storage_size()
    if stored != declared:
        raise ValueError(f"{path} is damaged: {start} has {declared} bytes by its shape, and holds {stored}.")
    kind = re.sub(r":\d+$", "", weight).rpartition("/")[2]
    is_transposed = kind == "kernel" and len(shape) == 2
    torch_shape = shape[::-1] if is_transposed else shape
    if kind == "bias" and len(shape) == 2 and shape[0] == 1:  # of GPT-2's layers
        torch_shape = shape[1:]
    return H5Tensor(path, dataset.dtype.name, tuple(torch_shape), start, is_transposed, shape)


@contextlib.contextmanager
def _opened(path):
    """The file; what HDF5 raises within the block is a ValueError that names it."""
    import h5py

    try:
        with h5py.File(path, "r") as file:
            yield file
    except (OSError, RuntimeError, KeyError, TypeError, AttributeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is damaged or not an HDF5 file of Keras: {error}.") from error


def _names(group, attribute, path):
    """A list of names in an attribute, which Keras cuts into several if it is long."""
    attributes = group.attrs
    if attribute in attributes:
        parts = [attributes[attribute]]
    else:
        numbered = [f"{attribute}{i}" for i in range(len(attributes))]
        parts = [attributes[name] for name in numbered if name in attributes]
    names = [name for part in parts for name in part]
    if not parts or not all(isinstance(name, str | bytes) for name in names):
        raise ValueError(f"{path} is not a file of Keras' weights: {group.name} has no list `{attribute}`.")
    return [name if isinstance(name, str) else name.decode("utf-8") for name in names]


def _item(group, name, path):
    """What is at a path below a group, without following links."""
    import h5py

    item = group
    for step in filter(None, name.split("/")):
        link = item.get(step, getlink=True) if isinstance(item, h5py.Group) else None
        if isinstance(link, h5py.SoftLink | h5py.ExternalLink):
            raise ValueError(f"{name} in {path} is a link, which is not followed.")
        if link is None or step in (".", ".."):
            raise ValueError(f"{path} lacks {name}, which its own list names.")
        item = item[step]
    return item
