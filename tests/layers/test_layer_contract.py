"""Every layer through `check_layer`, in its forms, and every bad argument with its message.

The forms of `MultiHeadAttention` are in test_attention_combinations.py, and what all layers do with Keras' habits in tests/meetings.
"""

import functools
import re
import zlib

import keras
import numpy as np
import pytest
from helpers_layers import (
    BACKEND,
    AttentionWithSlots,
    DecoderBlockWithSlots,
    EmbeddingBothWays,
    EncoderBlockWithSlots,
    MaskedLanguageModelHeadWithSlots,
    PatchEmbeddingWithSlots,
    ResidualDense,
    SequenceEmbeddingWithSlots,
    assert_equal,
    check_layer,
    compiled,
    flat_arrays,
)
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


def image(length):
    x = sequence("image", length, 4)
    return {"query": x, "value": x, "value_mask": real(length, 4)}


def pixels(length):
    return {"inputs": sequence("pixels", length, 4), "padding_mask": real(length, 4)}


def photos(length):
    return {"inputs": sequence("photos", length, 4)}


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


def heads(length):
    """Heads before time, as rotary positions take them."""
    return {"inputs": np.moveaxis(sequence("heads", length, 2), 2, 1).copy()}


def heads_left_padded(length):
    positions = np.arange(length) - (~real(length, left=True)).sum(-1, keepdims=True)
    return {**heads(length), "positions": positions.astype("int32")}


def heads_on_a_grid(length):
    rows, columns = np.arange(length) // 3, np.arange(length) % 3
    return {**heads(length), "positions": (rows * 2**16 + columns).astype("int32")}


def heads_and_positions(length):
    """Heads before time, and positions of packed queries and shuffled keys."""
    rng = np.random.default_rng(length)
    return {
        "query": np.moveaxis(sequence("heads", length, 2), 2, 1).copy(),
        "query_positions": np.tile(np.arange(length) % 4, (B, 1)).astype("int32"),
        "key_positions": rng.integers(0, 9, (B, length + 6)).astype("int32"),
    }


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
    "attention_relative_keys_in_blocks",
    "bahdanau_self",
    "window_shifted",
    "encoder_post_norm",
    "residual",
    "embedding_untied",
    "positions",
    "relative_keys",
}


# Forms that share most of their code with another: a case takes seconds. The tests named first are run more often.
EXTENDED = {
    "image_classification_head",
    "patches",
    "decoder_post_norm",
    "decoder_pre_norm_rms",
    "encoder_pre_norm_rms_gated",
    "attention_differential",
    "relative_keys",
    "classification_head",
    "token_classification_head",
    "sequence_embedding",
    "bahdanau_self",
    "relative_positions",
    "masked_language_model_head",
    "embedding_output_bias",
    "rotary_interleaved_partial",
}
SLOW = {
    "merging",
    "window_of_published_code",
    "image_classification_head_distilled",
    "patches_padded",
    "rotary_axial",
    "decoder_alone",
    "encoder_of_a_given_feed_forward",
    "residual_layer_scale",
    "attention_axes_1_2",
    "attention_relative_keys_in_blocks",
    "attention_talking_heads",
    "bahdanau_causal",
    "bahdanau_separate_key",
    "decoder_alone_parallel",
    "decoder_remat",
    "embedding_reverse",
    "embedding_unscaled",
    "encoder_layer_scale_remat",
    "encoder_parallel_sandwich",
    "feed_forward",
    "relative_positions_causal",
    "residual_pre_norm_rms",
    "residual_sandwich",
    "rotary_dynamic_ntk",
    "window",
    "window_shifted_down",
}


# One form of each class, the one with most of its code, is checked in graphs too: see `check_layer`. Those of the blocks
# take longest and are extended: by default models made of blocks are traced and exported.
IN_GRAPHS = {
    "attention_self",
    "attention_relative_keys_in_blocks",
    "bahdanau_self",
    "window_shifted",
    "attention_differential",
    "attention_talking_heads",
    "encoder_pre_norm_rms_gated",
    "decoder_pre_norm_rms",
    "feed_forward_gated",
    "residual_sandwich",
    "embedding_untied",
    "sequence_embedding",
    "sinusoid",
    "rotary_interleaved_partial",
    "alibi",
    "relative_positions",
    "relative_keys",
    "positions",
    "patches",
}


def case(name, layer, make_inputs, padding=None, skip_connection=False, **arguments):
    if BACKEND == "tensorflow":
        marks = pytest.mark.slow if name in SLOW else pytest.mark.extended if name in EXTENDED else ()
    else:
        marks = () if name in EVERYWHERE else pytest.mark.slow
    make_layer = functools.partial(layer, **arguments)
    in_graphs = name in IN_GRAPHS
    return pytest.param(make_layer, make_inputs, padding, skip_connection, in_graphs, id=name, marks=marks)


