"""Each variant of MultiHeadAttention alone, against the oracle or the simplest thing that its paper says of it; rows
that see nothing and NaN in padding on every path."""

import itertools

import numpy as np
import pytest
from helpers_attention_oracle import attention_oracle, make_attention, named_weights, with_random_weights
from helpers_layers import BACKEND, assert_equal, first, flat_arrays, function_gradients, gradients, run
from keras import ops

from keras_attn import layers
from keras_attn.layers import MultiHeadAttention

B, T, S, D, N, H, HV = 2, 5, 7, 11, 4, 6, 3
BIASES = {
    "alibi": ("alibi", {}),
    "t5": ("t5", {"num_buckets": 8, "max_distance": 5}),
    "shaw": ("shaw", {"max_distance": 2}),
}
POSITION_SCHEMES = {
    "rotary": {"rotary_embedding": {"max_wavelength": 100.0}},
    **{name: {"position_bias": bias} for name, bias in BIASES.items()},
}
# JAX compiles every op for every shape.
SCHEMES = ["rotary", "shaw"] if BACKEND == "jax" else list(POSITION_SCHEMES)


def sequence(rng, length, batch=B):
    return rng.normal(size=(batch, length, D)).astype("float32")


def itself(x, **options):
    return {"query": x, "value": x, **options}


def attention(query, value=None, **arguments):
    """A layer with random weights, and the arguments that the oracle needs."""
    arguments = {"num_heads": N, "key_dim": H, **arguments}
    return with_random_weights(make_attention(arguments), query, query if value is None else value), arguments


def answer(layer, arguments, call):
    return attention_oracle(named_weights(layer), arguments, call)


def output_bias(layer):
    return ops.convert_to_numpy(layer.output_dense.bias.value)


# --- learned sinks, soft cap, norm, shared heads, gate ---


def test_learned_sinks_take_a_share_of_each_row(rng):
    x = sequence(rng, T)
    layer, arguments = attention(x, use_sink_logits=True)
    output, scores = run(layer, itself(x), return_attention_scores=True)
    assert_equal([output, scores], answer(layer, arguments, itself(x)))
    sums = scores.sum(-1)
    assert (sums > 0).all()
    assert (sums < 1).all()
    plain, _ = attention(x)
    # exp(logit) / (sum of exp + exp(sink)): what the sink leaves is shared as it was without.
    plain.set_weights(layer.get_weights()[1:])
    unsunk = run(plain, itself(x), return_attention_scores=True)[1]
    np.testing.assert_allclose(scores / sums[..., None], unsunk, rtol=1e-5)
    layer.sink_logits.assign(np.full(N, -1e30))
    assert_equal(run(layer, itself(x)), run(plain, itself(x)))


def test_sink_logits_start_at_0_as_one_more_key_of_product_0(rng):
    x = sequence(rng, T)
    layer = MultiHeadAttention(N, H, use_sink_logits=True, kernel_initializer="zeros")
    scores = run(layer, itself(x), return_attention_scores=True)[1]
    np.testing.assert_allclose(scores, 1 / (T + 1), rtol=1e-6)


@pytest.mark.parametrize("cap", [0.5, 2.0])
def test_a_soft_cap_bounds_how_much_more_one_key_can_weigh_than_another(rng, cap):
    x = 9 * sequence(rng, T)
    layer, _ = attention(x, logit_soft_cap=cap)
    scores = run(layer, itself(x), return_attention_scores=True)[1]
    ratios = scores.max(-1) / scores.min(-1)
    assert ratios.max() <= np.exp(2 * cap) * (1 + 1e-5)
    assert ratios.max() > np.exp(1.9 * cap)
    uncapped, _ = attention(x)
    assert_equal(run(attention(x, logit_soft_cap=1e6)[0], itself(x)), run(uncapped, itself(x)), 1e-4)


@pytest.mark.parametrize("kind", ["rms_norm", "layer_norm"])
def test_a_norm_takes_the_length_of_queries_and_keys_away(rng, kind):
    x = sequence(rng, T)
    layer, _ = attention(x, query_key_norm=kind, use_bias=False)
    expected = run(layer, itself(x))
    for projection in (layer.query_dense, layer.key_dense):
        projection.kernel.assign(37 * projection.kernel)
    assert_equal(run(layer, itself(x)), expected, 2e-3)  # but for the epsilon
    plain, _ = attention(x, use_bias=False)
    assert not np.allclose(run(plain, itself(x))[0], expected[0], atol=1e-2)


