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
    check_config,
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
EVERYWHERE = """
    attention_self attention_relative_keys_in_blocks bahdanau_self window_shifted encoder_post_norm
    residual embedding_untied positions relative_keys
""".split()


# Forms that share most of their code with another.
SLOW = """
    attention_relative_keys_in_blocks attention_talking_heads bahdanau_separate_key decoder_alone_parallel
    encoder_layer_scale_remat encoder_parallel_sandwich merging patches_padded residual_sandwich
    rotary_axial window_of_published_code
""".split()


def case(name, layer, make_inputs, padding=None, skip_connection=False, **arguments):
    if BACKEND == "tensorflow":
        marks = pytest.mark.slow if name in SLOW else ()
    else:
        marks = () if name in EVERYWHERE else pytest.mark.slow
    make_layer = functools.partial(layer, **arguments)
    return pytest.param(make_layer, make_inputs, padding, skip_connection, id=name, marks=marks)


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
    case("bahdanau_separate_key", layers.BahdanauAttention, separate_key, VALUE, units=7, dropout=0.1),
    WINDOWS("window_shifted", shift_size=(1, 1), dropout=0.1),
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
        "encoder_parallel_sandwich",
        layer=EncoderBlockWithSlots,
        intermediate_dim=None,
        feed_forward=functools.partial(layers.FeedForward, 7, use_bias=False, activation="gelu_tanh"),
        normalize_first=True,
        parallel=True,
        sandwich_norm=True,
    ),
    ENCODER("encoder_layer_scale_remat", normalize_first=True, layer_scale=0.3, remat=True, dropout=0.1),
    DECODERS("decoder_post_norm", make_inputs=decoder, padding=DECODER, attention_dropout=0.1),
    DECODERS(
        "decoder_pre_norm_rms",
        layer=DecoderBlockWithSlots,
        make_inputs=decoder,
        padding=DECODER,
        normalize_first=True,
        norm=RMS_NORM,
    ),
    DECODERS(
        "decoder_alone_parallel",
        make_inputs=decoder_alone,
        padding=ALONE,
        normalize_first=True,
        parallel=True,
    ),
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
        "residual_sandwich",
        ResidualDense,
        floats,
        POSITIONWISE,
        normalize_first=True,
        sandwich_norm=True,
        dropout=0.2,
    ),
    case("embedding", layers.TokenEmbedding, token_ids, vocabulary_size=17, hidden_dim=D, mask_zero=True),
    case(
        "embedding_untied", EmbeddingBothWays, token_ids, vocabulary_size=17, hidden_dim=D, tie_weights=False
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
    case("rotary_axial", layers.AxialRotaryEmbedding, heads_on_a_grid, POSITIONWISE),
    case("alibi", layers.AlibiBias, heads_and_positions),
    case(
        "relative_positions", layers.RelativePositionBias, heads_and_positions, num_buckets=8, max_distance=7
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


@pytest.mark.parametrize("make_layer", [pytest.param(case.values[0], id=case.id) for case in CASES])
def test_a_configuration_makes_the_layer_again(make_layer):
    check_config(make_layer)


@pytest.mark.sampled(1)
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
IMAGES = np.ones((2, 3, 5, D), "float32")
# What makes one of each class, but for the argument that is wrong.
REQUIRED = {
    layers.MultiHeadAttention: {"num_heads": 2, "key_dim": 3},
    layers.DifferentialAttention: {"num_heads": 2, "key_dim": 3},
    layers.TalkingHeadsAttention: {"num_heads": 2, "key_dim": 3},
    layers.BahdanauAttention: {"units": 7},
    layers.WindowAttention: {"num_heads": 2, "key_dim": 5, "window_size": 3},
    layers.EncoderBlock: {"intermediate_dim": 5, "num_heads": 3},
    layers.DecoderBlock: {"intermediate_dim": 5, "num_heads": 3},
    layers.TokenEmbedding: {"vocabulary_size": 5, "hidden_dim": 3},
    layers.PatchEmbedding: {"patch_size": 3, "hidden_dim": 7},
    layers.ClassificationHead: {"num_labels": 3},
    layers.TokenClassificationHead: {"num_labels": 3},
    layers.ImageClassificationHead: {"num_labels": 3},
}


def refused(layer, rule, says=None, **wrong):
    """A class, arguments with `wrong` ones, and the error: it begins with the first wrong name and `rule`."""
    name = next(iter(wrong))
    received = ", ".join(f"{name}={value!r}" for name, value in wrong.items())
    message = says or f"`{name}` {rule}. Received: {received}."
    return pytest.param(
        layer, {**REQUIRED.get(layer, {}), **wrong}, message, id=f"{layer.__name__}-{received}"
    )


def named_attention():
    return layers.MultiHeadAttention(num_heads=2, key_dim=3, name="a")


POSITIVE, RATE = "must be a positive integer", "must be a number in [0, 1)"
LAYER, OPTIONAL_LAYER = "must be a layer", "must be a layer or None"
SIZES = "must be an integer of at least 1, or a pair of them"
ONE_BUILDS = "`attention_dropout` is for attention layers that the block builds; give it to "
BAD_CONSTRUCTIONS = [
    refused(layers.MultiHeadAttention, POSITIVE, num_heads=0),
    refused(layers.MultiHeadAttention, POSITIVE, num_heads=True),
    refused(layers.MultiHeadAttention, POSITIVE, key_dim=2.5),
    refused(layers.MultiHeadAttention, POSITIVE, value_dim=-1),
    refused(layers.MultiHeadAttention, POSITIVE, sliding_window=0),
    refused(layers.MultiHeadAttention, POSITIVE, num_key_value_heads=0),
    refused(layers.MultiHeadAttention, POSITIVE, num_sink_tokens=-1),
    refused(layers.BahdanauAttention, POSITIVE, units=0),
    refused(layers.WindowAttention, POSITIVE, key_dim=0),
    refused(layers.PatchMerging, POSITIVE, hidden_dim=0),
    refused(layers.EncoderBlock, POSITIVE, intermediate_dim=0),
    refused(layers.DecoderBlock, POSITIVE, num_heads="3"),
    refused(layers.FeedForward, POSITIVE, intermediate_dim=-2),
    refused(layers.TokenEmbedding, POSITIVE, vocabulary_size=0),
    refused(layers.TokenEmbedding, POSITIVE, hidden_dim=0),
    refused(layers.PositionEmbedding, POSITIVE, max_sequence_length=0),
    refused(layers.ClassificationHead, POSITIVE, num_labels=0),
    refused(layers.RelativePositionKeys, POSITIVE, max_distance=0),
    refused(layers.MultiHeadAttention, RATE, dropout=1),
    refused(layers.BahdanauAttention, RATE, dropout=1.0),
    refused(layers.EncoderBlock, RATE, attention_dropout=-0.1),
    refused(layers.DecoderBlock, RATE, dropout=2),
    refused(layers.Residual, RATE, dropout="0.1"),
    refused(layers.Residual, RATE, stochastic_depth=1),
    refused(layers.TokenClassificationHead, RATE, dropout=1.0),
    refused(layers.MultiHeadAttention, "must be an integer or a tuple of integers", output_shape=3.5),
    refused(layers.MultiHeadAttention, "must be an integer or a tuple of integers", attention_axes="1"),
    refused(
        layers.MultiHeadAttention,
        None,
        "`output_shape` must be a positive integer. Received: output_shape=0.",
        output_shape=(5, 0),
    ),
    refused(layers.MultiHeadAttention, "must be one of ['layer_norm', 'rms_norm']", query_key_norm="batch"),
    refused(layers.MultiHeadAttention, "must be positive", logit_soft_cap=0.0),
    refused(layers.MultiHeadAttention, "must be positive", logit_soft_cap=-2),
    refused(layers.MultiHeadAttention, "must be positive", scale=0),
    refused(
        layers.MultiHeadAttention,
        "needs a `sliding_window`, in spite of which those tokens are seen",
        num_sink_tokens=1,
        sliding_window=None,
    ),
    refused(layers.MultiHeadAttention, "must be a RotaryEmbedding layer or None", rotary_embedding=True),
    refused(
        layers.MultiHeadAttention,
        None,
        "`position_bias` must be a PositionBias layer, such as AlibiBias, or None.",
        position_bias="alibi",
    ),
    refused(layers.WindowAttention, SIZES, window_size=(3, 2, 5)),
    refused(layers.WindowAttention, SIZES, window_size=3.5),
    refused(
        layers.WindowAttention, "must be an integer of at least 0, or a pair of them", shift_size=(0, -1)
    ),
    refused(layers.WindowAttention, "must be less than `window_size`", shift_size=2, window_size=(3, 2)),
    refused(layers.PatchEmbedding, SIZES, patch_size=0),
    refused(layers.PatchEmbedding, SIZES, image_size=(3, 4, 5)),
    refused(layers.PatchEmbedding, None, "`position` must be one of", position="absolute", image_size=6),
    refused(
        layers.PatchEmbedding,
        None,
        "Learned positions need an `image_size`. Received: image_size=None.",
        image_size=None,
    ),
    refused(layers.PatchEmbedding, None, "An image must hold at least one patch", image_size=(2, 15)),
    refused(layers.PatchEmbedding, None, "`hidden_dim` must be even", position="sinusoidal", hidden_dim=11),
    refused(layers.PatchEmbedding, "must be an integer of at least 0", num_register_tokens=-1),
    refused(layers.PatchEmbedding, None, "`norm` must be a layer or None", norm="layer_norm", image_size=6),
    refused(layers.AxialRotaryEmbedding, "must be greater than 1", max_wavelength=1),
    refused(layers.RotaryEmbedding, "must be greater than 1", max_wavelength=1),
    refused(layers.RotaryEmbedding, "must be a positive even integer", rotary_dim=3),
    refused(layers.SinusoidalPositionEncoding, "must be positive", max_wavelength=0),
    refused(layers.ImageClassificationHead, "must be an integer of at least 0", num_special_tokens=-1),
    refused(layers.ClassificationHead, None, "`pooling` must be one of", pooling="cls"),
    refused(layers.TokenClassificationHead, OPTIONAL_LAYER, norm="layer"),
    refused(layers.Pooling, None, "`mode` must be one of ['first', 'last', 'max', 'mean']", mode="sum"),
    refused(layers.MaskedLanguageModelHead, LAYER, token_embedding=None),
    refused(layers.DifferentialAttention, "must be in [0, 1)", lambda_init=1.0),
    refused(
        layers.TalkingHeadsAttention,
        None,
        "`memory_efficient` must be None or False: mixing heads needs the logits of all heads at once.",
        memory_efficient=True,
    ),
    refused(layers.EncoderBlock, "or `self_attention` must be given", num_heads=None),
    refused(
        layers.DecoderBlock,
        None,
        "`num_heads` or `self_attention` must be given. Received: num_heads=None.",
        num_heads=None,
        cross_attention=named_attention(),
    ),
    refused(
        layers.EncoderBlock,
        None,
        "`intermediate_dim` or `feed_forward` must be given. Received: neither.",
        intermediate_dim=None,
    ),
    refused(
        layers.EncoderBlock,
        "needs `normalize_first=True`: the sub-layers share the norm before them",
        parallel=True,
        normalize_first=False,
    ),
    refused(layers.EncoderBlock, OPTIONAL_LAYER, self_attention="fourier"),
    refused(layers.EncoderBlock, OPTIONAL_LAYER, norm="rms_norm"),
    refused(
        layers.EncoderBlock,
        None,
        ONE_BUILDS + "the layer. Received: attention_dropout=0.5, self_attention='a'.",
        attention_dropout=0.5,
        self_attention=named_attention(),
    ),
    refused(
        layers.DecoderBlock,
        None,
        "Received: attention_dropout=0.5, self_attention='a'.",
        attention_dropout=0.5,
        self_attention=named_attention(),
    ),
    refused(
        layers.DecoderBlock,
        None,
        "give it to both layers. Received: attention_dropout=0.5, cross_attention='a'.",
        attention_dropout=0.5,
        cross_attention=named_attention(),
    ),
    refused(layers.SequenceEmbedding, LAYER, token=None),
    refused(layers.SequenceEmbedding, OPTIONAL_LAYER, token=17),
    refused(layers.DecoderBlock, None, "`sandwich_norm` needs `normalize_first=True`", sandwich_norm=True),
    refused(layers.Residual, "must be None or a number of at least 0", layer_scale=True),
    refused(
        layers.Residual,
        "needs `normalize_first=True`: post-norm has its norm after the sub-layer already",
        sandwich_norm=True,
        normalize_first=False,
    ),
    refused(
        layers.Residual,
        None,
        "`layer_scale` cannot be combined with `sandwich_norm`",
        layer_scale=0.1,
        sandwich_norm=True,
        normalize_first=True,
    ),
    refused(layers.PositionBias, None, "Unrecognized keyword arguments passed to PositionBias", num_heads=8),
    refused(layers.AlibiBias, None, "Unrecognized keyword arguments passed to AlibiBias", num_heads=8),
    refused(
        layers.RelativePositionBias,
        "must be at least 2, and even and at least 4 if `bidirectional`",
        num_buckets=7,
        bidirectional=True,
    ),
    refused(
        layers.RelativePositionBias,
        "must be at least 2, and even and at least 4 if `bidirectional`",
        num_buckets=1,
        bidirectional=False,
    ),
    refused(
        layers.RelativePositionBias,
        "must be larger than the number of distances that have a bucket each, 8",
        max_distance=8,
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
    assert {case.values[0].__name__ for case in BAD_CONSTRUCTIONS} == set(layers.__all__)


def attention(**arguments):
    return layers.MultiHeadAttention(num_heads=2, key_dim=5, **arguments)


def bahdanau():
    return layers.BahdanauAttention(units=7)


def windows():
    return layers.WindowAttention(num_heads=2, key_dim=5, window_size=3)


def true(*shape):
    return np.ones(shape, bool)


def encoder_block(**arguments):
    return layers.EncoderBlock(5, 3, **arguments)


def decoder_block():
    return layers.DecoderBlock(5, 3)


def token_embedding():
    return layers.TokenEmbedding(17, D)


def wrong_shape(make_layer, rule, **arguments):
    """Of the last argument."""
    name = list(arguments)[-1]
    shape = np.shape(arguments[name])
    return make_layer, arguments, f"`{name}` must {rule}. Received: {name} of shape {shape}."


def wrong_values(make_layer, **arguments):
    """Of a mask, the last argument, of numbers other than 0 and 1."""
    return make_layer, arguments, f"`{list(arguments)[-1]}` must be boolean, or hold only 0 and 1"


XY = {"query": X, "value": Y}
PIXELS = np.stack([X, X], 1)
AS_PAIRS = "Pass a padding mask (B, S) as `value_mask`"
ADDITIVE = np.full((5, 7), -1e9, "float32")
LENGTH_5 = "have shape (length,) or (batch, length), here with length 5"
BAD_CALLS = {
    "query_mask": wrong_shape(attention, "have shape (2, 5)", **XY, query_mask=true(2, 7)),
    "value_mask": wrong_shape(attention, "have shape (2, 7)", **XY, value_mask=true(2, 5)),
    "value_mask_of_one_key": wrong_shape(attention, "have shape (2, 7)", **XY, value_mask=true(2, 1)),
    "value_mask_of_pairs": wrong_shape(attention, "have shape (2, 7)", **XY, value_mask=true(2, 5, 7)),
    "query_mask_of_one_row_of_pixels": wrong_shape(
        attention, "have shape (2, 2, 5)", query=PIXELS, value=PIXELS, query_mask=true(2, 1, 5)
    ),
    "attention_mask": wrong_shape(
        attention, "broadcast to shape (2, 2, 5, 7)", **XY, attention_mask=true(2, 7, 5)
    ),
    "attention_mask_of_another_batch": wrong_shape(
        attention, "broadcast to shape (2, 2, 5, 7)", **XY, attention_mask=true(3, 5, 7)
    ),
    "prefix_mask": wrong_shape(
        attention, "have shape (2, 5)", query=X, value=X, use_causal_mask=True, prefix_mask=true(2, 3)
    ),
    "segment_ids": wrong_shape(attention, "have shape (2, 5)", query=X, value=X, segment_ids=ids(1, 1, 2)),
    "positions": wrong_shape(
        attention, LENGTH_5, query=X, value=X, use_causal_mask=True, positions=np.zeros((2, 3), "int32")
    ),
    "key_positions": wrong_shape(
        attention,
        LENGTH_5,
        query=X,
        value=X,
        use_causal_mask=True,
        key_positions=np.zeros((2, 1, 5), "int32"),
    ),
    "additive_mask": wrong_values(attention, **XY, attention_mask=ADDITIVE),
    "additive_padding": wrong_values(attention, **XY, value_mask=np.full((2, 7), 0.5, "float32")),
    "additive_prefix_mask": wrong_values(
        attention, query=X, value=X, use_causal_mask=True, prefix_mask=ADDITIVE[:2, :5]
    ),
    "key_of_another_length": (
        attention,
        {**XY, "key": X},
        "The shapes of `key` and `value` must be equal but for the last axis. "
        "Received: value_shape=(2, 7, 12), key_shape=(2, 5, 12).",
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
        XY,
        "`attention_axes` must name axes between the batch and the features, each once. "
        "Received: attention_axes=(2,) for inputs of rank 3.",
    ),
    "axis_named_twice": (
        lambda: attention(attention_axes=(1, -2)),
        XY,
        "`attention_axes` must name axes between the batch and the features, each once. "
        "Received: attention_axes=(1, -2)",
    ),
    "bahdanau_query_mask": wrong_shape(bahdanau, "have shape (2, 5)", **XY, query_mask=true(2, 7)),
    "bahdanau_value_mask": wrong_shape(bahdanau, "have shape (2, 7)", **XY, value_mask=true(2, 5)),
    "bahdanau_attention_mask": wrong_shape(
        bahdanau, "broadcast to shape (2, 5, 7)", **XY, attention_mask=true(2, 7, 5)
    ),
    "bahdanau_additive_mask": wrong_values(bahdanau, **XY, attention_mask=ADDITIVE),
    "bahdanau_key_of_another_length": (
        bahdanau,
        {**XY, "key": X},
        "The shapes of `key` and `value` must be equal but for the last axis. "
        "Received: value_shape=(2, 7, 12), key_shape=(2, 5, 12).",
    ),
    "bahdanau_rank_2": (
        bahdanau,
        {"query": X[:, 0], "value": Y},
        "`query`, `value` and `key` must have the shapes (B, T, Dq), (B, S, Dv) and (B, S, Dk). "
        "Received: query_shape=(2, 12)",
    ),
    "bahdanau_projected_key": wrong_shape(bahdanau, "have shape (2, 7, 7)", **XY, projected_key=X[..., :7]),
    "window_of_a_sequence": (
        windows,
        {"inputs": X},
        "`inputs` must have the shape (B, height, width, D). Received: shape (2, 5, 12).",
    ),
    "window_padding_mask": wrong_shape(
        windows, "have shape (2, 1, 5)", inputs=X[:, None], padding_mask=true(2, 5, 1)
    ),
    "window_additive_mask": wrong_values(
        windows, inputs=X[:, None], padding_mask=np.full((2, 1, 5), -1e9, "float32")
    ),
    "heads_do_not_divide": (
        lambda: layers.EncoderBlock(5, 7),
        {"inputs": X},
        "The last axis of the inputs must be divisible by `num_heads`. Received: 12 features, num_heads=7.",
    ),
    "encoder_mask": wrong_shape(encoder_block, "have shape (2, 5)", inputs=X, padding_mask=true(2, 7)),
    "decoder_mask": wrong_shape(
        decoder_block,
        "have shape (2, 7)",
        decoder_sequence=X,
        encoder_sequence=Y,
        encoder_padding_mask=true(2, 5),
    ),
    "padding_as_pairs": (
        encoder_block,
        {"inputs": X, "attention_mask": true(2, 5)},
        "`attention_mask` must have the shape (B, T, T). Received: attention_mask of shape (2, 5), sequence of shape "
        "(2, 5, 12). Pass a padding mask as `padding_mask`, or as `mask[:, None, :]`",
    ),
    "pairs_of_all_rows": (
        decoder_block,
        {"decoder_sequence": X, "decoder_attention_mask": true(5, 5)},
        "`decoder_attention_mask` must have the shape (B, T, T). Received: decoder_attention_mask of shape (5, 5)",
    ),
    "padding_as_pairs_of_two_sequences": (
        decoder_block,
        {"decoder_sequence": X, "encoder_sequence": Y, "encoder_attention_mask": true(2, 7)},
        "`encoder_attention_mask` must have the shape (B, T, S). Received: encoder_attention_mask of shape (2, 7)",
    ),
    "padding_as_pairs_of_attention": (attention, {**XY, "attention_mask": true(2, 7)}, AS_PAIRS),
    "padding_as_pairs_of_bahdanau_attention": (bahdanau, {**XY, "attention_mask": true(2, 7)}, AS_PAIRS),
    "encoder_of_images": wrong_shape(encoder_block, "have the shape (B, T, D)", inputs=IMAGES),
    "encoder_with_attention_of_images": (
        lambda: layers.EncoderBlock(5, self_attention=attention()),
        {"inputs": IMAGES},
        "pass a layer such as `MultiHeadAttention(num_heads, key_dim, attention_axes=2)` as `self_attention`",
    ),
    "encoder_of_vectors": wrong_shape(encoder_block, "have the shape (B, T, D)", inputs=X[:, 0]),
    "decoder_of_images": wrong_shape(decoder_block, "have the shape (B, T, D)", decoder_sequence=IMAGES),
    "decoder_over_images": wrong_shape(
        decoder_block, "have the shape (B, T, D)", decoder_sequence=X, encoder_sequence=IMAGES
    ),
    "bahdanau_of_images": (
        bahdanau,
        {"query": IMAGES, "value": IMAGES},
        "must have the shapes (B, T, Dq), (B, S, Dv) and (B, S, Dk). Received: query_shape=(2, 3, 5, 12)",
    ),
    "pooling_of_images": wrong_shape(
        lambda: layers.Pooling("mean"), "have the shape (B, T, D)", inputs=IMAGES
    ),
    "head_of_vectors": wrong_shape(
        lambda: layers.ClassificationHead(3), "have the shape (B, T, D)", inputs=X[:, 0]
    ),
    "labels_of_images": wrong_shape(
        lambda: layers.TokenClassificationHead(3), "have the shape (B, T, D)", inputs=IMAGES
    ),
    "ids_of_one_row": wrong_shape(
        lambda: layers.SequenceEmbedding(token_embedding()),
        "be token ids of shape (B, T)",
        inputs=np.arange(5),
    ),
    "id_too_large": (token_embedding, {"inputs": ids(3, 17)}, "Token ids must lie in [0, 17). Received: 17."),
    "ids_below_0": (
        token_embedding,
        {"inputs": ids(-1, 0, -2)},
        "Token ids must lie in [0, 17). Received: -1 and 1 more.",
    ),
    "token_types_too_large": (
        lambda: layers.SequenceEmbedding(token_embedding(), token_type=keras.layers.Embedding(2, D)),
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
    "rotary_positions": wrong_shape(
        layers.RotaryEmbedding, "have shape (2, 5)", inputs=X[:, None], positions=np.zeros((2, 7), int)
    ),
    "rotary_positions_of_floats": (
        layers.RotaryEmbedding,
        {"inputs": X, "positions": np.zeros(5, "float32")},
        "`positions` must be integers. Received: positions of dtype float32.",
    ),
    "bias_query_positions": wrong_shape(
        layers.AlibiBias, "have shape (2, 5)", query=X[:, None], query_positions=np.zeros((2, 7), int)
    ),
    "bias_key_positions_of_another_batch": wrong_shape(
        lambda: layers.RelativePositionKeys(3),
        "have shape (2, 7)",
        query=X[:, None],
        key_positions=np.zeros((3, 7), int),
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


@pytest.mark.parametrize("name", [name for name in BAD_CALLS if name.endswith(("images", "vectors"))])
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
