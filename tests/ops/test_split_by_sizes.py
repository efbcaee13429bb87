"""Parts of a tensor along an axis, against slices of NumPy."""

import keras
import numpy as np
import pytest

from keras_attn.ops import split_by_sizes

X = np.arange(3 * 11 * 5, dtype="float32").reshape(3, 11, 5)


@pytest.mark.parametrize("axis", [1, -2])
@pytest.mark.parametrize("sizes", [[11], [2, 9], [2, 2, 7], [1] * 11])
def test_parts_have_their_sizes_in_their_order(sizes, axis):
    parts = split_by_sizes(keras.ops.convert_to_tensor(X), sizes, axis)
    assert len(parts) == len(sizes)
    first = 0
    for part, size in zip(parts, sizes, strict=True):
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(part), X[:, first : first + size])
        first += size


def test_a_symbolic_tensor_has_parts():
    two, nine = split_by_sizes(keras.Input((11, 5)), [2, 9], axis=1)
    assert two.shape == (None, 2, 5)
    assert nine.shape == (None, 9, 5)
