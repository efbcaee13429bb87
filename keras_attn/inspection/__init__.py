"""What a Keras model attends to and what it must not see: attention captured, masks checked and explained."""

from keras_attn.inspection.capture import AttentionMaps, capture_attention

__all__ = ["AttentionMaps", "capture_attention"]
