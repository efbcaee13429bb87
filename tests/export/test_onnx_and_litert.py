"""ONNX and LiteRT models answer as the Keras model does: logits to 1e-4, greedy search token for token."""

import builtins
import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers_engines import (
    END,
    MAX_LENGTH,
    PAD,
    START,
    VOCABULARY_SIZE,
    IdTokenizer,
    answer,
    briefly_trained_model,
    sources,
    with_end,
)
from helpers_translators import byte_translator, files_below, subword_translator

import keras_attn
from keras_attn.export import export_onnx
from keras_attn.models import Seq2SeqTransformer, float32_copy
from keras_attn.tasks.other_engines import token_functions
from keras_attn.text import load_tokenizer

pytestmark = pytest.mark.extended

# Between them, every way in which an option changes the graph.
VARIANTS = {
    "pre_norm_two_vocabularies": {"normalize_first": True, "target_vocabulary_size": 29},
    "rotary_rms_gated": {"position_encoding": "rotary", "normalization": "rms_norm", "gated": True},
    "learned_untied_gelu": {"position_encoding": "learned", "tie_output": False, "activation": "gelu"},
    "mixed_bfloat16": {"dtype": "mixed_bfloat16"},
}
SIZES = {"hidden_dim": 28, "num_heads": 2, "intermediate_dim": 57, "max_sequence_length": 23}
# Batch, source and target length: each its smallest, and none twice as it was.
SHAPES = [(1, 1, 1), (3, 7, 5), (2, 13, 1), (5, 4, 11), (7, 23, 23)]


def load_onnx(folder):
    """{signature: function of named inputs}."""
    onnxruntime = pytest.importorskip(
        "onnxruntime", reason='needs onnxruntime: pip install "keras_attn[peers]"'
    )

    def run(session, **inputs):
        return session.run(None, inputs)[0]

    return {
        name: functools.partial(
            run, onnxruntime.InferenceSession(folder / f"{name}.onnx", providers=["CPUExecutionProvider"])
        )
        for name in ("logits", "greedy")
    }


def load_litert(folder):
    interpreter = pytest.importorskip(
        "ai_edge_litert.interpreter", reason='needs LiteRT: pip install "keras_attn[peers]"'
    )
    model = interpreter.Interpreter(model_path=str(folder / "model.tflite"))
    outputs = {"logits": "logits", "greedy": "token_ids"}

    def run(name, **inputs):
        return model.get_signature_runner(name)(**inputs)[outputs[name]]

    return {name: functools.partial(run, name) for name in outputs}


LOADERS = {"onnx": load_onnx, "litert": load_litert}


# tf2onnx takes half a minute for the loop of a search.
@pytest.fixture(scope="module", params=[pytest.param("onnx", marks=pytest.mark.slow), "litert"])
def exported(request, tmp_path_factory):
    """A translator with the briefly trained model, and the functions of its export."""
    if request.param == "onnx":
        pytest.importorskip("tf2onnx", reason='needs tf2onnx: pip install "keras_attn[onnx]"')
    translator = keras_attn.Translator(
        briefly_trained_model(), IdTokenizer(), IdTokenizer(), max_length=MAX_LENGTH
    )
    folder = tmp_path_factory.mktemp("engines") / request.param
    assert translator.export_model(folder, format=request.param) == folder
    return translator, LOADERS[request.param](folder)


def batch(rows, source_length, target_length, vocabulary_size=VOCABULARY_SIZE):
    """Ids of both sides; every row but the first has pads on its right."""
    rng = np.random.default_rng(rows)
    source = rng.integers(4, vocabulary_size, (rows, source_length)).astype("int32")
    target = rng.integers(4, vocabulary_size, (rows, target_length)).astype("int32")
    target[:, 0] = START
    for row in range(1, rows):
        source[row, max(1, source_length - row) :] = PAD
        target[row, max(1, target_length - row) :] = PAD
    return {"encoder_token_ids": source, "decoder_token_ids": target}


def check_logits(model, logits, vocabulary_size=VOCABULARY_SIZE):
    for shape in SHAPES:
        inputs = batch(*shape, vocabulary_size)
        expected = keras.ops.convert_to_numpy(model(inputs))
        actual = logits(**inputs)
        assert actual.shape == expected.shape
        real = inputs["decoder_token_ids"] != PAD
        scale = max(1.0, np.abs(expected[real]).max())
        np.testing.assert_allclose(actual[real], expected[real], rtol=0, atol=1e-4 * scale)


def test_logits_are_the_models_at_every_shape(exported):
    translator, functions = exported
    check_logits(translator.model, functions["logits"])


def test_onnx_logits_are_the_models_at_every_shape(tmp_path):
    pytest.importorskip("tf2onnx", reason='needs tf2onnx: pip install "keras_attn[onnx]"')
    onnxruntime = pytest.importorskip(
        "onnxruntime", reason='needs onnxruntime: pip install "keras_attn[peers]"'
    )
    model = Seq2SeqTransformer.from_sizes(VOCABULARY_SIZE, 1, 1, **SIZES)
    functions = token_functions(model, START, END, MAX_LENGTH)
    folder = export_onnx(
        tmp_path / "model", {"logits": functions["logits"]}, {"source_tokenizer": IdTokenizer()}
    )
    assert files_below(folder) == ["logits.onnx", "source_tokenizer/tokenizer.json"]
    session = onnxruntime.InferenceSession(folder / "logits.onnx", providers=["CPUExecutionProvider"])
    check_logits(model, lambda **inputs: session.run(["logits"], inputs)[0])


