"""Products in bfloat16 in graphs that are only run: against NumPy in float64, for one row and for several."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_attn.layers import FeedForward
from keras_attn.layers.projection import product
from keras_attn.ops import bfloat16_product, compiled_scope, inference_scope

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="the products are of TensorFlow's graphs"
)

K, N = 23, 7


def in_graph(function, size, dtype="bfloat16"):
    def traced(rows):
        with inference_scope():
            return function(rows)

    return tf.function(traced, [tf.TensorSpec([None, size], dtype)], autograph=False)


@pytest.mark.parametrize("num_rows", [0, 1, 2, 5])
def test_it_is_the_product_rounded_once(num_rows):
    rng = np.random.default_rng(3)
    rows, matrix = (
        tf.cast(rng.normal(size=size).astype("float32"), "bfloat16") for size in ((num_rows, K), (K, N))
    )
    found = in_graph(lambda rows: bfloat16_product(rows, matrix), K)(rows)
    assert (found.dtype, found.shape) == (tf.float32, (num_rows, N))
    expected = np.float64(rows) @ np.float64(matrix)
    np.testing.assert_array_equal(found, tf.cast(tf.cast(found, "bfloat16"), "float32"))  # it was rounded
    assert np.all(np.abs(found - expected) <= 2.0**-8 * np.abs(expected) + 1e-6)


def test_biases_are_added_in_float32_and_a_row_is_the_same_in_any_batch():
    size = 254  # times 263 it is large enough
    layer = FeedForward(263, bias_initializer="random_normal", dtype="float32")
    layer.build((None, size))
    for part in (layer.intermediate_dense, layer.output_dense):
        part.store_in_bfloat16()
    run = in_graph(layer, size, "float32")
    rows = np.random.default_rng(4).normal(size=(5, size)).astype("float32")
    assert "_FusedMatMul" in operations_of(run)
    together = run(tf.constant(rows)).numpy()
    for row in range(5):
        np.testing.assert_array_equal(run(tf.constant(rows[row : row + 1]))[0], together[row])
    kernels, biases = zip(
        *[(part.kernel, part.bias) for part in (layer.intermediate_dense, layer.output_dense)]
    )
    hidden = rounded(np.float64(rounded(rows)) @ np.float64(kernels[0])) + np.float64(biases[0])
    expected = rounded(np.float64(rounded(np.maximum(hidden, 0))) @ np.float64(kernels[1])) + np.float64(
        biases[1]
    )
    # A sum in another order may be rounded to a neighbour.
    np.testing.assert_allclose(together, expected, rtol=2e-2, atol=2e-2 * np.abs(expected).max())
    assert np.mean(np.abs(together - expected) < 1e-6) > 0.9


@pytest.mark.parametrize("num_rows", [1, 3, 17])
def test_xla_sums_in_float32_and_casts_the_matrix_for_few_rows_only(num_rows):
    rng = np.random.default_rng(6)
    rows, kernel = (
        tf.cast(rng.normal(size=size).astype("float32"), "bfloat16") for size in ((num_rows, K), (K, N))
    )

    def traced(rows):
        with inference_scope(), compiled_scope():
            return product(rows, kernel)

    compiled = tf.function(traced, jit_compile=True, autograph=False)
    found, expected = np.float64(compiled(rows)), np.float64(rows) @ np.float64(kernel)
    np.testing.assert_allclose(
        found, expected, rtol=1e-5, atol=1e-5
    )  # not rounded, however many rows there are
    hlo = compiled.experimental_get_compiler_ir(rows)(stage="optimized_hlo")
    assert (f"f32[{K},{N}]" in hlo) == (num_rows < 16)


def operations_of(function):
    library = function.get_concrete_function().graph.as_graph_def().library
    return {node.op for part in library.function for node in part.node_def}


def rounded(x):
    return np.float64(tf.cast(tf.cast(x, "bfloat16"), "float32"))
