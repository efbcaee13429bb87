"""The masks that Keras carries on tensors, on the way between layers of Keras and layers of this library."""

import functools

import keras
import numpy as np
import pytest
from helpers_models import assert_close
from keras import ops

from keras_attn import layers, models
from keras_attn.layers import layer_slots
from keras_attn.layers.base_layer import BaseLayer

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


def of_vectors(layer, **arguments):
    """A layer on one sequence, or on it and itself."""
    return lambda x: layer(x, x, **arguments) if layer_slots.is_attention(layer) else layer(x, **arguments)


# Each public layer that is called on a sequence of vectors (B, T, 12): what makes it, and how it is called.
ON_VECTORS = {
    "BahdanauAttention": lambda: of_vectors(layers.BahdanauAttention(5)),
    "ClassificationHead": lambda: of_vectors(layers.ClassificationHead(3, pooling="mean")),
    "DecoderBlock": lambda: of_vectors(layers.DecoderBlock(13, 3)),
    "DifferentialAttention": lambda: of_vectors(layers.DifferentialAttention(3, 4)),
    "EncoderBlock": lambda: of_vectors(layers.EncoderBlock(13, 3)),
    "FeedForward": lambda: of_vectors(layers.FeedForward(13)),
    "ImageClassificationHead": lambda: of_vectors(layers.ImageClassificationHead(3, "mean", 0)),
    "MaskedLanguageModelHead": lambda: of_vectors(
        layers.MaskedLanguageModelHead(layers.TokenEmbedding(V, D))
    ),
    "MultiHeadAttention": lambda: of_vectors(layers.MultiHeadAttention(3, 4)),
    "Pooling": lambda: of_vectors(layers.Pooling("mean")),
    "PositionEmbedding": lambda: of_vectors(layers.PositionEmbedding(600)),
    "Residual": lambda: of_vectors(layers.Residual(), sublayer=keras.layers.Dense(D)),
    "SequenceEmbedding": lambda: of_vectors(
        layers.SequenceEmbedding(layers.TokenEmbedding(V, D, mask_zero=True)), reverse=True
    ),
    "SinusoidalPositionEncoding": lambda: of_vectors(layers.SinusoidalPositionEncoding()),
    "TalkingHeadsAttention": lambda: of_vectors(layers.TalkingHeadsAttention(3, 4)),
    "TokenClassificationHead": lambda: of_vectors(layers.TokenClassificationHead(3)),
    "TokenEmbedding": lambda: of_vectors(layers.TokenEmbedding(V, D, mask_zero=True), reverse=True),
}


def some(table, *names):
    """The cases of a table, of which these alone are in the default run."""
    return [pytest.param(name, marks=() if name in names else pytest.mark.extended) for name in table]


WITHOUT_TIME = ("ClassificationHead", "ImageClassificationHead", "Pooling")
# On heads (B, N, T, H) and on images (B, rows, columns, D).
ON_OTHERS = {
    "AlibiBias": (layers.AlibiBias, (3, 5, 8)),
    "AxialRotaryEmbedding": (
        lambda: of_vectors(layers.AxialRotaryEmbedding(), positions=np.arange(5)),
        (3, 5, 8),
    ),
    "PatchEmbedding": (lambda: layers.PatchEmbedding(2, 8, position=None), (6, 8, 3)),
    "PatchMerging": (layers.PatchMerging, (6, 8, D)),
    "RelativePositionBias": (lambda: layers.RelativePositionBias(8, max_distance=9), (3, 5, 8)),
    "RelativePositionKeys": (lambda: layers.RelativePositionKeys(3), (3, 5, 8)),
    "RotaryEmbedding": (layers.RotaryEmbedding, (3, 5, 8)),
    "WindowAttention": (lambda: layers.WindowAttention(3, 4, 3), (6, 8, D)),
}
SIZES = {"hidden_dim": D, "num_heads": 3, "intermediate_dim": 13, "dropout": 0.0}


def encoder():
    return models.EncoderTransformer.from_sizes(V, 1, **SIZES)


def seq2seq():
    return models.Seq2SeqTransformer.from_sizes(V, 1, 1, **SIZES)


