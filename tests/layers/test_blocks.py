"""Blocks and residual connections against NumPy and Keras layers of the same weights, and what users put in a block."""

import functools
import re
import types

import keras
import numpy as np
import pytest
from helpers_layers import assert_equal, built_layer, flat_arrays, run
from keras import ops

from keras_attn.layers import DecoderBlock, EncoderBlock, MultiHeadAttention, Residual, RotaryEmbedding

B, T, S, D = 3, 5, 7, 12
MASK = np.arange(T) < [[5], [4], [2]]
SOURCE_MASK = np.arange(S) < [[3], [7], [5]]


@pytest.fixture
def x(rng):
    return rng.normal(size=(B, T, D)).astype("float32")


@pytest.fixture
def source(rng):
    return rng.normal(size=(B, S, D)).astype("float32")


def randomized(layer, *inputs, **options):
    """The layer, built, with random weights."""
    layer(*inputs, **options)
    rng = np.random.default_rng(23)
    layer.set_weights([rng.normal(0, 0.4, w.shape) for w in layer.weights])
    return layer


def array(tensor):
    return ops.convert_to_numpy(tensor)


# --- Residual ---


def norm_by_hand(x, gain, bias=None, epsilon=1e-5):
    """Layer norm, or without a bias RMS norm."""
    x = x - x.mean(-1, keepdims=True) if bias is not None else x
    normed = x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * gain
    return normed if bias is None else normed + bias


@pytest.mark.parametrize("normalization", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"layer_scale": 0.3},
        {"normalize_first": True},
        {"normalize_first": True, "layer_scale": 0.3},
        {"normalize_first": True, "sandwich_norm": True},
    ],
)
def test_residual_by_hand(arguments, normalization, x, rng):
    norm = None if normalization == "layer_norm" else keras.layers.RMSNormalization(epsilon=1e-5)
    residual = Residual(norm=norm, **arguments)
    matrix = rng.normal(size=(D, D))

    def sublayer(x):
        return ops.matmul(x, ops.convert_to_tensor(matrix, "float32"))

    actual = array(randomized(residual, x, sublayer=sublayer)(x, sublayer=sublayer))
    weights = [w.astype("float64") for w in residual.get_weights()]
    of_one_norm = 2 if normalization == "layer_norm" else 1
    own_scale = [weights.pop(0)] if "layer_scale" in arguments else []
    norm, output_norm = weights[:of_one_norm], weights[of_one_norm:]
    update = norm_by_hand(x.astype("float64"), *norm) if residual.normalize_first else x.astype("float64")
    update = update @ matrix
    if residual.sandwich_norm:
        update = norm_by_hand(update, *output_norm)
    if own_scale:
        update = update * own_scale[0]
    expected = x + update
    if not residual.normalize_first:
        expected = norm_by_hand(expected, *norm)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    assert len(output_norm) == (of_one_norm if residual.sandwich_norm else 0)


def test_layer_scale_starts_at_its_value(x):
    residual = Residual(normalize_first=True, layer_scale=0.25)
    np.testing.assert_allclose(array(residual(x, sublayer=ops.ones_like)), x + 0.25, rtol=1e-6)


def test_stochastic_depth_drops_whole_samples_and_scales_the_others():
    rate, num_samples = 0.3, 997
    residual = Residual(normalize_first=True, stochastic_depth=rate)
    x = np.zeros((num_samples, T, D), "float32")
    update = array(residual(x, sublayer=ops.ones_like, training=True))
    kept = update[:, 0, 0] != 0
    np.testing.assert_array_equal(update[~kept], 0)
    np.testing.assert_allclose(update[kept], 1 / (1 - rate), rtol=1e-6)
    # Four standard deviations of a binomial; then the expectation of the branch is 1 as well.
    assert abs(kept.mean() - (1 - rate)) < 4 * np.sqrt(rate * (1 - rate) / num_samples)
    again = array(residual(x, sublayer=ops.ones_like, training=True))
    assert not np.array_equal(again, update)
    np.testing.assert_array_equal(array(residual(x, sublayer=ops.ones_like)), 1)


