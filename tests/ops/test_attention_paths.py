"""`attend` gives the numbers of the formula on every path, takes the path that it is told to, or says why it cannot.

Where the backend's fused kernel is taken it gives our answer, and where it would not it is not taken.
"""

import re

import keras
import numpy as np
import pytest
from helpers_layers import BACKEND, assert_equal, tensors
from keras import ops

import keras_attn.ops.attention_paths as attention_paths
from keras_attn.layers import MultiHeadAttention
from keras_attn.ops import (
    MaskRule,
    attend,
    dot_product_attention,
    fused_attention,
    fused_attention_obstacle,
    has_fused_kernel,
)

B, N, K, T, S, H, HV = 2, 6, 3, 5, 7, 11, 13


@pytest.fixture
def heads(rng):
    shapes = {"query": (B, N, T, H), "key": (B, K, S, H), "value": (B, K, S, HV)}
    return tensors({name: rng.normal(size=shape).astype("float32") for name, shape in shapes.items()})


@pytest.fixture
def taken(monkeypatch):
    """The functions that calls took, one after the other."""
    names = []
    for name in (
        "dot_product_attention",
        "attention_without_scores",
        "memory_efficient_attention",
        "fused_attention",
    ):
        function = getattr(attention_paths, name)
        monkeypatch.setattr(
            attention_paths, name, lambda *a, n=name, f=function, **k: names.append(n) or f(*a, **k)
        )
    return names


WITHOUT_SCORES = "attention_without_scores" if BACKEND == "tensorflow" else "dot_product_attention"


@pytest.mark.parametrize("is_rule", [True, False])
@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({"return_attention_scores": True}, "dot_product_attention"),
        ({}, WITHOUT_SCORES),
        ({"memory_efficient": True}, "memory_efficient_attention"),
        ({"memory_efficient": False}, WITHOUT_SCORES),
        ({"sink_logits": np.arange(N, dtype="float32")}, "dot_product_attention"),
    ],
)
def test_every_path_gives_the_numbers_of_the_formula(rng, heads, taken, options, path, is_rule):
    mask = rng.random((B, 1, T, S)) < 0.6
    mask[0, 0, 2] = False
    mask = ops.convert_to_tensor(mask)
    more = {"bias": ops.convert_to_tensor(rng.normal(size=(N, T, S)).astype("float32")), "soft_cap": 2.0}
    more |= {name: ops.convert_to_tensor(x) for name, x in options.items() if name == "sink_logits"}
    expected = dot_product_attention(**heads, mask=mask, scale=0.3, **more)
    given = MaskRule(pairs=mask) if is_rule else mask
    output, scores = attend(**heads, mask=given, scale=0.3, **{**options, **more})
    assert taken == [path]
    assert_equal([ops.convert_to_numpy(output)], [ops.convert_to_numpy(expected[0])], 1e-5)
    if "return_attention_scores" in options:
        assert_equal([ops.convert_to_numpy(scores)], [ops.convert_to_numpy(expected[1])], 1e-6)
    else:
        assert scores is None


def test_a_finite_query_or_key_is_not_guarded(heads):
    """The flags promise that there is no NaN. Where there is one, it shows."""
    key_mask = ops.convert_to_tensor(np.arange(S)[None] < 4)
    query_mask = ops.convert_to_tensor(np.arange(T)[None] < 3)
    nan_key = {**heads, "key": ops.where(key_mask[:, None, :, None], heads["key"], np.nan)}
    nan_query = {**heads, "query": ops.where(query_mask[:, None, :, None], heads["query"], np.nan)}
    for memory_efficient in (False, True):
        for given, rule, flag in (
            (nan_key, MaskRule(key_mask=key_mask), {"keys_are_finite": True}),
            (nan_query, MaskRule(query_mask=query_mask), {"queries_are_finite": True}),
        ):
            output, _ = attend(**given, mask=rule, memory_efficient=memory_efficient)
            assert np.isfinite(ops.convert_to_numpy(output)).all()
            trusting = MaskRule(key_mask=rule.key_mask, query_mask=rule.query_mask, **flag)
            output, _ = attend(**given, mask=trusting, memory_efficient=memory_efficient)
            # The output of a query without keys is 0 in any case.
            assert np.isnan(ops.convert_to_numpy(output)).any() == ("keys_are_finite" in flag)


