"""Sampling against inverse transform sampling by hand, and its processors against NumPy and transformers."""

import functools

import keras
import numpy as np
import pytest
from helpers_generation import (
    END,
    PAD,
    START,
    answer,
    compilers,
    each_compiler,
    greedy_by_hand,
    log_probabilities,
    processed_by_hand,
    quickest,
    random_tables,
    rescored,
    scripted_inputs,
)
from keras import ops

from keras_attn.generation import DecodingOptions, SearchInputs, sample
from keras_attn.generation.processors import (
    IMPOSSIBLE,
    divide_by_temperature,
    is_possible,
    keep_min_p,
    keep_top_k,
    keep_top_p,
)
from keras_attn.ops import hashed_uniform

B, N, V, L = 5, 3, 7, 11
VALUES = {
    "seed": np.array([3, 11, 3, 0, -7], "int32"),
    "temperature": np.array([1.0, 0.5, 2.0, 0.0, 1.3], "float32"),
    "top_k": np.array([0, 3, 1, 5, 2], "int32"),
    "top_p": np.array([1.0, 0.8, 0.3, 0.9, 0.0], "float32"),
    "min_p": np.array([0.0, 0.2, 0.05, 0.5, 0.1], "float32"),
}
MASKS = {
    "min_length": np.array([1, 4, 1, 6, 2], "int32"),
    "max_length": np.array([11, 7, 1, 9, 11], "int32"),
    "suppressed_token_ids": np.array([[-1], [0], [4], [-1], [1]], "int32"),
    "no_repeat_ngram_size": np.array([0, 1, 2, 0, 3], "int32"),
    "repetition_penalty": np.array([1.0, 1.0, 1.3, 2.0, 1.0], "float32"),
    "prefix_token_ids": np.array([[-1, -1], [4, -1], [0, 1], [-1, -1], [5, 5]], "int32"),
}


@functools.lru_cache
def compiled_sample(compiler, num_samples):
    def draw(tables, given):
        return sample(scripted_inputs(tables, L), num_samples, options=DecodingOptions(**given))

    return compilers()[compiler](draw)


def drawn(tables, given, num_samples=N, compiler=None):
    given = {name: ops.convert_to_tensor(value) for name, value in given.items()}
    found = compiled_sample(compiler or quickest(), num_samples)(ops.convert_to_tensor(tables), given)
    return tuple(ops.convert_to_numpy(x) for x in found)


@functools.cache
def uniforms(seed):
    """The numbers (N, L) of a row's seed; that they are uniform is a test of its own."""
    indices = (np.int32(seed), np.arange(N, dtype="int32")[:, None], np.arange(L, dtype="int32")[None])
    return ops.convert_to_numpy(hashed_uniform(*map(ops.convert_to_tensor, indices)))


def sharpened_by_hand(log_probs, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, **others):
    """Probabilities, in the order of the processors."""
    log_probs = np.array(log_probs, "float64")
    if temperature == 0:
        log_probs[log_probs < log_probs.max()] = -np.inf
    else:
        log_probs = log_probs / temperature
    if top_k:
        log_probs[log_probs < np.sort(log_probs)[::-1][min(top_k, len(log_probs)) - 1]] = -np.inf
    if top_p < 1:
        ordered = np.sort(log_probs)[::-1]
        shares = np.exp(ordered - ordered[0]) / np.exp(ordered - ordered[0]).sum()
        count = 1 + int((np.cumsum(shares)[:-1] < top_p).sum())
        log_probs[log_probs < ordered[count - 1]] = -np.inf
    if min_p:
        log_probs[log_probs < log_probs.max() + np.log(min_p)] = -np.inf
    weights = np.exp(log_probs - log_probs.max())
    return weights / weights.sum()


def sampled_by_hand(table, draw, options):
    tokens = ()
    for step in range(options.get("max_length", L)):
        allowed = processed_by_hand(tokens, log_probabilities(table, tokens), **options)
        probabilities = sharpened_by_hand(allowed, **options)
        passed = np.cumsum(probabilities) <= uniforms(options.get("seed", 0))[draw, step]
        tokens = (*tokens, int(passed.sum()))
        if tokens[-1] == END:
            break
    return tokens


