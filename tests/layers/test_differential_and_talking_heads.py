"""The two layers whose formula is another, against float64 NumPy, and against MultiHeadAttention where they are it."""

import numpy as np
import pytest
from helpers_layers import assert_equal, flat_arrays
from keras import ops

from keras_attn.layers import (
    AlibiBias,
    DifferentialAttention,
    MultiHeadAttention,
    RotaryEmbedding,
    TalkingHeadsAttention,
)

B, T, S, D = 2, 5, 7, 11


def random_weights(layer, rng):
    layer.set_weights([rng.normal(0, 0.5, weight.shape) for weight in layer.weights])
    return {
        weight.path.split("/", 1)[1]: np.asarray(ops.convert_to_numpy(weight), "float64")
        for weight in layer.weights
    }


def softmax(logits, mask):
    logits = np.where(mask, logits, -np.inf)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def heads(x, weights, name):
    return np.einsum("btd,dnh->bnth", x, weights[f"{name}/kernel"]) + weights[f"{name}/bias"][:, None]


def projected(output, weights):
    return (
        np.einsum("bnth,nhd->btd", output, weights["attention_output/kernel"])
        + weights["attention_output/bias"]
    )


@pytest.mark.parametrize(("num_heads", "num_key_value_heads"), [(3, 3), (6, 2)])
@pytest.mark.parametrize("memory_efficient", [False, True])
def test_differential_attention_equals_the_paper(rng, num_heads, num_key_value_heads, memory_efficient):
    key_dim, lambda_init = 5, 0.35
    layer = DifferentialAttention(
        num_heads,
        key_dim,
        num_key_value_heads=num_key_value_heads,
        lambda_init=lambda_init,
        memory_efficient=memory_efficient,
    )
    query, value = rng.normal(size=(B, T, D)), rng.normal(size=(B, S, D))
    mask = rng.random((B, T, S)) < 0.7
    mask[..., 0] = True
    layer(query, value)
    weights = random_weights(layer, rng)
    (q1, k1), (q2, k2) = ((v[0], v[1]) for v in np.swapaxes(weights["lambda_vectors"], 0, 1))
    factor = np.exp(q1 @ k1) - np.exp(q2 @ k2) + lambda_init
    q, k, v = heads(query, weights, "query"), heads(value, weights, "key"), heads(value, weights, "value")
    group = num_heads // num_key_value_heads
    outputs = []
    for n in range(num_heads):
        pair = n // group
        # Of each key head come all first queries, then all second ones.
        first, second = (2 * pair * group + half * group + n % group for half in (0, 1))
        scores = [
            softmax(q[:, head] @ np.swapaxes(k[:, 2 * pair + half], 1, 2) / np.sqrt(key_dim), mask)
            for half, head in enumerate((first, second))
        ]
        output = (scores[0] - factor * scores[1]) @ v[:, pair]
        rms = np.sqrt((output**2).mean(-1, keepdims=True) + 1e-5)
        outputs.append(output / rms * weights["heads_norm/scale"] * (1 - lambda_init))
    expected = projected(np.stack(outputs, 1), weights)
    actual = layer(query.astype("float32"), value.astype("float32"), attention_mask=mask)
    assert_equal([ops.convert_to_numpy(actual)], [expected], 1e-5)


def test_differential_scores_are_the_difference_and_change_nothing(rng):
    layer = DifferentialAttention(
        num_heads=3, key_dim=5, position_bias=AlibiBias(), rotary_embedding=RotaryEmbedding(rotary_dim=4)
    )
    x = rng.normal(size=(B, T, D)).astype("float32")
    layer(x, x)
    random_weights(layer, rng)
    output = layer(x, x, use_causal_mask=True)
    same, scores = layer(x, x, use_causal_mask=True, return_attention_scores=True)
    assert_equal([ops.convert_to_numpy(output)], [ops.convert_to_numpy(same)], 1e-6)
    assert scores.shape == (B, 3, T, T)
    factor = float(ops.convert_to_numpy(layer._lambda()))
    np.testing.assert_allclose(ops.convert_to_numpy(ops.sum(scores, -1)), 1 - factor, atol=1e-5)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("layer_class", [DifferentialAttention, TalkingHeadsAttention])