RMS_NORM = functools.partial(keras.layers.RMSNormalization, epsilon=1e-5)
MHA = functools.partial(case, layer=layers.MultiHeadAttention, num_heads=2, key_dim=5)
SLOTS = functools.partial(case, layer=AttentionWithSlots, num_heads=2)
ENCODER = functools.partial(
    case, layer=layers.EncoderBlock, make_inputs=encoder, padding={"inputs": "padding_mask"}
)
ENCODER = functools.partial(ENCODER, intermediate_dim=7, num_heads=3)
WINDOWS = functools.partial(
    case, layer=layers.WindowAttention, make_inputs=pixels, padding={"inputs": "padding_mask"}
)
WINDOWS = functools.partial(WINDOWS, num_heads=2, key_dim=5, window_size=(3, 2))
DECODERS = functools.partial(case, layer=layers.DecoderBlock, intermediate_dim=7, num_heads=3)
CASES = [
    MHA("attention_self", make_inputs=self_attention, padding=BOTH),
    MHA("attention_axes_1_2", make_inputs=image, padding=VALUE, attention_axes=(1, 2), use_gate=True),
    SLOTS(
        "attention_relative_keys_in_blocks",
        make_inputs=self_attention,
        padding=BOTH,
        key_dim=5,
        logit_soft_cap=2.0,
        use_sink_logits=True,
        memory_efficient=True,
        dropout=0.1,
        position_bias=functools.partial(layers.RelativePositionKeys, max_distance=3),
    ),
    case("bahdanau_self", layers.BahdanauAttention, self_attention, BOTH, units=7),
    case(
        "bahdanau_causal",
        layers.BahdanauAttention,
        functools.partial(self_attention, use_causal_mask=True),
        BOTH,
        units=5,
    ),
    case("bahdanau_separate_key", layers.BahdanauAttention, separate_key, VALUE, units=7, dropout=0.1),
    WINDOWS("window"),
    WINDOWS("window_shifted", shift_size=(1, 1), dropout=0.1),
    WINDOWS("window_shifted_down", shift_size=(2, 0), use_bias=False),
    WINDOWS(
        "window_of_published_code",
        make_inputs=photos,
        padding=None,
        shift_size=(2, 1),
        attend_to_padding=True,
        use_output_bias=False,
    ),
    case(
        "attention_differential",
        layers.DifferentialAttention,
        self_attention,
        BOTH,
        num_heads=2,
        key_dim=3,
        lambda_init=0.3,
        dropout=0.1,
    ),
    case(
        "attention_talking_heads",
        layers.TalkingHeadsAttention,
        cross_attention,
        VALUE,
        num_heads=3,
        key_dim=5,
    ),
    ENCODER("encoder_post_norm"),
    ENCODER(
        "encoder_pre_norm_rms_gated",
        layer=EncoderBlockWithSlots,
        normalize_first=True,
        norm=RMS_NORM,
        gated=True,
        dropout=0.1,
    ),
    ENCODER(
        "encoder_of_a_given_feed_forward",
        layer=EncoderBlockWithSlots,
        intermediate_dim=None,
        feed_forward=functools.partial(layers.FeedForward, 7, use_bias=False, activation="gelu_tanh"),
    ),
    ENCODER("encoder_parallel_sandwich", normalize_first=True, parallel=True, sandwich_norm=True),
    ENCODER("encoder_layer_scale_remat", normalize_first=True, layer_scale=0.3, remat=True, dropout=0.1),
    DECODERS("decoder_post_norm", make_inputs=decoder, padding=DECODER, attention_dropout=0.1),
    DECODERS("decoder_remat", make_inputs=decoder, padding=DECODER, remat=True),
    DECODERS(
        "decoder_pre_norm_rms",
        layer=DecoderBlockWithSlots,
        make_inputs=decoder,
        padding=DECODER,
        normalize_first=True,
        norm=RMS_NORM,
    ),
    DECODERS("decoder_alone", make_inputs=decoder_alone, padding=ALONE, activation="gelu"),
    DECODERS(
        "decoder_alone_parallel",
        make_inputs=decoder_alone,
        padding=ALONE,
        normalize_first=True,
        parallel=True,
    ),
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
        norm=RMS_NORM,
    ),
    case(
        "residual_sandwich",
        ResidualDense,
        floats,
        POSITIONWISE,
        normalize_first=True,
        sandwich_norm=True,
        dropout=0.2,
    ),
    case("residual_layer_scale", ResidualDense, floats, POSITIONWISE, layer_scale=0.3),
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
    case(
        "embedding_output_bias",
        EmbeddingBothWays,
        token_ids,
        vocabulary_size=17,
        hidden_dim=D,
        use_output_bias=True,
    ),
    case(
        "sequence_embedding",
        SequenceEmbeddingWithSlots,
        token_ids,
        token=functools.partial(layers.TokenEmbedding, 17, 5, mask_zero=True),
        position=functools.partial(layers.PositionEmbedding, 13),
        token_type=functools.partial(keras.layers.Embedding, 2, 5),
        norm=keras.layers.LayerNormalization,
        dropout=0.1,
        projection=functools.partial(keras.layers.Dense, D),
    ),
    case("sinusoid", layers.SinusoidalPositionEncoding, floats, skip_connection=True, max_wavelength=100.0),
    case("rotary", layers.RotaryEmbedding, heads, POSITIONWISE, max_wavelength=100.0),
    case(
        "rotary_interleaved_partial",
        layers.RotaryEmbedding,
        heads_left_padded,
        POSITIONWISE,
        rotary_dim=10,
        interleaved=True,
        scaling={"type": "yarn", "factor": 3.0, "original_max_sequence_length": 37, "beta_fast": 4},
    ),
    case(
        "rotary_dynamic_ntk",
        layers.RotaryEmbedding,
        heads_left_padded,
        POSITIONWISE,
        scaling={"type": "dynamic_ntk", "factor": 2.0, "original_max_sequence_length": 3},
    ),
    case("rotary_axial", layers.AxialRotaryEmbedding, heads_on_a_grid, POSITIONWISE),
    case("alibi", layers.AlibiBias, heads_and_positions),
    case(
        "relative_positions",
        layers.RelativePositionBias,
        heads_and_positions,
        num_buckets=8,
        max_distance=7,
    ),
    case(
        "relative_positions_causal",
        layers.RelativePositionBias,
        heads_and_positions,
        num_buckets=5,
        max_distance=6,
        bidirectional=False,
    ),
    case("relative_keys", layers.RelativePositionKeys, heads_and_positions, max_distance=3),
    case("positions", layers.PositionEmbedding, floats, skip_connection=True, max_sequence_length=13),
    # What stands at pads of heads: test_prediction_heads.py.
    case("pooling", layers.Pooling, encoder, mode="mean"),
    case(
        "classification_head",
        layers.ClassificationHead,
        encoder,
        num_labels=3,
        intermediate_dim=7,
        dropout=0.1,
    ),
    case(
        "image_classification_head",
        layers.ImageClassificationHead,
        encoder,
        num_labels=5,
        pooling="first_and_mean",
        dropout=0.1,
    ),
    case(
        "image_classification_head_distilled",
        layers.ImageClassificationHead,
        encoder,
        num_labels=5,
        num_special_tokens=2,
        use_distillation_token=True,
        intermediate_dim=7,
    ),
    case(
        "patches",
        PatchEmbeddingWithSlots,
        photos,
        patch_size=(2, 3),
        hidden_dim=10,
        image_size=(5, 7),
        num_channels=D,
        num_register_tokens=2,
        norm=keras.layers.LayerNormalization,
        dropout=0.1,
    ),
    case("merging", layers.PatchMerging, photos, hidden_dim=7),
    case(
        "patches_padded",
        layers.PatchEmbedding,
        photos,
        patch_size=(3, 3),
        hidden_dim=10,
        position="sinusoidal",
        num_channels=D,
        use_distillation_token=True,
        pad=True,
    ),
    case("token_classification_head", layers.TokenClassificationHead, encoder, num_labels=5, dropout=0.1),
    case(
        "masked_language_model_head",
        MaskedLanguageModelHeadWithSlots,
        encoder,
        token_embedding=functools.partial(layers.TokenEmbedding, 17, 5),
        norm=RMS_NORM,
    ),
]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("make_layer", "make_inputs", "padding", "skip_connection", "in_graphs"), CASES)
def test_layer(make_layer, make_inputs, padding, skip_connection, in_graphs, tmp_path, child):
    check_layer(make_layer, make_inputs, tmp_path, child, padding, skip_connection, in_graphs)