@pytest.mark.sampled(1)
@pytest.mark.parametrize("names", [["seed"], [*VALUES], [*VALUES, *MASKS]], ids=["plain", "sharp", "all"])
def test_equals_inverse_transform_sampling_by_hand(names):
    for number in range(5):
        tables = random_tables(number, B, V)
        given = {name: {**VALUES, **MASKS}[name] for name in names}
        token_ids, scores = drawn(tables, given)
        for row, draw in np.ndindex(B, N):
            options = {name: value[row].tolist() for name, value in given.items()}
            expected = sampled_by_hand(tables[row], draw, options)
            assert answer(token_ids[row, draw])[: len(expected)] == expected
            assert (token_ids[row, draw, len(expected) :] == PAD).all()
            np.testing.assert_allclose(scores[row, draw], rescored(tables[row], expected, 1.0), rtol=2e-5)


def test_other_seeds_and_other_samples_draw_otherwise():
    tables = np.repeat(random_tables(2, 1, V), B, axis=0)
    token_ids, _ = drawn(tables, {"seed": np.array([1, 1, 2, 3, 4], "int32")})
    np.testing.assert_array_equal(token_ids[0], token_ids[1])
    assert len({answer(tokens) for row in token_ids[1:] for tokens in row}) > 8


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "given",
    [
        {"temperature": 0.0},
        {"top_k": 1},
        {"top_p": 0.0},
        {"min_p": 1.0},
        {"temperature": 1.2e-38, "top_p": 0.9},
    ],
    ids=str,
)
def test_the_sharpest_values_are_greedy_search(given):
    tables = random_tables(3, B, V)
    token_ids, _ = drawn(tables, {name: np.array(value) for name, value in given.items()})
    for row, draw in np.ndindex(B, N):
        assert answer(token_ids[row, draw]) == greedy_by_hand(tables[row], L)


@pytest.mark.parametrize("temperature", [1e29, 1e35, float("inf")])
def test_no_temperature_makes_a_suppressed_token_possible(temperature):
    given = {"temperature": np.float32(temperature), "suppressed_token_ids": np.array([0, 4, END], "int32")}
    token_ids, _ = drawn(random_tables(8, B, V), {**given, "seed": np.arange(B, dtype="int32")})
    assert set(token_ids.ravel().tolist()) == {1, 2, 5, 6}


@pytest.mark.parametrize("temperature", [1.2e-38, 1e-30, 1e-10])
def test_the_least_temperatures_leave_a_number_for_the_best(temperature):
    log_probs = ops.convert_to_tensor([[[-5.0, -4.5, -4.75, -60.0, IMPOSSIBLE]]])
    divided = ops.convert_to_numpy(divide_by_temperature(log_probs, ops.convert_to_tensor([temperature])))
    assert np.argmax(divided) == 1
    assert is_possible(divided[0, 0, 1])
    assert not is_possible(divided[0, 0, -1])


def test_tokens_are_drawn_as_often_as_they_are_probable():
    count = 4096
    logits = np.array([0.3, -1.0, 2.0, 0.0, 1.1], "float32")
    probabilities = np.exp(logits) / np.exp(logits).sum()

    def step(token_ids, index, cache, attention_mask):
        return ops.zeros((*token_ids.shape, 5)) + ops.convert_to_tensor(logits), cache

    def draw(seeds):
        cache = tuple(ops.zeros((1, 1, 2, 1)) for _ in range(2))
        inputs = SearchInputs(step, lambda slots: (cache,), count, 1, START, 4, PAD)
        return sample(inputs, 2, options=DecodingOptions(seed=seeds))

    token_ids = ops.convert_to_numpy(draw(np.arange(count, dtype="int32")).token_ids)
    frequencies = np.bincount(token_ids.ravel(), minlength=5) / token_ids.size
    error = np.sqrt(probabilities * (1 - probabilities) / token_ids.size)
    assert (np.abs(frequencies - probabilities) < 4 * error).all()


