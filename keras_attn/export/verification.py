"""Checks, without a server, whether a stock TF Serving would load and run a version folder."""

import base64
import importlib.resources
import pathlib
import subprocess
import typing

import numpy as np
import tensorflow as tf

from keras_attn.compat.tensorflow import XLA_ATTRIBUTE
from keras_attn.export.fingerprint import fingerprint_problems
from keras_attn.export.saved_model_process import run_saved_model
from keras_attn.export.saved_model_runner import to_json
from keras_attn.export.serving_files import (
    MOST_WARMUP_REQUESTS,
    read_batching_parameters,
    read_quantization,
    read_shortlist,
    read_task_declaration,
    read_warmup_requests,
    read_xla_buckets,
)
from keras_attn.terminal import counted, stage


class Check(typing.NamedTuple):
    """A check: its name; a list of problems, empty if nothing is wrong; and notes, which are no problems."""

    name: str
    problems: list
    notes: typing.Sequence = ()


# Every signature is run on these, alone and together, and on an empty batch.
TEXTS = ("", "4th of July 2016", "a b c " * 200, "emoji 😀, ümläut", {"b64": "Y2Fm6SD//g=="})

# So many of the examples that export has recorded are compared with Python.
_MOST_OWN_EXAMPLES = 8
# How much attention scores may differ.
_TOLERANCE = 1e-4
# The share of a token's attention that may be elsewhere, on average, where activations are rounded. Python computes a
# quantised model's attention from the quantised weights without rounding activations; in bfloat16, it adds in another order.
_MOVED_IF_ROUNDED = 0.1


def verify_saved_model(folder, texts=TEXTS, expected=None, expected_attention=None):
    """Checks a version folder as a server would, and runs its signatures and warm-up requests.

    The signatures run through TensorFlow's C library in a process without TensorFlow's Python, with XLA
    switched off, as in the server unless a flag enables it. A version that was exported for XLA has a file
    `assets.extra/xla_buckets.json`, and runs with XLA.

    A version without a fingerprint, warm-up requests or batching parameters is still served, so this is noted but is
    not a problem. If the server cannot read one of these files, or a warm-up request fails, it does not load the
    version.

    Args:
        folder: Path of a version folder, the one that holds `saved_model.pb`.
        texts: Strings to feed to every string input; bytes, of images for example, or bytes as `{"b64": str}`, which
            `expected` is not given.
        expected: Function from a list of strings and bytes to the answers that `serving_default` must give when every string
            input is given these, for example the `default_answers` of a task. Beside `texts`, the model's own examples are
            compared: what export has recorded in the warm-up.
        expected_attention: Function from such a list to a request to the signature `attention`, a dict of lists by the names
            of its inputs, the answers it must have, a list of dicts of arrays without padding, and whether the model rounds its
            activations: the `attention_answers` of a task. It is for versions that have this signature.

    Returns:
        A list of `Check`s: files, fingerprint, declaration, signatures, ops, batching parameters, warm-up, a run of each signature and
        of the warm-up, and the answers if `expected` is given. Later checks are left out if an earlier
        problem makes them impossible.

    Example:

    ```python
    checks = verify_saved_model("saved_models/dates/1")
    assert not any(check.problems for check in checks)
    ```
    """
    stage("checking the files", done=0.1)
    folder = pathlib.Path(folder)
    files = Check("files", list(_file_problems(folder)))
    if files.problems:
        return [files]
    meta_graph = _meta_graph(folder)
    if isinstance(meta_graph, str):
        return [Check("files", [meta_graph])]
    signatures = {
        name: signature
        for name, signature in meta_graph.signature_def.items()
        if not name.startswith("__saved_model")
    }
    try:
        buckets = read_xla_buckets(folder)
        quantization = read_quantization(folder)
        shortlist = read_shortlist(folder)
        declaration = read_task_declaration(folder)
    except ValueError as error:
        return [Check("files", [str(error)])]
    xla = buckets is not None
    checks = [
        files,
        _fingerprint(folder),
        _declaration(declaration, signatures),
        Check("signatures", list(_signature_problems(signatures))),
        Check("ops", list(_op_problems(meta_graph.graph_def, xla=xla))),
    ]
    if xla:
        checks.append(Check("exported for XLA: start the server with --xla_cpu_compilation_enabled", []))
    if quantization is not None:
        checks.append(_quantization(quantization))
    if shortlist is not None:
        name = f"shortlist: lists for {len(shortlist['of_source']):,} source tokens"
        checks.append(Check(name, []))
    warmup, requests = _warmup(folder, signatures, buckets)
    checks += [_batching(folder), warmup]

    runs = _signature_runs(signatures, [_in_json(text) for text in texts]) + _warmup_runs(requests)
    own = _own_examples(requests)
    # The model's own come first, so that one of them is shown. `expected` is given no base64.
    compared = own + [text for text in texts if isinstance(text, str | bytes) and text not in own]
    if (expected is not None or own) and "serving_default" in signatures:
        # In the same process: to load a version and to prepare its graph takes longer than to answer.
        runs.append(_answers_run(signatures["serving_default"], compared))
    run_checks, answers = _run_checks(folder, runs, xla=xla)
    checks += run_checks
    if expected is None or any(check.problems for check in run_checks):
        return checks
    stage("answering the same in Python, and comparing", done=0.8)
    problems = _answer_problems(compared, answers, expected)
    note = f"compared for {len(compared)} inputs, of which {len(own)} are this model's own, from its warm-up"
    checks.append(Check("answers", list(problems), [note]))
    if expected_attention is not None and "attention" in signatures:
        stage("comparing the attention scores", done=0.9)
        texts = [text for text in texts if isinstance(text, str | bytes)]
        problems = _attention_problems(folder, texts, expected_attention, quantization is not None)
        checks.append(Check("answers of attention", list(problems)))
    return checks


