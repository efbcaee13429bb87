"""Layer normalisation with its gradient by hand: the formula in float64, finite differences, and Keras' layer."""

import keras
import numpy as np
import pytest
from helpers_layers import BACKEND, assert_equal, compiled, float64_enabled, function_gradients, gradients
from keras import ops

from keras_attn.layers.normalization import LayerNormalization
from keras_attn.ops import layer_normalization

SHAPES = [(11,), (7, 11), (2, 7, 11), (2, 3, 7, 5)]


def in_numpy(inputs, gamma, beta, epsilon):
    inputs = np.asarray(inputs, "float64")
    mean, variance = inputs.mean(-1, keepdims=True), inputs.var(-1, keepdims=True)
    return gamma * (inputs - mean) / np.sqrt(variance + epsilon) + beta


def arguments(rng, shape, dtype="float64"):
    arrays = {"inputs": 3 * rng.normal(size=shape) + 2, "gamma": 1 + rng.normal(size=shape[-1:])}
    arrays["beta"] = rng.normal(size=shape[-1:])
    return {name: x.astype(dtype) for name, x in arrays.items()}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_the_formula(rng, shape):
    arrays = arguments(rng, shape, "float32")
    found = layer_normalization(**{name: ops.convert_to_tensor(x) for name, x in arrays.items()}, epsilon=0.1)
    assert_equal([np.asarray(found)], [in_numpy(**arrays, epsilon=0.1)], 1e-6)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gradients_are_the_slopes_of_the_formula(rng, shape):
    arrays, weights = arguments(rng, shape), rng.normal(size=shape)

    def weighed(given):
        return layer_normalization(**given, epsilon=0.1) * ops.convert_to_tensor(weights)

    with float64_enabled():
        found = function_gradients(weighed, arrays)
    step = 1e-5
    for name, array in arrays.items():
        slopes = np.zeros(array.shape)
        for place in np.ndindex(array.shape):
            sides = []
            for sign in (1, -1):
                moved = {**arrays, name: array.copy()}
                moved[name][place] += sign * step
                sides.append(np.sum(weights * in_numpy(**moved, epsilon=0.1)))
            slopes[place] = (sides[0] - sides[1]) / (2 * step)
        # On JAX and PyTorch, Keras 3.15 takes the mean of float64 in float32.
        assert_equal([found[name]], [slopes], 1e-7 if BACKEND == "tensorflow" else 1e-6)


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "mixed_float16", "bfloat16"])
@pytest.mark.parametrize(
    "options",
    [{}, {"epsilon": 0.1}, {"axis": 1}, {"axis": (1, 2)}, {"center": False}, {"scale": False}],
    ids=str,
)
def test_layer_is_that_of_keras(rng, options, policy):
    if BACKEND == "torch" and options == {"axis": 1}:
        pytest.skip("Keras 3.15 hands this axis to a kernel of PyTorch that takes the last ones only")
    layers = [cls(dtype=policy, **options) for cls in (LayerNormalization, keras.layers.LayerNormalization)]
    inputs = {"inputs": rng.normal(size=(2, 7, 11)).astype("float32")}
    weights = None
    for layer in layers:
        layer.build((2, 7, 11))
        weights = weights or [rng.normal(size=weight.shape) for weight in layer.weights]
        layer.set_weights(weights)
    ours, theirs = (layer(**inputs) for layer in layers)
    assert ours.dtype == theirs.dtype
    tolerance = 1e-6 if policy == "float32" else 2e-2
    widened = [ops.convert_to_numpy(ops.cast(x, "float32")) for x in (ours, theirs)]
    assert_equal(widened[:1], widened[1:], tolerance)
    found = [gradients(layer, inputs, lambda output: ops.cast(output, "float32") ** 2) for layer in layers]
    (by_input, by_weight), (of_input, of_weight) = found
    assert_equal([by_input["inputs"], *by_weight], [of_input["inputs"], *of_weight], 2 * tolerance)
    for actual, expected in zip(layers[0].weights, layers[1].weights, strict=True):
        assert (actual.name, actual.dtype) == (expected.name, expected.dtype)
    assert layers[0].get_config().keys() == layers[1].get_config().keys()


def test_equal_numbers_have_finite_gradients():
    arrays = {"inputs": np.full((3, 5), 7.0), "gamma": np.ones(5), "beta": np.zeros(5)}
    arrays = {name: x.astype("float32") for name, x in arrays.items()}
    found = function_gradients(lambda given: layer_normalization(**given, epsilon=1e-5) ** 2, arrays)
    assert all(np.isfinite(x).all() for x in found.values())


def test_half_precision_is_computed_in_float32():
    """In float16 the squares of the differences would be infinite."""
    inputs = np.array([[1000.0, 1600.0, 2200.0]])
    for dtype in ("float16", "bfloat16"):
        x, one = ops.cast(ops.convert_to_tensor(inputs), dtype), ops.ones(3, dtype)
        found = layer_normalization(x, one, ops.zeros(3, dtype), epsilon=0.0)
        assert keras.backend.standardize_dtype(found.dtype) == dtype
        expected = np.array([[-1.2247449, 0.0, 1.2247449]])
        assert_equal([ops.convert_to_numpy(ops.cast(found, "float32"))], [expected], 5e-3)


def test_compiled_equals_eager(rng):
    layer = LayerNormalization()
    x = rng.normal(size=(2, 5, 11)).astype("float32")
    eager = ops.convert_to_numpy(layer(x))
    assert_equal([ops.convert_to_numpy(compiled(layer)(x))], [eager], 1e-6)