def test_as_many_key_heads_as_heads_is_multi_head_attention(rng):
    x = sequence(rng, T)
    grouped, plain = (attention(x, **arguments)[0] for arguments in ({"num_key_value_heads": N}, {}))
    assert_equal(run(grouped, itself(x)), run(plain, itself(x)), 0)


@pytest.mark.parametrize("num_key_value_heads", [1, 2])
def test_shared_key_heads_are_repeated_ones(rng, num_key_value_heads):
    x = sequence(rng, T)
    layer, _ = attention(x, num_key_value_heads=num_key_value_heads, value_dim=HV)
    plain, _ = attention(x, value_dim=HV)
    for shared, whole in zip(layer.weights, plain.weights):
        weight, heads = ops.convert_to_numpy(shared.value), shared.path.split("/")[-2] in ("key", "value")
        whole.assign(np.repeat(weight, N // num_key_value_heads, axis=-2) if heads else weight)
    for scores in (False, True):
        expected = run(plain, itself(x), return_attention_scores=scores)
        assert_equal(run(layer, itself(x), return_attention_scores=scores), expected)
    assert layer.empty_cache(B, S)[0].shape[1] == num_key_value_heads


def test_a_gate_of_one_half_halves_each_head(rng):
    x = sequence(rng, T)
    layer, _ = attention(x, use_gate=True)
    plain, _ = attention(x)
    plain.set_weights([w for w, of in zip(layer.get_weights(), layer.weights) if "gate" not in of.path])
    for weight in layer.weights:
        if "gate" in weight.path:
            weight.assign(np.zeros(weight.shape))
    bias = output_bias(layer)
    assert_equal([run(layer, itself(x))[0] - bias], [(run(plain, itself(x))[0] - bias) / 2])


# --- positions ---


@pytest.mark.parametrize("scheme", SCHEMES)
def test_left_padding_with_positions_is_the_row_alone(rng, scheme):
    x = sequence(rng, S)
    layer, arguments = attention(x, **POSITION_SCHEMES[scheme])
    first_real = np.array([[3], [0]])
    mask = np.arange(S) >= first_real
    call = itself(x, value_mask=mask, positions=(np.arange(S) - first_real).astype("int32"))
    padded = run(layer, call)[0]
    assert_equal([padded], answer(layer, arguments, call)[:1])
    assert_equal([padded[0, 3:]], [run(layer, itself(x[:1, 3:]))[0][0]])


@pytest.mark.parametrize("scheme", SCHEMES)
def test_positions_are_used(rng, scheme):
    x = sequence(rng, T)
    layer, _ = attention(x, **POSITION_SCHEMES[scheme])
    order = np.array([2, 0, 4, 1, 3])
    shuffled = run(layer, itself(x[:, order]))[0]
    assert not np.allclose(shuffled, run(layer, itself(x))[0][:, order], atol=1e-2)
    followed = run(layer, itself(x[:, order], positions=order.astype("int32")))[0]
    assert_equal([followed], [run(layer, itself(x))[0][:, order]])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("memory_efficient", [False, True], ids=["dense", "blocks"])
def test_packed_rows_are_separate_rows(rng, scheme, memory_efficient):
    """Three sequences and two pads in one row, through self-attention."""
    x = sequence(rng, 11, batch=1)
    layer, _ = attention(x, memory_efficient=memory_efficient, **POSITION_SCHEMES[scheme])
    lengths = (2, 4, 3)
    segment_ids = np.repeat([1, 2, 3, 0], (*lengths, 2))[None].astype("int32")
    positions = np.concatenate([*map(np.arange, lengths), np.zeros(2)])[None].astype("int32")
    call = {"segment_ids": segment_ids, "positions": positions, "use_causal_mask": True}
    x[:, 9:] = np.nan
    packed = run(layer, itself(x, **call))[0]
    ends = np.cumsum((0, *lengths))
    for start, end in itertools.pairwise(ends):
        expected = run(layer, itself(x[:, start:end], use_causal_mask=True))[0]
        assert_equal([packed[:, start:end]], [expected])
    np.testing.assert_array_equal(packed[0, 9:], np.tile(output_bias(layer), (2, 1)))
    by_input, _ = gradients(layer, itself(x, **call), lambda y: y[:, :2] ** 2)
    assert all(by_input["value"][0, :2].any(-1))
    assert not any(gradient[:, 2:].any() for gradient in by_input.values())


@pytest.mark.parametrize("scheme", SCHEMES)
def test_packed_cross_attention_is_separate_rows(rng, scheme):
    query, value = sequence(rng, 5, batch=1), sequence(rng, 7, batch=1)
    layer, _ = attention(query, value, **POSITION_SCHEMES[scheme])
    call = {
        "segment_ids": np.array([[1, 1, 2, 2, 2]]),
        "key_segment_ids": np.array([[1, 1, 1, 1, 2, 2, 0]]),
        "positions": np.array([[0, 1, 0, 1, 2]]),
        "key_positions": np.array([[0, 1, 2, 3, 0, 1, 0]]),
    }
    call = {name: x.astype("int32") for name, x in call.items()}
    packed = run(layer, {"query": query, "value": value, **call})[0]
    for queries, keys in ((slice(0, 2), slice(0, 4)), (slice(2, 5), slice(4, 6))):
        # Apart, the keys' positions are their own 0, 1, 2, ... too.
        expected = run(layer, {"query": query[:, queries], "value": value[:, keys]})[0]
        assert_equal([packed[:, queries]], [expected])


def test_a_prefix_is_seen_by_all_and_the_rest_causally(rng):
    x = sequence(rng, T)
    layer, arguments = attention(x)
    causal = run(layer, itself(x, use_causal_mask=True))
    none, everything = np.zeros((B, T), bool), np.ones((B, T), bool)
    assert_equal(run(layer, itself(x, use_causal_mask=True, prefix_mask=none)), causal)
    assert_equal(run(layer, itself(x, use_causal_mask=True, prefix_mask=everything)), run(layer, itself(x)))
    call = itself(x, use_causal_mask=True, prefix_mask=np.arange(T) < np.array([[2], [3]]))
    output, scores = run(layer, call, return_attention_scores=True)
    assert_equal([output, scores], answer(layer, arguments, call))
    for row, length in enumerate((2, 3)):
        seen = np.tri(T, dtype=bool) | (np.arange(T) < length)
        np.testing.assert_array_equal(scores[row] > 0, np.broadcast_to(seen, (N, T, T)))


def test_the_first_tokens_stay_in_the_window(rng):
    x = sequence(rng, S)
    layer, _ = attention(x, sliding_window=2, num_sink_tokens=2)
    scores = run(layer, itself(x, use_causal_mask=True), return_attention_scores=True)[1]
    t, s = np.arange(S)[:, None], np.arange(S)
    seen = (s <= t) & ((t - s < 2) | (s < 2))
    np.testing.assert_array_equal(scores > 0, np.broadcast_to(seen, scores.shape))


# --- caches ---


def decoded(layer, x, lengths, positions=None, length=None, **options):
    """The outputs of `x` in chunks, one tensor, and the cache that is left."""
    cache, outputs, index = layer.empty_cache(x.shape[0], length or x.shape[1]), [], 0
    for size in lengths:
        chunk = x[:, index : index + size]
        if positions is not None:
            options["positions"] = positions[:, index : index + size]
        output, cache = layer(
            chunk, chunk, use_causal_mask=True, cache=cache, cache_update_index=index, **options
        )
        outputs.append(output)
        index += size
    return ops.concatenate(outputs, axis=1), cache


def chunks(rng, total, largest):
    """Random lengths that sum up to `total`."""
    lengths = []
    while sum(lengths) < total:
        lengths.append(min(int(rng.integers(1, largest + 1)), total - sum(lengths)))
    return lengths


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("scheme", "num_sink_tokens"), [(scheme, (i % 2) * 2) for i, scheme in enumerate(SCHEMES)]
)
def test_steps_that_fill_a_ring_over_and_over_equal_the_full_pass(rng, scheme, num_sink_tokens):
    total = 17 if BACKEND == "tensorflow" else 13
    x = sequence(rng, total)
    arguments = {"sliding_window": 3, "num_sink_tokens": num_sink_tokens, "num_key_value_heads": 2}
    layer, arguments = attention(x, **arguments, **POSITION_SCHEMES[scheme])
    output, ring = decoded(layer, x, [1] * total)
    assert ring[0].shape == (B, 2, 3 + num_sink_tokens, H)
    assert_equal(flat_arrays(output), answer(layer, arguments, itself(x, use_causal_mask=True))[:1])


@pytest.mark.parametrize("num_sink_tokens", [2])
@pytest.mark.parametrize("memory_efficient", [False, True], ids=["dense", "blocks"])
def test_chunks_longer_than_the_ring_equal_the_full_pass(rng, num_sink_tokens, memory_efficient):
    x, first_real = sequence(rng, 29), np.array([[4], [0]])
    mask, positions = np.arange(29) >= first_real, (np.arange(29) - first_real).astype("int32")
    arguments = {"sliding_window": 3, "num_sink_tokens": num_sink_tokens, **POSITION_SCHEMES["rotary"]}
    layer, arguments = attention(x, memory_efficient=memory_efficient, **arguments)
    call = itself(x, use_causal_mask=True, value_mask=mask, positions=positions)
    expected = answer(layer, arguments, call)[0]
    for lengths in ([29], chunks(rng, 29, 11), chunks(rng, 29, 4)):
        output, _ = decoded(layer, x, lengths, positions)
        assert_equal([flat_arrays(output)[0][mask]], [expected[mask]])


def test_a_cache_that_holds_the_whole_sequence_is_no_ring(rng):
    x = sequence(rng, T)
    layer, _ = attention(x, sliding_window=5, num_sink_tokens=2)
    assert layer.empty_cache(B, T)[0].shape[2] == T
    expected = run(layer, itself(x, use_causal_mask=True))
    assert_equal(flat_arrays(decoded(layer, x, [2, 1, 2])[0]), expected)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="lengths that a graph alone knows are TensorFlow's")
