"""Positions counted by hand, and section 3.5 of Vaswani et al. 2017, one number at a time."""

import math

import keras
import numpy as np
import pytest
from helpers_layers import BACKEND, compiled
from keras import ops

from keras_attn.layers import SinusoidalPositionEncoding
from keras_attn.ops import segment_positions, sinusoidal_encoding, token_positions


def encoding_by_hand(position, hidden_dim, max_wavelength=10000):
    """PE(pos, 2i) = sin(pos / 10000^(2i / d)), PE(pos, 2i + 1) = cos(pos / 10000^(2i / d))."""
    row = []
    for i in range((hidden_dim + 1) // 2):
        angle = position / max_wavelength ** (2 * i / hidden_dim)
        row += [math.sin(angle), math.cos(angle)]
    return np.array(row[:hidden_dim])


@pytest.mark.parametrize("hidden_dim", [2, 7, 12, 512])
@pytest.mark.parametrize("max_wavelength", [10000, 100.0])
def test_the_encoding_equals_the_formula(hidden_dim, max_wavelength):
    positions = np.array([0, 1, 2, 17, 101])
    expected = [encoding_by_hand(p, hidden_dim, max_wavelength) for p in positions]
    actual = sinusoidal_encoding(positions, hidden_dim, max_wavelength)
    np.testing.assert_allclose(actual, expected, atol=2e-5)


def test_four_channels_by_hand():
    # At position 1 of 4 channels the angles are 1 and 1/100.
    expected = [[0.0, 1.0, 0.0, 1.0], [0.841471, 0.540302, 0.0099998, 0.99995]]
    np.testing.assert_allclose(sinusoidal_encoding(np.arange(2), 4), expected, atol=1e-6)


@pytest.mark.parametrize("shape", [(3,), (2, 5), (2, 3, 5)])
def test_the_encoding_of_positions_of_any_rank(shape):
    positions = np.arange(np.prod(shape)).reshape(shape)
    actual = np.asarray(sinusoidal_encoding(positions, 6))
    assert actual.shape == (*shape, 6)
    for index in np.ndindex(*shape):
        np.testing.assert_allclose(actual[index], encoding_by_hand(positions[index], 6), atol=1e-5)


@pytest.mark.parametrize("policy", ["float32", "float16", "bfloat16", "mixed_float16", "mixed_bfloat16"])
def test_position_5000_is_within_a_thousandth_under_every_policy(policy):
    layer = SinusoidalPositionEncoding(dtype=policy)
    x = ops.zeros((2, 3, 12), dtype=layer.compute_dtype)
    actual = layer(x, positions=np.array([4999, 5000, 5001]))
    assert keras.backend.standardize_dtype(actual.dtype) == layer.compute_dtype
    expected = [[encoding_by_hand(p, 12) for p in (4999, 5000, 5001)]] * 2
    # bfloat16 keeps 8 bits: half a unit in the last place of a number just below 1 is 2 ** -9.
    tolerance = 2**-9 if "bfloat16" in policy else 1e-3
    np.testing.assert_allclose(np.asarray(ops.cast(actual, "float32")), expected, atol=tolerance)


def counted(row):
    positions = []
    for i, segment in enumerate(row):
        positions.append(positions[-1] + 1 if i and segment == row[i - 1] else 0)
    return positions


@pytest.mark.parametrize("jit", [False, True])
def test_positions_start_again_with_every_run(rng, jit):
    lengths = rng.integers(1, 5, (3, 11))
    rows = [np.repeat(np.arange(11) % 4, row)[:13] for row in lengths]
    segment_ids = np.stack(rows).astype("int32")
    expected = [counted(row) for row in rows]
    np.testing.assert_array_equal(ops.convert_to_numpy(segment_positions(segment_ids)), expected)
    function = compiled(segment_positions, jit=jit)
    np.testing.assert_array_equal(
        ops.convert_to_numpy(function(ops.convert_to_tensor(segment_ids))), expected
    )


def test_an_empty_batch_and_unknown_sizes():
    assert segment_positions(np.zeros((0, 7), "int32")).shape == (0, 7)
    if BACKEND == "tensorflow":
        import tensorflow as tf

        signature = [tf.TensorSpec((None, None), tf.int32)]
        function = tf.function(segment_positions, input_signature=signature)
        for row in ([5, 5, 6, 0, 0], [1, 2, 2]):
            np.testing.assert_array_equal(function(tf.constant([row])), [counted(row)])


@pytest.mark.parametrize("packed", [False, True])
def test_token_positions_count_the_real_tokens_before_each(rng, packed):
    is_token = rng.random((5, 13)) < 0.6
    segment_ids = np.sort(rng.integers(1, 4, (5, 13)), axis=1) if packed else np.ones((5, 13), int)
    actual = ops.convert_to_numpy(token_positions(is_token, segment_ids if packed else None))
    for row, ids, positions in zip(is_token, segment_ids, actual):
        for number in set(ids):
            np.testing.assert_array_equal(
                positions[row & (ids == number)], range((row & (ids == number)).sum())
            )
    assert actual.min() >= 0
    assert (
        actual.max(axis=1)
        == [max((row & (ids == n)).sum() for n in ids) - 1 for row, ids in zip(is_token, segment_ids)]
    ).all()
