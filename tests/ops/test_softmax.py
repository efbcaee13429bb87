"""The log of the sum of exponentials, and where a softmax of bfloat16 is computed in float32, against NumPy in float64."""

import keras
import numpy as np
import pytest

from keras_attn.ops import compiled_scope, inference_scope, log_normalizer, softmax
from keras_attn.ops.softmax import is_softmax_rounded_once, row_softmax

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


def test_a_softmax_is_rounded_once_where_it_is_said_so(rng):
    if not is_softmax_rounded_once("bfloat16"):
        pytest.skip("needs TensorFlow with oneDNN, on a processor with AVX-512 and without a GPU")
    logits = keras.ops.cast(3 * rng.normal(size=(5, 301)), "bfloat16")
    found = keras.ops.convert_to_numpy(keras.ops.cast(row_softmax(logits), "float64"))
    wide = keras.ops.convert_to_numpy(keras.ops.cast(logits, "float64"))
    exponentials = np.exp(wide - wide.max(axis=-1, keepdims=True))
    expected = exponentials / exponentials.sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(found, expected, rtol=2**-8)


def test_a_softmax_is_not_rounded_once_where_another_machine_or_compiler_runs_it():
    with inference_scope():
        assert not is_softmax_rounded_once("bfloat16")
    with compiled_scope():
        assert not is_softmax_rounded_once("bfloat16")
    assert not is_softmax_rounded_once("float32")
    assert not is_softmax_rounded_once("float16")  # -1e30 would be infinite
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        assert not tf.function(lambda: is_softmax_rounded_once("bfloat16"), jit_compile=True)()


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="asks TensorFlow's kernel")
def test_a_softmax_of_rounded_exponentials_is_found_out(monkeypatch):
    """As TensorFlow's own kernel computes it, on machines without oneDNN."""
    import tensorflow as tf

    def rounded(logits):
        exponentials = tf.exp(logits - tf.reduce_max(logits, axis=-1, keepdims=True))
        return exponentials / tf.reduce_sum(exponentials, axis=-1, keepdims=True)

    monkeypatch.setattr(tf.nn, "softmax", rounded)
    assert not softmax._rounds_once.__wrapped__()
