"""Products in bfloat16 in graphs that are only run: against NumPy in float64, for one row and for several.

They are in bfloat16 where the processor and TensorFlow's oneDNN round a sum once, else in float32. What is promised of a row
in two batches is that of bfloat16: a sum in another order may be rounded to the neighbour.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers_translators import in_new_process
from keras import ops

from keras_attn.layers import FeedForward, TokenEmbedding
from keras_attn.layers.projection import product
from keras_attn.ops import bfloat16_product, compiled_scope, inference_scope

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="the products are of TensorFlow's graphs"
)

K, N = 23, 7
# Two neighbours in bfloat16 differ by no more than this share of them.
NEIGHBOURS = 2.0**-7


def in_graph(function, size, dtype="bfloat16"):
    def traced(rows):
        with inference_scope():
            return function(rows)

    return tf.function(traced, [tf.TensorSpec([None, size], dtype)], autograph=False)


@pytest.mark.parametrize("num_rows", [0, 1, 2, 5])
def test_it_is_the_product_rounded_once_at_most(num_rows):
    rng = np.random.default_rng(3)
    rows, matrix = (
        tf.cast(rng.normal(size=size).astype("float32"), "bfloat16") for size in ((num_rows, K), (K, N))
    )
    found = in_graph(lambda rows: bfloat16_product(rows, matrix), K)(rows)
    assert (found.dtype, found.shape) == (tf.float32, (num_rows, N))
    expected = np.float64(rows) @ np.float64(matrix)
    assert np.all(np.abs(found - expected) <= 2.0**-8 * np.abs(expected) + 1e-6)


def test_a_function_that_is_traced_within_another_finds_out_by_itself():
    """One that took the tensor of the other's graph could not be called alone, nor be saved: exports of several signatures."""
    matrix = tf.ones([K, N], "bfloat16")
    inner = in_graph(lambda rows: bfloat16_product(rows, matrix), K)
    outer = in_graph(lambda rows: bfloat16_product(rows, matrix) + inner(rows), K)
    rows = tf.ones([3, K], "bfloat16")
    np.testing.assert_array_equal(outer(rows), np.full((3, N), 2.0 * K))
    captures = inner.get_concrete_function().captured_inputs
    assert all(isinstance(tensor, tf.__internal__.EagerTensor) for tensor in captures)
    np.testing.assert_array_equal(inner(rows), np.full((3, N), float(K)))


def test_biases_are_added_in_float32_and_a_row_is_the_same_in_any_batch():
    size = 254  # times 263 it is large enough
    layer = FeedForward(263, bias_initializer="random_normal", dtype="float32")
    layer.build((None, size))
    for part in (layer.intermediate_dense, layer.output_dense):
        part.store_in_bfloat16()
    run = in_graph(layer, size, "float32")
    rows = np.random.default_rng(4).normal(size=(5, size)).astype("float32")
    assert multiplies_in_bfloat16(run)
    together = run(tf.constant(rows)).numpy()
    for row in range(5):
        alone = run(tf.constant(rows[row : row + 1]))[0]
        np.testing.assert_allclose(alone, together[row], atol=NEIGHBOURS * np.abs(together).max())
    kernels, biases = zip(
        *[(part.kernel, part.bias) for part in (layer.intermediate_dense, layer.output_dense)]
    )
    hidden = rounded(np.float64(rounded(rows)) @ np.float64(kernels[0])) + np.float64(biases[0])
    expected = rounded(np.float64(rounded(np.maximum(hidden, 0))) @ np.float64(kernels[1])) + np.float64(
        biases[1]
    )
    np.testing.assert_allclose(together, expected, atol=NEIGHBOURS * np.abs(expected).max())


@pytest.mark.sampled(1)
@pytest.mark.parametrize("knows_rows", [True, False])
@pytest.mark.parametrize("num_rows", [1, 3, 17])
def test_xla_sums_in_float32_and_casts_the_matrix_for_few_rows_only(num_rows, knows_rows):
    rng = np.random.default_rng(6)
    rows, kernel = (
        tf.cast(rng.normal(size=size).astype("float32"), "bfloat16") for size in ((num_rows, K), (K, N))
    )

    def traced(rows):
        with inference_scope(), compiled_scope():
            return product(rows, kernel)

    compiled = with_xla(traced, rows, knows_rows)
    found, expected = np.float64(compiled(rows)), np.float64(rows) @ np.float64(kernel)
    np.testing.assert_allclose(
        found, expected, rtol=1e-5, atol=1e-5
    )  # not rounded, however many rows there are
    hlo = compiled.experimental_get_compiler_ir(rows)(stage="optimized_hlo")
    assert (f"f32[{K},{N}]" in hlo) == (num_rows < 16)
    assert "conditional" not in hlo


