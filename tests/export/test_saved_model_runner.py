import base64
import io
import json
import pathlib
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from keras_attn.export import saved_model_runner
from keras_attn.export.saved_model_process import run_saved_model
from keras_attn.export.saved_model_runner import TensorInfo, read_signatures, to_array

tf = pytest.importorskip("tensorflow", reason="pip install tensorflow")
tensorflow_text = pytest.importorskip("tensorflow_text", reason="pip install tensorflow-text")

SENTENCES = ["the animal did not cross the street", "it was too tired", "the street was too wide"]


@pytest.fixture(scope="module")
def sentencepiece_model():
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES), model_writer=model, vocab_size=31, model_type="bpe", minloglevel=2
    )
    return model.getvalue()


class Served(tf.Module):
    def __init__(self, sentencepiece_model):
        super().__init__()
        self.tokenizer = tensorflow_text.SentencepieceTokenizer(sentencepiece_model)
        self.scale = tf.Variable(3.0)

    def signatures(self):
        def spec(name, dtype, shape):
            return tf.TensorSpec(shape, dtype, name=name)

        def signature(function, *specs, **options):
            return tf.function(function, autograph=False, **options).get_concrete_function(*specs)

        return {
            "serving_default": signature(self.join, spec("inputs", tf.string, [None])),
            "echo": signature(
                lambda inputs: {"outputs": tf.identity(inputs)}, spec("inputs", tf.string, None)
            ),
            "doubled": signature(self.double, spec("inputs", tf.float32, [None, 3])),
            "doubled_with_xla": signature(
                self.double, spec("inputs", tf.float32, [None, 3]), jit_compile=True
            ),
            "numbers": signature(
                self.numbers,
                *(spec("small", tf.int32, [None, None, 2]), spec("large", tf.int64, [None])),
                *(spec("flag", tf.bool, [None]), spec("number", tf.float32, [])),
            ),
            "tokens": signature(self.tokens, spec("inputs", tf.string, [None])),
            "failing": signature(self.fail, spec("inputs", tf.string, [None])),
            "complex": signature(
                lambda inputs: {"outputs": tf.cast(inputs, tf.complex64)}, spec("inputs", tf.float32, [None])
            ),
        }

    def join(self, inputs):
        return {"outputs": tf.strings.join(["<", inputs, ">"])}

    def double(self, inputs):
        return {"outputs": 2.0 * inputs + self.scale}

    def numbers(self, small, large, flag, number):
        return {
            "small_plus_one": small + 1,
            "large_squared": large * large,
            "not_flag": tf.logical_not(flag),
            "number_halved": number / 2.0,
            "pair": tf.stack([tf.strings.as_string(large), tf.strings.as_string(flag)], axis=1),
        }

    def tokens(self, inputs):
        return {"outputs": self.tokenizer.tokenize(inputs).to_tensor(default_value=-1)}

    def fail(self, inputs):
        with tf.control_dependencies([tf.debugging.Assert(tf.size(inputs) < 0, ["always too many"])]):
            return {"outputs": tf.identity(inputs)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory, sentencepiece_model):
    folder = tmp_path_factory.mktemp("served") / "1"
    module = Served(sentencepiece_model)
    tf.saved_model.save(module, str(folder), signatures=module.signatures())
    return folder


def request(signature, **inputs):
    return {"signature": signature, "inputs": inputs}


def b64(value):
    return {"b64": base64.b64encode(value).decode()}


