"""Seq2SeqTransformer under TensorFlow's compilers and as a SavedModel: the same numbers as eagerly."""

import keras
import numpy as np
import pytest
from helpers_models import (
    END,
    START,
    TARGET_V,
    V,
    assert_close,
    call,
    generate,
    make_batch,
    make_model,
    shared_model,
)

from keras_attn.ops import clamping_scope, inference_scope
from keras_attn.training import LabelSmoothedCrossentropy

if keras.backend.backend() != "tensorflow":
    pytest.skip("tf.function and SavedModel belong to the TensorFlow backend", allow_module_level=True)

import tensorflow as tf

IDS = {
    name: tf.TensorSpec((None, None), tf.int32, name=name)
    for name in ("encoder_token_ids", "decoder_token_ids")
}
BATCHES = [
    make_batch(),
    make_batch(seed=3, batch_size=2, source_length=11, target_length=7),
    make_batch(seed=4, batch_size=5, source_length=3, target_length=2, pads=False),
    make_batch(seed=4, batch_size=0, source_length=3, target_length=2),
]


@pytest.mark.extended
def test_call_is_the_same_in_a_graph_of_free_shapes():
    model = shared_model("untied_gated_rms_learned")
    traces = []

    @tf.function(input_signature=[IDS], autograph=False)
    def graph(batch):
        traces.append(batch)
        return model(batch)

    for batch in BATCHES:
        assert_close(graph(batch).numpy(), call(model, batch))
    assert len(traces) == 1


@pytest.mark.extended
def test_generate_is_the_same_in_every_compiler():
    model = shared_model("pre_norm")
    options = {"num_beams": 3, "num_return_sequences": 3, "max_length": 5}

    def decode(ids):
        return model.generate(ids, START, END, **options)

    graph = tf.function(decode, input_signature=[IDS["encoder_token_ids"]], autograph=False)
    xla = tf.function(decode, jit_compile=True, autograph=False)
    for batch in BATCHES:
        ids = batch["encoder_token_ids"]
        expected_ids, expected_scores = generate(model, ids, **options)
        for compiled in (graph, xla) if batch is BATCHES[0] else (graph,):
            token_ids, scores = compiled(ids)
            np.testing.assert_array_equal(token_ids, expected_ids)
            np.testing.assert_allclose(scores, expected_scores, atol=1e-5)


@pytest.mark.extended
def test_xla_takes_a_cache_that_grows_twice():
    """A loop for each segment: what a loop carries and never changes, XLA takes for a constant, in the first alone."""
    model = make_model(num_encoder_layers=1, num_decoder_layers=1, max_sequence_length=70)
    ids = BATCHES[0]["encoder_token_ids"]
    decode = tf.function(
        lambda ids: model.generate(ids, START, END, max_length=70), jit_compile=True, autograph=False
    )
    np.testing.assert_array_equal(decode(ids), generate(model, ids, max_length=70))


