"""Keras layers for attention: thin wrappers of `keras_attn.ops`."""

from keras_attn.layers.additive_attention import BahdanauAttention
from keras_attn.layers.attention_variants import DifferentialAttention, TalkingHeadsAttention
from keras_attn.layers.decoder_block import DecoderBlock
from keras_attn.layers.embeddings import SequenceEmbedding, TokenEmbedding
from keras_attn.layers.encoder_block import EncoderBlock
from keras_attn.layers.feed_forward import FeedForward
from keras_attn.layers.multi_head_attention import MultiHeadAttention
from keras_attn.layers.patches import PatchEmbedding, PatchMerging
from keras_attn.layers.position_biases import (
    AlibiBias,
    PositionBias,
    RelativePositionBias,
    RelativePositionKeys,
)
from keras_attn.layers.position_encodings import PositionEmbedding, SinusoidalPositionEncoding
from keras_attn.layers.prediction_heads import (
    ClassificationHead,
    ImageClassificationHead,
    MaskedLanguageModelHead,
    Pooling,
    TokenClassificationHead,
)
from keras_attn.layers.residual import Residual
from keras_attn.layers.rotary_embedding import AxialRotaryEmbedding, RotaryEmbedding
from keras_attn.layers.window_attention import WindowAttention

__all__ = [
    "AlibiBias",
    "AxialRotaryEmbedding",
    "BahdanauAttention",
    "ClassificationHead",
    "DecoderBlock",
    "DifferentialAttention",
    "EncoderBlock",
    "FeedForward",
    "ImageClassificationHead",
    "MaskedLanguageModelHead",
    "MultiHeadAttention",
    "PatchEmbedding",
    "PatchMerging",
    "Pooling",
    "PositionBias",
    "PositionEmbedding",
    "RelativePositionBias",
    "RelativePositionKeys",
    "Residual",
    "RotaryEmbedding",
    "SequenceEmbedding",
    "SinusoidalPositionEncoding",
    "TalkingHeadsAttention",
    "TokenClassificationHead",
    "TokenEmbedding",
    "WindowAttention",
]