def _file_problems(folder):
    if not (folder / "saved_model.pb").is_file():
        yield f"{folder} holds no saved_model.pb: give the version folder, saved_models/NAME/1 for example."
    elif not list((folder / "variables").glob("variables.data-*")):
        yield f"{folder / 'variables'} holds no weights (variables.data-*)."
    elif not (folder / "variables" / "variables.index").is_file():
        yield f"{folder / 'variables'} holds no variables.index, without which a server loads no weights."
    if not folder.name.isdecimal():
        yield f"TF Serving loads folders whose names are integers. This one is {folder.name!r}."


def _fingerprint(folder):
    problems = fingerprint_problems(folder)
    if problems is None:
        why = "none, so whether the graph and the variables belong together is known only with a translator"
        return Check(f"fingerprint: {why}", [])
    return Check("fingerprint", problems)


def _meta_graph(folder):
    """The serving graph, or the problem with it as a string."""
    from google.protobuf.message import DecodeError
    from tensorflow.core.protobuf import saved_model_pb2

    saved_model = saved_model_pb2.SavedModel()
    try:
        saved_model.ParseFromString((folder / "saved_model.pb").read_bytes())
    except DecodeError as error:
        return f"saved_model.pb is damaged: {error}."
    for meta_graph in saved_model.meta_graphs:
        if "serve" in meta_graph.meta_info_def.tags:
            return meta_graph
    return "saved_model.pb has no graph with the tag `serve`."


def _signature_problems(signatures):
    if "serving_default" not in signatures:
        yield f"There is no signature `serving_default`. Found: {sorted(signatures)}."
    elif len(signatures["serving_default"].outputs) != 1:
        yield (
            "`serving_default` has several outputs, so REST answers a list of objects: "
            f"{sorted(signatures['serving_default'].outputs)}."
        )
    for name, signature in signatures.items():
        yield from _shape_problems("input", signature.inputs, name)
        yield from _shape_problems("output", signature.outputs, name)


def _shape_problems(side, infos, signature_name):
    for key, info in infos.items():
        shape = info.tensor_shape
        sizes = [dim.size for dim in shape.dim]
        if not shape.unknown_rank and sizes[:1] != [-1]:
            yield (
                f"The first axis of {side} `{key}` of `{signature_name}` must be the batch, of any size, which the "
                f"server merges requests on. Its shape is {sizes}."
            )


