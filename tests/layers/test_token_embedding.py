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
