import numpy as np
import pytest
from helpers_layers import BACKEND, compiled
from keras import ops

from keras_attn.ops import segment_positions


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
