"""Scaled dot-product attention: the formula.

`dot_product_attention` follows the paper, and the functions below it are its steps. A layer calls `attend` in
attention_paths.py, which takes one of four paths to the same results:

- A call that asks for the attention scores takes `dot_product_attention`, here.
- A long sequence, or a sliding window that hides most pairs, takes `memory_efficient_attention` in
  blockwise_attention.py: these steps, for one block of queries after the other.
- On TensorFlow, all other calls take `attention_without_scores` in tensorflow_attention.py: these steps, with a faster
  gradient, and with matrix products for single rows in a decoding step.
- On JAX and PyTorch, all other calls take `dot_product_attention`. The backend's fused kernel comes before all of these
  where its answer is the same.
"""

import keras
from keras import ops

from keras_attn.ops.graph_purpose import computed_once, shape_to_keep
from keras_attn.ops.nan_guards import dense_bias, keep, zero_fully_masked
from keras_attn.ops.precision import at_least_float32
from keras_attn.ops.softmax import row_softmax

# Added to masked logits. In float32 the softmax weight of such a key is exactly 0 as soon as another key may be attended
# to. It is finite, so that a row without keys does not compute Inf - Inf.
MASKED = -1e30


def dot_product_attention(
    query, key, value, mask=None, bias=None, scale=None, soft_cap=None, sink_logits=None, dropout=None
):
    """softmax(cap(Q K^T scale) + bias) V over the keys that `mask` allows (Vaswani et al. 2017, equation 1).

    Differs from `keras.ops.dot_product_attention`: the output of a query with no key to attend to is exactly
    0, and so is its gradient; a NaN or Inf in a key or value that no query may attend to, or in a query that
    may attend to no key, does not spread, forward or backward; the softmax is computed in at least float32;
    there may be fewer heads of keys and values than of queries; the attention scores are always returned.

    The head axis comes before the time axis: both products are then plain matrix products. There may be any
    leading axes.

    Args:
        query: Float tensor (..., N, T, H).
        key: Float tensor (..., K, S, H), where K divides N: N / K successive query heads share one key head
            (Ainslie et al. 2023).
        value: Float tensor (..., K, S, Hv).
        mask: `MaskRule`, or a tensor of booleans, or 0 and 1, that broadcasts to (..., N, T, S): True where attention is allowed.
        bias: What is added to the logits: a bias of `keras_attn.ops` or a float tensor that broadcasts to
            (..., N, T, S).
        scale: Float that multiplies the products of queries and keys, by default H ** -0.5.
        soft_cap: Float c that bounds the products: c tanh(x / c) (Gemma Team 2024, section 2).
        sink_logits: Floats (N,), one more logit for each head, which takes its share of the softmax and has no value
            (Xiao et al. 2024, section 3.2; Agarwal et al. 2025, section 2.2).
        dropout: `ScoreDropout` of the attention scores.

    Returns:
        The output (..., N, T, Hv) and the attention scores (..., N, T, S) before dropout, in the dtype of `query`.

    Raises:
        ValueError: if a `mask` that is a tensor has another shape, or other values.

    Example:

    ```python
    query = key = value = keras.random.normal((2, 3, 5, 7))
    output, attention_scores = dot_product_attention(query, key, value)
    ```

    Reference: [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 3.2.1.
    """
    dtype = query.dtype
    # From here on, queries that see no key and keys that no query sees are 0, and the mask is a tensor of booleans.
    query, key, value, mask, sees_keys = zero_fully_masked(query, key, value, mask)
    logits = products(scaled(query, scale), key)
    logits = soft_capped(logits, soft_cap)
    logits = biased(logits, dense_bias(bias, sees_keys))
    logits = masked(logits, mask)
    scores = softmax(logits, sink_logits)
    weights = ops.cast(dropped(scores, dropout), dtype)
    output = weighted_sum(weights, value)
    # A query that sees no key has equal scores here. Its row becomes 0, and its gradient too.
    return keep(output, sees_keys), keep(ops.cast(scores, dtype), sees_keys)


