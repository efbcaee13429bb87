"""Every option of decoding: its processor against NumPy, its search against one row worked out by hand, and rows of one
batch that differ in all of them against the same rows alone."""

import functools
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest
from helpers_generation import (
    END,
    PAD,
    START,
    answer,
    beam_search_by_hand,
    compilers,
    each_compiler,
    log_probabilities,
    padded,
    processed_by_hand,
    quickest,
    random_tables,
    rescored,
    scripted_inputs,
)
from keras import ops

from keras_attn.generation import OPTIONS, DecodingOptions, SearchInputs, beam_search, options
from keras_attn.generation.processors import (
    IMPOSSIBLE,
    History,
    forbid_repeated_ngrams,
    force_prefix,
    penalize_repetition,
    require_min_length,
    suppress_tokens,
)

DOCS = pathlib.Path(__file__).parents[2] / "docs"
B, K, V, L = 5, 3, 7, 11

# A value for each of five rows; the first row's is neutral.
VALUES = {
    "min_length": [1, 3, 5, 2, 11],
    "max_length": [11, 2, 7, 1, 11],
    "suppressed_token_ids": [[-1, -1], [0, -1], [1, 4], [END, -1], [0, 1]],
    "suppressed_first_token_ids": [[-1, -1], [END, 4], [5, -1], [-1, END], [1, END]],
    "stop_token_ids": [[-1, -1], [5, -1], [5, 6], [-1, 6], [6, 6]],
    "prefix_token_ids": [[-1, -1, -1], [4, -1, -1], [4, 4, 1], [0, 1, -1], [END, -1, -1]],
    "first_token_id": [-1, 4, -1, 5, 1],
    "last_token_id": [-1, 5, END, -1, END],
    "no_repeat_ngram_size": [0, 1, 2, 3, 4],
    "repetition_penalty": [1.0, 1.7, 0.6, 5.0, 1.1],
    "renormalize": [False, True, True, False, True],
    "num_beams": [3, 1, 2, 3, 1],
    "wu_length_penalty": [0.0, 0.6, 2.0, -0.5, 1.0],
    "exact_stopping": [False, True, True, False, True],
    "early_stopping": [False, True, False, True, True],
}


def neutral(name):
    return VALUES[name][0]


def arrays(names):
    dtypes = dict.fromkeys(("repetition_penalty", "wu_length_penalty"), "float32")
    dtypes |= dict.fromkeys(("exact_stopping", "early_stopping", "renormalize"), "bool")
    return {name: np.array(VALUES[name], dtypes.get(name, "int32")) for name in names}


@functools.lru_cache
def compiled_search(compiler, num_beams, names):
    def search(tables, length_penalty, given):
        options = DecodingOptions(**given) if names else None
        return beam_search(scripted_inputs(tables, L), num_beams, length_penalty, options)

    return compilers()[compiler](search)


def found(tables, given, num_beams=K, length_penalty=1.0, compiler=None):
    search = compiled_search(compiler or quickest(), num_beams, tuple(given))
    given = {name: ops.convert_to_tensor(value) for name, value in given.items()}
    hypotheses = search(ops.convert_to_tensor(tables), ops.convert_to_tensor(length_penalty), given)
    return tuple(ops.convert_to_numpy(x) for x in hypotheses)


def by_hand(tables, given, num_beams=K, length_penalty=1.0):
    rows = []
    for row, table in enumerate(tables):
        options = {name: value[row].tolist() for name, value in given.items()}
        stops = tuple(token for token in options.pop("stop_token_ids", ()) if token >= 0)
        hypotheses = beam_search_by_hand(
            functools.partial(log_probabilities, table),
            min(L, options.pop("max_length", L)),
            options.pop("num_beams", num_beams),
            length_penalty,
            ends=(END, *stops),
            **options,
        )
        token_ids, scores = padded(hypotheses, L)
        missing = num_beams - len(scores)
        token_ids = np.concatenate([token_ids, np.full((missing, L), PAD)])
        rows.append((token_ids, np.concatenate([scores, np.full(missing, -np.inf)])))
    return tuple(np.stack(column) for column in zip(*rows))


