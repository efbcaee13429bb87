"""Runs an exported SavedModel as TF Serving does: without TensorFlow's Python, and with XLA disabled.

A SavedModel that works in the process that exported it can still fail in a server, which has only the C++ ops
and refuses to compile with XLA unless it is started with a flag. This script detects that: it loads
TensorFlow's C++ libraries from the installed wheel, calls them through the C API, and exchanges one line of
JSON per request. `run_saved_model` of saved_model_process.py starts it from Python. `--xla` leaves XLA
enabled, as the server's `--xla_cpu_compilation_enabled` does, and `--threads` answers several requests at a
time. With `--stay`, the process answers for as long as its standard input is open, see `_stay`.

The script needs the standard library, NumPy, protobuf and the installed `tensorflow` (and `tensorflow_text`)
wheels. It imports no Python code of these wheels, and of this library compat/tensorflow.py alone, by its path:

```
echo '{"inputs": {"inputs": ["4th of July 2016", {"b64": "/w=="}]}}' |
    python keras_attn/export/saved_model_runner.py saved_models/dates/1
```

A request names a `signature` (default: `serving_default`) and the signature's `inputs`, nested lists whose
dtype and rank come from the signature. The answer holds nested lists, `{"outputs": {name: nested lists}}`, or
is `{"error": "..."}`. Bytes that are not UTF-8 are written `{"b64": "..."}` in requests and answers, as in TF
Serving's REST API.

Reference: tensorflow/c/c_api.h, tensorflow/core/protobuf/meta_graph.proto.
"""

import argparse
import base64
import concurrent.futures
import contextlib
import ctypes
import dataclasses
import functools
import importlib.util
import json
import os
import pathlib
import queue
import sys
import threading

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

# TensorFlow's DataType numbers (types.proto). Strings are NumPy object arrays of bytes.
_DTYPES = {
    1: np.dtype("float32"),
    3: np.dtype("int32"),
    7: np.dtype(object),
    9: np.dtype("int64"),
    10: np.dtype(bool),
}
_DTYPE_NUMBERS = {dtype: number for number, dtype in _DTYPES.items()}

# The kinds of NumPy arrays from JSON that each dtype accepts: integers count as floats, nothing is truncated
# or guessed.
_ACCEPTED_KINDS = {"float32": "iuf", "int32": "iu", "int64": "iu", "bool": "b"}

# A server has none of these; this process must not import them either.
_UNWANTED_PACKAGES = {"tensorflow", "tensorflow_text", "keras", "keras_attn"}

# TF_Code, tensorflow/c/tf_status.h: the request is wrong; something else is.
_UNKNOWN = 2
_INVALID_ARGUMENT = 3
_INTERNAL = 13

# A server's error message for a graph that must be compiled, and advice for it.
_XLA_IS_OFF = "XLA compilation disabled"
_XLA_ADVICE = (
    "This model must be compiled with XLA, which is off here as in a stock TF Serving. Start the server with "
    "--xla_cpu_compilation_enabled, this script with --xla, or give `run_saved_model` xla=True."
)


class TensorFlowError(RuntimeError):
    """An error that TensorFlow's C API reported in a `TF_Status`.

    Args:
        message: String.
        code: `TF_Code`, UNKNOWN where the error is this script's own.
    """

    def __init__(self, message, code=_UNKNOWN):
        super().__init__(message)
        self.code = code


@dataclasses.dataclass(frozen=True)
class TensorInfo:
    """A tensor of a signature: name in the graph, `DataType` number, shape (None where unknown)."""

    name: str
    dtype_number: int
    shape: tuple | None


@dataclasses.dataclass(frozen=True)
class Signature:
    """The inputs and outputs of one exported function, by name."""

    inputs: dict
    outputs: dict


