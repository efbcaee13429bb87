"""Additive attention: the alignment model of Bahdanau et al., masked like dot-product attention."""

from keras import ops

from keras_attn.ops.attention import dropped, masked, softmax
from keras_attn.ops.nan_guards import keep
from keras_attn.ops.precision import at_least_float32


def additive_attention(query, key, value, weight, mask=None, dropout=None):
    """softmax(v^T tanh(query + key)) value over the keys that `mask` allows, for queries and keys already projected.

    It gives the guarantees of `dot_product_attention`: the output of a query with no key to attend to is
    exactly 0, and so is its gradient; a NaN or Inf in a key or value that no query may attend to does not
    spread, forward or backward; the softmax is computed in at least float32. The sum inside the tanh is not a
    matrix product: it makes a tensor (..., T, S, U) and keeps it for the gradient.

    Args:
        query: Float tensor (..., T, U).
        key: Float tensor (..., S, U).
        value: Float tensor (..., S, Dv).
        weight: Floats (U,), the v of the formula.
        mask: Boolean tensor that broadcasts to (..., T, S), True where attention is allowed.
        dropout: `ScoreDropout` of the attention scores.

    Returns:
        The output (..., T, Dv) and the attention scores (..., T, S) before dropout, in the dtype of `value`.

    Example:

    ```python
    query, key = keras.random.normal((2, 3, 7)), keras.random.normal((2, 5, 7))
    output, attention_scores = additive_attention(query, key, key, weight=keras.random.normal((7,)))
    ```

    Reference: [Bahdanau et al., 2014](https://arxiv.org/abs/1409.0473), section 3.1 and appendix A.1.2.
    """
    sees_keys = is_seen = None
    if mask is not None:
        sees_keys = ops.any(mask, axis=-1, keepdims=True)
        is_seen = ops.expand_dims(ops.any(mask, axis=-2), -1)
    query = keep(query, sees_keys)
    key = keep(key, is_seen)
    value = keep(value, is_seen)
    hidden = ops.tanh(ops.expand_dims(query, -2) + ops.expand_dims(key, -3))
    # Not an einsum: Keras would turn it into a batched product with a broadcast right side, which TensorFlow 2.21
    # computes wrongly in bfloat16 on CPUs with AVX-512 BF16 or AMX.
    logits = at_least_float32(ops.matmul(hidden, weight))
    scores = ops.cast(softmax(masked(logits, mask)), value.dtype)
    # A query that sees no key has equal scores here. `keep` makes its output 0, and the gradient too.
    output = ops.matmul(dropped(scores, dropout), value)
    return keep(output, sees_keys), keep(scores, sees_keys)