@pytest.mark.parametrize("num_rows", [1, 2, 33])
def test_logits_of_a_stored_table_are_rounded_once_at_most_and_the_same_in_any_batch(num_rows):
    vocabulary_size, size = 509, 131  # together large enough
    embedding = TokenEmbedding(vocabulary_size, size, dtype="float32")
    embedding.build()
    embedding.store_in_bfloat16()
    run = in_graph(lambda rows: embedding(rows[:, None], reverse=True)[:, 0], size, "float32")
    rows = np.random.default_rng(5).normal(size=(33, size)).astype("float32")
    found, together = run(tf.constant(rows[:num_rows])), run(tf.constant(rows))
    assert found.dtype == tf.float32
    assert multiplies_in_bfloat16(run)
    np.testing.assert_allclose(found, together[:num_rows], rtol=NEIGHBOURS, atol=1e-5)
    expected = np.float64(rounded(rows[:num_rows])) @ np.float64(embedding.embeddings).T
    np.testing.assert_allclose(found, expected, rtol=2.0**-8, atol=1e-5)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("knows_rows", [True, False])
@pytest.mark.parametrize("num_rows", [1, 7, 33])
def test_xla_multiplies_by_a_stored_table_in_bfloat16_and_does_not_round_the_logits(num_rows, knows_rows):
    vocabulary_size, size = 509, 131
    embedding = TokenEmbedding(vocabulary_size, size, dtype="float32")
    embedding.build()
    embedding.store_in_bfloat16()
    rows = np.random.default_rng(7).normal(size=(num_rows, 1, size)).astype("float32")

    def traced(rows):
        with inference_scope(), compiled_scope():
            return embedding(rows, reverse=True)

    compiled = with_xla(traced, rows, knows_rows)
    expected = np.float64(rounded(rows)) @ np.float64(embedding.embeddings).T
    np.testing.assert_allclose(compiled(tf.constant(rows)), expected, rtol=1e-5, atol=1e-5)
    hlo = compiled.experimental_get_compiler_ir(tf.constant(rows))(stage="optimized_hlo")
    # A single row is multiplied by each number of the table where it is read, in a loop.
    assert (f"f32[{vocabulary_size},{size}]" in hlo) == (num_rows == 1)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("tie_weights", [True, False])
@pytest.mark.parametrize(("num_rows", "num_hypotheses"), [(1, 1), (5, 1), (2, 3), (37, 1)])
def test_xla_takes_the_product_for_few_rows_where_they_are_known_to_it_alone(
    num_rows, num_hypotheses, tie_weights, monkeypatch
):
    monkeypatch.setattr("keras_attn.layers.embeddings._LARGE_TABLE", 1)
    vocabulary_size, size = 14, 22
    embedding = TokenEmbedding(vocabulary_size, size, tie_weights=tie_weights, dtype="float32")
    embedding.build()
    rows = np.random.default_rng(8).normal(size=(num_rows, num_hypotheses, size)).astype("float32")

    def traced(rows):
        with inference_scope(), compiled_scope():
            return embedding(rows, reverse=True)

    compiled = with_xla(traced, rows, knows_rows=False)
    weights = embedding.embeddings if tie_weights else ops.transpose(embedding.reverse_embeddings)
    expected = np.float64(rows) @ np.float64(weights).T
    np.testing.assert_allclose(compiled(tf.constant(rows)), expected, rtol=1e-5, atol=1e-5)
    hlo = compiled.experimental_get_compiler_ir(tf.constant(rows))(stage="optimized_hlo")
    is_few = 3 <= num_rows * num_hypotheses <= 32
    parts = (2, vocabulary_size // 2, size) if tie_weights else (2, size // 2, vocabulary_size)
    assert (f"f32[{','.join(map(str, parts))}]" in hlo) == is_few
    assert "conditional" not in hlo


def with_xla(function, rows, knows_rows):
    """A compiled function of rows; tracing knows how many there are, or only the compiler does."""
    spec = tf.TensorSpec(rows.shape if knows_rows else [None, *rows.shape[1:]], rows.dtype)
    return tf.function(function, [spec], jit_compile=True, autograph=False)


def multiplies_in_bfloat16(function):
    """Whether a graph has such a product in one of its branches, where it does not find out which to take."""
    library = function.get_concrete_function().graph.as_graph_def().library
    nodes = [node for part in library.function for node in part.node_def]
    products = [node for node in nodes if node.op in ("Einsum", "MatMul", "_FusedMatMul")]
    return any(node.attr["T"].type == tf.bfloat16.as_datatype_enum for node in products)


def rounded(x):
    return np.float64(tf.cast(tf.cast(x, "bfloat16"), "float32"))


@pytest.mark.extended
@pytest.mark.parametrize("reduce", ["sum"])
def test_xla_reduces_a_product(reduce):
    """It ended the process on processors with AMX, for many rows and nothing between the product and the reduction."""
    code = f"""
import numpy as np
import tensorflow as tf
from keras import ops

from keras_attn.layers.projection import product
from keras_attn.ops import compiled_scope, inference_scope

rows, matrix = (tf.cast(np.random.default_rng(8).normal(size=size), "bfloat16") for size in ((67, 127), (127, 251)))

def traced(rows):
    with inference_scope(), compiled_scope():
        return ops.{reduce}(product(rows, matrix), axis=-1)

found = tf.function(traced, jit_compile=True, autograph=False)(rows)
expected = (np.float64(rows) @ np.float64(matrix)).{reduce}(axis=-1)
np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
print("true")
"""
    assert in_new_process(code)
