"""Checks, without a server, whether a stock TF Serving would load and run a version folder."""

import base64
import collections
import importlib.resources
import pathlib
import subprocess

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

Check = collections.namedtuple("Check", ["name", "problems", "notes"], defaults=[()])
Check.__doc__ = (
    """A check: its name; a list of problems, empty if nothing is wrong; and notes, which are no problems."""
)

# Every signature is run on these, alone and together, and on an empty batch.
TEXTS = ("", "4th of July 2016", "a b c " * 200, "emoji 😀, ümläut", {"b64": "Y2Fm6SD//g=="})

# How much attention scores may differ.
_TOLERANCE = 1e-4
# Where activations are rounded: the share of a token's attention that may be elsewhere, in the mean. What Python watches of a
# quantised model has the quantised weights, but rounds no activations; in bfloat16, it adds in another order.
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
            input is given these, for example the `default_answers` of a task.

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
        buckets, quantization = read_xla_buckets(folder), read_quantization(folder)
        shortlist = read_shortlist(folder)
        declaration = read_task_declaration(folder)
    except ValueError as error:
        return [Check("files", [str(error)])]
    warmup, requests = _warmup(folder, signatures, buckets)
    checks = [
        files,
        _fingerprint(folder),
        _declaration(declaration, signatures),
        Check("signatures", list(_signature_problems(signatures))),
        Check("ops", list(_op_problems(meta_graph.graph_def, xla=buckets is not None))),
        *(
            [Check("exported for XLA: start the server with --xla_cpu_compilation_enabled", [])]
            if buckets
            else []
        ),
        *([] if quantization is None else [_quantization(quantization)]),
        *([] if shortlist is None else [_shortlist(shortlist)]),
        _batching(folder),
        warmup,
    ]
    runs = [*_runs_of_signatures(signatures, [_in_json(text) for text in texts]), *_runs_of_warmup(requests)]
    run_checks = _run_checks(folder, runs, xla=buckets is not None)
    if expected is not None and not any(check.problems for check in run_checks):
        run_checks.append(
            Check("answers", list(_answer_problems(folder, signatures, texts, expected, buckets is not None)))
        )
        if expected_attention is not None and "attention" in signatures:
            is_quantized = quantization is not None
            problems = _attention_problems(folder, _without_base64(texts), expected_attention, is_quantized)
            run_checks.append(Check("answers of attention", list(problems)))
    return [*checks, *run_checks]


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
        for side, infos in (("input", signature.inputs), ("output", signature.outputs)):
            for key, info in infos.items():
                shape = info.tensor_shape
                if not shape.unknown_rank and not (shape.dim and shape.dim[0].size == -1):
                    sizes = [dim.size for dim in shape.dim]
                    yield (
                        f"The first axis of {side} `{key}` of `{name}` must be the batch, of any size, which the "
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
    served = served_ops()
    functions = [
        ("the graph", graph.node, {}),
        *((f.signature.name, f.node_def, f.attr) for f in graph.library.function),
    ]
    names = {function.signature.name for function in graph.library.function}
    for name, nodes, attributes in functions:
        missing = sorted({node.op for node in nodes} - served - names)
        missing = [op for op in missing if not (xla and op.startswith("Xla"))]
        if missing:
            yield f"Not linked into a stock server: {', '.join(missing)}, in {name}."
        if not xla and XLA_ATTRIBUTE in attributes and attributes[XLA_ATTRIBUTE].b:
            yield f"{name} is compiled with XLA (jit_compile=True), which the server has switched off by default."


def served_ops():
    """The names of the ops that a stock server links; `served_ops.txt` says where the list comes from."""
    text = (
        importlib.resources.files("keras_attn.export").joinpath("served_ops.txt").read_text(encoding="utf-8")
    )
    return {line for line in text.splitlines() if not line.startswith("#")}


def _quantization(report):
    """What quantisation has changed in the answers to the examples, which is no problem."""
    name = f"quantised: {report['quantization']}"
    if "before" not in report or "after" not in report:
        return Check(name, [])
    before, after = np.asarray(report["before"]), np.asarray(report["after"])
    if before.dtype.kind == "f":
        most = max(np.max(np.abs(before)), 1e-9)
        return Check(
            name,
            [],
            [f"numbers change by {np.max(np.abs(after - before)) / most:.1%} of the largest, at most"],
        )
    changed = [row for row in range(len(before)) if before[row] != after[row]]
    notes = [f"{len(before) - len(changed)} of {len(before)} examples are answered as before"]
    notes += [f"{_short(str(before[row]))} became {_short(str(after[row]))}" for row in changed[:5]]
    if "scores_before" in report and "scores_after" in report:
        changes = np.abs(np.subtract(report["scores_after"], report["scores_before"]))
        notes.append(f"scores change by {np.max(changes):.3f} at most, {np.mean(changes):.3f} in the mean")
    return Check(name, [], notes)


def _shortlist(shortlist):
    return Check(f"shortlist: lists for {len(shortlist['of_source']):,} source tokens", [])


def _batching(folder):
    try:
        parameters = read_batching_parameters(folder)
    except ValueError as error:
        return Check("batching parameters", [str(error)])
    return Check("batching parameters" if parameters else "batching parameters: none of this model's own", [])


def _warmup(folder, signatures, buckets):
    """A `Check` of the warm-up file, and those of its requests that can be run."""
    try:
        requests = read_warmup_requests(folder)
    except ValueError as error:
        return Check("warm-up", [str(error)]), []
    if requests is None:
        return Check("warm-up: none, so the first request to each signature is slow", []), []
    problems, good = [], []
    for index, (name, inputs) in enumerate(requests):
        found = list(_request_problems(signatures, name, inputs))
        problems += [f"Record {index}: {problem}" for problem in found]
        good += [] if found else [(name, inputs)]
    if not requests:
        problems.append("The file holds no request.")
    if len(requests) > MOST_WARMUP_REQUESTS:
        problems.append(
            f"The server takes {MOST_WARMUP_REQUESTS} requests at most. There are {len(requests)}."
        )
    shapes = len(buckets["batch_sizes"]) * len(buckets["lengths"]) if buckets else 0
    if len(requests) < shapes:
        problems.append(f"XLA compiles {shapes} shapes, and only {len(requests)} requests warm them up.")
    return Check("warm-up", problems), good


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


_Run = collections.namedtuple("_Run", ["check", "what", "request", "size"])
_Run.__doc__ = (
    """A request: the check it belongs to, its name there, the request itself, and its number of rows."""
)


def _runs_of_signatures(signatures, texts):
    """Batches of no, one and all texts."""
    for name, signature in signatures.items():
        for batch in ([], texts[:1], texts[1:2], texts):
            request = {"signature": name, "inputs": _inputs(signature, batch)}
            yield _Run(f"run of {name}", f"{len(batch)} texts", request, len(batch))


def _runs_of_warmup(requests):
    for index, (name, inputs) in enumerate(requests):
        request = {"signature": name, "inputs": {key: to_json(array) for key, array in inputs.items()}}
        size = max((len(array) for array in inputs.values() if array.ndim), default=0)
        yield _Run("run of the warm-up", f"request {index}, {size} texts", request, size)


def _run_checks(folder, runs, xla):
    """A `Check` for each kind of run, all in one process."""
    requests, timeout = [run.request for run in runs], _time_limit(folder, len(runs), xla)
    try:
        answers = run_saved_model(folder, requests, timeout=timeout, xla=xla)
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        # TensorFlow's output is long; the error is at its end.
        return [Check("loading", [" ".join(str(error).split())[-600:]])]
    checks, notes = {run.check: [] for run in runs}, {}
    for run, answer in zip(runs, answers):
        if "error" in answer:
            checks[run.check].append(f"{run.what}: {' '.join(answer['error'].split())[:300]}")
            continue
        lengths = {key: len(value) for key, value in answer["outputs"].items()}
        if set(lengths.values()) - {run.size}:
            checks[run.check].append(f"{run.what} are answered with {lengths}.")
        elif run.size and run.request["signature"] == "serving_default":
            notes[run.check] = _sample(run.request["inputs"], answer["outputs"])
    return [Check(name, problems, notes.get(name, ())) for name, problems in checks.items()]


def _time_limit(folder, num_runs, xla):
    """Seconds for loading a version and for all runs: large models are slow, and XLA compiles each shape."""
    megabytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 2**20
    return 60 + megabytes + num_runs * (60 if xla else 10)


def _sample(inputs, outputs):
    """A line with the first text that is not empty, and its answer; none if there are several inputs or outputs."""
    if len(inputs) != 1 or len(outputs) != 1:
        return []
    [texts], [answers] = inputs.values(), outputs.values()
    number = next((number for number, text in enumerate(texts) if text), 0)
    return [" -> ".join(_short(value[number]) for value in (texts, answers))]


def _short(value):
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _inputs(signature, texts):
    return {
        key: texts if info.dtype == _STRING else [_neutral(info)] * len(texts)
        for key, info in signature.inputs.items()
    }


def _neutral(info):
    """A value that is valid for any option: 1, or -1 for each element of a list of tokens."""
    value = 1.0 if info.dtype == _FLOAT else 1
    sizes = [dim.size for dim in info.tensor_shape.dim][1:]
    return value if not sizes else [-1] * max(sizes[0], 1)


# TensorFlow's DataType numbers (types.proto).
_FLOAT, _STRING = 1, 7


def _answer_problems(folder, signatures, texts, expected, xla):
    texts = _without_base64(texts)
    inputs = _inputs(signatures["serving_default"], [_in_json(text) for text in texts])
    (answer,) = run_saved_model(folder, [{"inputs": inputs}], timeout=300, xla=xla)
    for text, one, other in zip(texts, answer["outputs"]["outputs"], expected(texts)):
        if not _are_same(one, other):
            yield f"{_short(text)} is answered with {_short(one)}, and as {_short(other)} in Python."


def _attention_problems(folder, texts, expected, is_quantized):
    inputs, answers, is_rounded = expected(texts)
    is_rounded = is_rounded or is_quantized
    if not answers:
        return
    request = {
        "signature": "attention",
        "inputs": {key: [*map(_in_json, values)] for key, values in inputs.items()},
    }
    (given,) = run_saved_model(folder, [request], timeout=300)
    for row, answer in enumerate(answers):
        what = ", ".join(f"{key}={_short(values[row])}" for key, values in inputs.items())
        for name, wanted in answer.items():
            if name not in given["outputs"]:
                yield f"`attention` has no output `{name}`."
                continue
            found = np.asarray(given["outputs"][name][row])
            if (problem := _difference(found, np.asarray(wanted), is_rounded)) is not None:
                yield f"`{name}` of `attention` for {what} {problem}."


def _difference(found, wanted, is_rounded):
    """In which an output of a batch differs from one without padding, or None."""
    if found.ndim != wanted.ndim or any(has < needs for has, needs in zip(found.shape, wanted.shape)):
        return f"has shape {found.shape}, and {wanted.shape} in Python"
    inside = tuple(map(slice, wanted.shape))
    if wanted.dtype.kind in "fu":
        differences = np.abs(found[inside].astype("float32") - wanted)
        most = np.max(differences, initial=0.0)
        # Pixels are unsigned integers: between two of them, either is right.
        limit = _TOLERANCE if wanted.dtype.kind == "f" else 1
        if is_rounded and wanted.dtype.kind == "f":
            most, limit = differences.sum(axis=-1).mean() / 2, _MOVED_IF_ROUNDED
        # Written so that NaN, which compares as false, is a difference too.
        if not most <= limit:
            return f"differs by {most:.2g} from Python's"
    elif not np.array_equal(found[inside], wanted):
        return f"is {_short(found[inside].tolist())}, and {_short(wanted.tolist())} in Python"
    outside = np.ones(found.shape, bool)
    outside[inside] = False
    return "holds something past the end of the text" if np.any(found[outside].astype(bool)) else None


def _without_base64(texts):
    return [text for text in texts if isinstance(text, str | bytes)]


def _in_json(text):
    return {"b64": base64.b64encode(text).decode("ascii")} if isinstance(text, bytes) else text


def _are_same(one, other):
    """Whether two answers are equal; numbers to 1e-5 of the largest."""
    one, other = np.asarray(one), np.asarray(other)
    if one.dtype.kind != "f" or other.dtype.kind != "f":
        return np.array_equal(one, other)
    most = max(np.max(np.abs(other), initial=0.0), 1e-9)
    return one.shape == other.shape and bool(np.all(np.abs(one - other) <= 1e-5 * most))
