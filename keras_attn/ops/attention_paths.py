"""The choice between the implementations of attention, and the call of the backend's fused kernel (flash attention)."""

import dataclasses
import functools

import keras
from keras import ops

from keras_attn.ops.attention import dot_product_attention
from keras_attn.ops.blockwise_attention import memory_efficient_attention, prefers_memory_efficient
from keras_attn.ops.masks import MaskRule, as_mask_rule
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
    if flash_attention or (flash_attention is None and has_fused_kernel()):
        obstacle = fused_attention_obstacle(query, key, value, mask, sink_logits=sink_logits, **options)
        if return_attention_scores:
            obstacle = "`return_attention_scores`"
        if obstacle is None:
            return fused_attention(query, key, value, mask.causal, scale), None
        if flash_attention:
            raise ValueError(
                f"`flash_attention=True` cannot be used with {obstacle}: no fused kernel gives the same output. "
                "Leave it at None."
            )
    options |= {"mask": mask, "scale": scale}
    if return_attention_scores:
        return dot_product_attention(query, key, value, sink_logits=sink_logits, **options)
    if memory_efficient or (memory_efficient is None and prefers_memory_efficient(query, key, mask)):
        return memory_efficient_attention(query, key, value, sink_logits=sink_logits, **options), None
    if keras.backend.backend() == "tensorflow" and sink_logits is None:
        return attention_without_scores(query, key, value, **options), None
    output, _ = dot_product_attention(query, key, value, sink_logits=sink_logits, **options)
    return output, None


def fused_attention(query, key, value, is_causal=False, scale=None):
    """The output of `dot_product_attention` from the backend's fused kernel (flash attention on a GPU).

    Use it only if `fused_attention_obstacle` returns None.

    Args:
        query: Float tensor (B, N, T, H).
        key, value: Float tensors (B, K, S, H).
        is_causal: Boolean; needs T = S.
        scale: As in `dot_product_attention`.

    Returns:
        The output (B, N, T, H), in the dtype of `query`.

    Example:

    ```python
    query = key = value = keras.random.normal((2, 3, 5, 8))
    output = fused_attention(query, key, value, is_causal=True)
    ```

    Reference: [Dao et al., 2022](https://arxiv.org/abs/2205.14135).
    """
    group = query.shape[-3] // key.shape[-3]
    if group > 1:
        key = ops.repeat(key, group, axis=-3)
        value = ops.repeat(value, group, axis=-3)
    if scale is None:
        scale = query.shape[-1] ** -0.5
    query, key, value = (ops.swapaxes(x, -2, -3) for x in (query, key, value))
    output = ops.dot_product_attention(query, key, value, scale=scale, is_causal=is_causal)
    return ops.swapaxes(output, -2, -3)


def fused_attention_obstacle(
    query, key, value, mask=None, bias=None, soft_cap=None, sink_logits=None, dropout=None
):
    """Why the fused kernel would not give the results of `dot_product_attention`, in words, or None.

    Kernels differ in the output of a query without keys, and they spread NaN from masked keys. So the only
    mask that they get is the causal mask of a whole sequence: there every query sees a key, and every key is
    seen by a query.
    """
    other_rules = mask or MaskRule()
    num_queries = query.shape[-2]
    is_whole_sequence = other_rules.offset == 0 and num_queries is not None and num_queries == key.shape[-2]
    if is_whole_sequence and other_rules.prefix_mask is None:
        other_rules = dataclasses.replace(other_rules, causal=False)
    obstacles = {
        "the TensorFlow backend": keras.backend.backend() == "tensorflow",
        "a mask other than the causal one of a whole sequence": other_rules.block() is not None,
        "a position bias": bias is not None,
        "a soft cap of the logits": soft_cap is not None,
        "sink logits": sink_logits is not None,
        "dropout of the scores": dropout is not None,
        "values of another size than the keys": key.shape[-1] != value.shape[-1],
        "inputs with more axes than (B, T, D)": len(query.shape) != 4,
    }
    return next((obstacle for obstacle, is_there in obstacles.items() if is_there), None)


@functools.cache
def has_fused_kernel():
    """Whether the backend has a fused kernel on this machine that is faster than the formula."""
    if keras.backend.backend() == "torch":
        return True
    if keras.backend.backend() == "tensorflow":
        return False
    return any(not device.startswith("cpu") for device in keras.distribution.list_devices())
