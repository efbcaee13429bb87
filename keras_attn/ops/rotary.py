"""Rotary positions: the frequencies, the ways to scale them for longer sequences, and the rotation."""

import inspect
import math
import numbers

import keras
import numpy as np
from keras import ops

from keras_attn.ops.graph_purpose import computed_once, is_compiled_scope, shape_to_keep
from keras_attn.ops.masks import check_mask_shape
from keras_attn.ops.precision import at_least_float32


def rotary_frequencies(rotary_dim, max_wavelength=10000, scaling=None, length=None):
    """The angle by which each pair of features turns from one position to the next: w^(-2i / d), scaled.

    Args:
        rotary_dim: Even integer d, the number of features that are rotated.
        max_wavelength: Float w, the longest wavelength in units of 2 pi positions.
        scaling: None, or a dict that adapts the frequencies which a model was trained with to sequences `factor` times
            as long. Its `"type"` decides the other keys. A key whose value is None counts as missing:

            - `"linear"`: `factor`.
            - `"dynamic_ntk"`: `factor`, `original_max_sequence_length`; nothing changes up to that length.
            - `"yarn"`: `factor`, `original_max_sequence_length`, and optionally `beta_fast` (32), `beta_slow` (1),
              in turns within the original length, `attention_factor` (0.1 ln(factor) + 1), and `truncate` (True),
              whether the bounds between fast and slow pairs are rounded to whole numbers of pairs.
            - `"llama3"`: `factor`, `low_freq_factor`, `high_freq_factor`, `original_max_sequence_length`.
        length: The length of the sequence, used by `"dynamic_ntk"` only: an integer, or integers (..., 1) if each row has
            its own, (..., T) if each token has. None is a length that needs no scaling.

    Returns:
        The frequencies, float32 (d / 2,), or (*length.shape, d / 2) if they depend on a `length` with axes; they are a
        NumPy array unless they depend on `length`. And a float, the attention factor, by which query and key are multiplied.

    Raises:
        ValueError: if an argument is out of range, or `scaling` has an unknown type, or unknown or missing keys.

    Example:

    ```python
    frequencies, attention_factor = rotary_frequencies(64, scaling={"type": "linear", "factor": 4.0})
    ```

    Reference: [Su et al., 2021](https://arxiv.org/abs/2104.09864), section 3.2.2.
    """
    if not isinstance(rotary_dim, numbers.Integral) or rotary_dim <= 0 or rotary_dim % 2:
        raise ValueError(f"`rotary_dim` must be a positive even integer. Received: rotary_dim={rotary_dim}.")
    if not (_is_number(max_wavelength) and max_wavelength > 1):
        raise ValueError(
            f"`max_wavelength` must be greater than 1. Received: max_wavelength={max_wavelength}."
        )
    frequencies = float(max_wavelength) ** -(np.arange(rotary_dim // 2) / (rotary_dim // 2))
    attention_factor = 1.0
    if scaling is not None:
        scale, options = _scaling_function(scaling)
        frequencies, attention_factor = scale(frequencies, max_wavelength, length, **options)
    if isinstance(frequencies, np.ndarray):
        frequencies = frequencies.astype("float32")
    return frequencies, attention_factor


def apply_rotary(x, positions, frequencies, attention_factor=1.0, interleaved=False):
    """Turns each pair of features of `x` by position times frequency, so that products depend on distances alone.

    Angles, sines, cosines and products are computed in float32: in bfloat16 the products alone would double the error
    of the result. For a float64 `x` they are float64, except on JAX, where Keras' sines are float32.

    Args:
        x: Float tensor (..., T, H), typically (B, N, T, H), H known.
        positions: Integers (T,) or (B, T), or (..., T) with further leading axes of `x`.
        frequencies: Floats (d / 2,), or floats that broadcast to (*positions.shape, d / 2), see
            `rotary_frequencies`. The first d features are rotated, the others are not changed.
        attention_factor: Float that multiplies the rotated features.
        interleaved: Boolean, whether features (0, 1), (2, 3), ... are the pairs (Su et al. 2021, GPT-J), instead of
            (0, d / 2), (1, d / 2 + 1), ... (GPT-NeoX, LLaMA).

    Returns:
        Float tensor (..., T, H) in the dtype of `x`.

    Raises:
        ValueError: if positions are no integers or do not fit `x`, or more features are to be rotated than `x` has.

    Example:

    ```python
    frequencies, attention_factor = rotary_frequencies(16)
    query = keras.random.normal((2, 3, 5, 16))
    query = apply_rotary(query, keras.ops.arange(5), frequencies, attention_factor)
    ```

    Reference: [Su et al., 2021](https://arxiv.org/abs/2104.09864), equation 34.
    """
    rotary_dim = 2 * frequencies.shape[-1]
    positions = ops.convert_to_tensor(positions)
    _check_rotation(x, positions, rotary_dim)
    # The axis of (..., 2, d / 2) or (..., d / 2, 2) that holds the two features of a pair.
    pair_axis = -1 if interleaved else -2
    if rotary_dim < x.shape[-1]:
        # The gradient of a split is a concatenation, which is three times as fast as the gradient of a slice.
        rotated, rest = ops.split(x, [rotary_dim], axis=-1)
        rotated = apply_rotary(rotated, positions, frequencies, attention_factor, interleaved)
        return ops.concatenate([rotated, rest], axis=-1)
    wide = at_least_float32(x)
    if is_compiled_scope():
        rotated = _rotate_for_compiler(wide, positions, frequencies, attention_factor, pair_axis)
    else:
        dtype = keras.backend.standardize_dtype(wide.dtype)
        cos, sin = computed_once(
            _factors_of_pairs, positions, frequencies, attention_factor, pair_axis, len(x.shape), dtype
        )
        *lead, size = shape_to_keep(wide)
        pair_shape = (2, size // 2) if pair_axis == -2 else (size // 2, 2)
        pairs = ops.reshape(wide, (*lead, *pair_shape))
        rotated = ops.reshape(pairs * cos + ops.flip(pairs, axis=pair_axis) * sin, (*lead, size))
    return ops.cast(rotated, x.dtype)


def _factors_of_pairs(positions, frequencies, attention_factor, pair_axis, rank, dtype):
    """Cosines and sines that broadcast to pairs of features, (..., T, 2, d / 2) or (..., T, d / 2, 2).

    (a, b) becomes (a cos - b sin, b cos + a sin): a is paired with the sine of the negative angle.
    """
    signed = ops.cast(ops.stack([-frequencies, frequencies], axis=pair_axis), dtype)
    angles = ops.expand_dims(ops.cast(positions, dtype), (-2, -1)) * signed
    return _factors(_over_heads(angles, positions, rank), attention_factor)


def _rotate_for_compiler(x, positions, frequencies, attention_factor, pair_axis):
    """The same for XLA, which would else compute sines and cosines again for every head and row."""
    frequencies = ops.cast(frequencies, x.dtype)
    angles = _over_heads(ops.cast(positions, x.dtype)[..., None] * frequencies, positions, len(x.shape))
    cos, sin = _factors(angles, attention_factor)
    features = np.arange(x.shape[-1])
    shape = (2, -1) if pair_axis == -2 else (-1, 2)
    partners = np.flip(features.reshape(shape), pair_axis).ravel().astype("int32")
    # Features of a pair have one angle.
    sizes = ops.shape(angles)[:-1]
    cos = ops.reshape(ops.stack([cos, cos], axis=pair_axis), (*sizes, -1))
    sin = ops.reshape(ops.stack([sin, -sin], axis=pair_axis), (*sizes, -1))
    # A difference: TensorFlow exchanges the terms of a sum, and XLA rounds the product in the first of them only.
    return x * cos - ops.take(x, partners, axis=-1) * sin


def _factors(angles, attention_factor):
    cos = ops.cos(angles)
    sin = ops.sin(angles)
    if attention_factor == 1:
        return cos, sin
    return cos * attention_factor, sin * attention_factor


# --- scalings: (frequencies, max_wavelength, length, options) -> (frequencies, attention factor) ---


def _linear(frequencies, max_wavelength, length, *, factor):
    """Positions divided by the factor: [Chen et al., 2023](https://arxiv.org/abs/2306.15595), equation 4."""
    return frequencies / factor, 1.0


def _dynamic_ntk(frequencies, max_wavelength, length, *, factor, original_max_sequence_length):
    """A wavelength that grows with the sequence, so that the slowest pair is slowed down and the fastest is not.

    "Dynamic NTK" in [Peng et al., 2023](https://arxiv.org/abs/2309.00071), with the factor of transformers' LLaMA:
    w' = w s^(d / (d - 2)), s = 1 + factor (length / original - 1). A factor of 1 is the paper's form.
    """
    if length is None:
        return frequencies, 1.0
    excess = ops.cast(length, "float32") / original_max_sequence_length - 1.0
    stretch = ops.expand_dims(1.0 + factor * ops.maximum(excess, 0.0), -1)
    pairs = np.arange(len(frequencies))
    # w'^(-2i / d) = w^(-2i / d) s^(-2i / (d - 2)). A single pair has i = 0 and is never scaled.
    exponents = -pairs / max(len(frequencies) - 1, 1)
    powers = ops.power(stretch, exponents.astype("float32"))
    return ops.multiply(powers, frequencies.astype("float32")), 1.0


def _yarn(
    frequencies,
    max_wavelength,
    length,
    *,
    factor,
    original_max_sequence_length,
    beta_fast=32.0,
    beta_slow=1.0,
    attention_factor=None,
    truncate=True,
):
    """Pairs that turn often within the original length keep their frequency, those that hardly turn are slowed down.

    [Peng et al., 2023](https://arxiv.org/abs/2309.00071), "NTK-by-parts" and "YaRN", with the ramp over pair numbers,
    by default rounded outwards to whole ones, as in the authors' code.
    """
    _check_order("beta_slow", beta_slow, "beta_fast", beta_fast)

    def pair_that_turns(times):
        frequency = 2 * math.pi * times / original_max_sequence_length
        return -len(frequencies) * math.log(frequency) / math.log(max_wavelength)

    first = pair_that_turns(beta_fast)
    last = pair_that_turns(beta_slow)
    if truncate:
        first = math.floor(first)
        last = math.ceil(last)
    first = max(first, 0)
    last = min(last, 2 * len(frequencies) - 1)
    ramp = np.clip((np.arange(len(frequencies)) - first) / max(last - first, 1e-3), 0, 1)
    if attention_factor is None:
        attention_factor = 0.1 * math.log(factor) + 1
    return frequencies * (ramp / factor + 1 - ramp), float(attention_factor)


def _llama3(
    frequencies,
    max_wavelength,
    length,
    *,
    factor,
    low_freq_factor,
    high_freq_factor,
    original_max_sequence_length,
):
    """Pairs that turn more than `high_freq_factor` times within the original length keep their frequency, those below
    `low_freq_factor` are slowed down by the factor, and frequencies in between are interpolated.

    Llama 3.1 ([Grattafiori et al., 2024](https://arxiv.org/abs/2407.21783)); the formula is `apply_scaling` in
    [the released code](https://github.com/meta-llama/llama-models).
    """
    _check_order("low_freq_factor", low_freq_factor, "high_freq_factor", high_freq_factor)
    turns = original_max_sequence_length * frequencies / (2 * math.pi)
    kept = np.clip((turns - low_freq_factor) / (high_freq_factor - low_freq_factor), 0, 1)
    return frequencies * ((1 - kept) / factor + kept), 1.0


_SCALINGS = {"linear": _linear, "dynamic_ntk": _dynamic_ntk, "yarn": _yarn, "llama3": _llama3}


def _scaling_function(scaling):
    """The function that `scaling` names, and its options as keyword arguments."""
    if not isinstance(scaling, dict) or scaling.get("type") not in _SCALINGS:
        raise ValueError(
            f'`scaling` must be None, or a dict whose "type" is one of {sorted(_SCALINGS)}. '
            f"Received: scaling={scaling}."
        )
    function = _SCALINGS[scaling["type"]]
    options = {name: value for name, value in scaling.items() if name != "type" and value is not None}
    parameters = [p for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY]
    required = [p.name for p in parameters if p.default is p.empty]
    optional = [p.name for p in parameters if p.default is not p.empty]
    if not set(required) <= set(options) <= {*required, *optional}:
        may_have = f", and may have {optional}" if optional else ""
        raise ValueError(
            f"`scaling` of type {scaling['type']!r} must have the keys {required}{may_have}. "
            f"Received: scaling={scaling}."
        )
    for name, value in options.items():
        if name == "truncate":
            if not isinstance(value, bool):
                raise ValueError(f"`truncate` of `scaling` must be a bool. Received: truncate={value!r}.")
            continue
        least = 1 if name == "factor" else 0
        if not (_is_number(value) and value > 0 and value >= least):
            wanted = "at least 1" if least else "positive"
            raise ValueError(f"`{name}` of `scaling` must be {wanted}. Received: {name}={value}.")
    return function, options


# --- helpers ---


def _is_number(value):
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)


def _check_order(low_name, low, high_name, high):
    if not low < high:
        raise ValueError(
            f"`{high_name}` of `scaling` must be greater than `{low_name}`. "
            f"Received: {high_name}={high}, {low_name}={low}."
        )


def _check_rotation(x, positions, rotary_dim):
    if rotary_dim > x.shape[-1]:
        raise ValueError(
            "There must be at least as many features as are rotated. "
            f"Received: {rotary_dim // 2} frequencies for pairs of features, x of shape {tuple(x.shape)}."
        )
    # Half precision cannot represent all positions from 257 (bfloat16) or 2049 (float16) on.
    dtype = keras.backend.standardize_dtype(positions.dtype)
    if "int" not in dtype:
        raise ValueError(f"`positions` must be integers. Received: positions of dtype {dtype}.")
    lead = tuple(x.shape[:-2])[: max(len(positions.shape) - 1, 0)]
    check_mask_shape(positions, (*lead, x.shape[-2]), "positions", exact_axes=1)


def _over_heads(angles, positions, rank):
    """`angles` (*positions.shape, ...) with axes of size 1 for the axes of a tensor (..., T, H) that positions do not have."""
    given = len(positions.shape)
    if given == 1:
        return angles
    return ops.expand_dims(angles, tuple(range(given - 1, rank - 2)))