def test_every_layer_is_checked():
    checked = {base.__name__ for param in CASES for base in param.values[0].func.__mro__}
    assert set(layers.__all__) <= checked


def ids(*values):
    return np.array([values], "int32")


X = np.ones((2, 5, D), "float32")
Y = np.ones((2, 7, D), "float32")
IMAGES = np.ones((2, 3, 5, D), "float32")
# A class, its arguments, and the name of the one that must be a positive integer; then that must be a rate.
NOT_POSITIVE = [
    (layers.MultiHeadAttention, {"num_heads": 0, "key_dim": 3}, "num_heads"),
    (layers.MultiHeadAttention, {"num_heads": 2, "key_dim": 2.5}, "key_dim"),
    (layers.MultiHeadAttention, {"num_heads": True, "key_dim": 3}, "num_heads"),
    (layers.MultiHeadAttention, {"num_heads": 2, "key_dim": 3, "value_dim": -1}, "value_dim"),
    (layers.MultiHeadAttention, {"num_heads": 2, "key_dim": 3, "sliding_window": 0}, "sliding_window"),
    (layers.BahdanauAttention, {"units": 0}, "units"),
    (layers.WindowAttention, {"num_heads": 2, "key_dim": 0, "window_size": 3}, "key_dim"),
    (layers.PatchMerging, {"hidden_dim": 0}, "hidden_dim"),
    (layers.EncoderBlock, {"intermediate_dim": 0, "num_heads": 3}, "intermediate_dim"),
    (layers.DecoderBlock, {"intermediate_dim": 5, "num_heads": "3"}, "num_heads"),
    (layers.FeedForward, {"intermediate_dim": -2}, "intermediate_dim"),
    (layers.TokenEmbedding, {"vocabulary_size": 0, "hidden_dim": 3}, "vocabulary_size"),
    (layers.TokenEmbedding, {"vocabulary_size": 5, "hidden_dim": 0}, "hidden_dim"),
    (layers.PositionEmbedding, {"max_sequence_length": 0}, "max_sequence_length"),
    (layers.ClassificationHead, {"num_labels": 0}, "num_labels"),
    (layers.RelativePositionKeys, {"max_distance": 0}, "max_distance"),
]
NOT_A_RATE = [
    (layers.MultiHeadAttention, {"num_heads": 2, "key_dim": 3, "dropout": 1}, "dropout"),
    (layers.BahdanauAttention, {"units": 7, "dropout": 1.0}, "dropout"),
    (
        layers.EncoderBlock,
        {"intermediate_dim": 5, "num_heads": 3, "attention_dropout": -0.1},
        "attention_dropout",
    ),
    (layers.DecoderBlock, {"intermediate_dim": 5, "num_heads": 3, "dropout": 2}, "dropout"),
    (layers.Residual, {"dropout": "0.1"}, "dropout"),
    (layers.Residual, {"stochastic_depth": 1}, "stochastic_depth"),
    (layers.TokenClassificationHead, {"num_labels": 3, "dropout": 1.0}, "dropout"),
]
BAD_CONSTRUCTIONS = [
    *[
        (layer, arguments, f"`{name}` must be a positive integer. Received: {name}={arguments[name]!r}.")
        for layer, arguments, name in NOT_POSITIVE
    ],
    *[
        (layer, arguments, f"`{name}` must be a number in [0, 1). Received: {name}={arguments[name]!r}.")
        for layer, arguments, name in NOT_A_RATE
    ],
    (
        layers.MultiHeadAttention,
        {"num_heads": 2, "key_dim": 3, "output_shape": 3.5},
        "`output_shape` must be an integer or a tuple of integers. Received: output_shape=3.5.",
    ),
    (
        layers.MultiHeadAttention,
        {"num_heads": 2, "key_dim": 3, "output_shape": (5, 0)},
        "`output_shape` must be a positive integer. Received: output_shape=0.",
    ),
    (
        layers.MultiHeadAttention,
        {"num_heads": 2, "key_dim": 3, "attention_axes": "1"},
        "`attention_axes` must be an integer or a tuple of integers. Received: attention_axes='1'.",
    ),
    (
        layers.WindowAttention,
        {"num_heads": 2, "key_dim": 5, "window_size": (3, 2, 5)},
        "`window_size` must be an integer of at least 1, or a pair of them. Received: window_size=(3, 2, 5).",
    ),
    (
        layers.WindowAttention,
        {"num_heads": 2, "key_dim": 5, "window_size": 3.5},
        "`window_size` must be an integer of at least 1, or a pair of them. Received: window_size=3.5.",
    ),
    (
        layers.WindowAttention,
        {"num_heads": 2, "key_dim": 5, "window_size": 3, "shift_size": (0, -1)},
        "`shift_size` must be an integer of at least 0, or a pair of them. Received: shift_size=(0, -1).",
    ),
    (
        layers.WindowAttention,
        {"num_heads": 2, "key_dim": 5, "window_size": (3, 2), "shift_size": 2},
        "`shift_size` must be less than `window_size`. Received: shift_size=2, window_size=(3, 2).",
    ),
    (
        layers.PatchEmbedding,
        {"patch_size": 3, "hidden_dim": 7},
        "Learned positions need an `image_size`. Received: image_size=None.",
    ),
    (
        layers.AxialRotaryEmbedding,
        {"max_wavelength": 1},
        "`max_wavelength` must be greater than 1. Received: max_wavelength=1.",
    ),
    (
        layers.ImageClassificationHead,
        {"num_labels": 3, "num_special_tokens": -1},
        "`num_special_tokens` must be an integer of at least 0. Received: num_special_tokens=-1.",
    ),
    (
        layers.DifferentialAttention,
        {"num_heads": 2, "key_dim": 3, "lambda_init": 1.0},
        "`lambda_init` must be in [0, 1). Received: lambda_init=1.0.",
    ),
    (
        layers.TalkingHeadsAttention,
        {"num_heads": 2, "key_dim": 3, "memory_efficient": True},
        "`memory_efficient` must be None or False: mixing heads needs the logits of all heads at once.",
    ),
    (
        layers.EncoderBlock,
        {"intermediate_dim": 5},
        "`num_heads` or `self_attention` must be given. Received: num_heads=None.",
    ),
    (
        layers.EncoderBlock,
        {"intermediate_dim": 5, "num_heads": 3, "parallel": True},
        "`parallel` needs `normalize_first=True`: the sub-layers share the norm before them. "
        "Received: parallel=True, normalize_first=False.",
    ),
    (
        layers.EncoderBlock,
        {"intermediate_dim": 5, "self_attention": "fourier"},
        "`self_attention` must be a layer or None. Received: self_attention='fourier'.",
    ),
    (
        layers.EncoderBlock,
        {
            "intermediate_dim": 5,
            "self_attention": layers.MultiHeadAttention(num_heads=2, key_dim=3, name="a"),
            "attention_dropout": 0.5,
        },
        "`attention_dropout` is for attention layers that the block builds; give it to the layer. "
        "Received: attention_dropout=0.5, self_attention='a'.",
    ),
    (
        layers.DecoderBlock,
        {
            "intermediate_dim": 5,
            "num_heads": 3,
            "self_attention": layers.MultiHeadAttention(num_heads=2, key_dim=3, name="a"),
            "attention_dropout": 0.5,
        },
        "Received: attention_dropout=0.5, self_attention='a'.",
    ),
    (
        layers.DecoderBlock,
        {
            "intermediate_dim": 5,
            "num_heads": 3,
            "cross_attention": layers.MultiHeadAttention(num_heads=2, key_dim=3, name="a"),
            "attention_dropout": 0.5,
        },
        "give it to both layers. Received: attention_dropout=0.5, cross_attention='a'.",
    ),
    (
        layers.EncoderBlock,
        {"num_heads": 3},
        "`intermediate_dim` or `feed_forward` must be given. Received: neither.",
    ),
    (
        layers.EncoderBlock,
        {"intermediate_dim": 5, "num_heads": 3, "norm": "rms_norm"},
        "`norm` must be a layer or None. Received: norm='rms_norm'.",
    ),
    (
        layers.MultiHeadAttention,
        {"num_heads": 2, "key_dim": 3, "rotary_embedding": True},
        "`rotary_embedding` must be a RotaryEmbedding layer or None. Received: rotary_embedding=True.",
    ),
    (
        layers.MultiHeadAttention,
        {"num_heads": 2, "key_dim": 3, "position_bias": "alibi"},
        "`position_bias` must be a PositionBias layer, such as AlibiBias, or None.",
    ),
    (
        layers.MultiHeadAttention,
        {"num_heads": 2, "key_dim": 3, "scale": 0},
        "`scale` must be positive. Received: scale=0.",
    ),
    (layers.SequenceEmbedding, {"token": None}, "`token` must be a layer. Received: token=None."),
    (layers.SequenceEmbedding, {"token": 17}, "`token` must be a layer or None. Received: token=17."),
    (
        layers.DecoderBlock,
        {"intermediate_dim": 5, "cross_attention": layers.MultiHeadAttention(num_heads=2, key_dim=3)},
        "`num_heads` or `self_attention` must be given. Received: num_heads=None.",
    ),
    (
        layers.DecoderBlock,
        {"intermediate_dim": 5, "num_heads": 3, "sandwich_norm": True},
        "`sandwich_norm` needs `normalize_first=True`",
    ),
    (
        layers.Residual,
        {"layer_scale": True},
        "`layer_scale` must be None or a number of at least 0. Received: layer_scale=True.",
    ),
    (
        layers.Residual,
        {"sandwich_norm": True},
        "`sandwich_norm` needs `normalize_first=True`: post-norm has its norm after the sub-layer already. "
        "Received: sandwich_norm=True, normalize_first=False.",
    ),
    (
        layers.Residual,
        {"layer_scale": 0.1, "sandwich_norm": True, "normalize_first": True},
        "`layer_scale` cannot be combined with `sandwich_norm`",
    ),
    (
        layers.SinusoidalPositionEncoding,
        {"max_wavelength": 0},
        "`max_wavelength` must be positive. Received: max_wavelength=0.",
    ),
    (
        layers.RotaryEmbedding,
        {"rotary_dim": 3},
        "`rotary_dim` must be a positive even integer. Received: rotary_dim=3.",
    ),
    (
        layers.RotaryEmbedding,
        {"max_wavelength": 1},
        "`max_wavelength` must be greater than 1. Received: max_wavelength=1.",
    ),
    (layers.PositionBias, {"num_heads": 8}, "Unrecognized keyword arguments passed to PositionBias"),
    (layers.AlibiBias, {"num_heads": 8}, "Unrecognized keyword arguments passed to AlibiBias"),
    (layers.Pooling, {"mode": "middle"}, "`mode` must be one of"),
    (
        layers.MaskedLanguageModelHead,
        {"token_embedding": None},
        "`token_embedding` must be a layer. Received: token_embedding=None.",
    ),
    (
        layers.RelativePositionBias,
        {"num_buckets": 7},
        "`num_buckets` must be at least 2, and even and at least 4 if `bidirectional`. Received: num_buckets=7, bidirectional=True.",
    ),
    (
        layers.RelativePositionBias,
        {"num_buckets": 1, "bidirectional": False},
        "Received: num_buckets=1, bidirectional=False.",
    ),
    (
        layers.RelativePositionBias,
        {"max_distance": 8},
        "`max_distance` must be larger than the number of distances that have a bucket each, 8. Received: max_distance=8.",
    ),
]


