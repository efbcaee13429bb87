import keras
import numpy as np
import pytest
from keras import ops

from keras_attn.ops import entries_at, top_k, top_k_and_normalizer


@pytest.mark.parametrize("k", [1, 2, 7])
# 1,021 is searched as it is; 8,000 has columns that leave no gap; 4,099 is prime, so the last row is filled up.
@pytest.mark.parametrize("size", [11, 1021, 4099, 8000])
def test_the_largest_values_and_their_indices(k, size):
    x = np.random.default_rng(size).permutation(3 * 5 * size).reshape(3, 5, size).astype("float32")
    values, indices = top_k(ops.convert_to_tensor(x), k)
    expected = np.argsort(-x, axis=-1)[..., :k]
    np.testing.assert_array_equal(ops.convert_to_numpy(indices), expected)
    np.testing.assert_array_equal(ops.convert_to_numpy(values), np.take_along_axis(x, expected, axis=-1))
    assert keras.backend.standardize_dtype(indices.dtype) == "int32"


@pytest.mark.sampled(2)
@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="graphs of TensorFlow have unknown sizes")
@pytest.mark.parametrize("k", [1, 7, 67])
@pytest.mark.parametrize("size", [67, 128, 1021])
def test_rows_of_a_length_that_is_unknown_before_the_run(k, size):
    import tensorflow as tf

    x = np.random.default_rng(size).permutation(3 * 5 * size).reshape(3, 5, size).astype("float32")
    for excluded in ((), (0, 65, 66, size)):
        graph = tf.function(
            lambda x, of_call=excluded: top_k(x, k, of_call),
            [tf.TensorSpec([None, 5, None])],
            autograph=False,
        )
        values, indices = graph(x)
        allowed = np.setdiff1d(np.arange(size), excluded)
        expected = allowed[np.argsort(-x[..., allowed], axis=-1)[..., :k]]
        count = expected.shape[-1]  # 64 of 67, if 3 are excluded
        np.testing.assert_array_equal(indices[..., :count], expected)
        np.testing.assert_array_equal(values[..., :count], np.take_along_axis(x, expected, axis=-1))
        assert np.isneginf(values[..., count:]).all()


@pytest.mark.parametrize("k", [1, 7])
@pytest.mark.parametrize("size", [11, 4099, 8000])
@pytest.mark.parametrize("num_excluded", [0, 3, 4, 9])
def test_the_largest_values_without_some_and_the_normalizer_of_all(k, size, num_excluded):
    x = np.random.default_rng(size).permutation(2 * 5 * size).reshape(2, 5, size) / size
    x = np.where(np.arange(size) % 5 == 1, x + 90, x).astype("float32")  # some columns are all large
    # The largest of a row, and an index that does not exist.
    excluded = (-1, *np.argsort(-x[1, 2])[:num_excluded].tolist())
    values, indices, normalizer = top_k_and_normalizer(ops.convert_to_tensor(x), min(k, size), excluded)
    allowed = np.setdiff1d(np.arange(size), excluded)
    expected = allowed[np.argsort(-x[..., allowed], axis=-1)[..., :k]]
    count = expected.shape[-1]
    np.testing.assert_array_equal(ops.convert_to_numpy(indices)[..., :count], expected)
    np.testing.assert_array_equal(
        ops.convert_to_numpy(values)[..., :count], np.take_along_axis(x, expected, axis=-1)
    )
    assert np.isneginf(ops.convert_to_numpy(values)[..., count:]).all()
    wide = x.astype("float64")
    expected = np.log(np.sum(np.exp(wide - 95), axis=-1, keepdims=True)) + 95
    np.testing.assert_allclose(ops.convert_to_numpy(normalizer), expected, rtol=1e-6)


@pytest.mark.parametrize("k", [1, 7])
def test_the_largest_values_without_indices_that_hold_the_largest(k):
    size = 4000
    x = np.random.default_rng(3).normal(size=(2, size)).astype("float32")
    best = x.argmax(axis=-1)
    excluded = [*range(5), *best.tolist(), -1, size + 3]
    x[:, :5] = 50.0
    values, indices = (ops.convert_to_numpy(y) for y in top_k(ops.convert_to_tensor(x), k, excluded))
    allowed = np.setdiff1d(np.arange(size), excluded)
    expected = allowed[np.argsort(-x[:, allowed], axis=-1)[:, :k]]
    np.testing.assert_array_equal(indices, expected)
    np.testing.assert_array_equal(values, np.take_along_axis(x, expected, axis=-1))


@pytest.mark.parametrize("k", [1, 7])
def test_equal_values_are_chosen_once_each(k):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 3, (5, 4099)).astype("float32")
    values, indices = (ops.convert_to_numpy(y) for y in top_k(ops.convert_to_tensor(x), k))
    np.testing.assert_array_equal(values, np.full((5, k), 2.0))
    assert all(len(set(row)) == k for row in indices.tolist())
    np.testing.assert_array_equal(np.take_along_axis(x, indices, axis=-1), values)


def test_the_largest_may_be_impossible_all_of_them():
    x = np.full((2, 4099), -1e30, "float32")
    x[1, 4098] = -np.inf
    values, indices = (ops.convert_to_numpy(y) for y in top_k(ops.convert_to_tensor(x), 3))
    np.testing.assert_array_equal(values, np.full((2, 3), -1e30, "float32"))
    assert (indices < 4099).all()


def test_no_rows_have_no_largest_values():
    values, indices = top_k(ops.zeros((0, 2, 4099)), 3)
    assert tuple(values.shape) == tuple(indices.shape) == (0, 2, 3)


@pytest.mark.parametrize("rest", [(), (7,), (7, 2)])
def test_entries_at_indices_that_differ_from_row_to_row(rest):
    rng = np.random.default_rng(1)
    x, indices = rng.normal(size=(5, 3, *rest)), rng.integers(0, 3, (5, 11))
    found = entries_at(ops.convert_to_tensor(x), ops.convert_to_tensor(indices.astype("int32")))
    expected = np.stack([row[of_row] for row, of_row in zip(x, indices)])
    np.testing.assert_allclose(ops.convert_to_numpy(found), expected, rtol=1e-6)
