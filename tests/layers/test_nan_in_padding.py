"""What paddings hide reaches nobody: not outputs, not gradients of inputs, and not those of the layer's weights.

The truth is the same layer with the same mask written out for all pairs, on inputs without NaN.
"""

import keras
import numpy as np
import pytest
from helpers_layers import BACKEND, assert_equal, gradients, run
from keras import ops

from keras_attn import layers
from keras_attn.layers import DifferentialAttention, MultiHeadAttention, TalkingHeadsAttention
from keras_attn.models import RNNSeq2Seq, Seq2SeqTransformer

B, T, S, D = 5, 7, 11, 13
ORDERS = {
    "free": {},
    "causal": {"use_causal_mask": True},
    "given_positions": {"use_causal_mask": True, "positions": np.array([3, 4, 5, 6, 9, 10, 20], "int32")},
    "keys_after_queries": {"use_causal_mask": True, "key_positions": np.arange(T, dtype="int32") + 2},
}
PADDINGS = ["same", "different", "of_queries", "of_keys"]


def padding(rng, length):
    """Pads on both sides and between, a row of one token, and one of padding only."""
    mask = rng.random((B, length)) < 0.6
    mask[0], mask[1, :2], mask[2], mask[-1] = True, False, np.arange(length) == 0, False
    return mask


def make_masks(rng, name, num_keys):
    of_queries, of_keys = padding(rng, T), padding(rng, num_keys)
    if name == "different":  # a row of queries without keys, and one of keys without queries
        of_queries[2], of_keys[2] = True, False
        of_queries[3], of_keys[3] = False, True
    return {
        "same": {"query_mask": of_queries, "value_mask": of_queries},
        "different": {"query_mask": of_queries, "value_mask": of_keys},
        "of_queries": {"query_mask": of_queries},
        "of_keys": {"value_mask": of_keys},
    }[name]


def as_pairs(masks, order, window, num_keys):
    allowed = np.ones((B, T, num_keys), bool)
    allowed &= masks.get("query_mask", np.ones((B, T), bool))[:, :, None]
    allowed &= masks.get("value_mask", np.ones((B, num_keys), bool))[:, None, :]
    positions = order.get("positions", np.arange(T))
    distance = positions[:, None] - order.get(
        "key_positions", positions if num_keys == T else np.arange(num_keys)
    )
    if order:
        allowed &= distance >= 0
    if window:
        allowed &= np.abs(distance) < window
    return allowed


class OfItself(keras.layers.Layer):
    """Self-attention, in which query and value, and with `same` their masks, are one tensor each."""

    def __init__(self, attention, same):
        super().__init__()
        self.attention, self.same = attention, same

    def build(self, query_shape):
        self.attention.build(query_shape, query_shape)

    def call(
        self,
        query,
        query_mask=None,
        value_mask=None,
        attention_mask=None,
        use_causal_mask=False,
        positions=None,
        key_positions=None,
    ):
        return self.attention(
            query,
            query,
            query_mask=query_mask,
            value_mask=query_mask if self.same else value_mask,
            attention_mask=attention_mask,
            use_causal_mask=use_causal_mask,
            positions=positions,
            key_positions=key_positions,
        )


def check(rng, cls, of_itself, padding_name, order, fill, weights_too=True, **arguments):
    num_keys = T if of_itself else S
    masks = make_masks(rng, padding_name, num_keys)
    allowed = as_pairs(masks, order, arguments.get("sliding_window"), num_keys)
    sequences = {"query": rng.normal(size=(B, T, D)).astype("float32")}
    takes_part = {"query": allowed.any(-1)}
    layer = cls(3, 5, **arguments)
    if of_itself:
        layer = OfItself(layer, same=padding_name == "same")
        takes_part["query"] |= allowed.any(-2)
    else:
        sequences["value"] = rng.normal(size=(B, S, D)).astype("float32")
        takes_part["value"] = allowed.any(-2)
    spoilt = {
        name: np.where(takes_part[name][..., None], x, np.float32(fill)) for name, x in sequences.items()
    }
    written_out = {**sequences, **order, "attention_mask": allowed}
    with_paddings = {**spoilt, **order, **masks}
    run(layer, written_out)
    layer.set_weights([rng.normal(0, 0.5, weight.shape) for weight in layer.weights])
    results = []
    for inputs in (with_paddings, written_out):
        by_input, by_weight = gradients(layer, inputs, lambda output: output**2)
        found = run(layer, inputs) + [by_input[name] for name in sequences]
        results.append(found + by_weight if weights_too else found)
    assert_equal(*results, 1e-5)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("fill", [np.nan, -np.inf, 7.0], ids=str)
