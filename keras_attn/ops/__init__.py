"""Pure functions of tensors: the formulas of the library, in `keras.ops`."""

from keras_attn.compat.keras import implicit_mask
from keras_attn.ops.activations import gelu
from keras_attn.ops.additive import additive_attention
from keras_attn.ops.attention import dot_product_attention, soft_capped
from keras_attn.ops.attention_paths import (
    attend,
    fused_attention,
    fused_attention_obstacle,
    has_fused_kernel,
)
from keras_attn.ops.biases import (
    DenseBias,
    PairBias,
    SlopeBias,
    TableBias,
    alibi_slopes,
    relative_position_bucket,
)
from keras_attn.ops.blockwise_attention import memory_efficient_attention, prefers_memory_efficient
from keras_attn.ops.graph_purpose import (
    clamping_scope,
    compiled_scope,
    custom_gradient,
    if_true,
    inference_scope,
    is_compiled_scope,
    is_inference_scope,
    overwriting_scope,
    runs_op_by_op,
    shape_to_keep,
)
from keras_attn.ops.hashed_random import ScoreDropout, hashed_uniform
from keras_attn.ops.images import (
    grid_positions,
    grid_size,
    image_patches,
    resized_grid,
    rows_and_columns,
)
from keras_attn.ops.int8_products import (
    Int8Matrix,
    int8_problem,
    int8_product,
    loop_form,
    processor_flags,
    runs_int8_products,
    step_form,
    with_int8_check,
)
from keras_attn.ops.kv_cache import (
    KeyValueCache,
    empty_cache,
    extend_cache,
    ring_positions,
    unshared,
    write_cache,
    write_ring,
)
from keras_attn.ops.largest_values import entries_at, top_k, top_k_and_normalizer
from keras_attn.ops.masks import (
    MaskRule,
    as_boolean_mask,
    causal_mask,
    check_mask_shape,
    combine_masks,
    mask_fits,
    mask_poison,
    padding_mask,
    poisoned,
    segment_mask,
    sliding_window_mask,
    with_exact_sizes,
)
from keras_attn.ops.matrix_products import (
    bfloat16_product,
    product_in_halves,
    product_in_parts,
    runs_bfloat16_products,
)
from keras_attn.ops.nan_guards import keep
from keras_attn.ops.normalization import layer_normalization
from keras_attn.ops.pooling import POOLINGS, pooled
from keras_attn.ops.positions import (
    largest_in_segment,
    segment_positions,
    sinusoidal_encoding,
    successive_positions,
    token_positions,
)
from keras_attn.ops.precision import at_least_float32
from keras_attn.ops.rotary import apply_rotary, rotary_frequencies
from keras_attn.ops.softmax import log_normalizer
from keras_attn.ops.talking_heads import talking_heads_attention
from keras_attn.ops.value_checks import concrete_values, indices_within, is_constant
from keras_attn.ops.windows import (
    complete_windows,
    partition_windows,
    reverse_windows,
    shift_of_several_windows,
    window_mask,
    window_position_bias,
)

__all__ = [
    "POOLINGS",
    "DenseBias",
    "Int8Matrix",
    "KeyValueCache",
    "MaskRule",
    "PairBias",
    "ScoreDropout",
    "SlopeBias",
    "TableBias",
    "additive_attention",
    "alibi_slopes",
    "apply_rotary",
    "as_boolean_mask",
    "at_least_float32",
    "attend",
    "bfloat16_product",
    "causal_mask",
    "check_mask_shape",
    "clamping_scope",
    "combine_masks",
    "compiled_scope",
    "complete_windows",
    "concrete_values",
    "custom_gradient",
    "dot_product_attention",
    "empty_cache",
    "entries_at",
    "extend_cache",
    "fused_attention",
    "fused_attention_obstacle",
    "gelu",
    "grid_positions",
    "grid_size",
    "has_fused_kernel",
    "hashed_uniform",
    "if_true",
    "image_patches",
    "implicit_mask",
    "indices_within",
    "inference_scope",
    "int8_problem",
    "int8_product",
    "is_compiled_scope",
    "is_constant",
    "is_inference_scope",
    "keep",
    "largest_in_segment",
    "layer_normalization",
    "log_normalizer",
    "loop_form",
    "mask_fits",
    "mask_poison",
    "memory_efficient_attention",
    "overwriting_scope",
    "padding_mask",
    "partition_windows",
    "poisoned",
    "pooled",
    "prefers_memory_efficient",
    "processor_flags",
    "product_in_halves",
    "product_in_parts",
    "relative_position_bucket",
    "resized_grid",
    "reverse_windows",
    "ring_positions",
    "rotary_frequencies",
    "rows_and_columns",
    "runs_bfloat16_products",
    "runs_int8_products",
    "runs_op_by_op",
    "segment_mask",
    "segment_positions",
    "shape_to_keep",
    "shift_of_several_windows",
    "sinusoidal_encoding",
    "sliding_window_mask",
    "soft_capped",
    "step_form",
    "successive_positions",
    "talking_heads_attention",
    "token_positions",
    "top_k",
    "top_k_and_normalizer",
    "unshared",
    "window_mask",
    "window_position_bias",
    "with_exact_sizes",
    "with_int8_check",
    "write_cache",
    "write_ring",
]