def _declaration(declaration, signatures):
    """Whether the export is what it says."""
    if declaration is None:
        return Check("declaration: none, so `keras-attn serve` shows a form for its JSON", [])
    problems = []
    for name in sorted(set(declaration["signatures"]) ^ set(signatures)):
        problems.append(f"The signature {name!r} is in one of the graph and assets.extra/task.json alone.")
    for name in sorted(set(declaration["signatures"]) & set(signatures)):
        declared = declaration["signatures"][name]
        for side, infos in (("inputs", signatures[name].inputs), ("outputs", signatures[name].outputs)):
            if set(declared[side]) != set(infos):
                problems.append(
                    f"The {side} of {name!r} are {sorted(infos)}, and in assets.extra/task.json {sorted(declared[side])}."
                )
    return Check(f"declaration: {declaration['task']}", problems)


def _op_problems(graph, xla):
    """Ops that a server does not link or run, by function; with `xla`, XLA's own ops are allowed."""
    functions = graph.library.function
    known = served_ops().union(function.signature.name for function in functions)

    def missing_ops(nodes, name):
        missing = sorted({node.op for node in nodes} - known)
        if xla:
            missing = [op for op in missing if not op.startswith("Xla")]
        if missing:
            yield f"Not linked into a stock server: {', '.join(missing)}, in {name}."

    yield from missing_ops(graph.node, "the graph")
    for function in functions:
        name = function.signature.name
        yield from missing_ops(function.node_def, name)
        if not xla and XLA_ATTRIBUTE in function.attr and function.attr[XLA_ATTRIBUTE].b:
            yield f"{name} is compiled with XLA (jit_compile=True), which the server has switched off by default."


def served_ops():
    """The names of the ops that a stock server links; `served_ops.txt` says where the list comes from."""
    file = importlib.resources.files("keras_attn.export").joinpath("served_ops.txt")
    lines = file.read_text(encoding="utf-8").splitlines()
    return {line for line in lines if not line.startswith("#")}


def _quantization(report):
    """What quantisation has changed in the answers to the examples, which is no problem."""
    name = f"quantised: {report['quantization']}"
    if "before" not in report or "after" not in report:
        return Check(name, [])
    before = np.asarray(report["before"])
    after = np.asarray(report["after"])
    if before.dtype.kind == "f":
        largest = max(np.max(np.abs(before)), 1e-9)
        change = np.max(np.abs(after - before)) / largest
        return Check(name, [], [f"numbers change by {change:.1%} of the largest, at most"])
    changed = [row for row in range(len(before)) if before[row] != after[row]]
    notes = [f"{len(before) - len(changed)} of {len(before)} examples are answered as before"]
    notes += [f"{_short(str(before[row]))} became {_short(str(after[row]))}" for row in changed[:5]]
    if "scores_before" in report and "scores_after" in report:
        changes = np.abs(np.subtract(report["scores_after"], report["scores_before"]))
        notes.append(f"scores change by {np.max(changes):.3f} at most, {np.mean(changes):.3f} in the mean")
    return Check(name, [], notes)


def _batching(folder):
    try:
        parameters = read_batching_parameters(folder)
    except ValueError as error:
        return Check("batching parameters", [str(error)])
    if not parameters:
        return Check("batching parameters: none of this model's own", [])
    return Check("batching parameters", [])


def _warmup(folder, signatures, buckets):
    """A `Check` of the warm-up file, and those of its requests that can be run."""
    try:
        requests = read_warmup_requests(folder)
    except ValueError as error:
        return Check("warm-up", [str(error)]), []
    if requests is None:
        return Check("warm-up: none, so the first request to each signature is slow", []), []
    problems = []
    good_requests = []
    for index, (name, inputs) in enumerate(requests):
        request_problems = [
            f"Record {index}: {problem}" for problem in _request_problems(signatures, name, inputs)
        ]
        problems += request_problems
        if not request_problems:
            good_requests.append((name, inputs))
    if not requests:
        problems.append("The file holds no request.")
    if len(requests) > MOST_WARMUP_REQUESTS:
        problems.append(
            f"The server takes {MOST_WARMUP_REQUESTS} requests at most. There are {len(requests)}."
        )
    if buckets is not None:
        num_shapes = len(buckets["batch_sizes"]) * len(buckets["lengths"])
        if len(requests) < num_shapes:
            problems.append(
                f"XLA compiles {num_shapes} shapes, and only {len(requests)} requests warm them up."
            )
    return Check("warm-up", problems), good_requests