class CApi:
    """The part of TensorFlow's C API that is needed to run a SavedModel, with NumPy arrays as tensors.

    Loading it links the ops of TensorFlow Text, as the server does, and disables XLA in this process
    permanently.

    Args:
        xla: Boolean, whether XLA is left enabled.

    Raises:
        TensorFlowError: If TensorFlow is not installed, or a library of ops does not load.
    """

    def __init__(self, xla=False):
        folder = _package_folder("tensorflow")
        if folder is None:
            raise TensorFlowError("TensorFlow must be installed to run a SavedModel: pip install tensorflow")
        for name in ("tensorflow_framework", "tensorflow_cc"):
            # Global, so that the op libraries find TensorFlow's symbols in the process.
            self.functions = ctypes.CDLL(str(folder / _library_name(name)), mode=ctypes.RTLD_GLOBAL)
        for name, (result, *arguments) in _PROTOTYPES.items():
            function = getattr(self.functions, name)
            function.restype = result
            function.argtypes = arguments
        self._load_text_ops()
        if not xla:
            _COMPAT.disable_xla(self.functions)

    def _load_text_ops(self):
        folder = _package_folder("tensorflow_text")
        libraries = sorted((folder / "python" / "ops").glob("_*.so")) if folder else []
        for library in libraries:
            self.checked("TF_LoadLibrary", os.fsencode(library))

    def checked(self, name, *arguments):
        """Calls a function whose last argument is a `TF_Status` and raises the error in it."""
        status = self.functions.TF_NewStatus()
        try:
            result = getattr(self.functions, name)(*arguments, status)
            if code := self.functions.TF_GetCode(status):
                message = self.functions.TF_Message(status).decode(errors="replace")
                if _XLA_IS_OFF in message:
                    message = f"{_XLA_ADVICE} {message}"
                raise TensorFlowError(message, code)
            return result
        finally:
            self.functions.TF_DeleteStatus(status)

    def new_tensor(self, array):
        """Makes a TF_Tensor from an array. Its strings are views, so the array must outlive the tensor."""
        itemsize = _COMPAT.TSTRING_BYTES if array.dtype.hasobject else array.itemsize
        number = _DTYPE_NUMBERS[array.dtype]
        dims = (ctypes.c_int64 * array.ndim)(*array.shape)
        tensor = self.functions.TF_AllocateTensor(number, dims, array.ndim, array.size * itemsize)
        address = self.functions.TF_TensorData(tensor)
        if not array.dtype.hasobject:
            ctypes.memmove(address, np.ascontiguousarray(array).ctypes.data, array.nbytes)
            return tensor
        for index, value in enumerate(array.flat):
            tstring = address + index * _COMPAT.TSTRING_BYTES
            self.functions.TF_StringInit(tstring)
            self.functions.TF_StringAssignView(tstring, value, len(value))
        return tensor

    def read_tensor(self, tensor):
        """Copies a TF_Tensor into an array."""
        number = self.functions.TF_TensorType(tensor)
        if number not in _DTYPES:
            raise ValueError(
                f"An output must have a dtype among {_known_dtypes()}. Received: DataType {number}."
            )
        shape = [self.functions.TF_Dim(tensor, axis) for axis in range(self.functions.TF_NumDims(tensor))]
        array = np.empty(shape, _DTYPES[number])
        address = self.functions.TF_TensorData(tensor)
        if not array.dtype.hasobject:
            ctypes.memmove(array.ctypes.data, address, array.nbytes)
            return array
        for index in range(array.size):
            tstring = address + index * _COMPAT.TSTRING_BYTES
            size = self.functions.TF_StringGetSize(tstring)
            array.flat[index] = ctypes.string_at(self.functions.TF_StringGetDataPointer(tstring), size)
        return array


