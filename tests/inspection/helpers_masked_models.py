"""Models whose masks are right, and mutants of them. Each function returns a model, its inputs and what is declared of them."""

import functools

import keras
import numpy as np
import pytest
from helpers_keras_models import VOCABULARY_SIZE, classifier, randomize, token_ids, translator
from keras import layers, ops

import keras_attn
from keras_attn.layers import (
    AlibiBias,
    BahdanauAttention,
    DecoderBlock,
    DifferentialAttention,
    EncoderBlock,
    MultiHeadAttention,
    RelativePositionBias,
    RotaryEmbedding,
    SequenceEmbedding,
    TalkingHeadsAttention,
    TokenEmbedding,
)

SIZES = {"hidden_dim": 14, "num_heads": 2, "intermediate_dim": 17, "max_sequence_length": 23}
D = 10
SEGMENTS = np.array([[1, 1, 1, 2, 2, 0, 0], [1, 1, 2, 2, 3, 3, 3]])
SOURCE, TARGET = token_ids(7, 4), token_ids(3, 5, seed=9)
LEFT = np.array([[False, False, True, True, True], [True] * 5])


# Ours.


def seq2seq(**options):
    model = keras_attn.models.Seq2SeqTransformer.from_sizes(VOCABULARY_SIZE, 2, 2, **{**SIZES, **options})
    inputs = {"encoder_token_ids": SOURCE, "decoder_token_ids": TARGET}
    return model, inputs, {"padding": real(inputs), "causal": ["decoder_token_ids"]}


def packed_seq2seq():
    model, _, _ = seq2seq()
    decoder = SEGMENTS[:, [0, 2, 3, 4, 6]]
    inputs = {
        "encoder_token_ids": np.where(SEGMENTS, token_ids(7, 7), 0),
        "encoder_segment_ids": SEGMENTS,
        "decoder_token_ids": np.where(decoder, token_ids(5, 5, seed=9), 0),
        "decoder_segment_ids": decoder,
    }
    segments = {f"{side}_token_ids": inputs[f"{side}_segment_ids"] for side in ("encoder", "decoder")}
    return model, inputs, {"segments": segments, "causal": ["decoder_token_ids"]}


def encoder():
    model = keras_attn.models.EncoderTransformer.from_sizes(VOCABULARY_SIZE, 2, **SIZES)
    return model, SOURCE, {"padding": {"inputs": SOURCE != 0}}


def encoder_that_is_told_its_mask():
    model, _, _ = encoder()
    inputs = {"token_ids": token_ids(7, 7), "padding_mask": SOURCE != 0}
    return model, inputs, {"padding": {"token_ids": SOURCE != 0}}


def decoder(**options):
    model = keras_attn.models.DecoderTransformer.from_sizes(VOCABULARY_SIZE, 2, **{**SIZES, **options})
    return model, SOURCE, {"padding": {"inputs": SOURCE != 0}, "causal": ["inputs"]}


def left_padded_decoder():
    model, _, _ = decoder(position_encoding="rotary", hidden_dim=16)
    inputs = {"token_ids": token_ids(5, 5), "padding_mask": LEFT}
    return model, inputs, {"padding": {"token_ids": LEFT}, "causal": ["token_ids"]}


def packed_decoder():
    model, _, _ = decoder()
    inputs = {"token_ids": np.where(SEGMENTS, token_ids(7, 7), 0), "segment_ids": SEGMENTS}
    return model, inputs, {"segments": {"token_ids": SEGMENTS}, "causal": ["token_ids"]}


def of_attention(attention, causal=True):
    """Two of our blocks around given attention layers."""
    token = TokenEmbedding(VOCABULARY_SIZE, 14)
    kind, model = (
        (DecoderBlock, keras_attn.models.DecoderTransformer)
        if causal
        else (EncoderBlock, keras_attn.models.EncoderTransformer)
    )
    blocks = [kind(intermediate_dim=17, self_attention=attention()) for _ in range(2)]
    return (
        model(SequenceEmbedding(token), blocks),
        SOURCE,
        {"padding": {"inputs": SOURCE != 0}, "causal": ["inputs"] if causal else []},
    )