def test_greedy_search_finds_the_same_tokens(exported):
    translator, functions = exported
    token_ids = with_end(sources())
    expected = keras.ops.convert_to_numpy(
        tf.function(
            lambda ids: translator.model.generate(ids, START, END, max_length=MAX_LENGTH), autograph=False
        )(token_ids)
    )
    np.testing.assert_array_equal(functions["greedy"](encoder_token_ids=token_ids), expected)
    assert len({tuple(answer(row)) for row in expected}) > 100
    for rows in (slice(1), slice(3, 8)):  # other batches and lengths
        shorter = token_ids[rows][:, : max(len(answer(row)) for row in token_ids[rows])]
        np.testing.assert_array_equal(functions["greedy"](encoder_token_ids=shorter), expected[rows])


@pytest.mark.slow
@pytest.mark.parametrize("format", LOADERS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_option_of_the_model(variant, format, tmp_path):
    options = VARIANTS[variant]
    keras.utils.set_random_seed(6)
    model = Seq2SeqTransformer.from_sizes(VOCABULARY_SIZE, 2, 2, **SIZES, **options)
    target_size = options.get("target_vocabulary_size", VOCABULARY_SIZE)
    translator = keras_attn.Translator(model, IdTokenizer(), IdTokenizer(target_size), max_length=11)
    functions = LOADERS[format](translator.export_model(tmp_path / "model", format=format))
    float32 = float32_copy(model)
    check_logits(float32, functions["logits"], target_size)
    token_ids = with_end(sources(13))
    never = translator.unwritable_token_ids
    found = float32.generate(token_ids, START, END, max_length=11, unwritable_token_ids=never)
    expected = keras.ops.convert_to_numpy(found)
    np.testing.assert_array_equal(functions["greedy"](encoder_token_ids=token_ids), expected)


@pytest.mark.slow
@pytest.mark.parametrize("format", LOADERS)
def test_a_longer_answer_than_the_first_segment_of_the_cache(format, tmp_path):
    translator = byte_translator(max_length=37)
    functions = LOADERS[format](translator.export_model(tmp_path / "model", format=format))
    token_ids = np.array([[40, 50, 60, 2]], "int32")
    never = translator.unwritable_token_ids
    found = translator.model.generate(token_ids, 1, 2, max_length=37, unwritable_token_ids=never)
    expected = keras.ops.convert_to_numpy(found)
    np.testing.assert_array_equal(functions["greedy"](encoder_token_ids=token_ids), expected)
    assert len(answer(expected[0])) > 32


@pytest.mark.slow
@pytest.mark.parametrize(
    ("format", "files"), [("onnx", ["greedy.onnx", "logits.onnx"]), ("litert", ["model.tflite"])]
)
def test_the_folder_holds_the_tokenizers(format, files, tmp_path):
    translator = subword_translator()
    translator.export_model(tmp_path / "model", format=format)
    translator.export_model(tmp_path / "model", format=format)  # which replaces the first
    tokenizers = [
        f"{side}_tokenizer/{name}"
        for side in ("source", "target")
        for name in ("tokenizer.json", "sentencepiece.model")
    ]
    assert files_below(tmp_path / "model") == sorted([*files, *tokenizers])
    again = load_tokenizer(tmp_path / "model" / "source_tokenizer")
    assert again.encode(["a dog ."]) == translator.source_tokenizer.encode(["a dog ."])


@pytest.mark.parametrize("format", LOADERS)
def test_another_folder_is_left_alone(format, tmp_path, monkeypatch):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "precious").touch()
    monkeypatch.setattr(
        "keras_attn.tasks.other_engines.token_functions",
        lambda *_: {"logits": (lambda x: {"y": x}, [tf.TensorSpec([None], tf.float32, name="x")])},
    )
    with pytest.raises(ValueError, match="other exists and holds no"):
        byte_translator().export_model(tmp_path / "other", format=format)
    assert files_below(tmp_path / "other") == ["precious"]


def test_what_onnx_cannot_express_is_refused(tmp_path):
    pytest.importorskip("tf2onnx", reason='needs tf2onnx: pip install "keras_attn[onnx]"')
    spec = tf.TensorSpec([None], tf.float32, name="x")
    functions = {"bits": (lambda x: {"y": tf.bitcast(x, tf.int32)}, [spec])}
    with pytest.raises(ValueError, match=r"ONNX cannot express 'bits': .*Bitcast"):
        export_onnx(tmp_path / "model", functions, {})
    assert not list(tmp_path.iterdir())


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    import_module = builtins.__import__

    def without(name, *arguments):
        if name == "tf2onnx":
            raise ImportError(name)
        return import_module(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r'pip install "keras_attn\[onnx\]"'):
        byte_translator().export_model(tmp_path / "model", format="onnx")