class SavedModel:
    """A SavedModel in a session; several threads may run its signatures at the same time.

    Args:
        api: A `CApi`.
        folder: Path of the folder that holds `saved_model.pb`.
        threads: Integer, how many requests run at the same time: even on a single core, where TensorFlow would run one
            after another, so that a long one keeps nobody waiting.

    Raises:
        TensorFlowError: If the folder holds no SavedModel that loads.

    Example:

    ```
    with contextlib.closing(SavedModel(CApi(), "saved_models/dates/1")) as model:
        print(model.run("serving_default", {"inputs": ["4th of July 2016"]}))
    ```
    """

    def __init__(self, api, folder, threads=1):
        self._api = api
        functions = api.functions
        self._graph = functions.TF_NewGraph()
        options = functions.TF_NewSessionOptions()
        meta_graph = functions.TF_NewBuffer()
        try:
            if threads > 1:
                # ConfigProto.inter_op_parallelism_threads, field 5, as Protocol Buffers are written.
                config = bytes([5 << 3, min(max(threads, os.cpu_count() or 1), 127)])
                api.checked("TF_SetConfig", options, config, len(config))
            tags = (ctypes.c_char_p * 1)(b"serve")
            self._session = api.checked(
                "TF_LoadSessionFromSavedModel",
                options,
                None,  # run options
                os.fsencode(folder),
                tags,
                len(tags),
                self._graph,
                meta_graph,
            )
            serialised = ctypes.string_at(meta_graph.contents.data, meta_graph.contents.length)
            self.signatures = read_signatures(serialised)
        except TensorFlowError:
            functions.TF_DeleteGraph(self._graph)
            raise
        finally:
            functions.TF_DeleteBuffer(meta_graph)
            functions.TF_DeleteSessionOptions(options)

    def close(self):
        """Frees the session and the graph; the object cannot be used afterwards."""
        self._api.checked("TF_CloseSession", self._session)
        self._api.checked("TF_DeleteSession", self._session)
        self._api.functions.TF_DeleteGraph(self._graph)

    def run(self, signature_name, inputs):
        """Runs one signature.

        Args:
            signature_name: Name of an exported signature.
            inputs: Dict of nested lists (strings as str or `{"b64": str}`), one for every input of the
                signature.

        Returns:
            A dict of arrays, one for every output of the signature: float32, int32, int64, bool, or object
            arrays of bytes.

        Raises:
            ValueError: If the signature is unknown, or the inputs do not match it in name, dtype or shape.
            TensorFlowError: If the graph fails.
        """
        if signature_name not in self.signatures:
            known = sorted(self.signatures)
            raise ValueError(f"`signature` must be one of {known}. Received: signature={signature_name!r}.")
        signature = self.signatures[signature_name]
        if set(inputs) != set(signature.inputs):
            raise ValueError(
                f"`inputs` of {signature_name!r} must be exactly {sorted(signature.inputs)}. "
                f"Received: {sorted(inputs)}."
            )
        arrays = [to_array(name, inputs[name], info) for name, info in signature.inputs.items()]
        results = self._run_graph(signature.inputs.values(), arrays, signature.outputs.values())
        return dict(zip(signature.outputs, results, strict=True))

    def _run_graph(self, input_infos, arrays, output_infos):
        feeds = self._endpoints(input_infos)
        fetches = self._endpoints(output_infos)
        inputs = (ctypes.c_void_p * len(feeds))()
        results = (ctypes.c_void_p * len(fetches))()
        delete = self._api.functions.TF_DeleteTensor
        with contextlib.ExitStack() as stack:
            for index, array in enumerate(arrays):
                inputs[index] = self._api.new_tensor(array)
                stack.callback(delete, inputs[index])
            self._api.checked(
                "TF_SessionRun",
                self._session,
                None,  # run options
                feeds,
                inputs,
                len(feeds),
                fetches,
                results,
                len(fetches),
                None,  # operations that are run for their effects
                0,
                None,  # run metadata
            )
            for tensor in results:
                stack.callback(delete, tensor)
            return [self._api.read_tensor(tensor) for tensor in results]

    def _endpoints(self, infos):
        endpoints = (_Output * len(infos))()
        for endpoint, info in zip(endpoints, infos, strict=True):
            operation, _, index = info.name.rpartition(":")
            endpoint.operation = self._api.functions.TF_GraphOperationByName(self._graph, operation.encode())
            if not endpoint.operation:
                raise ValueError(f"A signature must be made of dense tensors of its graph. Received: {info}.")
            endpoint.index = int(index)
        return endpoints


def to_array(name, values, info):
    """Converts nested lists to the array that a signature's input takes.

    Nothing is converted silently: 1.5 is not an integer and "1" is not a number.

    Args:
        name: Name of the input, for messages.
        values: Nested lists of numbers, of booleans, or of str and `{"b64": str}`.
        info: `TensorInfo` of the input.

    Returns:
        An array of the signature's dtype and rank; `[]` gives an empty batch.

    Raises:
        ValueError: If the values are not of the signature's dtype or shape.
    """
    if info.dtype_number not in _DTYPES:
        raise ValueError(
            f"`{name}` must have a dtype among {_known_dtypes()}. Received: DataType {info.dtype_number}."
        )
    dtype = _DTYPES[info.dtype_number]
    array = _string_array(name, values) if dtype.hasobject else _number_array(name, values, dtype)
    if info.shape is None:
        return array
    if not array.size and array.ndim < len(info.shape):
        missing_sizes = [size or 0 for size in info.shape[array.ndim :]]
        array = array.reshape((*array.shape, *missing_sizes))
    has_rank = array.ndim == len(info.shape)
    if not has_rank or any(want not in (None, got) for want, got in zip(info.shape, array.shape)):
        raise ValueError(f"`{name}` must have shape {info.shape}. Received: shape {array.shape}.")
    return array