def test_uniform_numbers_are_uniform_and_have_nothing_to_do_with_their_neighbours():
    seeds, steps = ops.arange(256, dtype="int32")[:, None], ops.arange(128, dtype="int32")[None]
    numbers = ops.convert_to_numpy(hashed_uniform(seeds, ops.convert_to_tensor(0, "int32"), steps))
    assert (
        0 < numbers.min() < numbers.max() < 1
    )  # seed 0 at step 0 must not draw the first token of every vocabulary
    ordered = np.sort(numbers.ravel())
    gap = np.abs(ordered - (np.arange(ordered.size) + 0.5) / ordered.size).max()
    assert gap < 1.63 / np.sqrt(ordered.size)  # the 1 % point of Kolmogorov and Smirnov
    for neighbours in ((numbers[1:], numbers[:-1]), (numbers[:, 1:], numbers[:, :-1])):
        assert abs(np.corrcoef(*(x.ravel() for x in neighbours))[0, 1]) < 4 / np.sqrt(numbers.size)


@pytest.mark.parametrize("compiler", each_compiler())
def test_every_compiler_draws_the_same(compiler):
    tables, given = random_tables(4, B, V), {**VALUES, **MASKS}
    np.testing.assert_array_equal(drawn(tables, given, compiler=compiler)[0], drawn(tables, given)[0])


# --- the processors ---

PROCESSORS = {
    "temperature": divide_by_temperature,
    "top_k": keep_top_k,
    "top_p": keep_top_p,
    "min_p": keep_min_p,
}


@pytest.mark.parametrize("name", PROCESSORS)
def test_a_processor_equals_numpy(rng, name):
    log_probs = np.log(rng.dirichlet(np.ones(V), (B, N))).astype("float32")
    actual = PROCESSORS[name](ops.convert_to_tensor(log_probs), ops.convert_to_tensor(VALUES[name]))
    actual = ops.convert_to_numpy(actual)
    for row, draw in np.ndindex(B, N):
        expected = sharpened_by_hand(log_probs[row, draw], **{name: VALUES[name][row].item()})
        possible = ops.convert_to_numpy(is_possible(actual[row, draw]))
        np.testing.assert_array_equal(possible, expected > 0)
        weights = np.exp(actual[row, draw].astype("float64"))
        np.testing.assert_allclose(weights / weights.sum(), expected, rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize("name", PROCESSORS)
def test_a_processor_equals_that_of_transformers(rng, name):
    transformers = pytest.importorskip(
        "transformers", reason='needs transformers: pip install "keras_attn[peers]"'
    )
    import torch

    logits_process = transformers.generation.logits_process
    make = {
        "temperature": logits_process.TemperatureLogitsWarper,
        "top_k": logits_process.TopKLogitsWarper,
        "top_p": logits_process.TopPLogitsWarper,
        "min_p": logits_process.MinPLogitsWarper,
    }[name]
    for value in {"temperature": [0.4, 3.0], "top_k": [1, 4], "top_p": [0.2, 0.95], "min_p": [0.1, 0.6]}[
        name
    ]:
        log_probs = np.log(rng.dirichlet(np.ones(V), B)).astype("float32")
        expected = make(value)(None, torch.tensor(log_probs)).numpy()
        values = ops.convert_to_tensor(np.full(B, value, VALUES[name].dtype))
        actual = ops.convert_to_numpy(PROCESSORS[name](ops.convert_to_tensor(log_probs[:, None]), values))[
            :, 0
        ]
        np.testing.assert_array_equal(actual > -1e29, np.isfinite(expected))
        np.testing.assert_allclose(actual[actual > -1e29], expected[np.isfinite(expected)], rtol=1e-6)


def test_ties_at_the_edge_stay():
    log_probs = ops.convert_to_tensor(np.log([[[0.4, 0.2, 0.2, 0.2]]]).astype("float32"))
    for processor, value in ((keep_top_k, np.array([2])), (keep_top_p, np.array([0.5], "float32"))):
        kept = processor(log_probs, ops.convert_to_tensor(value))
        assert ops.convert_to_numpy(is_possible(kept)).all()


@pytest.mark.parametrize("num_samples", [0, True, 1.5])
def test_a_bad_number_of_samples_is_refused(num_samples):
    with pytest.raises(ValueError, match="`num_samples` must be a positive integer"):
        sample(SearchInputs(None, None, 1, 3, START, END), num_samples)


def test_an_empty_batch_draws_nothing():
    token_ids, scores = drawn(random_tables(5, 0, V), {"seed": np.zeros(0, "int32")})
    assert token_ids.shape == (0, N, L)
    assert scores.shape == (0, N)
    assert keras.backend.standardize_dtype(token_ids.dtype) == "int32"