def assert_same(actual, expected):
    np.testing.assert_array_equal(actual[0], expected[0])
    np.testing.assert_allclose(actual[1], expected[1], rtol=2e-5, atol=1e-6)  # forced tokens cost nothing


# Tests of their own, and that of all options together, show the others too.
ALONE = (
    "min_length",
    "prefix_token_ids",
    "first_token_id",
    "last_token_id",
    "no_repeat_ngram_size",
    "repetition_penalty",
    "renormalize",
    "wu_length_penalty",
    "early_stopping",
)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ALONE)
def test_each_option_alone_equals_the_search_by_hand(name):
    for seed in range(3):
        tables, given = random_tables(seed, B, V, end_logit=seed - 1.0), arrays([name])
        assert_same(found(tables, given), by_hand(tables, given))


@pytest.mark.extended
def test_all_options_together_equal_the_search_by_hand():
    for seed in range(9):
        rng = np.random.default_rng(seed)
        given = {name: rng.permutation(value) for name, value in arrays(VALUES).items()}
        tables = random_tables(seed, B, V)
        actual = found(tables, given, length_penalty=0.7)
        assert_same(actual, by_hand(tables, given, length_penalty=0.7))


@pytest.mark.extended
def test_rows_of_a_batch_equal_the_rows_alone():
    tables, given = random_tables(3, B, V), arrays(VALUES)
    together = found(tables, given)
    for row in range(B):
        alone = found(tables[row : row + 1], {name: value[row : row + 1] for name, value in given.items()})
        np.testing.assert_array_equal(alone[0][0], together[0][row])
        np.testing.assert_allclose(alone[1][0], together[1][row], rtol=1e-6)


def test_neutral_values_change_nothing():
    tables = random_tables(4, B, V)
    given = {name: np.repeat(value[:1], B, axis=0) for name, value in arrays(VALUES).items()}
    assert_same(found(tables, given), found(tables, {}))


@pytest.mark.parametrize("compiler", each_compiler())
def test_every_compiler_gives_the_same(compiler):
    tables, given = random_tables(5, B, V), arrays(VALUES)
    assert_same(found(tables, given, compiler=compiler), by_hand(tables, given))


@pytest.mark.extended
def test_one_value_for_all_rows_is_one_for_each():
    tables = random_tables(6, B, V)
    one = {"min_length": np.int32(4), "stop_token_ids": np.array([5], "int32")}
    each = {name: np.repeat(value[None], B, axis=0) for name, value in one.items()}
    assert_same(found(tables, one), found(tables, each))


def test_a_row_of_fewer_beams_equals_a_search_with_as_many():
    tables = random_tables(7, B, V)
    for num_beams in (1, 2, 3):
        actual = found(tables, {"num_beams": np.full(B, num_beams, "int32")})
        expected = found(tables, {}, num_beams=num_beams)
        np.testing.assert_array_equal(actual[0][:, :num_beams], expected[0])
        assert (actual[0][:, num_beams:] == PAD).all()
        np.testing.assert_allclose(actual[1][:, :num_beams], expected[1], rtol=1e-6)
        assert (actual[1][:, num_beams:] == -np.inf).all()


@pytest.mark.parametrize("length_penalty", [0.6, 1.0])
def test_exact_stopping_loses_no_better_hypothesis(length_penalty):
    """What the search would have found without ever stopping, had it run to the end, is what it returns."""
    differs = 0
    for seed in range(12):
        tables = random_tables(seed, B, V, end_logit=2.0)
        exact = found(tables, {"exact_stopping": np.ones(B, bool)}, 2, length_penalty)
        early = found(tables, {}, 2, length_penalty)
        for row in range(B):
            endless = search_without_a_stop(tables[row], 2, length_penalty)
            np.testing.assert_allclose(exact[1][row], [score for score, _ in endless], rtol=2e-5)
        assert (exact[1] >= early[1] - 1e-5).all()
        differs += int((exact[0] != early[0]).any())
    assert differs > 0