def _number_array(name, values, dtype):
    try:
        array = np.array(values)
    except ValueError as error:
        raise ValueError(f"`{name}` must be nested lists of equal lengths. Received: {error}") from error
    if not array.size:
        return array.astype(dtype)
    if array.dtype.kind not in _ACCEPTED_KINDS[dtype.name]:
        raise ValueError(
            f"`{name}` must hold {dtype} values. Received: {type(array.item(0)).__name__} values."
        )
    converted = array.astype(dtype)
    if dtype.kind == "i" and not np.array_equal(converted, array):
        raise ValueError(
            f"`{name}` must hold values that fit {dtype}. Received: from {array.min()} to {array.max()}."
        )
    return converted


def _string_array(name, values):
    array = np.array(values, dtype=object)
    for index, value in enumerate(array.flat):
        array.flat[index] = _to_bytes(name, value)
    return array


def _to_bytes(name, value):
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and set(value) == {"b64"} and isinstance(value["b64"], str):
        return base64.b64decode(value["b64"], validate=True)
    raise ValueError(
        f'`{name}` must be nested lists of str or {{"b64": str}}, of equal lengths. Received: {value!r}.'
    )


def to_json(array, to_text=None):
    """An array as nested lists for JSON.

    Args:
        array: An array of numbers, of booleans, or of bytes.
        to_text: Function from bytes to what stands for them in JSON. By default, a str, or `{"b64": str}` where
            they are not UTF-8.
    """
    if not array.dtype.hasobject:
        return array.tolist()
    if to_text is None:
        to_text = _to_text
    texts = np.empty(array.shape, object)
    for index, value in enumerate(array.flat):
        texts.flat[index] = to_text(value)
    return texts.tolist()


def _to_text(value):
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"b64": base64.b64encode(value).decode("ascii")}


def read_signatures(meta_graph):
    """Reads the signatures out of a serialised `MetaGraphDef`.

    The classes generated from meta_graph.proto come with TensorFlow's Python, so the fields are described
    here.

    Args:
        meta_graph: bytes of the message.

    Returns:
        Dict from name to `Signature`.
    """
    message = _meta_graph_classes()["MetaGraph"].FromString(meta_graph)
    # SavedModels keep their initialisation op in a signature of its own, which is not for clients.
    return {
        entry.key: Signature(_tensor_infos(entry.value.inputs), _tensor_infos(entry.value.outputs))
        for entry in message.signatures
        if not entry.key.startswith("__saved_model")
    }


def _tensor_infos(entries):
    entries = sorted(entries, key=lambda entry: entry.key)
    return {
        entry.key: TensorInfo(entry.value.name, entry.value.dtype, _shape(entry.value.shape))
        for entry in entries
    }


def _shape(message):
    if message.unknown_rank:
        return None
    return tuple(None if dim.size == -1 else dim.size for dim in message.dims)


# The fields that are read from meta_graph.proto, see `message_classes`.
_META_GRAPH_MESSAGES = {
    "MetaGraph": {"signatures": (5, ["SignatureEntry"])},
    "SignatureEntry": {"key": (1, "string"), "value": (2, "Signature")},
    "Signature": {"inputs": (1, ["TensorEntry"]), "outputs": (2, ["TensorEntry"])},
    "TensorEntry": {"key": (1, "string"), "value": (2, "TensorInfo")},
    "TensorInfo": {"name": (1, "string"), "dtype": (2, "int32"), "shape": (3, "Shape")},
    "Shape": {"dims": (2, ["Dim"]), "unknown_rank": (3, "bool")},
    "Dim": {"size": (1, "int64")},
}


@functools.cache
def _meta_graph_classes():
    return message_classes("saved_model_runner", _META_GRAPH_MESSAGES, descriptor_pool.DescriptorPool())


