"""BahdanauAttention against the paper's formula in float64, and against Keras' layer where the two agree."""

import keras
import numpy as np
import pytest
from helpers_layers import assert_equal, compiled, flat_arrays, gradients, run
from keras import ops

from keras_attn.layers import BahdanauAttention
from keras_attn.ops import ScoreDropout, additive_attention

B, T, S, DQ, DK, DV, UNITS = 2, 5, 7, 11, 3, 13, 17


def fresh(inputs, rng, **arguments):
    """A built layer with random weights."""
    layer = BahdanauAttention(**{"units": UNITS, **arguments})
    run(layer, inputs)
    layer.set_weights([rng.normal(0, 0.7, w.shape) for w in layer.weights])
    return layer


def sequences(rng):
    return {
        "query": rng.normal(size=(B, T, DQ)).astype("float32"),
        "value": rng.normal(size=(B, S, DV)).astype("float32"),
        "key": rng.normal(size=(B, S, DK)).astype("float32"),
    }


def oracle(layer, query, value, key, allowed):
    """Output and scores by the formula, in float64, a query and a key at a time."""
    w = ops.convert_to_numpy(layer.query_dense.kernel).astype("float64")
    b = 0.0 if layer.query_dense.bias is None else ops.convert_to_numpy(layer.query_dense.bias)
    u = ops.convert_to_numpy(layer.key_dense.kernel).astype("float64")
    v = ops.convert_to_numpy(layer.logit_kernel).astype("float64")
    scores = np.zeros((B, T, S))
    for i, t in np.ndindex(B, T):
        keys = np.flatnonzero(allowed[i, t])
        exponentials = np.exp([v @ np.tanh(query[i, t] @ w + b + key[i, s] @ u) for s in keys])
        scores[i, t, keys] = exponentials / exponentials.sum()
    return scores @ value, scores


def ordinary(rng):
    return {}


def padded(rng):
    return {
        "query_mask": np.arange(T) < [[T], [3]],
        "value_mask": np.arange(S) >= [[2], [5]],
        "key_mask": np.arange(S) < [[6], [7]],
    }


def pairwise(rng):
    return {"attention_mask": (rng.random((B, T, S)) < 0.4).astype("int32")}


def shared_pairs_and_causal(rng):
    return {"attention_mask": (rng.random((T, S)) < 0.6).astype("float32"), "use_causal_mask": True}


def everything(rng):
    return {**padded(rng), **pairwise(rng), "use_causal_mask": True}


def allowed_by(masks):
    allowed = np.ones((B, T, S), bool)
    allowed &= masks.get("query_mask", np.ones((B, T), bool))[:, :, None]
    for name in ("value_mask", "key_mask"):
        allowed &= masks.get(name, np.ones((B, S), bool))[:, None, :]
    allowed &= masks.get("attention_mask", np.ones((T, S))) == 1
    return allowed & np.tri(T, S, dtype=bool) if "use_causal_mask" in masks else allowed


@pytest.mark.sampled(2)
@pytest.mark.parametrize("use_bias", [True, False])
@pytest.mark.parametrize("make_masks", [ordinary, padded, pairwise, shared_pairs_and_causal, everything])
def test_it_is_the_formula_of_the_paper(make_masks, use_bias, rng):
    inputs, masks = sequences(rng), make_masks(rng)
    layer = fresh(inputs, rng, use_bias=use_bias)
    actual = run(layer, {**inputs, **masks}, return_attention_scores=True)
    assert_equal(actual, oracle(layer, **inputs, allowed=allowed_by(masks)), 2e-6)
    assert_equal(run(layer, {**inputs, **masks}), actual[:1], tolerance=0)


def test_two_keys_by_hand():
    # The logits are 2 tanh(0) = 0 and 2 tanh(1) - 3 tanh(0) = 2 tanh(1), so that the odds are exp(2 tanh(1)).
    query, key = [[[1.0, -1.0]]], [[[-1.0, 1.0], [0.0, 1.0]]]
    output, scores = additive_attention(
        *(ops.convert_to_tensor(x) for x in (query, key, [[[5.0], [11.0]]], [2.0, -3.0]))
    )
    odds = np.exp(2 * np.tanh(1.0))
    np.testing.assert_allclose(scores, [[[1 / (1 + odds), odds / (1 + odds)]]], rtol=1e-6)
    np.testing.assert_allclose(output, [[[(5 + 11 * odds) / (1 + odds)]]], rtol=1e-6)


