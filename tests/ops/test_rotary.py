"""Rotary positions against complex numbers in float64, the papers' formulas, and transformers' frequencies."""

import contextlib
import math
import re

import helpers_transformers  # noqa: F401 -- imports, before the fork
import numpy as np
import pytest
from helpers_layers import BACKEND, float64_enabled, function_gradients
from keras import ops

from keras_attn.ops import apply_rotary, compiled_scope, rotary_frequencies

B, N, T, H = 2, 3, 5, 14
SCALINGS = {
    "linear": {"type": "linear", "factor": 3.0},
    "dynamic_ntk": {"type": "dynamic_ntk", "factor": 3.0, "original_max_sequence_length": 101},
    "yarn": {"type": "yarn", "factor": 7.0, "original_max_sequence_length": 2011},
    "yarn_all_options": {
        "type": "yarn",
        "factor": 7,
        "original_max_sequence_length": 211,
        "beta_fast": 17.0,
        "beta_slow": 0.5,
        "attention_factor": 1.3,
    },
    "yarn_not_truncated": {
        "type": "yarn",
        "factor": 7.0,
        "original_max_sequence_length": 2011,
        "truncate": False,
    },
    "llama3": {
        "type": "llama3",
        "factor": 5.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 3.0,
        "original_max_sequence_length": 307,
    },
}


def rotated_by_hand(x, positions, frequencies, interleaved=False, attention_factor=1.0):
    """Each pair of features as one complex number, times exp(i position frequency), in float64."""
    x, positions = np.array(x, "float64"), np.asarray(positions)
    if positions.ndim == 2:
        positions = positions.reshape(len(positions), *(1,) * (x.ndim - 3), -1)
    for i, frequency in enumerate(np.asarray(frequencies, "float64")):
        first, second = (2 * i, 2 * i + 1) if interleaved else (i, i + len(frequencies))
        turned = (x[..., first] + 1j * x[..., second]) * np.exp(1j * frequency * positions)
        x[..., first], x[..., second] = attention_factor * turned.real, attention_factor * turned.imag
    return x