def scaled(query, scale):
    """`query * scale`, by default `query / sqrt(H)`."""
    if scale == 1:
        return query
    if scale is None:
        scale = query.shape[-1] ** -0.5
    return query * ops.convert_to_tensor(scale, query.dtype)


def products(query, key):
    """Q K^T, in at least float32: (..., N, T, H) and (..., K, S, H) in, (..., N, T, S) out."""
    return at_least_float32(products_in_dtype(query, key))


def products_in_dtype(query, key):
    """`products` in the dtype of both."""
    product = ops.matmul(_fold_heads(query, key), ops.swapaxes(key, -1, -2))
    return _unfold_heads(product, query)


def soft_capped(logits, soft_cap):
    """Logits within (-soft_cap, soft_cap)."""
    if soft_cap is None:
        return logits
    return soft_cap * ops.tanh(logits / soft_cap)


def biased(logits, bias):
    """Logits plus a bias that broadcasts to them. None adds nothing."""
    if bias is None:
        return logits
    return logits + ops.cast(bias, logits.dtype)


def masked(logits, mask):
    """Logits, very low where the mask is False. None masks nothing."""
    if mask is None:
        return logits
    # With as many axes as the logits have, TensorFlow fuses this sum with the matrix product before it.
    num_missing_axes = len(logits.shape) - len(mask.shape)
    if num_missing_axes > 0:
        mask = mask[(None,) * num_missing_axes]
    return logits + computed_once(mask_as_bias, mask, keras.backend.standardize_dtype(logits.dtype))


def mask_as_bias(mask, dtype):
    """What a mask adds to the logits: 0 where it is True, `MASKED` where it is False."""
    return ops.where(mask, ops.zeros((), dtype), ops.convert_to_tensor(MASKED, dtype))


def softmax(logits, sink_logits=None):
    """The attention scores of logits (..., N, T, S). A row that is masked everywhere gets finite scores."""
    if sink_logits is None:
        return row_softmax(logits)
    sink = ops.cast(sink_logits, logits.dtype)[:, None, None]
    sink = ops.broadcast_to(sink, (*ops.shape(logits)[:-1], 1))
    return row_softmax(ops.concatenate([logits, sink], axis=-1))[..., :-1]


def dropped(scores, dropout):
    """Scores (..., T, S) after dropout, in their dtype. None drops nothing."""
    if dropout is None:
        return scores
    return scores * dropout.multiplier_of_all(scores)


def weighted_sum(scores, value):
    """(..., N, T, S) and (..., K, S, Hv) in, (..., N, T, Hv) out."""
    return _unfold_heads(ops.matmul(_fold_heads(scores, value), value), scores)


# The gradients of the other paths need two more products.


def transposed_sum(scores, x, key):
    """(..., N, T, S) and (..., N, T, X) in, (..., K, S, X) out: the sum over the queries of the heads that share a key."""
    return ops.matmul(ops.swapaxes(_fold_heads(scores, key), -1, -2), _fold_heads(x, key))


def row_products(x, y):
    """The dot product of each row of (..., X) with the same row of another tensor: (..., 1), in at least float32."""
    return ops.sum(at_least_float32(x) * at_least_float32(y), axis=-1, keepdims=True)


def _fold_heads(x, key):
    """Stacks the query heads that share a key head: (..., N, T, X) -> (..., K, N/K T, X)."""
    num_heads = x.shape[-3]
    num_key_heads = key.shape[-3]
    if num_heads == num_key_heads:
        return x
    shape = shape_to_keep(x)
    rows = shape[-2]
    if x.shape[-2] is not None or not isinstance(rows, int):  # else the one size that is unknown, -1
        rows = (num_heads // num_key_heads) * rows
    return ops.reshape(x, (*shape[:-3], num_key_heads, rows, shape[-1]))


def _unfold_heads(x, like):
    """(..., K, N/K T, X) -> (..., N, T, X), with the sizes of `like` (..., N, T, Y)."""
    if x.shape[-3] == like.shape[-3]:
        return x
    return ops.reshape(x, (*ops.shape(like)[:-1], ops.shape(x)[-1]))
