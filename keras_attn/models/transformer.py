import keras

from keras_attn.checks import check_positive, choose
from keras_attn.layers import (
    DecoderBlock,
    MultiHeadAttention,
    PositionEmbedding,
    RotaryEmbedding,
    SinusoidalPositionEncoding,
)
from keras_attn.layers.adaptation import Adaptable
from keras_attn.layers.normalization import NORMALIZATIONS


class Transformer(Adaptable, keras.Model):
    """What the models share: the arguments that describe their blocks, and the parts that are made from them.

    A model is built when it is made: a subclass takes its own arguments, calls `super().__init__` with the shared
    ones, makes its parts, and calls `self.build()`, for which it lists them in `_sequence_layers`.
    """

    def __init__(
        self,
        hidden_dim,
        num_heads,
        intermediate_dim,
        dropout,
        attention_dropout,
        activation,
        gated,
        normalize_first,
        normalization,
        layer_norm_epsilon,
        position_encoding,
        max_sequence_length,
        pad_token_id,
        **kwargs,
    ):
        super().__init__(**kwargs)
        check_positive("hidden_dim", hidden_dim)
        check_positive("max_sequence_length", max_sequence_length)
        self.hidden_dim = hidden_dim
        self.num_heads = num_heads
        self.intermediate_dim = intermediate_dim
        self.dropout = dropout
        self.attention_dropout = attention_dropout
        self.activation = keras.activations.get(activation)
        self.gated = gated
        self.normalize_first = normalize_first
        self.normalization = normalization
        self.layer_norm_epsilon = layer_norm_epsilon
        self.position_encoding = position_encoding
        self.max_sequence_length = max_sequence_length
        self.pad_token_id = pad_token_id
        self._embedding_dropout = keras.layers.Dropout(dropout, dtype=self.dtype_policy)

    def _make_position_encoding(self, name):
        """The layer whose output is added to embeddings, or None where attention rotates by positions."""
        make = {
            "sinusoidal": lambda: SinusoidalPositionEncoding(dtype=self.dtype_policy, name=name),
            "learned": lambda: PositionEmbedding(
                self.max_sequence_length, dtype=self.dtype_policy, name=name
            ),
            "rotary": lambda: None,
        }
        return choose("position_encoding", self.position_encoding, make)()

    def _make_blocks(self, block_class, slot, name, count):
        """`count` blocks; `slot` is the argument that takes a self-attention layer of another kind than the block's."""
        arguments = {
            "intermediate_dim": self.intermediate_dim,
            "num_heads": self.num_heads,
            "dropout": self.dropout,
            "activation": self.activation,
            "layer_norm_epsilon": self.layer_norm_epsilon,
            "normalize_first": self.normalize_first,
            "normalization": self.normalization,
            "gated": self.gated,
            "dtype": self.dtype_policy,
        }
        if self.position_encoding != "rotary" or block_class is DecoderBlock:
            arguments["attention_dropout"] = self.attention_dropout
        return [
            block_class(**arguments, **self._self_attention(slot), name=f"{name}_{i}") for i in range(count)
        ]

    def _self_attention(self, slot):
        if self.position_encoding != "rotary":
            return {}
        check_positive("num_heads", self.num_heads)
        if self.hidden_dim % self.num_heads:
            raise ValueError(
                "`hidden_dim` must be divisible by `num_heads`. "
                f"Received: hidden_dim={self.hidden_dim}, num_heads={self.num_heads}."
            )
        attention = MultiHeadAttention(
            self.num_heads,
            self.hidden_dim // self.num_heads,
            dropout=self.attention_dropout,
            rotary_embedding=RotaryEmbedding(dtype=self.dtype_policy),
            dtype=self.dtype_policy,
            name="self_attention",
        )
        return {slot: attention}

    def _make_norm(self, name):
        """The norm after the last of pre-norm blocks, or None."""
        make = choose("normalization", self.normalization, NORMALIZATIONS)
        if not self.normalize_first:
            return None
        return make(epsilon=self.layer_norm_epsilon, dtype=self.dtype_policy, name=name)

    def build(self, input_shape=None):
        if self.built:
            return
        sequence_shape = (None, None, self.hidden_dim)
        for layer in self._sequence_layers():
            if layer is not None and not layer.built:
                layer.build(sequence_shape)
        self.built = True

    def _sequence_layers(self):
        """The layers that take one sequence, (B, T, D); None among them is none."""
        raise NotImplementedError

    def _embed(self, embedding, position_encoding, token_ids, positions, training):
        x = embedding(token_ids)
        if position_encoding is not None:
            x = x + position_encoding(x, positions=positions)
        return self._embedding_dropout(x, training=training)

    def _positions_of_attention(self, positions, cache_positions):
        """The arguments of a cached decoder block that only attention by positions looks at."""
        if self.position_encoding != "rotary":
            return {}
        return {"decoder_positions": positions, "self_attention_cache_positions": cache_positions}

    def get_config(self):
        return {
            **super().get_config(),
            "hidden_dim": self.hidden_dim,
            "num_heads": self.num_heads,
            "intermediate_dim": self.intermediate_dim,
            "dropout": self.dropout,
            "attention_dropout": self.attention_dropout,
            "activation": keras.activations.serialize(self.activation),
            "gated": self.gated,
            "normalize_first": self.normalize_first,
            "normalization": self.normalization,
            "layer_norm_epsilon": self.layer_norm_epsilon,
            "position_encoding": self.position_encoding,
            "max_sequence_length": self.max_sequence_length,
            "pad_token_id": self.pad_token_id,
        }
