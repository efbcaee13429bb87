"""GELU by the error function, against the formula in float64."""

import math

import keras
import numpy as np
import pytest
from helpers_layers import compiled, float64_enabled, function_gradients
from keras import ops

from keras_attn.ops import gelu

X = np.linspace(-9.0, 9.0, 1009)
SHARES = np.array([0.5 * math.erfc(-x / math.sqrt(2)) for x in X])


@pytest.mark.parametrize("is_compiled", [False, True])
def test_is_the_formula(is_compiled):
    function = compiled(gelu) if is_compiled else gelu
    actual = ops.convert_to_numpy(function(ops.convert_to_tensor(X, "float32")))
    np.testing.assert_allclose(actual, X * SHARES, atol=2e-6)
    np.testing.assert_allclose(actual[X < 0], (X * SHARES)[X < 0], atol=1e-6)


def test_gradient():
    with float64_enabled():
        found = function_gradients(lambda given: gelu(given["x"]), {"x": X})["x"]
    density = np.exp(-(X**2) / 2) / math.sqrt(2 * math.pi)
    np.testing.assert_allclose(found, SHARES + X * density, atol=1e-12)


def test_lower_precision_is_that_of_keras():
    x = ops.cast(X, "bfloat16")
    y, expected = gelu(x), keras.activations.gelu(x)
    assert keras.backend.standardize_dtype(y.dtype) == "bfloat16"
    as_float32 = [ops.convert_to_numpy(ops.cast(values, "float32")) for values in (y, expected)]
    np.testing.assert_array_equal(*as_float32)