@pytest.fixture(scope="module")
def answers(folder):
    """The answers of one child process to many requests, good and bad mixed, by name."""
    requests = {
        "default": {"inputs": {"inputs": ["a", "", "Größe 漢 🦉", "nul\0inside", "x" * 23, "y" * 22]}},
        "invalid_utf8": request("echo", inputs=["a", b64(b"\xff\0\xfe")]),
        "valid_b64": request("echo", inputs=[b64("für".encode())]),
        "megabyte": request("echo", inputs=["é" * 500_000]),
        "empty": request("serving_default", inputs=[]),
        "empty_matrix": request("doubled", inputs=[]),
        "scalar": request("echo", inputs="one"),
        "cube": request("echo", inputs=[[["a", "b", "c"], ["d", "e", "f"]]]),
        "doubled": request("doubled", inputs=[[1, 2.5, -3], [0, 0, 0]]),
        "xla": request("doubled_with_xla", inputs=[[1, 2.5, -3], [0, 0, 0]]),
        "not_finite": request("doubled", inputs=[[float("nan"), float("inf"), -float("inf")]]),
        "numbers": request(
            "numbers",
            small=[[[1, 2], [3, 4], [5, 6]]],
            large=[3_000_000_000, -7],
            flag=[True, False],
            number=5,
        ),
        "tokens": request("tokens", inputs=[*SENTENCES, ""]),
        "failing": request("failing", inputs=["a"]),
        "complex": request("complex", inputs=[1.0]),
        "unknown_signature": request("translate", inputs=["a"]),
        "wrong_names": request("numbers", small=[], large=[], flags=[], number=1),
        "wrong_dtype": request("doubled", inputs=[["1", "2", "3"]]),
        "wrong_string": request("serving_default", inputs=[3]),
        "wrong_rank": request("serving_default", inputs="a"),
        "wrong_width": request("doubled", inputs=[[1, 2]]),
        "ragged": request("doubled", inputs=[[1, 2, 3], [4]]),
        "ragged_strings": request("echo", inputs=[["a"], ["b", "c"]]),
        "bad_base64": request("echo", inputs=[{"b64": "*"}]),
        "lone_surrogate": request("echo", inputs=["\ud800"]),
        "fraction": request("numbers", small=[], large=[0.5], flag=[], number=1),
        "overflow": request("numbers", small=[[[2**31, 0]]], large=[], flag=[], number=1),
        "no_inputs": {"signature": "echo"},
        "not_a_dict": ["echo"],
        "not_a_name": {"signature": ["echo"], "inputs": {"inputs": ["a"]}},
        "last": request("serving_default", inputs=["still here"]),
    }
    return dict(zip(requests, run_saved_model(folder, list(requests.values())), strict=True))


def test_strings_come_back_whole(answers):
    expected = ["<a>", "<>", "<Größe 漢 🦉>", "<nul\0inside>", f"<{'x' * 23}>", f"<{'y' * 22}>"]
    assert answers["default"] == {"outputs": {"outputs": expected}}
    assert answers["megabyte"]["outputs"]["outputs"] == ["é" * 500_000]


def test_bytes_that_are_not_text_travel_as_base64_and_others_as_text(answers):
    assert answers["invalid_utf8"]["outputs"]["outputs"] == ["a", b64(b"\xff\0\xfe")]
    assert answers["valid_b64"]["outputs"]["outputs"] == ["für"]


def test_strings_of_any_rank(answers):
    assert answers["scalar"]["outputs"]["outputs"] == "one"
    assert answers["cube"]["outputs"]["outputs"] == [[["a", "b", "c"], ["d", "e", "f"]]]


def test_empty_batch_has_the_dtype_and_rank_of_the_signature(answers):
    assert answers["empty"] == {"outputs": {"outputs": []}}
    assert answers["empty_matrix"] == {"outputs": {"outputs": []}}


def test_several_inputs_and_outputs_of_every_dtype(answers):
    assert answers["numbers"]["outputs"] == {
        "small_plus_one": [[[2, 3], [4, 5], [6, 7]]],
        "large_squared": [9_000_000_000_000_000_000, 49],
        "not_flag": [False, True],
        "number_halved": 2.5,
        "pair": [["3000000000", "true"], ["-7", "false"]],
    }


def test_variables_are_restored(answers):
    assert answers["doubled"]["outputs"]["outputs"] == [[5.0, 8.0, -3.0], [3.0, 3.0, 3.0]]


def test_values_that_are_not_finite(answers):
    np.testing.assert_equal(answers["not_finite"]["outputs"]["outputs"], [[np.nan, np.inf, -np.inf]])


@pytest.mark.extended
def test_xla_may_be_left_enabled(folder):
    (answer,) = run_saved_model(
        folder, [request("doubled_with_xla", inputs=[[1, 2.5, -3], [0, 0, 0]])], xla=True
    )
    assert answer["outputs"]["outputs"] == [[5.0, 8.0, -3.0], [3.0, 3.0, 3.0]]


@pytest.mark.extended
def test_sixty_four_threads_answer_as_one_does(folder):
    texts = [f"{SENTENCES[row % 3][: row % 23]} {'é' * (row % 5)}" for row in range(200)]
    requests = [
        request("tokens" if row % 3 else "echo", inputs=texts[row : row + row % 7]) for row in range(200)
    ]
    requests[50] = request("failing", inputs=["a"])
    serial = run_saved_model(folder, requests)
    assert run_saved_model(folder, requests, threads=64) == serial
    assert "always too many" in serial[50]["error"]
    assert sum("error" in answer for answer in serial) == 1


