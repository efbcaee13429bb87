"""A plain Transformer: its parts made from sizes, and the options of its blocks read back, for other engines."""

import collections
import dataclasses
from typing import Any

import keras

from keras_attn.checks import check_positive, choose
from keras_attn.layers import (
    DecoderBlock,
    EncoderBlock,
    FeedForward,
    MultiHeadAttention,
    PositionEmbedding,
    RotaryEmbedding,
    SequenceEmbedding,
    SinusoidalPositionEncoding,
    TokenEmbedding,
)
from keras_attn.layers.activations import serialize_activation
from keras_attn.layers.normalization import LayerNormalization

_POSITION_ENCODINGS = ("sinusoidal", "learned", "rotary")
_NORMS = {"layer_norm": LayerNormalization, "rms_norm": keras.layers.RMSNormalization}


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The sizes and options of a plain Transformer, except its vocabulary and its number of layers.

    `from_sizes` of a model takes these as keyword arguments, and makes the parts with this class. For other
    options, make the model from parts, which are layers.

    Args:
        hidden_dim: Integer D, the model width.
        num_heads: Integer; must divide `hidden_dim`.
        intermediate_dim: Integer, the width of the feed-forward networks.
        dropout: Float, of the residual branches and of the embeddings.
        attention_dropout: Float, of the attention scores.
        activation: Activation of the feed-forward networks.
        gated: Boolean, whether the feed-forward networks are gated.
        normalize_first: Boolean, pre-norm with a final norm on each stack, rather than the paper's post-norm.
        normalization: `"layer_norm"` or `"rms_norm"`.
        layer_norm_epsilon: Float.
        position_encoding: `"sinusoidal"` or `"learned"`, added to the embeddings, or `"rotary"`:
            self-attention turns queries and keys by their positions.
        max_sequence_length: Integer, the longest sequence, of learned positions and of generation.
        dtype: Dtype policy of the parts.

    Raises:
        ValueError: for arguments out of range.

    Example:

    ```python
    sizes = Sizes(hidden_dim=16, num_heads=2, intermediate_dim=32, normalize_first=True)
    model = keras_attn.models.EncoderTransformer(
        sizes.embedding(sizes.token_embedding(vocabulary_size=100)), sizes.encoder_blocks(2), sizes.norm("norm")
    )
    ```
    """

    hidden_dim: int
    num_heads: int
    intermediate_dim: int
    dropout: float = 0.1
    attention_dropout: float = 0.0
    activation: Any = "relu"
    gated: bool = False
    normalize_first: bool = False
    normalization: str = "layer_norm"
    layer_norm_epsilon: float = 1e-5
    position_encoding: str = "sinusoidal"
    max_sequence_length: int = 512
    dtype: Any = None

    def __post_init__(self):
        for name in ("hidden_dim", "num_heads", "intermediate_dim", "max_sequence_length"):
            object.__setattr__(self, name, check_positive(name, getattr(self, name)))
        choose("normalization", self.normalization, _NORMS)
        choose("position_encoding", self.position_encoding, dict.fromkeys(_POSITION_ENCODINGS))
        if self.hidden_dim % self.num_heads:
            raise ValueError(
                "`hidden_dim` must be divisible by `num_heads`. "
                f"Received: hidden_dim={self.hidden_dim}, num_heads={self.num_heads}."
            )

    def token_embedding(self, vocabulary_size, **options):
        """A `TokenEmbedding` with these `options`."""
        return TokenEmbedding(
            vocabulary_size, self.hidden_dim, dtype=self.dtype, name="token_embedding", **options
        )

    def embedding(self, token, name="embedding"):
        """The `SequenceEmbedding` of a `TokenEmbedding`, with the positions that are added to it."""
        position = None
        if self.position_encoding == "sinusoidal":
            position = SinusoidalPositionEncoding(dtype=self.dtype, name="position_encoding")
        if self.position_encoding == "learned":
            position = PositionEmbedding(self.max_sequence_length, dtype=self.dtype, name="position_encoding")
        return SequenceEmbedding(token, position, dropout=self.dropout, dtype=self.dtype, name=name)

    def encoder_blocks(self, num_layers, rotary_embedding=RotaryEmbedding, stochastic_depth=0.0, **options):
        """A list of `EncoderBlock`s.

        Args:
            num_layers: Integer.
            rotary_embedding: Class of the layers that turn queries and keys, if positions are rotary.
            stochastic_depth: Float, that of the last block; it grows in equal steps from 0, that of the first.
            **options: More arguments of every block, `layer_scale` for instance.
        """
        blocks = []
        for i in range(num_layers):
            attention = self._attention("self_attention", rotary_embedding)
            depth = stochastic_depth * i / max(num_layers - 1, 1)
            name = f"encoder_block_{i}"
            block = self._block(
                EncoderBlock, name, self_attention=attention, stochastic_depth=depth, **options
            )
            blocks.append(block)
        return blocks

    def decoder_blocks(self, num_layers, cross_attention=True):
        """A list of `DecoderBlock`s, by default of a model with an encoder."""
        blocks = []
        for i in range(num_layers):
            attention = {"self_attention": self._attention("self_attention", RotaryEmbedding)}
            if cross_attention:
                attention["cross_attention"] = self._attention("cross_attention", None)
            blocks.append(self._block(DecoderBlock, f"decoder_block_{i}", **attention))
        return blocks

    def norm(self, name):
        """The norm after the last of pre-norm blocks; None after post-norm blocks, which end with one."""
        return self._norm(name) if self.normalize_first else None

    def model_arguments(self, pad_token_id, name):
        """The arguments of a model other than its parts."""
        return {
            "max_sequence_length": self.max_sequence_length,
            "pad_token_id": pad_token_id,
            "dtype": self.dtype,
            "name": name,
        }

    def _norm(self, name):
        return _NORMS[self.normalization](epsilon=self.layer_norm_epsilon, dtype=self.dtype, name=name)

    def _block(self, block_class, name, **options):
        return block_class(
            self.intermediate_dim,
            dropout=self.dropout,
            activation=self.activation,
            normalize_first=self.normalize_first,
            gated=self.gated,
            norm=self._norm("norm"),
            dtype=self.dtype,
            name=name,
            **options,
        )

    def _attention(self, slot, rotary_embedding):
        rotary = None
        if self.position_encoding == "rotary" and rotary_embedding is not None:
            rotary = rotary_embedding(dtype=self.dtype)
        return MultiHeadAttention(
            self.num_heads,
            self.hidden_dim // self.num_heads,
            dropout=self.attention_dropout,
            rotary_embedding=rotary,
            dtype=self.dtype,
            name=slot,
        )


PlainOptions = collections.namedtuple(
    "PlainOptions",
    [
        "num_heads",
        "activation",
        "gated",
        "normalize_first",
        "normalization",
        "layer_norm_epsilon",
        "position_encoding",
    ],
)
PlainOptions.__doc__ = """The options shared by all blocks of a plain Transformer, named as in `Sizes`."""

# Arguments that `PlainOptions` describe, or that do not change the outputs.
_LAYER_ARGUMENTS = {"name", "trainable", "dtype"}
_BLOCK_ARGUMENTS = _LAYER_ARGUMENTS | {
    "intermediate_dim",
    "num_heads",
    "dropout",
    "activation",
    "kernel_initializer",
    "bias_initializer",
    "normalize_first",
    "attention_dropout",
    "gated",
    "stochastic_depth",
    "remat",
    "self_attention",
    "cross_attention",
    "feed_forward",
    "norm",
}
_ATTENTION_ARGUMENTS = _LAYER_ARGUMENTS | {
    "num_heads",
    "key_dim",
    "dropout",
    "flash_attention",
    "memory_efficient",
    "seed",
    "rotary_embedding",
    "kernel_initializer",
    "kernel_regularizer",
    "kernel_constraint",
    "bias_initializer",
    "bias_regularizer",
    "bias_constraint",
    "activity_regularizer",
}
_EMBEDDING_ARGUMENTS = _LAYER_ARGUMENTS | {"token", "position", "dropout"}
_POSITIONS = {SinusoidalPositionEncoding: "sinusoidal", PositionEmbedding: "learned", type(None): "rotary"}


def plain_options(model):
    """The `PlainOptions` of a `Seq2SeqTransformer`.

    Raises:
        ValueError: if its parts are not those of a plain Transformer. The message names what is not plain.

    Example:

    ```python
    model = keras_attn.models.Seq2SeqTransformer.from_preset("tiny", vocabulary_size=100)
    assert plain_options(model).num_heads == 4
    ```
    """
    blocks = model.encoder_blocks + model.decoder_blocks
    if len({id(block) for block in blocks}) < len(blocks):
        raise ValueError(
            "Each block must have weights of its own. Received: a block that is in the list twice."
        )
    block_options = {_block_options(block) for block in blocks}
    embeddings = {_position_encoding(model.source_embedding), _position_encoding(model.target_embedding)}
    is_rotary = {options.position_encoding == "rotary" for options in block_options}
    if len(block_options) > 1 or len(embeddings) > 1 or is_rotary != {embeddings == {"rotary"}}:
        raise ValueError(f"All blocks must be alike. Received: {[*block_options, *embeddings]}.")
    options = block_options.pop()._replace(position_encoding=embeddings.pop())
    for norm in (model.encoder_norm, model.decoder_norm):
        if (norm is not None) != options.normalize_first:
            raise ValueError(
                "There must be a norm after each stack of pre-norm blocks, and none after post-norm blocks. "
                f"Received: normalize_first={options.normalize_first}, a last norm {norm}."
            )
    return options


def _block_options(block):
    _check_plain(block, type(block)(1, 1), _BLOCK_ARGUMENTS)
    attention = [block.self_attention_layer]
    if hasattr(block, "cross_attention_layer"):
        attention.append(block.cross_attention_layer)
    for layer in attention:
        _check_class(layer, MultiHeadAttention)
        _check_plain(layer, MultiHeadAttention(layer.num_heads, layer.key_dim), _ATTENTION_ARGUMENTS)
    if len({layer.num_heads for layer in attention}) > 1:
        raise ValueError(f"All attention layers must have as many heads. Received: {attention}.")
    rotary = block.self_attention_layer.rotary_embedding
    if rotary is not None:
        _check_plain(rotary, RotaryEmbedding(), _LAYER_ARGUMENTS)
    feed_forward = block.feed_forward_layer
    _check_class(feed_forward, FeedForward)
    if not feed_forward.use_bias:
        raise ValueError("The feed-forward networks must have biases. Received: use_bias=False.")
    position_encoding = None if rotary is None else "rotary"
    norm = block.residual_norms[0]
    return PlainOptions(
        attention[0].num_heads,
        serialize_activation(feed_forward.activation),
        feed_forward.gated,
        block.normalize_first,
        _normalization(norm),
        norm.epsilon,
        position_encoding,
    )


def _position_encoding(embedding):
    _check_class(embedding, SequenceEmbedding)
    _check_plain(embedding, SequenceEmbedding(embedding.token), _EMBEDDING_ARGUMENTS)
    for name in ("output_scale", "logit_soft_cap"):
        value = getattr(embedding.token, name, None)
        if value is not None:
            raise ValueError(f"`{name}` of the token embedding must be None. Received: {name}={value}.")
    if type(embedding.position) not in _POSITIONS:
        raise ValueError(
            "`position` must be a `SinusoidalPositionEncoding`, a `PositionEmbedding` or None. "
            f"Received: position={embedding.position!r}."
        )
    return _POSITIONS[type(embedding.position)]


def _normalization(norm):
    if isinstance(norm, keras.layers.RMSNormalization):
        return "rms_norm"
    if isinstance(norm, keras.layers.LayerNormalization) and norm.center and norm.scale:
        return "layer_norm"
    raise ValueError(f"The norm must be layer norm or RMS norm. Received: norm={norm!r}.")


def _check_class(layer, expected):
    if type(layer) is not expected:
        raise ValueError(f"{layer.name!r} must be a {expected.__name__}. Received: {type(layer).__name__}.")


def _check_plain(layer, plain, ignored):
    """Raises ValueError if arguments, except those `ignored`, differ from those of a `plain` layer."""
    expected = plain.get_config()
    other = [
        f"{name}={value!r}"
        for name, value in layer.get_config().items()
        if name not in ignored and value != expected.get(name)
    ]
    if other:
        raise ValueError(
            f"{layer.name!r} must be a plain {type(layer).__name__}. Received: {', '.join(other)}."
        )