def recurrent_translator():
    model = keras_attn.models.RNNSeq2Seq(VOCABULARY_SIZE, hidden_dim=6)
    inputs = {"encoder_token_ids": SOURCE, "decoder_token_ids": TARGET}
    return model, inputs, {"padding": real(inputs), "causal": ["decoder_token_ids"]}


def real(inputs):
    return {name: ids != 0 for name, ids in inputs.items()}


# Of Keras' layers and of ours in functional models.


def source_and_target(mask_zero=True):
    source = keras.Input((None,), dtype="int32", name="source")
    target = keras.Input((None,), dtype="int32", name="target")
    return (
        [source, target],
        layers.Embedding(VOCABULARY_SIZE, D, mask_zero=mask_zero)(source),
        layers.Embedding(VOCABULARY_SIZE, D, mask_zero=mask_zero)(target),
    )


def stacked_cross_attention(attention):
    """Two layers of cross-attention on one encoder output; the padding is Keras' implicit masks alone."""
    inputs, encoded, x = source_and_target()
    for i in range(2):
        # `x + y` would lose the mask that `x` carries.
        x = layers.Add()([x, attention(name=f"self_{i}")(x, x, use_causal_mask=True)])
        x = layers.Add()([x, attention(name=f"cross_{i}")(x, encoded)])
    return keras.Model(inputs, x), [SOURCE, TARGET], {"causal": ["target"]}


def additive_translator():
    inputs, encoded, x = source_and_target()
    x = layers.GRU(D, return_sequences=True)(x)
    x = x + BahdanauAttention(5)(x, encoded)
    return keras.Model(inputs, x), [SOURCE, TARGET], {"causal": ["target"]}


def one_sequence(body, causal=False, ids=SOURCE, mask_zero=True):
    """A model of one sequence; `body` is called on its vectors."""
    token_input = keras.Input((None,), dtype="int32", name="token_ids")
    x = layers.Embedding(VOCABULARY_SIZE, D, mask_zero=mask_zero)(token_input)
    return keras.Model(token_input, body(x)), ids, {"causal": ["token_ids"] if causal else []}


def residual(*attention, **arguments):
    def body(x):
        for layer in attention:
            x = layers.LayerNormalization()(x + layer(x, x, **arguments))
        return x

    return body


def luong(x):
    return x + layers.Attention()([x, x], use_causal_mask=True)


def conv(padding, causal=True):
    def body(x):
        for _ in range(2):
            x = layers.Conv1D(D, 3, padding=padding, activation="tanh")(x)
        return x

    return one_sequence(body, causal=causal, ids=token_ids(7, 7), mask_zero=False)


class RunningMean(layers.Layer):
    supports_masking = True

    def call(self, x):
        counts = ops.arange(1, ops.shape(x)[1] + 1, dtype="float32")
        return ops.cumsum(x, axis=1) / counts[:, None]


class MaskedMax(layers.Layer):
    def __init__(self, with_mask=True):
        super().__init__()
        self.with_mask = with_mask
        self.supports_masking = True

    def call(self, x, mask=None):
        return ops.max(ops.where(mask[..., None], x, -1e9) if self.with_mask else x, axis=1)

    def compute_mask(self, inputs, mask=None):
        return None


def of_floats(body):
    """Float inputs (B, T, 6) whose padding `Masking` finds."""
    inputs = keras.Input((None, 6), name="frames")
    frames = np.random.default_rng(3).normal(size=(2, 7, 6)).astype("float32")
    frames[1, 4:] = 0
    return keras.Model(inputs, body(layers.Masking()(inputs))), frames, {}


def with_batch_norm():
    def body(x):
        x = x + layers.MultiHeadAttention(2, 5)(x, x, use_causal_mask=True)
        return layers.BatchNormalization()(x)

    return one_sequence(body, causal=True)


