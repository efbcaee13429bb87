"""What TensorFlow computes in a way of its own: attention without scores, and parts of blockwise attention.

TensorFlow runs a graph one operation at a time, so needless operations cost time. Its gradient of the softmax
reads all pairs two times more than needed, and its matrix product (oneDNN) is slow for single rows. It starts an operation
as soon as it can and holds all results, so blocks must be told to wait for each other.
"""

import contextlib
import os

import keras
from keras import ops

from keras_attn.ops.attention import (
    MASKED,
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
from keras_attn.ops.graph_purpose import custom_gradient, runs_op_by_op
from keras_attn.ops.nan_guards import dense_bias, keep, zero_fully_masked


def attention_without_scores(
    query, key, value, mask=None, bias=None, scale=None, soft_cap=None, dropout=None
):
    """The output of `dot_product_attention`, without the attention scores, for the TensorFlow backend.

    Args:
        query, key, value, mask, bias, scale, soft_cap, dropout: As in `dot_product_attention`.

    Returns:
        The output (..., N, T, Hv), in the dtype of `query`.
    """
    query, key, value, mask, sees_keys = zero_fully_masked(query, key, value, mask)
    query = scaled(query, scale)
    bias = dense_bias(bias, sees_keys)

    def to_logits(products):
        logits = soft_capped(products, soft_cap)
        return masked(biased(logits, bias), mask)

    if _is_decoding_step(query, key, value):
        output = _decoding_step(query, key, value, to_logits, dropout)
    elif dropout is None and bias is None and _is_decoding_step_of_groups(query, key, value, mask):
        output = _decoding_step_of_groups(query, key, value, to_logits)
    else:
        output = _softmax_weighted_sum(to_logits(_products(query, key)), value, dropout)
    return keep(output, sees_keys)


def _decoding_step(query, key, value, to_logits, dropout):
    """The output (..., K, 1, Hv) of one query (..., K, 1, H) for each key head; `to_logits` is a function of their products."""
    scores = softmax(to_logits(_few_rows_product(query, key, transposed=True)))
    return _few_rows_product(dropped(scores, dropout), value)


def _is_decoding_step(query, key, value):
    """Whether each key head has one query, in a float32 graph whose batch size is unknown before the run."""
    one_query = query.shape[-2] == 1 and query.shape[:-2] == key.shape[:-2]
    return one_query and _is_float32_graph(query, key, value)


def _decoding_step_of_groups(query, key, value, to_logits):
    """The output (B, N, 1, Hv) of one query of each head, N / K of which share a key head: these are rows of one product."""
    _, num_heads, _, size = query.shape
    num_key_heads = key.shape[-3]
    rows = ops.reshape(query, (-1, num_key_heads, num_heads // num_key_heads, size))
    scores = softmax(to_logits(_few_rows_product(rows, key, transposed=True)))
    return ops.reshape(_few_rows_product(scores, value), (-1, num_heads, 1, value.shape[-1]))


def _is_decoding_step_of_groups(query, key, value, mask):
    """The same with heads that share a key head, under a mask that is the same for all heads."""
    if len(query.shape) != 4 or query.shape[-2] != 1 or key.shape[-3] != value.shape[-3]:
        return False
    is_shared = mask is None or (len(mask.shape) == 4 and mask.shape[1:3] == (1, 1))
    return is_shared and _is_float32_graph(query, key, value)


def _is_float32_graph(query, key, value):
    """Whether all are float32, in a graph whose batch size is unknown before the run."""
    are_float32 = all(keras.backend.standardize_dtype(x.dtype) == "float32" for x in (query, key, value))
    return are_float32 and runs_op_by_op(key)


def _few_rows_product(rows, matrices, *, transposed=False):
    """The product of few rows (..., K, R, X) with each matrix (..., K, X, Y), by a kernel that oneDNN does not take over.

    For so few rows oneDNN's was seen to take 1.2 to 1.6 times as long, and elementwise products and sums 1.7 to 3 times.
    """
    import tensorflow as tf

    return tf.raw_ops.BatchMatMulV3(x=rows, y=matrices, adj_y=transposed, Tout=matrices.dtype)


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
        weights = scores
        multiplier = None
        if dropout is not None:
            multiplier = dropout.multiplier_of_all(scores)
            weights = scores * multiplier
        weights = ops.cast(weights, value.dtype)
        output = weighted_sum(weights, value)

        def gradient(upstream):
            row_terms = row_products(output, upstream)
            by_scores = products(upstream, value)
            if multiplier is not None:
                by_scores = by_scores * multiplier
            return scores * (by_scores - row_terms), transposed_sum(weights, upstream, value)

        return output, gradient

    return attend(logits, value)


# Parts of blockwise attention


def with_later_keys_masked(logits, first):
    """Logits (..., t, s), very low where key j of s comes after query i of t: where j > first + i.

    Any other mask is one more pass over the logits. A graph that is not compiled writes into the logits themselves, if nothing
    else reads them. XLA takes long to compile it.

    Args:
        logits: Float tensor (..., t, s) of TensorFlow, not float16; t and s are known.
        first: Integer, the last key that the first query sees.

    Returns:
        Floats (..., t, s), in the dtype of `logits`.

    Example:

    ```python
    with_later_keys_masked(keras.ops.zeros((2, 3)), first=0)  # [[0, -1e30, -1e30], [0, 0, -1e30]]
    ```
    """
    import tensorflow as tf

    num_queries, num_keys = logits.shape[-2:]
    num_diagonals = num_keys - first - 1
    if num_diagonals <= 0:
        return logits
    shape = [*ops.shape(logits)[:-2], num_diagonals, min(num_queries, num_diagonals)]
    if num_diagonals == 1:  # has no axis of diagonals
        del shape[-2]
    low = ops.full(shape, MASKED, logits.dtype)
    if None in logits.shape:
        # TensorFlow then infers from a known rank of several diagonals that the logits have one axis more.
        low = tf.compat.v1.placeholder_with_default(low, None)
    return tf.linalg.set_diag(logits, low, k=(first + 1, num_keys - 1))


def computed_after(tensors):
    """A scope in which operations of a TensorFlow graph start after these tensors are computed.

    The other backends compute in order, or are compilers, which choose an order that needs little memory.

    Example:

    ```python
    with computed_after([keras.ops.zeros(3)]):
        ones = keras.ops.ones(3)
    ```
    """
    if keras.backend.backend() != "tensorflow":
        return contextlib.nullcontext()
    import tensorflow as tf

    return tf.control_dependencies(tensors)


def head_by_head(num_key_heads, function, num_results, *tensors):
    """The results of a function that is called with the heads of one key head after the other, in TensorFlow.

    As many calls as there are processors run at the same time.

    Args:
        num_key_heads: Integer K.
        function: Function of tensors (..., N / K, X, Y) and (..., 1, X, Y) to `num_results` such tensors, in their dtype.
        num_results: Integer.
        *tensors: Tensors (..., N, X, Y) and (..., K, X, Y), all in one dtype.

    Returns:
        A list of tensors (..., N, X, Y) or (..., K, X, Y).
    """
    import tensorflow as tf

    def split_heads(x):
        shape = ops.shape(x)
        groups = (*shape[:-3], num_key_heads, x.shape[-3] // num_key_heads, *shape[-2:])
        return ops.moveaxis(ops.reshape(x, groups), -4, 0)

    def join_heads(x):
        x = ops.moveaxis(x, 0, -4)
        *lead, groups, heads, rows, columns = ops.shape(x)
        return ops.reshape(x, (*lead, groups * heads, rows, columns))

    results = tf.map_fn(
        lambda heads: tuple(function(*heads)),
        tuple(split_heads(x) for x in tensors),
        parallel_iterations=os.cpu_count() or 1,
        fn_output_signature=(tensors[0].dtype,) * num_results,
    )
    return [join_heads(x) for x in results]
