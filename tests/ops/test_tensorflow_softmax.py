"""Where a softmax of bfloat16 is computed in float32, against NumPy in float64."""

import keras
import numpy as np
import pytest

import keras_attn.ops.tensorflow_softmax as tensorflow_softmax
from keras_attn.ops.compilers import compiled_scope, inference_scope
from keras_attn.ops.softmax import row_softmax
from keras_attn.ops.tensorflow_softmax import is_softmax_rounded_once


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
    assert not tensorflow_softmax._rounds_once.__wrapped__()