def frequencies_by_hand(rotary_dim, max_wavelength=10000.0):
    return np.array([max_wavelength ** (-2 * i / rotary_dim) for i in range(rotary_dim // 2)])


def random(rng, *shape):
    return rng.normal(size=shape).astype("float32")


# --- the rotation ---


@pytest.mark.sampled(13)
@pytest.mark.parametrize("positions", [[0, 1, 2, 3, 11], [[0, 1, 2, 3, 4], [-2, -1, 0, 7, 3]]])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("rotary_dim", [H, 10, 2])
@pytest.mark.parametrize("attention_factor", [1.0, 1.7])
@pytest.mark.parametrize("scope", [contextlib.nullcontext, compiled_scope])
def test_equals_complex_multiplication(rng, positions, interleaved, rotary_dim, attention_factor, scope):
    x = random(rng, B, N, T, H)
    frequencies, _ = rotary_frequencies(rotary_dim, max_wavelength=100)
    with scope():
        actual = apply_rotary(ops.convert_to_tensor(x), positions, frequencies, attention_factor, interleaved)
    expected = frequencies_by_hand(rotary_dim, max_wavelength=100)
    expected = rotated_by_hand(x, positions, expected, interleaved, attention_factor)
    np.testing.assert_allclose(actual, expected, atol=1e-5)
    np.testing.assert_array_equal(np.asarray(actual)[..., rotary_dim:], x[..., rotary_dim:])


@pytest.mark.parametrize(("interleaved", "expected"), [(False, [-3, -2, 1, -4]), (True, [-2, 1, -3, -4])])
def test_a_quarter_and_a_half_turn_by_hand(interleaved, expected):
    x = ops.convert_to_tensor([[1.0, 2.0, 3.0, 4.0]])
    frequencies = np.array([math.pi / 2, math.pi], "float32")
    actual = apply_rotary(x, [1], frequencies, interleaved=interleaved)
    np.testing.assert_allclose(actual, [expected], atol=1e-6)


@pytest.mark.parametrize("lead", [(), (B,), (B, N), (B, 7, N)])
def test_any_leading_axes(rng, lead):
    x = random(rng, *lead, T, H)
    frequencies, _ = rotary_frequencies(H)
    for positions in ([2, 7, 1, 8, 2], [[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]]):
        if np.ndim(positions) - 1 > len(lead):
            continue
        actual = apply_rotary(ops.convert_to_tensor(x), positions, frequencies)
        np.testing.assert_allclose(actual, rotated_by_hand(x, positions, frequencies_by_hand(H)), atol=1e-5)


def test_positions_of_each_row_and_head(rng):
    x = random(rng, B, N, T, H)
    positions = rng.integers(0, 50, (B, N, T))
    frequencies, _ = rotary_frequencies(H)
    actual = np.asarray(apply_rotary(ops.convert_to_tensor(x), positions, frequencies))
    for index in np.ndindex(B, N):
        expected = rotated_by_hand(x[index], positions[index], frequencies_by_hand(H))
        np.testing.assert_allclose(actual[index], expected, atol=1e-5)


@pytest.mark.parametrize("interleaved", [False, True])
def test_the_norm_is_kept_and_multiplied_by_the_attention_factor(rng, interleaved):
    x = random(rng, B, N, T, H)
    frequencies, _ = rotary_frequencies(H)
    actual = apply_rotary(ops.convert_to_tensor(x), [0, 3, 70, 701, 7001], frequencies, 1.25, interleaved)
    norms = np.linalg.norm(x, axis=-1)
    np.testing.assert_allclose(np.linalg.norm(np.asarray(actual), axis=-1), 1.25 * norms, rtol=1e-6)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("rotary_dim", [26, 22])
@pytest.mark.parametrize(("shift", "tolerance"), [(1, 1e-5), (64, 1e-5), (4096, 5e-4)])
def test_scores_depend_on_distances_alone(rng, interleaved, rotary_dim, shift, tolerance):
    query, key = (ops.convert_to_tensor(random(rng, B, N, length, 26)) for length in (T, 11))
    frequencies, _ = rotary_frequencies(rotary_dim)

    def scores(query_positions, key_positions):
        turned_query = apply_rotary(query, query_positions, frequencies, interleaved=interleaved)
        turned_key = apply_rotary(key, key_positions, frequencies, interleaved=interleaved)
        return np.asarray(ops.matmul(turned_query, ops.swapaxes(turned_key, -1, -2)))

    expected = scores(np.arange(6, 11), np.arange(11))
    actual = scores(np.arange(6, 11) + shift, np.arange(11) + shift)
    largest = np.abs(expected).max()
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance * largest)
    one_side_moved = scores(np.arange(6, 11) + shift, np.arange(11))
    assert np.abs(one_side_moved - expected).max() > 0.1 * largest


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-3), ("bfloat16", 2**-8), ("float16", 1e-3)])
def test_position_5000_in_every_dtype(rng, dtype, tolerance, interleaved):
    x = ops.cast(ops.convert_to_tensor(rng.normal(size=(B, N, T, 64))), dtype)
    positions = np.arange(4998, 5003)
    actual = apply_rotary(x, positions, rotary_frequencies(64)[0], interleaved=interleaved)
    assert dtype in str(actual.dtype)
    given = np.asarray(ops.cast(x, "float32"))
    expected = rotated_by_hand(given, positions, frequencies_by_hand(64), interleaved)
    # Relative to the length of the pair that is turned: one of its two features may be near 0.
    pairs = given.reshape((B, N, T, 32, 2) if interleaved else (B, N, T, 2, 32)).astype("float64")
    lengths = np.linalg.norm(pairs, axis=-1 if interleaved else -2)
    lengths = np.repeat(lengths, 2, axis=-1) if interleaved else np.concatenate([lengths, lengths], axis=-1)
    errors = np.abs(np.asarray(ops.cast(actual, "float32")) - expected) / lengths
    assert errors.max() < tolerance


