"""The files of a checkpoint, on disk or on the hub: its config, the headers of its weight files, one tensor at a time."""

import collections
import json
import math
import pathlib
import re

import ml_dtypes
import numpy as np

from keras_attn.files import not_there, restored_folder
from keras_attn.huggingface import tf_weights

Tensor = collections.namedtuple("Tensor", "path dtype shape start")
Tensor.__doc__ = """One tensor of a safetensors file: the file, the dtype as safetensors calls it, the shape, its first byte."""

_DTYPES = {
    "F16": np.dtype("float16"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F32": np.dtype("float32"),
    "F64": np.dtype("float64"),
}
# Bytes per number. Tensors of the other dtypes are not read: only their sizes are checked.
_BYTES = {
    **{name: dtype.itemsize for name, dtype in _DTYPES.items()},
    "BOOL": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "I8": 1,
    "U8": 1,
    "I16": 2,
    "U16": 2,
    "I32": 4,
    "U32": 4,
    "I64": 8,
    "U64": 8,
}
_WEIGHTS = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json")
_ADAPTER = "adapter_config.json"
_PART_VALUES = 2**20
_MOST_JSON_BYTES = 100_000_000  # as the safetensors package allows for a header
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
# What is downloaded: weights without pickles, configs, and the files of tokenizers.
_HUB_FILES = ["*.safetensors", "*.json", "*.model", "*.spm", "vocab.txt", "merges.txt", "*.jinja"]


def checkpoint_folder(name):
    """The folder of a checkpoint: the folder itself, or for a name like "org/name", that of what is downloaded.

    A name is looked for on the hub only if neither it nor a folder of its first part is here. Safetensors files, JSON and
    the files of tokenizers are downloaded, no code and no pickle, into huggingface_hub's cache.

    Args:
        name: Path of a folder, or a name on the hub.

    Returns:
        A `pathlib.Path`.

    Raises:
        FileNotFoundError: if it does not exist, and is no name on the hub.
        ImportError: if huggingface_hub is needed and not installed.
        OSError: if the hub has no such checkpoint, or cannot be reached.

    Example:

    ```python
    folder = checkpoint_folder("opus-mt-en-de")
    ```
    """
    path = pathlib.Path(name)
    if restored_folder(path).exists():
        return path
    if path.parent.is_dir() or not _HUB_NAME.fullmatch(str(name)):
        raise FileNotFoundError(not_there(path))
    try:
        import huggingface_hub
    except ImportError as error:
        raise ImportError(
            f"{not_there(name)} To download it as a checkpoint of the hub, install huggingface_hub: "
            'pip install "keras_attn[hub]".'
        ) from error
    try:
        return pathlib.Path(huggingface_hub.snapshot_download(str(name), allow_patterns=_HUB_FILES))
    except (OSError, ValueError) as error:
        raise OSError(f"{not_there(name)} The hub did not give it: {error}") from error


class Folder:
    """A checkpoint as the hub holds it: config.json, and model.safetensors, its shards with an index, or tf_model.h5.

    The constructor reads JSON and headers only. Nothing in the folder is run.

    Args:
        path: Path of the folder.

    Attributes:
        config: Dict, config.json.
        tensors: Dict of `Tensor`s by their names in the files.

    Raises:
        FileNotFoundError: if the folder, its config or a weight file is missing.
        ValueError: if a file is damaged, a name in the index leaves the folder, a tensor is in two files, the
            weights are pickled only, or there is an adapter beside them.

    Example:

    ```python
    folder = Folder("all-MiniLM-L6-v2")
    folder.config["model_type"], folder.tensors["embeddings.LayerNorm.weight"].shape  # ('bert', (384,))
    ```
    """

    def __init__(self, path):
        self.path = pathlib.Path(path)
        if not self.path.is_dir():
            raise FileNotFoundError(not_there(self.path))
        self.config = read_json(self.path / "config.json")
        self._refuse_adapter()
        self.tensors = {}
        for path in self._weight_files():
            for name, tensor in _read_tensors(path).items():
                if name in self.tensors:
                    raise ValueError(f"{name} is in {self.tensors[name].path.name} and in {path.name}.")
                self.tensors[name] = tensor
        self._check_index()

    @property
    def num_values(self):
        """Integer, how many numbers the weight files hold."""
        return sum(math.prod(tensor.shape) for tensor in self.tensors.values())

    def read(self, name, rows=slice(None)):
        """One tensor as an array of its own dtype, or some rows of it.

        Raises:
            ValueError: if it holds no floats.
        """
        tensor = self.tensors[name]
        if isinstance(tensor, tf_weights.H5Tensor):
            return tf_weights.read(tensor, rows)
        if tensor.dtype not in _DTYPES:
            raise ValueError(
                f"{tensor.path} holds {name} with dtype {tensor.dtype}. Known: {', '.join(sorted(_DTYPES))}."
            )
        dtype = _DTYPES[tensor.dtype]
        num_rows, *others = tensor.shape or (1,)
        first, last, _ = rows.indices(num_rows)
        row_size = math.prod(others)
        count = max(last - first, 0) * row_size
        offset = tensor.start + first * row_size * dtype.itemsize
        array = np.fromfile(tensor.path, dtype, count, offset=offset)
        if len(array) < count:
            raise ValueError(f"{tensor.path} ends within {name}.")
        return array.reshape(tensor.shape if rows == slice(None) else (-1, *others))

    def rows(self, name):
        """One tensor whose rows are read when they are asked for: `folder.rows(name)[5:7]`."""
        return Rows(self, name, self.tensors[name].shape)

    def are_equal(self, name, other):
        """Whether two tensors have the same shape and values. A few rows at a time are in memory."""
        shape = self.tensors[name].shape
        if self.tensors[other].shape != shape:
            return False
        if not shape:
            return np.array_equal(self.read(name), self.read(other))
        num_rows = max(1, _PART_VALUES // max(1, math.prod(shape[1:])))
        parts = (slice(i, i + num_rows) for i in range(0, shape[0], num_rows))
        return all(np.array_equal(self.read(name, part), self.read(other, part)) for part in parts)

    def _refuse_adapter(self):
        """Refuses an adapter, with which transformers gives other answers where peft is installed."""
        if not (self.path / _ADAPTER).is_file():
            return
        base = read_json(self.path / _ADAPTER).get("base_model_name_or_path")
        raise ValueError(
            f"{self.path} holds an adapter ({_ADAPTER}) of the model {base!r:.100}, which is not read. Merge them with peft, "
            "`model.merge_and_unload().save_pretrained(FOLDER)`, and give that folder; or remove the adapter's files."
        )

    def _weight_files(self):
        if (self.path / _WEIGHTS).is_file():
            self._index = {}
            return [self.path / _WEIGHTS]
        if (self.path / _INDEX).is_file():
            self._index = _read_index(self.path / _INDEX)
            return [self._shard(name) for name in sorted(set(self._index.values()))]
        if (self.path / tf_weights.FILE).is_file():
            self._index = {}
            return [self.path / tf_weights.FILE]
        pickled = [name for name in _PICKLED if (self.path / name).exists()]
        if pickled:
            raise ValueError(
                f"{self.path} has its weights as {pickled[0]} only: a pickle, which can run code, so it is not read. "
                f"Convert it where you trust it:\n{_conversion(self.path)}"
            )
        raise FileNotFoundError(f"{self.path} has neither {_WEIGHTS} nor {_INDEX} nor {tf_weights.FILE}.")

    def _shard(self, name):
        if pathlib.PurePosixPath(name).name != name or "\\" in name or not name.endswith(".safetensors"):
            raise ValueError(
                f"{_INDEX} must name files of its own folder, like model-00001-of-00002.safetensors. Received: {name!r}."
            )
        if not (self.path / name).is_file():
            raise FileNotFoundError(f"{self.path} lacks {name}, which {_INDEX} names.")
        return self.path / name

    def _check_index(self):
        """Every tensor must be in the file that the index names for it."""
        if not self._index:
            return
        files = {name: tensor.path.name for name, tensor in self.tensors.items()}
        names = files.keys() | self._index.keys()
        wrong = sorted(name for name in names if files.get(name) != self._index.get(name))
        if wrong:
            name = wrong[0]
            others = f"; {len(wrong) - 1} more" if wrong[1:] else ""
            raise ValueError(
                f"{_INDEX} does not describe the files. {name} is in {files.get(name, 'no file')}, by the index in "
                f"{self._index.get(name, 'no file')}{others}."
            )


class Rows:
    """A tensor in a file, of which slices are read.

    Args:
        folder: `Folder`.
        name: String.
        shape: Tuple.
    """

    def __init__(self, folder, name, shape):
        self.shape = shape
        self._read = lambda rows: folder.read(name, rows)

    def __len__(self):
        return self.shape[0]

    def __getitem__(self, rows):
        return self._read(rows)


def read_json(path):
    """The dict in a JSON file of a checkpoint.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is larger than 100 MB, is no JSON, holds anything but a dict, or names a key twice.
    """
    path = pathlib.Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {path}.")
    if path.stat().st_size > _MOST_JSON_BYTES:
        raise ValueError(f"{path} is larger than {_MOST_JSON_BYTES:,} bytes.")
    return _parsed(path.read_bytes(), path)


def _parsed(content, path):
    try:
        value = json.loads(content, object_pairs_hook=_unique)
    except RecursionError:
        raise ValueError(f"{path} is damaged: it is nested too deeply.") from None
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}.") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} must hold a JSON object. Received: {type(value).__name__}.")
    return value


