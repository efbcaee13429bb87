"""PatchEmbedding against a convolution of Keras', its positions and special tokens against sums written out."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_attn.layers import AxialRotaryEmbedding, MultiHeadAttention, PatchEmbedding
from keras_attn.ops import grid_positions, resized_grid, sinusoidal_encoding

C, D = 2, 12
PATCH = (3, 5)


def make_layer(**options):
    keras.utils.set_random_seed(7)
    layer = PatchEmbedding(PATCH, D, **{"image_size": (6, 15), "num_channels": C, **options})
    layer.build()
    for weight in layer.weights:
        weight.assign(np.random.default_rng(len(weight.path)).normal(size=weight.shape))
    return layer


def images(height, width):
    return np.random.default_rng(height).normal(size=(2, height, width, C)).astype("float32")


def run(layer, x, **options):
    return ops.convert_to_numpy(layer(ops.convert_to_tensor(x), **options))


def convolved(layer, x):
    kernel = ops.reshape(layer.projection_dense.kernel, (*PATCH, C, D))
    y = ops.conv(
        ops.convert_to_tensor(x), kernel, strides=PATCH, padding="valid", data_format="channels_last"
    )
    y = ops.convert_to_numpy(y + layer.projection_dense.bias)
    return y.reshape(len(x), -1, D)


@pytest.mark.parametrize(("height", "width"), [(6, 15), (8, 19), (3, 5)])
def test_the_projection_is_a_convolution(height, width):
    layer = make_layer(position=None, use_class_token=False)
    x = images(height, width)
    np.testing.assert_allclose(run(layer, x), convolved(layer, x), atol=1e-5)
    assert run(layer, x).shape == tuple(layer.compute_output_shape(x.shape))


def test_padded_images_keep_their_edges():
    layer = make_layer(position=None, use_class_token=False, pad=True)
    x = images(7, 11)
    padded = np.pad(x, [(0, 0), (0, 2), (0, 4), (0, 0)])
    np.testing.assert_allclose(run(layer, x), convolved(layer, padded), atol=1e-5)
    assert run(layer, x).shape == tuple(layer.compute_output_shape(x.shape)) == (2, 9, D)


def test_special_tokens_come_first_and_registers_have_no_position():
    layer = make_layer(use_distillation_token=True, num_register_tokens=3)
    assert layer.num_special_tokens == 5
    x = images(6, 15)
    y, positions = run(layer, x), ops.convert_to_numpy(layer.position_embeddings)
    tokens = np.concatenate([layer.class_token, layer.distillation_token]) + positions[:2]
    for row in y:
        np.testing.assert_allclose(row[:2], tokens, atol=1e-6)
        np.testing.assert_array_equal(row[2:5], ops.convert_to_numpy(layer.register_tokens))
    np.testing.assert_allclose(y[:, 5:], convolved(layer, x) + positions[2:], atol=1e-5)


def test_learned_positions_are_resized_for_other_images():
    layer = make_layer()
    x = images(13, 10)
    positions = layer.position_embeddings[1:]
    positions = resized_grid(ops.reshape(positions, (2, 3, D)), (4, 2))
    expected = convolved(layer, x) + ops.convert_to_numpy(positions).reshape(8, D)
    np.testing.assert_allclose(run(layer, x)[:, 1:], expected, atol=1e-5)


def test_sines_of_rows_and_of_columns():
    layer = make_layer(position="sinusoidal", image_size=None)
    x = images(6, 15)
    row = ops.convert_to_numpy(sinusoidal_encoding(np.array([0, 0, 0, 1, 1, 1]), D // 2))
    column = ops.convert_to_numpy(sinusoidal_encoding(np.array([0, 1, 2, 0, 1, 2]), D // 2))
    expected = convolved(layer, x) + np.concatenate([row, column], axis=-1)
    np.testing.assert_allclose(run(layer, x)[:, 1:], expected, atol=1e-5)


def test_axial_rotation_depends_on_distances_in_rows_and_columns_alone():
    rotary = AxialRotaryEmbedding()
    query, key = (np.random.default_rng(i).normal(size=8).astype("float32") for i in (1, 2))
    positions = ops.convert_to_numpy(grid_positions(5, 7)).reshape(5, 7)

    def product(of_query, of_key):
        heads = [np.broadcast_to(x, (1, 1, 1, 8)) for x in (query, key)]
        turned = [
            ops.convert_to_numpy(rotary(ops.convert_to_tensor(x), positions=np.array([positions[place]])))
            for x, place in zip(heads, (of_query, of_key))
        ]
        return (turned[0] * turned[1]).sum()

    assert abs(product((0, 1), (2, 4)) - product((2, 3), (4, 6))) < 1e-5
    assert abs(product((0, 1), (2, 4)) - product((0, 1), (3, 4))) > 1e-3
    assert abs(product((0, 1), (2, 4)) - product((0, 1), (2, 5))) > 1e-3
    # The row turns the first half of the features alone, by the angles of the row.
    turned = ops.convert_to_numpy(
        rotary(ops.convert_to_tensor(query.reshape(1, 1, 1, 8)), positions=np.array([3 * 2**16]))
    ).ravel()
    angles = 3 * 100.0 ** -(np.arange(2) / 2)
    a, b = query[:2], query[2:4]
    expected = [a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles), query[4:]]
    np.testing.assert_allclose(turned, np.concatenate(expected), atol=1e-5)


def test_integers_are_images_too():
    layer = make_layer()
    x = np.random.default_rng(4).integers(0, 255, (2, 6, 15, C)).astype("uint8")
    np.testing.assert_array_equal(run(layer, x), run(layer, x.astype("float32")))


def test_wrong_images():
    layer = make_layer()
    with pytest.raises(ValueError, match=r"must be images of shape \(B, height, width, 2\)"):
        run(layer, np.ones((2, 6, 15, 3), "float32"))
    with pytest.raises(ValueError, match=r"must be images of shape \(B, height, width, 2\)"):
        run(layer, np.ones((6, 15, 2), "float32"))
    with pytest.raises(ValueError, match="An image must hold at least one patch"):
        run(layer, np.ones((2, 6, 4, 2), "float32"))
    attention = MultiHeadAttention(2, 6, rotary_embedding=AxialRotaryEmbedding())
    with pytest.raises(ValueError, match="divisible by 4"):
        attention.build((None, None, D), (None, None, D))