def of_kerashub(name, causal=False, **sizes):
    keras_hub = pytest.importorskip("keras_hub", reason='pip install "keras_attn[peers]"')
    arguments = {"vocabulary_size": VOCABULARY_SIZE, "num_layers": 2, **SIZES, **sizes}
    model = getattr(keras_hub.models, name)(
        **{key: value for key, value in arguments.items() if value is not None}
    )
    if "encoder_token_ids" in {x.name for x in model.inputs}:
        inputs = {"encoder_token_ids": SOURCE, "encoder_padding_mask": SOURCE != 0}
        inputs |= {"decoder_token_ids": TARGET, "decoder_padding_mask": TARGET != 0}
        padding = {f"{side}_token_ids": inputs[f"{side}_padding_mask"] for side in ("encoder", "decoder")}
        return model, inputs, {"padding": padding}
    inputs = {"token_ids": SOURCE, "padding_mask": SOURCE != 0}
    if name == "BertBackbone":
        inputs["segment_ids"] = np.array([[0, 0, 1, 1, 1, 1, 1], [0, 1, 1, 1, 0, 0, 0]])
    return (model, inputs, {"padding": {"token_ids": SOURCE != 0}, "causal": ["token_ids"] if causal else []})


def kerashub_blocks():
    keras_hub = pytest.importorskip("keras_hub", reason='pip install "keras_attn[peers]"')
    inputs, encoded, x = source_and_target(mask_zero=False)
    source_mask, target_mask = (ops.not_equal(ids, 0) for ids in inputs)
    encoded = keras_hub.layers.TransformerEncoder(17, 2)(encoded, padding_mask=source_mask)
    masks = {"decoder_padding_mask": target_mask, "encoder_padding_mask": source_mask}
    for _ in range(2):
        x = keras_hub.layers.TransformerDecoder(17, 2)(x, encoded, **masks)
    padding = {"source": SOURCE != 0, "target": TARGET != 0}
    return keras.Model(inputs, x), [SOURCE, TARGET], {"padding": padding, "causal": ["target"]}


our_attention = functools.partial(MultiHeadAttention, 2, 5)
keras_attention = functools.partial(layers.MultiHeadAttention, 2, 5)
small = functools.partial(dict, num_heads=2, key_dim=7)
causal = {"use_causal_mask": True}

RIGHT = {
    "ours: translation": seq2seq,
    "ours: translation, pre-norm, gated, learned": lambda: seq2seq(
        normalize_first=True, normalization="rms_norm", gated=True, position_encoding="learned"
    ),
    "ours: packed translation": packed_seq2seq,
    "ours: encoder": encoder,
    "ours: encoder that is told its mask": encoder_that_is_told_its_mask,
    "ours: language model": decoder,
    "ours: language model, padded on the left": left_padded_decoder,
    "ours: packed language model": packed_decoder,
    "ours: recurrent translation": recurrent_translator,
    "ours: stacked cross-attention": lambda: stacked_cross_attention(our_attention),
    "ours: additive cross-attention": additive_translator,
    "ours: rotary, grouped, window and sinks": lambda: of_attention(
        lambda: MultiHeadAttention(
            4,
            6,
            num_key_value_heads=2,
            rotary_embedding=RotaryEmbedding(),
            sliding_window=3,
            num_sink_tokens=1,
        )
    ),
    "ours: ALiBi": lambda: of_attention(lambda: MultiHeadAttention(**small(), position_bias=AlibiBias())),
    "ours: T5's bias": lambda: of_attention(
        lambda: MultiHeadAttention(**small(), position_bias=RelativePositionBias(num_buckets=8)), causal=False
    ),
    "ours: talking heads": lambda: of_attention(lambda: TalkingHeadsAttention(**small())),
    "ours: differential": lambda: of_attention(lambda: DifferentialAttention(**small())),
    "ours: memory-efficient": lambda: of_attention(
        lambda: MultiHeadAttention(**small(), memory_efficient=True)
    ),
    "keras.io: classifier with mask": lambda: (classifier(mask_zero=True), SOURCE, {}),
    "keras.io: translation": lambda: (
        translator(),
        {"encoder_inputs": SOURCE, "decoder_inputs": TARGET},
        {"causal": ["decoder_inputs"]},
    ),
    "Keras: causal attention": lambda: one_sequence(
        residual(keras_attention(), keras_attention(), **causal), True
    ),
    "Keras: grouped attention": lambda: one_sequence(
        residual(layers.GroupQueryAttention(5, 4, 2), **causal), True, token_ids(7, 7), mask_zero=False
    ),
    "Keras: dropout in attention": lambda: one_sequence(
        residual(keras_attention(dropout=0.3), **causal), True
    ),
    "Keras: Attention": lambda: one_sequence(luong, True),
    "Keras: LSTM": lambda: one_sequence(lambda x: layers.LSTM(D, return_sequences=True)(x), True),
    "Keras: bidirectional GRU, last state": lambda: one_sequence(
        lambda x: layers.Bidirectional(layers.GRU(7))(x)
    ),
    "Keras: causal convolutions": lambda: conv("causal"),
    "Keras: mean of masked frames": lambda: of_floats(
        lambda x: layers.GlobalAveragePooling1D()(layers.Dense(5, "tanh")(x))
    ),
    "Keras: recurrent over masked frames": lambda: of_floats(lambda x: layers.SimpleRNN(7)(x)),
    "a running mean": lambda: one_sequence(
        lambda x: RunningMean()(x), True, token_ids(7, 7), mask_zero=False
    ),
    "a masked maximum": lambda: one_sequence(lambda x: MaskedMax()(x)),
    "Keras: batch normalisation": with_batch_norm,
    "KerasHub: BERT": lambda: of_kerashub("BertBackbone"),
    "KerasHub: GPT-2": lambda: of_kerashub("GPT2Backbone", causal=True),
    "KerasHub: LLaMA": lambda: of_kerashub(
        "LlamaBackbone",
        causal=True,
        num_heads=None,
        max_sequence_length=None,
        num_query_heads=2,
        num_key_value_heads=1,
        hidden_dim=16,
    ),
    "KerasHub: BART": lambda: of_kerashub("BartBackbone"),
    "KerasHub: blocks": kerashub_blocks,
}