def _unique(pairs):
    entries = {}
    for name, value in pairs:
        if name in entries:
            raise ValueError(f"the name {name!r} is there twice")
        entries[name] = value
    return entries


def _read_index(path):
    index = read_json(path).get("weight_map")
    if not isinstance(index, dict) or not index or not all(isinstance(name, str) for name in index.values()):
        raise ValueError(f'{path} must have a "weight_map" from names of tensors to names of files.')
    return index


def _read_tensors(path):
    """The tensors of a weight file, by their names."""
    return tf_weights.read_tensors(path) if path.name == tf_weights.FILE else read_header(path)


def read_header(path):
    """The tensors of a safetensors file, all of which lie within the file and do not overlap.

    Args:
        path: `pathlib.Path`.

    Returns:
        Dict of `Tensor`s by their names.

    Raises:
        ValueError: if the file is damaged.

    Example: `read_header(pathlib.Path("all-MiniLM-L6-v2/model.safetensors"))`.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, _MOST_JSON_BYTES):
            raise ValueError(
                f"{path} is damaged or not a safetensors file: its header is longer than the file."
            )
        header = _parsed(file.read(length), path)
    header.pop("__metadata__", None)
    tensors = {name: _tensor(path, name, entry, 8 + length) for name, entry in header.items()}
    end = 8 + length
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].start, math.prod(item[1].shape))):
        if tensor.start != end:
            raise ValueError(f"{path} is damaged: {name} begins at byte {tensor.start} in place of {end}.")
        end += math.prod(tensor.shape) * _BYTES[tensor.dtype]
    if end != size:
        raise ValueError(f"{path} is damaged: it has {size} bytes, its header describes {end}.")
    return tensors


def _tensor(path, name, entry, first):
    try:
        dtype, shape, (start, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        is_right = all(type(number) is int and number >= 0 for number in (*shape, start, end))
        is_right = is_right and end - start == math.prod(shape) * _BYTES[dtype]
    except (KeyError, TypeError, ValueError):
        is_right = False
    if not is_right:
        raise ValueError(f"{path} is damaged: its header describes {name} as {str(entry)[:200]}.")
    return Tensor(path, dtype, tuple(shape), first + start)


def _conversion(path):
    """The command that turns a pickled checkpoint into a safetensors file."""
    return (
        'python -c "import glob, torch; from safetensors.torch import save_file; '
        f"files = sorted(glob.glob('{path}/pytorch_model*.bin')); "
        "state = {k: v.clone().contiguous() for f in files for k, v in torch.load(f, weights_only=True).items()}; "
        f"save_file(state, '{path}/{_WEIGHTS}')\""
    )
