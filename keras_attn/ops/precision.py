"""The precision in which softmax, angles and biases are computed."""

import keras
from keras import ops


def at_least_float32(x):
    """`x` in float32, or in float64 if it already is. A softmax in half precision loses whole digits."""
    wide = keras.backend.standardize_dtype(x.dtype) in ("float32", "float64")
    return x if wide else ops.cast(x, "float32")
