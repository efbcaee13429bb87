"""Beam search over scripted step functions, which know no model, against the algorithm written out in NumPy."""

import functools

import helpers_generation as scripts
import numpy as np
import pytest
from helpers_generation import END, PAD, search_tables
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_attn.generation import MAX_HYPOTHESES, Hypotheses, beam_search

# Tests of as many rows, steps and beams share a compiled search.
B, V, L = 3, 7, 13


def assert_equal_by_hand(tables, max_length, num_beams, length_penalty, **options):
    token_ids, scores = search_tables(
        tables, max_length, num_beams=num_beams, length_penalty=length_penalty, **options
    )
    assert token_ids.shape == (len(tables), num_beams, max_length)
    assert token_ids.dtype == "int32"
    assert scores.shape == (len(tables), num_beams)
    assert scores.dtype == "float32"
    for table, row_ids, row_scores in zip(tables, token_ids, scores):
        script = functools.partial(scripts.log_probabilities, table)
        by_hand = scripts.beam_search_by_hand(script, max_length, num_beams, length_penalty)
        expected_ids, expected_scores = scripts.padded(by_hand, max_length)
        found = len(by_hand)
        np.testing.assert_array_equal(row_ids[:found], expected_ids)
        np.testing.assert_allclose(row_scores[:found], expected_scores, rtol=1e-5, atol=1e-5)
        assert (row_ids[found:] == PAD).all()
        assert np.isneginf(row_scores[found:]).all()


# END is as likely as any token, likely, and unlikely: answers that end early, at once, and hardly ever.
@pytest.mark.sampled(2)
@pytest.mark.parametrize(("num_beams", "length_penalty"), [(1, 1.0), (3, 1.0), (5, 2.0)])
def test_random_tables_token_for_token(num_beams, length_penalty):
    @settings(max_examples=15, deadline=None, derandomize=True, database=None)
    @given(seed=st.integers(0, 2**16), end_logit=st.sampled_from([0.0, 3.0, -3.0]))
    def check(seed, end_logit):
        tables = scripts.random_tables(seed, B, V, end_logit)
        assert_equal_by_hand(tables, L, num_beams, length_penalty)

    check()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("max_length", [1, 16, 17, 33])
def test_the_cache_grows_without_a_trace(max_length):
    # The cache holds 16 steps at first, then 32 and 64: lengths on both sides of each border.
    tables = scripts.random_tables(max_length, 2, V, end_logit=-4.0)
    assert_equal_by_hand(tables, max_length, num_beams=3, length_penalty=1.0)


@pytest.mark.extended
def test_a_beam_of_several_segments_that_ends_in_the_fourth():
    # END is certain after 66 tokens of 1, and impossible before.
    script = {(1,) * length: {1: 0.75, 4: 0.25} for length in range(66)}
    script |= {(1,) * 66: {END: 1.0}}
    token_ids, scores = search_tables(scripts.written_tables(V, script), 70, num_beams=1, length_penalty=0.0)
    assert scripts.answer(token_ids[0, 0]) == (1,) * 66 + (END,)
    assert scores[0, 0] == pytest.approx(66 * np.log(0.75), rel=1e-5)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("length_penalty", [0.0, 0.5, 2.0])
def test_with_beams_enough_it_is_brute_force(length_penalty):
    vocabulary_size, max_length = 4, 4
    num_beams = vocabulary_size ** (max_length - 1)
    for seed in range(3):
        tables = scripts.random_tables(seed, 2, vocabulary_size)
        token_ids, scores = search_tables(
            tables, max_length, num_beams=num_beams, length_penalty=length_penalty
        )
        for table, row_ids, row_scores in zip(tables, token_ids, scores):
            everything = scripts.every_hypothesis(table, max_length, length_penalty)[:num_beams]
            expected_ids, expected_scores = scripts.padded(everything, max_length)
            np.testing.assert_array_equal(row_ids[0], expected_ids[0])
            # Not the best alone: all that are kept, whatever order equal scores come in.
            np.testing.assert_allclose(row_scores, expected_scores, rtol=1e-5, atol=1e-5)
            assert {tuple(ids) for ids in row_ids} == {tuple(ids) for ids in expected_ids}


