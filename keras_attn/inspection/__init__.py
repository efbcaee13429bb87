"""What a Keras model attends to and what it must not see: attention captured, masks checked and explained."""

from keras_attn.inspection.attention_gradients import attention_gradients
from keras_attn.inspection.attention_layers import attention_layers
from keras_attn.inspection.capture import AttentionMaps, capture_attention
from keras_attn.inspection.check_masks import check_masks
from keras_attn.inspection.explain_masks import LayerMasks, explain_masks
from keras_attn.inspection.mask_report import Leak, MaskReport
from keras_attn.inspection.summaries import (
    entropy,
    head_kinds,
    mean_of_heads,
    relevance,
    repeated_tokens,
    rollout,
    windows_in_place,
    word_scores,
)

__all__ = [
    "AttentionMaps",
    "LayerMasks",
    "Leak",
    "MaskReport",
    "attention_gradients",
    "attention_layers",
    "capture_attention",
    "check_masks",
    "entropy",
    "explain_masks",
    "head_kinds",
    "mean_of_heads",
    "relevance",
    "repeated_tokens",
    "rollout",
    "windows_in_place",
    "word_scores",
]
