"""Windows of an image against their definition, one pixel at a time."""

import numpy as np
import pytest
from helpers_layers import BACKEND, compiled
from keras import ops

from keras_attn.ops import partition_windows, reverse_windows, window_mask, window_position_bias

WINDOW = (3, 5)
# A rest in both axes, and in one; whole windows; one window in an axis, exactly and with a rest; smaller than a window.
SIZES = [(11, 13), (2, 13), (6, 10), (7, 10), (6, 11), (3, 17), (7, 5), (3, 5), (2, 3), (1, 1)]
SIZES = SIZES[:3] if BACKEND == "jax" else SIZES  # it compiles every op for every size
SHIFTS = [(0, 0), (1, 2), (2, 0), (0, 4), (2, 4)]


def numbered(height, width):
    """An image (1, height, width, 1) whose pixels hold their numbers, from 1 on."""
    return np.arange(1, height * width + 1).reshape(1, height, width, 1)


def cell(row, column, sizes, shift_size):
    """The cell of the shifted grid that a pixel stands in; the lines before the first cell make cells of their own."""
    return tuple(
        (at - (shift if size > window else 0)) // window
        for at, size, window, shift in zip((row, column), sizes, WINDOW, shift_size)
    )


@pytest.mark.sampled(12)
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("shift_size", SHIFTS)
def test_every_pixel_is_in_one_window_and_comes_back(sizes, shift_size):
    image = numbered(*sizes)
    windows = np.asarray(partition_windows(ops.convert_to_tensor(image), WINDOW, shift_size))
    assert windows.shape == (1, -(-sizes[0] // 3) * -(-sizes[1] // 5), 15, 1)
    filled = windows[windows > 0]
    np.testing.assert_array_equal(np.sort(filled), image.ravel())
    again = reverse_windows(ops.convert_to_tensor(windows), *sizes, WINDOW, shift_size)
    np.testing.assert_array_equal(again, image)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("shift_size", SHIFTS)
@pytest.mark.parametrize("padded", [False, True])
def test_two_pixels_are_neighbours_in_one_cell_of_the_grid(sizes, shift_size, padded, rng):
    real = rng.random((1, *sizes)) < 0.7 if padded else np.ones((1, *sizes), bool)
    windows = np.asarray(partition_windows(ops.convert_to_tensor(numbered(*sizes)), WINDOW, shift_size))
    mask = window_mask(*sizes, WINDOW, shift_size, ops.convert_to_tensor(real) if padded else None)
    mask = np.ones((*windows.shape[:2], 15, 15), bool) if mask is None else np.asarray(mask)
    assert mask.shape == (*windows.shape[:2], 15, 15)
    pairs = {
        (int(window[query, 0]), int(window[key, 0]))
        for window, allowed in zip(windows[0], mask[0])
        for query, key in np.argwhere(allowed)
    }
    cells = {
        number: cell(row, column, sizes, shift_size)
        for (_, row, column, _), number in np.ndenumerate(numbered(*sizes))
        if real[0, row, column]
    }
    assert pairs == {(query, key) for query in cells for key in cells if cells[query] == cells[key]}


@pytest.mark.parametrize(("sizes", "shift_size"), [((6, 10), (0, 0)), ((3, 10), (2, 0)), ((3, 5), (1, 2))])
def test_there_is_no_mask_where_all_pixels_of_a_window_are_neighbours(sizes, shift_size):
    assert window_mask(*sizes, WINDOW, shift_size) is None


def test_windows_and_their_pixels_are_counted_row_by_row():
    windows = partition_windows(ops.convert_to_tensor(numbered(4, 6)), (2, 3))
    np.testing.assert_array_equal(
        np.asarray(windows)[0, :, :, 0],
        [[1, 2, 3, 7, 8, 9], [4, 5, 6, 10, 11, 12], [13, 14, 15, 19, 20, 21], [16, 17, 18, 22, 23, 24]],
    )


def test_a_shifted_grid_starts_below_and_to_the_right_and_ends_with_the_first_lines():
    windows = partition_windows(ops.convert_to_tensor(numbered(4, 6)), (2, 3), (1, 2))
    np.testing.assert_array_equal(
        np.asarray(windows)[0, :, :, 0],
        [[9, 10, 11, 15, 16, 17], [12, 7, 8, 18, 13, 14], [21, 22, 23, 3, 4, 5], [24, 19, 20, 6, 1, 2]],
    )


def test_images_of_a_batch_and_features_stay_apart(rng):
    images = rng.normal(size=(2, 7, 13, 11)).astype("float32")
    windows = np.asarray(partition_windows(ops.convert_to_tensor(images), WINDOW, (1, 2)))
    assert windows.shape == (2, 9, 15, 11)
    for i in range(2):
        for d in range(11):
            alone = partition_windows(
                ops.convert_to_tensor(images[i : i + 1, :, :, d : d + 1]), WINDOW, (1, 2)
            )
            np.testing.assert_array_equal(windows[i : i + 1, :, :, d : d + 1], alone)


def test_an_empty_batch_has_windows_of_the_same_shape():
    windows = partition_windows(ops.zeros((0, 7, 13, 11)), WINDOW)
    assert tuple(windows.shape) == (0, 9, 15, 11)
    assert tuple(reverse_windows(windows, 7, 13, WINDOW).shape) == (0, 7, 13, 11)


def test_compiled_windows_are_the_eager_ones(rng):
    images = ops.convert_to_tensor(rng.normal(size=(2, 7, 13, 11)).astype("float32"))

    def both_ways(arrays):
        windows = partition_windows(arrays["images"], WINDOW, (1, 2))
        return windows, window_mask(7, 13, WINDOW, (1, 2)), reverse_windows(windows, 7, 13, WINDOW, (1, 2))

    windows, mask, again = compiled(both_ways)({"images": images})
    np.testing.assert_array_equal(windows, partition_windows(images, WINDOW, (1, 2)))
    np.testing.assert_array_equal(mask, window_mask(7, 13, WINDOW, (1, 2)))
    np.testing.assert_array_equal(again, images)


def test_the_bias_of_a_pair_is_that_of_the_way_from_key_to_query(rng):
    table = rng.normal(size=(5 * 9, 2)).astype("float32")
    bias = np.asarray(window_position_bias(ops.convert_to_tensor(table), WINDOW))
    assert bias.shape == (2, 15, 15)
    by_way = table.reshape(5, 9, 2)
    for query, key in np.ndindex(15, 15):
        down, across = query // 5 - key // 5, query % 5 - key % 5
        np.testing.assert_array_equal(bias[:, query, key], by_way[down + 2, across + 4])


def test_the_bias_of_two_by_two_pixels_by_hand():
    # Ways (-1, -1), (-1, 0), (-1, 1), (0, -1), ... have the numbers 0, 1, 2, 3, ...
    bias = window_position_bias(ops.convert_to_tensor(np.arange(9.0)[:, None]), (2, 2))
    np.testing.assert_array_equal(
        np.asarray(bias)[0], [[4, 3, 1, 0], [5, 4, 2, 1], [7, 6, 4, 3], [8, 7, 5, 4]]
    )
