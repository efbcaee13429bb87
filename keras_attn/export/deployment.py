"""Writes what serves exported models in production: TF Serving in Docker, with batching, metrics and Prometheus.

It reads files of the exports alone, so neither TensorFlow nor Keras is imported.
"""

import collections
import dataclasses
import functools
import os
import pathlib
import shlex
import struct
import unicodedata

import numpy as np
from google.protobuf import descriptor_pool
from google.protobuf.message import DecodeError

from keras_attn.export import deployment_files
from keras_attn.export.saved_model_runner import message_classes, read_signatures, to_json
from keras_attn.export.serving_files import WARMUP_FILE, read_task_declaration, read_xla_buckets
from keras_attn.files import not_there, replaced_file
from keras_attn.task_registry import declarations
from keras_attn.terminal import printable

_MODEL_FILE = "saved_model.pb"
_LARGEST_VERSION = 2**63 - 1
# Of the hub, and of OpenNMT-tf.
_CHECKPOINT_FILES = ("config.json", "checkpoint")

# The fields that are read, see `message_classes`: saved_model.proto, prediction_log.proto, predict.proto, model.proto,
# tensor.proto and tensor_shape.proto.
_MESSAGES = {
    "SavedModel": {"meta_graphs": (2, ["bytes"])},
    "PredictionLog": {"predict_log": (6, "PredictLog")},
    "PredictLog": {"request": (1, "PredictRequest")},
    "PredictRequest": {"model_spec": (1, "ModelSpec"), "inputs": (2, ["Input"])},
    "ModelSpec": {"signature_name": (3, "string")},
    "Input": {"key": (1, "string"), "value": (2, "Tensor")},
    "Tensor": {
        "dtype": (1, "int32"),
        "shape": (2, "Shape"),
        "content": (4, "bytes"),
        "floats": (5, ["float"]),
        "ints": (7, ["int32"]),
        "strings": (8, ["bytes"]),
        "longs": (10, ["int64"]),
        "booleans": (11, ["bool"]),
    },
    "Shape": {"dims": (2, ["Dim"])},
    "Dim": {"size": (1, "int64")},
}
# The number of a dtype in types.proto: the dtype, and the field that holds its values where `content` does not.
_DTYPES = {
    1: ("float32", "floats"),
    3: ("int32", "ints"),
    7: (object, "strings"),
    9: ("int64", "longs"),
    10: ("bool", "booleans"),
}
# What stands for an input of which no example is known.
_PLACEHOLDERS = {1: 0.0, 2: 0.0, 7: "...", 10: False}


@dataclasses.dataclass(frozen=True)
class DeployedModel:
    """A model as TF Serving gets it.

    name: String.
    source: String, the path of the mounted folder as docker-compose.yml says it.
    is_version: Boolean, whether that folder is a version itself: it is mounted as version 1.
    pinned: Tuple of the versions that are served; empty for the newest.
    version_folder: `pathlib.Path` of the newest version that is served.
    needs_xla: Boolean, whether a version was exported for XLA.
    declaration: Dict, what the export declares of itself; None if it does not.
    requests: {name of a signature: `SampleRequest`}.
    """

    name: str
    source: str
    is_version: bool
    pinned: tuple
    version_folder: pathlib.Path
    needs_xla: bool
    declaration: dict | None
    requests: dict


@dataclasses.dataclass(frozen=True)
class SampleRequest:
    """A request to one signature: its inputs for one row as JSON, what it is for, and whether they come from the export."""

    inputs: dict
    meaning: str
    is_real: bool


@dataclasses.dataclass(frozen=True)
class Deployment:
    """What `write_deployment` wrote.

    folder: `pathlib.Path`.
    models: Tuple of the models' names.
    files: {name of a file in the folder: what it is for}.
    """

    folder: pathlib.Path
    models: tuple
    files: dict

    def report(self):
        """Returns the files, what each is for, and the command that starts the server, as text."""
        width = max(len(name) for name in self.files)
        lines = [f"{self.folder}: TF Serving with {', '.join(self.models)}"]
        lines += [f"  {name:{width}}  {purpose}" for name, purpose in self.files.items()]
        compose_file = shlex.quote(str(self.folder / deployment_files.COMPOSE_FILE))
        lines.append(f"Next: docker compose -f {compose_file} up --detach --wait")
        return "\n".join(lines)


