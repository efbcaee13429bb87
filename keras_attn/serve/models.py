"""The models that a server has: their signatures, the process that runs each, and what the server tells about them."""

import contextlib
import functools
import os
import pathlib
import time

from google.protobuf import json_format
from google.protobuf.message import DecodeError
from tensorflow.core.framework import types_pb2
from tensorflow.core.protobuf import saved_model_pb2

from keras_attn.export import (
    read_batching_parameters,
    read_task_declaration,
    read_warmup_requests,
    read_xla_buckets,
)
from keras_attn.export.saved_model_runner import to_json
from keras_attn.export.serving_files import TASK_FILE
from keras_attn.serve.batching import Batcher, Unbatched
from keras_attn.serve.errors import NOT_FOUND, RequestError
from keras_attn.serve.metrics import Metrics
from keras_attn.serve.model_process import ModelProcess
from keras_attn.serve.pages import ExportPages, TaskPages
from keras_attn.serve.tensors import Tensor


class ServedModel:
    """One version of a model, loaded and warmed up.

    Args:
        version: `Version`.
        xla: Boolean, whether graphs may be compiled with XLA; a version that was exported for XLA always may.
        metrics: `Metrics` of the server; by default its own.

    Raises:
        ValueError: if a file of the version is damaged, or a warm-up request fails.
        ChildProcessError: if the model does not load.
    """

    def __init__(self, version, xla=False, metrics=None):
        self.name = version.name
        self.number = version.number
        self.folder = version.folder
        self.task = version.task
        self.signatures = read_signature_defs(self.folder)
        try:
            self._warmup = read_warmup_requests(self.folder) or []
            parameters = read_batching_parameters(self.folder)
            self.needs_xla = read_xla_buckets(self.folder) is not None
            self.declaration = read_task_declaration(self.folder)
        except ValueError as error:  # it names a file of the folder
            raise ValueError(f"{self.folder}: {error}") from error
        if self.declaration is not None:
            check_declaration(self.folder, self.declaration, self.signatures)
        self._metrics = metrics or Metrics()
        start = time.perf_counter()
        self.process = ModelProcess(self.folder, xla or self.needs_xla, os.cpu_count())
        self._metrics.record_load(self.folder, time.perf_counter() - start)
        if version.task is None:
            self.attention = ExportPages(self.name, self.declaration, self.process.run)
        else:
            self.attention = TaskPages(version.task, version.content, version.options)
        self._shows_attention = version.task is not None or bool((self.declaration or {}).get("attention"))
        if parameters:
            self._batcher = Batcher(self.process.run, parameters, metrics=self._metrics)
        else:
            self._batcher = Unbatched(self.process.run)
        try:
            self._warm_up()
        except RequestError as error:
            self.close()
            raise ValueError(f"A warm-up request of {self.folder} fails: {error.message}") from None

    def signature(self, name):
        """The `SignatureDef` of a name.

        Raises:
            RequestError: if there is none.
        """
        if name not in self.signatures:
            raise RequestError(f'Serving signature name: "{name}" not found in signature def')
        return self.signatures[name]

    def ask(self, call):
        """The outputs of a `Call`, nested lists by name.

        Raises:
            RequestError: if an input has a wrong shape, there is no room, or the graph fails.
        """
        infos = self.signature(call.signature_name).inputs
        inputs = {name: _fitting(name, tensor, infos[name]) for name, tensor in call.inputs.items()}
        start = time.perf_counter()
        outputs = self._batcher.ask(call.signature_name, inputs)
        self._metrics.record_run(self.name, time.perf_counter() - start)
        return outputs

    def close(self):
        """Ends the process, and with it the batches that it is at."""
        self.process.close()
        self._batcher.close()

    def metadata(self):
        """The answer to `/metadata`, get_model_metadata_impl.cc."""
        described = {
            name: json_format.MessageToDict(
                signature, always_print_fields_with_no_presence=True, preserving_proto_field_name=True
            )
            for name, signature in self.signatures.items()
        }
        spec = {"name": self.name, "signature_name": "", "version": str(self.number)}
        return {"model_spec": spec, "metadata": {"signature_def": {"signature_def": described}}}

    def status(self):
        """The answer to a question for the version's state, get_model_status_impl.cc."""
        health = {"error_code": "OK", "error_message": ""}
        return {
            "model_version_status": [{"version": str(self.number), "state": "AVAILABLE", "status": health}]
        }

    @functools.cached_property
    def description(self):
        """What the page knows of the model: what the export declares, and the dtypes and shapes of its graph."""
        return {
            "name": self.name,
            "version": self.number,
            "task": self.declaration,
            "shows_attention": self._shows_attention,
            "signatures": {
                name: {"inputs": _described(signature.inputs), "outputs": _described(signature.outputs)}
                for name, signature in self.signatures.items()
                if not name.startswith("__saved_model")
            },
            "neutral": self._neutral_values(),
        }

    def _neutral_values(self):
        """{input: a value for one row}, from the warm-up: numbers there are options at their neutral values."""
        neutral = {}
        for _, inputs in self._warmup:
            for name, array in inputs.items():
                if name not in neutral and array.dtype.kind in "fib" and array.size:
                    neutral[name] = array[0].tolist()
        return neutral

    def _warm_up(self):
        start = time.perf_counter()
        for signature_name, inputs in self._warmup:
            self.process.run(signature_name, {name: to_json(array) for name, array in inputs.items()})
        if self._warmup:
            self._metrics.record_warm_up(self.folder, time.perf_counter() - start)


