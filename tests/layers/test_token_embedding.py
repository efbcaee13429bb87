"""Logits of a large table, which a graph of decoding steps multiplies in another order."""

import numpy as np
import pytest
import tensorflow as tf

from keras_attn.layers import TokenEmbedding

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
