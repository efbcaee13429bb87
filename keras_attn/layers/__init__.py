"""Keras layers for attention, thin over `keras_attn.ops`."""

from keras_attn.layers.blocks import DecoderBlock, EncoderBlock, Residual
from keras_attn.layers.embeddings import TokenEmbedding
from keras_attn.layers.feed_forward import FeedForward
from keras_attn.layers.multi_head_attention import MultiHeadAttention
from keras_attn.layers.position_encodings import PositionEmbedding, SinusoidalPositionEncoding

__all__ = [
    "DecoderBlock",
    "EncoderBlock",
    "FeedForward",
    "MultiHeadAttention",
    "PositionEmbedding",
    "Residual",
    "SinusoidalPositionEncoding",
    "TokenEmbedding",
]
