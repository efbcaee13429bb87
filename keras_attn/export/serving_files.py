"""Files that TF Serving reads next to a SavedModel: warm-up requests and batching parameters.

TensorFlow is imported where it is used: `keras-attn deploy` reads files of a version without it.

Their protocol buffers come with the package `tensorflow-serving-api`. They are described here with the same
field numbers under other names, so that package is not needed, and there is no clash if it is installed.

References: prediction_log.proto, predict.proto and model.proto in tensorflow_serving/apis, and
session_bundle_config.proto in tensorflow_serving/servables/tensorflow.
"""

import functools
import json
import pathlib
import re

from google.protobuf import descriptor_pool, text_format, wrappers_pb2
from google.protobuf.message import DecodeError

from keras_attn.export.saved_model_runner import message_classes
from keras_attn.files import read_json

WARMUP_FILE = "assets.extra/tf_serving_warmup_requests"
BATCHING_FILE = "batching_params.pbtxt"
XLA_FILE = "assets.extra/xla_buckets.json"
QUANTIZATION_FILE = "assets.extra/quantization.json"
SHORTLIST_FILE = "assets.extra/shortlist.json"
TASK_FILE = "assets.extra/task.json"

# The server's own limit, https://www.tensorflow.org/tfx/serving/saved_model_warmup.
MOST_WARMUP_REQUESTS = 1000

# The fields that are read and written, see `message_classes`.
_OPTIONAL_INT64 = ".google.protobuf.Int64Value"
_MESSAGES = {
    "PredictionLog": {"predict_log": (6, "PredictLog")},
    "PredictLog": {"request": (1, "PredictRequest")},
    "PredictRequest": {
        "model_spec": (1, "ModelSpec"),
        "inputs": (2, ["Input"]),  # on the wire, a map from strings to tensors
    },
    "ModelSpec": {"name": (1, "string"), "signature_name": (3, "string")},
    "Input": {"key": (1, "string"), "value": (2, ".tensorflow.TensorProto")},
    "BatchingParameters": {
        "max_batch_size": (1, _OPTIONAL_INT64),
        "batch_timeout_micros": (2, _OPTIONAL_INT64),
        "max_enqueued_batches": (3, _OPTIONAL_INT64),
        "num_batch_threads": (4, _OPTIONAL_INT64),
        "thread_pool_name": (5, ".google.protobuf.StringValue"),
        "allowed_batch_sizes": (6, ["int64"]),
        "pad_variable_length_inputs": (7, "bool"),
        "enable_large_batch_splitting": (8, ".google.protobuf.BoolValue"),
        "max_execution_batch_size": (9, _OPTIONAL_INT64),
    },
}

_BATCHING_TEXT = """\
# How TF Serving merges requests to this model, read where it runs with --enable_batching and
# --enable_per_model_batching_parameters. Of --batching_parameters_file only the thread pool (num_batch_threads,
# thread_pool_name) counts then, which all models share.
# Reference: https://github.com/tensorflow/serving/blob/master/tensorflow_serving/batching/README.md

# Texts in a batch, and the most that one request may hold: a larger one is refused. (The server can split large
# requests, but not where the outputs of the parts differ in width, as tokens and alignments do.)
max_batch_size {{ value: {max_batch_size} }}

# How long a request may wait for other requests: little beside the milliseconds that a translation takes.
batch_timeout_micros {{ value: {batch_timeout_micros} }}

# Batches that may wait; past them the server answers UNAVAILABLE at once, so that clients can go elsewhere.
max_enqueued_batches {{ value: {max_enqueued_batches} }}

# No allowed_batch_sizes, because {why_any_size}.
# No pad_variable_length_inputs: it would repeat an element of token ids; texts have one element a row.
"""