def _request_problems(signatures, name, inputs):
    if name not in signatures:
        yield f"There is no signature {name!r}."
        return
    infos = signatures[name].inputs
    if set(inputs) != set(infos):
        yield f"It feeds {sorted(inputs)} to `{name}`, which takes {sorted(infos)}."
        return
    for key, array in inputs.items():
        dtype = tf.as_dtype(infos[key].dtype)
        shape = tf.TensorShape(infos[key].tensor_shape)
        if array.dtype != np.dtype(dtype.as_numpy_dtype) or not shape.is_compatible_with(array.shape):
            yield (
                f"It feeds {tf.as_dtype(array.dtype).name} {list(array.shape)} to `{key}` of `{name}`, which is "
                f"{dtype.name} {shape.as_list()}."
            )


class _Run(typing.NamedTuple):
    """A request: the check it belongs to, its name there, the request itself, and its number of rows."""

    check: str
    name: str
    request: dict
    size: int


def _signature_runs(signatures, texts):
    """Runs each signature on batches of no, one and all texts."""
    runs = []
    for name, signature in signatures.items():
        for batch in ([], texts[:1], texts[1:2], texts):
            request = {"signature": name, "inputs": _inputs(signature, batch)}
            runs.append(_Run(f"run of {name}", counted(len(batch), "text"), request, len(batch)))
    return runs


def _warmup_runs(requests):
    runs = []
    for index, (name, inputs) in enumerate(requests):
        request = {"signature": name, "inputs": {key: to_json(array) for key, array in inputs.items()}}
        size = max((len(array) for array in inputs.values() if array.ndim), default=0)
        runs.append(_Run("run of the warm-up", f"request {index}, {counted(size, 'text')}", request, size))
    return runs


def _own_examples(requests):
    """What export has recorded as typical of this model: the first inputs of its warm-up, a list of strings and bytes."""
    examples = []
    for name, inputs in requests:
        if name != "serving_default":
            continue
        for array in inputs.values():
            if array.dtype.hasobject:
                examples += array.ravel().tolist()
    examples = [_as_text(example) for example in dict.fromkeys(examples)]
    return examples[:_MOST_OWN_EXAMPLES]


