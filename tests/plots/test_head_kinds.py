"""What a head does, against sums written out by hand."""

import numpy as np
import pytest
from helpers_explorer import softmax_scores

from keras_attn.plots.head_kinds import head_kinds, name_of_kind, real_tokens

TOKENS = ["<s>", "the", "dog", "saw", "the", "cat", "and", "the", "dog", "<s>", "."]
TOKEN_IDS = np.array([[sorted(set(TOKENS)).index(token) for token in TOKENS]])
SPECIAL = np.isin(np.arange(11), [0, 9])[np.newaxis]


def kinds_of_one(head, **options):
    """The kinds of one head of self-attention."""
    kinds = head_kinds(head[np.newaxis, np.newaxis], **{"is_self": True} | options)
    return {kind: score for kind, [score] in kinds.items() if not np.isnan(score)}


def by_hand(scores, special):
    """The kinds of one head of self-attention, in Python's own floats."""
    scores = scores.astype("float64")
    length = len(TOKENS)
    mean = lambda values: sum(values) / len(values)  # noqa: E731
    kinds = {
        "previous": mean([scores[t, t - 1] for t in range(1, length)]),
        "next": mean([scores[t, t + 1] for t in range(length - 1)]),
        "own": mean([scores[t, t] for t in range(length)]),
        "local": mean([sum(scores[t, max(0, t - 2) : t + 3]) for t in range(length)]),
        "first": mean([scores[t, 0] for t in range(1, length)]),
        "special": mean([sum(scores[t, s] for s in special) for t in range(length)]),
    }
    of_queries = []
    for t in range(length):
        earlier = [e for e in range(t) if TOKENS[e] == TOKENS[t] and t not in special and e + 1 < t]
        if earlier:
            of_queries.append(sum(scores[t, e + 1] for e in earlier))
    kinds["induction"] = mean(of_queries)
    entropy = [-sum(p * np.log(p) for p in row if p > 0) for row in scores]
    count = [sum(p > 0 for p in row) for row in scores]
    kinds["broad"] = mean([e / np.log(n) if n > 1 else 0 for e, n in zip(entropy, count)])
    return kinds


def test_scores_of_kinds_are_the_sums_by_hand(rng):
    scores = softmax_scores(rng, 3, 11, 11)
    kinds = head_kinds(scores[np.newaxis], True, TOKEN_IDS, SPECIAL)
    for head in range(3):
        expected = by_hand(scores[head], [0, 9])
        assert set(kinds) == set(expected)
        for kind, score in expected.items():
            assert kinds[kind][head] == pytest.approx(score, abs=1e-6), kind


def test_a_mean_is_over_all_texts_of_a_batch(rng):
    scores = softmax_scores(rng, 2, 3, 11, 11)
    token_ids = np.stack([TOKEN_IDS[0], TOKEN_IDS[0][::-1]])
    special = np.stack([SPECIAL[0], SPECIAL[0][::-1]])
    kinds = head_kinds(scores, True, token_ids, special)
    # Each has three queries that can be asked for induction, or two.
    alone = [head_kinds(scores[[b]], True, token_ids[[b]], special[[b]]) for b in range(2)]
    for kind in set(kinds) - {"induction"}:
        np.testing.assert_allclose(kinds[kind], (alone[0][kind] + alone[1][kind]) / 2, rtol=1e-5)
    assert (kinds["induction"] > np.minimum(alone[0]["induction"], alone[1]["induction"])).all()
    assert (kinds["induction"] < np.maximum(alone[0]["induction"], alone[1]["induction"])).all()


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("previous", [0, *range(10)]),
        ("own", range(11)),
        ("first", [0] * 11),
        ("next", [*range(1, 11), 10]),
        # What followed the last occurrence; tokens that came for the first time look at "saw".
        ("induction", [3, 3, 3, 3, 2, 3, 3, 2, 3, 3, 3]),
        # Two before, or two after.
        ("local", [2, 3, 0, 1, 6, 7, 8, 9, 10, 7, 8]),
    ],
)
@pytest.mark.parametrize("sharpness", [0.9, 1])
def test_a_head_that_does_one_thing_is_named_after_it(kind, keys, sharpness):
    scores = np.eye(11)[list(keys)]
    scores = sharpness * scores + (1 - sharpness) / 11
    if kind == "induction":
        even = np.full((11, 11), 1 / 11)
        even[[4, 7, 8]] = scores[[4, 7, 8]]
        scores = even
    # Half precision rounds small scores to 0: a sharp head is still of its kind.
    assert (
        name_of_kind(kinds_of_one(scores.astype("float16"), token_ids=TOKEN_IDS, special_keys=SPECIAL))
        == kind
    )


def test_a_causal_mask_leaves_the_first_query_no_choice(rng):
    scores = np.tril(softmax_scores(rng, 1, 7, 7)[0])
    scores /= scores.sum(axis=-1, keepdims=True)
    kinds = kinds_of_one(scores)
    assert "next" not in kinds
    assert kinds["own"] == pytest.approx(np.mean(np.diagonal(scores)[1:]))
    one_hot = np.eye(7)[[0, *range(6)]]
    assert kinds_of_one(one_hot)["previous"] == 1
    # Two pads before the text: the first token is the third.
    padded = np.zeros((9, 9))
    padded[2:, 2:] = scores
    assert kinds_of_one(padded)["own"] == pytest.approx(kinds["own"])
    assert kinds_of_one(padded)["previous"] == pytest.approx(kinds["previous"])


def test_a_layers_heads_tell_together_which_keys_are_tokens():
    """A head that looks at one key alone is not taken for one in which the keys before it are pads."""
    one_key = np.eye(7)[[5] * 7]
    layer = np.stack([one_key, np.full((7, 7), 1 / 7)])[np.newaxis]
    tokens = real_tokens(layer, False)
    assert [mask.all() for mask in tokens] == [True, True]
    kinds = kinds_of_one(one_key, is_self=False, tokens=tokens)
    assert (kinds["first"], kinds["broad"]) == (0, 0)
    first = np.eye(9)[[2] * 9] * (np.arange(9) > 1)[:, None]
    assert kinds_of_one(first)["first"] == 1


def test_even_heads_are_broad_and_cross_attention_has_a_diagonal():
    even = kinds_of_one(np.full((7, 13), 1 / 13), is_self=False)
    assert even["broad"] == pytest.approx(1)
    assert "own" not in even
    assert name_of_kind(even) == "broad"
    keys = np.round((np.arange(7) + 0.5) / 7 * 13 - 0.5).astype(int)
    diagonal = kinds_of_one(np.eye(13)[keys], is_self=False)
    assert diagonal["diagonal"] == 1
    assert name_of_kind(diagonal) == "diagonal"
    assert name_of_kind({"previous": 0.4, "broad": 0.5}) == "mixed"


def test_one_token_has_no_choice_and_no_kind():
    for is_self in (True, False):
        kinds = kinds_of_one(np.ones((1, 1)), is_self=is_self)
        assert kinds == {}
        assert name_of_kind(kinds) == "mixed"