def test_one_key_takes_all_of_the_attention(rng):
    inputs = sequences(rng)
    inputs = {"query": inputs["query"], "value": inputs["value"][:, :1]}
    output, scores = run(fresh(inputs, rng), inputs, return_attention_scores=True)
    np.testing.assert_array_equal(scores, np.ones((B, T, 1)))
    np.testing.assert_array_equal(output, np.repeat(inputs["value"], T, axis=1))


@pytest.mark.parametrize("masked", [False, True])
def test_keras_layer_is_the_case_without_projections(masked, rng):
    query, value, key = (rng.normal(size=(B, length, DV)).astype("float32") for length in (T, S, S))
    masks = (np.arange(T) < [[T], [3]], np.arange(S) < [[4], [6]]) if masked else (None, None)
    theirs = keras.layers.AdditiveAttention()
    theirs([query, value, key])
    theirs.set_weights([rng.normal(size=DV)])
    expected = flat_arrays(theirs([query, value, key], mask=list(masks), return_attention_scores=True))
    ours = BahdanauAttention(DV, use_bias=False)
    ours(query, value, key)
    ours.set_weights([*theirs.get_weights(), np.eye(DV), np.eye(DV)])
    masks = {"query_mask": masks[0], "value_mask": masks[1]} if masked else {}
    output, scores = flat_arrays(ours(query, value, key, **masks, return_attention_scores=True))
    # Keras' gives masked queries an output of 0, as ours does, but scores.
    real = masks.get("query_mask", np.ones((B, T), bool))[..., None]
    assert_equal([output, scores], [expected[0], expected[1] * real], 2e-6)


def test_a_query_without_keys_answers_exactly_zero_forward_and_backward(rng):
    inputs = sequences(rng)
    layer = fresh(inputs, rng)
    masks = {"query_mask": np.arange(T) != [[1], [T]], "value_mask": np.array([[True] * S, [False] * S])}
    output, scores = run(layer, {**inputs, **masks}, return_attention_scores=True)
    answered = np.array([[True, False, True, True, True], [False] * T])
    assert (output[answered] != 0).all()
    assert not output[~answered].any()
    assert not scores[~answered].any()
    np.testing.assert_allclose(scores[answered].sum(-1), 1, rtol=1e-6)
    by_input, by_weight = gradients(
        layer, {**inputs, **masks}, lambda y: ops.where(answered[..., None], 0.0, y)
    )
    assert not any(x.any() for x in (*by_input.values(), *by_weight))


@pytest.mark.parametrize("fill", [np.nan, np.inf, -np.inf])
def test_what_stands_at_masked_queries_and_keys_reaches_nobody(fill, rng):
    inputs = sequences(rng)
    layer = fresh(inputs, rng)
    masks = {"query": np.arange(T) != 1, "value": np.arange(S) < [[4], [6]]}
    masks = {"query": np.broadcast_to(masks["query"], (B, T)), "value": masks["value"], "key": masks["value"]}
    filled = {name: np.where(masks[name][..., None], x, np.float32(fill)) for name, x in inputs.items()}
    options = {"query_mask": masks["query"], "value_mask": masks["value"]}
    expected = run(layer, {**inputs, **options}, return_attention_scores=True)
    assert_equal(run(layer, {**filled, **options}, return_attention_scores=True), expected, tolerance=0)
    projected = {**options, "projected_key": ops.convert_to_numpy(layer.project_keys(filled["key"]))}
    assert_equal(run(layer, {**filled, **projected}, return_attention_scores=True), expected, tolerance=0)
    expected, _ = gradients(layer, {**inputs, **options}, lambda y: y * y)
    actual, _ = gradients(layer, {**filled, **options}, lambda y: y * y)
    for name in inputs:
        np.testing.assert_allclose(actual[name], expected[name], rtol=1e-5, atol=1e-6)
        assert not actual[name][~masks[name]].any()


def test_the_mask_of_the_query_goes_on_with_the_output(rng):
    token_ids = np.array([[3, 5, 0], [2, 0, 0]])
    query = keras.layers.Embedding(11, DQ, mask_zero=True)(token_ids)
    value = rng.normal(size=(B, S, DV)).astype("float32")
    layer = BahdanauAttention(UNITS)
    output, _ = layer(query, value, return_attention_scores=True)
    np.testing.assert_array_equal(output._keras_mask, token_ids != 0)
    assert not flat_arrays(output)[0][token_ids == 0].any()
    further = np.array([[True, False, True], [True, True, True]])
    output = layer(query, value, query_mask=further)
    answered = (flat_arrays(output)[0] != 0).all(-1)
    np.testing.assert_array_equal(answered, further & (token_ids != 0))


