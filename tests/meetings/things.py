"""What meets: a recipe for everything public that is called with sequences, images or heads, and what it declares to be.

A new public layer or model needs a recipe here, or `test_every_public_name_is_a_thing` fails. Habits choose their things by
what these declare, never by their names.
"""

import dataclasses
import functools
import zlib
from collections.abc import Callable

import keras
import numpy as np
from helpers_layers import ResidualDense

from keras_attn import layers, models

# Sizes that differ, so that a swapped axis fails. D is what two heads divide.
B, T, S, D, V, FRAMES = 3, 7, 11, 12, 13, 2
# How many tokens of the rows are real.
LENGTHS = (7, 5, 2)


def padding_mask(mask):
    return {} if mask is None else {"padding_mask": mask}


def on_sequence(layer, x, mask=None, **options):
    return layer(x, **padding_mask(mask), **options)


def on_ids(model, x, mask=None, **inputs):
    inputs |= padding_mask(mask)
    return model({"token_ids": x, **inputs} if inputs else x)


@dataclasses.dataclass(frozen=True)
class Thing:
    """One way to call something public.

    Attributes:
        name: The public name, then what tells this form from others.
        make: Function of `dtype` to a fresh layer or model.
        reads: What `x` is: "vectors" (B, T, D), "ids" (B, T), "images" (B, rows, columns, 3) or "heads" (B, N, T, H).
        call: Function of what was made, `x`, and by keyword `mask` (B, T) and the other inputs, to the output.
        others: Functions of a random generator and of B to the other inputs, by name.
        takes_mask: Whether pads among `x` are hidden by a mask.
        makes_mask: Whether the output carries a mask that was made of ids.
        keeps_time: Whether the output has a place for each of `x`'s.
        counts_positions: Whether a token's number in its row counts.
        pads_on_the_left: Whether pads may come first.
        one_axis: Whether `x` must have one axis between batch and features.
        without_batch: Whether the output has no batch axis.
        float32_output: Whether the output is float32 under every policy.
        pointwise: Whether each place is computed alone, so that a mask has nothing to hide.
        trains: Whether it is trained, which needs weights.
        longest: The longest row that its table of positions has, or None.
        is_users: Whether it has layers that users wrote, which say nothing of dtypes.
        segments: The argument that numbers the sequences of a packed row, or None.
    """

    name: str
    make: Callable
    reads: str = "vectors"
    call: Callable = on_sequence
    others: dict = dataclasses.field(default_factory=dict)
    takes_mask: bool = True
    makes_mask: bool = False
    keeps_time: bool = True
    counts_positions: bool = False
    pads_on_the_left: bool = True
    one_axis: bool = True
    without_batch: bool = False
    float32_output: bool = False
    pointwise: bool = False
    trains: bool = True
    longest: int | None = None
    segments: str | None = None
    is_users: bool = False

    @property
    def public_name(self):
        return self.name.partition("-")[0]

    @property
    def is_model(self):
        return self.public_name.startswith("models.")

    @property
    def public_class(self):
        room, _, name = self.public_name.partition(".")
        return getattr({"layers": layers, "models": models}[room], name)

    def made(self, dtype=None, seed=5):
        """It, built, with random weights: zero biases and unit scales would hide a misplaced one."""
        made = self.make(dtype=dtype)
        if not self.is_model:
            self.answer(made, self.batch(), with_mask=False)
        rng = np.random.default_rng(seed)
        for weight in made.weights:
            if "float" in str(weight.dtype):
                is_scale = weight.path.endswith(("gamma", "scale"))
                weight.assign(is_scale + rng.normal(0, 0.4, weight.shape))
        return made

    def batch(self, lengths=LENGTHS, length=T, seed=11, left=False):
        """Inputs by name: `x`, `mask` if it takes one, and the others. Pads are zeros, on the right or the left.

        A row's tokens are the same for any `length` and side.
        """
        batch_size = len(lengths)
        x = self._tokens(np.random.default_rng(seed), batch_size)
        if self.reads in ("images", "heads"):
            return {"x": x, **self._others(batch_size, seed)}
        mask = np.arange(length) < np.array(lengths)[:, None]
        padded = np.zeros((batch_size, length, *x.shape[2:]), x.dtype)
        for row, n in enumerate(lengths):
            mask[row] = mask[row, ::-1] if left else mask[row]
            padded[row, mask[row]] = x[row, :n]
        return {"x": padded, "mask": mask, **self._others(batch_size, seed)}

    def _tokens(self, rng, batch_size):
        shapes = {
            "vectors": (batch_size, T, D),
            "images": (batch_size, 6, 9, D if self.takes_features else 3),
            "heads": (batch_size, 2, T, 4),
        }
        if self.reads == "ids":
            return rng.integers(4, V, (batch_size, T)).astype("int32")
        return rng.normal(size=shapes[self.reads]).astype("float32")

    @property
    def takes_features(self):
        """Whether images are maps of features already."""
        return self.reads == "images" and not self.is_model and "PatchEmbedding" not in self.name

    def _others(self, batch_size, seed):
        rng = np.random.default_rng(seed + 1)
        return {name: make(rng, batch_size) for name, make in self.others.items()}

    def answer(self, made, batch, with_mask=True, **options):
        """The output of an eager call, as float32."""
        arrays = {name: keras.ops.convert_to_tensor(x) for name, x in batch.items() if name != "mask"}
        if with_mask and self.takes_mask and "mask" in batch:
            arrays["mask"] = keras.ops.convert_to_tensor(batch["mask"])
        return as_array(self.call(made, **arrays, **options))

    def functional(self, made, before=None, with_mask=False, sizes=None):
        """A functional model of it, of inputs named as in `batch`.

        Args:
            made: The layer or model.
            before: Function of the symbol that `x` stands for, whose input is then ids.
            with_mask: Whether the mask is an input too.
            sizes: Pair of B and T. By default both are unknown.
        """
        batch = self.batch()
        batch_size, length = sizes or (None, None)
        symbols = {}
        for name, array in batch.items():
            if name == "mask" and not (with_mask and self.takes_mask):
                continue
            shape = list(array.shape)
            shape[0] = batch_size
            if name in ("x", "mask") and self.reads in ("ids", "vectors"):
                shape[1] = length
            if name == "x" and before is not None:
                shape = shape[:2]
            dtype = "int32" if name == "x" and before is not None else str(array.dtype)
            symbols[name] = keras.Input(batch_shape=tuple(shape), dtype=dtype, name=name)
        x = symbols["x"] if before is None else before(symbols["x"])
        outputs = self.call(made, **{**symbols, "x": x})
        return keras.Model(symbols, outputs)

    def real(self, output, batch):
        """What of an output must not change: places of real tokens, or all."""
        if self.keeps_time and "mask" in batch:
            return np.concatenate([row[mask] for row, mask in zip(output, batch["mask"])])
        return output


