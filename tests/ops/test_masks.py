"""Masks against their definitions, one pair of positions at a time."""

import numpy as np
import pytest

from keras_attn.ops import (
    as_boolean_mask,
    causal_mask,
    check_mask_shape,
    combine_masks,
    padding_mask,
    sliding_window_mask,
)


def by_hand(allowed, queries, keys):
    return np.array([[allowed(int(q), int(k)) for k in keys] for q in queries])


POSITIONS = [
    (range(5), range(5)),
    (range(3), range(7)),
    (range(4, 7), range(7)),
    ([2], range(11)),
    ([5, 0, 3], [1, 4]),
]


@pytest.mark.parametrize(("queries", "keys"), POSITIONS)
def test_causal_mask_compares_positions(queries, keys):
    actual = causal_mask(np.array(queries), np.array(keys))
    np.testing.assert_array_equal(actual, by_hand(lambda q, k: k <= q, queries, keys))


@pytest.mark.parametrize(("queries", "keys"), POSITIONS)
@pytest.mark.parametrize("window", [1, 2, 3, 13])
def test_sliding_window_reaches_window_minus_one_to_either_side(queries, keys, window):
    actual = sliding_window_mask(np.array(queries), np.array(keys), window)
    np.testing.assert_array_equal(actual, by_hand(lambda q, k: -window < q - k < window, queries, keys))


def test_positions_of_a_batch_give_a_mask_each():
    positions = np.array([[0, 1, 2], [3, 0, 1]])
    actual = np.asarray(causal_mask(positions, positions))
    assert actual.shape == (2, 3, 3)
    for row, mask in zip(positions, actual):
        np.testing.assert_array_equal(mask, by_hand(lambda q, k: k <= q, row, row))


@pytest.mark.parametrize("pad", [0, 3])
def test_padding_mask_is_true_at_real_tokens(pad):
    np.testing.assert_array_equal(
        padding_mask(np.array([[5, 3, 0], [0, 3, 3]]), pad),
        [[True, True, False], [False, True, True]]
        if pad == 0
        else [[True, False, True], [True, False, False]],
    )


def test_combine_masks_is_the_conjunction_of_what_is_given():
    a, b = np.array([[True, True, False]]), np.array([[True], [False]])
    assert combine_masks() is None
    assert combine_masks(None, None) is None
    np.testing.assert_array_equal(combine_masks(None, a), a)
    np.testing.assert_array_equal(combine_masks(a, None, b), [[True, True, False], [False, False, False]])


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int32", "int64", "float16", "float32"])
def test_zeros_and_ones_of_any_dtype_are_booleans(dtype):
    mask = as_boolean_mask(np.array([[1, 0, 1]], dtype), "attention_mask")
    assert "bool" in str(mask.dtype)
    np.testing.assert_array_equal(mask, [[True, False, True]])


@pytest.mark.parametrize("values", [[0.0, -1e9], [1.0, 0.5], [0, 2], [0.0, -np.inf], [1.0, np.nan]])
def test_other_values_are_refused_with_the_values(values):
    wrong = values[1]
    with pytest.raises(ValueError, match=r"`attention_mask` must be boolean, or hold only 0 and 1") as error:
        as_boolean_mask(np.array([values]), "attention_mask")
    assert str([wrong]) in str(error.value)


@pytest.mark.parametrize(
    ("shape", "wanted", "exact"),
    [
        ((5, 7), (2, 3, 5, 7), 0),
        ((2, 1, 5, 7), (2, 3, 5, 7), 0),
        ((1, 7), (5, 7), 1),
        ((None, 7), (2, None), 0),
    ],
)
def test_shapes_that_broadcast_pass(shape, wanted, exact):
    check_mask_shape(np.broadcast_to(True, shape) if None not in shape else Shaped(shape), wanted, "m", exact)


@pytest.mark.parametrize(
    ("shape", "wanted", "exact", "verb"),
    [
        ((5, 6), (2, 3, 5, 7), 0, "broadcast to"),
        ((4, 2, 3, 5, 7), (2, 3, 5, 7), 0, "broadcast to"),
        ((3, 1, 5, 7), (2, 3, 5, 7), 0, "broadcast to"),
        ((2, 1), (2, 7), 1, "have"),
    ],
)
def test_shapes_that_do_not_are_refused_with_both(shape, wanted, exact, verb):
    with pytest.raises(ValueError, match="`m` must") as error:
        check_mask_shape(np.broadcast_to(True, shape), wanted, "m", exact)
    assert str(error.value) == f"`m` must {verb} shape {wanted}. Received: m of shape {shape}."


class Shaped:
    def __init__(self, shape):
        self.shape = shape