# Each public model of tokens, and whether its output has a mask.
ON_TOKENS = {
    "DecoderTransformer": (lambda: models.DecoderTransformer.from_sizes(V, 1, **SIZES), True),
    "EncoderTransformer": (encoder, True),
    "EncoderWithHead": (lambda: models.EncoderWithHead(encoder(), layers.TokenClassificationHead(3)), True),
    "EncoderWithHead of sequences": (
        lambda: models.EncoderWithHead(encoder(), layers.ClassificationHead(3)),
        False,
    ),
    "Seq2SeqReader": (lambda: models.Seq2SeqReader(seq2seq(), start_token_id=2), True),
}
ON_PAIRS = {
    "Ensemble": lambda: models.Ensemble([seq2seq(), seq2seq()]),
    "RNNSeq2Seq": lambda: models.RNNSeq2Seq(V, hidden_dim=D),
    "Seq2SeqTransformer": seq2seq,
}
ON_IMAGES = ("SwinTransformer", "VisionTransformer")


def test_every_public_layer_and_model_is_in_these_tables():
    assert set(layers.__all__) - {"PositionBias"} == {*ON_VECTORS, *ON_OTHERS}  # a base
    public = {name for name in models.__all__ if issubclass_of_model(getattr(models, name))}
    assert public == {name.split(" of ")[0] for name in ON_TOKENS} | {*ON_PAIRS, *ON_IMAGES}
    made = [getattr(layers, name) for name in layers.__all__] + [getattr(models, name) for name in public]
    assert all(issubclass(value, BaseLayer) for value in made)


def issubclass_of_model(value):
    return isinstance(value, type) and issubclass(value, keras.Model)


def token_input(name=None):
    return keras.Input((None,), dtype="int32", name=name)


def embedded(token_ids):
    return keras.layers.Embedding(V, D, mask_zero=True)(token_ids)


def outputs(model, *token_ids):
    arrays = [ops.convert_to_tensor(ids) for ids in token_ids]
    return ops.convert_to_numpy(model(arrays[0] if len(arrays) == 1 else arrays))


def assert_pads_change_nothing(model):
    together = outputs(model, IDS)
    for row, ids in enumerate(IDS):
        length = np.count_nonzero(ids)
        alone = outputs(model, IDS[row : row + 1, :length])[0]
        assert_close(together[row] if alone.ndim == 1 else together[row, :length], alone)


@pytest.mark.parametrize("name", some(ON_VECTORS, "ClassificationHead", "MultiHeadAttention"))
def test_a_layer_obeys_the_mask_and_carries_it_if_it_keeps_the_axis_of_time(name):
    token_ids = token_input()
    output = ON_VECTORS[name]()(embedded(token_ids))
    model = keras.Model(token_ids, output)
    assert_pads_change_nothing(model)
    masks = [getattr(x, "_keras_mask", None) for x in (output, model(ops.convert_to_tensor(IDS)))]
    assert all((mask is None) == (name in WITHOUT_TIME) for mask in masks)


def rms_norm():
    return keras.layers.RMSNormalization()


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "arguments",
    [
        {"position": layers.SinusoidalPositionEncoding},
        {"position": lambda: layers.PositionEmbedding(600), "norm": rms_norm},
        {"token_type": lambda: keras.layers.Embedding(2, D), "projection": lambda: keras.layers.Dense(D)},
        pytest.param({"dtype": lambda: "float64"}, marks=pytest.mark.extended),
    ],
    ids=lambda arguments: "-".join(arguments),
)
def test_a_sequence_embedding_carries_the_mask_of_its_tokens(arguments):
    token = layers.TokenEmbedding(V, D, mask_zero=True)
    embedding = layers.SequenceEmbedding(token, **{name: make() for name, make in arguments.items()})
    token_ids = token_input()
    assert_pads_change_nothing(keras.Model(token_ids, layers.EncoderBlock(13, 3)(embedding(token_ids))))
    floats = keras.Input((None,))  # ids without a dtype
    output = keras.Model(floats, embedding(floats))(ops.convert_to_tensor(IDS))
    np.testing.assert_array_equal(ops.convert_to_numpy(output._keras_mask), IDS != 0)