def test_float64_stays_float64(rng):
    with float64_enabled():
        x = rng.normal(size=(B, N, T, H))
        frequencies, _ = rotary_frequencies(H)
        positions = np.arange(4998, 5003)
        actual = np.asarray(apply_rotary(ops.convert_to_tensor(x), positions, frequencies))
    assert actual.dtype == "float64"
    # Keras' sines on JAX are float32 even so.
    tolerance = 1e-3 if BACKEND == "jax" else 1e-12
    np.testing.assert_allclose(actual, rotated_by_hand(x, positions, frequencies), rtol=0, atol=tolerance)


@pytest.mark.parametrize("interleaved", [False, True])
def test_the_gradient_turns_back(rng, interleaved):
    x, weights = random(rng, B, N, T, H), random(rng, B, N, T, H)
    positions = np.array([[0, 1, 2, 3, 4], [-2, -1, 0, 7, 3]])
    frequencies, _ = rotary_frequencies(10)

    def weighed(given):
        rotated = apply_rotary(given["x"], positions, frequencies, 1.7, interleaved)
        return rotated * ops.convert_to_tensor(weights)

    expected = rotated_by_hand(weights, -positions, frequencies_by_hand(10), interleaved, 1.7)
    np.testing.assert_allclose(function_gradients(weighed, {"x": x})["x"], expected, atol=1e-5)


@pytest.mark.parametrize(
    ("positions", "rotary_dim", "message"),
    [
        ([0, 1], H, "`positions` must have shape (5,). Received: positions of shape (2,)."),
        ([[0] * T] * 7, H, "`positions` must have shape (2, 5). Received: positions of shape (7, 5)."),
        ([[0], [1]], H, "`positions` must have shape (2, 5). Received: positions of shape (2, 1)."),
        (np.zeros((B, N, T, H), int), H, "`positions` must have shape (2, 3, 5)."),
        ([0.0, 1.0, 2.0, 3.0, 4.5], H, "`positions` must be integers. Received: positions of dtype float32."),
        ([0, 1, 2, 3, 4], 16, "Received: 8 frequencies for pairs of features, x of shape (2, 3, 5, 14)."),
    ],
)
def test_what_does_not_fit_is_refused(positions, rotary_dim, message):
    positions = np.array(positions, "float32" if np.asarray(positions).dtype.kind == "f" else "int32")
    with pytest.raises(ValueError, match=re.escape(message)):
        apply_rotary(ops.zeros((B, N, T, H)), positions, rotary_frequencies(rotary_dim)[0])


# --- the frequencies ---


@pytest.mark.parametrize("rotary_dim", [2, 14, 128])
@pytest.mark.parametrize("max_wavelength", [10000, 500000.0])
def test_unscaled_frequencies_equal_the_formula(rotary_dim, max_wavelength):
    frequencies, attention_factor = rotary_frequencies(rotary_dim, max_wavelength)
    assert isinstance(frequencies, np.ndarray)
    assert frequencies.dtype == "float32"
    np.testing.assert_allclose(frequencies, frequencies_by_hand(rotary_dim, max_wavelength), rtol=1e-7)
    assert attention_factor == 1.0


def test_linear_scaling_is_a_division():
    frequencies, attention_factor = rotary_frequencies(14, scaling=SCALINGS["linear"])
    np.testing.assert_allclose(frequencies, frequencies_by_hand(14) / 3, rtol=1e-7)
    assert attention_factor == 1.0


@pytest.mark.parametrize("length", [102, 211, 1009])
def test_dynamic_ntk_is_unscaled_frequencies_of_a_longer_wavelength(length):
    frequencies, attention_factor = rotary_frequencies(14, scaling=SCALINGS["dynamic_ntk"], length=length)
    stretched = 10000.0 * (3 * length / 101 - 2) ** (14 / 12)
    np.testing.assert_allclose(frequencies, frequencies_by_hand(14, stretched), rtol=1e-6)
    assert attention_factor == 1.0


@pytest.mark.parametrize("length", [None, 0, 1, 100, 101])
def test_dynamic_ntk_changes_nothing_up_to_the_original_length(length):
    frequencies, _ = rotary_frequencies(14, scaling=SCALINGS["dynamic_ntk"], length=length)
    np.testing.assert_array_equal(frequencies, rotary_frequencies(14)[0])