def write_warmup_requests(folder, model_name, requests):
    """Writes the warm-up requests that TF Serving runs before it makes a version available.

    Args:
        folder: Path of the version folder.
        model_name: String, the name under which the model is served.
        requests: List of at most 1,000 pairs of a signature's name and a dict from the names of its inputs to
            arrays. Arrays of strings hold `bytes` or `str`.

    Returns:
        `pathlib.Path` of the file.

    Raises:
        ValueError: if there are more than 1,000 requests.

    Example:

    ```python
    folder = "saved_models/dates/1"
    write_warmup_requests(folder, "dates", [("serving_default", {"inputs": np.array(["4 July", "tomorrow"])})])
    ```

    Reference: [SavedModel warm-up](https://www.tensorflow.org/tfx/serving/saved_model_warmup).
    """
    if len(requests) > MOST_WARMUP_REQUESTS:
        raise ValueError(
            f"`requests` must be at most {MOST_WARMUP_REQUESTS}. Received: {len(requests)} requests."
        )
    import tensorflow as tf

    path = pathlib.Path(folder, WARMUP_FILE)
    path.parent.mkdir(exist_ok=True)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for signature_name, inputs in requests:
            log = _message("PredictionLog")
            request = log.predict_log.request
            request.model_spec.name = model_name
            request.model_spec.signature_name = signature_name
            for name in sorted(inputs):
                request.inputs.add(key=name, value=tf.make_tensor_proto(inputs[name]))
            writer.write(log.SerializeToString())
    return path


def read_warmup_requests(folder):
    """Reads the warm-up requests of a version folder as the server does.

    Args:
        folder: Path of the version folder.

    Returns:
        A list of pairs of a signature's name and a dict from the names of inputs to arrays; None where the
        folder has no such file. Strings are `bytes`.

    Raises:
        ValueError: if the file or a record of it is damaged, naming the record.

    Example:

    ```python
    for signature_name, inputs in read_warmup_requests("saved_models/dates/1"):
        print(signature_name, {name: array.shape for name, array in inputs.items()})
    ```
    """
    path = pathlib.Path(folder, WARMUP_FILE)
    if not path.is_file():
        return None
    import tensorflow as tf

    requests = []
    try:
        for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
            requests.append(_warmup_request(record))
    except (tf.errors.OpError, DecodeError, ValueError, TypeError) as error:
        reason = re.sub(r"\{\{.*?\}\} | \[Op:.*", "", str(error).splitlines()[0])
        raise ValueError(f"Record {len(requests)} of {WARMUP_FILE} cannot be read: {reason}") from error
    return requests


def _warmup_request(record):
    import tensorflow as tf

    log = _message("PredictionLog")
    log.ParseFromString(record)
    if not log.HasField("predict_log"):
        raise ValueError("it is no request to Predict")
    request = log.predict_log.request
    inputs = {entry.key: tf.make_ndarray(entry.value) for entry in request.inputs}
    return request.model_spec.signature_name or "serving_default", inputs


def write_batching_parameters(
    folder, max_batch_size, batch_timeout_micros=2000, max_enqueued_batches=64, why_any_size=None
):
    """Writes how TF Serving may merge requests to a version, with comments that explain it.

    Args:
        folder: Path of the version folder.
        max_batch_size: Integer, the largest number of texts in a batch, and in one request.
        batch_timeout_micros: Integer, microseconds that a request may wait for others.
        max_enqueued_batches: Integer, the number of batches that may wait.
        why_any_size: String, the reason why the server need not pad batches to certain sizes. The default is
            for a graph that takes any size.

    Returns:
        `pathlib.Path` of the file.

    Example:

    ```python
    write_batching_parameters("saved_models/dates/1", max_batch_size=64)
    ```

    Reference: [the batching guide](https://github.com/tensorflow/serving/blob/master/tensorflow_serving/batching).
    """
    if why_any_size is None:
        why_any_size = "the graph takes batches of any size, and rows that only fill one cost time"
    path = pathlib.Path(folder, BATCHING_FILE)
    text = _BATCHING_TEXT.format(
        max_batch_size=max_batch_size,
        batch_timeout_micros=batch_timeout_micros,
        max_enqueued_batches=max_enqueued_batches,
        why_any_size=why_any_size,
    )
    path.write_text(text, encoding="utf-8")
    return path


