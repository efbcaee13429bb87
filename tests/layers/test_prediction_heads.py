"""Pooling and the heads against NumPy in float64; what stands at pads reaches nothing."""

import keras
import numpy as np
import pytest
from helpers_models import assert_close
from keras import ops

from keras_attn import layers

B, T, D, E, L, V = 4, 7, 5, 11, 3, 13
# A whole row, one padded on the right, one on the left, and one without tokens.
MASK = np.array([[1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0, 0], [0, 0, 1, 1, 1, 1, 1], [0] * 7], bool)


def random_weights(layer, seed=3):
    rng = np.random.default_rng(seed)
    for weight in layer.weights:
        weight.assign(rng.normal(size=weight.shape))
    return layer


def sequence(pads=0.0):
    x = np.random.default_rng(5).normal(size=(B, T, D)).astype("float32")
    return np.where(MASK[..., None], x, np.float32(pads))


def run(layer, x, mask=MASK, **options):
    return ops.convert_to_numpy(
        layer(ops.convert_to_tensor(x), padding_mask=ops.convert_to_tensor(mask), **options)
    )


def of_rows(mode):
    """The pooled vectors, float64, row by row."""
    pool = {
        "first": lambda x: x[0],
        "last": lambda x: x[-1],
        "mean": lambda x: x.mean(0),
        "max": lambda x: x.max(0),
    }
    rows = zip(sequence().astype("float64"), MASK)
    return np.array([pool[mode](x[mask]) if mask.any() else np.zeros(D) for x, mask in rows])


def dense(x, layer):
    bias = 0.0 if layer.bias is None else np.asarray(layer.bias, "float64")
    return x @ np.asarray(layer.kernel, "float64") + bias


def normalized(x, norm):
    centred = x - x.mean(-1, keepdims=True)
    scale, offset = (np.asarray(weight, "float64") for weight in (norm.gamma, norm.beta))
    return centred / np.sqrt(x.var(-1, keepdims=True) + norm.epsilon) * scale + offset


@pytest.mark.parametrize("mode", ["first", "last", "mean", "max"])
def test_pooling_reads_real_tokens_only(mode):
    pooling = layers.Pooling(mode)
    for pads in (0.0, np.nan, np.inf):
        assert_close(run(pooling, sequence(pads)), of_rows(mode), 1e-6)
    assert run(pooling, sequence()[:, :0], MASK[:, :0]).tolist() == np.zeros((B, D)).tolist()
    whole = ops.convert_to_numpy(pooling(ops.convert_to_tensor(sequence())))
    assert_close(whole[0], of_rows(mode)[0], 1e-6)
    assert layers.Pooling.from_config(pooling.get_config()).mode == mode
    assert tuple(pooling(keras.Input((None, D))).shape) == (None, D)


@pytest.mark.parametrize("activation", ["tanh", "relu", "gelu"])
def test_classification(activation):
    norm = keras.layers.LayerNormalization(epsilon=1e-5)
    head = layers.ClassificationHead(
        L, pooling="mean", intermediate_dim=E, activation=activation, norm=norm, use_intermediate_bias=False
    )
    head.build((B, T, D))
    random_weights(head)
    x = dense(of_rows("mean"), head.intermediate_dense)
    x = ops.convert_to_numpy(keras.activations.get(activation)(x))
    expected = dense(normalized(x, norm), head.output_dense)
    assert_close(run(head, sequence(np.nan)), expected, 2e-6)
    assert head.intermediate_dense.bias is None


def test_classification_without_a_projection():
    head = layers.ClassificationHead(L, pooling="last", use_bias=False)
    head.build((B, T, D))
    random_weights(head)
    assert_close(run(head, sequence(np.nan)), dense(of_rows("last"), head.output_dense), 1e-6)
    assert [weight.path.split("/", 1)[1] for weight in head.weights] == ["output/kernel"]


def test_token_classification():
    head = layers.TokenClassificationHead(L, intermediate_dim=E, activation="tanh")
    head.build((B, T, D))
    random_weights(head)
    x = sequence().astype("float64")
    expected = dense(np.tanh(dense(x, head.intermediate_dense)), head.output_dense)
    assert_close(run(head, sequence(np.nan)), expected, 2e-6)


def test_the_masked_language_model_head():
    token = layers.TokenEmbedding(V, E, scale=False)
    head = layers.MaskedLanguageModelHead(token, activation="relu")
    head.build((B, T, D))
    random_weights(head)
    x = np.maximum(dense(sequence().astype("float64"), head.intermediate_dense), 0)
    expected = normalized(x, head.norm) @ np.asarray(token.embeddings, "float64").T
    assert_close(run(head, sequence(np.nan)), expected + np.asarray(head.output_bias, "float64"), 2e-6)
    names = sorted(weight.path.split("/", 1)[1] for weight in head.weights if weight is not token.embeddings)
    assert names == ["intermediate/bias", "intermediate/kernel", "norm/beta", "norm/gamma", "output_bias"]


def test_dropout_is_for_training():
    head = layers.ClassificationHead(L, intermediate_dim=E, dropout=0.5)
    assert np.array_equal(run(head, sequence()), run(head, sequence()))
    assert not np.array_equal(run(head, sequence(), training=True), run(head, sequence()))


def test_masks_are_obeyed_or_refused():
    x, pooling = sequence(), layers.Pooling("mean")
    assert_close(run(pooling, x, MASK.astype("float32")), of_rows("mean"), 1e-6)
    with pytest.raises(ValueError, match="must be boolean, or hold only 0 and 1"):
        run(pooling, x, MASK.astype("float32") * -1e9)
    with pytest.raises(ValueError, match="padding_mask"):
        run(pooling, x, MASK[:, :3])