def test_dynamic_ntk_of_each_row():
    lengths = np.array([[7], [101], [211], [1009]])
    frequencies, _ = rotary_frequencies(14, scaling=SCALINGS["dynamic_ntk"], length=lengths)
    assert frequencies.shape == (4, 1, 7)
    for row, length in zip(np.asarray(frequencies), lengths):
        expected, _ = rotary_frequencies(14, scaling=SCALINGS["dynamic_ntk"], length=int(length[0]))
        np.testing.assert_allclose(row[0], expected, rtol=1e-6)


def test_a_single_pair_is_never_stretched():
    frequencies, _ = rotary_frequencies(2, scaling=SCALINGS["dynamic_ntk"], length=1009)
    np.testing.assert_array_equal(frequencies, [1.0])


def test_yarn_keeps_fast_pairs_and_presses_slow_ones():
    frequencies, attention_factor = rotary_frequencies(64, scaling=SCALINGS["yarn"])
    unscaled = frequencies_by_hand(64)
    turns = 2011 * unscaled / (2 * math.pi)
    np.testing.assert_allclose(frequencies[turns > 32], unscaled[turns > 32], rtol=1e-7)
    np.testing.assert_allclose(frequencies[turns < 1], unscaled[turns < 1] / 7, rtol=1e-7)
    between = (turns < 30) & (turns > 1)
    assert between.sum() > 3
    ratios = frequencies[between] / unscaled[between]
    assert (np.diff(ratios) < 0).all()
    assert ((ratios > 1 / 7) & (ratios < 1)).all()
    assert attention_factor == pytest.approx(0.1 * math.log(7) + 1)


@pytest.mark.parametrize("length", [10**9, 10**10, 10**12])
def test_yarn_changes_nothing_where_every_pair_turns_often(length):
    scaling = {"type": "yarn", "factor": 7.0, "original_max_sequence_length": length}
    np.testing.assert_array_equal(rotary_frequencies(14, scaling=scaling)[0], rotary_frequencies(14)[0])


def test_llama3_one_pair_at_a_time():
    frequencies, attention_factor = rotary_frequencies(64, 500, scaling=SCALINGS["llama3"])
    kinds = set()
    for actual, unscaled in zip(frequencies, frequencies_by_hand(64, 500.0)):
        wavelength = 2 * math.pi / unscaled
        if wavelength < 307 / 3:
            kinds.add("kept")
            expected = unscaled
        elif wavelength > 307:
            kinds.add("pressed")
            expected = unscaled / 5
        else:
            kinds.add("between")
            share = (307 / wavelength - 1) / (3 - 1)
            expected = (1 - share) * unscaled / 5 + share * unscaled
        assert actual == pytest.approx(expected, rel=1e-6)
    assert kinds == {"kept", "pressed", "between"}
    assert attention_factor == 1.0


@pytest.mark.parametrize("name", SCALINGS)
@pytest.mark.parametrize("rotary_dim", [14, 64])
@pytest.mark.parametrize("max_wavelength", [10000.0, 500.0])
def test_scalings_equal_transformers(name, rotary_dim, max_wavelength):
    frequencies, attention_factor = rotary_frequencies(
        rotary_dim, max_wavelength, SCALINGS[name], length=449 if name == "dynamic_ntk" else None
    )
    expected, expected_factor = transformers_frequencies(SCALINGS[name], rotary_dim, max_wavelength, 449)
    np.testing.assert_allclose(frequencies, expected, rtol=2e-6)
    assert attention_factor == pytest.approx(expected_factor)
    assert not np.allclose(expected, frequencies_by_hand(rotary_dim, max_wavelength), rtol=1e-3)


def transformers_frequencies(scaling, rotary_dim, max_wavelength, length):
    reason = 'pip install "keras_attn[peers]"'
    rope = pytest.importorskip("transformers.modeling_rope_utils", reason=reason)
    transformers = pytest.importorskip("transformers", reason=reason)
    theirs = {"type": "rope_type", "original_max_sequence_length": "original_max_position_embeddings"}
    parameters = {theirs.get(key, key): value for key, value in scaling.items()}
    parameters["rope_type"] = {"dynamic_ntk": "dynamic"}.get(scaling["type"], scaling["type"])
    config = transformers.LlamaConfig(
        head_dim=rotary_dim,
        # What "dynamic" calls its original length.
        max_position_embeddings=scaling.get("original_max_sequence_length", 2048),
        rope_parameters={**parameters, "rope_theta": max_wavelength},
    )
    frequencies, factor = rope.ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, "cpu", seq_len=length)
    return frequencies.numpy(), factor