@pytest.mark.parametrize("name", some(ON_TOKENS, "EncoderTransformer"))
def test_the_output_of_a_model_has_the_mask_of_its_tokens(name):
    make, has_mask = ON_TOKENS[name]
    token_ids = token_input()
    model = make()
    output = model(token_ids)
    assert (getattr(output, "_keras_mask", None) is not None) == has_mask
    if not has_mask:
        assert getattr(model(IDS), "_keras_mask", None) is None
        return
    assert_pads_change_nothing(keras.Model(token_ids, layers.Pooling("mean")(output)))
    np.testing.assert_array_equal(ops.convert_to_numpy(model(IDS)._keras_mask), IDS != 0)
    given = np.roll(IDS != 0, 1, axis=0)
    output = model({"token_ids": IDS, "padding_mask": given})
    np.testing.assert_array_equal(ops.convert_to_numpy(output._keras_mask), given)


@pytest.mark.parametrize("name", some(ON_PAIRS, "Seq2SeqTransformer"))
def test_the_logits_of_a_translator_have_the_mask_of_the_target(name):
    model = ON_PAIRS[name]()
    inputs = {name: token_input(name) for name in ("encoder_token_ids", "decoder_token_ids")}
    functional = keras.Model(inputs, model(inputs))
    arrays = {"encoder_token_ids": IDS[::-1], "decoder_token_ids": IDS}
    output = functional({side: ops.convert_to_tensor(ids) for side, ids in arrays.items()})
    np.testing.assert_array_equal(ops.convert_to_numpy(output._keras_mask), IDS != 0)
    output = model({**arrays, "decoder_padding_mask": IDS > 1})
    np.testing.assert_array_equal(ops.convert_to_numpy(output._keras_mask), IDS > 1)


@pytest.mark.parametrize("reduction", ["sum", "sum_over_batch_size"])
@pytest.mark.parametrize("name", some(["DecoderTransformer", "EncoderWithHead"], "EncoderWithHead"))
def test_the_losses_of_keras_leave_out_the_pads_of_a_model(name, reduction):
    model = ON_TOKENS[name][0]()
    labels = np.random.default_rng(5).integers(0, 3, IDS.shape)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction)
    probabilities = ops.convert_to_numpy(ops.log_softmax(model(IDS)))
    of_tokens = -np.take_along_axis(probabilities, labels[..., None], axis=-1)[..., 0][IDS != 0]
    expected = of_tokens.sum() if reduction == "sum" else of_tokens.mean()
    more = [np.pad(x, [(0, 0), (0, 3)]) for x in (IDS, labels)]
    for token_ids, of_tokens in ((IDS, labels), more):
        assert_close(float(loss(of_tokens, model(token_ids))), expected)


@pytest.mark.parametrize("length", [3, pytest.param(None, marks=pytest.mark.extended)])
@pytest.mark.parametrize(
    "make_layer",
    [
        lambda: layers.EncoderBlock(13, 3),
        lambda: layers.DecoderBlock(13, 3),
        lambda: layers.Pooling("mean"),
        lambda: layers.ClassificationHead(3, pooling="max"),
    ],
    ids=["encoder_block", "decoder_block", "pooling", "classification_head"],
)
def test_time_distributed_hands_on_the_mask(make_layer, length):
    sentences = np.stack([IDS[:3], IDS[2:]])  # two texts of three sentences
    embedding, layer = layers.TokenEmbedding(V, D, mask_zero=True), make_layer()
    token_ids = keras.Input((length, None), dtype="int32")
    model = keras.Model(token_ids, keras.layers.TimeDistributed(layer)(embedding(token_ids)))
    expected = [ops.convert_to_numpy(layer(embedding(ops.convert_to_tensor(text)))) for text in sentences]
    assert_close(outputs(model, sentences), np.stack(expected))


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
READERS = {
    name: ON_VECTORS[name]
    for name in (
        "BahdanauAttention",
        "ClassificationHead",
        "DecoderBlock",
        "EncoderBlock",
        "MultiHeadAttention",
        "Pooling",
    )
}
READERS["another value"] = lambda: lambda x: layers.MultiHeadAttention(3, 4)(embedded(token_input()), x)
READERS["encoder_sequence"] = lambda: lambda x: layers.DecoderBlock(13, 3)(embedded(token_input()), x)