def write_deployment(folders, output="deploy", *, xla=False, overwrite=False):
    """Writes a folder with which Docker serves exported models: TF Serving, and a Prometheus that collects its metrics.

    The folder holds docker-compose.yml, the server's models.config, batching.config and monitoring.config, Prometheus' prometheus.yml,
    and a README.md with a request to every signature of every model, roll-back and what each file is for. The models stay where
    they are: they are mounted, read-only. Where `folders` and `output` are relative paths, so are those of the mounts, and all can
    be moved together.

    Args:
        folders: List of paths, or one: models' folders, whose newest version is served; version folders, which pin a version; or folders
            that hold several models.
        output: Path of the folder to write.
        xla: Boolean, whether the server may compile with XLA. It always may if a version was exported for XLA.
        overwrite: Boolean, whether files in `output` that say something else are replaced.

    Returns:
        `Deployment`.

    Raises:
        FileNotFoundError: if a folder does not exist or holds no exported model; for a run, a saved task or a checkpoint the
            message has the command that exports it.
        FileExistsError: if files in `output` say something else, without `overwrite`.
        ValueError: if two models have one name, or TF Serving could not find or name one.

    Example:

    ```python
    deployment = write_deployment(["saved_models/dates"], "deploy")
    print(deployment.report())
    ```
    """
    if isinstance(folders, str | os.PathLike):
        folders = [folders]
    output = pathlib.Path(output)
    models = [_model(*found, output) for found in _found_folders(folders)]
    _check_names(models)
    contents = deployment_files.contents(models, xla=xla or any(model.needs_xla for model in models))
    if not overwrite:
        _check_unchanged(output, contents)
    for name, (text, _) in contents.items():
        with replaced_file(output / name) as aside:
            aside.write_text(text, encoding="utf-8")
        path = output / name
        path.chmod(path.stat().st_mode | 0o444)  # Prometheus runs as another user
    purposes = {name: purpose for name, (_, purpose) in contents.items()}
    return Deployment(output, tuple(model.name for model in models), purposes)


def _check_unchanged(output, contents):
    """Raises FileExistsError if a file is there that says something else."""
    changed = []
    for name, (text, _) in contents.items():
        path = output / name
        if path.exists() and (not path.is_file() or path.read_bytes() != text.encode()):
            changed.append(str(path))
    if changed:
        raise FileExistsError(
            f"{', '.join(changed)} would be replaced. Give --overwrite (in Python, overwrite=True), or another --output."
        )


def _check_names(models):
    for name, count in collections.Counter(model.name for model in models).items():
        if count > 1:
            same = [model.source for model in models if model.name == name]
            raise ValueError(
                f"Models must have different names. Received: {name!r} for {', '.join(same)}. Rename a folder, or give a link to it."
            )
    for model in models:
        if ":" in model.name:  # the routes are /v1/models/NAME:predict
            raise ValueError(
                f"The name of a model must not contain a colon, because TF Serving's addresses could not hold it. Received: {model.name!r}. "
                "Rename the folder."
            )
        if any(
            unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp")
            for character in model.source + model.name
        ):
            raise ValueError(
                "The path of a model must be UTF-8 without control characters, for the files that name it. "
                f"Received: {printable(model.source)}. Rename the folder."
            )


def _found_folders(folders):
    """(folder of a model, pinned versions) of each model that is named; the versions are None for a folder that is a version itself."""
    found = {}
    for folder in map(pathlib.Path, folders):
        for path, pinned in _folders_in(folder):
            key = os.path.abspath(path)
            if pinned and key in found:  # another version of the same model
                pinned = found[key][1] and tuple(sorted({*pinned, *found[key][1]}))
            found[key] = (path, pinned)
    return list(found.values())


