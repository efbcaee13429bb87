"""The backend's fused kernel: where it is taken it gives our answer, and where it would not it is not taken."""

import re

import keras
import numpy as np
import pytest
from helpers_layers import BACKEND, assert_equal
from keras import ops

from keras_attn.layers import MultiHeadAttention
from keras_attn.ops import (
    MaskRule,
    dot_product_attention,
    fused_attention,
    fused_attention_obstacle,
    has_fused_kernel,
)


def rule(length, **arguments):
    positions = ops.arange(length)
    return MaskRule(query_positions=positions, key_positions=positions, **arguments)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("num_key_heads", [1, 2, 6])
def test_equals_the_formula(rng, is_causal, num_key_heads):
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


def test_tensorflow_has_none():
    assert has_fused_kernel() == (BACKEND == "torch")