@pytest.mark.parametrize("padding_name", PADDINGS)
def test_of_a_sequence_that_attends_to_itself(rng, padding_name, fill):
    check(rng, MultiHeadAttention, True, padding_name, {}, fill, use_gate=True)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("fill", [np.nan, -np.inf, 7.0], ids=str)
@pytest.mark.parametrize("padding_name", PADDINGS[1:])
def test_of_one_sequence_that_attends_to_another(rng, padding_name, fill):
    check(rng, MultiHeadAttention, False, padding_name, {}, fill, use_gate=True)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("cls", "arguments"),
    [
        (MultiHeadAttention, {"memory_efficient": True}),
        (DifferentialAttention, {}),
        (DifferentialAttention, {"memory_efficient": True}),
        (TalkingHeadsAttention, {}),
    ],
    ids=str,
)
def test_of_variants(rng, cls, arguments):
    check(rng, cls, True, "same", ORDERS["causal"], np.nan, **arguments)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("window", [None, 2])
@pytest.mark.parametrize("order", ORDERS)
def test_of_one_padding_where_positions_hide_keys_too(rng, order, window):
    # The gradients of weights are not promised to survive NaN in a real key that nobody sees.
    weights_too = order != "keys_after_queries"
    check(
        rng,
        MultiHeadAttention,
        True,
        "same",
        ORDERS[order],
        np.nan,
        weights_too=weights_too,
        sliding_window=window,
    )


# --- Weights get the update that they get if zeros stand at pads, besides those of the habit `nan_at_pads` ---

E = 12
TOKENS, SOURCE = np.arange(T) < [[5], [7], [2], [4], [1]], np.arange(S) < [[11], [3], [6], [1], [8]]
PAIRS = np.tril(np.ones((B, T, S), bool), 2)
PIXELS = TOKENS[:, None] & (np.arange(3) < [[3], [1], [2], [3], [2]])[:, :, None]


class Marked(keras.layers.Layer):
    """Puts a mask on a sequence, as `keras.layers.Embedding(mask_zero=True)` does."""

    def __init__(self, mask):
        super().__init__()
        self.mask = mask

    def call(self, inputs):
        return inputs * 1.0

    def compute_mask(self, inputs, previous_mask=None):
        return ops.convert_to_tensor(self.mask)


class Calls(keras.layers.Layer):
    """A function of a layer and of the sequences `x` and `source`."""

    def __init__(self, part, function):
        super().__init__()
        self.part, self.function = part, function
        self.supports_masking = True

    def build(self, *shapes):
        """The part builds itself."""

    def call(self, x, source):
        return self.function(self.part, x, source)


def adapted(block):
    block.build((None, None, E))
    block.enable_lora(2)
    return block


def cached_attention(layer, x, source):
    if not layer.built:
        layer.build(x.shape, source.shape)
    cache = layer.project_to_cache(source, value_mask=SOURCE)
    return layer(ops.where(TOKENS[..., None], x, 0.0), source, value_mask=SOURCE, cache=cache)[0]


def projected_attention(layer, x, source):
    projected = layer.project_keys(source, SOURCE)
    return layer(x, source, query_mask=TOKENS, value_mask=SOURCE, projected_key=projected)


def of_decoder(model, x, source):
    token_ids = np.where(TOKENS, 3, 0)
    more = {} if isinstance(model, RNNSeq2Seq) else {"decoder_padding_mask": TOKENS}
    return model.decode(token_ids, source, SOURCE, **more)


def encoder_block(**arguments):
    return layers.EncoderBlock(7, 3, **arguments)


def decoder_block(**arguments):
    return layers.DecoderBlock(7, 3, **arguments)


def attention(**arguments):
    return MultiHeadAttention(3, 5, **arguments)


def by_mask(block, x, source):
    return block(x, padding_mask=TOKENS)


def by_keras_mask(layer, x, source):
    return layer(Marked(TOKENS)(x))


