"""Models whose weights are stored in fewer bits: what is stored, what is refused, and what is written and read."""

import gc
import weakref

import keras
import numpy as np
import pytest

from keras_attn.models import (
    Seq2SeqTransformer,
    load_weights,
    quantization_of,
    quantize,
    quantized_copy,
    save_weights,
)


def make_model(dtype="float32"):
    keras.utils.set_random_seed(3)
    return Seq2SeqTransformer.from_sizes(
        29, 1, 1, hidden_dim=12, num_heads=3, intermediate_dim=17, max_sequence_length=11, dtype=dtype
    )


INPUTS = {"encoder_token_ids": np.array([[5, 6, 7, 3, 0]]), "decoder_token_ids": np.array([[2, 5, 9]])}


@pytest.mark.extended
@pytest.mark.parametrize(("mode", "share"), [("bfloat16", 0.01), ("int8", 0.05)])
def test_a_copy_gives_nearly_the_same_logits_and_comes_back_from_its_files(mode, share, tmp_path):
    model = make_model()
    before = np.asarray(model(INPUTS))
    copy = quantized_copy(model, mode)
    assert quantization_of(copy) == mode
    assert quantization_of(model) is None
    after = np.asarray(copy(INPUTS))
    assert after.dtype == "float32"
    assert 0 < np.abs(after - before).max() < share * np.abs(before).max()
    save_weights(copy, tmp_path / "w.safetensors")
    twin = Seq2SeqTransformer.from_config(copy.get_config())
    assert quantization_of(twin) == mode
    load_weights(twin, tmp_path / "w.safetensors")
    np.testing.assert_array_equal(np.asarray(twin(INPUTS)), after)


def test_bfloat16_halves_the_matrices_and_leaves_the_norms():
    model = quantized_copy(make_model("mixed_bfloat16"), "bfloat16")
    dtypes = {weight.path: keras.backend.standardize_dtype(weight.dtype) for weight in model.weights}
    assert {dtype for path, dtype in dtypes.items() if path.endswith("kernel")} == {"bfloat16"}
    assert {dtype for path, dtype in dtypes.items() if "norm" in path} == {"float32"}


@pytest.mark.parametrize("mode", ["bfloat16", "int8"])
def test_what_is_replaced_is_free_at_once_and_collects_no_garbage(mode, monkeypatch):
    """Keras collects garbage after each matrix: 14 of 15 seconds for a model of 2.6 million parameters."""
    model = make_model()
    before = {variable.path: variable.shape for variable in model.variables}
    replaced = [weakref.ref(variable) for variable in model.variables if variable.path.endswith("kernel")]
    collections = []
    monkeypatch.setattr(gc, "collect", lambda *_: collections.append(1))
    quantize(model, mode)
    assert not collections
    assert replaced
    assert all(reference() is None for reference in replaced)
    assert before.items() <= {variable.path: variable.shape for variable in model.variables}.items()
    layer = keras.layers.Dense(3)
    layer.build([None, 2])
    del layer._kernel
    assert collections  # by Keras' own


@pytest.mark.parametrize("mode", ["bfloat16", "int8"])
def test_lora_is_merged_first(mode):
    model = make_model()
    model.enable_lora(2)
    for change in (quantize, quantized_copy):
        with pytest.raises(ValueError, match=r"Quantise what `keras_attn\.models\.merge_lora"):
            change(model, mode)


def test_what_is_quantised_is_not_quantised_again():
    model = quantized_copy(make_model(), "bfloat16")
    with pytest.raises(ValueError, match="quantised already"):
        quantize(model, "int8")
    with pytest.raises(ValueError, match="`mode` must be one of"):
        quantize(model, "int7")


def test_int8_of_a_model_in_float16_is_that_of_a_copy():
    model = Seq2SeqTransformer.from_sizes(
        13, 1, 1, hidden_dim=6, num_heads=2, intermediate_dim=7, dtype="mixed_float16"
    )
    with pytest.raises(
        ValueError, match=r"Quantise what `keras_attn\.models\.float32_copy\(model\)` returns"
    ):
        quantize(model, "int8")
    assert quantization_of(model) is None
    assert quantization_of(quantized_copy(model, "int8")) == "int8"


@pytest.mark.extended
@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="the graph of a step is TensorFlow's")
def test_a_step_in_bfloat16_casts_no_matrix():
    import tensorflow as tf

    from keras_attn.ops import inference_scope

    model = quantized_copy(make_model(), "bfloat16")

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32)], autograph=False)
    def generated(source):
        with inference_scope():
            return model.generate(source, 2, 3, max_length=5)

    graph = generated.get_concrete_function().graph
    bodies = [body for name, body in graph._functions.items() if "body" in name or "in_step_graph" in name]
    bodies = [body.graph for body in bodies if hasattr(body, "graph")]
    assert any(op.type == "MatMul" for body in bodies for op in body.get_operations())
    casts = [op for body in bodies for op in body.get_operations() if op.type == "Cast"]
    assert casts
    of_matrices = [op for op in casts if op.inputs[0].shape.rank == 2 and None not in op.inputs[0].shape]
    assert not of_matrices


@pytest.mark.extended
@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="XLA's part of a graph is TensorFlow's")
@pytest.mark.parametrize(("flags", "number"), [((), 6), (("amx_int8",), 10)])
def test_the_compiled_part_of_a_graph_gets_matrices_of_integers(flags, number, monkeypatch):
    import tensorflow as tf

    from keras_attn.ops import compiled_scope, inference_scope, int8_products

    monkeypatch.setattr(int8_products, "processor_flags", lambda: flags)
    model = quantized_copy(make_model(), "int8")

    def compiler(function):
        def traced(*inputs):
            with compiled_scope():
                return function(*inputs)

        traced.__name__ = function.__name__
        return tf.function(traced, jit_compile=True, autograph=False)

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32)], autograph=False)
    def generated(source):
        with inference_scope():
            return model.generate(source, 2, 3, max_length=5, compiler=compiler)

    calls = [
        node
        for function in generated.get_concrete_function().graph.as_graph_def().library.function
        for node in function.node_def
        if "Call" in node.op and "steps" in node.attr["f"].func.name
    ]
    assert len(calls) == 1
    dtypes = [tf.as_dtype(number).name for number in calls[0].attr["Tin"].list.type]
    # Two of each of the two attention layers and of the feed-forward, turned; with tiles, those of attention as they were too,
    # where those of the feed-forward are variables.
    assert dtypes.count("int8") == number
