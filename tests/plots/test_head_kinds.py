"""What a head does, against sums written out by hand."""

import numpy as np
import pytest
from helpers_explorer import softmax_scores

from keras_attn import inspection
from keras_attn.plots.head_kinds import head_kinds, name_of_kind

TOKENS = ["<s>", "the", "dog", "saw", "the", "cat", "and", "the", "dog", "<s>", "."]


def by_hand(scores, tokens, special):
    """The kinds of one head of self-attention, in Python's own floats."""
    scores = scores.astype("float64")
    length = len(tokens)
    mean = lambda values: sum(values) / len(values)  # noqa: E731
    kinds = {
        "previous": mean([scores[t, t - 1] for t in range(1, length)]),
        "next": mean([scores[t, t + 1] for t in range(length - 1)]),
        "own": mean([scores[t, t] for t in range(length)]),
        "first": mean([scores[t, 0] for t in range(1, length)]),
        "special": mean([sum(scores[t, s] for s in special) for t in range(length)]),
    }
    of_queries = []
    for t in range(length):
        earlier = [e for e in range(t) if tokens[e] == tokens[t] and t not in special and e + 1 < t]
        if earlier:
            of_queries.append(sum(scores[t, e + 1] for e in earlier))
    kinds["induction"] = mean(of_queries)
    entropy = [-sum(p * np.log(p) for p in row if p > 0) for row in scores]
    count = [sum(p > 0 for p in row) for row in scores]
    kinds["broad"] = mean([e / np.log(n) if n > 1 else 0 for e, n in zip(entropy, count)])
    return kinds


def test_scores_of_kinds_are_the_sums_by_hand(rng):
    special = [0, 9]
    scores = softmax_scores(rng, 3, 11, 11)
    kinds = head_kinds(scores, TOKENS, TOKENS, special)
    for head in range(3):
        expected = by_hand(scores[head], TOKENS, special)
        assert set(kinds) == set(expected)
        for kind, score in expected.items():
            assert kinds[kind][head] == pytest.approx(score, abs=1e-4), kind


@pytest.mark.parametrize("is_causal", [False, True])
def test_they_are_those_of_inspection(rng, is_causal):
    scores = softmax_scores(rng, 3, 11, 11)
    if is_causal:
        scores = np.tril(scores)
        scores /= scores.sum(axis=-1, keepdims=True)
    words = sorted(set(TOKENS))
    token_ids = np.array([[words.index(token) for token in TOKENS]])
    expected = inspection.head_kinds(scores[np.newaxis], token_ids)
    kinds = head_kinds(scores, TOKENS, TOKENS)
    assert ("next" in kinds) != is_causal
    for kind, of_heads in kinds.items():
        assert of_heads == pytest.approx(expected[kind], abs=1e-4), kind


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("previous", [0, *range(10)]),
        ("own", range(11)),
        ("first", [0] * 11),
        ("next", [*range(1, 11), 10]),
        # What followed the last occurrence; tokens that came for the first time look at "saw".
        ("induction", [3, 3, 3, 3, 2, 3, 3, 2, 3, 3, 3]),
    ],
)
def test_a_head_that_does_one_thing_is_named_after_it(kind, keys):
    scores = np.eye(11)[list(keys)][np.newaxis]
    scores = 0.9 * scores + 0.1 / 11
    if kind == "induction":
        rows = [4, 7, 8]
        even = np.full((1, 11, 11), 1 / 11)
        even[:, rows] = scores[:, rows]
        scores = even
    kinds = head_kinds(scores, TOKENS, TOKENS, [0, 9])
    assert name_of_kind({name: score for name, [score] in kinds.items()}) == kind


def test_even_heads_are_broad_and_cross_attention_has_a_diagonal():
    even = head_kinds(np.full((1, 7, 13), 1 / 13), list("abcdefg"), list("nopqrstuvwxyz"))
    assert even["broad"] == [1.0]
    assert "own" not in even
    assert name_of_kind({name: score for name, [score] in even.items()}) == "broad"
    keys = np.round((np.arange(7) + 0.5) / 7 * 13 - 0.5).astype(int)
    diagonal = head_kinds(np.eye(13)[keys][np.newaxis], list("abcdefg"), list("nopqrstuvwxyz"))
    assert diagonal["diagonal"] == [1.0]
    assert name_of_kind({name: score for name, [score] in diagonal.items()}) == "diagonal"
    assert name_of_kind({"previous": 0.4, "broad": 0.5}) == "mixed"


def test_one_token_has_kinds_too():
    assert head_kinds(np.ones((2, 1, 1)), ["a"], ["a"]) == {"own": [1.0, 1.0]}
    assert head_kinds(np.ones((2, 1, 1)), ["a"], ["b"]) == {"diagonal": [1.0, 1.0]}