def test_the_branches_of_a_block_are_dropped_independently():
    block = EncoderBlock(11, 3, normalize_first=True, stochastic_depth=0.5)
    one = np.random.default_rng(5).normal(size=(1, T, D)).astype("float32")
    outputs = array(block(np.repeat(one, 97, axis=0), training=True))
    # Neither branch, one, the other, both: a quarter each, within four standard deviations.
    cases, counts = np.unique(outputs[:, 0].round(4), axis=0, return_counts=True)
    assert len(cases) == 4
    assert ((counts > 7) & (counts < 42)).all()
    assert (cases == one[0, 0].round(4)).all(axis=1).any()


def test_a_sublayer_that_changes_the_shape_is_refused(x):
    message = f"Received: inputs of shape {(B, T, D)}, output of shape {(B, 1, D)}."
    with pytest.raises(ValueError, match=re.escape(message)):
        Residual()(x, sublayer=lambda x: ops.mean(x, axis=1, keepdims=True))


# --- The forms of a block, composed of Keras layers with its weights ---


def with_weights(layer, weights, *inputs):
    """A Keras layer that takes its share from the front of `weights`."""
    layer(*inputs)
    count = len(layer.weights)
    layer.set_weights(weights[:count])
    del weights[:count]
    return layer


def keras_parts(block, x, order):
    """Keras layers with the weights of `block`, which lie in this order."""
    weights = block.get_weights()
    make = {
        "attention": lambda: with_weights(keras.layers.MultiHeadAttention(3, D // 3), weights, x, x),
        "norm": lambda: with_weights(keras.layers.LayerNormalization(epsilon=1e-5), weights, x),
        "feed_forward": lambda: with_weights(
            keras.Sequential([keras.layers.Dense(11, activation="relu"), keras.layers.Dense(D)]), weights, x
        ),
    }
    parts = [make[name]() for name in order]
    assert not weights
    return parts


def test_sandwich_norm_equals_keras_layers(x):
    x = ops.convert_to_tensor(x)
    block = randomized(EncoderBlock(11, 3, normalize_first=True, sandwich_norm=True), x)
    order = ["attention", "norm", "norm", "feed_forward", "norm", "norm"]
    attention, before, after, feed_forward, before_2, after_2 = keras_parts(block, x, order)
    pairs = MASK[:, None, :]
    h = before(x)
    y = x + after(attention(h, h, attention_mask=pairs))
    y = y + after_2(feed_forward(before_2(y)))
    actual = array(block(x, padding_mask=MASK))
    assert_equal([actual[MASK]], [array(y)[MASK]])


@pytest.mark.parametrize("form", [EncoderBlock, DecoderBlock])
def test_parallel_equals_keras_layers(form, x):
    x = ops.convert_to_tensor(x)
    block = randomized(form(11, 3, normalize_first=True, parallel=True), x)
    attention, norm, feed_forward = keras_parts(block, x, ["attention", "norm", "feed_forward"])
    h = norm(x)
    is_decoder = form is DecoderBlock
    expected = x + attention(h, h, use_causal_mask=is_decoder) + feed_forward(h)
    assert_equal([array(block(x))], [array(expected)])
    output, scores = block(x, return_attention_scores=True)
    assert_equal([array(output)], [array(expected)])
    assert scores.shape == (B, 3, T, T)


def test_a_parallel_decoder_block_goes_on_from_its_cache(x):
    block = randomized(DecoderBlock(11, 3, normalize_first=True, parallel=True), x)
    cache, outputs = block.empty_cache(B, T), []
    for index in range(T):
        output, cache = block(
            x[:, index : index + 1], self_attention_cache=cache, self_attention_cache_update_index=index
        )
        outputs.append(array(output))
    assert_equal([np.concatenate(outputs, axis=1)], [array(block(x))])


ATTENTION = 4 * (D * D + D)
FEED_FORWARD = 11 * D + 11 + D * 11 + D


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, ATTENTION + FEED_FORWARD + 2 * 2 * D),
        ({"parallel": True}, ATTENTION + FEED_FORWARD + 2 * D),
        ({"sandwich_norm": True}, ATTENTION + FEED_FORWARD + 4 * 2 * D),
        ({"layer_scale": 1e-4}, ATTENTION + FEED_FORWARD + 2 * 2 * D + 2 * D),
        (
            {"norm": keras.layers.RMSNormalization(), "gated": True},
            ATTENTION + FEED_FORWARD + 11 * D + 11 + 2 * D,
        ),
    ],
)
def test_numbers_of_parameters(arguments, expected):
    block = EncoderBlock(11, 3, normalize_first=True, **arguments)
    block.build((None, None, D))
    assert block.count_params() == expected


