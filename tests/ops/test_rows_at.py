"""Rows at indices, against NumPy."""

import keras
import numpy as np

from keras_attn.ops import rows_at

X = np.arange(7 * 3 * 5, dtype="float32").reshape(7, 3, 5)


def test_rows_are_those_of_numpy():
    indices = np.array([[6, 0], [3, 3]], "int32")
    rows = rows_at(keras.ops.convert_to_tensor(X), keras.ops.convert_to_tensor(indices))
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(rows), X[indices])


def test_a_symbolic_tensor_has_rows():
    assert rows_at(keras.Input((5,)), keras.Input((2,), dtype="int32")).shape == (None, 2, 5)
