"""Every layer through `check_layer`, in each of its forms, and every bad argument with its message."""

import functools
import re
import zlib

import numpy as np
import pytest
from helpers_layers import BACKEND, EmbeddingBothWays, ResidualDense, check_layer, compiled
from keras import ops

from keras_attn import layers

B, D = 3, 12


def sequence(name, length, *axes):
    """(B, length, *axes, D) floats; a call with the same sizes gives the same ones."""
    seed = zlib.crc32(f"{name} {length}".encode())
    return np.random.default_rng(seed).normal(size=(B, length, *axes, D)).astype("float32")


def real(length, *axes, left=False):
    """A padding mask: 1, 2/3 and 1/3 of the positions are real."""
    counts = np.array([[length], [(2 * length + 1) // 3], [(length + 2) // 3]])
    mask = np.arange(length) < counts
    mask = mask[:, ::-1] if left else mask
    return np.broadcast_to(mask.reshape(B, length, *(1,) * len(axes)), (B, length, *axes)).copy()


def self_attention(length, **options):
    x = sequence("x", length)
    masks = {"query_mask": real(length), "value_mask": real(length, left=True)}
    return {"query": x, "value": x, **masks, **options}


def cross_attention(length, **options):
    return {
        "query": sequence("query", length),
        "value": sequence("value", length + 6),
        "value_mask": real(length + 6, left=True),
        **options,
    }


def separate_key(length):
    return {**cross_attention(length), "key": sequence("key", length + 6)}


def pairwise_mask(length):
    allowed = np.random.default_rng(length).random((B, length, length + 6)) < 0.7
    return {**cross_attention(length), "attention_mask": allowed}


def image(length):
    x = sequence("image", length, 4)
    return {"query": x, "value": x, "value_mask": real(length, 4)}


def encoder(length):
    return {"inputs": sequence("inputs", length), "padding_mask": real(length)}


def decoder(length):
    return {
        "decoder_sequence": sequence("decoder", length),
        "encoder_sequence": sequence("encoder", length + 6),
        "decoder_padding_mask": real(length),
        "encoder_padding_mask": real(length + 6),
    }


def decoder_alone(length):
    return {"decoder_sequence": sequence("decoder", length), "decoder_padding_mask": real(length, left=True)}


def floats(length):
    return {"inputs": sequence("inputs", length)}


def token_ids(length):
    return {"inputs": np.random.default_rng(length).integers(0, 17, (B, length)).astype("int32")}


def logits(length):
    return {**floats(length), "reverse": True}


BOTH = {"query": "query_mask", "value": "value_mask"}
VALUE = {"value": "value_mask"}
DECODER = {"decoder_sequence": "decoder_padding_mask", "encoder_sequence": "encoder_padding_mask"}
ALONE = {"decoder_sequence": "decoder_padding_mask"}
POSITIONWISE = {"inputs": None}


# JAX compiles every op for every shape: what runs there by default are the cases that share no code path.
EVERYWHERE = {
    "attention_self",
    "encoder_post_norm",
    "residual",
    "embedding_untied",
    "positions",
}


def case(name, layer, make_inputs, padding=None, skip_connection=False, **arguments):
    marks = [] if BACKEND == "tensorflow" or name in EVERYWHERE else [pytest.mark.slow]
    make_layer = functools.partial(layer, **arguments)
    return pytest.param(make_layer, make_inputs, padding, skip_connection, id=name, marks=marks)


MHA = functools.partial(case, layer=layers.MultiHeadAttention, num_heads=2, key_dim=5)
ENCODER = functools.partial(
    case, layer=layers.EncoderBlock, make_inputs=encoder, padding={"inputs": "padding_mask"}
)
ENCODER = functools.partial(ENCODER, intermediate_dim=7, num_heads=3)
DECODERS = functools.partial(case, layer=layers.DecoderBlock, intermediate_dim=7, num_heads=3)
CASES = [
    MHA("attention_self", make_inputs=self_attention, padding=BOTH),
    MHA("attention_cross", make_inputs=cross_attention, padding=VALUE, dropout=0.1, value_dim=3),
    MHA(
        "attention_causal",
        make_inputs=functools.partial(self_attention, use_causal_mask=True),
        padding=BOTH,
        use_bias=False,
    ),
    MHA("attention_separate_key", make_inputs=separate_key, padding=VALUE, output_shape=(3, 7)),
    MHA("attention_pairwise_mask", make_inputs=pairwise_mask, padding=VALUE, use_gate=True, output_shape=11),
    MHA("attention_window", make_inputs=self_attention, padding=BOTH, sliding_window=2, value_dim=7),
    MHA("attention_axis_1", make_inputs=image, padding=VALUE, attention_axes=1),
    MHA("attention_axes_1_2", make_inputs=image, padding=VALUE, attention_axes=(1, 2), use_gate=True),
    ENCODER("encoder_post_norm"),
    ENCODER(
        "encoder_pre_norm_rms_gated", normalize_first=True, normalization="rms_norm", gated=True, dropout=0.1
    ),
    DECODERS("decoder_post_norm", make_inputs=decoder, padding=DECODER, attention_dropout=0.1),
    DECODERS(
        "decoder_pre_norm_rms",
        make_inputs=decoder,
        padding=DECODER,
        normalize_first=True,
        normalization="rms_norm",
    ),
    DECODERS("decoder_alone", make_inputs=decoder_alone, padding=ALONE, activation="gelu"),
    case("feed_forward", layers.FeedForward, floats, POSITIONWISE, intermediate_dim=7),
    case(
        "feed_forward_gated",
        layers.FeedForward,
        floats,
        POSITIONWISE,
        intermediate_dim=7,
        gated=True,
        activation="silu",
        use_bias=False,
    ),
    case("residual", ResidualDense, floats, POSITIONWISE, dropout=0.2),
    case(
        "residual_pre_norm_rms",
        ResidualDense,
        floats,
        POSITIONWISE,
        normalize_first=True,
        normalization="rms_norm",
    ),
    case("embedding", layers.TokenEmbedding, token_ids, vocabulary_size=17, hidden_dim=D, mask_zero=True),
    case(
        "embedding_unscaled", layers.TokenEmbedding, token_ids, vocabulary_size=17, hidden_dim=D, scale=False
    ),
    case("embedding_reverse", layers.TokenEmbedding, logits, POSITIONWISE, vocabulary_size=17, hidden_dim=D),
    case(
        "embedding_untied",
        EmbeddingBothWays,
        token_ids,
        vocabulary_size=17,
        hidden_dim=D,
        tie_weights=False,
    ),
    case("sinusoid", layers.SinusoidalPositionEncoding, floats, skip_connection=True, max_wavelength=100.0),
    case("positions", layers.PositionEmbedding, floats, skip_connection=True, max_sequence_length=13),
]


@pytest.mark.parametrize(("make_layer", "make_inputs", "padding", "skip_connection"), CASES)
def test_layer(make_layer, make_inputs, padding, skip_connection, tmp_path, child):
    check_layer(make_layer, make_inputs, tmp_path, child, padding, skip_connection)


def test_every_layer_is_checked():
    checked = {base.__name__ for param in CASES for base in param.values[0].func.__mro__}
    assert set(layers.__all__) <= checked


def ids(*values):
    return np.array([values], "int32")


X = np.ones((2, 5, D), "float32")
Y = np.ones((2, 7, D), "float32")
BAD_CONSTRUCTIONS = [
    (
        layers.MultiHeadAttention,
        {"num_heads": 0, "key_dim": 3},
        "`num_heads` must be a positive integer. Received: num_heads=0.",
    ),
    (
        layers.MultiHeadAttention,
        {"num_heads": 2, "key_dim": 2.5},
        "`key_dim` must be a positive integer. Received: key_dim=2.5.",
    ),
    (
        layers.MultiHeadAttention,
        {"num_heads": True, "key_dim": 3},
        "`num_heads` must be a positive integer. Received: num_heads=True.",
    ),
    (
        layers.MultiHeadAttention,
        {"num_heads": 2, "key_dim": 3, "value_dim": -1},
        "`value_dim` must be a positive integer. Received: value_dim=-1.",
    ),
    (
        layers.MultiHeadAttention,
        {"num_heads": 2, "key_dim": 3, "sliding_window": 0},
        "`sliding_window` must be a positive integer. Received: sliding_window=0.",
    ),
    (
        layers.MultiHeadAttention,
        {"num_heads": 2, "key_dim": 3, "dropout": 1},
        "`dropout` must be in [0, 1). Received: dropout=1.",
    ),
    (
        layers.MultiHeadAttention,
        {"num_heads": 2, "key_dim": 3, "flash_attention": True},
        "`flash_attention` must be None or False",
    ),
    (
        layers.EncoderBlock,
        {"intermediate_dim": 0, "num_heads": 3},
        "`intermediate_dim` must be a positive integer. Received: intermediate_dim=0.",
    ),
    (
        layers.EncoderBlock,
        {"intermediate_dim": 5, "num_heads": 3, "normalization": "batch"},
        "`normalization` must be one of ['layer_norm', 'rms_norm']. Received: normalization='batch'.",
    ),
    (
        layers.EncoderBlock,
        {"intermediate_dim": 5, "num_heads": 3, "attention_dropout": -0.1},
        "`attention_dropout` must be in [0, 1). Received: attention_dropout=-0.1.",
    ),
    (
        layers.DecoderBlock,
        {"intermediate_dim": 5, "num_heads": "3"},
        "`num_heads` must be a positive integer. Received: num_heads=3.",
    ),
    (
        layers.DecoderBlock,
        {"intermediate_dim": 5, "num_heads": 3, "dropout": 2},
        "`dropout` must be in [0, 1). Received: dropout=2.",
    ),
    (layers.Residual, {"dropout": "0.1"}, "`dropout` must be in [0, 1). Received: dropout=0.1."),
    (
        layers.Residual,
        {"normalization": None},
        "`normalization` must be one of ['layer_norm', 'rms_norm']. Received: normalization=None.",
    ),
    (
        layers.FeedForward,
        {"intermediate_dim": -2},
        "`intermediate_dim` must be a positive integer. Received: intermediate_dim=-2.",
    ),
    (
        layers.TokenEmbedding,
        {"vocabulary_size": 0, "hidden_dim": 3},
        "`vocabulary_size` must be a positive integer. Received: vocabulary_size=0.",
    ),
    (
        layers.TokenEmbedding,
        {"vocabulary_size": 5, "hidden_dim": 0},
        "`hidden_dim` must be a positive integer. Received: hidden_dim=0.",
    ),
    (
        layers.PositionEmbedding,
        {"max_sequence_length": 0},
        "`max_sequence_length` must be a positive integer. Received: max_sequence_length=0.",
    ),
    (
        layers.SinusoidalPositionEncoding,
        {"max_wavelength": 0},
        "`max_wavelength` must be positive. Received: max_wavelength=0.",
    ),
]


@pytest.mark.parametrize(("layer", "arguments", "message"), BAD_CONSTRUCTIONS)
def test_bad_constructor_arguments_are_refused(layer, arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        layer(**arguments)


def test_every_layer_refuses_some_construction():
    assert {layer.__name__ for layer, _, _ in BAD_CONSTRUCTIONS} == set(layers.__all__)


def attention(**arguments):
    return layers.MultiHeadAttention(num_heads=2, key_dim=5, **arguments)


def true(*shape):
    return np.ones(shape, bool)


BAD_CALLS = {
    "query_mask": (
        attention,
        {"query": X, "value": Y, "query_mask": true(2, 7)},
        "`query_mask` must have shape (2, 5). Received: query_mask of shape (2, 7).",
    ),
    "value_mask": (
        attention,
        {"query": X, "value": Y, "value_mask": true(2, 5)},
        "`value_mask` must have shape (2, 7). Received: value_mask of shape (2, 5).",
    ),
    "value_mask_of_one_key": (
        attention,
        {"query": X, "value": Y, "value_mask": true(2, 1)},
        "`value_mask` must have shape (2, 7). Received: value_mask of shape (2, 1).",
    ),
    "attention_mask": (
        attention,
        {"query": X, "value": Y, "attention_mask": true(2, 7, 5)},
        "`attention_mask` must broadcast to shape (2, 2, 5, 7). Received: attention_mask of shape (2, 7, 5).",
    ),
    "attention_mask_of_another_batch": (
        attention,
        {"query": X, "value": Y, "attention_mask": true(3, 5, 7)},
        "`attention_mask` must broadcast to shape (2, 2, 5, 7).",
    ),
    "additive_mask": (
        attention,
        {"query": X, "value": Y, "attention_mask": np.full((5, 7), -1e9, "float32")},
        "`attention_mask` must be boolean, or hold only 0 and 1",
    ),
    "additive_padding": (
        attention,
        {"query": X, "value": Y, "value_mask": np.full((2, 7), 0.5, "float32")},
        "`value_mask` must be boolean, or hold only 0 and 1",
    ),
    "key_of_another_length": (
        attention,
        {"query": X, "value": Y, "key": X},
        "`key` and `value` must have the same shape but for the last axis. Received: value_shape=(2, 7, 12), key_shape=(2, 5, 12).",
    ),
    "rank_2": (
        attention,
        {"query": X[:, 0], "value": Y[:, 0]},
        "`query` and `value` must both have the shape (B, T, D)",
    ),
    "rank_3_and_4": (
        attention,
        {"query": X, "value": Y[..., None]},
        "`query` and `value` must both have the shape (B, T, D)",
    ),
    "feature_axis": (
        lambda: attention(attention_axes=2),
        {"query": X, "value": Y},
        "`attention_axes` must name axes between the batch and the features. Received: attention_axes=(2,) for inputs of rank 3.",
    ),
    "causal_over_two_axes": (
        attention,
        {"query": X[..., None], "value": X[..., None], "use_causal_mask": True},
        "`use_causal_mask` and `sliding_window` need one axis to attend over.",
    ),
    "heads_do_not_divide": (
        lambda: layers.EncoderBlock(5, 7),
        {"inputs": X},
        "The last axis of the inputs must be divisible by `num_heads`. Received: 12 features, num_heads=7.",
    ),
    "encoder_mask": (
        lambda: layers.EncoderBlock(5, 3),
        {"inputs": X, "padding_mask": true(2, 7)},
        "must have shape (2, 5).",
    ),
    "decoder_mask": (
        lambda: layers.DecoderBlock(5, 3),
        {"decoder_sequence": X, "encoder_sequence": Y, "encoder_padding_mask": true(2, 5)},
        "`encoder_padding_mask` must have shape (2, 7). Received: encoder_padding_mask of shape (2, 5).",
    ),
    "id_too_large": (
        lambda: layers.TokenEmbedding(17, D),
        {"inputs": ids(3, 17)},
        "Token ids must lie in [0, 17). Received: 17.",
    ),
    "ids_below_0": (
        lambda: layers.TokenEmbedding(17, D),
        {"inputs": ids(-1, 0, -2)},
        "Token ids must lie in [0, 17). Received: -1 and 1 more.",
    ),
    "too_long": (
        lambda: layers.PositionEmbedding(3),
        {"inputs": X},
        "The sequence is longer than `max_sequence_length`. Received: length 5, max_sequence_length=3.",
    ),
    "position_too_large": (
        lambda: layers.PositionEmbedding(7),
        {"inputs": X, "start_index": 3},
        "Positions must lie in [0, 7). Received: 3 to 7.",
    ),
    "position_below_0": (
        lambda: layers.PositionEmbedding(7),
        {"inputs": X, "positions": np.arange(5) - 1},
        "Positions must lie in [0, 7). Received: -1 to 3.",
    ),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_bad_call_arguments_are_refused(name):
    make_layer, arguments, message = BAD_CALLS[name]
    with pytest.raises(ValueError, match=re.escape(message)):
        make_layer()(**arguments)


def test_a_decoder_block_is_called_as_it_was_built():
    block = layers.DecoderBlock(5, 3)
    block(X)
    with pytest.raises(ValueError, match="built without an encoder sequence"):
        block(X, Y)
    block = layers.DecoderBlock(5, 3)
    block(X, Y)
    with pytest.raises(ValueError, match="`encoder_sequence` \\(or `cross_attention_cache`\\) must be given"):
        block(X)


def test_a_refused_call_leaves_the_layer_usable():
    layer = attention()
    expected = layer(X, Y)
    with pytest.raises(ValueError, match="value_mask"):
        layer(X, Y, value_mask=true(2, 5))
    np.testing.assert_array_equal(layer(X, Y), expected)


@pytest.mark.parametrize(("token_id", "clamped"), [(17, 16), (99, 16), (-1, 0)])
def test_ids_outside_the_vocabulary_are_clamped_in_a_compiled_graph(token_id, clamped):
    layer = layers.TokenEmbedding(17, D)
    expected = layer(ids(clamped, 3))
    actual = compiled(layer)(ops.convert_to_tensor(ids(token_id, 3)))
    np.testing.assert_allclose(actual, expected, rtol=1e-6)


def test_positions_past_the_last_are_clamped_in_a_compiled_graph():
    layer = layers.PositionEmbedding(7)
    expected = layer(X, positions=np.array([3, 6, 6, 0, 1]))
    actual = compiled(lambda positions: layer(X, positions=positions))(
        ops.convert_to_tensor([3, 7, 99, -2, 1])
    )
    np.testing.assert_allclose(actual, expected, rtol=1e-6)
