"""Patches against slices of the image one by one, and resized positions against torch's."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_attn.ops import grid_positions, grid_size, image_patches, resized_grid, rows_and_columns


def run(function, *arguments, **options):
    return ops.convert_to_numpy(function(*map(ops.convert_to_tensor, arguments), **options))


@pytest.mark.parametrize("size", [(6, 10), (7, 14), (5, 11)])
@pytest.mark.parametrize("pad", [False, True])
def test_patches_are_pieces_of_the_image(size, pad):
    images = np.random.default_rng(1).normal(size=(2, *size, 3)).astype("float32")
    rows, columns = grid_size(size, (3, 5), pad)
    padded = np.pad(images, [(0, 0), (0, 3), (0, 5), (0, 0)])
    expected = [
        padded[:, 3 * r : 3 * r + 3, 5 * c : 5 * c + 5].reshape(2, -1)
        for r in range(rows)
        for c in range(columns)
    ]
    np.testing.assert_array_equal(
        run(image_patches, images, patch_size=(3, 5), pad=pad), np.stack(expected, axis=1)
    )
    assert (rows, columns) == ((-(-size[0] // 3), -(-size[1] // 5)) if pad else (size[0] // 3, size[1] // 5))


def test_positions_hold_rows_and_columns():
    rows, columns = map(ops.convert_to_numpy, rows_and_columns(grid_positions(2, 3, num_special_tokens=2)))
    np.testing.assert_array_equal(rows, [0, 0, 1, 1, 1, 2, 2, 2])
    np.testing.assert_array_equal(columns, [0, 0, 1, 2, 3, 1, 2, 3])


def cubic(x, a):
    x = abs(x)
    if x <= 1:
        return (a + 2) * x**3 - (a + 3) * x**2 + 1
    return a * (x**3 - 5 * x**2 + 8 * x - 4) if x < 2 else 0.0


def resized_line(values, new):
    """Bicubic interpolation of one line, as Keys' paper has it: four neighbours, those beyond an edge repeat it."""
    old, lines = len(values), []
    for i in range(new):
        centre = (i + 0.5) * old / new - 0.5
        first = int(np.floor(centre)) - 1
        neighbours = range(first, first + 4)
        lines.append(sum(cubic(j - centre, -0.75) * values[min(max(j, 0), old - 1)] for j in neighbours))
    return np.array(lines)


@pytest.mark.parametrize(("old", "new"), [((4, 5), (7, 3)), ((5, 5), (5, 5)), ((1, 3), (11, 2))])
def test_positions_are_resized_line_by_line(old, new):
    grid = np.random.default_rng(2).normal(size=(*old, 3))
    rows = resized_line(grid, new[0])
    expected = np.swapaxes(resized_line(np.swapaxes(rows, 0, 1), new[1]), 0, 1)
    np.testing.assert_allclose(run(resized_grid, grid.astype("float32"), size=new), expected, atol=2e-6)


@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize(("old", "new"), [((4, 5), (7, 3)), ((7, 7), (3, 11)), ((13, 2), (2, 5))])
def test_positions_are_resized_as_by_torch(old, new, antialias):
    torch = pytest.importorskip("torch", reason='pip install "keras_attn[peers]"')
    grid = np.random.default_rng(3).normal(size=(*old, 3)).astype("float32")
    expected = torch.nn.functional.interpolate(
        torch.tensor(grid).permute(2, 0, 1)[None], size=new, mode="bicubic", antialias=antialias
    )
    expected = expected[0].permute(1, 2, 0).numpy()
    np.testing.assert_allclose(run(resized_grid, grid, size=new, antialias=antialias), expected, atol=5e-6)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="sizes that are unknown in a graph")
def test_sizes_may_be_unknown_before_the_run():
    import tensorflow as tf

    @tf.function(input_signature=[tf.TensorSpec((None, None, None, 3))])
    def patches_and_positions(images):
        size = grid_size(ops.shape(images)[1:3], (3, 5))
        return image_patches(images, (3, 5)), resized_grid(grid, size), grid_positions(*size)

    grid = ops.convert_to_tensor(np.random.default_rng(4).normal(size=(4, 3, 2)).astype("float32"))
    images = np.random.default_rng(5).normal(size=(2, 13, 22, 3)).astype("float32")
    patches, resized, positions = patches_and_positions(images)
    np.testing.assert_array_equal(patches, run(image_patches, images, patch_size=(3, 5)))
    np.testing.assert_allclose(resized, resized_grid(grid, (4, 4)), atol=1e-6)
    np.testing.assert_array_equal(positions, grid_positions(4, 4))
