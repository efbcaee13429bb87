"""Every layer through `check_layer`, in each of its forms, and every bad argument with its message."""

import functools
import zlib

import keras
import numpy as np
import pytest
from helpers_layers import check_config, check_layer

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
    mask = real(length)
    return {"query": x, "value": x, "query_mask": mask, "value_mask": mask, **options}


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


@keras.saving.register_keras_serializable(package="keras_attn_tests")
class ResidualDense(layers.Residual):
    """`Residual` around a Dense layer: a function is no argument that a functional model could save."""

    def build(self, input_shape):
        super().build(input_shape)
        self._dense = keras.layers.Dense(input_shape[-1], dtype=self.dtype_policy, name="dense")
        self._dense.build(input_shape)

    def call(self, inputs, training=None):
        return super().call(inputs, sublayer=self._dense, training=training)


BOTH = {"query": "query_mask", "value": "value_mask"}
VALUE = {"value": "value_mask"}
DECODER = {"decoder_sequence": "decoder_padding_mask", "encoder_sequence": "encoder_padding_mask"}
ALONE = {"decoder_sequence": "decoder_padding_mask"}
POSITIONWISE = {"inputs": None}


def case(name, layer, make_inputs, padding=None, skip_connection=False, **arguments):
    return pytest.param(functools.partial(layer, **arguments), make_inputs, padding, skip_connection, id=name)


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
        "embedding_reverse_untied",
        layers.TokenEmbedding,
        logits,
        POSITIONWISE,
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
