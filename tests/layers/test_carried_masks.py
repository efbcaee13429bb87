"""The masks that Keras carries on tensors, on the way between layers of Keras and layers of this library."""

import functools

import keras
import numpy as np
import pytest
from helpers_models import assert_close
from keras import ops

from keras_attn import layers, models

V, D = 17, 12
IDS = np.array(
    [[5, 7, 3, 2, 11], [4, 9, 0, 0, 0], [6, 0, 0, 0, 0], [3, 2, 8, 1, 0], [8, 4, 4, 0, 0]], "int32"
)


@pytest.mark.parametrize("rank", [3, 4])
@pytest.mark.parametrize(
    "make_layer",
    [layers.SinusoidalPositionEncoding, lambda **kwargs: layers.PositionEmbedding(13, **kwargs)],
    ids=["sinusoidal", "learned"],
)
def test_positions_have_the_shape_of_the_sequence_and_its_mask(make_layer, rank):
    # As many rows as tokens: Keras' `Add` took an axis of tokens for that of rows.
    shape = (5, 5, D) if rank == 3 else (5, 2, 5, D)
    x = ops.convert_to_tensor(np.random.default_rng(3).normal(size=shape).astype("float32"))
    layer = make_layer()
    vectors = layer(x)
    assert tuple(vectors.shape) == shape
    for positions in (None, np.array([3, 1, 4, 1, 5])):
        expected = layer.encoding(x, positions=positions)
        assert tuple(expected.shape) == (5, D)
        vectors = layer(x, positions=positions)
        assert_close(
            ops.convert_to_numpy(keras.layers.Add()([x, vectors])), ops.convert_to_numpy(x + expected)
        )
    token_ids = keras.Input((None,), dtype="int32")
    embedded = keras.layers.Embedding(V, D, mask_zero=True)(token_ids)
    together = keras.layers.Add()([embedded, layer(embedded)])
    assert layer(embedded).shape == (None, None, D)
    pooled = keras.Model(token_ids, layers.Pooling("mean")(together))
    actual = ops.convert_to_numpy(pooled(ops.convert_to_tensor(IDS)))
    assert_close(actual[1], ops.convert_to_numpy(pooled(ops.convert_to_tensor(IDS[1:2, :2])))[0])


# What reads a sequence of vectors (B, T, 12), and its padding.
READERS = {
    "BahdanauAttention": lambda x: layers.BahdanauAttention(5)(x, x),
    "ClassificationHead": lambda x: layers.ClassificationHead(3, pooling="mean")(x),
    "EncoderBlock": lambda x: layers.EncoderBlock(13, 3)(x),
    "MultiHeadAttention": lambda x: layers.MultiHeadAttention(3, 4)(x, x),
    "Pooling": lambda x: layers.Pooling("mean")(x),
    "Residual": lambda x: layers.Residual()(x, sublayer=keras.layers.Dense(D)),
    "another value": lambda x: layers.MultiHeadAttention(3, 4)(embedded(token_input()), x),
    "encoder_sequence": lambda x: layers.DecoderBlock(13, 3)(embedded(token_input()), x),
}
# On heads (B, N, T, H) and on images (B, rows, columns, D).
ON_OTHERS = {
    "AlibiBias": (layers.AlibiBias, (3, 5, 8)),
    "PatchEmbedding": (lambda: layers.PatchEmbedding(2, 8, position=None), (6, 8, 3)),
    "PatchMerging": (layers.PatchMerging, (6, 8, D)),
    "RelativePositionBias": (lambda: layers.RelativePositionBias(8, max_distance=9), (3, 5, 8)),
    "RelativePositionKeys": (lambda: layers.RelativePositionKeys(3), (3, 5, 8)),
    "RotaryEmbedding": (layers.RotaryEmbedding, (3, 5, 8)),
    "WindowAttention": (lambda: layers.WindowAttention(3, 4, 3), (6, 8, D)),
}
SIZES = {"hidden_dim": D, "num_heads": 3, "intermediate_dim": 13, "dropout": 0.0}