@pytest.mark.skipif(BACKEND != "tensorflow", reason="JAX and PyTorch have fused kernels")
def test_a_fused_kernel_is_refused_where_there_is_none():
    with pytest.raises(ValueError, match="`flash_attention` must be None or False"):
        layers.MultiHeadAttention(num_heads=2, key_dim=3, flash_attention=True)


@pytest.mark.parametrize(("layer", "arguments", "message"), BAD_CONSTRUCTIONS)
def test_bad_constructor_arguments_are_refused(layer, arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        layer(**arguments)


def test_every_layer_refuses_some_construction():
    assert {layer.__name__ for layer, _, _ in BAD_CONSTRUCTIONS} == set(layers.__all__)


def attention(**arguments):
    return layers.MultiHeadAttention(num_heads=2, key_dim=5, **arguments)


def bahdanau():
    return layers.BahdanauAttention(units=7)


def windows():
    return layers.WindowAttention(num_heads=2, key_dim=5, window_size=3)


def called(layer, *inputs):
    layer(*inputs)
    return layer


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
        "The shapes of `key` and `value` must be equal but for the last axis. Received: value_shape=(2, 7, 12), key_shape=(2, 5, 12).",
    ),
    "rank_2": (
        attention,
        {"query": X[0], "value": Y},
        "Received: query_shape=(5, 12), value_shape=(2, 7, 12).",
    ),
    "rank_3_and_4": (
        attention,
        {"query": X, "value": Y[..., None]},
        "`query` and `value` must both have the shape (B, T, D)",
    ),
    "feature_axis": (
        lambda: attention(attention_axes=2),
        {"query": X, "value": Y},
        "`attention_axes` must name axes between the batch and the features, each once. Received: attention_axes=(2,) for inputs of rank 3.",
    ),
    "axis_named_twice": (
        lambda: attention(attention_axes=(1, -2)),
        {"query": X, "value": Y},
        "`attention_axes` must name axes between the batch and the features, each once. Received: attention_axes=(1, -2)",
    ),
    "value_mask_of_pairs": (
        attention,
        {"query": X, "value": Y, "value_mask": true(2, 5, 7)},
        "`value_mask` must have shape (2, 7). Received: value_mask of shape (2, 5, 7).",
    ),
    "query_mask_of_one_row_of_pixels": (
        attention,
        {"query": np.stack([X, X], 1), "value": np.stack([X, X], 1), "query_mask": true(2, 1, 5)},
        "`query_mask` must have shape (2, 2, 5). Received: query_mask of shape (2, 1, 5).",
    ),
    "causal_over_two_axes": (
        attention,
        {"query": X[..., None], "value": X[..., None], "use_causal_mask": True},
        "`use_causal_mask`, `sliding_window`, `rotary_embedding` and `position_bias` need one axis to attend over.",
    ),
    "bahdanau_query_mask": (
        bahdanau,
        {"query": X, "value": Y, "query_mask": true(2, 7)},
        "`query_mask` must have shape (2, 5). Received: query_mask of shape (2, 7).",
    ),
    "bahdanau_value_mask": (
        bahdanau,
        {"query": X, "value": Y, "value_mask": true(2, 5)},
        "`value_mask` must have shape (2, 7). Received: value_mask of shape (2, 5).",
    ),
    "bahdanau_attention_mask": (
        bahdanau,
        {"query": X, "value": Y, "attention_mask": true(2, 7, 5)},
        "`attention_mask` must broadcast to shape (2, 5, 7). Received: attention_mask of shape (2, 7, 5).",
    ),
    "bahdanau_additive_mask": (
        bahdanau,
        {"query": X, "value": Y, "attention_mask": np.full((5, 7), -1e9, "float32")},
        "`attention_mask` must be boolean, or hold only 0 and 1",
    ),
    "bahdanau_key_of_another_length": (
        bahdanau,
        {"query": X, "value": Y, "key": X},
        "The shapes of `key` and `value` must be equal but for the last axis. Received: value_shape=(2, 7, 12), key_shape=(2, 5, 12).",
    ),
    "bahdanau_rank_2": (
        bahdanau,
        {"query": X[:, 0], "value": Y},
        "`query`, `value` and `key` must have the shapes (B, T, Dq), (B, S, Dv) and (B, S, Dk). Received: query_shape=(2, 12)",
    ),
    "bahdanau_projected_key": (
        bahdanau,
        {"query": X, "value": Y, "projected_key": X[..., :7]},
        "`projected_key` must have shape (2, 7, 7). Received: projected_key of shape (2, 5, 7).",
    ),
    "window_of_a_sequence": (
        windows,
        {"inputs": X},
        "`inputs` must have the shape (B, height, width, D). Received: shape (2, 5, 12).",
    ),
    "window_padding_mask": (
        windows,
        {"inputs": X[:, None], "padding_mask": true(2, 5, 1)},
        "`padding_mask` must have shape (2, 1, 5). Received: padding_mask of shape (2, 5, 1).",
    ),
    "window_additive_mask": (
        windows,
        {"inputs": X[:, None], "padding_mask": np.full((2, 1, 5), -1e9, "float32")},
        "`padding_mask` must be boolean, or hold only 0 and 1",
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
    "padding_as_pairs": (
        lambda: layers.EncoderBlock(5, 3),
        {"inputs": X, "attention_mask": true(2, 5)},
        "`attention_mask` must have the shape (B, T, T). Received: attention_mask of shape (2, 5), sequence of shape "
        "(2, 5, 12). Pass a padding mask as `padding_mask`, or as `mask[:, None, :]`",
    ),
    "pairs_of_all_rows": (
        lambda: layers.DecoderBlock(5, 3),
        {"decoder_sequence": X, "decoder_attention_mask": true(5, 5)},
        "`decoder_attention_mask` must have the shape (B, T, T). Received: decoder_attention_mask of shape (5, 5)",
    ),
    "padding_as_pairs_of_two_sequences": (
        lambda: layers.DecoderBlock(5, 3),
        {"decoder_sequence": X, "encoder_sequence": Y, "encoder_attention_mask": true(2, 7)},
        "`encoder_attention_mask` must have the shape (B, T, S). Received: encoder_attention_mask of shape (2, 7)",
    ),
    "padding_as_pairs_of_attention": (
        attention,
        {"query": X, "value": Y, "attention_mask": true(2, 7)},
        "Received: attention_mask of shape (2, 7). Pass a padding mask (B, S) as `value_mask`",
    ),
    "padding_as_pairs_of_bahdanau_attention": (
        lambda: layers.BahdanauAttention(3),
        {"query": X, "value": Y, "attention_mask": true(2, 7)},
        "Received: attention_mask of shape (2, 7). Pass a padding mask (B, S) as `value_mask`",
    ),
    "encoder_of_images": (
        lambda: layers.EncoderBlock(5, 3),
        {"inputs": IMAGES},
        "`inputs` must have the shape (B, T, D). Received: inputs of shape (2, 3, 5, 12). Attention would be over all",
    ),
    "encoder_of_images_with_attention": (
        lambda: layers.EncoderBlock(5, self_attention=attention()),
        {"inputs": IMAGES},
        "pass a layer such as `MultiHeadAttention(num_heads, key_dim, attention_axes=2)` as `self_attention`",
    ),
    "encoder_of_vectors": (
        lambda: layers.EncoderBlock(5, 3),
        {"inputs": X[:, 0]},
        "`inputs` must have the shape (B, T, D). Received: inputs of shape (2, 12).",
    ),
    "decoder_of_images": (
        lambda: layers.DecoderBlock(5, 3),
        {"decoder_sequence": IMAGES},
        "`decoder_sequence` must have the shape (B, T, D). Received: decoder_sequence of shape (2, 3, 5, 12).",
    ),
    "decoder_over_images": (
        lambda: layers.DecoderBlock(5, 3),
        {"decoder_sequence": X, "encoder_sequence": IMAGES},
        "`encoder_sequence` must have the shape (B, T, D). Received: encoder_sequence of shape (2, 3, 5, 12).",
    ),
    "bahdanau_images": (
        lambda: called(layers.BahdanauAttention(3), X, X),
        {"query": IMAGES, "value": IMAGES},
        "must have the shapes (B, T, Dq), (B, S, Dv) and (B, S, Dk). Received: query_shape=(2, 3, 5, 12)",
    ),
    "pooled_images": (
        lambda: layers.Pooling("mean"),
        {"inputs": IMAGES},
        "`inputs` must have the shape (B, T, D). Received: inputs of shape (2, 3, 5, 12).",
    ),
    "pooled_vectors": (
        lambda: layers.ClassificationHead(3),
        {"inputs": X[:, 0]},
        "`inputs` must have the shape (B, T, D). Received: inputs of shape (2, 12).",
    ),
    "labels_of_images": (
        lambda: layers.TokenClassificationHead(3),
        {"inputs": IMAGES},
        "`inputs` must have the shape (B, T, D). Received: inputs of shape (2, 3, 5, 12).",
    ),
    "ids_of_one_row": (
        lambda: layers.SequenceEmbedding(layers.TokenEmbedding(17, D)),
        {"inputs": np.arange(5)},
        "`inputs` must be token ids of shape (B, T). Received: inputs of shape (5,).",
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
    "token_types_too_large": (
        lambda: layers.SequenceEmbedding(
            layers.TokenEmbedding(17, D), token_type=keras.layers.Embedding(2, D)
        ),
        {"inputs": ids(1, 5, 3), "token_type_ids": ids(0, 2, 1)},
        "Token type ids must lie in [0, 2). Received: 2.",
    ),
    "too_long": (
        lambda: layers.PositionEmbedding(3),
        {"inputs": X},
        "The sequence is longer than `max_sequence_length`. Received: length 5, max_sequence_length=3.",
    ),
    "rotary_dim_of_larger_heads": (
        lambda: layers.RotaryEmbedding(rotary_dim=14),
        {"inputs": X},
        "must be even and at most the last axis. Received: rotary_dim=14, inputs of shape (2, 5, 12).",
    ),
    "rotary_heads_of_odd_size": (
        layers.RotaryEmbedding,
        {"inputs": X[..., 1:]},
        "must be even and at most the last axis. Received: rotary_dim=None, inputs of shape (2, 5, 11).",
    ),
    "rotary_positions": (
        layers.RotaryEmbedding,
        {"inputs": X[:, None], "positions": np.zeros((2, 7), int)},
        "`positions` must have shape (2, 5). Received: positions of shape (2, 7).",
    ),
    "rotary_positions_of_floats": (
        layers.RotaryEmbedding,
        {"inputs": X, "positions": np.zeros(5, "float32")},
        "`positions` must be integers. Received: positions of dtype float32.",
    ),
    "bias_query_positions": (
        layers.AlibiBias,
        {"query": X[:, None], "query_positions": np.zeros((2, 7), int)},
        "`query_positions` must have shape (2, 5). Received: query_positions of shape (2, 7).",
    ),
    "bias_key_positions_of_another_batch": (
        lambda: layers.RelativePositionKeys(3),
        {"query": X[:, None], "key_positions": np.zeros((3, 7), int)},
        "`key_positions` must have shape (2, 7). Received: key_positions of shape (3, 7).",
    ),
    "bias_positions_of_floats": (
        layers.RelativePositionBias,
        {"query": X[:, None], "key_positions": np.zeros(7, "float32")},
        "`key_positions` must be integers. Received: key_positions of dtype float32.",
    ),
    "position_too_large": (
        lambda: layers.PositionEmbedding(7),
        {"inputs": X, "start_index": 3},
        "A sequence must be no longer than `max_sequence_length`: its positions must lie in [0, 7). Received: 7.",
    ),
    "position_below_0": (
        lambda: layers.PositionEmbedding(7),
        {"inputs": X, "positions": np.arange(5) - 1},
        "Positions must lie in [0, 7). Received: -1.",
    ),
}


@pytest.mark.sampled(14)
@pytest.mark.parametrize("name", BAD_CALLS)
def test_bad_call_arguments_are_refused(name):
    make_layer, arguments, message = BAD_CALLS[name]
    with pytest.raises(ValueError, match=re.escape(message)):
        make_layer()(**arguments)


RANKS = [name for name in BAD_CALLS if "of_images" in name or "over_images" in name or "of_vectors" in name]
RANKS += ["pooled_images", "pooled_vectors"]


@pytest.mark.parametrize("name", RANKS)
def test_a_layer_that_is_built_refuses_other_axes_in_the_same_words(name):
    make_layer, arguments, message = BAD_CALLS[name]
    layer = make_layer()
    layer(**dict.fromkeys(arguments, X))
    with pytest.raises(ValueError, match=re.escape(message)):
        layer(**arguments)


@pytest.mark.parametrize(
    ("make_block", "name", "advice"),
    [
        (layers.EncoderBlock, "use_causal_mask", "Take a `DecoderBlock`, which is causal"),
        (layers.DecoderBlock, "padding_mask", "Pass `decoder_padding_mask` for the block's own sequence"),
        (layers.DecoderBlock, "attention_mask", "`encoder_attention_mask` for that of the encoder"),
        (layers.DecoderBlock, "segment_ids", "Pass `decoder_segment_ids`"),
    ],
)
def test_an_argument_of_another_block_names_the_way(make_block, name, advice):
    with pytest.raises(
        TypeError, match=f"`{name}` is not an argument of a call of `{make_block.__name__}`.*{advice}"
    ):
        make_block(5, 3)(X, **{name: True})
    with pytest.raises(ValueError, match=f"`{name}` is not an argument of the constructor .*{advice}"):
        make_block(5, 3, **{name: True})


def test_an_argument_of_a_call_is_none_of_the_constructor():
    with pytest.raises(ValueError, match=r"Pass it to a call: `block\(x, use_causal_mask=...\)`"):
        layers.DecoderBlock(5, 3, use_causal_mask=False)


def test_a_block_of_images_attends_as_its_layer_says(rng):
    """With `attention_axes` each row of an image is a sequence, and `TimeDistributed` makes one of it."""
    images = rng.normal(size=IMAGES.shape).astype("float32")
    of_axis = layers.EncoderBlock(5, self_attention=layers.MultiHeadAttention(3, 4, attention_axes=2))
    of_rows = layers.EncoderBlock(5, self_attention=layers.MultiHeadAttention(3, 4))
    mask = np.arange(5) < rng.integers(1, 6, (2, 3, 1))
    output = flat_arrays(of_axis(images, padding_mask=mask))[0]
    of_rows.build((None, None, D))
    of_rows.set_weights(of_axis.get_weights())
    rows = flat_arrays(of_rows(images.reshape(6, 5, D), padding_mask=mask.reshape(6, 5)))[0]
    assert_equal([output[mask]], [rows.reshape(output.shape)[mask]])
    distributed = flat_arrays(keras.layers.TimeDistributed(of_rows)(images))[0]
    assert_equal([distributed], flat_arrays(of_axis(images)))


@pytest.mark.extended
def test_a_decoder_block_is_called_as_it_was_built():
    block = layers.DecoderBlock(5, 3)
    block(X)
    with pytest.raises(ValueError, match="built without an encoder sequence"):
        block(X, Y)
    block = layers.DecoderBlock(5, 3)
    block(X, Y)
    with pytest.raises(ValueError, match="`encoder_sequence` \\(or `cross_attention_cache`\\) must be given"):
        block(X)


@pytest.mark.extended
def test_a_refused_call_leaves_the_layer_usable():
    layer = attention()
    expected = flat_arrays(layer(X, Y))
    with pytest.raises(ValueError, match="value_mask"):
        layer(X, Y, value_mask=true(2, 5))
    assert_equal(flat_arrays(layer(X, Y)), expected, 0)


needs_compiler = pytest.mark.skipif(
    BACKEND == "torch", reason="Keras compiles nothing on PyTorch; without, a position outside is refused"
)


@pytest.mark.extended
@needs_compiler
@pytest.mark.parametrize(("token_id", "clamped"), [(17, 16), (99, 16), (-1, 0)])
def test_ids_outside_the_vocabulary_are_clamped_in_a_compiled_graph(token_id, clamped):
    layer = layers.TokenEmbedding(17, D)
    expected = layer(ids(clamped, 3))
    actual = compiled(layer)(ops.convert_to_tensor(ids(token_id, 3)))
    np.testing.assert_allclose(actual, expected, rtol=1e-6)


@pytest.mark.extended
@needs_compiler
def test_positions_past_the_last_are_clamped_in_a_compiled_graph():
    layer = layers.PositionEmbedding(7)
    expected = layer(X, positions=np.array([3, 6, 6, 0, 1]))
    actual = compiled(lambda positions: layer(X, positions=positions))(
        ops.convert_to_tensor([3, 7, 99, -2, 1])
    )
    np.testing.assert_allclose(actual, expected, rtol=1e-6)