def _as_text(value):
    """Bytes as a string, if they are UTF-8; an image is not."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _answers_run(signature, texts):
    request = {
        "signature": "serving_default",
        "inputs": _inputs(signature, [_in_json(text) for text in texts]),
    }
    return _Run("run of serving_default", counted(len(texts), "text"), request, len(texts))


def _run_checks(folder, runs, xla):
    """A `Check` for each kind of run, all in one process; and the `outputs` of the last run, None if it gives none."""
    requests = [run.request for run in runs]
    timeout = _time_limit(folder, len(runs), xla)
    try:
        answers = run_saved_model(folder, requests, timeout=timeout, xla=xla, before_request=_told(runs))
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        # TensorFlow's output is long; the error is at its end.
        return [Check("loading", [" ".join(str(error).split())[-600:]])], None
    problems = {run.check: [] for run in runs}
    notes = {}
    for run, answer in zip(runs, answers):
        if "error" in answer:
            problems[run.check].append(f"{run.name}: {' '.join(answer['error'].split())[:300]}")
            continue
        lengths = {key: len(value) for key, value in answer["outputs"].items()}
        if set(lengths.values()) - {run.size}:
            problems[run.check].append(f"{run.name} are answered with {lengths}.")
        elif run.size and run.request["signature"] == "serving_default":
            notes[run.check] = _sample(run.request["inputs"], answer["outputs"])
    checks = [Check(name, problems[name], notes.get(name, ())) for name in problems]
    return checks, answers[-1].get("outputs", {}).get("outputs")


def _told(runs):
    """A function that says which part of the runs begins with the run of an index."""
    checks = list(dict.fromkeys(run.check for run in runs))
    told = set()

    def tell(index):
        if index < len(runs) and runs[index].check not in told:
            check = runs[index].check
            told.add(check)
            number = checks.index(check) + 1
            stage(
                f"running {check.removeprefix('run of ')} as a server would, {number} of {len(checks)}",
                done=0.15 + 0.65 * index / len(runs),
            )

    return tell


def _time_limit(folder, num_runs, xla):
    """Seconds for loading a version and for all runs: large models are slow, and XLA compiles each shape."""
    megabytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 2**20
    seconds_a_run = 60 if xla else 10
    return 60 + megabytes + num_runs * seconds_a_run


def _sample(inputs, outputs):
    """A line with the first text that is not empty, and its answer; none if there are several inputs or outputs."""
    if len(inputs) != 1 or len(outputs) != 1:
        return []
    (texts,) = inputs.values()
    (answers,) = outputs.values()
    row = next((row for row, text in enumerate(texts) if text), 0)
    return [f"{_short(texts[row])} -> {_short(answers[row])}"]


def _short(value):
    text = repr(value)
    if len(text) > 60:
        text = f"{text[:57]}..."
    return text


def _inputs(signature, texts):
    """The texts for every string input of a signature, and neutral values for the others."""
    inputs = {}
    for key, info in signature.inputs.items():
        is_string = info.dtype == tf.string.as_datatype_enum
        inputs[key] = texts if is_string else [_neutral_value(info)] * len(texts)
    return inputs


def _neutral_value(info):
    """A value that is valid for any option: 1, or -1 for each element of a list of tokens."""
    sizes = [dim.size for dim in info.tensor_shape.dim][1:]
    if sizes:
        return [-1] * max(sizes[0], 1)
    return 1.0 if info.dtype == tf.float32.as_datatype_enum else 1


def _answer_problems(texts, answers, expected):
    for text, one, other in zip(texts, answers, expected(texts), strict=True):
        if not _are_same(one, other):
            yield f"{_short(text)} is answered with {_short(one)}, and as {_short(other)} in Python."


def _attention_problems(folder, texts, expected, is_quantized):
    inputs, expected_answers, rounds_activations = expected(texts)
    if not expected_answers:
        return
    json_inputs = {key: [_in_json(value) for value in values] for key, values in inputs.items()}
    request = {"signature": "attention", "inputs": json_inputs}
    (answer,) = run_saved_model(folder, [request], timeout=300)
    is_rounded = rounds_activations or is_quantized
    for row, expected_outputs in enumerate(expected_answers):
        row_inputs = ", ".join(f"{key}={_short(values[row])}" for key, values in inputs.items())
        for name, wanted in expected_outputs.items():
            if name not in answer["outputs"]:
                yield f"`attention` has no output `{name}`."
                continue
            problem = _difference(np.asarray(answer["outputs"][name][row]), np.asarray(wanted), is_rounded)
            if problem is not None:
                yield f"`{name}` of `attention` for {row_inputs} {problem}."


def _difference(output, wanted, is_rounded):
    """How a row's output, padded to its batch, differs from the wanted one without padding; None if it does not."""
    if output.ndim != wanted.ndim or any(has < needs for has, needs in zip(output.shape, wanted.shape)):
        return f"has shape {output.shape}, and {wanted.shape} in Python"
    inside = tuple(slice(size) for size in wanted.shape)
    kind = wanted.dtype.kind
    if kind in "fu":
        differences = np.abs(output[inside].astype("float32") - wanted)
        difference = np.max(differences, initial=0.0)
        # Pixels are unsigned integers: between two of them, either is right.
        limit = _TOLERANCE if kind == "f" else 1
        if is_rounded and kind == "f":
            difference = differences.sum(axis=-1).mean() / 2
            limit = _MOVED_IF_ROUNDED
        # Written so that NaN, which compares as false, is a difference too.
        if not difference <= limit:
            return f"differs by {difference:.2g} from Python's"
    elif not np.array_equal(output[inside], wanted):
        return f"is {_short(output[inside].tolist())}, and {_short(wanted.tolist())} in Python"
    is_padding = np.ones(output.shape, bool)
    is_padding[inside] = False
    if np.any(output[is_padding].astype(bool)):
        return "holds something past the end of the text"
    return None


def _in_json(text):
    """A text as a request holds it: bytes in base64."""
    if isinstance(text, bytes):
        return {"b64": base64.b64encode(text).decode("ascii")}
    return text


def _are_same(one, other):
    """Whether two answers are equal; numbers to 1e-5 of the largest."""
    one = np.asarray(one)
    other = np.asarray(other)
    if one.dtype.kind != "f" or other.dtype.kind != "f":
        return np.array_equal(one, other)
    largest = max(np.max(np.abs(other), initial=0.0), 1e-9)
    return one.shape == other.shape and bool(np.all(np.abs(one - other) <= 1e-5 * largest))
