"""Logits of a large table, which a graph of decoding steps multiplies in another order."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf

from keras_attn.layers import TokenEmbedding
from keras_attn.ops import compiled_scope, inference_scope, int8_problem

V, D = 8209, 1031  # more numbers than make a table large


@pytest.mark.parametrize("length", [1, 2])
def test_logits_are_the_products_with_the_table(rng, length):
    embedding = TokenEmbedding(V, D, use_output_bias=True, output_scale=0.5)
    embedding.build()
    embedding.output_bias.assign(rng.normal(size=V))
    inputs = rng.normal(size=(3, length, D)).astype("float32")
    spec = tf.TensorSpec([None, length, D])
    graph = tf.function(lambda x: embedding(x, reverse=True), [spec], autograph=False)
    table, bias = (
        weight.numpy().astype("float64") for weight in (embedding.embeddings, embedding.output_bias)
    )
    expected = 0.5 * inputs.astype("float64") @ table.T + bias
    for logits in (graph(inputs), embedding(inputs, reverse=True)):
        np.testing.assert_allclose(logits, expected, atol=1e-5)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("tie_weights", [True, False])
@pytest.mark.parametrize(("size", "dim"), [(8211, 1034), (V, D)])  # numbers of parts and halves, and none
def test_logits_of_compiled_steps_are_the_products_with_the_table(rng, tie_weights, size, dim):
    embedding = TokenEmbedding(size, dim, tie_weights=tie_weights, logit_soft_cap=30.0)
    embedding.build()
    table = embedding.embeddings if tie_weights else embedding.reverse_embeddings
    table = table.numpy().astype("float64") if tie_weights else table.numpy().astype("float64").T
    graph = tf.function(lambda x: embedding(x, reverse=True), jit_compile=True, autograph=False)
    for rows in (1, 3, 5):
        inputs = rng.normal(size=(rows, 1, dim)).astype("float32")
        expected = 30.0 * np.tanh(inputs.astype("float64") @ table.T / 30.0)
        np.testing.assert_allclose(graph(inputs), expected, atol=1e-5)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("tie_weights", [True, False])
@pytest.mark.parametrize("xla", [False, True])
@pytest.mark.parametrize("dim", [13, 211])  # 211 * 331 entries are multiplied as integers without XLA too
def test_int8_logits_of_some_tokens_are_those_among_all(rng, tie_weights, xla, dim):
    if not xla and (problem := int8_problem()):
        pytest.skip(problem)
    embedding = TokenEmbedding(331, dim, tie_weights=tie_weights, use_output_bias=True)
    embedding.build()
    embedding.output_bias.assign(rng.normal(size=331))
    embedding.quantize("int8")

    def logits(inputs, token_ids):
        with inference_scope(), compiled_scope() if xla else contextlib.nullcontext():
            of_some = embedding.logits_by(embedding.output_projection(token_ids), inputs)
            return of_some, embedding(inputs, reverse=True)

    specs = [tf.TensorSpec([None, 2, dim]), tf.TensorSpec([None], tf.int32)]
    graph = tf.function(logits, specs, jit_compile=xla, autograph=False)
    inputs = rng.normal(size=(3, 2, dim)).astype("float32")
    for token_ids in ([5, 7, 330], [0, 1, 11, 200, 329]):
        of_some, of_all = graph(inputs, np.array(token_ids, "int32"))
        np.testing.assert_allclose(of_some, of_all.numpy()[..., token_ids], rtol=1e-6)