@pytest.mark.parametrize("sliding_window", [None, 3])
def test_step_by_step_equals_the_whole(rng, layer_class, sliding_window):
    layer = layer_class(
        4, 6, num_key_value_heads=2, rotary_embedding=RotaryEmbedding(), sliding_window=sliding_window
    )
    x = rng.normal(size=(B, S, D)).astype("float32")
    whole = layer(x, x, use_causal_mask=True)
    random_weights(layer, rng)
    whole = ops.convert_to_numpy(layer(x, x, use_causal_mask=True))
    cache = layer.empty_cache(B, S)
    assert cache[0].shape[-2] == (S if sliding_window is None else 3)
    for i in range(S):
        step = x[:, i : i + 1]
        output, cache = layer(step, step, use_causal_mask=True, cache=cache, cache_update_index=i)
        assert_equal([ops.convert_to_numpy(output)], [whole[:, i : i + 1]], 1e-5)


def test_talking_heads_equals_the_paper(rng):
    layer = TalkingHeadsAttention(num_heads=3, key_dim=5)
    query, value = rng.normal(size=(B, T, D)), rng.normal(size=(B, S, D))
    mask = rng.random((B, 1, T, S)) < 0.7
    mask[..., 0] = True
    layer(query, value)
    weights = random_weights(layer, rng)
    q, k, v = heads(query, weights, "query"), heads(value, weights, "key"), heads(value, weights, "value")
    logits = np.einsum("bnth,bnsh->bnts", q, k) / np.sqrt(5)
    scores = softmax(np.einsum("bnts,nm->bmts", logits, weights["logits_kernel"]), mask)
    scores = np.einsum("bnts,nm->bmts", scores, weights["scores_kernel"])
    expected = projected(np.einsum("bnts,bnsh->bnth", scores, v), weights), scores
    actual = layer(
        query.astype("float32"),
        value.astype("float32"),
        attention_mask=mask[:, 0],
        return_attention_scores=True,
    )
    assert_equal([ops.convert_to_numpy(x) for x in actual], list(expected), 1e-5)


def test_heads_that_do_not_talk_yet_are_multi_head_attention(rng):
    options = {
        "num_heads": 3,
        "key_dim": 5,
        "num_key_value_heads": 1,
        "logit_soft_cap": 2.0,
        "use_sink_logits": True,
    }
    talking, plain = TalkingHeadsAttention(**options), MultiHeadAttention(**options)
    x = rng.normal(size=(B, T, D)).astype("float32")
    mask = rng.random((B, T)) < 0.7
    talking(x, x), plain(x, x)
    plain.set_weights([rng.normal(size=w.shape) for w in plain.weights])
    same = {weight.path.split("/", 1)[1]: weight for weight in plain.weights}
    for weight in talking.weights:
        name = weight.path.split("/", 1)[1]
        weight.assign(same[name] if name in same else np.eye(3))
    assert_equal(
        [ops.convert_to_numpy(talking(x, x, value_mask=mask))],
        [ops.convert_to_numpy(plain(x, x, value_mask=mask))],
        1e-6,
    )


@pytest.mark.parametrize("layer_class", [DifferentialAttention, TalkingHeadsAttention])
def test_a_query_without_keys_answers_the_output_bias_alone(rng, layer_class):
    layer = layer_class(num_heads=2, key_dim=3)
    x = rng.normal(size=(B, T, D)).astype("float32")
    mask = np.ones((B, T), bool)
    mask[0] = False
    layer(x, x)
    weights = random_weights(layer, rng)
    output = ops.convert_to_numpy(layer(x, x, value_mask=mask))
    bias = weights["attention_output/bias"]
    np.testing.assert_allclose(output[0], np.broadcast_to(bias, output[0].shape), rtol=1e-6)
    assert not np.allclose(output[1], bias)


def test_dropout_works_in_training(rng):
    for layer in (DifferentialAttention(2, 3, dropout=0.5), TalkingHeadsAttention(2, 3, dropout=0.5)):
        x = rng.normal(size=(B, T, D)).astype("float32")
        plain, again, dropped = flat_arrays([layer(x, x), layer(x, x), layer(x, x, training=True)])
        assert not np.allclose(plain, dropped)
        np.testing.assert_array_equal(plain, again)