@pytest.mark.extended
def test_requests_are_answered_at_the_same_time(tmp_path):
    """The first request waits for what only the second one brings."""

    def queue():
        return tf.raw_ops.FIFOQueueV2(component_types=[tf.string], shared_name="meeting")

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="inputs")])
    def wait(inputs):
        (found,) = tf.raw_ops.QueueDequeueV2(handle=queue(), component_types=[tf.string])
        return {"outputs": tf.strings.join([inputs, tf.ensure_shape(found, [None])])}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="inputs")])
    def bring(inputs):
        with tf.control_dependencies([tf.raw_ops.QueueEnqueueV2(handle=queue(), components=[inputs])]):
            return {"outputs": tf.identity(inputs)}

    tf.saved_model.save(tf.Module(), str(tmp_path / "1"), signatures={"wait": wait, "bring": bring})
    requests = [request("wait", inputs=["came: "]), request("bring", inputs=["it"])]
    answers = run_saved_model(tmp_path / "1", requests, timeout=60, threads=2)
    assert [answer["outputs"]["outputs"] for answer in answers] == [["came: it"], ["it"]]


def test_xla_is_disabled_as_in_the_server(answers):
    assert "XLA" in answers["xla"]["error"]
    assert "disabled" in answers["xla"]["error"]


def test_ops_of_tensorflow_text_are_linked(answers, sentencepiece_model):
    import sentencepiece

    tokens = answers["tokens"]["outputs"]["outputs"]
    peer = sentencepiece.SentencePieceProcessor(model_proto=sentencepiece_model)
    assert [[token for token in row if token >= 0] for row in tokens] == peer.encode([*SENTENCES, ""])


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("failing", ["assertion failed", "always too many"]),
        ("complex", ["An output must have a dtype among", "float32", "string", "Received: DataType 8."]),
        (
            "unknown_signature",
            [
                "`signature` must be one of",
                "'doubled'",
                "'serving_default'",
                "Received: signature='translate'.",
            ],
        ),
        (
            "wrong_names",
            [
                "`inputs` of 'numbers' must be exactly ['flag', 'large', 'number', 'small']",
                "Received: ['flags', 'large', 'number', 'small'].",
            ],
        ),
        ("wrong_dtype", ["`inputs` must hold float32 values. Received: str values."]),
        ("wrong_string", ['`inputs` must be nested lists of str or {"b64": str}', "Received: 3."]),
        ("wrong_rank", ["`inputs` must have shape (None,). Received: shape ()."]),
        ("wrong_width", ["`inputs` must have shape (None, 3). Received: shape (1, 2)."]),
        ("ragged", ["`inputs` must be nested lists of equal lengths. Received: "]),
        ("ragged_strings", ["of equal lengths. Received: ['a']."]),
        ("bad_base64", ["base64"]),
        ("lone_surrogate", ["surrogates not allowed"]),
        ("fraction", ["`large` must hold int64 values. Received: float values."]),
        ("overflow", ["`small` must hold values that fit int32. Received: from 0 to 2147483648."]),
        ("no_inputs", ['A request must be {"signature": str, "inputs": {name: values}}.']),
        ("not_a_dict", ["A request must be", "Received: ['echo']"]),
        ("not_a_name", ["A request must be", "Received: {'signature': ['echo'], "]),
    ],
)
def test_an_error_is_the_answer(answers, name, parts):
    assert set(answers[name]) == {"error"}
    assert [part for part in parts if part not in answers[name]["error"]] == []


def test_the_request_after_an_error_is_answered(answers):
    assert answers["last"] == {"outputs": {"outputs": ["<still here>"]}}


def test_signatures_are_those_of_the_official_reader(folder):
    from tensorflow.core.protobuf import saved_model_pb2

    saved_model = saved_model_pb2.SavedModel.FromString((folder / "saved_model.pb").read_bytes())
    [meta_graph] = saved_model.meta_graphs
    signatures = read_signatures(meta_graph.SerializeToString())
    official = {name: proto for name, proto in meta_graph.signature_def.items() if not name.startswith("__")}

    def described(tensors):
        return {name: TensorInfo(proto.name, proto.dtype, shape(proto)) for name, proto in tensors.items()}

    def shape(proto):
        sizes = tf.TensorShape(proto.tensor_shape)
        return None if sizes.rank is None else tuple(sizes.as_list())

    assert len(official) == 8
    assert {name: signature.inputs for name, signature in signatures.items()} == {
        name: described(proto.inputs) for name, proto in official.items()
    }
    assert {name: signature.outputs for name, signature in signatures.items()} == {
        name: described(proto.outputs) for name, proto in official.items()
    }