def read_batching_parameters(folder):
    """Reads the batching parameters of a version folder as the server does.

    Args:
        folder: Path of the version folder.

    Returns:
        Dict from the names of the parameters that are set to their values; None where the folder has no such
        file.

    Raises:
        ValueError: if the file does not hold batching parameters as text, or the server would reject its
            values.

    Example:

    ```python
    assert read_batching_parameters("saved_models/dates/1")["max_batch_size"] == 64
    ```
    """
    path = pathlib.Path(folder, BATCHING_FILE)
    if not path.is_file():
        return None
    try:
        message = text_format.Parse(path.read_text(encoding="utf-8"), _message("BatchingParameters"))
    except (text_format.ParseError, UnicodeDecodeError) as error:
        raise ValueError(f"{BATCHING_FILE} cannot be read: {error}") from error
    parameters = {}
    for field, value in message.ListFields():
        is_wrapped = field.message_type is not None  # an optional value, as a message
        parameters[field.name] = value.value if is_wrapped else value
    _check_batching_parameters(parameters)
    return parameters


def _check_batching_parameters(parameters):
    """Raises ValueError where the server would reject a value."""
    for name, value in parameters.items():
        least = 0 if name == "batch_timeout_micros" else 1
        numbers = list(value) if name == "allowed_batch_sizes" else [value]
        if any(type(number) is int and number < least for number in numbers):
            raise ValueError(f"`{name}` in {BATCHING_FILE} must be at least {least}. Received: {value}.")
    sizes = list(parameters.get("allowed_batch_sizes", []))
    largest = parameters.get("max_batch_size", 1000)
    if sizes and (sizes != sorted(set(sizes)) or sizes[-1] != largest):
        raise ValueError(
            f"`allowed_batch_sizes` in {BATCHING_FILE} must increase and end with max_batch_size={largest}. "
            f"Received: {sizes}."
        )


def write_xla_buckets(folder, batch_sizes, lengths):
    """Marks a version folder as one that must be compiled with XLA, for these shapes.

    Args:
        folder: Path of the version folder.
        batch_sizes, lengths: Lists of increasing integers, the rows and the tokens of the batches that are
            compiled.

    Returns:
        `pathlib.Path` of the file.

    Example:

    ```python
    write_xla_buckets("saved_models/dates_xla/1", batch_sizes=[1, 8, 64], lengths=[16, 32])
    ```
    """
    return _write_json(folder, XLA_FILE, {"batch_sizes": list(batch_sizes), "lengths": list(lengths)})


def read_xla_buckets(folder):
    """The shapes that a version is compiled for.

    Args:
        folder: Path of the version folder.

    Returns:
        `{"batch_sizes": [...], "lengths": [...]}` for a version that must be compiled with XLA, None for any
        other.

    Raises:
        ValueError: if the file with the shapes is damaged.

    Example:

    ```python
    assert read_xla_buckets("saved_models/dates/1") is None
    ```
    """
    return _read_json(folder, XLA_FILE, "lists `batch_sizes` and `lengths`", _are_buckets)


def _are_buckets(content):
    is_named = isinstance(content, dict) and set(content) == {"batch_sizes", "lengths"}
    return is_named and all(isinstance(sizes, list) and sizes for sizes in content.values())


def write_quantization(folder, report):
    """Marks a version folder as one of a quantised model.

    Args:
        folder: Path of the version folder.
        report: Dict for JSON, with `quantization`, the mode. It may say what that has changed: the `examples`, the answers
            `before` and `after` (strings or vectors), and `scores_before` and `scores_after`.

    Returns:
        `pathlib.Path` of the file.

    Example:

    ```python
    write_quantization("saved_models/dates/1", {"quantization": "int8"})
    ```
    """
    return _write_json(folder, QUANTIZATION_FILE, report)


def read_quantization(folder):
    """What `write_quantization` wrote; None for a version that is not quantised.

    Args:
        folder: Path of the version folder.

    Returns:
        A dict with `quantization`, or None.

    Raises:
        ValueError: if the file is damaged.

    Example:

    ```python
    assert read_quantization("saved_models/dates/1") is None
    ```
    """
    return _read_json(folder, QUANTIZATION_FILE, "`quantization`", _is_quantization)


def _is_quantization(content):
    return isinstance(content, dict) and isinstance(content.get("quantization"), str)