def of_both(block, x, source):
    return block(x, source, decoder_padding_mask=TOKENS, encoder_padding_mask=SOURCE)


def of_pairs(layer, x, source):
    return layer(x, source, query_mask=TOKENS, value_mask=SOURCE, attention_mask=PAIRS)


def of_numbers(layer, x, source):
    return layer(x, source, query_mask=TOKENS.astype("int32"), value_mask=SOURCE.astype("float32"))


def of_segments(layer, x, source):
    return layer(x, source, segment_ids=1 * TOKENS, key_segment_ids=1 * SOURCE)


def of_rows_and_columns(layer, x, source):
    x = ops.where(PIXELS[..., None], ops.expand_dims(x, 1), float("nan"))
    return ops.where(PIXELS[..., None], layer(x, x, query_mask=PIXELS, value_mask=PIXELS), 0.0)


CALLS = {
    "encoder_block": (encoder_block(), by_mask),
    "parallel": (encoder_block(normalize_first=True, parallel=True), by_mask),
    "remat": (encoder_block(remat=True, dropout=0.1), by_mask),
    "implicit_mask": (encoder_block(), by_keras_mask),
    "segments": (encoder_block(), lambda block, x, source: block(x, segment_ids=2 * TOKENS)),
    "keras_attention": (encoder_block(self_attention=keras.layers.MultiHeadAttention(3, 5)), by_mask),
    "adapted": (lambda: adapted(encoder_block()), by_mask),
    "decoder_block": (decoder_block(), of_both),
    "decoder_remat": (decoder_block(remat=True), of_both),
    "attention_of_pairs": (attention(use_gate=True), of_pairs),
    "attention_of_segments": (attention(), of_segments),
    "attention_of_axes": (attention(attention_axes=2), of_rows_and_columns),
    "attention_of_integers": (attention(), of_numbers),
    "attention_with_cache": (attention(), cached_attention),
    "bahdanau": (layers.BahdanauAttention(5), of_numbers),
    "bahdanau_of_pairs": (layers.BahdanauAttention(5), of_pairs),
    "bahdanau_of_projected": (layers.BahdanauAttention(5), projected_attention),
    "feed_forward": (layers.FeedForward(7), by_keras_mask),
    "logits": (
        layers.TokenEmbedding(17, E, mask_zero=True),
        lambda layer, x, source: layer(Marked(TOKENS)(x), reverse=True),
    ),
    "transformer": (
        lambda: Seq2SeqTransformer.from_preset("tiny", 7, hidden_dim=E, num_heads=3, dropout=0.0),
        of_decoder,
    ),
    "rnn": (lambda: RNNSeq2Seq(7, hidden_dim=E // 2, dropout=0.0), of_decoder),
}


CALLED_WITH_A_MASK_OF_KERAS = ("implicit_mask", "feed_forward", "logits")


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", CALLS)
def test_weights_get_the_update_of_zeros_at_pads(name, rng):
    if BACKEND == "jax" and name in CALLED_WITH_A_MASK_OF_KERAS:
        pytest.skip("Keras puts no mask on what jax.grad traces")
    make, function = CALLS[name]
    part = make if isinstance(make, keras.layers.Layer) else make()
    layer = Calls(part, function)
    x, source = (rng.normal(size=(B, n, E)).astype("float32") for n in (T, S))
    results = []
    for fill in (0.0, np.nan):
        inputs = {
            "x": np.where(TOKENS[..., None], x, np.float32(fill)),
            "source": np.where(SOURCE[..., None], source, np.float32(fill)),
        }
        run(layer, inputs)
        results.append(gradients(layer, inputs, lambda y: ops.where(_real(y), y, 0.0) ** 2)[1])
    # The decoder alone of a model is called, so that some of its weights take no part.
    of_zeros, of_nan = ([x for x in result if x is not None] for result in results)
    assert of_zeros
    assert all(np.isfinite(x).all() for x in of_zeros)
    assert_equal(of_nan, of_zeros, 1e-6)


def _real(y):
    """Real tokens among those of outputs (B, T, ...); all where outputs are of other axes."""
    if y.shape[1] != T:
        return np.ones((B, 1, 1, 1), bool)[(...,) + (0,) * (4 - len(y.shape))]
    return TOKENS[:, :, None]
