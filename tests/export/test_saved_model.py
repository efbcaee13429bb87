"""The exported translator answers as the Python one does, through TensorFlow's C library with XLA off."""

import base64
import json
import os
import pathlib
import signal
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from helpers_marks import CUTS_ARE_EXPECTED
from helpers_translators import (
    INVALID_UTF8,
    ODD_TEXTS,
    SENTENCES,
    byte_translator,
    in_new_process,
    serving,
    subword_translator,
)
from tensorflow.core.protobuf import saved_model_pb2

from keras_attn import Translator, files
from keras_attn.export import (
    export_saved_model,
    read_batching_parameters,
    read_warmup_requests,
    run_saved_model,
    string_vector,
)
from keras_attn.export.fingerprint import fingerprint_problems
from keras_attn.models import Seq2SeqTransformer
from keras_attn.text import ByteTokenizer

REPOSITORY = pathlib.Path(__file__).parents[2]


@pytest.fixture(
    scope="module", params=[byte_translator, pytest.param(subword_translator, marks=pytest.mark.slow)]
)
def exported(request, tmp_path_factory):
    """Of two signatures: the graphs of all take three times as long."""
    translator = request.param()
    folder = tmp_path_factory.mktemp("models") / "it"
    return translator, translator.export(folder, SENTENCES[:2], signatures=["translate_n_best"])


@pytest.fixture(scope="module")
def server(exported):
    with serving(exported[1]) as server:
        yield server


def request_of(*texts, signature="serving_default"):
    return {"signature": signature, "inputs": {"inputs": list(texts)}}


def test_the_served_default_answers_as_python_does(exported, server):
    translator, _ = exported
    assert server(request_of(*SENTENCES))[0] == {"outputs": translator(SENTENCES)}


def test_served_n_best_lists_and_scores_are_pythons(exported, server):
    translator, _ = exported
    outputs = server(request_of(*SENTENCES, signature="translate_n_best"))[0]
    texts, scores = translator(SENTENCES, num_return_sequences=translator.num_beams, return_scores=True)
    assert outputs["outputs"] == texts
    np.testing.assert_allclose(outputs["scores"], scores, atol=1e-4)


@CUTS_ARE_EXPECTED
def test_odd_texts_are_answered_and_neighbours_unchanged(exported, server):
    translator, _ = exported
    texts = [*ODD_TEXTS, INVALID_UTF8]
    as_json = [*ODD_TEXTS, {"b64": base64.b64encode(INVALID_UTF8).decode()}]
    answers = server(request_of(SENTENCES[0], *as_json))[0]["outputs"]
    assert answers == translator([SENTENCES[0], *texts])
    assert answers[1] == ""


def test_an_empty_batch_is_answered_with_an_empty_batch(server):
    assert server(request_of())[0] == {"outputs": []}
    assert server(request_of(signature="translate_n_best"))[0] == {"outputs": [], "scores": []}


def test_an_empty_text_alone_is_answered(exported, server):
    translator, _ = exported
    answer = server(request_of("", signature="translate_n_best"))[0]
    absent = translator.num_beams - 1
    assert answer["outputs"] == [[""] * (1 + absent)]
    assert answer["scores"][0] == pytest.approx([0.0] + [-1e30] * absent)


def test_one_loaded_graph_answers_batches_of_every_size(exported, server):
    translator, _ = exported
    requests = [request_of(*SENTENCES[:size]) for size in (1, 3, 0, 5, 2)]
    answers = [answer["outputs"] for answer in server(*requests)]
    expected = translator(SENTENCES)
    assert answers == [expected[:size] for size in (1, 3, 0, 5, 2)]


TENSORFLOW_ALONE = """
import json, sys
import tensorflow as tf, tensorflow_text
assert "keras_attn" not in sys.modules
signature = tf.saved_model.load(sys.argv[1]).signatures["serving_default"]
outputs = signature(inputs=tf.constant(json.loads(sys.argv[2])))["outputs"]
print(json.dumps([text.decode() for text in outputs.numpy()]))
"""


@pytest.mark.slow
def test_python_tensorflow_reloads_it_in_a_new_process(exported):
    translator, folder = exported
    assert in_new_process(TENSORFLOW_ALONE, folder, json.dumps(SENTENCES)) == translator(SENTENCES)