def search_without_a_stop(table, num_beams, length_penalty):
    live, finished = [(0.0, ())], []
    for length in range(1, L + 1):
        candidates = sorted(
            (
                (total + step, (*prefix, token))
                for total, prefix in live
                for token, step in enumerate(log_probabilities(table, prefix))
            ),
            key=lambda candidate: -candidate[0],
        )
        finished += [
            (total / length**length_penalty, x) for total, x in candidates[:num_beams] if x[-1] == END
        ]
        live = [candidate for candidate in candidates if candidate[1][-1] != END][:num_beams]
    finished += [(total / length**length_penalty, tokens) for total, tokens in live]
    return sorted(finished, key=lambda hypothesis: -hypothesis[0])[:num_beams]


def test_a_score_with_a_forced_prefix_is_that_of_the_model():
    tables, given = random_tables(8, B, V), arrays(VALUES)
    for name in set(VALUES) - {"prefix_token_ids", "no_repeat_ngram_size", "min_length"}:
        given[name] = np.repeat(given[name][:1], B, axis=0)
    token_ids, scores = found(tables, given)
    for row in range(B):
        for hypothesis, score in zip(token_ids[row], scores[row]):
            if np.isfinite(score):
                np.testing.assert_allclose(score, rescored(tables[row], hypothesis, 1.0), rtol=2e-5)
                forced = [token for token in given["prefix_token_ids"][row] if token >= 0]
                assert list(answer(hypothesis))[: len(forced)] == forced


# --- the coverage penalty, which no table of logits knows of ---


def test_coverage_penalty_by_hand():
    """Two source tokens and a pad; tokens 0 and 1 each look at one of them, so that 0 0 leaves one uncovered."""
    attention = np.array([[0.9, 0.1, 0.0], [0.2, 0.8, 0.0], [0.5, 0.5, 0.0], [0.5, 0.5, 0.0]], "float32")

    def search(penalty):
        def step(token_ids, index, cache, attention_mask):
            likes = ops.convert_to_tensor([[[2.0, 1.0, -9.0, 0.5]]])
            logits = ops.zeros((1, 2, 4)) + likes
            return logits, cache, ops.take(attention, token_ids, axis=0)

        inputs = SearchInputs(
            step,
            lambda slots: (tuple(ops.zeros((1, 1, slots, 1)) for _ in range(2)),),
            batch_size=1,
            max_length=3,
            start_token_id=START,
            end_token_id=END,
            pad_token_id=PAD,
            coverage=np.array([[0.0, 0.0, 1.0]], "float32"),
        )
        return beam_search(
            inputs, num_beams=2, length_penalty=0.0, options=DecodingOptions(coverage_penalty=penalty)
        )

    log_probs = np.log(np.exp([2.0, 1.0, -9.0, 0.5]) / np.exp([2.0, 1.0, -9.0, 0.5]).sum())
    for penalty in (0.0, 0.7):
        token_ids, scores = (ops.convert_to_numpy(x) for x in search(penalty))
        for tokens, score in zip(token_ids[0], scores[0]):
            tokens = answer(tokens)
            # The attention at a step is that of the token that went in: START first.
            covered = sum(attention[token] for token in (START, *tokens[:-1]))[:2]
            expected = log_probs[list(tokens)].sum() + penalty * np.log(np.minimum(covered, 1)).sum()
            np.testing.assert_allclose(score, expected, rtol=1e-5)


# --- processors, one at a time ---


def history_of(rng, start=0, stop=6):
    token_ids = rng.integers(0, V, (B, K, L)).astype("int32")
    return token_ids, History(
        ops.convert_to_tensor(token_ids), ops.convert_to_tensor(np.full(B, start, "int32")), stop
    )


@pytest.mark.parametrize("start", [0, 2])
@pytest.mark.parametrize("name", ["no_repeat_ngram_size", "repetition_penalty"])
def test_processors_of_the_history(rng, name, start):
    function = {"no_repeat_ngram_size": forbid_repeated_ngrams, "repetition_penalty": penalize_repetition}[
        name
    ]
    value = arrays([name])[name]
    for stop in range(start, L + 1):
        token_ids, history = history_of(rng, start, stop)
        log_probs = -rng.random((B, K, V)).astype("float32")
        actual = ops.convert_to_numpy(
            function(ops.convert_to_tensor(log_probs), history, ops.convert_to_tensor(value))
        )
        for row, beam in np.ndindex(B, K):
            prefix = tuple(token_ids[row, beam, start:stop].tolist())
            expected = processed_by_hand(prefix, log_probs[row, beam], **{name: value[row].item()})
            expected = np.where(np.isinf(expected), IMPOSSIBLE, expected)
            np.testing.assert_allclose(actual[row, beam], expected, rtol=1e-6)


