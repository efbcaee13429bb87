import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_attn.tasks.batches import Buckets, compiled_with_xla


@pytest.fixture(params=["float32", "bfloat16"])
def model(request):
    """A matrix of 3 x 7001 numbers, too many for a constant, a bias, and dropout with the state of a seed."""
    dense = keras.layers.Dense(7001, bias_initializer="ones", dtype=request.param)
    model = keras.Sequential([keras.Input((3,)), dense, keras.layers.Dropout(0.1)])
    model.dense = dense
    return model


def test_small_weights_of_a_frozen_model_are_constants(model):
    x = np.random.default_rng(3).normal(size=(5, 3)).astype("float32")
    free, frozen = compiled_with_xla(model), compiled_with_xla(model, frozen=model)
    expected = model(x)
    for compiled in (free, frozen):
        np.testing.assert_allclose(
            tf.cast(compiled(x), tf.float32), tf.cast(expected, tf.float32), rtol=1e-2, atol=1e-2
        )
    captured = frozen.get_concrete_function(tf.TensorSpec(x.shape)).captured_inputs
    assert [tensor is model.dense.kernel.value.handle for tensor in captured] == [True]
    model.dense.bias.assign(model.dense.bias * 9)
    np.testing.assert_allclose(tf.cast(free(x) - frozen(x), tf.float32), 8.0, atol=0.1)


def test_buckets_of_a_frozen_model_answer_as_it_does(model):
    x = np.random.default_rng(5).normal(size=(11, 3)).astype("float32")
    buckets = Buckets([2, 4], [3], 3, "longest", frozen=model)
    found = buckets(lambda inputs: model(inputs["x"]), {"x": tf.constant(x)}, (7001,))
    np.testing.assert_allclose(found, tf.cast(model(x), tf.float32), rtol=1e-2, atol=1e-2)