def test_an_empty_list_takes_the_dimensions_that_are_known():
    array = to_array("inputs", [], TensorInfo("x:0", 3, (None, 5, None)))
    assert array.shape == (0, 5, 0)
    assert array.dtype == np.int32


def test_an_input_of_another_dtype_is_refused_by_name():
    with pytest.raises(
        ValueError, match=r"`inputs` must have a dtype among .*'bool'.*Received: DataType 19\."
    ):
        to_array("inputs", [1.0], TensorInfo("x:0", 19, (None,)))


def test_a_folder_without_a_model_raises_with_what_tensorflow_says(tmp_path):
    with pytest.raises(
        RuntimeError, match=r"(?s)ended with code 1.*Cannot load a SavedModel from .*Could not find"
    ):
        run_saved_model(tmp_path, [request("serving_default", inputs=["a"])])


@pytest.mark.extended
def test_a_child_that_imports_keras_is_found_out(folder, tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, types\nsys.modules['keras'] = types.ModuleType('keras')\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(RuntimeError, match=r"this process imported \['keras'\]"):
        run_saved_model(folder, [request("serving_default", inputs=["a"])])


def test_too_little_time_raises(folder):
    with pytest.raises(subprocess.TimeoutExpired):
        run_saved_model(folder, [], timeout=0.01)


def run_script(*arguments, stdin=b""):
    script = pathlib.Path(saved_model_runner.__file__)
    return subprocess.run([sys.executable, "-P", script, *arguments], input=stdin, capture_output=True)


@pytest.mark.extended
def test_a_line_that_is_not_json_is_answered_with_an_error(folder):
    good = json.dumps(request("echo", inputs=["a"])).encode()
    child = run_script(folder, stdin=b"{\n\xff\n\n" + b"[" * 100_000 + b"\n" + good)
    lines = [json.loads(line) for line in child.stdout.splitlines()]
    assert [set(line) for line in lines] == [{"error"}] * 4 + [{"outputs"}]
    assert child.returncode == 0


def test_without_a_folder_the_script_prints_its_usage():
    child = run_script()
    assert child.returncode == 2
    assert b"usage: saved_model_runner.py [-h] [--xla] [--threads THREADS] [--stay]" in child.stderr


@pytest.mark.extended
def test_a_graph_that_prints_does_not_write_between_the_answers(tmp_path):
    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="inputs")])
    def noisy(inputs):
        tf.print("noise", output_stream=sys.stdout)
        return {"outputs": tf.identity(inputs)}

    module = tf.Module()
    module.noisy = noisy
    tf.saved_model.save(module, str(tmp_path / "1"), signatures=noisy)
    child = run_script(tmp_path / "1", stdin=json.dumps({"inputs": {"inputs": ["a"]}}).encode())
    assert json.loads(child.stdout) == {"outputs": {"outputs": ["a"]}}
    assert b"noise" in child.stderr


@pytest.mark.extended
@pytest.mark.skipif(
    not pathlib.Path("/proc/self/statm").exists(), reason="needs /proc to read the memory in use"
)
def test_memory_of_tensors_is_freed(folder):
    """A mebibyte of numbers goes in, one of numbers and one of text come out: what 100 runs leave behind would show."""
    program = f"""
        import contextlib, pathlib, resource, runpy
        import numpy as np
        runner = runpy.run_path({saved_model_runner.__file__!r})
        with contextlib.closing(runner["SavedModel"](runner["CApi"](), {str(folder)!r})) as model:
            def resident_bytes_after(times):
                for _ in range(times):
                    model.run("doubled", {{"inputs": np.ones((87_383, 3), "float32")}})
                    model.run("serving_default", {{"inputs": ["x" * 2**20]}})
                return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
            before = resident_bytes_after(11)
            print(resident_bytes_after(100) - before)
    """
    command = [sys.executable, "-P", "-c", textwrap.dedent(program)]
    child = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(child.stdout) < 30 * 2**20
