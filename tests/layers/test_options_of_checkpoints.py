"""Options of layers that well-known checkpoints need: each against the formula."""

import keras
import numpy as np
import pytest
from helpers_models import assert_close
from keras import ops

from keras_attn import layers


def random_weights(layer, seed=3):
    rng = np.random.default_rng(seed)
    for weight in layer.weights:
        weight.assign(rng.normal(size=weight.shape))
    return layer


def sequence(*shape):
    return np.random.default_rng(5).normal(size=shape).astype("float32")


def test_an_output_projection_without_a_bias():
    with_biases = layers.MultiHeadAttention(3, 5)
    without = layers.MultiHeadAttention(3, 5, use_output_bias=False)
    x = sequence(2, 7, 11)
    for layer in (with_biases, without):
        layer.build(x.shape, x.shape)
    assert without.output_dense.bias is None
    assert [without.query_dense.bias is None, without.key_dense.bias is None] == [False, False]
    random_weights(with_biases)
    without.set_weights(with_biases.get_weights()[:-1])
    bias = np.asarray(with_biases.output_dense.bias)
    assert_close(ops.convert_to_numpy(without(x, x)) + bias, ops.convert_to_numpy(with_biases(x, x)))


def test_the_epsilon_of_the_norms_of_heads():
    attention = layers.MultiHeadAttention(3, 5, query_key_norm="rms_norm", query_key_norm_epsilon=0.7)
    x = sequence(2, 7, 11)
    attention(x, x)
    assert [layer.epsilon for layer in (attention._query_norm, attention._key_norm)] == [0.7, 0.7]
    with pytest.raises(ValueError, match="`query_key_norm_epsilon` must be positive, and needs"):
        layers.MultiHeadAttention(3, 5, query_key_norm_epsilon=0.7)


@pytest.mark.parametrize("tie_weights", [True, False])
@pytest.mark.parametrize("quantized", [False, True])
def test_the_scale_of_logits(tie_weights, quantized):
    embeddings = [
        layers.TokenEmbedding(23, 11, scale=False, tie_weights=tie_weights, output_scale=scale)
        for scale in (None, 0.3)
    ]
    for embedding in embeddings:
        embedding.build()
        random_weights(embedding)
        if quantized:
            embedding.quantize("int8")
    ids, x = np.array([[3, 7, 22]]), sequence(2, 5, 11)
    plain, scaled = (ops.convert_to_numpy(embedding(x, reverse=True)) for embedding in embeddings)
    assert_close(scaled, 0.3 * plain)
    plain, scaled = (ops.convert_to_numpy(embedding(ids)) for embedding in embeddings)
    np.testing.assert_array_equal(scaled, plain)


def test_the_number_of_the_first_position():
    x = sequence(2, 5, 8)
    later = layers.SinusoidalPositionEncoding(first_position=2)
    expected = ops.convert_to_numpy(layers.SinusoidalPositionEncoding()(x, start_index=2))
    np.testing.assert_array_equal(ops.convert_to_numpy(later(x)), expected)
    positions = np.array([0, 1, 2, 3, 4], "int32")
    np.testing.assert_array_equal(ops.convert_to_numpy(later(x, positions=positions)), expected)


@pytest.mark.parametrize("block_class", [layers.EncoderBlock, layers.DecoderBlock])
def test_a_block_without_a_norm_before_its_self_attention(block_class):
    block = block_class(13, 3, normalize_first=True, self_attention_norm=keras.layers.Identity())
    x = sequence(2, 5, 12)
    block.build(x.shape)
    random_weights(block)
    causal = {"use_causal_mask": True} if block_class is layers.DecoderBlock else {}
    y = x + ops.convert_to_numpy(block.self_attention_layer(x, x, **causal))
    y = y + ops.convert_to_numpy(block.feed_forward_layer(block.residual_norms[1](y)))
    assert_close(ops.convert_to_numpy(block(x)), y)
    again = block_class.from_config(block.get_config())
    again.build(x.shape)
    again.set_weights(block.get_weights())
    np.testing.assert_array_equal(ops.convert_to_numpy(again(x)), ops.convert_to_numpy(block(x)))
