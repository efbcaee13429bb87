"""`keras-attn verify` passes what a server would serve, and names what is wrong with the rest."""

import ast
import pathlib
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

import keras_attn_cli
from keras_attn.export import (
    export_saved_model,
    string_vector,
    verify_saved_model,
    write_batching_parameters,
    write_warmup_requests,
    write_xla_buckets,
)
from keras_attn.export.fingerprint import FINGERPRINT_FILE, fingerprint_problems, write_fingerprint
from keras_attn.export.serving_files import WARMUP_FILE
from keras_attn.export.verification import TEXTS, served_ops

SAVED_MODELS = pathlib.Path(__file__).parents[2] / "saved_models"


def lengths(inputs):
    return {"outputs": tf.strings.length(inputs)}


def export(folder, function=lengths, specs=(), **options):
    return export_saved_model(
        folder, {"serving_default": (function, [string_vector("inputs"), *specs])}, **options
    )


def problems(version_folder, **options):
    return {
        check.name: check.problems
        for check in verify_saved_model(version_folder, **options)
        if check.problems
    }


def edited(version_folder, change):
    """The export with its saved_model.pb changed."""
    path = version_folder / "saved_model.pb"
    saved_model = saved_model_pb2.SavedModel()
    saved_model.ParseFromString(path.read_bytes())
    change(saved_model.meta_graphs[0])
    path.write_bytes(saved_model.SerializeToString())
    write_fingerprint(version_folder)
    return version_folder


@pytest.mark.extended
def test_what_a_translator_exports_passes(exported, tmp_path, capsys):
    translator, version_folder = exported
    translator.save(tmp_path / "translator")
    arguments = ["verify", str(version_folder), "--task", str(tmp_path / "translator")]
    assert keras_attn_cli.main(arguments) == 0
    printed = capsys.readouterr().out.splitlines()
    notes = [line.strip() for line in printed if line.startswith(" ")]
    samples = [line.split(" -> ") for line in notes if " -> " in line]
    assert samples
    for text, answer in samples:  # the model's own examples, not the texts that every model is given
        assert ast.literal_eval(text) not in TEXTS
        assert answer == repr(translator(ast.literal_eval(text)))
    lines = [line for line in printed if not line.startswith(" ")]
    assert all(line.startswith("ok ") for line in lines)
    assert {line.split(maxsplit=1)[1] for line in lines} == {
        "files",
        "fingerprint",
        "declaration: Translator",
        "signatures",
        "ops",
        "batching parameters",
        "warm-up",
        "run of the warm-up",
        "answers",
        *(f"run of {name}" for name in ("serving_default", "translate_n_best", "translate")),
        *(f"run of {name}" for name in ("sample", "score", "encode")),
    }


@pytest.mark.extended
def test_another_translator_is_found_out(tmp_path):
    as_it_is = export(tmp_path / "it", lambda inputs: {"outputs": tf.identity(inputs)})
    assert problems(as_it_is, expected=lambda texts: texts) == {}
    found = problems(as_it_is, expected=lambda texts: ["other"] * len(texts))
    assert list(found) == ["answers"]
    assert "'other' in Python" in found["answers"][0]


def python_function(inputs):
    outputs = tf.py_function(lambda x: x, [inputs], tf.string)
    return {"outputs": tf.ensure_shape(outputs, [None])}


def xla_op(inputs):
    cache = tf.zeros([3, tf.shape(inputs)[0]])
    cache = keras.ops.slice_update(cache, [1, 0], tf.ones([1, tf.shape(inputs)[0]]))
    return {"outputs": cache[1]}


def compiled(inputs):
    double = tf.function(lambda x: x * 2.0, jit_compile=True)
    return {"outputs": double(tf.cast(tf.strings.length(inputs), tf.float32))}


def frozen_length(inputs):
    token_ids = tf.strings.unicode_decode(inputs, "UTF-8").to_tensor()
    return {"outputs": tf.reduce_sum(tf.ensure_shape(token_ids, [None, 16]), axis=1)}


def batch_of_one(inputs):
    return {"outputs": tf.strings.length(tf.reshape(inputs, [1]))}


@pytest.mark.parametrize(
    ("function", "check", "message"),
    [
        pytest.param(
            python_function, "ops", "Not linked into a stock server: EagerPyFunc", marks=pytest.mark.extended
        ),
        (xla_op, "ops", "Not linked into a stock server: XlaDynamicUpdateSlice"),
        pytest.param(compiled, "ops", "is compiled with XLA", marks=pytest.mark.extended),
        pytest.param(frozen_length, "run of serving_default", "16", marks=pytest.mark.extended),
        pytest.param(
            batch_of_one,
            "signatures",
            "The first axis of output `outputs` of `serving_default` must be the batch",
            marks=pytest.mark.extended,
        ),
    ],
)
def test_a_graph_that_a_server_cannot_run(tmp_path, function, check, message):
    found = problems(export(tmp_path / "it", function))
    assert any(message in problem for problem in found[check])
    assert "run of serving_default" in found