def test_beam_is_right_where_greedy_is_wrong():
    script = {(): {4: 0.6, 5: 0.4}, (4,): {1: 0.4, 5: 0.35, 6: 0.25}, (5,): {6: 0.9, 1: 0.1}}
    tables = scripts.written_tables(V, script)
    greedy, greedy_score = search_tables(tables, L, num_beams=1, length_penalty=0.0)
    assert scripts.answer(greedy[0, 0]) == (4, 1, END)
    assert greedy_score[0, 0] == pytest.approx(np.log(0.24), abs=1e-6)
    beam, beam_score = search_tables(tables, L, num_beams=2, length_penalty=0.0)
    assert scripts.answer(beam[0, 0]) == (5, 6, END)
    assert scripts.answer(beam[0, 1]) == (4, 1, END)
    np.testing.assert_allclose(beam_score[0], np.log([0.36, 0.24]), atol=1e-6)


def test_a_finished_hypothesis_keeps_its_score_beside_a_longer_batch_mate():
    # The best answer ends at once. Whoever goes on extending it, or waits for the longer row, spoils its score.
    short = {(): {END: 0.55, 4: 0.45}, (4,): {5: 0.9, 6: 0.1}, (4, 5): {6: 0.8, END: 0.2}}
    long = {(1,) * length: {1: 0.9, 4: 0.1} for length in range(L)}
    alone = search_tables(scripts.written_tables(V, short), L, num_beams=2, length_penalty=0.0)
    beside = search_tables(scripts.written_tables(V, short, long), L, num_beams=2, length_penalty=0.0)
    for token_ids, scores in (alone, beside):
        assert scripts.answer(token_ids[0, 0]) == (END,)
        assert scripts.answer(token_ids[0, 1]) == (4, 5, 6, END)
        assert (token_ids[0, 0, 1:] == PAD).all()
        np.testing.assert_allclose(scores[0], np.log([0.55, 0.45 * 0.9 * 0.8]), atol=1e-6)
    assert scripts.answer(beside[0][1, 0]) == (1,) * L


def test_length_penalty_decides_between_short_and_long():
    # log 0.5 in one token against log 0.45 in three: plain log-probability prefers the short, the mean the long.
    script = {(): {END: 0.5, 4: 0.45}, (4,): {5: 1.0}, (4, 5): {END: 1.0}}
    tables = scripts.written_tables(V, script)
    best = {
        length_penalty: scripts.answer(
            search_tables(tables, L, num_beams=3, length_penalty=length_penalty)[0][0, 0]
        )
        for length_penalty in (0.0, 1.0, 2.0)
    }
    assert best == {0.0: (END,), 1.0: (4, 5, END), 2.0: (4, 5, END)}


@settings(max_examples=20, deadline=None, derandomize=True, database=None)
@given(seed=st.integers(0, 2**16), end_logit=st.sampled_from([-2.0, 0.0, 2.0]))
def test_n_best_lists_are_sorted_distinct_clean_and_rescored(seed, end_logit):
    tables = scripts.random_tables(seed, B, V, end_logit)
    token_ids, scores = search_tables(tables, L, num_beams=5, length_penalty=0.7)
    assert (np.diff(scores, axis=-1) <= 0).all()
    for table, row_ids, row_scores in zip(tables, token_ids, scores):
        assert len({tuple(ids) for ids in row_ids}) == 5
        for ids, score in zip(row_ids, row_scores):
            assert (ids[len(scripts.answer(ids)) :] == PAD).all()
            assert score == pytest.approx(scripts.rescored(table, ids, 0.7), rel=1e-5, abs=1e-5)


def test_batch_mates_change_nothing():
    tables = scripts.random_tables(17, 5, V, end_logit=1.0)
    token_ids, scores = search_tables(tables, L, num_beams=3)
    for row in range(5):
        alone_ids, alone_scores = search_tables(tables[row : row + 1], L, num_beams=3)
        np.testing.assert_array_equal(alone_ids[0], token_ids[row])
        np.testing.assert_array_equal(alone_scores[0], scores[row])
    order = [3, 0, 4, 2, 1]
    permuted_ids, permuted_scores = search_tables(tables[order], L, num_beams=3)
    np.testing.assert_array_equal(permuted_ids, token_ids[order])
    np.testing.assert_array_equal(permuted_scores, scores[order])


