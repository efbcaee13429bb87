"""Products of a few rows and a large matrix: in bfloat16 on TensorFlow, and in parts, for which XLA takes less time on CPUs.

Products with int8 matrices are in int8_products.py.
"""

import math

import keras
from keras import ops

from keras_attn.compat.tensorflow import product_and_bias
from keras_attn.ops.graph_purpose import if_true, is_compiled_scope, is_inference_scope, runs_op_by_op
from keras_attn.ops.step_loop import graph_around_loops

# For a matrix of no more entries, the operations around the product take longer than the faster kernel saves.
_FEW_ENTRIES = 2**16
# XLA multiplies fewer rows than this faster by a matrix that it casts to float32, once before a loop.
_FEWEST_ROWS = 16
# The name of a graph's collection with the choice of its product.
_KERNEL = "keras_attn_bfloat16_kernel"
# The product that finds out how sums are rounded: so many times each of its terms, and rows.
_TERMS_OF_PROBE = 16
_ROWS_OF_PROBE = 3


def product_in_parts(rows, table):
    """Rows (R, D) times a table (V, D), transposed, by parts of the table, with equal results.

    XLA takes less time than for one product if there are 2 to 32 rows, and little more than half of it for 2 to
    8 rows and a large table.

    Args:
        rows: Floats (R, D).
        table: Floats (V, D).

    Returns:
        Floats (R, V).

    Example:

    ```python
    logits = product_in_parts(keras.random.normal((3, 5)), keras.random.normal((14, 5)))  # (3, 14)
    ```
    """
    size, dim = table.shape
    num_rows = ops.shape(rows)[0]
    parts = next((parts for parts in range(2, 65) if size % parts == 0), 1)
    rows = ops.broadcast_to(ops.transpose(rows), (parts, dim, num_rows))
    products = ops.matmul(ops.reshape(table, (parts, size // parts, dim)), rows)
    return ops.transpose(ops.reshape(products, (size, num_rows)))


def product_by_transposed(rows, table):
    """Rows (R, D) times a table (V, D), transposed, on TensorFlow: one operation, which leaves the table as it is.

    TensorFlow does not see in a function that is the body of a loop that `matmul(rows, transpose(table))` is the same, and
    transposes the table in every step.

    Args:
        rows: Floats (R, D).
        table: Floats (V, D).

    Returns:
        Floats (R, V).
    """
    import tensorflow as tf

    return tf.matmul(rows, table, transpose_b=True)


def product_in_halves(rows, weights):
    """Rows (R, D) times weights (D, V), as the sum of the products of the halves of D.

    XLA takes two thirds of the time of one product of a large matrix if there are 3 to 32 rows, but twice the
    time if there are 2, or 64.

    Args:
        rows: Floats (R, D). If D is odd, it is one product.
        weights: Floats (D, V).

    Returns:
        Floats (R, V).

    Example:

    ```python
    logits = product_in_halves(keras.random.normal((3, 10)), keras.random.normal((10, 7)))  # (3, 7)
    ```
    """
    dim, size = weights.shape
    if dim % 2:
        return ops.matmul(rows, weights)
    halves = ops.transpose(ops.reshape(rows, (-1, 2, dim // 2)), (1, 0, 2))
    return ops.sum(ops.matmul(halves, ops.reshape(weights, (2, dim // 2, size))), axis=0)


def runs_bfloat16_products(rows, matrix):
    """Whether `bfloat16_product` is for these tensors, in the graph that is traced."""
    is_bfloat16 = keras.backend.standardize_dtype(matrix.dtype) == "bfloat16"
    if not (is_bfloat16 and is_inference_scope() and keras.backend.backend() == "tensorflow"):
        return False
    return is_compiled_scope() or (math.prod(matrix.shape) > _FEW_ENTRIES and runs_op_by_op(rows))


def bfloat16_product(rows, matrix, is_transposed=False):
    """The product of rows and a bfloat16 matrix, in float32, for graphs that are never differentiated.

    A bias is then added in float32.

    XLA is asked for sums in float32: it would compute a product in bfloat16 from matrices that it casts to float32. Op by op
    it is oneDNN's product, rounded to bfloat16 once. Where TensorFlow does not use oneDNN (an x86 processor without AVX-512,
    another processor, oneDNN switched off), its own kernels round parts of a sum to bfloat16, other parts for another number
    of rows, and are slower than its product in float32. So the graph finds out, when it is run, what this process does, and
    multiplies in float32 there.

    oneDNN has two kernels, which give the same numbers: that of a product and a bias takes half of the time for a single
    row, and one and a half times as long for several, as if it arranged the matrix anew. So a single row gets a bias of
    zeros; but not if the matrix is transposed, where the numbers differ.

    Args:
        rows: bfloat16 (R, K); R unknown before the run, unless the graph is for XLA.
        matrix: bfloat16 (K, N), or (N, K) if `is_transposed`.
        is_transposed: Boolean.

    Returns:
        float32 (R, N).

    Example:

    ```python
    import tensorflow as tf

    matrix = tf.ones([2, 3], "bfloat16")
    spec = [tf.TensorSpec([None, 2], "bfloat16")]
    sums = tf.function(lambda rows: bfloat16_product(rows, matrix), spec)(tf.ones([4, 2], "bfloat16"))  # all 2
    ```
    """
    if is_compiled_scope():
        return _xla_product(rows, matrix, is_transposed)
    import tensorflow as tf

    def multiply_by_transposed():
        return ops.cast(ops.einsum("rk,nk->rn", rows, matrix), "float32")

    def multiply_several_rows():
        return ops.cast(ops.matmul(rows, matrix), "float32")

    def multiply_single_row():
        return ops.cast(product_and_bias(rows, matrix), "float32")

    def multiply_in_float32():
        return tf.matmul(ops.cast(rows, "float32"), ops.cast(matrix, "float32"), transpose_b=is_transposed)

    if is_transposed:
        return tf.switch_case(_kernel(), [multiply_by_transposed, multiply_in_float32])
    is_single = ops.cast(ops.equal(ops.shape(rows)[0], 1), "int32")
    kernels = [multiply_several_rows, multiply_in_float32, multiply_single_row, multiply_in_float32]
    product = tf.switch_case(_kernel() + 2 * is_single, kernels)
    return ops.reshape(product, (-1, matrix.shape[1]))


def _kernel():
    """Which product this process computes as it should: int32 scalar, 0 for that in bfloat16, 1 for that in float32.

    It is found once in each run of a graph, before its loops: one more product, of a few numbers.
    """
    import tensorflow as tf

    graph = graph_around_loops()
    kernels = graph.get_collection_ref(_KERNEL)
    # The graph of a function that is traced within another one begins with the collections of that one.
    kernel = next((kernel for kernel in kernels if kernel.graph is graph), None)
    if kernel is None:
        with graph.as_default(), tf.name_scope(_KERNEL):
            kernel = tf.cast(tf.logical_not(_rounds_once()), tf.int32)
        kernels.append(kernel)
    return kernel


def _rounds_once():
    """Whether sums that are exact in float32, 256 + 1 - 256, are so in this process: a boolean tensor."""
    import tensorflow as tf

    # Not constants, which TensorFlow multiplies when it loads the graph, by other kernels.
    zero = tf.cast(tf.minimum(tf.timestamp(), 0.0), tf.bfloat16)
    terms = tf.constant([256.0, 1.0, -256.0], tf.bfloat16) + zero
    row = tf.reshape(tf.repeat(terms, _TERMS_OF_PROBE), [1, -1])
    matrix = row * tf.ones([_ROWS_OF_PROBE, 1], tf.bfloat16)
    rows = tf.ones_like(matrix)
    by_columns = tf.einsum("rk,nk->rn", rows, matrix)
    by_rows = tf.matmul(rows, tf.transpose(matrix))
    expected = tf.cast(_TERMS_OF_PROBE, tf.bfloat16)
    return tf.reduce_all(tf.equal(tf.stack([by_columns, by_rows]), expected))


def _xla_product(rows, matrix, is_transposed):
    """The same sums for any number of rows, but for the order in which they are added."""
    import tensorflow as tf

    def multiply_in_bfloat16():
        return tf.matmul(rows, matrix, transpose_b=is_transposed, output_type=tf.float32)

    def multiply_in_float32():
        return ops.matmul(ops.cast(rows, "float32"), ops.cast(matrix, "float32"))

    if is_transposed:  # few rows take as long by a transposed matrix in float32
        return multiply_in_bfloat16()
    return if_true(ops.shape(rows)[0] < _FEWEST_ROWS, multiply_in_float32, multiply_in_bfloat16)
