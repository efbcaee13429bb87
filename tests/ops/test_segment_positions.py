import numpy as np
import pytest
from helpers_layers import BACKEND, compiled
from keras import ops

from keras_attn.ops import segment_positions, token_positions


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
