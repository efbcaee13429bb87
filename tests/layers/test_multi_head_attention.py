"""MultiHeadAttention against PyTorch, on implicit masks, and with a cache against itself without one.

What Keras' layer answers is in test_keras_parity.py.
"""

import keras
import numpy as np
import pytest
from helpers_layers import BACKEND, assert_equal, compiled, flat_arrays, gradients, run
from keras import ops

from keras_attn.layers import MultiHeadAttention, RotaryEmbedding

B, T, S, D, N, H, HV = 2, 5, 7, 13, 3, 11, 17


def sequences(rng, *lengths):
    return [rng.normal(size=(B, length, D)).astype("float32") for length in lengths]


def fresh(inputs, rng, cls=MultiHeadAttention, **arguments):
    """A built layer with random weights."""
    layer = cls(**{"num_heads": N, "key_dim": H, **arguments})
    run(
        layer, inputs, return_attention_scores=True
    )  # without scores Keras' fails on JAX where `value_dim` differs
    layer.set_weights([rng.normal(0, 0.5, w.shape) for w in layer.weights])
    return layer


@pytest.mark.parametrize("with_mask", [True, False])
def test_equals_torch_scaled_dot_product_attention(rng, with_mask):
    torch = pytest.importorskip("torch", reason='pip install "keras_attn[peers]"')
    query, value = sequences(rng, T, S)
    mask = rng.random((B, T, S)) < 0.6
    mask[1, 2] = False
    inputs = {"query": query, "value": value, **({"attention_mask": mask} if with_mask else {})}
    layer = fresh(inputs, rng, value_dim=HV)
    weights = iter(torch.from_numpy(w) for w in layer.get_weights())

    def project(x):
        kernel, bias = next(weights), next(weights)
        return torch.einsum("btd,dnh->bnth", torch.from_numpy(x), kernel) + bias[:, None]

    heads = project(query), project(value), project(value)
    output = torch.nn.functional.scaled_dot_product_attention(
        *heads, attn_mask=torch.from_numpy(mask)[:, None] if with_mask else None
    )
    output = torch.einsum("bnth,nhd->btd", output.nan_to_num(0.0), next(weights)) + next(weights)
    assert_equal(run(layer, inputs), [output.numpy()])


def embedded(mask_zero=True):
    """A sequence that carries the implicit mask of `mask_zero`."""
    ids = np.array([[3, 1, 2, 0, 0, 0, 0], [4, 5, 0, 0, 0, 0, 0]])
    return keras.layers.Embedding(11, D, mask_zero=mask_zero)(ids), ids != 0


def test_logits_of_6e4_under_mixed_float16(rng):
    """Identity projections make the logits what the inputs say."""
    layer = MultiHeadAttention(1, 1, use_bias=False, kernel_initializer="ones", dtype="mixed_float16")
    query = np.array([[[1.0], [-1.0]]], "float32")
    value = np.array([[[6e4], [-6e4], [0.5]]], "float32")
    output, scores = layer(query, value, return_attention_scores=True)
    np.testing.assert_array_equal(ops.convert_to_numpy(scores)[0, 0], [[1, 0, 0], [0, 1, 0]])
    assert np.isfinite(ops.convert_to_numpy(output)).all()
    by_input, _ = gradients(layer, {"query": query, "value": value}, lambda y: ops.cast(y, "float32"))
    assert all(np.isfinite(x).all() for x in by_input.values())


# --- implicit masks ---


@pytest.mark.parametrize("separate", [False, True], ids=["one_tensor", "two_tensors"])
def test_implicit_masks_equal_explicit_ones_and_stay(rng, separate):
    value, mask = embedded()
    query = ops.convert_to_tensor(sequences(rng, T)[0]) if separate else value
    layer = MultiHeadAttention(N, H)
    output, scores = layer(query, value, return_attention_scores=True)
    plain_value = ops.convert_to_tensor(ops.convert_to_numpy(value))
    plain_query = query if separate else plain_value
    expected = layer(
        plain_query,
        plain_value,
        query_mask=None if separate else mask,
        value_mask=mask,
        return_attention_scores=True,
    )
    assert_equal(flat_arrays((output, scores)), flat_arrays(expected))
    assert not ops.convert_to_numpy(scores)[~np.broadcast_to(mask[:, None, None], scores.shape)].any()
    assert_equal(flat_arrays(value._keras_mask), [mask], 0)
    assert (getattr(output, "_keras_mask", None) is not None) is not separate