def test_a_cache_of_a_length_that_only_the_graph_knows_is_a_ring(rng):
    import tensorflow as tf

    layer, _ = attention(sequence(rng, T), sliding_window=3)

    @tf.function(input_signature=[tf.TensorSpec([B, None, D])])
    def last_output(x):
        cache = layer.empty_cache(B, ops.shape(x)[1])
        return layer(x, x, use_causal_mask=True, cache=cache, cache_update_index=0)[0]

    for length in (2, 7):  # shorter than the ring, and longer
        x = sequence(rng, length)
        assert_equal([last_output(x)], run(layer, itself(x, use_causal_mask=True)))


# --- rows that see nothing, and NaN in padding, on every path ---

PATHS = ("dense", "blocks", "blocks_of_queries", "static_cache", "static_cache_blocks", "ring_cache")
PATHS = PATHS[2::3] if BACKEND == "jax" else PATHS
VARIANTS = {
    "plain": {},
    "everything": {
        **POSITION_SCHEMES["rotary"],
        "position_bias": BIASES["shaw"],
        "num_key_value_heads": 2,
        "logit_soft_cap": 2.0,
        "use_sink_logits": True,
        "use_gate": True,
        "value_dim": HV,
        "sliding_window": 3,
        "num_sink_tokens": 1,
    },
    "alibi": {"position_bias": BIASES["alibi"], "num_key_value_heads": 1},
    "t5": {"position_bias": BIASES["t5"], "use_sink_logits": True},
}
FIRST_REAL = np.array([[3], [0], [S]])  # the third row is padding alone
REAL = np.arange(S) >= FIRST_REAL
POSITIONS = (np.arange(S) - FIRST_REAL).astype("int32")