def _folders_in(folder):
    if not folder.is_dir():
        if not folder.exists():
            raise FileNotFoundError(not_there(folder))
        raise FileNotFoundError(
            f"{folder} is no folder. Give that of an exported model, for example saved_models/dates."
        )
    refuse_task(folder)
    if (folder / _MODEL_FILE).is_file():
        name = pathlib.Path(os.path.abspath(folder)).name
        if name.isdecimal():
            return [(folder / "..", (int(name),))]
        return [(folder, None)]
    if _versions(folder):
        return [(folder, ())]
    inner = [path for path in sorted(folder.iterdir()) if path.is_dir() and _versions(path)]
    if not inner:
        raise FileNotFoundError(
            f"There is nothing to serve in {folder}: it holds no exported model ({_MODEL_FILE}) and no version of one. "
            "Export a run, a saved task or a checkpoint first, for example: keras-attn export runs/mine saved_models/mine"
        )
    return [(path, ()) for path in inner]


def refuse_task(folder):
    """Raises FileNotFoundError, with the command that exports it, for the folder of a run, a saved task or a checkpoint.

    A SavedModel is a program. One that lies in such a folder is not served either.

    Args:
        folder: Path.

    Raises:
        FileNotFoundError: if it is such a folder.

    Example: `refuse_task("saved_models/dates")`
    """
    markers = dict.fromkeys(_CHECKPOINT_FILES, "checkpoint")
    for declared in declarations().values():
        markers[declared.config_file] = declared.name
        markers[f"{declared.file_stem}/{declared.config_file}"] = "run"
    for marker, kind in markers.items():
        if not (folder / marker).is_file():
            continue
        absolute = pathlib.Path(os.path.abspath(folder))
        is_in_run = f"{absolute.name}/{marker}" in markers
        name = absolute.parent.name if is_in_run else absolute.name
        command = shlex.join(["keras-attn", "export", str(folder), f"saved_models/{name}"])
        raise FileNotFoundError(
            f"{folder} is no exported model: it holds {marker}, as a {kind} does. Export it first: {command}"
        )


def _versions(folder):
    """{number: path} of the versions in a model's folder, in rising order."""
    numbers = {}
    for path in folder.iterdir():
        if path.name.isdecimal() and int(path.name) <= _LARGEST_VERSION and (path / _MODEL_FILE).is_file():
            numbers[int(path.name)] = path
    return dict(sorted(numbers.items()))


def _model(folder, pinned, output):
    """The `DeployedModel` of a folder."""
    if pinned is None:
        versions = {1: folder}
    else:
        versions = _versions(folder)
        _check_versions(folder, versions)
    version_folder = versions[max(pinned or versions)]
    name = pathlib.Path(os.path.abspath(folder)).name
    try:
        declaration = read_task_declaration(version_folder)
        needs_xla = any(read_xla_buckets(path) is not None for path in versions.values())
    except ValueError as error:  # it names a file of the folder
        raise ValueError(f"{version_folder}: {error}") from error
    return DeployedModel(
        name=name,
        source=_mounted_path(folder, output),
        is_version=pinned is None,
        pinned=pinned or (),
        version_folder=version_folder,
        needs_xla=needs_xla,
        declaration=declaration,
        requests=_sample_requests(version_folder, declaration),
    )


def _check_versions(folder, versions):
    """Raises ValueError if TF Serving, which sees this folder alone, would not find a version whole."""
    numbers = [int(path.name) for path in folder.iterdir() if path.name.isdecimal() and path.is_dir()]
    if max(numbers) > max(versions):
        raise ValueError(
            f"TF Serving takes the highest number for the newest version, and {folder / str(max(numbers))} holds no {_MODEL_FILE}. "
            "Remove or rename that folder."
        )
    inside = os.path.realpath(folder)
    for path in versions.values():
        target = os.path.realpath(path)
        if os.path.commonpath([inside, target]) != inside:
            raise ValueError(
                f"{path} is a link to {target}, where the server's container cannot follow. Copy that folder to the link's place."
            )