def test_what_cannot_be_had_is_refused(heads):
    with pytest.raises(ValueError, match="`return_attention_scores` needs all T x S scores"):
        attend(**heads, memory_efficient=True, return_attention_scores=True)
    with pytest.raises(ValueError, match="`flash_attention=True` cannot be used with"):
        attend(**heads, soft_cap=2.0, flash_attention=True)


# --- the fused kernel ---


def rule(length, **arguments):
    positions = ops.arange(length)
    return MaskRule(query_positions=positions, key_positions=positions, **arguments)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("num_key_heads", [1, 2, 6])
def test_the_kernel_equals_the_formula(rng, is_causal, num_key_heads):
    query = ops.convert_to_tensor(rng.normal(size=(2, 6, 7, 8)).astype("float32"))
    key, value = (
        ops.convert_to_tensor(rng.normal(size=(2, num_key_heads, 7, 8)).astype("float32")) for _ in range(2)
    )
    mask = rule(7, causal=is_causal, offset=0)
    expected, _ = dot_product_attention(query, key, value, mask=mask, scale=0.3)
    actual = fused_attention(query, key, value, is_causal=is_causal, scale=0.3)
    assert_equal([ops.convert_to_numpy(actual)], [ops.convert_to_numpy(expected)], 1e-5)


OBSTACLES = {
    "a mask other than the causal one of a whole sequence": {"mask": {"causal": True, "offset": None}},
    "a position bias": {"bias": np.zeros((7, 7), "float32")},
    "a soft cap of the logits": {"soft_cap": 3.0},
    "sink logits": {"sink_logits": np.zeros(6, "float32")},
    "dropout of the scores": {"dropout": 0.1},
}


@pytest.mark.parametrize("obstacle", OBSTACLES)
def test_what_the_kernel_is_not_trusted_with(monkeypatch, obstacle):
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    heads = [np.zeros((2, 6, 7, 8), "float32")] * 3
    assert fused_attention_obstacle(*heads) is None
    assert fused_attention_obstacle(*heads, mask=rule(7, causal=True, offset=0)) is None
    arguments = {name: rule(7, **x) if name == "mask" else x for name, x in OBSTACLES[obstacle].items()}
    assert fused_attention_obstacle(*heads, **arguments) == obstacle


@pytest.mark.parametrize(
    "arguments",
    [
        {"causal": True, "offset": 2},
        {"causal": True, "offset": 0, "sliding_window": 3},
        {"key_mask": np.ones((2, 7), bool)},
        {"causal": True, "offset": 0, "query_mask": np.ones((2, 7), bool)},
    ],
)
def test_masks_that_could_leave_a_query_without_keys_are_an_obstacle(monkeypatch, arguments):
    monkeypatch.setattr(keras.backend, "backend", lambda: "torch")
    arguments = {
        name: ops.convert_to_tensor(x) if isinstance(x, np.ndarray) else x for name, x in arguments.items()
    }
    heads = [np.zeros((2, 6, 7, 8), "float32")] * 3
    assert "mask" in fused_attention_obstacle(*heads, mask=rule(7, **arguments))


@pytest.mark.skipif(BACKEND == "tensorflow", reason="TensorFlow has no fused kernel")
def test_the_layer_takes_the_kernel_where_it_can(rng, monkeypatch):
    calls = []
    kernel = ops.dot_product_attention
    monkeypatch.setattr(ops, "dot_product_attention", lambda *a, **k: calls.append(1) or kernel(*a, **k))
    x = ops.convert_to_tensor(rng.normal(size=(2, 7, 11)).astype("float32"))
    fused = MultiHeadAttention(3, 8, flash_attention=True)
    plain = MultiHeadAttention(3, 8, flash_attention=False)
    fused(x, x), plain(x, x)
    plain.set_weights(fused.get_weights())
    calls.clear()
    for options in ({}, {"use_causal_mask": True}):
        outputs = [ops.convert_to_numpy(layer(x, x, **options)) for layer in (fused, plain)]
        assert_equal(outputs[:1], outputs[1:], 1e-5)
    assert len(calls) == 2
    message = (
        "`flash_attention=True` cannot be used with a mask other than the causal one of a whole sequence"
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        fused(x, x, value_mask=np.ones((2, 7), bool))
    with pytest.raises(ValueError, match="cannot be used with `return_attention_scores`"):
        fused(x, x, return_attention_scores=True)


def test_tensorflow_has_no_kernel():
    assert has_fused_kernel() == (BACKEND == "torch")
