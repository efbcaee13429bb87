"""Products of float rows and an int8 matrix, in integers, for graphs that are run and never differentiated.

Each row is divided by its own largest magnitude, so that no row changes the product of another, and rounded to
[-127, 127]. The sum of the products of integers is exact; it is multiplied by the scales of its row and its column.
"""

import collections
import functools
import math
import pathlib

import keras
from keras import ops

from keras_attn.compat.tensorflow import quantized_product
from keras_attn.ops.graph_purpose import if_true, is_compiled_scope, is_inference_scope


class Int8Matrix(
    collections.namedtuple("Int8Matrix", ["values", "scale", "transposed_values"], defaults=[None])
):
    """A matrix (K, N) as integers, with a scale for each column.

    values: int8 (K, N); or (N, K) if transposed; or (N * K,), the rows of the transposed matrix one after another.
    scale: float32 (1, N), or (N, 1) if transposed; the matrix, or its transpose, is `values * scale`.
    transposed_values: None, or int8 (N * K,), the rows of the transposed matrix, by which a loop multiplies a single row.
    """

    __slots__ = ()

    @property
    def is_transposed(self):
        """Whether it is the transposed matrix that is stored."""
        return len(self.values.shape) == 1 or tuple(self.scale.shape) == (self.values.shape[0], 1)

    def transposed(self):
        """The same matrix with its transpose stored in a single axis; unchanged if its transpose is stored already.

        With two axes, XLA would leave the numbers in their order and declare that columns come first.
        """
        if self.is_transposed:
            return self
        values = ops.reshape(ops.transpose(self.values), (-1,))
        return self._replace(values=values, scale=ops.transpose(self.scale))


_LARGEST = 127
# In a sum with this number, the last bits of the float are those of the nearest integer.
_ROUNDING = 1.5 * 2**23
# oneDNN takes some 40 microseconds to start a product of integers, in which a product of floats with a matrix of no more
# entries is done.
_FEW_ENTRIES = 2**16
# XLA multiplies a single row by a loop over single numbers, which takes many times as long as two rows. With tiles for
# integers (AMX), 3 to 7 rows take longer than 8.
_FEWEST_ROWS = 2
_ROWS_OF_TILES = 8
_NO_ONEDNN = (
    "int8 without XLA needs oneDNN's 8-bit products (an x86 processor with AVX512-VNNI, AVX-VNNI or AMX, and "
    "TensorFlow's oneDNN): export without `quantization`, in float32, for such a machine, or with XLA."
)


def runs_int8_products():
    """Whether the code is traced for a TensorFlow graph that is only run, so that `int8_product` can be used."""
    if not is_inference_scope() or keras.backend.backend() != "tensorflow":
        return False
    import tensorflow as tf

    return tf.inside_function()


def int8_product(rows, matrix, is_constant=True):
    """The product of rows and an `Int8Matrix`, in a TensorFlow graph.

    In a graph for XLA it is a product of integers that XLA compiles; elsewhere it is an operation of oneDNN, which
    arranges a constant matrix in memory once, when it is first run. Both give the same sums of integers.

    Args:
        rows: float32 (R, K).
        matrix: `Int8Matrix` (K, N).
        is_constant: Boolean, whether the matrix is the same whenever the graph is run.

    Returns:
        float32 (R, N).

    Example:

    ```python
    import tensorflow as tf

    matrix = Int8Matrix(tf.constant([[127, 0], [0, 127]], "int8"), tf.constant([[1.0, 1.0]]) / 127)
    double = tf.function(lambda rows: int8_product(rows, matrix), [tf.TensorSpec([None, 2], "float32")])
    ```

    Reference: [Dettmers et al., 2022](https://arxiv.org/abs/2208.07339), section 2.1 and "vector-wise quantization".
    """
    import tensorflow as tf

    largest = _largest_magnitudes(rows)
    integers = _rounded(rows * tf.math.divide_no_nan(float(_LARGEST), largest))
    if not is_compiled_scope():
        return _onednn_product(integers, matrix, is_constant) * (largest * (1 / _LARGEST))
    return _xla_product(integers, largest, matrix)


def _rounded(x):
    """Floats of [-127, 127] as int8. Rounding and a cast of floats take longer; in XLA, three times as long."""
    import tensorflow as tf

    return ops.cast(tf.bitcast(x + _ROUNDING, tf.int32), "int8")


def _largest_magnitudes(rows):
    """float32 (R, 1). TensorFlow, op by op, finds the largest and the smallest number faster than a magnitude."""
    if is_compiled_scope():
        return ops.max(ops.abs(rows), axis=-1, keepdims=True)
    return ops.maximum(ops.max(rows, axis=-1, keepdims=True), -ops.min(rows, axis=-1, keepdims=True))


def step_form(matrix):
    """The form in which a step multiplies by an `Int8Matrix`: the matrix itself, or floats (K, N).

    Floats take less time for small matrices in graphs that are not for XLA.

    Example:

    ```python
    import tensorflow as tf

    matrix = Int8Matrix(tf.constant([[127, 0], [0, 127]], "int8"), tf.constant([[1.0, 1.0]]) / 127)
    floats = step_form(matrix)  # [[1, 0], [0, 1]]
    ```
    """
    if is_compiled_scope() or math.prod(matrix.values.shape) > _FEW_ENTRIES:
        return matrix
    floats = ops.cast(matrix.values, "float32") * matrix.scale
    if matrix.is_transposed:
        floats = ops.transpose(floats)
    return floats