def message_classes(package, messages, pool, dependencies=()):
    """The classes of Protocol Buffers messages, without files generated by protoc.

    Args:
        package: String, the package in which the messages are.
        messages: {name of a message: {name of a field: (number, type)}}. A type is a scalar ("int32", "string"), the name of
            one of these messages, or with a dot before it the full name of a message in `pool`. A repeated field has its type
            in a list; on the wire, a map is a repeated message of a `key` and a `value`.
        pool: `descriptor_pool.DescriptorPool` to which the messages are added.
        dependencies: Names of the files in `pool` whose messages are used.

    Returns:
        Dict from names to classes.
    """
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{package}.proto", package=package, syntax="proto3", dependency=dependencies
    )
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for field_name, (number, kind) in fields.items():
            field = message.field.add(name=field_name, number=number, label=1)  # LABEL_OPTIONAL
            if isinstance(kind, list):
                (kind,) = kind
                field.label = field.LABEL_REPEATED
            if kind in messages:
                kind = f".{package}.{kind}"
            if kind.startswith("."):
                field.type = field.TYPE_MESSAGE
                field.type_name = kind
            else:
                field.type = getattr(field, f"TYPE_{kind.upper()}")
    pool.AddSerializedFile(file.SerializeToString())
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
        for name in messages
    }


class _Buffer(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("length", ctypes.c_size_t), ("deallocator", ctypes.c_void_p))


class _Output(ctypes.Structure):
    _fields_ = (("operation", ctypes.c_void_p), ("index", ctypes.c_int))


_POINTER = ctypes.c_void_p
_TEXT = ctypes.c_char_p
_INT = ctypes.c_int
_SIZE = ctypes.c_size_t
_DIMS = ctypes.POINTER(ctypes.c_int64)
_TEXTS = ctypes.POINTER(_TEXT)
_POINTERS = ctypes.POINTER(_POINTER)
_BUFFER = ctypes.POINTER(_Buffer)
_VALUES = (ctypes.POINTER(_Output), _POINTERS, _INT)  # endpoints of a graph, their tensors, and how many

# name: (result, argument, ...), from c_api.h, tf_tensor.h and tf_tstring.h
_PROTOTYPES = {
    "TF_NewStatus": (_POINTER,),
    "TF_GetCode": (_INT, _POINTER),
    "TF_Message": (_TEXT, _POINTER),
    "TF_DeleteStatus": (None, _POINTER),
    "TF_LoadLibrary": (_POINTER, _TEXT, _POINTER),
    "TF_NewGraph": (_POINTER,),
    "TF_DeleteGraph": (None, _POINTER),
    "TF_GraphOperationByName": (_POINTER, _POINTER, _TEXT),
    "TF_NewSessionOptions": (_POINTER,),
    "TF_SetConfig": (None, _POINTER, _TEXT, _SIZE, _POINTER),
    "TF_DeleteSessionOptions": (None, _POINTER),
    "TF_NewBuffer": (_BUFFER,),
    "TF_DeleteBuffer": (None, _BUFFER),
    "TF_LoadSessionFromSavedModel": (
        _POINTER,
        _POINTER,
        _BUFFER,
        _TEXT,
        _TEXTS,
        _INT,
        _POINTER,
        _BUFFER,
        _POINTER,
    ),
    "TF_SessionRun": (None, _POINTER, _BUFFER, *_VALUES, *_VALUES, _POINTERS, _INT, _BUFFER, _POINTER),
    "TF_CloseSession": (None, _POINTER, _POINTER),
    "TF_DeleteSession": (None, _POINTER, _POINTER),
    "TF_AllocateTensor": (_POINTER, _INT, _DIMS, _INT, _SIZE),
    "TF_DeleteTensor": (None, _POINTER),
    "TF_TensorType": (_INT, _POINTER),
    "TF_NumDims": (_INT, _POINTER),
    "TF_Dim": (ctypes.c_int64, _POINTER, _INT),
    "TF_TensorData": (_POINTER, _POINTER),
    "TF_StringInit": (None, _POINTER),
    "TF_StringAssignView": (None, _POINTER, _TEXT, _SIZE),
    "TF_StringGetSize": (_SIZE, _POINTER),
    "TF_StringGetDataPointer": (_POINTER, _POINTER),
}


def _library_name(name):
    return f"lib{name}.2.dylib" if sys.platform == "darwin" else f"lib{name}.so.2"


def _package_folder(name):
    """Finds an installed package without importing it; None where it is not installed."""
    spec = importlib.util.find_spec(name)
    if spec is None:
        return None
    return pathlib.Path(spec.submodule_search_locations[0])