class ServedModels:
    """The models of a server by name; only the newest version of each, as TF Serving has by default.

    Args:
        models: List of `ServedModel`s.
        metrics: `Metrics` of the server.
    """

    def __init__(self, models, metrics):
        self._models = {model.name: model for model in models}
        self.metrics = metrics

    def __iter__(self):
        return iter(self._models.values())

    def find(self, name, number=None, label=None):
        """The `ServedModel` for a request to run or describe a version.

        Raises:
            RequestError: if there is none.
        """
        if label is not None:
            raise RequestError(f"Unrecognized servable version label: {label}")
        model = self._models.get(name)
        if model is None or number not in (None, model.number):
            wanted = f"Latest({name})" if number is None else f"Specific({name}, {number})"
            raise RequestError(f"Servable not found for request: {wanted}", NOT_FOUND)
        return model

    def status(self, name, number=None):
        """The state of a version, or of all of a model.

        Raises:
            RequestError: if there is none.
        """
        model = self._models.get(name)
        if model is None and number is None:
            raise RequestError(f"Could not find any versions of model {name}", NOT_FOUND)
        if model is None or number not in (None, model.number):
            raise RequestError(f"Could not find version {number} of model {name}", NOT_FOUND)
        return model.status()

    def close(self):
        """Ends every process."""
        for model in self:
            model.close()


@contextlib.contextmanager
def loaded_models(versions, xla=False, tell=None):
    """Yields `ServedModels` of a list of `Version`s; the block's end ends their processes. `tell` is given a line before and after."""
    with contextlib.ExitStack() as stack:
        metrics = Metrics()
        models = []
        for version in versions:
            start = time.perf_counter()
            if tell:
                tell(
                    f"Loading {version.name}, version {version.number}, and running its warm-up requests ..."
                )
            models.append(ServedModel(version, xla, metrics))
            stack.callback(models[-1].close)
            if tell:
                tell(f"  ready after {time.perf_counter() - start:.0f} s")
        yield ServedModels(models, metrics)


def read_signature_defs(folder):
    """{name: `SignatureDef`} of the graph for serving in a version folder."""
    path = pathlib.Path(folder, "saved_model.pb")
    try:
        message = saved_model_pb2.SavedModel.FromString(path.read_bytes())
    except DecodeError as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    graphs = [graph for graph in message.meta_graphs if list(graph.meta_info_def.tags) == ["serve"]]
    if not graphs:
        raise ValueError(f"{path} holds no graph for serving.")
    signatures = {}
    for name, signature in graphs[0].signature_def.items():
        signatures[name] = type(signature)()
        signatures[name].CopyFrom(signature)  # without the graph, which is large
    return signatures


def check_declaration(folder, declaration, signatures):
    """Raises a ValueError if what an export declares does not fit its graph.

    Args:
        folder: The version folder, for the message.
        declaration: Dict as `read_task_declaration` gives it.
        signatures: {name: `SignatureDef`}.
    """
    try:
        declared = declaration["signatures"]
        roles = {role: declaration[role] for role in ("ask", "sample", "attention")}
        names = {
            name: (set(signature["inputs"]), set(signature["outputs"]))
            for name, signature in declared.items()
        }
        for signature in declared.values():
            for given in signature["inputs"].values():
                dict(given["widget"] or {})
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{folder}/{TASK_FILE} does not declare a task: {error!r}.") from error
    for name, (inputs, outputs) in names.items():
        graph = signatures.get(name)
        if graph is None or inputs != set(graph.inputs) or outputs != set(graph.outputs):
            raise ValueError(
                f"{folder}/{TASK_FILE} declares a signature `{name}` that the graph does not have."
            )
    for role, name in roles.items():
        if name is not None and name not in names:
            raise ValueError(f"{folder}/{TASK_FILE} does not declare `{name}`, its signature for {role!r}.")


def _fitting(name, tensor, info):
    """The tensor, if its shape is the signature's. TF Serving leaves this to the graph, where batch-mates would fail too."""
    if info.tensor_shape.unknown_rank:
        return tensor
    wanted = [dim.size for dim in info.tensor_shape.dim]
    shape = tensor.shape
    if not tensor.values:  # without rows, the other axes are not known
        shape += tuple(max(size, 0) for size in wanted[len(shape) :])
    fits = len(shape) == len(wanted) and all(size in (-1, length) for size, length in zip(wanted, shape))
    if not fits:
        raise RequestError(
            f"Input {name} must have shape {_shown(wanted)} (-1 for any size). Received: shape {_shown(shape)}."
        )
    return Tensor(tensor.values, shape)


def _shown(shape):
    return f"[{','.join(map(str, shape))}]"


def _described(infos):
    described = {}
    for name, info in sorted(infos.items()):
        shape = None
        if not info.tensor_shape.unknown_rank:
            shape = [dim.size if dim.size >= 0 else None for dim in info.tensor_shape.dim]
        dtype = types_pb2.DataType.Name(info.dtype).removeprefix("DT_").lower()
        described[name] = {"dtype": dtype, "shape": shape}
    return described
