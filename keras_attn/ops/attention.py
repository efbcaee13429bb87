"""Scaled dot-product attention: the formula, once, for every layer."""

import keras
from keras import ops

# Added to masked logits. In float32 the softmax weight of such a key is exactly 0 as soon as one key may be
# attended; finite, so that no Inf - Inf arises where none may.
_MASKED = -1e30


def dot_product_attention(
    query, key, value, mask=None, scale=None, dropout=None, masked_keys_are_finite=False
):
    """softmax(Q K^T scale) V over the keys that `mask` allows (Vaswani et al. 2017, equation 1).

    Differs from `keras.ops.dot_product_attention`: a query with no key to attend to answers exactly 0, with gradient
    exactly 0; a NaN or Inf in a key or value that no query may attend to, or in a query that may attend to no key,
    reaches nobody else, forward or backward; the softmax is computed in at least float32; the attention scores are always returned.

    Heads come before time, the layout in which both products are plain matrix products. Leading axes are free.

    Args:
        query: Float tensor (..., N, T, H).
        key: Float tensor (..., N, S, H).
        value: Float tensor (..., N, S, Hv).
        mask: Boolean tensor that broadcasts to (..., N, T, S), True where attention is allowed.
        scale: Float that multiplies the logits, by default H ** -0.5.
        dropout: Function applied to the attention scores before they weigh the values.
        masked_keys_are_finite: True where no NaN or Inf can stand at masked keys (a cache that this library
            wrote), which saves a pass over `key` and `value`.

    Returns:
        The output (..., N, T, Hv) and the attention scores (..., N, T, S) before dropout, in the dtype of `query`.

    Example:

    ```python
    query = key = value = keras.random.normal((2, 3, 5, 7))
    output, attention_scores = dot_product_attention(query, key, value)
    ```

    Reference: [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 3.2.1.
    """
    dtype = query.dtype
    query = query * ops.convert_to_tensor(query.shape[-1] ** -0.5 if scale is None else scale, dtype)
    answered = None if mask is None else ops.any(mask, axis=-1, keepdims=True)
    if mask is not None:
        query = _keep(query, answered)
        if not masked_keys_are_finite:
            attended = ops.expand_dims(ops.any(mask, axis=-2), -1)
            key, value = _keep(key, attended), _keep(value, attended)
    logits = at_least_float32(ops.matmul(query, ops.swapaxes(key, -1, -2)))
    if mask is not None:
        logits = logits + ops.cast(ops.where(mask, 0.0, _MASKED), logits.dtype)
    scores = ops.cast(_softmax(logits), dtype)
    if mask is not None:
        scores = _keep(scores, answered)
    output = ops.matmul(scores if dropout is None else dropout(scores), value)
    # The scores of an unanswered query are 0 already; this keeps a NaN in its output gradient from the values.
    return (output if mask is None else _keep(output, answered)), scores


def at_least_float32(x):
    """`x` in float32, or in float64 if it is that already (half-precision softmax loses whole digits)."""
    wide = keras.backend.standardize_dtype(x.dtype) in ("float32", "float64")
    return x if wide else ops.cast(x, "float32")


def _softmax(logits):
    # Keras warns of a softmax over one key, which a sequence of one token has every right to.
    return ops.exp(logits - logits) if logits.shape[-1] == 1 else ops.softmax(logits, axis=-1)


def _keep(x, condition):
    """`x` where `condition`, else 0, in value and in gradient, whatever stands there."""
    return ops.where(condition, x, ops.zeros((), dtype=x.dtype))