def _mounted_path(folder, output):
    """The path of a folder in docker-compose.yml: relative to the file if both were named relative, so that they can move together."""
    absolute = os.path.abspath(folder)
    if folder.is_absolute() or output.is_absolute():
        return pathlib.Path(absolute).as_posix()
    relative = pathlib.Path(os.path.relpath(absolute, os.path.abspath(output))).as_posix()
    return relative if relative.startswith("..") else f"./{relative}"


def _sample_requests(version_folder, declaration):
    """{name of a signature: `SampleRequest`}: the first row of each warm-up request, which are the examples of the export."""
    try:
        rows = dict(_warmup_rows(version_folder / WARMUP_FILE))
    except (DecodeError, KeyError, ValueError, IndexError, struct.error) as error:
        raise ValueError(
            f"{version_folder / WARMUP_FILE} is damaged: {error}. Export the model again."
        ) from error
    signatures = _signatures(version_folder / _MODEL_FILE)
    if not signatures:
        raise ValueError(f"{version_folder} has no signature with inputs, so there is nothing to ask.")
    declared = (declaration or {}).get("signatures", {})
    names = sorted(signatures, key=list({**declared, **rows, **signatures}).index)
    requests = {}
    for name in names:
        inputs = rows.get(name)
        if inputs is None:
            inputs = {key: _placeholder(info) for key, info in signatures[name].inputs.items()}
        meaning = declared.get(name, {}).get("meaning", "")
        requests[name] = SampleRequest(inputs, meaning, name in rows)
    return requests


def _signatures(path):
    """{name: `Signature`} of the graph in a saved_model.pb."""
    try:
        graphs = _message("SavedModel").FromString(path.read_bytes()).meta_graphs
        signatures = read_signatures(graphs[0])
    except (DecodeError, IndexError) as error:
        raise ValueError(f"{path} is damaged: {error}. Export the model again.") from error
    return {name: signature for name, signature in signatures.items() if signature.inputs}


def _warmup_rows(path):
    """(name of a signature, {input: its value for the first row}) of each record of a warm-up file, the last first."""
    if not path.is_file():
        return []
    rows = []
    for record in _records(path.read_bytes()):
        request = _message("PredictionLog").FromString(record).predict_log.request
        inputs = {entry.key: _first_row(entry.value) for entry in request.inputs}
        rows.append((request.model_spec.signature_name or "serving_default", inputs))
    return reversed(rows)


def _records(content):
    """The records of a TFRecord file: length, checksum of the length, data, checksum of the data."""
    offset = 0
    while offset < len(content):
        (length,) = struct.unpack_from("<Q", content, offset)
        yield content[offset + 12 : offset + 12 + length]
        offset += length + 16


def _first_row(tensor):
    dtype, field = _DTYPES[tensor.dtype]
    shape = [dim.size for dim in tensor.shape.dims]
    if tensor.content:
        array = np.frombuffer(tensor.content, dtype)
    else:
        values = list(getattr(tensor, field))
        values += values[-1:] * (
            np.prod(shape, dtype=int) - len(values)
        )  # the last stands for those after it
        array = np.array(values, dtype)
    row = array.reshape(shape)[:1]
    if row.dtype == np.float32:
        short = [float(str(value)) for value in row.ravel()]  # 0.1, not 0.10000000149011612
        row = np.array(short).reshape(row.shape)
    return to_json(row)[0]


def _placeholder(info):
    value = _PLACEHOLDERS.get(info.dtype_number, 0)
    for size in reversed((info.shape or ())[1:]):
        value = [value] * (size or 1)
    return value


def _message(name):
    return _message_classes()[name]


@functools.cache
def _message_classes():
    return message_classes("keras_attn.deployment", _MESSAGES, descriptor_pool.DescriptorPool())