@pytest.mark.extended
def test_signatures_are_batch_major_and_named(exported):
    _, folder = exported
    loaded = tf.saved_model.load(str(folder))
    assert set(loaded.signatures) == {"serving_default", "translate_n_best"}
    default = loaded.signatures["serving_default"]
    assert list(default.structured_input_signature[1]) == ["inputs"]
    # One output, so that REST answers a plain list.
    assert list(default.structured_outputs) == ["outputs"]
    assert default.structured_outputs["outputs"].shape.as_list() == [None]


def test_only_ops_that_a_server_links_are_used(exported):
    _, folder = exported
    saved_model = saved_model_pb2.SavedModel.FromString((folder / "saved_model.pb").read_bytes())
    graph = saved_model.meta_graphs[0].graph_def
    nodes = [node.op for node in graph.node] + [
        node.op for function in graph.library.function for node in function.node_def
    ]
    forbidden = [op for op in nodes if op.startswith(("Xla", "PyFunc", "EagerPyFunc", "Addons"))]
    assert not forbidden


def test_every_variable_is_stored_once(exported):
    translator, folder = exported
    stored = sum(
        int(np.prod(shape))
        for name, shape in tf.train.list_variables(str(folder / "variables" / "variables"))
        if shape
    )
    assert stored < 1.1 * translator.model.count_params()


@pytest.mark.extended
def test_versions_count_up_and_a_failed_export_leaves_no_trace(tmp_path):
    def double(inputs):
        return {"outputs": tf.strings.join([inputs, inputs])}

    def fails(inputs):
        raise RuntimeError("cannot be traced")

    folder = tmp_path / "models" / "double"
    signatures = {"serving_default": (double, [string_vector("inputs")])}
    assert [export_saved_model(folder, signatures).name for _ in range(2)] == ["1", "2"]
    (folder / "7").mkdir()
    assert export_saved_model(folder, signatures) == folder / "8"
    with pytest.raises(RuntimeError, match="cannot be traced"):
        export_saved_model(folder, {"serving_default": (fails, [string_vector("inputs")])})
    assert sorted(path.name for path in folder.iterdir()) == ["1", "2", "7", "8"]
    with pytest.raises(RuntimeError, match="cannot be traced"):
        export_saved_model(tmp_path / "new", {"serving_default": (fails, [string_vector("inputs")])})
    assert not (tmp_path / "new").exists()
    (answer,) = run_saved_model(folder / "8", [request_of("ab", "")])
    assert answer["outputs"] == {"outputs": ["abab", ""]}


@pytest.mark.extended
def test_an_input_without_a_name_is_refused(tmp_path):
    with pytest.raises(ValueError, match="Every input of signature 'serving_default' needs a name"):
        export_saved_model(tmp_path, {"serving_default": (tf.identity, [tf.TensorSpec([None])])})


@pytest.mark.extended
def test_a_number_taken_meanwhile_is_not_overwritten(tmp_path, monkeypatch):
    real_rename, taken = os.rename, []

    def rename(source, target):
        if not taken:
            taken.append(target)
            pathlib.Path(target).mkdir()
            (pathlib.Path(target) / "theirs").touch()
        real_rename(source, target)

    monkeypatch.setattr("os.rename", rename)
    identity = {"serving_default": (lambda inputs: {"outputs": inputs}, [string_vector("inputs")])}
    assert export_saved_model(tmp_path, identity).name == "2"
    assert (tmp_path / "1" / "theirs").exists()


