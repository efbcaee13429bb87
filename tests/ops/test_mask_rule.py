"""MaskRule against its rules, one pair of a query and a key at a time, whole and in blocks."""

import itertools

import numpy as np
import pytest
from helpers_layers import BACKEND, compiled
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from keras_attn.ops import MaskRule

B, N, T, S = 2, 3, 5, 7


def fields(rng):
    """A value for each field, those that need others together."""
    positions = {"query_positions": rng.integers(0, 9, (B, T)), "key_positions": rng.integers(0, 9, (B, S))}
    return {
        "none": {},
        "causal": {**positions, "causal": True},
        "causal_one_for_all": {
            "query_positions": np.arange(T) + 1,
            "key_positions": np.arange(S),
            "causal": True,
        },
        "prefix_mask": {**positions, "causal": True, "prefix_mask": rng.random((B, S)) < 0.4},
        "sliding_window": {**positions, "sliding_window": 3},
        "num_sink_tokens": {**positions, "sliding_window": 2, "num_sink_tokens": 2},
        "segment_ids": {
            "query_segment_ids": rng.integers(0, 3, (B, T)),
            "key_segment_ids": rng.integers(0, 3, (B, S)),
        },
        "query_mask": {"query_mask": rng.random((B, T)) < 0.6},
        "key_mask": {"key_mask": rng.random((B, S)) < 0.6},
        "slot_mask": {"slot_mask": rng.random((1, S)) < 0.6},
        "pairs_of_all": {"pairs": rng.random((B, N, T, S)) < 0.6},
        "pairs_of_keys": {"pairs": rng.random((B, 1, 1, S)) < 0.6},
        "pairs_of_queries": {"pairs": rng.random((T, 1)) < 0.6},
    }


NAMES = list(fields(np.random.default_rng(0)))


def by_hand(rule):
    """Booleans (B, N, T, S) from the sentences of the docstring."""
    allowed = np.ones((B, N, T, S), bool)
    rule = {
        name: np.broadcast_to(x, (B, x.shape[-1])) if name != "pairs" and isinstance(x, np.ndarray) else x
        for name, x in rule.items()
    }
    pairs = np.broadcast_to(rule.get("pairs", True), allowed.shape)
    for b, n, t, s in np.ndindex(allowed.shape):
        answers = [pairs[b, n, t, s]]
        if "query_positions" in rule:
            distance = rule["query_positions"][b, t] - rule["key_positions"][b, s]
        if rule.get("causal"):
            in_prefix = "prefix_mask" in rule and rule["prefix_mask"][b, s]
            answers.append(distance >= 0 or in_prefix)
        if "sliding_window" in rule:
            is_sink = rule["key_positions"][b, s] < rule.get("num_sink_tokens", 0)
            answers.append(abs(distance) < rule["sliding_window"] or is_sink)
        if "query_segment_ids" in rule:
            answers.append(rule["query_segment_ids"][b, t] == rule["key_segment_ids"][b, s] != 0)
        if "query_mask" in rule:
            answers.append(rule["query_mask"][b, t])
        for name in ("key_mask", "slot_mask"):
            answers.append(rule[name][b, s] if name in rule else True)
        allowed[b, n, t, s] = all(answers)
    return allowed


def as_rule(rule):
    return MaskRule(
        **{
            name: ops.convert_to_tensor(x) if isinstance(x, np.ndarray) else x
            for name, x in {
                **rule,
                **{k: v.astype("int32") for k, v in rule.items() if is_integers(v)},
            }.items()
        }
    )


def is_integers(x):
    return isinstance(x, np.ndarray) and x.dtype != bool


def block(rule, *slices):
    mask = rule.block(*slices)
    return True if mask is None else ops.convert_to_numpy(mask)


@pytest.mark.parametrize("name", NAMES)
def test_each_rule_alone(rng, name):
    rule = fields(rng)[name]
    np.testing.assert_array_equal(np.broadcast_to(block(as_rule(rule)), (B, N, T, S)), by_hand(rule))
    assert (as_rule(rule).block() is None) == (name == "none")


@pytest.mark.parametrize("names", list(itertools.combinations(NAMES, 2)), ids="+".join)
def test_each_pair_of_rules(rng, names):
    of = fields(rng)
    rule = {**of[names[0]], **of[names[1]]}
    np.testing.assert_array_equal(np.broadcast_to(block(as_rule(rule)), (B, N, T, S)), by_hand(rule))