@pytest.mark.parametrize("start", [0, 2])
def test_ngrams_of_any_size_appear_once(rng, start):
    """Histories of two tokens repeat long n-grams; an n may be longer than its history, and as large as int32."""
    sizes = np.array([5, 7, L, L + 1, 2**31 - 1], "int32")
    forbidden = np.zeros(B, bool)
    for stop in range(start, L + 1):
        token_ids = np.tile(np.arange(L) % 2, (B, K, 1)).astype("int32")
        history = History(
            ops.convert_to_tensor(token_ids), ops.convert_to_tensor(np.full(B, start, "int32")), stop
        )
        log_probs = -rng.random((B, K, V)).astype("float32")
        actual = ops.convert_to_numpy(
            forbid_repeated_ngrams(ops.convert_to_tensor(log_probs), history, ops.convert_to_tensor(sizes))
        )
        for row, beam in np.ndindex(B, K):
            prefix = tuple(token_ids[row, beam, start:stop].tolist())
            expected = processed_by_hand(prefix, log_probs[row, beam], no_repeat_ngram_size=int(sizes[row]))
            np.testing.assert_array_equal(actual[row, beam] == IMPOSSIBLE, np.isinf(expected))
            forbidden[row] |= np.isinf(expected).any()
    assert forbidden.tolist() == [True, True, False, False, False]


def test_suppression_by_hand():
    log_probs = ops.zeros((2, 1, 4))
    actual = suppress_tokens(log_probs, ops.convert_to_tensor([[1, -1], [-1, 3]]))
    np.testing.assert_array_equal(
        ops.convert_to_numpy(actual) == IMPOSSIBLE, [[[0, 1, 0, 0]], [[0, 0, 0, 1]]]
    )


def test_min_length_counts_the_end():
    ends, min_length = ops.convert_to_tensor([[END, 5]]), ops.convert_to_tensor([3, 4])
    actual = require_min_length(ops.zeros((2, 1, V)), 3, min_length, ends)
    np.testing.assert_array_equal((ops.convert_to_numpy(actual) == IMPOSSIBLE).any((1, 2)), [False, True])


def test_a_prefix_goes_before_what_is_forbidden():
    original = -np.arange(V, dtype="float32")[None, None]
    processed = np.full((1, 1, V), IMPOSSIBLE, "float32")
    prefix = ops.convert_to_tensor([[4, 2, -1]])
    for index, wanted in enumerate([4, 2]):
        actual = ops.convert_to_numpy(force_prefix(processed, original, index, prefix))
        assert np.flatnonzero(actual[0, 0] > IMPOSSIBLE).tolist() == [wanted]
        assert actual[0, 0, wanted] == -wanted
    for index in (2, 3, 9):
        np.testing.assert_array_equal(
            ops.convert_to_numpy(force_prefix(processed, original, index, prefix)), processed
        )