def nested(function):
    token_ids = token_input()
    return keras.Model(token_ids, function(token_ids))(token_input())


@pytest.mark.parametrize("reader", some(READERS, "Pooling"))
@pytest.mark.parametrize("way", DROPPED)
def test_a_layer_warns_of_a_mask_that_keras_dropped(way, reader):
    operation, drop = DROPPED[way]
    x, layer = drop(embedded(token_input())), READERS[reader]()
    message = rf"sees padding: .*\({operation}\)\. Pass the mask, as `\w+=`"
    with pytest.warns(UserWarning, match=message) as caught:
        layer(x)
    assert len([warning for warning in caught if warning.category is UserWarning]) == 1


@pytest.mark.sampled(1)
@pytest.mark.parametrize("way", KEPT)
def test_a_layer_does_not_warn_where_no_mask_was_lost(way):
    x = KEPT[way](embedded(token_input()))
    for name in ("ClassificationHead", "Pooling", "MultiHeadAttention"):
        READERS[name]()(x)


def test_a_layer_does_not_warn_where_a_mask_is_given():
    token_ids = token_input()
    x, mask = embedded(token_ids) * 4.0, ops.not_equal(token_ids, 0)
    pairs = ops.logical_and(ops.expand_dims(mask, 1), ops.expand_dims(mask, 2))
    attention = layers.MultiHeadAttention(3, 4)
    for masks in ({"value_mask": mask}, {"attention_mask": pairs}, {"segment_ids": token_ids}):
        attention(x, x, **masks)
    layers.EncoderBlock(13, 3)(x, padding_mask=mask)
    layers.EncoderBlock(13, 3)(x, mask=mask)
    layers.DecoderBlock(13, 3)(x, x, decoder_padding_mask=mask, encoder_padding_mask=mask)
    layers.TokenClassificationHead(3)(x, padding_mask=mask)


def test_one_layer_of_a_stack_warns_once():
    block = layers.EncoderBlock(13, 3)
    stack = [block, block, layers.EncoderBlock(13, 3), layers.Pooling("mean")]
    with pytest.warns(UserWarning, match=f"{block.name!r} .*sees padding") as caught:
        functools.reduce(lambda x, layer: layer(x), stack, embedded(token_input()) * 4.0)
    assert len(caught) == 1


# --- Products with a number, which Keras calls sparse ---


@pytest.mark.parametrize("name", some(ON_VECTORS, "BahdanauAttention", "EncoderBlock", "Residual"))
def test_a_layer_takes_the_product_of_vectors_and_a_number(name):
    token_ids = token_input()
    x, layer = keras.layers.Embedding(V, D)(token_ids), ON_VECTORS[name]()
    product, plain = (
        keras.Model(token_ids, layer(x * 4.0)),
        keras.Model(token_ids, layer(keras.layers.Rescaling(4.0)(x))),
    )
    assert not product.outputs[0].sparse
    assert_close(outputs(product, IDS), outputs(plain, IDS))


@pytest.mark.parametrize("name", ON_OTHERS)
def test_other_layers_take_the_product_of_a_tensor_and_a_number(name):
    make_layer, shape = ON_OTHERS[name]
    inputs = keras.Input(shape)
    assert not make_layer()(inputs * 4.0).sparse


@pytest.mark.parametrize("name", some([*ON_TOKENS, *ON_PAIRS], "EncoderTransformer"))
def test_models_take_the_product_of_ids_and_a_number(name):
    token_ids = token_input() * 1
    if name in ON_TOKENS:
        assert not ON_TOKENS[name][0]()(token_ids).sparse
    else:
        assert not ON_PAIRS[name]()({"encoder_token_ids": token_ids, "decoder_token_ids": token_ids}).sparse