@pytest.mark.extended
def test_what_a_killed_export_left_is_removed_and_what_a_running_one_writes_is_not(tmp_path):
    code = """
import os, runpy, signal, sys, types
script, folder, end = sys.argv[1:]
package = sys.modules["keras_attn"] = types.ModuleType("keras_attn")  # without Keras, which takes seconds
package.__path__ = [os.path.dirname(script)]
with runpy.run_path(script)["folder_aside"](folder + "/version") as built:
    (built / "saved_model.pb").touch()
    if end == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    print("ready", flush=True)
    sys.stdin.read()
"""
    command = [sys.executable, "-c", code, files.__file__, str(tmp_path)]
    assert subprocess.run([*command, "die"]).returncode == -signal.SIGKILL
    with subprocess.Popen([*command, "wait"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        running.stdout.readline()
        assert len(list(tmp_path.iterdir())) == 2
        double, spec = (
            lambda inputs: {"outputs": 2.0 * inputs},
            tf.TensorSpec([None], "float32", name="inputs"),
        )
        export_saved_model(tmp_path, {"serving_default": (double, [spec])})
        names = sorted(path.name for path in tmp_path.iterdir())
        assert len(names) == 2
        assert str(running.pid) in names[0]
        assert names[1] == "1"
        running.communicate()
    assert [path.name for path in tmp_path.iterdir()] == ["1"]


@pytest.mark.slow
def test_the_tracked_dates_model_knows_its_dates():
    folder = REPOSITORY / "saved_models" / "dates" / "1"
    (answer,) = run_saved_model(folder, [request_of("4th of July 2016", "le 1er mars 1999", "31.12.2038")])
    assert answer["outputs"]["outputs"] == ["2016-07-04", "1999-03-01", "2038-12-31"]
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) <= 4_000_000


def signatures_of(folder):
    """{name: {name of an input: (dtype, shape)}} and {name: names of outputs} of an export."""
    saved_model = saved_model_pb2.SavedModel()
    saved_model.ParseFromString((folder / "saved_model.pb").read_bytes())
    found = {
        name: signature
        for name, signature in saved_model.meta_graphs[0].signature_def.items()
        if not name.startswith("__saved_model")
    }
    inputs = {
        name: {
            key: (tf.as_dtype(info.dtype), tf.TensorShape(info.tensor_shape).as_list())
            for key, info in signature.inputs.items()
        }
        for name, signature in found.items()
    }
    return inputs, {name: set(signature.outputs) for name, signature in found.items()}


@pytest.mark.extended
def test_the_tracked_dates_model_has_the_signatures_and_files_of_today():
    folder = REPOSITORY / "saved_models" / "dates" / "1"
    inputs, outputs = signatures_of(folder)
    assert outputs == {name: set(signature.outputs) for name, signature in Translator.signatures.items()}
    for name, signature in Translator.signatures.items():
        expected = {key: Translator.signature_inputs[key] for key in signature.inputs}
        assert inputs[name] == {
            key: (given.dtype, [None] if given.size is None else [None, given.size])
            for key, given in expected.items()
        }
    assert fingerprint_problems(folder) == []
    assert {name for name, _ in read_warmup_requests(folder)} == set(Translator.signatures)
    assert read_batching_parameters(folder)["max_batch_size"] == 64
    assert "4th of July 2016" in (folder / "README.md").read_text(encoding="utf-8")


@pytest.mark.extended
def test_signatures_are_chosen_and_one_loop_serves_every_length(tmp_path):
    """Without one loop, each doubling of the cache up to the longest answer has a loop of its own."""
    translator = tiny_translator(max_sequence_length=521)
    with pytest.raises(
        ValueError, match=r"`signatures` must be names among .*Received: signatures=\['sing'\]"
    ):
        translator.export(tmp_path / "it", signatures=["sing"])
    with pytest.raises(ValueError, match="give `xla` or `signatures`"):
        translator.export(tmp_path / "it", xla=True, signatures=["score"])
    folder = translator.export(tmp_path / "it", signatures=["translate_n_best"])
    assert set(signatures_of(folder)[1]) == {"serving_default", "translate_n_best"}
    saved_model = saved_model_pb2.SavedModel()
    saved_model.ParseFromString((folder / "saved_model.pb").read_bytes())
    functions = saved_model.meta_graphs[0].graph_def.library.function
    loops = [node.op for function in functions for node in function.node_def if "While" in node.op]
    assert len(loops) == 2  # phases, and steps in them, for both signatures together
    assert {name for name, _ in read_warmup_requests(folder)} == {"serving_default", "translate_n_best"}


def tiny_translator(max_sequence_length):
    """Its answers end at once: END is the likeliest token."""
    tokenizer = ByteTokenizer()
    model = Seq2SeqTransformer.from_sizes(
        tokenizer.vocabulary_size,
        1,
        1,
        hidden_dim=8,
        num_heads=2,
        intermediate_dim=11,
        max_sequence_length=max_sequence_length,
    )
    for weight in model.weights:
        value = np.full(weight.shape, float(weight.name in ("beta", "bias")), "float32")
        if weight.shape[0] == tokenizer.vocabulary_size:
            value[tokenizer.end_token_id] = 1
        weight.assign(value)
    return Translator(model, tokenizer, tokenizer, num_beams=2)