def test_implicit_and_explicit_masks_are_joined(rng):
    value, mask = embedded()
    (query,) = sequences(rng, T)
    explicit = np.array([[False] + [True] * 6, [True, False] + [True] * 5])
    pairs = rng.random((B, T, S)) < 0.6
    layer = MultiHeadAttention(N, H)
    _, scores = layer(query, value, value_mask=explicit, attention_mask=pairs, return_attention_scores=True)
    joined = (mask & explicit)[:, None] & pairs
    np.testing.assert_array_equal(
        ops.convert_to_numpy(scores) > 0, np.broadcast_to(joined[:, None], scores.shape)
    )


def test_a_key_brings_its_own_implicit_mask(rng):
    key, mask = embedded()
    query, value = sequences(rng, T, S)
    _, scores = MultiHeadAttention(N, H)(query, value, key, return_attention_scores=True)
    np.testing.assert_array_equal(
        ops.convert_to_numpy(scores) > 0, np.broadcast_to(mask[:, None, None], scores.shape)
    )


@pytest.mark.parametrize("dtype", ["mixed_float16", "mixed_bfloat16"])
def test_implicit_masks_survive_a_cast_of_the_inputs(rng, dtype):
    value, mask = embedded()
    (query,) = sequences(rng, T)
    _, scores = MultiHeadAttention(N, H, dtype=dtype)(query, value, return_attention_scores=True)
    scores = flat_arrays(scores)[0]
    np.testing.assert_array_equal(scores > 0, np.broadcast_to(mask[:, None, None], scores.shape))


# --- the cache ---


def causal(x):
    return {"query": x, "value": x, "use_causal_mask": True}


def stepwise(layer, x, lengths, **given):
    """The outputs of `x` cut into chunks of `lengths`, through a cache."""
    cache, outputs, index = layer.empty_cache(B, x.shape[1]), [], 0
    for length in lengths:
        chunk = x[:, index : index + length]
        output, cache = layer(
            chunk, chunk, use_causal_mask=True, cache=cache, cache_update_index=index, **given
        )
        outputs.append(ops.convert_to_numpy(output))
        index += length
    return np.concatenate(outputs, axis=1)


def test_left_padding_is_a_mask_over_slots(rng):
    (x,) = sequences(rng, 7)
    mask = np.array([[False] * 3 + [True] * 4, [True] * 7])
    layer = fresh(causal(x), rng)
    expected = run(layer, {**causal(x), "value_mask": mask})[0]
    poisoned = np.where(mask[..., None], x, np.float32(np.nan))
    for sequence in (x, poisoned):
        for lengths in ([1] * 7, [2, 5]):
            actual = stepwise(layer, sequence, lengths, value_mask=mask)
            assert_equal([actual[mask]], [expected[mask]])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("arguments", [{}, {"sliding_window": 3}], ids=str)
@pytest.mark.parametrize("lengths", [[1] * 7, [4, 3], [2, 5]], ids=str)
def test_nan_at_negative_positions_is_not_kept_in_the_cache(rng, lengths, arguments):
    (x,) = sequences(rng, 7)
    layer = fresh(causal(x), rng, rotary_embedding=RotaryEmbedding(rotary_dim=4), **arguments)
    positions = np.array([np.arange(7) - 3, np.arange(7)])
    expected = [run(layer, causal(x[:1, 3:]))[0], run(layer, causal(x[1:]))[0]]
    poisoned = np.where((positions >= 0)[..., None], x, np.float32(np.nan))
    cache, outputs, index = layer.empty_cache(B, 7), [], 0
    for length in lengths:
        chunk, of_chunk = (given[:, index : index + length] for given in (poisoned, positions))
        output, cache = layer(
            chunk, chunk, use_causal_mask=True, cache=cache, cache_update_index=index, positions=of_chunk
        )
        outputs.append(ops.convert_to_numpy(output))
        index += length
    actual = np.concatenate(outputs, axis=1)
    assert_equal([actual[:1, 3:], actual[1:]], expected)
    assert all(np.isfinite(x).all() for x in flat_arrays(cache))