WRONG_IDS = {
    "too_large": ("encoder_token_ids", V + 90, rf"Token ids must lie in \[0, {V}\)"),
    "negative": ("encoder_token_ids", -7, r"Token ids must lie in .* \[-7\] \[to\]"),
    "of_int64_that_int32_cannot_hold": ("decoder_token_ids", 2**32 + 5, r"\[to\] \[4294967301\]"),
    "of_the_other_vocabulary": ("decoder_token_ids", TARGET_V, rf"Token ids must lie in \[0, {TARGET_V}\)"),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("case", WRONG_IDS)
def test_ids_outside_the_vocabulary_stop_a_graph_as_they_stop_an_eager_call(case):
    """Batches of unknown length too, as a data set gives them to `fit`."""
    name, token_id, message = WRONG_IDS[case]
    model = make_model("two_vocabularies", num_decoder_layers=1)
    batch = {key: ids.astype("int64") for key, ids in make_batch(pads=False).items()}
    spec = {key: tf.TensorSpec([None, None], "int64") for key in batch}
    graph = tf.function(model, input_signature=[spec], autograph=False)
    assert_close(graph(batch).numpy(), call(model, batch))
    assert graph({key: ids[:0] for key, ids in batch.items()}).shape[0] == 0
    batch[name][1, 2] = token_id
    with pytest.raises(ValueError, match=r"Token ids must lie in"):
        model(batch)
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        graph(batch)


@pytest.mark.parametrize(
    "stopped", ["fit", *(pytest.param(x, marks=pytest.mark.extended) for x in ("predict", "evaluate"))]
)
def test_a_data_set_with_a_wrong_id_stops(stopped):
    model = make_model("two_vocabularies", num_decoder_layers=1)
    batch = make_batch(pads=False)
    labels = np.ones_like(batch["decoder_token_ids"])
    batch["encoder_token_ids"][1, 2] = V
    model.compile("sgd", LabelSmoothedCrossentropy(), jit_compile=False)
    data = tf.data.Dataset.from_tensor_slices((batch, labels)).padded_batch(2)
    with pytest.raises(tf.errors.InvalidArgumentError, match="Token ids must lie in"):
        getattr(model, stopped)(data, verbose=0, **({"shuffle": False} if stopped == "fit" else {}))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("scope", [clamping_scope, inference_scope])
def test_where_nothing_may_be_raised_ids_are_clamped(scope):
    """In a served graph one bad row must not fail the others."""
    model = make_model("two_vocabularies", num_decoder_layers=1)
    batch = make_batch(pads=False)
    batch["encoder_token_ids"][0, 1], batch["encoder_token_ids"][1, 2] = V + 90, -7
    batch["decoder_token_ids"][0, 1], batch["decoder_token_ids"][2, 3] = TARGET_V, -1
    clamped = {
        "encoder_token_ids": np.clip(batch["encoder_token_ids"], 0, V - 1),
        "decoder_token_ids": np.clip(batch["decoder_token_ids"], 0, TARGET_V - 1),
    }
    with scope():
        found = tf.function(model, autograph=False)(batch).numpy()
    # A clamped negative id is token 0, but no padding.
    as_words = make_model("two_vocabularies", num_decoder_layers=1, pad_token_id=-1)
    assert_close(found, call(as_words, clamped))


def test_the_loop_of_a_search_has_no_check():
    model = make_model("pre_norm")

    @tf.function(input_signature=[IDS["encoder_token_ids"]], autograph=False)
    def decode(encoder_token_ids):
        return model.generate(encoder_token_ids, START, END, num_beams=2, max_length=5)

    graph = decode.get_concrete_function().graph
    bodies = [f.graph for name, f in graph._functions.items() if hasattr(f, "graph")]
    assert bodies
    assert "Assert" in {op.type for op in graph.get_operations()}  # of the source
    assert not any(
        "token_embedding" in op.name for body in bodies for op in body.get_operations() if op.type == "Assert"
    )


@pytest.mark.extended
@pytest.mark.parametrize("num_beams", [1, 3])
def test_a_step_goes_through_no_whole_cache_to_select_what_is_no_padding(num_beams):
    model = make_model("pre_norm", position_encoding="rotary", hidden_dim=12, num_heads=3)

    @tf.function(input_signature=[IDS["encoder_token_ids"]], autograph=False)
    def decode(encoder_token_ids):
        return model.generate(encoder_token_ids, START, END, num_beams=num_beams, max_length=5)

    functions = decode.get_concrete_function().graph._functions.items()
    bodies = [
        body.graph
        for name, body in functions
        if ("body" in name or "in_step_graph" in name) and hasattr(body, "graph")
    ]
    selections = [
        op.outputs[0].shape for body in bodies for op in body.get_operations() if "Select" in op.type
    ]
    of_heads = [shape for shape in selections if shape.rank == 4]
    assert of_heads
    # Of new keys and values, of outputs, or of a mask.
    assert {shape[2] for shape in of_heads} <= {1, num_beams}


@pytest.mark.extended
def test_a_step_has_no_more_operations_for_more_tokens_that_cannot_be_written():
    model = make_model("pre_norm")

    def num_operations(count):
        @tf.function(input_signature=[IDS["encoder_token_ids"]], autograph=False)
        def decode(encoder_token_ids):
            return model.generate(
                encoder_token_ids,
                START,
                END,
                num_beams=2,
                max_length=5,
                unwritable_token_ids=range(50, 50 + count),
            )

        functions = decode.get_concrete_function().graph.as_graph_def().library.function
        return sum(len(function.node_def) for function in functions)

    assert num_operations(20) == num_operations(500)
