"""The attention formula in fewer operations on TensorFlow, for calls that do not ask for the attention scores.

TensorFlow runs a graph one operation at a time, so needless operations cost time. Its gradient of the softmax
reads all pairs two times more than needed, and its matrix product is slow to start for small tensors.
"""

import keras
from keras import ops

from keras_attn.ops.attention import (
    biased,
    dropped,
    masked,
    products,
    row_products,
    scaled,
    soft_capped,
    softmax,
    transposed_sum,
    weighted_sum,
)
from keras_attn.ops.compilers import custom_gradient, runs_op_by_op
from keras_attn.ops.guards import bias_of_all_pairs, guard, keep
from keras_attn.ops.precision import at_least_float32

# Below this many numbers, TensorFlow's matrix product for CPUs (oneDNN) takes longer to start than to compute.
_FEW_NUMBERS = 2**15


def attention_without_scores(
    query, key, value, mask=None, bias=None, scale=None, soft_cap=None, dropout=None
):
    """The output of `dot_product_attention`, without the attention scores, for the TensorFlow backend.

    Args:
        query, key, value, mask, bias, scale, soft_cap, dropout: As in `dot_product_attention`.

    Returns:
        The output (..., N, T, Hv), in the dtype of `query`.
    """
    dtype = query.dtype
    query, key, value, mask, sees_keys = guard(query, key, value, mask)
    query, bias = scaled(query, scale), bias_of_all_pairs(bias, sees_keys)

    def by_matrix_products(multiply):
        logits = masked(biased(soft_capped(multiply(query, key), soft_cap), bias), mask)
        return _softmax_weighted_sum(logits, value, dropout)

    def by_elementwise_products():
        logits = ops.expand_dims(ops.sum(at_least_float32(query * key), axis=-1), -2)
        scores = softmax(masked(biased(soft_capped(logits, soft_cap), bias), mask))
        scores = ops.cast(dropped(scores, dropout), dtype)
        return ops.sum(ops.swapaxes(scores, -1, -2) * value, axis=-2, keepdims=True)

    if _is_decoding_step(query, key, value):
        # At batch size 1, matrix products take half of the time of a step of a small model.
        is_small = ops.size(key) <= _FEW_NUMBERS
        output = ops.cond(
            is_small, by_elementwise_products, lambda: by_matrix_products(_products_of_single_queries)
        )
    else:
        output = by_matrix_products(_products)
    return keep(output, sees_keys)


def _is_decoding_step(query, key, value):
    """Whether each key head has one query, in a float32 graph whose batch size is unknown before the run.

    In lower precision TensorFlow's matrix product rounds intermediate sums. If the batch size then decided
    between the two forms, the output of a row would depend on the size of its batch.
    """
    one_query = query.shape[-2] == 1 and query.shape[:-2] == key.shape[:-2]
    are_float32 = all(keras.backend.standardize_dtype(x.dtype) == "float32" for x in (query, key, value))
    return one_query and are_float32 and runs_op_by_op(key)


def _products_of_single_queries(query, key):
    """`products` (..., K, 1, S) of queries (..., K, 1, H), by a product of TensorFlow's that oneDNN does not take over.

    For one query for each key head, oneDNN's was seen to take 1.2 to 1.6 times as long.
    """
    import tensorflow as tf

    return tf.raw_ops.BatchMatMulV3(x=query, y=key, adj_y=True, Tout=key.dtype)


def _products(query, key):
    """`products(query, key)`, whose gradient of the keys is not a transposed matrix."""

    @custom_gradient
    def multiply(query, key):
        def gradient(upstream):
            upstream = ops.cast(upstream, key.dtype)
            return weighted_sum(upstream, key), transposed_sum(upstream, query, key)

        return products(query, key), gradient

    return multiply(query, key)


def _softmax_weighted_sum(logits, value, dropout):
    """`weighted_sum(dropped(softmax(logits), dropout), value)`, in the dtype of `value`, with a gradient of its own.

    TensorFlow's gradient of the softmax multiplies and sums all pairs to get one number for each query, which is also
    the product of the output and its gradient (Dao et al. 2022, appendix B.2).
    """

    @custom_gradient
    def attend(logits, value):
        scores = softmax(logits)
        multiplier = None if dropout is None else dropout.multiplier_of_all(scores)
        weights = ops.cast(scores if multiplier is None else scores * multiplier, value.dtype)
        output = weighted_sum(weights, value)

        def gradient(upstream):
            row_terms = row_products(output, upstream)
            by_scores = products(upstream, value)
            by_scores = by_scores if multiplier is None else by_scores * multiplier
            return scores * (by_scores - row_terms), transposed_sum(weights, upstream, value)

        return output, gradient

    return attend(logits, value)
