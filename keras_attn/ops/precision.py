"""The precision in which softmax, angles and biases are computed."""

import keras
from keras import ops


def at_least_float32(x):
    """`x` in float32, or in float64 if it already is. A softmax in half precision loses whole digits."""
    return x if is_at_least_float32(x) else ops.cast(x, "float32")


def is_at_least_float32(x):
    """Whether `x` is in float32 or float64."""
    return keras.backend.standardize_dtype(x.dtype) in ("float32", "float64")
