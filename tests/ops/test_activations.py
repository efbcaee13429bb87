"""GELU by the error function, against the formula in float64."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from keras_attn.ops import gelu

X = np.linspace(-9.0, 9.0, 1009)
EXPECTED = np.array([0.5 * x * math.erfc(-x / math.sqrt(2)) for x in X])


@pytest.mark.parametrize("jit_compile", [None, False, True])
def test_is_the_formula(jit_compile):
    function = gelu if jit_compile is None else tf.function(gelu, jit_compile=jit_compile, autograph=False)
    actual = function(tf.constant(X, tf.float32)).numpy()
    np.testing.assert_allclose(actual, EXPECTED, atol=2e-6)
    np.testing.assert_allclose(actual[X < 0], EXPECTED[X < 0], atol=1e-6)


def test_gradient():
    x = tf.constant(X)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = gelu(x)
    density = np.exp(-(X**2) / 2) / math.sqrt(2 * math.pi)
    expected = np.array([0.5 * math.erfc(-value / math.sqrt(2)) for value in X]) + X * density
    np.testing.assert_allclose(tape.gradient(y, x), expected, atol=1e-12)


def test_lower_precision_is_that_of_keras():
    x = ops.cast(X, "bfloat16")
    y, expected = gelu(x), keras.activations.gelu(x)
    assert y.dtype == expected.dtype
    np.testing.assert_array_equal(ops.cast(y, "float32"), ops.cast(expected, "float32"))
