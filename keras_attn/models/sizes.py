"""The parts of a plain Transformer, made from its sizes."""

import dataclasses
from typing import Any

import keras

from keras_attn.checks import check_positive, choose
from keras_attn.layers import (
    DecoderBlock,
    EncoderBlock,
    MultiHeadAttention,
    PositionEmbedding,
    RotaryEmbedding,
    SequenceEmbedding,
    SinusoidalPositionEncoding,
    TokenEmbedding,
)
from keras_attn.layers.normalization import LayerNormalization

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
        choose(
            "position_encoding", self.position_encoding, dict.fromkeys(("sinusoidal", "learned", "rotary"))
        )
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
        named = {"dtype": self.dtype, "name": "position_encoding"}
        position = None
        if self.position_encoding == "sinusoidal":
            position = SinusoidalPositionEncoding(**named)
        if self.position_encoding == "learned":
            position = PositionEmbedding(self.max_sequence_length, **named)
        return SequenceEmbedding(token, position, dropout=self.dropout, dtype=self.dtype, name=name)

    def encoder_blocks(self, num_layers, rotary_embedding=RotaryEmbedding, stochastic_depth=0.0, **options):
        """A list of `EncoderBlock`s.

        Args:
            num_layers: Integer.
            rotary_embedding: Class of the layers that turn queries and keys, if positions are rotary.
            stochastic_depth: Float, that of the last block; it grows in equal steps from 0, that of the first.
            **options: More arguments of every block, `layer_scale` for instance.
        """
        slots, last = {"self_attention": rotary_embedding}, max(num_layers - 1, 1)
        depths = [stochastic_depth * i / last for i in range(num_layers)]
        each = [{**options, "stochastic_depth": depth} for depth in depths]
        return self._blocks(EncoderBlock, "encoder_block", slots, each)

    def decoder_blocks(self, num_layers, cross_attention=True):
        """A list of `DecoderBlock`s, by default of a model with an encoder."""
        slots = {"self_attention": RotaryEmbedding, **({"cross_attention": None} if cross_attention else {})}
        return self._blocks(DecoderBlock, "decoder_block", slots, [{}] * num_layers)

    def norm(self, name):
        """The norm after the last of pre-norm blocks; None after post-norm blocks, which end with one."""
        return self._norm(name) if self.normalize_first else None

    def of_the_model(self, pad_token_id, name):
        """The arguments of a model other than its parts."""
        return {
            "max_sequence_length": self.max_sequence_length,
            "pad_token_id": pad_token_id,
            "dtype": self.dtype,
            "name": name,
        }

    def _norm(self, name):
        return _NORMS[self.normalization](epsilon=self.layer_norm_epsilon, dtype=self.dtype, name=name)

    def _blocks(self, block_class, name, slots, options):
        """A block for each dict of `options`. `slots` maps those for attention to the class of its rotary positions."""
        return [
            block_class(
                self.intermediate_dim,
                dropout=self.dropout,
                activation=self.activation,
                normalize_first=self.normalize_first,
                gated=self.gated,
                norm=self._norm("norm"),
                **{slot: self._attention(slot, rotary) for slot, rotary in slots.items()},
                **of_block,
                dtype=self.dtype,
                name=f"{name}_{i}",
            )
            for i, of_block in enumerate(options)
        ]

    def _attention(self, slot, rotary_embedding):
        is_rotary = self.position_encoding == "rotary" and rotary_embedding is not None
        return MultiHeadAttention(
            self.num_heads,
            self.hidden_dim // self.num_heads,
            dropout=self.attention_dropout,
            rotary_embedding=rotary_embedding(dtype=self.dtype) if is_rotary else None,
            dtype=self.dtype,
            name=slot,
        )