# Mutants.


def with_attention_mask(make_mask, explicit=False):
    """Our attention with a wrong mask of its own. The right padding is declared."""

    class Masked(layers.Layer):
        def __init__(self):
            super().__init__()
            self.attention = [MultiHeadAttention(2, 5, name=f"attention_{i}") for i in range(2)]

        def build(self, input_shape):
            for layer in self.attention:
                layer.build(input_shape, input_shape)

        def call(self, x, ids):
            positions = ops.arange(ops.shape(ids)[1])
            mask = make_mask(ops.not_equal(ids, 0), positions[:, None], positions)
            for layer in self.attention:
                x = x + layer(x, x, attention_mask=mask)
            return x

    ids = keras.Input((None,), dtype="int32", name="token_ids")
    model = keras.Model(ids, Masked()(layers.Embedding(VOCABULARY_SIZE, D)(ids), ids))
    return model, SOURCE, {"padding": {"token_ids": SOURCE != 0}, "causal": ["token_ids"]}


def causal_in_the_first_layer_alone(x):
    x = x + keras_attention(name="first")(x, x, use_causal_mask=True)
    return x + keras_attention(name="second")(x, x)


class NormOfAll(layers.Layer):
    """A norm over positions and features."""

    supports_masking = True

    def call(self, x):
        return x - ops.mean(x, axis=(1, 2), keepdims=True)


class Scores(layers.Layer):
    """Attention by hand, with a softmax of one's own."""

    def __init__(self, softmax):
        super().__init__()
        self.softmax = softmax
        self.supports_masking = True

    def call(self, x, mask=None):
        logits = ops.matmul(x, ops.transpose(x, (0, 2, 1)))
        return x + ops.matmul(self.softmax(logits, mask[:, None]), x)


def by_hand(softmax):
    return one_sequence(lambda x: Scores(softmax)(x))


def masked_after(logits, mask):
    return ops.softmax(logits) * ops.cast(mask, logits.dtype)


def too_weak(logits, mask):
    return ops.softmax(ops.where(mask, logits, logits - 10.0))


