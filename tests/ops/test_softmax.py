"""The log of the sum of exponentials, in graphs that TensorFlow runs op by op and elsewhere, against NumPy in float64."""

import keras
import numpy as np
import pytest

from keras_attn.ops import log_normalizer

LOGITS = np.array(
    [[0.5, -1.0, 2.0, 7.0], [-6e4, 6e4, 6e4, 0.0], [-1e30, -1e30, 3.0, -1e30], [90.0, 89.0, -90.0, 0.0]],
    "float32",
)


def expected(logits):
    wide = logits.astype("float64")
    largest = wide.max(axis=-1, keepdims=True)
    return largest + np.log(np.exp(wide - largest).sum(axis=-1, keepdims=True))


@pytest.mark.parametrize("shape", [(4, 4), (2, 2, 4), (1, 4, 4), (0, 3, 4)])
@pytest.mark.parametrize("is_open_graph", [False, True])
def test_it_is_the_log_of_the_sum(shape, is_open_graph):
    logits = LOGITS[: np.prod(shape) // 4].reshape(shape)
    function = log_normalizer
    if is_open_graph:
        if keras.backend.backend() != "tensorflow":
            pytest.skip("only TensorFlow has graphs of any batch size")
        import tensorflow as tf

        function = tf.function(log_normalizer, [tf.TensorSpec([None, *shape[1:]])], autograph=False)
        assert "Softmax" in {node.op for node in function.get_concrete_function().graph.as_graph_def().node}
    found = keras.ops.convert_to_numpy(function(keras.ops.convert_to_tensor(logits)))
    assert found.shape == (*shape[:-1], 1)
    np.testing.assert_allclose(found, expected(logits), rtol=1e-6, atol=1e-6)