@pytest.mark.extended
def test_the_command_names_the_check_that_fails(tmp_path, capsys):
    folder = export(tmp_path / "it", python_function)
    assert keras_attn_cli.main(["verify", str(folder)]) == 1
    printed = capsys.readouterr().out
    assert "Not linked into a stock server: EagerPyFunc" in printed
    assert "FAILED  run of serving_default" in printed


@pytest.mark.extended
def test_an_op_that_no_server_links(tmp_path):
    def change(meta_graph):
        for function in meta_graph.graph_def.library.function:
            for node in function.node_def:
                node.op = "Addons>GatherTree" if node.op == "StringLength" else node.op

    found = problems(edited(export(tmp_path / "it"), change))
    assert "Not linked into a stock server: Addons>GatherTree" in found["ops"][0]
    assert "Addons>GatherTree" in found["loading"][0]


@pytest.mark.extended
def test_a_missing_vocabulary(tmp_path):
    (tmp_path / "words.txt").write_text("one\ntwo\n")
    initializer = tf.lookup.TextFileInitializer(
        str(tmp_path / "words.txt"), tf.string, tf.lookup.TextFileIndex.WHOLE_LINE, tf.int64, -1
    )
    module = tf.Module()
    module.table = tf.lookup.StaticHashTable(initializer, -1)
    folder = export(
        tmp_path / "it", lambda inputs: {"outputs": module.table.lookup(inputs)}, resources=[module]
    )
    assert problems(folder) == {}
    (asset,) = (folder / "assets").iterdir()
    asset.unlink()
    (problem,) = problems(folder)["loading"]
    assert "words.txt" in problem