def over_batch(logits, mask):
    return ops.softmax(ops.where(mask, logits, -1e4), axis=0) * ops.cast(mask, logits.dtype)


class Normed(layers.Layer):
    """Batch normalisation that always takes the batch's own means."""

    def __init__(self):
        super().__init__()
        self.norm = layers.BatchNormalization(name="norm")
        self.supports_masking = True

    def build(self, input_shape):
        self.norm.build(input_shape)

    def call(self, x):
        return self.norm(x, training=True)


class Flattened(layers.Layer):
    """Attention over all rows, as if they were one sequence."""

    def __init__(self):
        super().__init__()
        self.attention = keras_attention()
        self.supports_masking = True

    def build(self, input_shape):
        self.attention.build((1, None, D), (1, None, D))

    def call(self, x):
        flat = ops.reshape(x, (1, -1, D))
        return ops.reshape(self.attention(flat, flat), ops.shape(x))


def unpacked(model_of):
    """A packed batch whose segments the model is not told."""
    model, inputs, declared = model_of()
    return model, {name: x for name, x in inputs.items() if "segment" not in name}, declared


class SegmentsInSelfAttentionAlone(keras.Model):
    def __init__(self):
        super().__init__()
        self.embedding = layers.Embedding(VOCABULARY_SIZE, D)
        self.attention = our_attention(name="own")
        self.cross = our_attention(name="cross")
        self(
            {
                name: np.ones((2, 5), "int32")
                for name in ("source", "source_segments", "target", "target_segments")
            }
        )

    def call(self, inputs):
        source, x = self.embedding(inputs["source"]), self.embedding(inputs["target"])
        x = x + self.attention(x, x, segment_ids=inputs["target_segments"], use_causal_mask=True)
        return x + self.cross(
            x, source, query_mask=inputs["target_segments"] != 0, value_mask=inputs["source_segments"] != 0
        )


def segments_in_self_attention_alone():
    segments = SEGMENTS[:, [0, 2, 3, 4, 6]]
    inputs = {"source": token_ids(7, 7), "source_segments": SEGMENTS}
    inputs |= {"target": token_ids(5, 5, seed=9), "target_segments": segments}
    declared = {"segments": {"source": SEGMENTS, "target": segments}, "causal": ["target"]}
    return SegmentsInSelfAttentionAlone(), inputs, declared


class CausalLostWithDropout(layers.MultiHeadAttention):
    """keras#23038: with dropout configured, the causal mask that is the only mask is lost."""

    def _compute_attention(self, query, key, value, attention_mask=None, *args, **kwargs):
        if self._dropout > 0:
            attention_mask = None
        return super()._compute_attention(query, key, value, attention_mask, *args, **kwargs)


class GradientLeaks(layers.Layer):
    def call(self, x):
        wrong = ops.flip(x, axis=1)
        return RunningMean()(x) + wrong - ops.stop_gradient(wrong)


class WrongInGraphs(layers.Layer):
    def call(self, x):
        is_eager = hasattr(x, "numpy")
        return RunningMean()(x) if is_eager else x + ops.mean(x, axis=1, keepdims=True)


class OwnCall(keras.Model):
    """The leak is in the model's own call, in none of its layers."""

    def __init__(self):
        super().__init__()
        self.embedding = layers.Embedding(VOCABULARY_SIZE, D, mask_zero=True)
        self.dense = layers.Dense(5)
        self(SOURCE)

    def call(self, inputs):
        return self.dense(ops.mean(self.embedding(inputs), axis=1))


def cross_without_mask():
    inputs, encoded, x = source_and_target()
    encoded = ops.tanh(encoded)  # which carries no mask
    x = x + our_attention(name="cross")(x, encoded)
    return keras.Model(inputs, x), [SOURCE, TARGET], {}


