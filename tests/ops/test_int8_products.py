"""Products of integers: against NumPy in float64, with and without XLA."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers_marks import extended_but

from keras_attn.ops import (
    Int8Matrix,
    compiled_scope,
    int8_problem,
    int8_product,
    int8_products,
    loop_form,
    step_form,
)

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="integers are multiplied in TensorFlow's graphs"
)

ROWS, K, N = 5, 23, 7


@pytest.fixture
def numbers():
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(ROWS, K)).astype("float32") * np.array([[1], [100], [1e-3], [0], [7]], "float32")
    values = rng.integers(-127, 128, (K, N)).astype("int8")
    return rows, values, rng.random((1, N)).astype("float32")


@pytest.fixture(params=["tiles", "no tiles"])
def tiles(request, monkeypatch):
    flags = frozenset({"amx_int8"} if request.param == "tiles" else ())
    monkeypatch.setattr(int8_products, "processor_flags", lambda: flags)
    return request.param == "tiles"


def _product(rows, matrix, xla, in_a_loop=False):
    if not xla and (problem := int8_problem()):
        pytest.skip(problem)

    def product(rows):
        if not xla:
            return int8_product(rows, matrix)
        with compiled_scope():
            return int8_product(rows, loop_form(matrix) if in_a_loop else matrix)

    spec = None if xla else [tf.TensorSpec([None, rows.shape[1]], tf.float32)]
    return tf.function(product, spec, jit_compile=xla, autograph=False)(tf.constant(rows)).numpy()


@pytest.mark.parametrize(
    ("form", "xla"),
    [("given", False), ("given", True), ("turned", False), ("turned", True), ("for a loop", True)],
)
def test_product_is_that_of_the_rounded_numbers(numbers, form, xla):
    rows, values, scale = numbers
    largest = np.abs(rows).max(axis=1, keepdims=True)
    rounded = np.round(rows * (np.float32(127) / np.maximum(largest, np.float32(1e-30)))).astype("float64")
    expected = rounded @ values.astype("float64") * scale * largest / 127
    matrix = Int8Matrix(values.T, scale.T) if form == "turned" else Int8Matrix(values, scale)
    matrix = Int8Matrix(tf.constant(matrix.values), tf.constant(matrix.scale))
    matrix = matrix.transposed() if form == "for a loop" else matrix
    assert matrix.is_transposed == (form != "given")
    found = _product(rows, matrix, xla)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6 * np.abs(expected).max())
    assert not found[3].any()  # a row of zeros


@pytest.mark.parametrize("xla", [False, True])
def test_a_row_is_the_same_in_any_batch(numbers, xla):
    rows, values, scale = numbers
    matrix = Int8Matrix(tf.constant(values), tf.constant(scale))
    together = _product(rows, matrix, xla)
    for row in (0, 2):
        np.testing.assert_array_equal(_product(rows[row : row + 1], matrix, xla)[0], together[row])


@pytest.mark.extended
@pytest.mark.parametrize(
    "size", extended_but([(1057, 11)], [(K, N), (1057, 11), (61, 1099)])
)  # small, deep, large
def test_xla_gives_a_row_the_same_sums_for_any_number_of_rows(size, tiles):
    rng = np.random.default_rng(7)
    rows = rng.normal(size=(9, size[0])).astype("float32")
    values, scale = rng.integers(-127, 128, size, "int8"), rng.random((1, size[1])).astype("float32")
    values[:, 0], rows[0] = 127, 1.0  # the largest sum there can be
    matrix = Int8Matrix(tf.constant(values), tf.constant(scale))
    together = _product(rows, matrix, xla=True)
    np.testing.assert_allclose(together[0, 0], 127 * size[0] * scale[0, 0], rtol=1e-6)
    for num_rows in (1, 2, 3, 7, 8):
        for in_a_loop in (False, True):
            found = _product(rows[:num_rows], matrix, xla=True, in_a_loop=in_a_loop)
            np.testing.assert_array_equal(found, together[:num_rows])


def test_what_a_loop_multiplies_by_is_turned_once(numbers, tiles):
    _, values, scale = numbers
    given = Int8Matrix(tf.constant(values), tf.constant(scale))
    assert loop_form(given) is given  # in a graph that is not for XLA
    with compiled_scope():
        made = loop_form(given)
        large = loop_form(Int8Matrix(tf.ones([2, 2**15 + 1], tf.int8), tf.ones([1, 2**15 + 1])))
    assert made.is_transposed != tiles
    np.testing.assert_array_equal(made.transposed_values if tiles else made.values, values.T.ravel())
    assert large.transposed_values is None
    assert large.is_transposed != tiles


def test_xla_multiplies_integers_of_8_bits_in_a_loop(tiles):
    """XLA casts a matrix to 32 bits, and multiplies four times as many bytes, if it would have to read it by columns."""
    values = np.random.default_rng(5).integers(-127, 128, (61, 67), "int8")
    matrix = Int8Matrix(tf.constant(values), tf.ones((1, 67)))

    def steps(rows):
        with compiled_scope():
            made = loop_form(matrix)
            return tf.while_loop(
                lambda rows: tf.reduce_sum(rows) < 100.0,
                lambda rows: int8_product(rows, made)[:, :61],
                [rows],
            )

    compiled = tf.function(steps, jit_compile=True, autograph=False)
    hlo = compiled.experimental_get_compiler_ir(tf.ones([9, 61]))(stage="optimized_hlo")
    assert re.search(r"s8\[(61,67|67,61|4087)\]", hlo)
    assert not re.search(r"s32\[(67,61|61,67|4087)\]", hlo)


def test_small_matrices_are_multiplied_as_floats_but_for_xla():
    large, small = (Int8Matrix(tf.ones([256, n], tf.int8), tf.fill([1, n], 0.5)) for n in (257, 256))
    assert step_form(large) is large
    np.testing.assert_array_equal(step_form(small), np.full([256, 256], 0.5))
    with compiled_scope():
        assert step_form(small) is small


def test_a_small_transposed_matrix_is_turned(numbers):
    _, values, scale = numbers
    matrix = Int8Matrix(tf.constant(values.T), tf.constant(scale.T))
    np.testing.assert_allclose(step_form(matrix), values * scale, rtol=1e-6)


@pytest.mark.parametrize("is_transposed", [False, True])
def test_a_matrix_that_is_another_in_each_run(numbers, is_transposed):
    """oneDNN keeps a constant matrix as it arranged it when the graph was first run."""
    if problem := int8_problem():
        pytest.skip(problem)
    rows = numbers[0]
    size = (None, K) if is_transposed else (K, None)
    scale_size = (None, 1) if is_transposed else (1, None)
    specs = [tf.TensorSpec([None, K]), tf.TensorSpec(size, tf.int8), tf.TensorSpec(scale_size)]
    product = tf.function(
        lambda rows, values, scale: int8_product(rows, Int8Matrix(values, scale), is_constant=False),
        specs,
        autograph=False,
    )
    rng = np.random.default_rng(5)
    for width in (N, N, 2 * N + 1):
        values = rng.integers(-127, 128, (K, width)).astype("int8")
        scale = rng.random((1, width)).astype("float32")
        given = (values.T, scale.T) if is_transposed else (values, scale)
        expected = _product(rows, Int8Matrix(tf.constant(values), tf.constant(scale)), xla=False)
        np.testing.assert_array_equal(product(rows, *given), expected)
