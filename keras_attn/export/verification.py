"""Whether a stock TF Serving would load a version folder and answer with it: what can be known without the server."""

import collections
import importlib.resources
import pathlib

from keras_attn.export.saved_model_runner import run_saved_model

Check = collections.namedtuple("Check", ["name", "problems"])
Check.__doc__ = (
    """One thing that was looked at: its name, and a list of strings, empty where nothing is wrong."""
)

# Every signature is asked these, alone and together, and nothing at all.
TEXTS = ("", "4th of July 2016", "a b c " * 200, "emoji 😀, ümläut", {"b64": "Y2Fm6SD//g=="})


def verify_saved_model(folder, texts=TEXTS, expected=None):
    """Looks at a version folder as a server would, and runs every signature of it.

    The signatures run through TensorFlow's C library in a process without TensorFlow's Python, with XLA switched off,
    which is how the server has it unless a flag says otherwise.

    Args:
        folder: Path of a version folder, the one that holds `saved_model.pb`.
        texts: Strings that every string input is fed; bytes as `{"b64": str}`.
        expected: Function from a list of strings to what `serving_default` must answer, a `Translator` for example.

    Returns:
        A list of `Check`s: files, signatures, ops, a run of each signature, and the answers if `expected` is given. The
        later ones are left out where the earlier leave nothing to look at.

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
    checks = [
        files,
        Check("signatures", list(_signature_problems(signatures))),
        Check("ops", list(_op_problems(meta_graph.graph_def))),
    ]
    runs = _runs(folder, signatures, list(texts))
    if expected is not None and not any(check.problems for check in runs):
        runs.append(Check("answers", list(_answer_problems(folder, texts, expected))))
    return [*checks, *runs]


def _file_problems(folder):
    if not (folder / "saved_model.pb").is_file():
        yield f"{folder} holds no saved_model.pb: give the version folder, saved_models/NAME/1 for example."
    elif not list((folder / "variables").glob("variables.data-*")):
        yield f"{folder / 'variables'} holds no weights (variables.data-*)."
    if not folder.name.isdecimal():
        yield f"TF Serving loads folders whose names are integers. This one is {folder.name!r}."


def _meta_graph(folder):
    """The graph that serves, or what is wrong with it."""
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


def _op_problems(graph):
    """Ops that a server does not link or run, by the functions that they stand in."""
    served = served_ops()
    functions = [
        ("the graph", graph.node, {}),
        *((f.signature.name, f.node_def, f.attr) for f in graph.library.function),
    ]
    names = {function.signature.name for function in graph.library.function}
    for name, nodes, attributes in functions:
        missing = sorted({node.op for node in nodes} - served - names)
        if missing:
            yield f"Not linked into a stock server: {', '.join(missing)}, in {name}."
        if "_XlaMustCompile" in attributes and attributes["_XlaMustCompile"].b:
            yield f"{name} is compiled with XLA (jit_compile=True), which the server has switched off by default."


def served_ops():
    """The names of the ops that a stock server links; `served_ops.txt` says where the list comes from."""
    text = (
        importlib.resources.files("keras_attn.export").joinpath("served_ops.txt").read_text(encoding="utf-8")
    )
    return {line for line in text.splitlines() if not line.startswith("#")}


def _runs(folder, signatures, texts):
    """A `Check` for each signature: batches of no, one and all texts."""
    batches = [[], texts[:1], texts[1:2], texts]
    requests = [
        {"signature": name, "inputs": _inputs(signature, batch)}
        for name, signature in signatures.items()
        for batch in batches
    ]
    try:
        answers = iter(run_saved_model(folder, requests))
    except RuntimeError as error:
        # TensorFlow writes pages; what went wrong is at their end.
        return [Check("loading", [" ".join(str(error).split())[-600:]])]
    checks = []
    for name in signatures:
        problems = []
        for batch in batches:
            answer = next(answers)
            if "error" in answer:
                problems.append(f"{len(batch)} texts: {' '.join(answer['error'].split())[:300]}")
                continue
            lengths = {key: len(value) for key, value in answer["outputs"].items()}
            if set(lengths.values()) - {len(batch)}:
                problems.append(f"{len(batch)} texts are answered with {lengths}.")
        checks.append(Check(f"run of {name}", problems))
    return checks


def _inputs(signature, texts):
    return {
        key: texts if info.dtype == _STRING else [_neutral(info)] * len(texts)
        for key, info in signature.inputs.items()
    }


def _neutral(info):
    """A value that any option can have: 1, or -1 for each place of a list of tokens."""
    value = 1.0 if info.dtype == _FLOAT else 1
    sizes = [dim.size for dim in info.tensor_shape.dim][1:]
    return value if not sizes else [-1] * max(sizes[0], 1)


# TensorFlow's DataType numbers (types.proto).
_FLOAT, _STRING = 1, 7


def _answer_problems(folder, texts, expected):
    texts = [text for text in texts if isinstance(text, str)]
    (answer,) = run_saved_model(folder, [{"inputs": {"inputs": texts}}])
    for text, one, other in zip(texts, answer["outputs"]["outputs"], expected(texts)):
        if one != other:
            yield f"{text[:60]!r} is translated as {one!r}, and as {other!r} in Python."