def _load_compat():
    """keras_attn.compat.tensorflow, loaded by its path, because importing the package would import Keras."""
    path = pathlib.Path(__file__).resolve().parents[1] / "compat" / "tensorflow.py"
    spec = importlib.util.spec_from_file_location("compat_tensorflow", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_COMPAT = _load_compat()


def _known_dtypes():
    return ["string" if dtype.hasobject else dtype.name for dtype in _DTYPES.values()]


def _is_request(request):
    if not isinstance(request, dict):
        return False
    return isinstance(request.get("inputs"), dict) and isinstance(request.get("signature", ""), str)


def _answer(model, line):
    """Answers one line. An error in a request is returned as its answer, so the next one is served."""
    try:
        request = json.loads(line.decode())
        if not _is_request(request):
            raise ValueError(
                f'A request must be {{"signature": str, "inputs": {{name: values}}}}. Received: {request!r}'
            )
        outputs = model.run(request.get("signature", "serving_default"), request["inputs"])
        return {"outputs": {name: to_json(array) for name, array in outputs.items()}}
    except (ValueError, RuntimeError) as error:
        return {"error": str(error)}


def _serve(options, requests, answers):
    try:
        model = SavedModel(CApi(options.xla), options.folder, options.threads)
    except TensorFlowError as error:
        raise SystemExit(f"Cannot load a SavedModel from {options.folder}: {error}") from None
    if options.stay:
        _check_that_nothing_else_is_imported()
        _stay(model, requests, answers, options.threads)
        os._exit(0)  # the pipe is closed: nobody waits for what still runs
    with contextlib.closing(model):
        for answer in _answers(model, requests, options.threads):
            print(json.dumps(answer), file=answers, flush=True)
    _check_that_nothing_else_is_imported()


def _stay(model, requests, answers, threads):
    """Answers until the requests end, in any order: a request has an `id`, which its answer repeats.

    The first line written is `{"ready": true}`, once the model is loaded. Bytes of an output that are not UTF-8 are
    surrogate escapes in the JSON string, and an error comes with TensorFlow's `code`.
    """
    write_lock = threading.Lock()
    queued_requests = queue.SimpleQueue()

    def write(answer):
        line = json.dumps(answer) + "\n"
        with write_lock:
            answers.write(line)
            answers.flush()

    def work():
        while True:
            write(_answer_with_id(model, queued_requests.get()))

    for _ in range(threads):
        threading.Thread(target=work, daemon=True).start()
    write({"ready": True})
    for line in requests:
        queued_requests.put(line)


def _answer_with_id(model, line):
    request = json.loads(line)
    try:
        outputs = model.run(request["signature"], request["inputs"])
        values = {name: to_json(array, _to_escaped_text) for name, array in outputs.items()}
        return {"id": request["id"], "outputs": values}
    except Exception as error:  # the client waits for an answer, whatever went wrong
        code = getattr(error, "code", _INTERNAL)
        if isinstance(error, ValueError):
            code = _INVALID_ARGUMENT
        return {"id": request["id"], "error": str(error) or repr(error), "code": code}


def _to_escaped_text(value):
    return value.decode("utf-8", "surrogateescape")


def _check_that_nothing_else_is_imported():
    imported = _UNWANTED_PACKAGES & {name.partition(".")[0] for name in sys.modules}
    if imported:
        raise SystemExit(
            f"A server has none of TensorFlow's Python, and this process imported {sorted(imported)}."
        )


def _answers(model, requests, threads):
    """The answers in the order of the requests. One thread answers each request before it reads the next."""
    if threads == 1:
        for line in requests:
            yield _answer(model, line)
        return
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        # ctypes releases the GIL while the graph runs.
        yield from pool.map(lambda line: _answer(model, line), requests)


def _main(arguments):
    parser = argparse.ArgumentParser(
        description="Answers requests, one line of JSON each, with a SavedModel."
    )
    parser.add_argument("folder", metavar="FOLDER", help="the version folder, which holds saved_model.pb")
    parser.add_argument("--xla", action="store_true", help="leave XLA enabled, which a stock server has not")
    parser.add_argument("--threads", type=int, default=1, help="requests answered at a time (default: 1)")
    parser.add_argument(
        "--stay", action="store_true", help="answer requests with ids, in any order, until they end"
    )
    options = parser.parse_args(arguments)
    # A graph that prints to the standard output must not write between the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    with answers:
        _serve(options, sys.stdin.buffer, answers)


if __name__ == "__main__":
    _main(sys.argv[1:])