def token_input():
    return keras.Input((None,), dtype="int32")


def embedded(token_ids):
    return keras.layers.Embedding(V, D, mask_zero=True)(token_ids)


@pytest.mark.parametrize("name", ["ClassificationHead", "Pooling"])
def test_without_an_axis_of_time_there_is_no_mask(name):
    assert getattr(READERS[name](embedded(token_input())), "_keras_mask", None) is None


def test_ids_without_a_dtype_have_a_mask():
    """`keras.Input((None,))` is float32."""
    embedding = layers.SequenceEmbedding(
        layers.TokenEmbedding(V, D, mask_zero=True),
        token_type=keras.layers.Embedding(2, D),
        projection=keras.layers.Dense(D),
    )
    floats = keras.Input((None,))
    output = keras.Model(floats, embedding(floats))(ops.convert_to_tensor(IDS))
    np.testing.assert_array_equal(ops.convert_to_numpy(output._keras_mask), IDS != 0)


def test_a_model_hands_on_the_mask_that_it_is_given():
    given = np.roll(IDS != 0, 1, axis=0)
    output = models.EncoderTransformer.from_sizes(V, 1, **SIZES)({"token_ids": IDS, "padding_mask": given})
    np.testing.assert_array_equal(ops.convert_to_numpy(output._keras_mask), given)
    pair = {"encoder_token_ids": IDS[::-1], "decoder_token_ids": IDS, "decoder_padding_mask": given}
    output = models.Seq2SeqTransformer.from_sizes(V, 1, 1, **SIZES)(pair)
    np.testing.assert_array_equal(ops.convert_to_numpy(output._keras_mask), given)


@pytest.mark.parametrize("reduction", ["sum", "sum_over_batch_size"])
def test_the_losses_of_keras_leave_out_the_pads_of_a_model(reduction):
    encoder = models.EncoderTransformer.from_sizes(V, 1, **SIZES)
    model = models.EncoderWithHead(encoder, layers.TokenClassificationHead(3))
    labels = np.random.default_rng(5).integers(0, 3, IDS.shape)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction)
    probabilities = ops.convert_to_numpy(ops.log_softmax(model(IDS)))
    of_tokens = -np.take_along_axis(probabilities, labels[..., None], axis=-1)[..., 0][IDS != 0]
    expected = of_tokens.sum() if reduction == "sum" else of_tokens.mean()
    more = [np.pad(x, [(0, 0), (0, 3)]) for x in (IDS, labels)]
    for token_ids, of_tokens in ((IDS, labels), more):
        assert_close(float(loss(of_tokens, model(token_ids))), expected)


def test_an_argument_mask_is_joined_with_the_padding_mask_of_the_layer():
    x = np.random.default_rng(7).normal(size=(*IDS.shape, D)).astype("float32")
    block, mask, padding_mask = layers.EncoderBlock(13, 3), IDS != 0, IDS != 2
    actual = block(x, padding_mask=padding_mask.astype("int32"), mask=ops.convert_to_tensor(mask))
    assert_close(
        ops.convert_to_numpy(actual), ops.convert_to_numpy(block(x, padding_mask=mask & padding_mask))
    )


# --- Masks that Keras drops ---

