"""A loop of cached steps with projections made once, against the same calls that project as always."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_attn.layers import DecoderBlock, DifferentialAttention, MultiHeadAttention, RotaryEmbedding
from keras_attn.layers.projection import StepMatrices, step_matrices_scope

B, S, D = 3, 7, 10
VARIANTS = {
    "plain": {},
    "without bias": {"use_bias": False},
    "values of another size": {"value_dim": 11},
    "grouped": {"num_key_value_heads": 2},
    "rotary": {"rotary_embedding": RotaryEmbedding},
    "normalised": {"query_key_norm": "rms_norm"},
    "sinks": {"use_sink_logits": True},
}


def make_layer(name):
    options = {key: value() if isinstance(value, type) else value for key, value in VARIANTS[name].items()}
    layer = MultiHeadAttention(num_heads=4, key_dim=6, bias_initializer="random_normal", **options)
    layer.build((None, None, D), (None, None, D))
    return layer


def steps(layer, x, sizes, projections):
    """The outputs of self-attention over `x`, so many tokens a call."""
    cache, outputs, index = layer.empty_cache(B, S), [], 0
    for size in sizes:
        part = x[:, index : index + size]
        with step_matrices_scope(StepMatrices({(id(layer), True): projections}, [], [])):
            output, cache = layer(part, part, use_causal_mask=True, cache=cache, cache_update_index=index)
        outputs.append(ops.convert_to_numpy(output))
        index += size
    return np.concatenate(outputs, axis=1)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("sizes", [(1,) * S, (3, 4)])
def test_steps_with_projections_equal_the_whole_sequence(name, sizes):
    layer, x = make_layer(name), keras.random.normal((B, S, D), seed=1)
    projections = layer.step_projections()
    assert projections is not None
    whole = ops.convert_to_numpy(layer(x, x, use_causal_mask=True))
    np.testing.assert_allclose(steps(layer, x, sizes, projections), whole, rtol=1e-5, atol=1e-5)


def test_differential_attention_has_them_too():
    layer = DifferentialAttention(num_heads=2, key_dim=3)
    x = keras.random.normal((B, S, D), seed=1)
    whole = ops.convert_to_numpy(layer(x, x, use_causal_mask=True))
    found = steps(layer, x, (1,) * S, layer.step_projections())
    np.testing.assert_allclose(found, whole, rtol=1e-5, atol=1e-5)


def test_a_block_with_projections_of_both_layers():
    block = DecoderBlock(intermediate_dim=13, num_heads=2)
    x, source = (keras.random.normal((B, size, D), seed=size) for size in (S, 5))
    mask = ops.convert_to_tensor([[True] * 5, [True] * 2 + [False] * 3, [False] * 5])
    whole = ops.convert_to_numpy(block(x, source, encoder_padding_mask=mask))
    roles = block.step_attention_layers()
    made = {
        (id(layer), projects_keys): layer.step_projections(projects_keys=projects_keys)
        for layer, projects_keys in roles
    }
    assert len(made) == 2
    cache, cross, outputs = block.empty_cache(B, S), block.project_to_cache(source, mask), []
    with step_matrices_scope(StepMatrices(made, [], [])):
        for index in range(S):
            output, cache = block(
                x[:, index : index + 1],
                encoder_padding_mask=mask,
                self_attention_cache=cache,
                self_attention_cache_update_index=index,
                cross_attention_cache=cross,
            )
            outputs.append(ops.convert_to_numpy(output))
    np.testing.assert_allclose(np.concatenate(outputs, axis=1), whole, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["plain", "grouped"])
def test_projections_that_were_made_are_those_that_are_used(name):
    layer, x = make_layer(name), keras.random.normal((B, S, D), seed=1)
    projections = layer.step_projections()
    nothing = keras.tree.map_structure(ops.zeros_like, projections)
    assert not steps(layer, x, (1,) * S, nothing).any()


def test_what_is_more_than_products_is_projected_as_always():
    gated = MultiHeadAttention(2, 3, use_gate=True)
    gated.build((None, None, D), (None, None, D))
    assert gated.step_projections() is None
    adapted = make_layer("plain")
    adapted.enable_lora(2)
    assert adapted.step_projections() is None
    quantised = make_layer("plain")
    for part in quantised._parts():
        part.quantize("int8")
    assert quantised.step_projections() is None
    regularised = MultiHeadAttention(2, 3, activity_regularizer="l2")
    regularised.build((None, None, D), (None, None, D))
    assert regularised.step_projections() is None