def write_shortlist(folder, anywhere, of_source):
    """Writes the shortlist of a version's graph next to it, so that `verify` can compare a translator's answers with it.

    It holds token ids, not strings: a token may contain the space that separates tokens in the file of `Shortlist.save`.

    Args:
        folder: Path of the version folder.
        anywhere: List of integers, the target tokens that may come anywhere.
        of_source: Dict from a source token's id to a list of target tokens.

    Returns:
        `pathlib.Path` of the file.

    Example:

    ```python
    write_shortlist("saved_models/dates/1", [3, 4, 5], {7: [8, 9]})
    ```
    """
    return _write_json(folder, SHORTLIST_FILE, {"anywhere": anywhere, "of_source": of_source})


def read_shortlist(folder):
    """What `write_shortlist` wrote; None for a version without a shortlist.

    Args:
        folder: Path of the version folder.

    Returns:
        A dict with `anywhere` and `of_source`, whose keys are strings of digits; or None.

    Raises:
        ValueError: if the file is damaged.

    Example:

    ```python
    assert read_shortlist("saved_models/dates/1") is None
    ```
    """
    return _read_json(folder, SHORTLIST_FILE, "lists of tokens, `anywhere` and `of_source`", _is_shortlist)


def write_task_declaration(folder, declaration):
    """Writes what an export declares: its task, its signatures, and how a page asks them.

    Args:
        folder: Path of the version folder.
        declaration: Dict of values that JSON can hold, with the `format` 1; "What an export declares" in docs/local_server.md has its fields.

    Returns:
        `pathlib.Path` of the file.

    Example:

    ```python
    declaration = read_task_declaration("saved_models/dates/1")
    write_task_declaration("saved_models/dates/1", declaration)
    ```
    """
    return _write_json(folder, TASK_FILE, declaration)


def read_task_declaration(folder):
    """What `write_task_declaration` wrote; None for a version without a declaration.

    Args:
        folder: Path of the version folder.

    Returns:
        A dict, or None.

    Raises:
        ValueError: if the file is damaged, or of another format.

    Example:

    ```python
    declaration = read_task_declaration("saved_models/dates/1")
    print(declaration["task"], list(declaration["signatures"]))
    ```
    """
    expected = 'an object with "format": 1, and the fields "task" and "signatures"'
    return _read_json(folder, TASK_FILE, expected, _is_declaration)


def _is_declaration(content):
    return (
        isinstance(content, dict)
        and content.get("format") == 1
        and isinstance(content.get("task"), str)
        and isinstance(content.get("signatures"), dict)
    )


def _is_shortlist(content):
    if not (isinstance(content, dict) and set(content) == {"anywhere", "of_source"}):
        return False
    of_source = content["of_source"]
    if not (isinstance(of_source, dict) and all(source.isdecimal() for source in of_source)):
        return False
    lists = [content["anywhere"]] + list(of_source.values())
    return all(isinstance(ids, list) and all(type(i) is int for i in ids) for ids in lists)


def _write_json(folder, name, content):
    """Writes a JSON file of a version folder, and returns its path."""
    path = pathlib.Path(folder, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content) + "\n", "utf-8")
    return path


def _read_json(folder, name, expected, is_valid):
    """The content of a JSON file of a version folder, or None without the file.

    Raises:
        ValueError: if `is_valid(content)` is false or the file is damaged; the message says what is `expected`.
    """
    path = pathlib.Path(folder, name)
    if not path.is_file():
        return None
    try:
        content = read_json(path)
        if is_valid(content):
            return content
    except ValueError:
        pass
    raise ValueError(f"{name} must hold {expected}. Received: {path.read_bytes()[:99]}.")


@functools.cache
def _message_classes():
    from tensorflow.core.framework import tensor_pb2

    pool = descriptor_pool.Default()  # which has TensorFlow's own messages
    return message_classes(
        "keras_attn.tf_serving", _MESSAGES, pool, [tensor_pb2.DESCRIPTOR.name, wrappers_pb2.DESCRIPTOR.name]
    )


def _message(name):
    return _message_classes()[name]()