DROPPED = {
    "+": ("Add", lambda x: x + layers.SinusoidalPositionEncoding()(x)),
    "*": ("Multiply", lambda x: x * 4.0),
    "keras.ops": ("Relu", ops.relu),
    "several": ("Add", lambda x: x * 4.0 + layers.SinusoidalPositionEncoding()(x)),
    "residual": ("Add", lambda x: x + layers.MultiHeadAttention(3, 4)(x, x)),
    "cast": ("Cast", lambda x: ops.cast(x, "float64")),
    "index": ("GetItem", lambda x: x[:, 1:]),
    "concatenate": ("Concatenate", lambda x: ops.concatenate([x, x], axis=1)),
    "before other layers": ("Multiply", lambda x: keras.layers.Dense(D)(keras.layers.Dropout(0.1)(x * 4.0))),
    "Add of one mask": ("Add", lambda x: keras.layers.Add()([x, layers.FeedForward(13)(x / 2)])),
    "nested": ("Multiply", lambda x: nested(lambda x: embedded(x) * 4.0)),
}
KEPT = {
    "Add": lambda x: keras.layers.Add()([x, layers.SinusoidalPositionEncoding()(x)]),
    "layers": lambda x: keras.layers.UnitNormalization()(keras.layers.Rescaling(4.0)(x)),
    "no mask": lambda x: keras.layers.Embedding(V, D)(token_input()) * 4.0,
    "one token": lambda x: (x * 4.0)[:, :1],
    "no axis of time": lambda x: keras.layers.RepeatVector(3)(layers.Pooling("mean")(x)),
    "nested": lambda x: keras.layers.Add()([nested(embedded), nested(embedded)]),
}


def nested(function):
    token_ids = token_input()
    return keras.Model(token_ids, function(token_ids))(token_input())


@pytest.mark.parametrize(
    ("way", "reader"),
    [*((way, "Pooling") for way in DROPPED), ("+", "another value"), ("*", "encoder_sequence")],
)
def test_a_layer_warns_of_a_mask_that_keras_dropped(way, reader):
    operation, drop = DROPPED[way]
    x = drop(embedded(token_input()))
    message = rf"sees padding: .*\({operation}\)\. Pass the mask, as `\w+=`"
    with pytest.warns(UserWarning, match=message) as caught:
        READERS[reader](x)
    assert len([warning for warning in caught if warning.category is UserWarning]) == 1


@pytest.mark.sampled(1)
@pytest.mark.parametrize("way", KEPT)
def test_a_layer_does_not_warn_where_no_mask_was_lost(way):
    x = KEPT[way](embedded(token_input()))
    for name in ("ClassificationHead", "Pooling", "MultiHeadAttention"):
        READERS[name](x)


def test_attention_does_not_warn_where_pairs_or_segments_are_given():
    token_ids = token_input()
    x, mask = embedded(token_ids) * 4.0, ops.not_equal(token_ids, 0)
    pairs = ops.logical_and(ops.expand_dims(mask, 1), ops.expand_dims(mask, 2))
    attention = layers.MultiHeadAttention(3, 4)
    for masks in ({"attention_mask": pairs}, {"segment_ids": token_ids}):
        attention(x, x, **masks)


def test_one_layer_of_a_stack_warns_once():
    block = layers.EncoderBlock(13, 3)
    stack = [block, block, layers.EncoderBlock(13, 3), layers.Pooling("mean")]
    with pytest.warns(UserWarning, match=f"{block.name!r} .*sees padding") as caught:
        functools.reduce(lambda x, layer: layer(x), stack, embedded(token_input()) * 4.0)
    assert len(caught) == 1


# --- Products with a number, which Keras calls sparse ---


@pytest.mark.parametrize("name", ["BahdanauAttention", "EncoderBlock", "Residual"])
def test_a_layer_takes_the_product_of_vectors_and_a_number(name):
    token_ids = token_input()
    x = keras.layers.Embedding(V, D)(token_ids)
    keras.utils.set_random_seed(5)
    product = keras.Model(token_ids, READERS[name](x * 4.0))
    keras.utils.set_random_seed(5)
    plain = keras.Model(token_ids, READERS[name](keras.layers.Rescaling(4.0)(x)))
    assert not product.outputs[0].sparse
    ids = ops.convert_to_tensor(IDS)
    assert_close(ops.convert_to_numpy(product(ids)), ops.convert_to_numpy(plain(ids)))


@pytest.mark.parametrize("name", ON_OTHERS)
def test_other_layers_take_the_product_of_a_tensor_and_a_number(name):
    make_layer, shape = ON_OTHERS[name]
    assert not make_layer()(keras.Input(shape) * 4.0).sparse


def test_a_model_takes_the_product_of_ids_and_a_number():
    assert not models.EncoderTransformer.from_sizes(V, 1, **SIZES)(token_input() * 1).sparse