@pytest.mark.parametrize("pairs", ["pairs_of_all", "pairs_of_keys", "pairs_of_queries"])
def test_all_rules_in_any_block(rng, pairs):
    of = fields(rng)
    together = ("prefix_mask", "num_sink_tokens", "segment_ids", "query_mask", "key_mask", "slot_mask", pairs)
    rule = {name: value for part in together for name, value in of[part].items()}
    expected = by_hand(rule)
    for queries, keys in itertools.product(
        (slice(0, 2), slice(3, 5)), (slice(0, 7), slice(2, 3), slice(4, 7))
    ):
        part = expected[:, :, queries, keys]
        np.testing.assert_array_equal(np.broadcast_to(block(as_rule(rule), queries, keys), part.shape), part)


@settings(max_examples=60 if BACKEND == "tensorflow" else 5, deadline=None, derandomize=True)
@given(
    num_queries=st.integers(0, 13),
    num_keys=st.integers(0, 17),
    offset=st.integers(0, 9),
    causal=st.booleans(),
    sliding_window=st.sampled_from([None, 1, 2, 5, 23]),
    num_sink_tokens=st.sampled_from([0, 1, 3]),
    ends=st.tuples(st.integers(0, 13), st.integers(0, 13)),
)
def test_what_is_left_out_is_what_nobody_sees(
    num_queries, num_keys, offset, causal, sliding_window, num_sink_tokens, ends
):
    start, stop = sorted(min(end, num_queries) for end in ends)
    rule = {
        "query_positions": np.arange(num_queries) + offset,
        "key_positions": np.arange(num_keys),
        "causal": causal,
        "sliding_window": sliding_window,
        "num_sink_tokens": num_sink_tokens if sliding_window else 0,
    }
    slices = MaskRule(**rule, offset=offset).visible_keys(slice(start, stop), num_keys)
    ends = [end for part in slices for end in (part.start, part.stop)]
    assert [0, *ends, num_keys] == sorted([0, *ends, num_keys])
    visible = np.zeros(num_keys, bool)
    for part in slices:
        visible[part] = True
    mask = block(MaskRule(**rule), slice(start, stop), slice(None))
    seen = np.broadcast_to(mask, (1, stop - start, num_keys))[0].any(0)
    assert not seen[~visible].any()
    if stop > start:
        assert visible.sum() == seen.sum()
    itself = MaskRule(**rule, offset=offset).every_query_sees_itself(num_queries, num_keys)
    assert itself == (offset + num_queries <= num_keys)
    if itself:
        assert np.broadcast_to(block(MaskRule(**rule)), (1, num_queries, num_keys)).any(-1).all()


@pytest.mark.parametrize("name", ["query_mask", "key_mask", "slot_mask", "segment_ids", "pairs_of_keys"])
def test_a_query_may_not_see_itself_where_more_than_order_hides_keys(rng, name):
    order = {"query_positions": np.arange(T), "key_positions": np.arange(T), "causal": True, "offset": 0}
    assert as_rule(order).every_query_sees_itself(T, T)
    assert not as_rule({**order, **fields(rng)[name]}).every_query_sees_itself(T, T)
    assert not as_rule({**order, "offset": None}).every_query_sees_itself(T, T)
    assert not as_rule(order).every_query_sees_itself(None, None)


def test_nothing_is_left_out_without_an_offset_or_with_a_prefix(rng):
    positions = np.arange(T)
    rule = MaskRule(positions, positions, causal=True, sliding_window=2)
    assert rule.visible_keys(slice(1, 3), S) == [slice(0, S)]
    rule = MaskRule(positions, positions, causal=True, prefix_mask=np.ones((1, T), bool), offset=0)
    assert rule.visible_keys(slice(1, 3), S) == [slice(0, S)]


@pytest.mark.skipif(
    BACKEND != "tensorflow", reason="only TensorFlow has sizes that are known in the run alone"
)
def test_slices_of_unknown_lengths():
    rule = MaskRule(causal=True, sliding_window=3, num_sink_tokens=2, offset=1)

    def ends(given):
        slices = rule.visible_keys(slice(given["start"], given["stop"]), given["num_keys"])
        return [end for part in slices for end in (part.start, part.stop)]

    function = compiled(ends, jit=False)
    for start, stop, num_keys in ((0, 2, 7), (5, 8, 11), (5, 8, 3), (2, 2, 5)):
        given = {"start": start, "stop": stop, "num_keys": num_keys}
        actual = function({name: ops.convert_to_tensor(x, dtype="int32") for name, x in given.items()})
        assert [int(x) for x in actual] == ends(given)