def loop_form(matrix):
    """The form in which a loop multiplies by a matrix, made once before the loop.

    XLA rearranges integers for each product, which takes less time if they are transposed, except on processors with tiles
    (AMX). There only a single row takes less time, and a large matrix takes more time to transpose than a loop saves.

    Args:
        matrix: `Int8Matrix`, or floats. Floats, and everything in graphs that are not for XLA, are returned unchanged.

    Example:

    ```python
    import tensorflow as tf

    matrix = loop_form(Int8Matrix(tf.constant([[127, 0], [0, 127]], "int8"), tf.constant([[1.0, 1.0]]) / 127))
    ```
    """
    if not (isinstance(matrix, Int8Matrix) and is_compiled_scope()):
        return matrix
    if matrix.is_transposed or not _has_tiles():
        return matrix.transposed()
    if math.prod(matrix.values.shape) > _FEW_ENTRIES:
        return matrix
    return matrix._replace(transposed_values=matrix.transposed().values)


@functools.cache
def processor_flags():
    """The names of the instruction sets that Linux lists: a frozenset of strings, empty on other systems.

    Example:

    ```python
    has_tiles = "amx_int8" in processor_flags()
    ```
    """
    cpuinfo = pathlib.Path("/proc/cpuinfo")
    if not cpuinfo.is_file():
        return frozenset()
    return frozenset(cpuinfo.read_text(encoding="utf-8").split())


def _has_tiles():
    return "amx_int8" in processor_flags()


def _xla_product(integers, largest, matrix):
    import tensorflow as tf

    num_rows = ops.shape(integers)[0]
    values = _two_axes(matrix.values, integers)
    # What may be constant is multiplied first: TensorFlow would else do so in an export, and round in another way.
    column = ops.reshape(matrix.scale, (1, -1)) * (1 / _LARGEST)

    def product(rows, largest):
        sums = tf.matmul(rows, values, transpose_b=matrix.is_transposed, output_type=tf.int32)
        return ops.cast(sums, "float32") * (largest * column)

    def padded(x, size):
        return ops.pad(x, [(0, size - 1), (0, 0)])[:size]

    def product_of_padded(size):
        return product(padded(integers, size), padded(largest, size))[:num_rows]

    def product_of_single_row():
        transposed = values if matrix.is_transposed else matrix.transposed_values
        if transposed is None:
            return product_of_padded(_FEWEST_ROWS)
        # The large factor comes first: XLA arranges the second.
        transposed = _two_axes(transposed, integers)
        rows = padded(integers, _FEWEST_ROWS)
        sums = ops.transpose(tf.matmul(transposed, rows, transpose_b=True, output_type=tf.int32))
        # XLA multiplies a single row in another order.
        return (ops.cast(sums, "float32") * (padded(largest, _FEWEST_ROWS) * column))[:num_rows]

    def product_of_several_rows():
        if _has_tiles():
            return product_of_padded(_ROWS_OF_TILES)
        return product_of_all_rows()

    def product_of_few_rows():
        return if_true(num_rows < _FEWEST_ROWS, product_of_single_row, product_of_several_rows)

    def product_of_all_rows():
        return product(integers, largest)

    return if_true(num_rows < _ROWS_OF_TILES, product_of_few_rows, product_of_all_rows)


def _two_axes(values, factor):
    """The stored values of an `Int8Matrix` with two axes, to be multiplied by the rows of a factor."""
    if len(values.shape) == 2:
        return values
    return ops.reshape(values, (-1, factor.shape[1]))


def _onednn_product(integers, matrix, is_constant=True):
    scales = ops.reshape(matrix.scale, (-1,))
    return quantized_product(integers, matrix.values, scales, matrix.is_transposed, is_constant)


def int8_product_is_right():
    """Whether this process computes int8 products without XLA as it should: a boolean tensor of a TensorFlow graph.

    Where the processor has no instruction for 8-bit products, sums of two of them can overflow 16 bits, and the result
    would be wrong without an error. This is the largest sum there can be.
    """
    import tensorflow as tf

    # Not constants, which TensorFlow might multiply when it loads the graph, on the same machine but by other means.
    signs = tf.constant([[1], [-1]], tf.int8)
    matrix = Int8Matrix(tf.tile(_LARGEST * signs, [1, 64]), tf.ones([2, 1]))
    sums = _onednn_product(tf.fill([1, 64], tf.constant(_LARGEST, tf.int8)), matrix)
    expected = 64.0 * _LARGEST**2 * tf.cast(tf.transpose(signs), tf.float32)
    return tf.reduce_all(sums == expected)


def int8_problem():
    """Why int8 products without XLA cannot be computed by this process: a string, or None."""
    import tensorflow as tf

    try:
        if bool(tf.function(int8_product_is_right, autograph=False)()):
            return None
        return f"This processor's 8-bit products overflow. {_NO_ONEDNN}"
    except (tf.errors.OpError, RuntimeError, ValueError) as error:
        return f"{_NO_ONEDNN} TensorFlow says: {' '.join(str(error).split())[:200]}"


def with_int8_check(tensors):
    """A structure of tensors, which in a graph are computed only where `int8_product_is_right`: else it is an error."""
    import tensorflow as tf

    message = f"This processor's 8-bit products overflow. {_NO_ONEDNN}"
    with tf.control_dependencies([tf.debugging.Assert(int8_product_is_right(), [message])]):
        return tf.nest.map_structure(tf.identity, tensors)