def test_a_value_mask_that_is_not_over_the_slots_is_refused(rng):
    (x,) = sequences(rng, 2)
    layer = fresh(causal(x), rng)
    with pytest.raises(
        ValueError, match=r"`value_mask` must have shape \(2, 7\). Received: value_mask of shape \(2, 2\)"
    ):
        layer(x, x, value_mask=np.ones((B, 2), bool), cache=layer.empty_cache(B, 7), cache_update_index=0)


def test_a_projected_cache_equals_the_sequence_it_came_from(rng):
    query, value, key = sequences(rng, T, S, S)
    mask = np.array([[True] * 4 + [False] * 3, [False] * 2 + [True] * 5])
    inputs = {"query": query, "value": value, "key": key, "value_mask": mask}
    layer = fresh(inputs, rng, value_dim=HV)
    expected = run(layer, inputs, return_attention_scores=True)
    cache = layer.project_to_cache(value, key, value_mask=mask)
    output, scores, same = layer(query, None, value_mask=mask, cache=cache, return_attention_scores=True)
    assert_equal(flat_arrays((output, scores)), expected)
    assert_equal(flat_arrays(same), flat_arrays(cache), 0)
    for t in range(T):
        output, _ = layer(query[:, t : t + 1], None, value_mask=mask, cache=cache)
        assert_equal(flat_arrays(output), [expected[0][:, t : t + 1]])
    poisoned = np.where(mask[..., None], value, np.float32(np.nan))
    cache = layer.project_to_cache(poisoned, key, value_mask=mask)
    output, _ = layer(query, None, value_mask=mask, cache=cache)
    assert_equal(flat_arrays(output), expected[:1])


def test_the_cache_is_a_value(rng):
    (x,) = sequences(rng, 2)
    layer = fresh(causal(x), rng)
    cache = layer.empty_cache(B, 7)
    before = flat_arrays(cache)
    one = layer(x, x, cache=cache, cache_update_index=3, use_causal_mask=True)
    two = layer(x, x, cache=cache, cache_update_index=3, use_causal_mask=True)
    assert_equal(flat_arrays(one), flat_arrays(two), 0)
    assert_equal(flat_arrays(cache), before, 0)
    assert {w.path for w in layer.variables} == {w.path for w in layer.weights}


@pytest.mark.parametrize(
    ("jit", "arguments"), [(True, {}), (False, {}), (True, {"sliding_window": 3})], ids=str
)
def test_a_compiled_step_serves_every_index(rng, jit, arguments):
    (x,) = sequences(rng, 7)
    layer = fresh(causal(x), rng, **arguments)
    expected = run(layer, causal(x))[0]
    traces = []

    def step(given):
        traces.append(1)
        return layer(
            given["x"],
            given["x"],
            use_causal_mask=True,
            cache=given["cache"],
            cache_update_index=given["index"],
        )

    step, cache = compiled(step, jit), layer.empty_cache(B, 7)
    for index in range(7):
        given = {
            "x": ops.convert_to_tensor(x[:, index : index + 1]),
            "cache": cache,
            "index": ops.convert_to_tensor(index, dtype="int32"),
        }
        output, cache = step(given)
        assert_equal(flat_arrays(output), [expected[:, index : index + 1]])
    assert len(traces) == 1 or BACKEND == "torch"  # where nothing is traced


@pytest.mark.parametrize(
    ("arguments", "shape"),
    [({"attention_axes": 1}, (B, 3, 5, D)), ({"attention_axes": (1, 2)}, (B, 3, 5, D))],
)
def test_a_cache_needs_one_axis(rng, arguments, shape):
    x = rng.normal(size=shape).astype("float32")
    layer = fresh({"query": x, "value": x}, rng, **arguments)
    with pytest.raises(ValueError, match=r"`cache` needs inputs of shape \(B, T, D\)"):
        layer(x, x, cache=layer.empty_cache(B, 3), cache_update_index=0)