FULL = token_ids(7, 7)
# By name: the model, the kinds of leaks, the first layer, and the modes.
MUTANTS = {
    "polarity flipped": (
        lambda: with_attention_mask(lambda real, t, s: ~real[:, None]),
        {"padding"},
        "masked/attention_0",
    ),
    "causal off by one": (
        lambda: with_attention_mask(lambda real, t, s: real[:, None] & (s <= t + 1)),
        {"causal"},
        "masked/attention_0",
    ),
    "causal transposed": (
        lambda: with_attention_mask(lambda real, t, s: real[:, None] & (s >= t)),
        {"causal"},
        "masked/attention_0",
    ),
    "padding of queries, not of keys": (
        lambda: with_attention_mask(lambda real, t, s: real[:, :, None]),
        {"padding", "causal"},
        "masked/attention_0",
    ),
    "a window without an order": (
        lambda: with_attention_mask(lambda real, t, s: real[:, None] & (abs(t - s) < 3)),
        {"causal"},
        "masked/attention_0",
    ),
    "the mask of another row": (
        lambda: with_attention_mask(lambda real, t, s: ops.roll(real, 1, axis=0)[:, None]),
        {"padding", "causal"},
        "masked/attention_0",
    ),
    "causal in the first layer alone": (
        lambda: one_sequence(causal_in_the_first_layer_alone, True),
        {"causal", "padding"},
        "second",
    ),
    "padding in the first layer alone": (
        lambda: one_sequence(residual(keras_attention(name="first"), keras_attention(name="second"))),
        {"padding"},
        "second",
    ),
    "Keras' stacked cross-attention": (
        lambda: stacked_cross_attention(keras_attention),
        {"padding"},
        "cross_1",
    ),
    "mask skipped in cross-attention": (cross_without_mask, {"padding"}, "cross"),
    "masked after the softmax": (lambda: by_hand(masked_after), {"padding"}, "scores"),
    "masked by -10": (lambda: by_hand(too_weak), {"padding"}, "scores"),
    "softmax over the batch": (lambda: by_hand(over_batch), {"batch"}, "scores"),
    "a norm over positions": (
        lambda: one_sequence(lambda x: NormOfAll()(x), True),
        {"padding", "causal"},
        "norm_of_all",
    ),
    "batch normalisation as in training": (
        lambda: one_sequence(lambda x: Normed()(x)),
        {"batch", "padding"},
        "normed/norm",
    ),
    "a mean over pads": (lambda: one_sequence(lambda x: ops.mean(x, axis=1)), {"padding"}, None),
    "a maximum over pads": (lambda: one_sequence(lambda x: MaskedMax(False)(x)), {"padding"}, "masked_max"),
    "a cumulative sum from the end": (
        lambda: one_sequence(lambda x: ops.flip(RunningMean()(ops.flip(x, axis=1)), axis=1), True),
        {"padding", "causal"},
        None,
    ),
    "rows as one sequence": (
        lambda: one_sequence(lambda x: Flattened()(x)),
        {"batch", "padding"},
        "flattened",
    ),
    "convolutions in both directions": (lambda: conv("same"), {"causal"}, "conv1d"),
    "a backward layer": (
        lambda: one_sequence(lambda x: layers.Bidirectional(layers.GRU(5, return_sequences=True))(x), True),
        {"causal"},
        "bidirectional",
    ),
    "segments not told": (lambda: unpacked(packed_decoder), {"segments"}, "decoder_block_0/self_attention"),
    "segments not told to cross-attention": (segments_in_self_attention_alone, {"segments"}, "cross"),
    "causal lost with dropout": (
        lambda: one_sequence(residual(CausalLostWithDropout(2, 5, name="lost"), **causal), True, FULL, False),
        {"causal"},
        "lost",
        ("eager", "dropout"),
    ),
    "a leak of the gradient alone": (
        lambda: one_sequence(lambda x: GradientLeaks()(x), True, FULL, False),
        {"causal"},
        None,
    ),
    "a leak in graphs alone": (
        lambda: one_sequence(lambda x: WrongInGraphs()(x), True, FULL, False),
        {"causal"},
        None,
        ("eager", "graph"),
    ),
    "a leak in the model's own call": (lambda: (OwnCall(), SOURCE, {}), {"padding"}, None),
}


def made(make):
    """A model with random weights, its inputs and what is declared."""
    model, inputs, declared = make()
    if not model.built:
        model(inputs)
    return randomize(model), inputs, declared