def as_array(x):
    """A tensor as float32."""
    x = x[0] if isinstance(x, (tuple, list)) else x
    return np.array(keras.ops.convert_to_numpy(keras.ops.cast(x, "float32")))


def assert_close(actual, expected, tolerance=1e-5):
    """Within `tolerance` of the largest magnitude."""
    assert actual.shape == expected.shape
    scale = max(1.0, float(np.max(np.abs(expected), initial=0.0)))
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance * scale)


# --- layers ---


def other_vectors(rng, batch_size):
    return rng.normal(size=(batch_size, S, D)).astype("float32")


def other_ids(rng, batch_size):
    return rng.integers(4, V, (batch_size, S)).astype("int32")


def to_itself(layer, x, mask=None, **options):
    return layer(x, x, **({} if mask is None else {"query_mask": mask, "value_mask": mask}), **options)


def to_others(layer, x, other, mask=None):
    return layer(other, x, **({} if mask is None else {"value_mask": mask}))


def as_decoder(block, x, other=None, mask=None, **options):
    options |= {} if mask is None else {"decoder_padding_mask": mask}
    return block(x, **options) if other is None else block(x, other, **options)


def as_memory(block, x, other, mask=None):
    return block(other, x, **({} if mask is None else {"encoder_padding_mask": mask}))


