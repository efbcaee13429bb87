"""Attention whose heads are mixed before and after the softmax."""

from keras import ops

from keras_attn.ops.attention import (
    biased,
    dropped,
    masked,
    products,
    scaled,
    soft_capped,
    softmax,
    weighted_sum,
)
from keras_attn.ops.nan_guards import dense_bias, keep, zero_fully_masked


def talking_heads_attention(
    query,
    key,
    value,
    logits_kernel,
    scores_kernel,
    mask=None,
    bias=None,
    scale=None,
    soft_cap=None,
    sink_logits=None,
    dropout=None,
):
    """`dot_product_attention` whose heads are mixed before and after the softmax.

    Args:
        query, key, value, mask, bias, scale, soft_cap, sink_logits, dropout: As in `dot_product_attention`; `bias` and
            `sink_logits` apply to the mixed logits.
        logits_kernel, scores_kernel: Floats (N, N), from heads to mixed heads.

    Returns:
        The output (..., N, T, Hv) and the mixed attention scores (..., N, T, S), in the dtype of `query`.

    Example:

    ```python
    query = key = value = keras.random.normal((2, 3, 5, 7))
    mix = keras.ops.eye(3)  # leaves the heads as they are
    output, attention_scores = talking_heads_attention(query, key, value, mix, mix)
    ```

    Reference: [Shazeer et al., 2020](https://arxiv.org/abs/2003.02436), section 4.
    """
    dtype = query.dtype
    query, key, value, mask, sees_keys = zero_fully_masked(query, key, value, mask)
    logits = products(scaled(query, scale), key)
    logits = _mix_heads(soft_capped(logits, soft_cap), logits_kernel)
    logits = biased(logits, dense_bias(bias, sees_keys))
    logits = masked(logits, mask)
    scores = _mix_heads(softmax(logits, sink_logits), scores_kernel)
    scores = keep(ops.cast(scores, dtype), sees_keys)
    output = weighted_sum(dropped(scores, dropout), value)
    return keep(output, sees_keys), scores


def _mix_heads(x, kernel):
    """(..., N, T, S) with every head replaced by a sum of all heads, weighted by the columns of a kernel (N, N)."""
    shape = ops.shape(x)
    flat = ops.reshape(x, (*shape[:-2], -1))
    mixed = ops.matmul(ops.cast(ops.transpose(kernel), x.dtype), flat)
    return ops.reshape(mixed, shape)