def test_a_key_that_is_none_is_left_out():
    scaling = {**SCALINGS["yarn"], "beta_fast": None, "attention_factor": None}
    frequencies, attention_factor = rotary_frequencies(14, scaling=scaling)
    expected, expected_factor = rotary_frequencies(14, scaling=SCALINGS["yarn"])
    np.testing.assert_array_equal(frequencies, expected)
    assert attention_factor == expected_factor


TYPES = (
    "`scaling` must be None, or a dict whose \"type\" is one of ['dynamic_ntk', 'linear', 'llama3', 'yarn']."
)


@pytest.mark.parametrize(
    ("scaling", "message"),
    [
        (4.0, TYPES + " Received: scaling=4.0."),
        ({"factor": 4.0}, TYPES),
        ({"type": "longrope", "factor": 4.0}, TYPES),
        (
            {"type": "linear"},
            "`scaling` of type 'linear' must have the keys ['factor']. Received: scaling={'type': 'linear'}.",
        ),
        (
            {"type": "linear", "factor": None},
            "`scaling` of type 'linear' must have the keys ['factor']. Received:",
        ),
        (
            {"type": "linear", "factor": 4.0, "beta_fast": 32},
            "`scaling` of type 'linear' must have the keys ['factor']. Received:",
        ),
        (
            {"type": "yarn", "factor": 4.0},
            "`scaling` of type 'yarn' must have the keys ['factor', 'original_max_sequence_length'], "
            "and may have ['beta_fast', 'beta_slow', 'attention_factor', 'truncate']. Received:",
        ),
        (
            {**SCALINGS["yarn"], "truncate": 1},
            "`truncate` of `scaling` must be a bool. Received: truncate=1.",
        ),
        (
            {"type": "linear", "factor": 0.5},
            "`factor` of `scaling` must be at least 1. Received: factor=0.5.",
        ),
        ({"type": "linear", "factor": "2"}, "`factor` of `scaling` must be at least 1. Received: factor=2."),
        ({"type": "linear", "factor": math.nan}, "`factor` of `scaling` must be at least 1."),
        (
            {"type": "dynamic_ntk", "factor": 2.0, "original_max_sequence_length": 0},
            "`original_max_sequence_length` of `scaling` must be positive. "
            "Received: original_max_sequence_length=0.",
        ),
        (
            {**SCALINGS["yarn"], "beta_fast": 1},
            "`beta_fast` of `scaling` must be greater than `beta_slow`. Received: beta_fast=1, beta_slow=1.0.",
        ),
        (
            {**SCALINGS["llama3"], "low_freq_factor": 3.0},
            "`high_freq_factor` of `scaling` must be greater than `low_freq_factor`. "
            "Received: high_freq_factor=3.0, low_freq_factor=3.0.",
        ),
    ],
)
def test_a_bad_scaling_is_refused(scaling, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        rotary_frequencies(14, scaling=scaling)


@pytest.mark.parametrize("rotary_dim", [0, -2, 7, 2.0, None])
def test_a_bad_rotary_dim_is_refused(rotary_dim):
    message = f"`rotary_dim` must be a positive even integer. Received: rotary_dim={rotary_dim}."
    with pytest.raises(ValueError, match=re.escape(message)):
        rotary_frequencies(rotary_dim)


@pytest.mark.parametrize("max_wavelength", [1, 0, -10000, math.inf, "10000"])
def test_a_bad_max_wavelength_is_refused(max_wavelength):
    message = f"`max_wavelength` must be greater than 1. Received: max_wavelength={max_wavelength}."
    with pytest.raises(ValueError, match=re.escape(message)):
        rotary_frequencies(14, max_wavelength)