# --- keys projected once ---


def test_steps_over_keys_projected_once_are_the_whole(rng):
    inputs, masks = sequences(rng), padded(rng)
    layer = fresh(inputs, rng)
    expected = run(layer, {**inputs, **masks}, return_attention_scores=True)
    projected_key = layer.project_keys(ops.convert_to_tensor(inputs["key"]))
    assert tuple(projected_key.shape) == (B, S, UNITS)
    steps = [
        run(
            layer,
            {
                "query": inputs["query"][:, t : t + 1],
                "value": inputs["value"],
                **masks,
                "query_mask": masks["query_mask"][:, t : t + 1],
            },
            projected_key=projected_key,
            return_attention_scores=True,
        )
        for t in range(T)
    ]
    assert_equal([np.concatenate(x, axis=1) for x in zip(*steps)], expected, 1e-6)


def test_keys_may_be_projected_before_the_first_call_and_trained_through(rng):
    inputs = sequences(rng)
    layer = BahdanauAttention(UNITS)
    projected_key = layer.project_keys(ops.convert_to_tensor(inputs["key"]))
    kernel = layer.key_dense.kernel
    output = layer(**inputs, projected_key=projected_key)
    assert layer.key_dense.kernel is kernel
    assert [tuple(w.shape) for w in layer.weights] == [(UNITS,), (DQ, UNITS), (UNITS,), (DK, UNITS)]
    assert_equal(flat_arrays(output), flat_arrays(layer(**inputs)), 1e-6)
    by_input, _ = gradients(
        layer, {**inputs, "projected_key": ops.convert_to_numpy(projected_key)}, lambda y: y * y
    )
    assert np.abs(by_input["projected_key"]).max() > 1e-4


def test_a_compiled_step_is_the_eager_one(rng):
    inputs = sequences(rng)
    layer = fresh(inputs, rng)
    arrays = {name: ops.convert_to_tensor(x) for name, x in inputs.items()}
    arrays["projected_key"] = layer.project_keys(arrays["key"])
    step = compiled(lambda arrays: layer(**arrays, return_attention_scores=True))
    assert_equal(flat_arrays(step(arrays)), flat_arrays(layer(**arrays, return_attention_scores=True)))


# --- dropout and precision ---


def test_dropout_takes_scores_away_and_raises_the_others(rng):
    query, key = (ops.convert_to_tensor(rng.normal(size=(B, n, UNITS)).astype("float32")) for n in (T, S))
    value, weight = rng.normal(size=(B, S, DV)).astype("float32"), rng.normal(size=UNITS).astype("float32")
    dropout = ScoreDropout(0.25, ops.convert_to_tensor([3, 5]))
    output, scores = additive_attention(
        query, key, ops.convert_to_tensor(value), ops.convert_to_tensor(weight), dropout=dropout
    )
    np.testing.assert_allclose(np.asarray(scores).sum(-1), 1, rtol=1e-6)
    multiplier = np.asarray(dropout.multiplier((B,), ops.arange(T), ops.arange(S)))
    assert 0 < (multiplier == 0).sum() < multiplier.size
    np.testing.assert_allclose(output, (np.asarray(scores) * multiplier) @ value, rtol=1e-4, atol=1e-5)


def test_a_query_without_keys_answers_zero_in_half_precision(rng):
    # What masks a logit is past the largest float16: the softmax would be that of Inf - Inf.
    inputs = sequences(rng)
    layer = fresh(inputs, rng, dtype="mixed_float16")
    masked = {**inputs, "value_mask": np.array([[False] * S, [True] * S])}
    output, scores = run(layer, masked, return_attention_scores=True)
    assert not output[0].any()
    assert not scores[0].any()
    np.testing.assert_allclose(scores[1].sum(-1), 1, rtol=1e-2)
    by_input, by_weight = gradients(layer, masked, lambda y: y * y)
    assert not any(x[0].any() for x in by_input.values())
    assert all(np.isfinite(x).all() for x in (*by_input.values(), *by_weight))