# --- bad values ---


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"min_length": -1}, "`min_length` must be at least 0. Received: -1.$"),
        ({"max_length": 0}, "`max_length` must be at least 1."),
        (
            {"no_repeat_ngram_size": [-2, -1, 0, 1, 2]},
            "`no_repeat_ngram_size` must be at least 0. Received: -2 to 2.",
        ),
        (
            {"no_repeat_ngram_size": 1.5},
            "`no_repeat_ngram_size` must be an integer. Received: no_repeat_ngram_size=1.5.",
        ),
        (
            {"no_repeat_ngram_size": "x"},
            "`no_repeat_ngram_size` must be an integer. Received: no_repeat_ngram_size='x'.",
        ),
        ({"seed": float("nan")}, "`seed` must be an integer. Received: seed=nan."),
        (
            {"stop_token_ids": [5, 6.5]},
            r"`stop_token_ids` must be integers. Received: stop_token_ids=\[5, 6.5\].",
        ),
        ({"top_p": "x"}, "`top_p` must be a number. Received: top_p='x'."),
        ({"renormalize": "x"}, "`renormalize` must be True or False. Received: renormalize='x'."),
        ({"renormalize": 2}, "`renormalize` must be True or False. Received: renormalize=2."),
        ({"repetition_penalty": 0.0}, "`repetition_penalty` must be at least 1e-06."),
        ({"seed": 2**31}, f"`seed` must fit into int32. Received: seed={2**31}."),
        ({"stop_token_ids": [5, 2**40]}, "`stop_token_ids` must fit into int32."),
        ({"repetition_penalty": float("nan")}, "`repetition_penalty` must be a number. Received: nan."),
        ({"wu_length_penalty": [0.0, 1.0, float("nan"), 0.0, 0.0]}, "`wu_length_penalty` must be a number."),
        ({"top_p": 1.5}, r"`top_p` must be in \[0, 1\]. Received: 1.5.$"),
        ({"temperature": -0.1}, "`temperature` must be at least 0."),
        ({"num_beams": [1, 2]}, "`num_beams` must have a value for each of the 5 rows. Received: 2 of them."),
        (
            {"seed": [[1, 2]]},
            r"`seed` must have one value a row, or one for all. Received: seed of shape \(1, 2\).",
        ),
        ({"stop_token_ids": 3}, r"`stop_token_ids` must have shape \(P,\), or \(batch, P\)."),
    ],
    ids=str,
)
def test_a_value_out_of_range_is_refused(given, message):
    for check in (lambda options: options.per_row(5), lambda options: options.row_arrays([1, 0], 5)):
        with pytest.raises(ValueError, match=message):
            check(DecodingOptions(**given))


def test_an_integer_as_a_float_is_taken():
    """As JSON may have it."""
    values = DecodingOptions(no_repeat_ngram_size=3.0, renormalize=1, stop_token_ids=[]).per_row(2)
    assert ops.convert_to_numpy(values.no_repeat_ngram_size).tolist() == [3, 3]
    assert ops.convert_to_numpy(values.renormalize).tolist() == [True, True]


def test_every_option_is_tested_here_or_with_sampling():
    sampling = {name for name, option in OPTIONS.items() if option.acts_on == "draws"}
    assert sampling == {"temperature", "top_k", "top_p", "min_p", "seed"}, (
        'An option that `acts_on="draws"` needs a test in tests/generation/test_sampling.py. Then add it to this set.'
    )
    tested = {*VALUES, "coverage_penalty"} | sampling
    assert set(OPTIONS) == tested, (
        f"For each of {sorted(set(OPTIONS) ^ tested)}: add five values to VALUES, the first of them the neutral one, a row to "
        "the table of docs/decoding.md, and the rule to `beam_search_by_hand` or `processed_by_hand` in "
        "tests/helpers_generation.py: docs/change_one_thing.md."
    )


def test_declared_neutral_values_are_those_of_the_first_row():
    """0 of two options stands for what the search has, in requests alone."""
    for name in set(VALUES) - {"num_beams", "max_length"}:
        first = np.unique(neutral(name))
        assert OPTIONS[name].neutral == first or (name, first) == ("min_length", 1), (
            f"VALUES[{name!r}] must begin with the neutral value that `DecodingOptions` declares, {OPTIONS[name].neutral}."
        )


def test_every_option_is_in_the_documentation_and_the_docstring():
    for text in ((DOCS / "decoding.md").read_text("utf-8"), DecodingOptions.__doc__):
        missing = [name for name in OPTIONS if name not in text]
        assert not missing, f"Add to the table of docs/decoding.md a row for each of {missing}."


def test_declarations_are_read_without_keras():
    path = pathlib.Path(options.__file__)
    code = f"import runpy, sys; runpy.run_path({str(path)!r}); assert not {{'keras', 'numpy'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="counts the traces of tf.function")
def test_values_are_data_of_one_trace():
    tables, given = random_tables(9, B, V), arrays(VALUES)
    search = compiled_search("graph", K, tuple(given))
    found(tables, given)
    count = search.experimental_get_tracing_count()
    for seed in range(3):
        found(tables, {name: np.random.default_rng(seed).permutation(value) for name, value in given.items()})
    assert search.experimental_get_tracing_count() == count