@pytest.mark.extended
@pytest.mark.parametrize("damage", ["flipped", "cut", "gone", "no index"])
def test_a_corrupt_variable_file(tmp_path, damage):
    folder = shutil.copytree(SAVED_MODELS / "dates" / "1", tmp_path / "1")
    (data,) = (folder / "variables").glob("variables.data-*")
    content = bytearray(data.read_bytes())
    if damage == "gone":
        data.unlink()
    elif damage == "no index":
        data.with_name("variables.index").unlink()
    elif damage == "cut":
        data.write_bytes(content[: len(content) // 2])
    else:
        content[len(content) // 3] ^= 0xFF
        data.write_bytes(content)
    found = problems(folder)
    assert list(found) == (["files"] if damage in ("gone", "no index") else ["fingerprint", "loading"])


@pytest.mark.extended
def test_variables_of_another_model_are_found_without_a_translator(tmp_path):
    """Both load and answer; only the fingerprint tells that they do not belong together."""

    def export_times(number):
        module = tf.Module()
        module.factor = tf.Variable(number)
        return export(
            tmp_path / f"times_{number}",
            lambda inputs: {"outputs": tf.cast(tf.strings.length(inputs), tf.float32) * module.factor},
            resources=[module],
        )

    one, other = export_times(2.0), export_times(3.0)
    assert problems(one) == {}
    shutil.rmtree(one / "variables")
    shutil.copytree(other / "variables", one / "variables")
    changed = "variables/variables.data-00000-of-00001 is not the file that was exported with the others."
    found = problems(one)
    assert changed in found["fingerprint"]
    assert list(found) == ["fingerprint"]
    (one / FINGERPRINT_FILE).unlink()
    checks = verify_saved_model(one)
    assert not any(check.problems for check in checks)
    assert any(check.name.startswith("fingerprint: none") for check in checks)
    (one / FINGERPRINT_FILE).write_text('{"variables/gone": "0"}')
    assert "variables/gone is missing." in fingerprint_problems(one)
    (one / FINGERPRINT_FILE).write_text("{")
    assert "cannot be read" in fingerprint_problems(one)[0]


def repeated(inputs, times, ids):
    return {"outputs": tf.strings.length(inputs) * times + tf.reduce_sum(ids, axis=1)}


@pytest.fixture
def warmed_up(tmp_path):
    """A version of which a request feeds texts, numbers and rows of five ids, and a good request to it."""
    specs = [tf.TensorSpec([None], tf.int32, name="times"), tf.TensorSpec([None, 5], tf.int32, name="ids")]
    folder = export(tmp_path / "it", repeated, specs)
    good = {
        "inputs": np.array(["a", "bc"]),
        "times": np.array([2, 3], "int32"),
        "ids": np.ones((2, 5), "int32"),
    }
    write_warmup_requests(folder, "it", [("serving_default", good)])
    write_batching_parameters(folder, max_batch_size=7)
    return folder, good


@pytest.mark.extended
def test_a_good_warmup_is_read_and_run(warmed_up):
    checks = {check.name: check.problems for check in verify_saved_model(warmed_up[0])}
    assert {"warm-up", "batching parameters", "run of the warm-up"} <= set(checks)
    assert not any(checks.values())


@pytest.mark.extended
def test_the_models_own_examples_are_compared(warmed_up):
    asked = []

    def expected(texts):
        asked.extend(texts)
        return [len(text) - 5 for text in texts]  # an option is 1, and each of five ids is -1

    *_, check = verify_saved_model(warmed_up[0], ["dd"], expected)
    assert asked == ["a", "bc", "dd"]  # its own first: one of them is shown
    assert check.problems == []
    assert "3 inputs, of which 2 are this model's own" in check.notes[0]


def test_a_corrupt_warmup_fails_with_its_reason(warmed_up, capsys):
    folder, _ = warmed_up
    path = folder / WARMUP_FILE
    content = bytearray(path.read_bytes())
    content[20] ^= 0xFF
    path.write_bytes(content)
    assert keras_attn_cli.main(["verify", str(folder)]) == 1
    printed = capsys.readouterr().out
    assert (
        "FAILED  warm-up\n        Record 0 of assets.extra/tf_serving_warmup_requests cannot be read"
        in printed
    )


@pytest.mark.extended
def test_warmup_requests_that_are_none_of_this_model(warmed_up):
    folder, good = warmed_up
    requests = [
        ("translate", good),
        ("serving_default", {"inputs": good["inputs"], "time": good["times"]}),
        ("serving_default", {**good, "times": np.zeros(2, "float32")}),
        ("serving_default", {**good, "ids": np.zeros((2, 3), "int32")}),
        ("serving_default", good),
    ]
    write_warmup_requests(folder, "it", requests)
    assert problems(folder) == {
        "warm-up": [
            "Record 0: There is no signature 'translate'.",
            "Record 1: It feeds ['inputs', 'time'] to `serving_default`, which takes ['ids', 'inputs', 'times'].",
            "Record 2: It feeds float32 [2] to `times` of `serving_default`, which is int32 [None].",
            "Record 3: It feeds int32 [2, 3] to `ids` of `serving_default`, which is int32 [None, 5].",
        ]
    }


@pytest.mark.extended
def test_a_warmup_request_that_fails(warmed_up):
    folder, good = warmed_up
    write_warmup_requests(folder, "it", [("serving_default", {**good, "times": np.ones(3, "int32")})])
    (problem,) = problems(folder)["run of the warm-up"]
    assert problem.startswith("request 0, ")
    assert "Incompatible shapes: [2] vs. [3]" in problem


@pytest.mark.extended
def test_a_twin_whose_shapes_are_not_all_warmed_up(warmed_up):
    folder, _ = warmed_up
    path = write_xla_buckets(folder, batch_sizes=[1, 2], lengths=[16])
    assert problems(folder) == {"warm-up": ["XLA compiles 2 shapes, and only 1 requests warm them up."]}
    path.write_text("[]")
    assert "must hold lists `batch_sizes` and `lengths`" in problems(folder)["files"][0]


@pytest.mark.extended
def test_an_empty_warmup_file(warmed_up):
    folder, _ = warmed_up
    (folder / WARMUP_FILE).write_bytes(b"")
    assert problems(folder) == {"warm-up": ["The file holds no request."]}


@pytest.mark.extended
def test_missing_serving_files_are_noted(warmed_up):
    folder, _ = warmed_up
    (folder / WARMUP_FILE).unlink()
    (folder / "batching_params.pbtxt").unlink()
    checks = {check.name: check.problems for check in verify_saved_model(folder)}
    assert checks["warm-up: none, so the first request to each signature is slow"] == []
    assert checks["batching parameters: none of this model's own"] == []
    assert not any(checks.values())


@pytest.mark.extended
def test_batching_parameters_that_the_server_cannot_read(warmed_up):
    folder, _ = warmed_up
    (folder / "batching_params.pbtxt").write_text("max_batch_size: 64\n")
    (problem,) = problems(folder)["batching parameters"]
    assert "batching_params.pbtxt cannot be read" in problem


@pytest.mark.extended
def test_several_default_outputs_and_no_default(tmp_path):
    two = export(tmp_path / "two", lambda inputs: {"outputs": inputs, "more": inputs})
    assert "REST answers a list of objects: ['more', 'outputs']" in problems(two)["signatures"][0]
    other = export_saved_model(tmp_path / "other", {"other": (lengths, [string_vector("inputs")])})
    assert "There is no signature `serving_default`. Found: ['other']." in problems(other)["signatures"]


def test_folders_that_are_none(tmp_path, capsys):
    assert keras_attn_cli.main(["verify", str(tmp_path / "nothing")]) == 2
    assert "nothing does not exist. Check the path." in capsys.readouterr().err
    assert keras_attn_cli.main(["verify", str(tmp_path)]) == 1
    assert "holds no saved_model.pb" in capsys.readouterr().out
    folder = export(tmp_path / "it")
    (folder / "saved_model.pb").write_bytes(b"\xff" * 99)
    assert "saved_model.pb is damaged" in problems(folder)["files"][0]


def test_the_list_of_ops_knows_the_text_ops_and_no_python():
    ops = served_ops()
    assert {"SentencepieceTokenizeOp", "MatMul", "While", "StatefulPartitionedCall"} <= ops
    assert not {"PyFunc", "EagerPyFunc", "XlaDynamicUpdateSlice"} & ops