def added(layer, x):
    return keras.layers.Add(dtype=layer.dtype_policy)([x, layer(x)])


def on_grid(layer, x):
    """Positions of a grid three wide."""
    places = np.arange(T)
    return layer(x, positions=(places // 3 * 2**16 + places % 3).astype("int32"))


def token_embedding(dtype=None, **options):
    return layers.TokenEmbedding(V, D, dtype=dtype, **options)


def rotary_attention(dtype=None, **options):
    rotary = layers.RotaryEmbedding(dtype=dtype, **options)
    return layers.MultiHeadAttention(2, 6, rotary_embedding=rotary, dtype=dtype)


def rotary_block(dtype=None):
    return layers.EncoderBlock(17, self_attention=rotary_attention(dtype), normalize_first=True, dtype=dtype)


def relative_attention(dtype=None):
    bias = layers.RelativePositionBias(num_buckets=8, max_distance=7, dtype=dtype)
    return layers.MultiHeadAttention(2, 5, position_bias=bias, dtype=dtype)


def layer_thing(form, cls, *args, **declared):
    options = declared.pop("options", {})
    make = declared.pop("make", functools.partial(cls, *args, **options))
    name = f"layers.{cls.__name__}" + (f"-{form}" if form else "")
    return Thing(name, make, **declared)


HEADS = {"reads": "heads", "takes_mask": False, "keeps_time": False, "one_axis": False}
BIAS = {**HEADS, "without_batch": True}
IMAGES = {"reads": "images", "takes_mask": False, "keeps_time": False, "one_axis": False}
ATTENTION = {"call": to_itself, "one_axis": False, "segments": "segment_ids"}
OTHER = {"others": {"other": other_vectors}}
LAYERS = [
    layer_thing("", layers.MultiHeadAttention, 2, 5, **ATTENTION),
    layer_thing(
        "values", layers.MultiHeadAttention, 2, 5, call=to_others, keeps_time=False, one_axis=False, **OTHER
    ),
    layer_thing("rotary", layers.MultiHeadAttention, make=rotary_attention, **ATTENTION),
    layer_thing("relative", layers.MultiHeadAttention, make=relative_attention, **ATTENTION),
    layer_thing(
        "causal",
        layers.MultiHeadAttention,
        2,
        5,
        call=functools.partial(to_itself, use_causal_mask=True),
        one_axis=False,
        segments="segment_ids",
    ),
    layer_thing("", layers.BahdanauAttention, 7, call=to_itself),
    layer_thing("values", layers.BahdanauAttention, 7, call=to_others, keeps_time=False, **OTHER),
    layer_thing("", layers.DifferentialAttention, 2, 3, options={"lambda_init": 0.3}, **ATTENTION),
    layer_thing("", layers.TalkingHeadsAttention, 2, 5, **ATTENTION),
    layer_thing("", layers.EncoderBlock, 17, 2, segments="segment_ids"),
    layer_thing("rotary", layers.EncoderBlock, make=rotary_block, segments="segment_ids"),
    layer_thing("", layers.DecoderBlock, 17, 2, call=as_decoder, segments="decoder_segment_ids"),
    layer_thing("with_memory", layers.DecoderBlock, 17, 2, call=as_decoder, **OTHER),
    layer_thing("memory", layers.DecoderBlock, 17, 2, call=as_memory, keeps_time=False, **OTHER),
    layer_thing(
        "", layers.FeedForward, 17, call=lambda layer, x, mask=None: layer(x), one_axis=False, pointwise=True
    ),
    Thing(
        "layers.Residual",
        ResidualDense,
        call=lambda layer, x, mask=None: layer(x),
        one_axis=False,
        pointwise=True,
    ),
    layer_thing("", layers.Pooling, "mean", trains=False, keeps_time=False),
    layer_thing("max", layers.Pooling, "max", trains=False, keeps_time=False),
    layer_thing("last", layers.Pooling, "last", trains=False, keeps_time=False),
    layer_thing("", layers.ClassificationHead, 5, keeps_time=False, float32_output=True),
    layer_thing("", layers.TokenClassificationHead, 5, float32_output=True),
    layer_thing(
        "",
        layers.MaskedLanguageModelHead,
        make=lambda dtype=None: layers.MaskedLanguageModelHead(token_embedding(dtype), dtype=dtype),
        float32_output=True,
    ),
    layer_thing(
        "",
        layers.ImageClassificationHead,
        5,
        options={"pooling": "mean", "num_special_tokens": 0},
        keeps_time=False,
        float32_output=True,
    ),
    layer_thing(
        "", layers.PositionEmbedding, 23, longest=23, call=added, takes_mask=False, counts_positions=True
    ),
    layer_thing(
        "",
        layers.SinusoidalPositionEncoding,
        trains=False,
        call=added,
        takes_mask=False,
        counts_positions=True,
    ),
    layer_thing("", layers.TokenEmbedding, make=token_embedding, reads="ids", takes_mask=False),
    layer_thing(
        "mask_zero",
        layers.TokenEmbedding,
        make=functools.partial(token_embedding, mask_zero=True),
        reads="ids",
        takes_mask=False,
        makes_mask=True,
    ),
    layer_thing(
        "",
        layers.SequenceEmbedding,
        make=lambda dtype=None: layers.SequenceEmbedding(
            token_embedding(dtype, mask_zero=True),
            position=layers.PositionEmbedding(23, dtype=dtype),
            norm=keras.layers.LayerNormalization(dtype=dtype),
            dtype=dtype,
        ),
        reads="ids",
        takes_mask=False,
        makes_mask=True,
        counts_positions=True,
        longest=23,
    ),
    layer_thing("", layers.RotaryEmbedding, trains=False, call=lambda layer, x: layer(x), **HEADS),
    layer_thing("", layers.AxialRotaryEmbedding, trains=False, call=on_grid, **HEADS),
    layer_thing("", layers.AlibiBias, trains=False, call=lambda layer, x: layer(x), **BIAS),
    layer_thing("", layers.RelativePositionBias, call=lambda layer, x: layer(x), **BIAS),
    layer_thing("", layers.RelativePositionKeys, 3, call=lambda layer, x: layer(x), **BIAS),
    layer_thing(
        "",
        layers.PatchEmbedding,
        (2, 3),
        7,
        options={"image_size": (6, 9)},
        call=lambda layer, x: layer(x),
        **IMAGES,
    ),
    layer_thing("", layers.PatchMerging, 7, call=lambda layer, x: layer(x), **IMAGES),
    layer_thing("", layers.WindowAttention, 2, 5, 3, call=lambda layer, x: layer(x), **IMAGES),
]


# --- models ---

SIZES = {"hidden_dim": D, "num_heads": 2, "intermediate_dim": 17, "max_sequence_length": 29}


def encoder(dtype=None, **options):
    return models.EncoderTransformer.from_sizes(V, 2, dtype=dtype, **{**SIZES, **options})


def decoder(dtype=None, **options):
    return models.DecoderTransformer.from_sizes(V, 2, dtype=dtype, **{**SIZES, **options})


def seq2seq(dtype=None, **options):
    return models.Seq2SeqTransformer.from_sizes(V, 2, 2, dtype=dtype, **{**SIZES, **options})


def rnn(dtype=None):
    return models.RNNSeq2Seq(V, hidden_dim=D, max_sequence_length=29, dtype=dtype)


def dynamic_encoder(dtype=None):
    """Rotary angles that depend on a row's length."""
    scaling = {"type": "dynamic_ntk", "factor": 2.0, "original_max_sequence_length": 3}
    blocks = [
        layers.EncoderBlock(17, self_attention=rotary_attention(dtype, scaling=scaling), dtype=dtype)
        for _ in range(2)
    ]
    embedding = layers.SequenceEmbedding(token_embedding(dtype), dtype=dtype)
    return models.EncoderTransformer(embedding, blocks, dtype=dtype)


@keras.saving.register_keras_serializable(package="meetings")
class UsersFeedForward(keras.layers.Layer):
    """What a user writes: layers made in the constructor, without a word of dtypes; built by its first call."""

    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.inner = keras.layers.Dense(units, activation="gelu")
        self.outer = keras.layers.Dense(D)

    def build(self, input_shape):
        self.inner.build(input_shape)
        self.outer.build((*input_shape[:-1], self.units))
        self.built = True

    def call(self, x):
        return self.outer(self.inner(x))

    def get_config(self):
        return {**super().get_config(), "units": self.units}


def users_encoder(dtype=None):
    """Their feed-forward network in a slot, and a norm of Keras' that they made."""
    blocks = [
        layers.EncoderBlock(num_heads=2, feed_forward=UsersFeedForward(17), dtype=dtype) for _ in range(2)
    ]
    embedding = layers.SequenceEmbedding(token_embedding(dtype), dtype=dtype)
    return models.EncoderTransformer(embedding, blocks, keras.layers.LayerNormalization(), dtype=dtype)


def with_head(head, body=encoder, dtype=None):
    body = body(dtype=dtype)
    return models.EncoderWithHead(body, head(body, dtype), dtype=dtype)


def reader(dtype=None):
    return models.Seq2SeqReader(seq2seq(dtype), start_token_id=2, dtype=dtype)


def ensemble(dtype=None):
    members = [seq2seq(dtype, dropout=0.0), seq2seq(dtype, dropout=0.0, position_encoding="rotary")]
    return models.Ensemble(members, dtype=dtype)


def vision(dtype=None):
    return models.VisionTransformer.from_sizes(
        image_size=(6, 9),
        patch_size=3,
        num_layers=2,
        hidden_dim=D,
        num_heads=2,
        intermediate_dim=17,
        dtype=dtype,
    )


def swin(dtype=None):
    return models.SwinTransformer.from_sizes(
        patch_size=1, hidden_dim=6, num_layers=(2, 1), num_heads=(2, 3), window_size=3, dtype=dtype
    )


def of_source(model, x, other, mask=None):
    masks = {} if mask is None else {"encoder_padding_mask": mask}
    return model({"encoder_token_ids": x, "decoder_token_ids": other, **masks})


def of_target(model, x, other, mask=None):
    masks = {} if mask is None else {"decoder_padding_mask": mask}
    return model({"encoder_token_ids": other, "decoder_token_ids": x, **masks})


ONE_STACK = {"reads": "ids", "call": on_ids, "counts_positions": True}
IDS = {**ONE_STACK, "segments": "segment_ids"}
SOURCE = {"reads": "ids", "call": of_source, "keeps_time": False, "others": {"other": other_ids}}
SOURCE = {**SOURCE, "float32_output": True}
TARGET = {"reads": "ids", "call": of_target, "others": {"other": other_ids}, "float32_output": True}


def model_thing(name, make, **declared):
    return Thing(f"models.{name}", make, **declared)


MODELS = [
    model_thing("EncoderTransformer", encoder, **IDS),
    model_thing(
        "EncoderTransformer-learned",
        functools.partial(encoder, position_encoding="learned"),
        **IDS,
        longest=29,
    ),
    model_thing(
        "EncoderTransformer-rotary",
        functools.partial(encoder, position_encoding="rotary", normalize_first=True),
        **IDS,
    ),
    model_thing("EncoderTransformer-dynamic", dynamic_encoder, **IDS),
    model_thing("EncoderTransformer-users", users_encoder, **IDS, is_users=True),
    model_thing("DecoderTransformer", decoder, **IDS, longest=29, float32_output=True),
    model_thing(
        "DecoderTransformer-sinusoidal",
        functools.partial(decoder, position_encoding="sinusoidal"),
        **IDS,
        float32_output=True,
    ),
    model_thing(
        "DecoderTransformer-rotary",
        functools.partial(decoder, position_encoding="rotary"),
        **IDS,
        float32_output=True,
    ),
    model_thing("Seq2SeqTransformer-source", seq2seq, counts_positions=True, **SOURCE),
    model_thing("Seq2SeqTransformer-target", seq2seq, counts_positions=True, **TARGET),
    model_thing("Ensemble-source", ensemble, trains=False, counts_positions=True, **SOURCE),
    model_thing("RNNSeq2Seq-source", rnn, pads_on_the_left=False, **SOURCE),
    model_thing("RNNSeq2Seq-target", rnn, pads_on_the_left=False, **TARGET),
    model_thing("Seq2SeqReader", reader, pads_on_the_left=False, **ONE_STACK),
    model_thing(
        "EncoderWithHead",
        functools.partial(
            with_head, lambda body, dtype: layers.ClassificationHead(5, intermediate_dim=D, dtype=dtype)
        ),
        **{**ONE_STACK, "keeps_time": False},
        float32_output=True,
    ),
    model_thing(
        "EncoderWithHead-tokens",
        functools.partial(with_head, lambda body, dtype: layers.TokenClassificationHead(5, dtype=dtype)),
        **IDS,
        float32_output=True,
    ),
    model_thing(
        "EncoderWithHead-vocabulary",
        functools.partial(
            with_head, lambda body, dtype: layers.MaskedLanguageModelHead(body.embedding.token, dtype=dtype)
        ),
        **IDS,
        float32_output=True,
    ),
    model_thing("VisionTransformer", vision, call=lambda model, x: model(x), **IMAGES),
    model_thing("SwinTransformer", swin, call=lambda model, x: model(x), **IMAGES),
]

THINGS = {thing.name: thing for thing in [*LAYERS, *MODELS]}

# Public names that are called with no sequence: what they do is asked by a habit, or they are parts of a thing.
NOT_CALLED = {
    "layers.PositionBias": "AlibiBias, RelativePositionBias and RelativePositionKeys are",
    "models.PRESETS": "numbers",
    "models.QUANTIZATIONS": "the modes that habits of copies try",
    "models.CausalGeneration": "DecoderTransformer is one",
    "models.Seq2SeqGeneration": "Seq2SeqTransformer, RNNSeq2Seq and Ensemble are",
    "models.PlainOptions": "numbers",
    "models.RNNCache": "a value",
    "models.Seq2SeqCache": "a value",
    "models.Sizes": "makes the parts of the models here",
    "models.assign_weights": "habit weights",
    "models.average_weights": "tests/models/test_weights.py: files",
    "models.check_sizes": "tests/models/test_weights.py: files",
    "models.float32_copy": "habit float32_copy",
    "models.gives_logits": "what a model was made with",
    "models.has_lora": "habit lora",
    "models.load_weights": "habit weights",
    "models.merge_lora": "habit lora",
    "models.plain_options": "numbers of a model",
    "models.quantization_of": "habit quantized_copy",
    "models.quantize": "habit quantized_copy",
    "models.quantized_copy": "habit quantized_copy",
    "models.read_metadata": "tests/models/test_weights.py: files",
    "models.read_shapes": "tests/models/test_weights.py: files",
    "models.read_weights": "habit weights",
    "models.save_weights": "habit weights",
    "models.write_weights": "tests/models/test_weights.py: files",
}


def seed_of(*words):
    """A number of words, the same in every process."""
    return zlib.crc32(" ".join(words).encode())