# --- Layers in the slots ---


@keras.saving.register_keras_serializable(package="keras_attn_tests")
class MaskedMean(keras.layers.Layer):
    """A mixing layer: each place gets the mean of the real places, through a Dense layer built on its first call."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense = keras.layers.Dense(D)
        self.supports_masking = True

    def call(self, inputs, padding_mask=None):
        x = self.dense(inputs)
        weights = ops.ones_like(x[..., :1])
        if padding_mask is not None:
            weights = ops.cast(padding_mask[..., None], x.dtype)
        mean = ops.sum(x * weights, axis=1, keepdims=True) / ops.sum(weights, axis=1, keepdims=True)
        return ops.broadcast_to(mean, ops.shape(x))


class Recorder(MultiHeadAttention):
    """Attention that keeps the call arguments it was given: `calls.received`, a list of dicts."""

    def __init__(self):
        super().__init__(num_heads=3, key_dim=4)
        self.calls = types.SimpleNamespace(received=[])  # Keras would wrap a list of tensors

    def call(
        self,
        query,
        value,
        key=None,
        return_attention_scores=False,
        use_causal_mask=False,
        positions=None,
        key_positions=None,
        segment_ids=None,
        key_segment_ids=None,
    ):
        given = {
            "return_attention_scores": return_attention_scores,
            "positions": positions,
            "key_positions": key_positions,
            "segment_ids": segment_ids,
            "key_segment_ids": key_segment_ids,
        }
        self.calls.received.append({n: v for n, v in given.items() if v is not None and v is not False})
        return super().call(query, value, return_attention_scores=return_attention_scores)

    @property
    def last_call(self):
        return {n: v if v is True else array(v) for n, v in self.calls.received[-1].items()}


def test_a_given_attention_is_the_one_that_would_be_built(x, source):
    built = randomized(EncoderBlock(11, 3), x)
    attention = MultiHeadAttention(3, D // 3)
    given = randomized(EncoderBlock(11, self_attention=attention), x)
    assert [w.shape for w in given.weights] == [w.shape for w in built.weights]
    given.set_weights(built.get_weights())
    options = {"padding_mask": MASK, "return_attention_scores": True}
    assert_equal(flat_arrays(given(x, **options)), flat_arrays(built(x, **options)), 0)
    assert given.self_attention is attention
    assert attention.built

    built = randomized(DecoderBlock(11, 3), x, source)
    slots = {
        "self_attention": MultiHeadAttention(3, D // 3),
        "cross_attention": MultiHeadAttention(3, D // 3),
    }
    given = randomized(DecoderBlock(11, **slots), x, source)
    assert {id(w) for w in given.weights} >= {id(w) for layer in slots.values() for w in layer.weights}
    assert len(given.weights) == len(built.weights) == len({id(w) for w in given.weights})
    names = {id(w): i for i, w in enumerate(given.weights)}
    order = [given.self_attention_layer, given._self_attention_residual]
    order += [given.cross_attention_layer, given._cross_attention_residual]
    order += [given.feed_forward_layer, given._feed_forward_residual]
    positions = [names[id(w)] for layer in order for w in layer.weights]
    weights = [None] * len(positions)
    for position, weight in zip(positions, built.get_weights()):
        weights[position] = weight
    given.set_weights(weights)
    options = {"encoder_padding_mask": SOURCE_MASK, "return_attention_scores": True}
    assert_equal(flat_arrays(given(x, source, **options)), flat_arrays(built(x, source, **options)), 0)


def test_a_layer_that_was_built_keeps_its_weights(x):
    attention = randomized(MultiHeadAttention(2, 5), x, x)
    before = attention.get_weights()
    block = EncoderBlock(11, self_attention=attention)
    block(x)
    assert_equal(attention.get_weights(), before, 0)
    assert len(block.weights) == 8 + 4 + 4


def test_keras_own_attention_stands_in_the_slot(x):
    x = ops.convert_to_tensor(x)
    block = randomized(
        EncoderBlock(11, self_attention=keras.layers.MultiHeadAttention(3, 4), normalize_first=True), x
    )
    attention, norm, feed_forward, last_norm = keras_parts(
        block, x, ["attention", "norm", "feed_forward", "norm"]
    )
    h = norm(x)
    y = x + attention(h, h, attention_mask=MASK[:, None, :])
    y = y + feed_forward(last_norm(y))
    assert_equal([array(block(x, padding_mask=MASK))[MASK]], [array(y)[MASK]])


def test_a_mixing_layer_obeys_the_padding_mask(x):
    block = randomized(EncoderBlock(11, self_attention=MaskedMean(), normalize_first=True), x)
    weights = block.get_weights()
    expected = []
    for row, mask in zip(x, MASK):
        alone = EncoderBlock(11, self_attention=MaskedMean(), normalize_first=True)
        alone(row[None])
        alone.set_weights(weights)
        expected.append(array(alone(row[None, mask]))[0])
    actual = array(block(x, padding_mask=MASK))
    assert_equal([actual[MASK]], [np.concatenate(expected)])
    # An implicit mask is obeyed as an explicit one.
    masking = keras.layers.Masking(mask_value=0.0)
    padded = np.where(MASK[..., None], x, np.float32(0))
    assert_equal([array(block(masking(padded)))[MASK]], [actual[MASK]])


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("padding_mask", {"padding_mask": MASK}),
        ("attention_mask", {"attention_mask": np.ones((B, T, T), bool)}),
        ("positions", {"positions": np.arange(T)}),
        ("segment_ids", {"segment_ids": np.ones((B, T), "int32")}),
        ("return_attention_scores", {"return_attention_scores": True}),
    ],
)
def test_what_a_mixing_layer_cannot_obey_is_refused(name, options, x):
    block = EncoderBlock(11, self_attention=keras.layers.Dense(D, name="mixing"))
    assert block(x).shape == x.shape
    with pytest.raises(ValueError, match=f"`{name}` is not an argument .* layer 'mixing' of class Dense"):
        block(x, **options)


def test_an_implicit_mask_that_a_mixing_layer_cannot_obey_is_refused(x):
    block = EncoderBlock(11, self_attention=keras.layers.Dense(D))
    with pytest.raises(ValueError, match="`padding_mask` is not an argument"):
        block(keras.layers.Masking()(x))


def test_what_a_given_attention_cannot_obey_is_refused(x, source):
    block = DecoderBlock(
        11, num_heads=3, cross_attention=keras.layers.MultiHeadAttention(3, 4), normalize_first=True
    )
    block(x, source)
    message = "`key_positions` is not an argument .* of class MultiHeadAttention"
    with pytest.raises(ValueError, match=message):
        block(x, source, encoder_positions=np.arange(S))
    message = "`segment_ids` is not an argument .* of class MultiHeadAttention"
    segments = {"decoder_segment_ids": np.ones((B, T), int), "encoder_segment_ids": np.ones((B, S), int)}
    with pytest.raises(ValueError, match=message):
        block(x, source, **segments)


def test_scores_are_asked_for_only_by_those_who_want_them(x, source):
    own, cross, alone = Recorder(), Recorder(), Recorder()
    block = DecoderBlock(11, self_attention=own, cross_attention=cross)
    encoder = EncoderBlock(11, self_attention=alone)
    assert block(x, source).shape == encoder(x).shape == x.shape
    assert own.last_call == cross.last_call == alone.last_call == {}
    output, scores, cross_scores = block(x, source, return_attention_scores=True)
    assert (output.shape, scores.shape, cross_scores.shape) == ((B, T, D), (B, 3, T, T), (B, 3, T, S))
    assert own.last_call == cross.last_call == {"return_attention_scores": True}


def assert_received(recorder, **expected):
    assert set(recorder.last_call) == set(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(recorder.last_call[name], value)


def test_positions_and_segments_reach_the_attention_layers(x, source):
    own, cross = Recorder(), Recorder()
    block = DecoderBlock(11, self_attention=own, cross_attention=cross)
    positions, source_positions = np.arange(T) + 2, np.arange(S) + 3
    segments, source_segments = np.full((B, T), 1), np.full((B, S), 2)
    block(
        x,
        source,
        decoder_positions=positions,
        decoder_segment_ids=segments,
        encoder_positions=source_positions,
        encoder_segment_ids=source_segments,
    )
    assert_received(own, positions=positions, segment_ids=segments)
    assert_received(
        cross,
        positions=positions,
        key_positions=source_positions,
        segment_ids=segments,
        key_segment_ids=source_segments,
    )
    # The keys of cross-attention do not stand where the queries stand, nor the queries where the keys do.
    block(x, source, decoder_positions=positions)
    assert_received(cross, positions=positions, key_positions=np.arange(S))
    block(x, source, encoder_positions=source_positions)
    assert_received(own)
    assert_received(cross, positions=np.arange(T), key_positions=source_positions)
    encoder = EncoderBlock(11, self_attention=Recorder())
    encoder(x, positions=positions, segment_ids=segments)
    assert_received(encoder.self_attention, positions=positions, segment_ids=segments)


# --- Packing and caches, with real positions ---


def rotary_attention():
    return MultiHeadAttention(3, 4, rotary_embedding=RotaryEmbedding())


PACKED_POSITIONS = np.array([[0, 1, 2, 0, 1]])
PACKED_SEGMENTS = np.array([[1, 1, 1, 2, 2]])
SOURCE_POSITIONS = np.array([[0, 1, 0, 1, 2, 3, 0]])
SOURCE_SEGMENTS = np.array([[1, 1, 2, 2, 2, 2, 0]])


def test_packed_rows_equal_separate_rows_in_a_decoder_block(x, source):
    slots = {"self_attention": rotary_attention(), "cross_attention": rotary_attention()}
    block = randomized(DecoderBlock(11, **slots, normalize_first=True), x, source)
    row, source_row = x[:1], source[:1]
    packed = block(
        row,
        source_row,
        decoder_positions=PACKED_POSITIONS,
        decoder_segment_ids=PACKED_SEGMENTS,
        encoder_positions=SOURCE_POSITIONS,
        encoder_segment_ids=SOURCE_SEGMENTS,
    )
    separate = [block(row[:, :3], source_row[:, :2]), block(row[:, 3:], source_row[:, 2:6])]
    assert_equal([array(packed)], [np.concatenate([array(y) for y in separate], axis=1)])


def test_cached_steps_of_given_layers_with_positions_equal_the_full_pass(x, source):
    slots = {"self_attention": rotary_attention(), "cross_attention": rotary_attention()}
    block = randomized(DecoderBlock(11, **slots, remat=True), x, source)
    expected = array(block(x, source, encoder_padding_mask=SOURCE_MASK))
    own, cross = block.empty_cache(B, T), block.project_to_cache(source, SOURCE_MASK)
    outputs, index = [], 0
    for length in (2, 1, 2):
        output, own = block(
            x[:, index : index + length],
            encoder_padding_mask=SOURCE_MASK,
            self_attention_cache=own,
            self_attention_cache_update_index=index,
            cross_attention_cache=cross,
        )
        outputs.append(array(output))
        index += length
    assert_equal([np.concatenate(outputs, axis=1)], [expected])


def test_segments_of_one_side_alone_are_refused(x, source):
    block = DecoderBlock(11, 3)
    with pytest.raises(
        ValueError, match="`decoder_segment_ids` and `encoder_segment_ids` must be given together"
    ):
        block(x, source, decoder_segment_ids=np.ones((B, T), "int32"))


# --- Refusals that need a call ---


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"num_heads": 3, "normalize_first": True, "parallel": True},
            "`parallel` is for a block without cross-attention",
        ),
        (
            {"self_attention": MultiHeadAttention(2, 5)},
            "`num_heads` or `cross_attention` must be given. Received: num_heads=None.",
        ),
    ],
)
def test_a_decoder_block_that_cannot_have_cross_attention_is_refused(arguments, message, x, source):
    with pytest.raises(ValueError, match=message):
        DecoderBlock(11, **arguments)(x, source)


def test_a_cross_attention_without_an_encoder_sequence_is_refused(x):
    block = DecoderBlock(11, 3, cross_attention=MultiHeadAttention(2, 5))
    with pytest.raises(ValueError, match="`cross_attention` needs an encoder sequence to attend to"):
        block(x)


@pytest.mark.parametrize("name", ["padding_mask", "attention_mask", "positions", "segment_ids"])
def test_what_is_said_of_an_encoder_needs_its_sequence(name, x, source):
    block = DecoderBlock(11, 3)
    message = (
        f"`encoder_{name}` needs `encoder_sequence`. For the block's own sequence pass `decoder_{name}`."
    )
    with pytest.raises(ValueError, match=message):
        block(x, **{f"encoder_{name}": np.ones((B, T), "int32")})
    # The refused call has not built the block without cross-attention.
    assert block(x, source, encoder_padding_mask=SOURCE_MASK).shape == x.shape


def test_an_index_into_a_cache_needs_the_cache(x):
    with pytest.raises(ValueError, match="`self_attention_cache_update_index` needs `self_attention_cache`"):
        DecoderBlock(11, 3)(x, self_attention_cache_update_index=2)
    with pytest.raises(ValueError, match="`cache_update_index` needs `cache`"):
        MultiHeadAttention(2, 5)(x, x, cache_update_index=2)


def test_a_list_of_sequences_is_refused(x, source):
    with pytest.raises(
        ValueError, match=r"Received: 2 in a list\. .*pass two arguments: `block\(decoder_sequence, "
    ):
        DecoderBlock(11, 3)([x, source])
    with pytest.raises(
        ValueError, match=r"`inputs` must be one tensor \(B, T, D\). Received: 2 in a tuple.$"
    ):
        EncoderBlock(11, 3)((x, x))


# --- Blocks that hold a layer, through the harness ---


def test_a_given_layer_comes_back_with_its_arguments(x):
    block = EncoderBlock(11, self_attention=MultiHeadAttention(2, 5, sliding_window=3))
    again = EncoderBlock.from_config(block.get_config())
    assert type(again.self_attention) is MultiHeadAttention
    assert again.self_attention.sliding_window == 3
    randomized(block, x)
    run(again, {"inputs": x})
    again.set_weights(block.get_weights())
    assert_equal([array(again(x))], [array(block(x))], 0)


def test_a_block_in_half_precision_holds_its_scales_in_float32(x):
    make = functools.partial(EncoderBlock, 11, 3, normalize_first=True, layer_scale=0.1)
    half = built_layer(make, {"inputs": x}, dtype="mixed_bfloat16")
    assert {keras.backend.standardize_dtype(w.dtype) for w in half.weights} == {"float32"}
    assert keras.backend.standardize_dtype(half(x).dtype) == "bfloat16"


@pytest.mark.parametrize("num_tokens", [1, 3])
@pytest.mark.parametrize("normalize_first", [False, True])
def test_an_implicit_mask_on_a_cached_step_is_refused(num_tokens, normalize_first):
    """A cached step cannot remember an implicit mask; the mask belongs over the cache's slots."""
    embedding = keras.layers.Embedding(11, 6, mask_zero=True)
    block = DecoderBlock(intermediate_dim=5, num_heads=2, normalize_first=normalize_first)
    block.build((None, None, 6))
    token_ids = np.array([[4, 0, 5], [7, 3, 0]])[:, :num_tokens]
    with pytest.raises(ValueError, match=r"`value_mask` must have shape \(2, 7\)"):
        block(
            embedding(token_ids),
            self_attention_cache=block.empty_cache(2, 7),
            self_attention_cache_update_index=0,
        )
