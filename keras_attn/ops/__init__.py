"""Pure functions of tensors: the formulas of the library, in `keras.ops`."""

from keras_attn.ops.attention import at_least_float32, dot_product_attention
from keras_attn.ops.eager import concrete_values
from keras_attn.ops.kv_cache import empty_cache, extend_cache, write_cache
from keras_attn.ops.masks import (
    as_boolean_mask,
    causal_mask,
    check_mask_shape,
    combine_masks,
    implicit_mask,
    padding_mask,
    sliding_window_mask,
)
from keras_attn.ops.positions import sinusoidal_encoding

__all__ = [
    "as_boolean_mask",
    "at_least_float32",
    "causal_mask",
    "check_mask_shape",
    "combine_masks",
    "concrete_values",
    "dot_product_attention",
    "empty_cache",
    "extend_cache",
    "implicit_mask",
    "padding_mask",
    "sinusoidal_encoding",
    "sliding_window_mask",
    "write_cache",
]