@pytest.mark.parametrize("num_beams", [1, 3])
def test_end_at_the_first_step(num_beams):
    tables = scripts.written_tables(V, {}, {(): {END: 0.9, 4: 0.1}}, {(): {END: 0.7, 5: 0.3}})
    token_ids, scores = search_tables(tables, L, num_beams=num_beams)
    np.testing.assert_array_equal(token_ids[:, 0], [[END] + [PAD] * (L - 1)] * B)
    np.testing.assert_allclose(scores[:, 0], np.log([1.0, 0.9, 0.7]), atol=1e-6)


@pytest.mark.extended
def test_more_beams_than_tokens_and_fewer_hypotheses_than_beams():
    # Four tokens, one step: four hypotheses there are, and seven places.
    tables = scripts.random_tables(2, 2, 4)
    token_ids, scores = search_tables(tables, 1, num_beams=7)
    assert_equal_by_hand(tables, 1, 7, 1.0)
    assert np.isfinite(scores[:, :4]).all()
    assert np.isneginf(scores[:, 4:]).all()
    assert (token_ids[:, 4:] == PAD).all()
    assert_equal_by_hand(tables, 5, 7, 1.0)


def test_impossible_tokens_are_never_returned():
    tables = scripts.random_tables(23, B, V)
    tables[..., [1, 5]] = -np.inf
    token_ids, scores = search_tables(tables, L, num_beams=5)
    assert not np.isin(token_ids, [1, 5]).any()
    assert np.isfinite(scores).all()


@pytest.mark.extended
def test_empty_batch():
    token_ids, scores = search_tables(scripts.random_tables(0, 0, V), 37, num_beams=3)
    assert token_ids.shape == (0, 3, 37)
    assert scores.shape == (0, 3)


@pytest.mark.parametrize("num_beams", [1, 3])
def test_a_pad_is_never_a_word(num_beams):
    pad = 1
    tables = scripts.written_tables(V, {(): {pad: 0.6, 4: 0.3}, (4,): {pad: 0.5, 5: 0.4}, (4, 5): {END: 0.9}})
    token_ids, scores = search_tables(tables, 7, num_beams=num_beams, pad_token_id=pad)
    np.testing.assert_array_equal(token_ids[0, 0], [4, 5, END, pad, pad, pad, pad])
    # What the pad would have had stays lost: the score is that of the tables.
    assert scores[0, 0] == pytest.approx(scripts.rescored(tables[0], token_ids[0, 0], 1.0), abs=1e-5)


@pytest.mark.parametrize("num_beams", [1, 3])
def test_what_cannot_be_written_is_never_chosen_and_keeps_its_probability(num_beams):
    script = {(): {1: 0.5, 6: 0.2, 4: 0.2}, (4,): {6: 0.6, 5: 0.3}, (4, 5): {END: 0.9}}
    tables = scripts.written_tables(V, script)
    token_ids, scores = search_tables(tables, 7, num_beams=num_beams, unwritable_token_ids=(1, 6))
    assert not np.isin(token_ids, [1, 6]).any()
    np.testing.assert_array_equal(token_ids[0, 0], [4, 5, END, PAD, PAD, PAD, PAD])
    assert scores[0, 0] == pytest.approx(scripts.rescored(tables[0], token_ids[0, 0], 1.0), abs=1e-5)


@pytest.mark.parametrize("name", ["num_beams", "max_length"])
@pytest.mark.parametrize("value", [0, -1, 2.0, True, None])
def test_wrong_sizes(name, value):
    sizes = {"num_beams": 2, "max_length": 5, name: value}
    inputs = scripts.scripted_inputs(scripts.random_tables(0, 1, V), sizes["max_length"])
    with pytest.raises(ValueError, match=f"`{name}` must be a positive integer. Received: {name}={value}"):
        beam_search(inputs, sizes["num_beams"])


def test_more_beams_than_a_machine_holds_are_refused():
    inputs = scripts.scripted_inputs(scripts.random_tables(0, 1, V), 5)
    message = f"`num_beams` must be at most {MAX_HYPOTHESES} .* Received: num_beams=1000000"
    with pytest.raises(ValueError, match=message):
        beam_search(inputs, 10**6)
    assert tuple(beam_search(inputs, np.int64(3)).scores.shape) == (1, 3)


def test_hypotheses_are_named():
    found = beam_search(scripts.scripted_inputs(scripts.random_tables(0, 1, V), 5), num_beams=2)
    assert isinstance(found, Hypotheses)
    assert tuple(found.token_ids.shape) == (1, 2, 5)
    assert tuple(found.scores.shape) == (1, 2)
