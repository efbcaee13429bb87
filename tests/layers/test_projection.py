"""Our projection is Keras' EinsumDense in all but the way it is computed."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers_layers import assert_equal
from keras import ops
from tensorflow.python.eager import context

from keras_attn.layers.activations import gelu_tanh
from keras_attn.layers.projection import Dense, Projection

CASES = {
    "heads": ("abx,xyz->abyz", (None, 3, 5), "yz", (2, 7, 11)),
    "heads_of_images": ("abcx,xyz->abcyz", (None, None, 3, 5), "yz", (2, 4, 7, 11)),
    "output": ("abxy,xye->abe", (None, 13), "e", (2, 7, 3, 5)),
    "output_of_two_axes": ("abxy,xyef->abef", (None, 13, 2), "ef", (2, 7, 3, 5)),
    "without_bias": ("abx,xyz->abyz", (None, 3, 5), None, (2, 7, 11)),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("activation", [None, "sigmoid"])
def test_equals_einsum_dense(rng, name, activation):
    equation, output_shape, bias_axes, shape = CASES[name]
    arguments = {"equation": equation, "output_shape": output_shape, "bias_axes": bias_axes}
    layers = [cls(**arguments, activation=activation) for cls in (keras.layers.EinsumDense, Projection)]
    x = ops.convert_to_tensor(rng.normal(size=shape).astype("float32"))
    for layer in layers:
        layer.build(shape)
    layers[0].set_weights([rng.normal(size=w.shape) for w in layers[0].weights])
    layers[1].set_weights(layers[0].get_weights())
    expected, actual = (ops.convert_to_numpy(layer(x)) for layer in layers)
    assert_equal([actual], [expected], 1e-6)
    symbolic = layers[1](keras.Input(shape[1:]))
    assert all(size in (None, known) for size, known in zip(symbolic.shape, expected.shape, strict=True))


def test_lora_is_part_of_the_product(rng):
    layer = Projection("abx,xyz->abyz", (None, 3, 5), bias_axes="yz")
    x = rng.normal(size=(2, 7, 11)).astype("float32")
    before = ops.convert_to_numpy(layer(x))
    layer.enable_lora(2)
    np.testing.assert_allclose(ops.convert_to_numpy(layer(x)), before, rtol=1e-5, atol=1e-5)
    layer.lora_kernel_b.assign(rng.normal(size=layer.lora_kernel_b.shape))
    delta = ops.convert_to_numpy(ops.matmul(layer.lora_kernel_a, layer.lora_kernel_b))
    expected = before + np.einsum("abx,xyz->abyz", x, delta) * layer.lora_alpha / layer.lora_rank
    np.testing.assert_allclose(ops.convert_to_numpy(layer(x)), expected, rtol=1e-4, atol=1e-4)


def _over_positions(x):
    return ops.softmax(x, axis=1)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(
    "activation", ["relu", "gelu", "silu", "tanh", gelu_tanh, "softmax", _over_positions]
)
def test_activations_equal_those_of_dense(rng, activation, training):
    layers = [cls(5, activation=activation) for cls in (keras.layers.Dense, Dense)]
    for layer in layers:
        layer.build((None, None, 11))
    layers[1].set_weights(layers[0].get_weights())
    x = rng.normal(size=(2, 7, 11)).astype("float32")
    graph = tf.function(lambda x: layers[1](x, training=training), [tf.TensorSpec([None, None, 11])])
    for actual in (layers[1](x, training=training), graph(x)):
        np.testing.assert_allclose(actual, layers[0](x), atol=1e-6)


def test_tensorflow_fuses_the_activation():
    layer = Dense(5, activation="relu")
    layer.build((None, None, 11))
    graph = tf.function(lambda x: layer(x), [tf.TensorSpec([None, None, 11])], autograph=False)
    context.enable_run_metadata()
    try:
        graph(tf.ones((2, 7, 11)))
        operations = [
            node.op for part in context.export_run_metadata().partition_graphs for node in part.node
        ]
    finally:
        context.disable_run_metadata()
    assert any("FusedMatMul" in name for name in operations), operations
    assert not {"Relu", "_MklRelu", "AddV2", "BiasAdd"} & set(operations)