def on_path(path, variant, x, monkeypatch):
    """A function of {"x"} to the causal outputs of a left-padded batch, and its layer."""
    arguments = {**VARIANTS[variant], "memory_efficient": "blocks" in path}
    if path == "ring_cache":
        arguments["sliding_window"] = 2
    if path == "static_cache":
        arguments |= {"sliding_window": None, "num_sink_tokens": 0}
    if path == "blocks_of_queries":
        monkeypatch.setattr("keras_attn.ops.blockwise_attention._num_blocks", lambda *_: 3)
    layer, _ = attention(x, **arguments)
    if "cache" not in path:
        call = {"value_mask": REAL, "query_mask": REAL, "positions": POSITIONS, "use_causal_mask": True}
        return layer, lambda given: layer(given["x"], given["x"], **call)
    return layer, lambda given: decoded(layer, given["x"], [2, 4, 1], POSITIONS)[0]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("path", "variant"),
    # Every path with everything, and every variant on the plainest.
    [
        (path, variant)
        for path in PATHS
        for variant in VARIANTS
        if variant == "everything" or (path == "dense" and BACKEND != "jax")
    ],
)
def test_rows_without_keys_are_0_and_nan_in_padding_reaches_nobody(rng, path, variant, monkeypatch):
    x = sequence(rng, S, batch=3)
    layer, outputs_of = on_path(path, variant, x, monkeypatch)
    expected = flat_arrays(outputs_of({"x": ops.convert_to_tensor(x)}))[0]
    real = REAL[..., None]

    def loss(given):
        return ops.where(real, outputs_of(given), 0.0) ** 2

    expected_gradient = function_gradients(loss, {"x": x})["x"]
    assert expected_gradient[REAL].all()
    assert not expected_gradient[~REAL].any()
    if "use_gate" not in VARIANTS[variant]:
        # A gate lets through what stands at a query; what it lets through is 0 all the same.
        np.testing.assert_array_equal(expected[~REAL], np.tile(output_bias(layer), ((~REAL).sum(), 1)))
    of_pads = function_gradients(lambda given: ops.where(real, 0.0, outputs_of(given)) * 3.0, {"x": x})["x"]
    assert not of_pads.any()
    poisoned = np.where(real, x, np.array([np.nan, np.inf, np.nan], "float32")[:, None, None])
    output = flat_arrays(outputs_of({"x": ops.convert_to_tensor(poisoned)}))[0]
    np.testing.assert_array_equal(output[REAL], expected[REAL])
    gradient = function_gradients(loss, {"x": poisoned})["x"]
    np.testing.assert_allclose(gradient[REAL], expected_gradient[REAL], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("path", ["dense", "blocks"])
def test_a_cross_attention_cache_keeps_nan_out(rng, path):
    query, value = sequence(rng, T), sequence(rng, S)
    layer, _ = attention(query, value, memory_efficient=path == "blocks", use_sink_logits=True, value_dim=HV)
    mask = np.array([[True] * 4 + [False] * 3, [False] * S])
    expected = run(layer, {"query": query, "value": value, "value_mask": mask})
    poisoned = np.where(mask[..., None], value, np.float32(np.nan))
    cache = layer.project_to_cache(ops.convert_to_tensor(poisoned), value_mask=mask)
    output = first(layer(query, None, value_mask=mask, cache=cache))
    assert_equal(flat_arrays(output), expected)
    np.testing.assert_array_equal(flat_arrays(output)[0][1], np.tile(output_bias(layer), (T, 1)))


# --- which form is taken ---


@pytest.fixture
def forms(monkeypatch):
    """The forms that calls took, one after the other."""
    taken, module = [], "keras_attn.ops.attention_paths"
    for name in ("dot_product_attention", "attention_without_scores", "memory_efficient_attention"):
        function = getattr(__import__(module, fromlist=[name]), name)
        monkeypatch.setattr(
            f"{module}.{name}",
            lambda *args, name=name, f=function, **kw: taken.append(name) or f(*args, **kw),
        )
    monkeypatch.setattr(f"{module}.has_fused_kernel", lambda: False)
    return taken


def test_long_sequences_take_blocks_unless_scores_are_asked_for(rng, forms, monkeypatch):
    x = sequence(rng, T)
    layer, _ = attention(x)
    expected = run(layer, itself(x))
    monkeypatch.setattr("keras_attn.ops.attention_paths.prefers_memory_efficient", lambda *_: True)
    assert_equal(run(layer, itself(x)), expected)
    assert_equal(run(layer, itself(x), return_attention_scores=True)[:1], expected)
    layer, _ = attention(x, memory_efficient=False)
    assert_equal(run(layer, itself(x)), expected)
    with_scores, blocks = "dot_product_attention", "memory_efficient_attention"
    alone = "attention_without_scores" if BACKEND == "tensorflow" else with_scores
    assert forms == [alone, blocks, with_scores, alone]


# --- bad arguments ---


def test_a_position_bias_of_other_heads_is_refused(rng):
    x, bias = sequence(rng, T), layers.RelativePositionBias()
    MultiHeadAttention(N, H, position_bias=bias)(x, x)
    with pytest.raises(ValueError, match="`RelativePositionBias` must be used with one `num_heads`"):
        MultiHeadAttention(N + 1, H, position_bias=bias)(x, x)
