"""The choice between the implementations of attention."""

import keras

from keras_attn.ops.attention import dot_product_attention
from keras_attn.ops.blockwise_attention import memory_efficient_attention, prefers_memory_efficient
from keras_attn.ops.fused_attention import fused_attention, fused_attention_obstacle, has_fused_kernel
from keras_attn.ops.masks import as_mask_rule
from keras_attn.ops.tensorflow_attention import attention_without_scores


def attend(
    query,
    key,
    value,
    mask=None,
    scale=None,
    sink_logits=None,
    return_attention_scores=False,
    memory_efficient=None,
    flash_attention=None,
    **options,
):
    """`dot_product_attention`, by the implementation that suits the call. The results are the same.

    The fused kernel is used if the backend has one and `fused_attention_obstacle` returns None. Otherwise
    long sequences use `memory_efficient_attention`, TensorFlow uses `attention_without_scores` for its
    shorter gradient, and all other calls use `dot_product_attention`.

    Args:
        query, key, value, mask, scale, sink_logits: As in `dot_product_attention`.
        return_attention_scores: Boolean. Only `dot_product_attention` computes scores.
        memory_efficient: Boolean, whether to attend block by block. By default, long sequences do.
        flash_attention: Boolean, whether to use the fused kernel. By default it is used where possible.
        **options: `bias`, `soft_cap` and `dropout`, as in `dot_product_attention`.

    Returns:
        The output (..., N, T, Hv), in the dtype of `query`; then the attention scores (..., N, T, S), or None if
        `return_attention_scores` is False.

    Raises:
        ValueError: for `memory_efficient=True` together with `return_attention_scores`, and for `flash_attention=True`
            where the fused kernel would not give the same answer.

    Example:

    ```python
    query = key = value = keras.random.normal((2, 3, 5, 7))
    output, attention_scores = attend(query, key, value, return_attention_scores=True)
    ```
    """
    if memory_efficient and return_attention_scores:
        raise ValueError(
            "`return_attention_scores` needs all T x S scores, which `memory_efficient=True` forbids. "
            "Leave `memory_efficient` at None: calls that ask for scores then do without it."
        )
    mask = as_mask_rule(mask, query, key)
    options["mask"] = mask
    if flash_attention or (flash_attention is None and has_fused_kernel()):
        obstacle = fused_attention_obstacle(query, key, value, sink_logits=sink_logits, **options)
        obstacle = "`return_attention_scores`" if return_attention_scores else obstacle
        if obstacle is None:
            return fused_attention(query, key, value, mask.causal, scale), None
        if flash_attention:
            raise ValueError(
                f"`flash_attention=True` cannot be used with {obstacle}: no fused kernel gives the same output. "
                "Leave it at None."
            )
    options["scale"] = scale
    if return_attention_scores:
        return dot_product_attention(query, key, value, sink_logits=sink_logits, **options)
    if memory_efficient or (memory_efficient is None and prefers_memory_efficient(query, key, mask)):
        return memory_efficient_attention(query, key, value, sink_logits=sink_logits, **options), None
    if keras.backend.backend() == "tensorflow" and sink_logits is None:
        return attention_without_scores(query, key, value, **options), None
    output, _ = dot_product_attention(query, key, value, sink_logits=sink_logits, **options)
    return output, None
