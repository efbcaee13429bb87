"""Dropout by hash: the hash itself in unsigned NumPy, and what a random number generator is held to."""

import itertools

import numpy as np
import pytest
from helpers_attention_oracle import dropout_multiplier
from helpers_layers import compiled
from keras import ops

from keras_attn.ops import ScoreDropout

SEED = (31, 7)


def multiplier(rate, lead_shape, rows, columns, seed=SEED):
    dropout = ScoreDropout(rate, ops.convert_to_tensor(np.array(seed, "int32")))
    rows, columns = (ops.convert_to_tensor(np.asarray(index, "int32")) for index in (rows, columns))
    return ops.convert_to_numpy(dropout.multiplier(lead_shape, rows, columns))


def kept(rate=0.5, lead_shape=(2, 3), num_rows=97, num_columns=101, seed=SEED):
    return multiplier(rate, lead_shape, np.arange(num_rows), np.arange(num_columns), seed) > 0


@pytest.mark.parametrize("lead_shape", [(), (3,), (2, 3), (2, 3, 5)], ids=str)
@pytest.mark.parametrize("seed", [(0, 0), (31, 7), (2**31 - 1, 2**31 - 2), (-5, 11)], ids=str)
def test_equals_the_hash_in_unsigned_arithmetic(lead_shape, seed):
    actual = multiplier(0.3, lead_shape, np.arange(7), np.arange(11), seed)
    np.testing.assert_allclose(actual, dropout_multiplier(0.3, seed, (*lead_shape, 7, 11)), rtol=1e-6)


def test_blocks_are_parts_of_the_whole():
    whole = multiplier(0.4, (2, 3), np.arange(13), np.arange(17))
    for rows, columns in itertools.product([[0, 1], [5, 6, 7], [12]], [[0], [3, 4, 16]]):
        block = multiplier(0.4, (2, 3), rows, columns)
        np.testing.assert_array_equal(block, whole[..., rows, :][..., columns])


@pytest.mark.parametrize("rate", [0.0, 0.01, 0.1, 0.3, 0.5, 0.9, 0.999])
def test_as_many_are_dropped_as_the_rate_says(rate):
    values = multiplier(rate, (2, 3), np.arange(97), np.arange(101))
    np.testing.assert_allclose(np.unique(values), [0.0, 1 / (1 - rate)] if rate else [1.0], rtol=1e-6)
    deviation = np.sqrt(rate * (1 - rate) / values.size)
    assert abs((values == 0).mean() - rate) <= 4 * deviation


def test_the_random_numbers_are_uniform():
    """Chi-square of 16 bins, read off the rates at which each score is dropped: 15 degrees of freedom."""
    bins = sum(~kept(rate) for rate in np.arange(1, 16) / 16)
    counts = np.bincount(bins.ravel(), minlength=16)
    expected = counts.sum() / 16
    assert np.sum((counts - expected) ** 2 / expected) < 37.7  # p = 0.001


def correlation(x, y):
    return np.corrcoef(x.ravel(), y.ravel())[0, 1]


@pytest.mark.parametrize("step", [1, 2, 16, 32])
@pytest.mark.parametrize("axis", [-1, -2])
def test_neighbours_are_independent(axis, step):
    drawn = kept()
    size = drawn.shape[axis]
    one, other = np.take(drawn, range(size - step), axis), np.take(drawn, range(step, size), axis)
    assert abs(correlation(one, other)) < 4 / np.sqrt(one.size)


def test_heads_rows_of_the_batch_and_seeds_are_independent():
    drawn = kept()
    planes = drawn.reshape(6, -1)
    draws = [*planes, *(kept(seed=seed)[0, 0].ravel() for seed in ((31, 8), (32, 7), (7, 31)))]
    for one, other in itertools.combinations(draws, 2):
        assert abs(correlation(one, other)) < 4 / np.sqrt(one.size)


@pytest.mark.parametrize("axis", [-1, -2])
def test_no_row_or_column_is_favoured(axis):
    """The variance of the sums over an axis is that of independent draws."""
    drawn = kept(0.3)
    sums = drawn.sum(axis).ravel()
    expected = drawn.shape[axis] * 0.3 * 0.7
    assert abs(sums.var() / expected - 1) < 4 * np.sqrt(2 / sums.size)


def test_four_scores_at_the_corners_of_a_rectangle_are_independent():
    """A hash of row plus hash of column would make the fourth depend on the other three."""
    drawn = kept()
    parity = drawn[..., :-1, :-1] ^ drawn[..., 1:, :-1] ^ drawn[..., :-1, 1:] ^ drawn[..., 1:, 1:]
    assert abs(parity.mean() - 0.5) < 4 * 0.5 / np.sqrt(parity.size)


@pytest.mark.parametrize("jit", [True, False])
def test_compiled_equals_eager(jit):
    seed = ops.convert_to_tensor(np.array(SEED, "int32"))

    def draw(given):
        return ScoreDropout(0.3, given["seed"]).multiplier((2, 3), ops.arange(7), ops.arange(11))

    actual = ops.convert_to_numpy(compiled(draw, jit)({"seed": seed}))
    np.testing.assert_allclose(actual, dropout_multiplier(0.3, SEED, (2, 3, 7, 11)), rtol=1e-6)
