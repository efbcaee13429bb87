"""Where a softmax of low precision is computed in float32, against NumPy in float64."""

import keras
import numpy as np
import pytest

import keras_attn.ops.tensorflow_softmax as tensorflow_softmax
from keras_attn.ops.compilers import compiled_scope, inference_scope
from keras_attn.ops.softmax import row_softmax
from keras_attn.ops.tensorflow_softmax import is_softmax_rounded_once


@pytest.mark.parametrize(("dtype", "unit"), [("bfloat16", 2**-8), ("float16", 2**-11)])
def test_a_softmax_is_rounded_once_where_it_is_said_so(rng, dtype, unit):
    if not is_softmax_rounded_once(dtype):
        pytest.skip("not on this backend and processor")
    logits = keras.ops.cast(3 * rng.normal(size=(5, 301)), dtype)
    found = keras.ops.convert_to_numpy(keras.ops.cast(row_softmax(logits), "float64"))
    wide = keras.ops.convert_to_numpy(keras.ops.cast(logits, "float64"))
    exponentials = np.exp(wide - wide.max(axis=-1, keepdims=True))
    expected = exponentials / exponentials.sum(axis=-1, keepdims=True)
    is_normal = expected > 1e-3  # float16 has fewer digits below
    np.testing.assert_allclose(found[is_normal], expected[is_normal], rtol=unit)


def test_a_softmax_is_not_rounded_once_where_another_machine_or_compiler_runs_it():
    with inference_scope():
        assert not is_softmax_rounded_once("bfloat16")
    with compiled_scope():
        assert not is_softmax_rounded_once("bfloat16")
    assert not is_softmax_rounded_once("float32")
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
    assert not tensorflow_softmax._rounds_once.__wrapped__("bfloat16")
