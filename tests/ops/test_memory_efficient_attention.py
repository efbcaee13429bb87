"""Attention in blocks against the dense form and a float64 oracle, forward and gradient; what it leaves out; and what
it never holds."""

import functools
import itertools

import keras
import numpy as np
import pytest
from helpers_attention_oracle import dropout_multiplier, softmax_over_allowed
from helpers_layers import BACKEND, assert_equal, compiled, float64_enabled, function_gradients, tensors
from keras import ops

import keras_attn.ops.blockwise_attention as blockwise_attention
from keras_attn.ops import (
    DenseBias,
    MaskRule,
    ScoreDropout,
    SlopeBias,
    TableBias,
    dot_product_attention,
    memory_efficient_attention,
    prefers_memory_efficient,
)
from keras_attn.ops.softmax import is_softmax_rounded_once

B, N, K, T, S, H, HV = 2, 6, 3, 11, 13, 5, 7
SEED = (31, 7)


def heads(rng, dtype="float32", num_key_heads=N, num_queries=T):
    shapes = {
        "query": (B, N, num_queries, H),
        "key": (B, num_key_heads, S, H),
        "value": (B, num_key_heads, S, HV),
    }
    return {name: rng.normal(size=shape).astype(dtype) for name, shape in shapes.items()}


def integers(*shape, low=0, high=9):
    return np.random.default_rng(len(shape) + high).integers(low, high, shape).astype("int32")


def booleans(*shape):
    mask = np.random.default_rng(len(shape)).random(shape) < 0.7
    mask.reshape(-1, shape[-1])[1] = False
    return mask


SCATTERED = {"query_positions": integers(B, T), "key_positions": integers(B, S)}
IN_ORDER = {"query_positions": np.arange(T, dtype="int32") + 2, "key_positions": np.arange(S, dtype="int32")}
RULES = {
    "none": {},
    "causal": {**IN_ORDER, "causal": True},
    "causal_known": {**IN_ORDER, "causal": True, "offset": 2},
    "causal_scattered": {**SCATTERED, "causal": True},
    "prefix_known": {**IN_ORDER, "causal": True, "offset": 2, "prefix_mask": booleans(B, S)},
    "window": {**IN_ORDER, "sliding_window": 3},
    "window_known": {**IN_ORDER, "sliding_window": 3, "offset": 2},
    "window_1_known": {**IN_ORDER, "sliding_window": 1, "offset": 2},
    "causal_window_known": {**IN_ORDER, "causal": True, "sliding_window": 3, "offset": 2},
    "sinks_known": {**IN_ORDER, "sliding_window": 2, "num_sink_tokens": 3, "offset": 2},
    "causal_sinks_known": {
        **IN_ORDER,
        "causal": True,
        "sliding_window": 2,
        "num_sink_tokens": 3,
        "offset": 2,
    },
    "sinks_scattered": {**SCATTERED, "sliding_window": 2, "num_sink_tokens": 2},
    "segments": {
        "query_segment_ids": integers(B, T, low=0, high=3),
        "key_segment_ids": integers(B, S, low=0, high=3),
    },
    "query_mask": {"query_mask": booleans(B, T)},
    "key_mask": {"key_mask": booleans(B, S)},
    "slot_mask": {"slot_mask": booleans(B, S)[1:]},
    "pairs": {"pairs": booleans(B, N, T, S)},
    "pairs_of_keys": {"pairs": booleans(B, 1, 1, S)},
    "pairs_of_queries": {"pairs": booleans(T, 1)},
}
RULES["together"] = {
    name: value
    for part in ("causal_sinks_known", "segments", "query_mask", "key_mask", "pairs")
    for name, value in RULES[part].items()
}


def mask_rule(name):
    return MaskRule(
        **{
            key: ops.convert_to_tensor(x) if isinstance(x, np.ndarray) else x
            for key, x in RULES[name].items()
        }
    )


# The last queries stand after all keys, and the first keys before all queries; the first key may be padding.
BIASES = {
    "none": (None, None),
    "slopes": ((N,), SlopeBias),
    "slopes_scattered": ((N,), SlopeBias),
    "table": ((N, 1, 7), TableBias),
    "table_scattered": ((N, 1, 7), TableBias),
    "table_of_queries": ((B, N, T, 7), TableBias),
    "table_of_queries_scattered": ((B, N, T, 7), TableBias),
    "dense": ((B, N, T, S), DenseBias),
    "dense_of_heads": ((N, 1, 1), DenseBias),
    "dense_of_keys": ((B, 1, 1, S), DenseBias),
    "dense_of_queries": ((T, 1), DenseBias),
    "dense_of_pairs": ((T, S), DenseBias),
}


def make_bias(name, parameters, positions=None):
    """A bias at the `positions`, by default those of the rules above."""
    _, cls = BIASES[name]
    if cls is None or cls is DenseBias:
        return None if cls is None else DenseBias(parameters)
    places = positions or (SCATTERED if "scattered" in name else IN_ORDER)
    positions = [ops.convert_to_tensor(x) for x in places.values()]
    if cls is SlopeBias:
        return SlopeBias(parameters, *positions)
    has_query_axis = parameters.shape[-2] != 1
    return TableBias(parameters, *positions, lambda relative: ops.clip(relative, -3, 3) + 3, has_query_axis)


def arrays_for(rng, bias="none", sinks=False, dtype="float32", num_key_heads=N):
    arrays = heads(rng, dtype, num_key_heads)
    shape, _ = BIASES[bias]
    if shape is not None:
        arrays["bias"] = rng.normal(size=shape).astype(dtype)
    if sinks:
        arrays["sink_logits"] = rng.normal(size=N).astype(dtype)
    return arrays


def attend(function, given, rule="none", bias="none", **options):
    """The output of the dense form or of blocks."""
    given = dict(given)
    parameters = given.pop("bias", None)
    if options.pop("dropout", None):
        options["dropout"] = ScoreDropout(0.3, ops.convert_to_tensor(np.array(SEED, "int32")))
    output = function(**given, mask=mask_rule(rule), bias=make_bias(bias, parameters), **options)
    return output[0] if isinstance(output, tuple) else output


def output_of(function, arrays):
    # JAX would compile op by op.
    function = compiled(function) if BACKEND == "jax" else function
    return ops.convert_to_numpy(function(tensors(arrays)))


def on_jax(cases, few):
    """All cases; on JAX, which compiles for every one, a few."""
    return list(few if BACKEND == "jax" else cases)


def check_equal(arrays, num_blocks, tolerance=1e-5, **case):
    """Output and all gradients of blocks are those of the dense form, and the sum of each is not nothing."""
    coefficients = np.random.default_rng(3).normal(size=(B, N, T, HV)).astype(arrays["query"].dtype)

    def weighed(function, **options):
        return lambda given: attend(function, given, **case, **options) * ops.convert_to_tensor(coefficients)

    expected = output_of(lambda given: attend(dot_product_attention, given, **case), arrays)
    by_array = function_gradients(weighed(dot_product_attention), arrays)
    for number in num_blocks:
        blocks = functools.partial(attend, memory_efficient_attention, num_blocks=number, **case)
        actual = output_of(blocks, arrays)
        assert_equal([actual], [expected], tolerance)
        found = function_gradients(weighed(memory_efficient_attention, num_blocks=number), arrays)
        assert_equal([found[name] for name in arrays], [by_array[name] for name in arrays], tolerance)
        assert all(found[name].dtype == arrays[name].dtype for name in arrays)


@pytest.mark.skipif(BACKEND == "jax", reason="it would compile for each number")
def test_any_number_of_blocks(rng):
    """3, the number of the other tests, does not divide T; 50 is more than there are queries."""
    check_equal(arrays_for(rng), rule="together", num_blocks=(1, 2, 50))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("rule", on_jax(RULES, ["causal_scattered", "causal_sinks_known"]))
def test_every_mask(rng, rule):
    check_equal(arrays_for(rng), rule=rule, num_blocks=(3,))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("bias", on_jax(BIASES, ["slopes_scattered", "table_of_queries"]))
def test_every_bias(rng, bias):
    check_equal(arrays_for(rng, bias), rule="causal_known", bias=bias, num_blocks=(3,))


@pytest.mark.parametrize(
    "options", [{"soft_cap": 0.7}, {"scale": 0.3}, {"dropout": True}, {"sinks": True}], ids=str
)
def test_every_option(rng, options):
    options = dict(options)
    sinks = options.pop("sinks", False)
    check_equal(arrays_for(rng, sinks=sinks), num_blocks=(3,), **options)


@pytest.mark.parametrize("num_key_heads", [1, K])
def test_shared_key_heads(rng, num_key_heads):
    check_equal(arrays_for(rng, num_key_heads=num_key_heads), rule="pairs", num_blocks=(3,))


EVERYTHING = {"soft_cap": 0.7, "scale": 0.3, "dropout": True}


TOGETHER = [("together", "table_of_queries"), ("together", "table_scattered"), ("sinks_known", "slopes")]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", on_jax(TOGETHER, TOGETHER[:1]), ids="-".join)
def test_everything_together(rng, case):
    rule, bias = case
    arrays = arrays_for(rng, bias, sinks=True, num_key_heads=K)
    check_equal(arrays, rule=rule, bias=bias, num_blocks=(3,), **EVERYTHING)


def test_float64_agrees_to_its_own_precision(rng):
    # Other backends round some of it to float32: Keras' matrix products on torch, constants on JAX.
    tolerance = 1e-12 if BACKEND == "tensorflow" else 1e-6
    with float64_enabled():
        arrays = arrays_for(rng, "table_of_queries", sinks=True, dtype="float64", num_key_heads=K)
        check_equal(arrays, (3,), tolerance, rule="together", bias="table_of_queries", **EVERYTHING)


def oracle(arrays, rule, bias, soft_cap, scale):
    """From the formula of the docstring; mask and bias are the proven ones of other tests."""
    wide = {name: x.astype("float64") for name, x in arrays.items()}
    repeats = N // wide["key"].shape[1]
    key, value = (np.repeat(wide[name], repeats, axis=1) for name in ("key", "value"))
    logits = soft_cap * np.tanh(np.einsum("bnth,bnsh->bnts", wide["query"], key) * scale / soft_cap)
    logits = logits + ops.convert_to_numpy(make_bias(bias, ops.convert_to_tensor(arrays["bias"])).dense())
    allowed = np.broadcast_to(ops.convert_to_numpy(mask_rule(rule).block()), logits.shape)
    scores = softmax_over_allowed(logits, allowed, wide["sink_logits"])
    return np.einsum("bnts,bnsv->bntv", scores * dropout_multiplier(0.3, SEED, scores.shape), value)


def test_both_forms_equal_the_oracle(rng):
    bias = "table_of_queries"
    arrays = arrays_for(rng, bias, sinks=True, num_key_heads=K)
    expected = oracle(arrays, "together", bias, soft_cap=0.7, scale=0.3)
    for function in (dot_product_attention, memory_efficient_attention):
        actual = attend(function, tensors(arrays), "together", bias, **EVERYTHING)
        assert_equal([ops.convert_to_numpy(actual)], [expected])


def test_masks_and_biases_may_be_plain_tensors(rng):
    given = tensors(arrays_for(rng))
    mask, bias = (
        ops.convert_to_tensor(booleans(B, 1, T, S)),
        ops.convert_to_tensor(rng.normal(size=(N, T, S))),
    )
    bias = ops.cast(bias, "float32")
    expected = dot_product_attention(**given, mask=mask, bias=bias)[0]
    actual = memory_efficient_attention(**given, mask=mask, bias=bias, num_blocks=3)
    assert_equal([ops.convert_to_numpy(actual)], [ops.convert_to_numpy(expected)])


@pytest.mark.parametrize("lead", on_jax([(), (2,), (2, 3, 2)], [(2, 3, 2)]))
def test_leading_axes_are_free(rng, lead):
    arrays = {
        name: rng.normal(size=(*lead, *x.shape[1:])).astype("float32")
        for name, x in heads(rng, num_key_heads=K).items()
    }

    def weighed(function, **options):
        return lambda given: attend(function, given, "causal_known", **options) ** 2

    expected = function_gradients(weighed(dot_product_attention), arrays)
    actual = function_gradients(weighed(memory_efficient_attention, num_blocks=3), arrays)
    assert_equal([actual[name] for name in arrays], [expected[name] for name in arrays])


@pytest.mark.parametrize(("dtype", "bound"), [("float16", 4e-3), ("bfloat16", 3e-2)])
def test_half_precision_is_within_its_bounds(rng, dtype, bound):
    """Of the largest magnitude, against the same numbers in float32: one rounding of scores and outputs."""
    arrays = arrays_for(rng, "slopes", sinks=True)
    halved = {name: ops.cast(x, dtype) for name, x in tensors(arrays).items()}
    rounded = {name: ops.convert_to_numpy(ops.cast(x, "float32")) for name, x in halved.items()}
    expected = attend(dot_product_attention, tensors(rounded), "together", "slopes", soft_cap=2.0)
    actual = attend(memory_efficient_attention, halved, "together", "slopes", soft_cap=2.0, num_blocks=3)
    assert keras.backend.standardize_dtype(actual.dtype) == dtype
    actual = ops.convert_to_numpy(ops.cast(actual, "float32"))
    assert_equal([actual], [ops.convert_to_numpy(expected)], bound)


@pytest.fixture
def heads_apart(monkeypatch):
    """Blocks so small that every head takes several, of several queries; how often heads were taken apart."""
    calls, head_by_head = [], blockwise_attention.head_by_head

    def counting(*arguments):
        calls.append(arguments[0])
        return head_by_head(*arguments)

    monkeypatch.setattr(blockwise_attention, "head_by_head", counting)
    monkeypatch.setattr(blockwise_attention, "_BLOCK_SCORES_OF_HEAD", 1)
    monkeypatch.setattr(blockwise_attention, "_FEWEST_BLOCKS", 3)
    return calls


RULES["causal_padded"] = {
    name: x for rule in ("causal_known", "query_mask", "key_mask") for name, x in RULES[rule].items()
}
RULES["causal_after_all_keys"] = {
    "query_positions": np.arange(T, dtype="int32") + S - 3,
    "key_positions": np.arange(S, dtype="int32"),
    "causal": True,
    "offset": S - 3,
}


@pytest.mark.skipif(BACKEND != "tensorflow", reason="other backends take all heads at once")
@pytest.mark.parametrize(
    "case", [("causal_padded", K, None), ("causal_after_all_keys", N, 2.0), ("slot_mask", K, None)]
)
def test_heads_one_after_the_other(rng, case, heads_apart):
    rule, num_key_heads, soft_cap = case
    arrays = arrays_for(rng, num_key_heads=num_key_heads)
    check_equal(arrays, rule=rule, num_blocks=(None,), soft_cap=soft_cap)
    assert heads_apart == 3 * [num_key_heads]  # an output, then an output and its gradient


@pytest.mark.skipif(BACKEND != "tensorflow", reason="other backends take all heads at once")
def test_heads_one_after_the_other_in_a_graph_of_any_batch_size(rng, heads_apart):
    import tensorflow as tf

    arrays = arrays_for(rng)

    def gradients(given):
        with tf.GradientTape() as tape:
            tape.watch(given)
            output = attend(memory_efficient_attention, given, "causal_known") ** 2
        return tape.gradient(output, given)

    signature = {name: tf.TensorSpec([None, *x.shape[1:]], x.dtype) for name, x in arrays.items()}
    found = tf.function(gradients, [signature], autograph=False)(tensors(arrays))
    expected = function_gradients(
        lambda given: attend(dot_product_attention, given, "causal_known") ** 2, arrays
    )
    assert_equal([found[name].numpy() for name in arrays], [expected[name] for name in arrays])
    assert heads_apart == [N, N]  # the output and the gradient


@pytest.mark.parametrize(
    "options",
    [{"bias": "slopes"}, {"sinks": True}, {"dropout": True}, {"rule": "pairs"}, {"rule": "segments"}],
    ids=str,
)
def test_what_differs_by_head_or_pair_takes_all_heads_at_once(rng, options, heads_apart):
    options = dict(options)
    arrays = arrays_for(rng, options.get("bias", "none"), options.pop("sinks", False))
    attend(memory_efficient_attention, tensors(arrays), **options)
    assert heads_apart == []


@pytest.mark.skipif(BACKEND == "torch", reason="PyTorch multiplies no matrices of two dtypes")
def test_keys_of_another_dtype_take_all_heads_at_once(rng, heads_apart):
    given = tensors(arrays_for(rng))
    expected = attend(dot_product_attention, given)
    halved = {name: x if name == "query" else ops.cast(x, "bfloat16") for name, x in given.items()}
    actual = ops.cast(attend(memory_efficient_attention, halved), "float32")
    assert_equal([ops.convert_to_numpy(actual)], [ops.convert_to_numpy(expected)], 3e-2)
    assert heads_apart == []


@pytest.mark.extended
@pytest.mark.skipif(BACKEND != "tensorflow", reason="other backends take all heads at once")
@pytest.mark.parametrize(("dtype", "bound"), [("float16", 4e-3), ("bfloat16", 3e-2)])
def test_gradients_of_single_heads_in_half_precision_are_within_its_bounds(rng, dtype, bound, heads_apart):
    halved = {name: ops.cast(x, dtype) for name, x in tensors(arrays_for(rng)).items()}
    rounded = {name: ops.convert_to_numpy(ops.cast(x, "float32")) for name, x in halved.items()}

    def squared(function):
        return lambda given: ops.cast(attend(function, given, "causal_padded"), "float32") ** 2

    expected = function_gradients(squared(dot_product_attention), rounded)
    found = function_gradients(squared(memory_efficient_attention), halved)
    actual = [ops.convert_to_numpy(ops.cast(found[name], "float32")) for name in rounded]
    assert_equal(actual, [expected[name] for name in rounded], bound)
    assert heads_apart


@pytest.mark.extended
@pytest.mark.skipif(BACKEND != "tensorflow", reason="other backends take all heads at once")
@pytest.mark.parametrize("rule", ["none", "causal_padded"])
def test_a_softmax_in_half_precision_changes_no_bit(rng, rule, heads_apart, monkeypatch):
    """oneDNN's computes in float32: what it saves are conversions of numbers that were rounded already."""
    if not is_softmax_rounded_once("bfloat16"):
        pytest.skip("needs oneDNN, on a processor with AVX-512: elsewhere the softmax is in float32")
    halved = {name: ops.cast(x, "bfloat16") for name, x in tensors(arrays_for(rng)).items()}

    def squared(given):
        return ops.cast(attend(memory_efficient_attention, given, rule), "float32") ** 2

    found = function_gradients(squared, halved)
    monkeypatch.setattr(blockwise_attention, "is_softmax_rounded_once", lambda dtype: False)
    expected = function_gradients(squared, halved)
    for name in halved:
        np.testing.assert_array_equal(*(ops.cast(x[name], "float32") for x in (found, expected)))
    assert len(heads_apart) == 4


@pytest.mark.skipif(BACKEND != "tensorflow", reason="of TensorFlow's compiler")
def test_xla_computes_the_softmax_of_half_precision_in_float32(rng, heads_apart):
    """Queries and keys of small integers, whose products are exact; the output is the scores of the first keys."""
    import tensorflow as tf

    sizes = {"query": (B, N, T, H), "key": (B, N, S, H)}
    arrays = {name: rng.integers(-2, 3, shape).astype("float32") for name, shape in sizes.items()}
    arrays["value"] = np.broadcast_to(np.eye(S, HV, dtype="float32"), (B, N, S, HV))
    halved = {name: ops.cast(x, "bfloat16") for name, x in tensors(arrays).items()}
    found = tf.function(
        lambda given: memory_efficient_attention(**given, scale=1), autograph=False, jit_compile=True
    )(halved)
    expected = dot_product_attention(**tensors(arrays), scale=1)[0]
    np.testing.assert_allclose(ops.cast(found, "float32"), expected, rtol=2**-8)
    assert heads_apart


@pytest.mark.parametrize("shape", [{"batch": 0}, {"queries": 0}, {"batch": 0, "queries": 0}], ids=str)
def test_nothing_in_nothing_out(rng, shape):
    batch, queries = shape.get("batch", B), shape.get("queries", T)
    arrays = {
        "query": np.zeros((batch, N, queries, H), "float32"),
        "key": np.ones((batch, K, S, H), "float32"),
        "value": np.ones((batch, K, S, HV), "float32"),
    }
    positions = {"query_positions": ops.arange(queries), "key_positions": ops.arange(S)}
    for rule in (None, MaskRule(**positions, causal=True, sliding_window=2, offset=0)):
        output = memory_efficient_attention(**tensors(arrays), mask=rule)
        assert tuple(output.shape) == (batch, N, queries, HV)
        found = function_gradients(
            lambda given, rule=rule: memory_efficient_attention(**given, mask=rule), arrays
        )
        assert all(found[name].shape == x.shape and not found[name].any() for name, x in arrays.items())


# --- rows without keys, and NaN where nobody looks ---

POISONS = [("key_mask", "nan"), ("segments", "nan"), ("causal", "-inf")]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("rule", on_jax(["query_mask", "pairs", "segments", "together"], ["together"]))
@pytest.mark.parametrize("sinks", [False, True])
def test_queries_without_keys_are_0_in_output_and_gradient(rng, rule, sinks):
    arrays = arrays_for(rng, sinks=sinks)
    arrays["value"] += 3
    answered = ops.convert_to_numpy(mask_rule(rule).block()).any(-1)
    answered = np.broadcast_to(answered, (B, N, T))
    assert not answered.all()
    for function, options in ((dot_product_attention, {}), (memory_efficient_attention, {"num_blocks": 3})):
        output = ops.convert_to_numpy(attend(function, tensors(arrays), rule, **options))
        assert not output[~answered].any()
        assert output[answered].all()
        found = function_gradients(lambda x, f=function, o=options: attend(f, x, rule, **o) ** 2, arrays)
        assert not found["query"][~answered].any()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", on_jax(POISONS, POISONS[:1]), ids="-".join)
def test_what_nobody_sees_reaches_nobody(rng, case):
    rule, poison = case
    arrays = arrays_for(rng, "slopes", sinks=True)
    seen = ops.convert_to_numpy(mask_rule(rule).block()).any(-2)
    seen = np.broadcast_to(seen, (B, N, S))[..., None]
    assert not seen.all() or "causal" in rule or rule == "segments"
    poisoned = {
        **arrays,
        "key": np.where(seen, arrays["key"], np.float32(poison)),
        "value": np.where(seen, arrays["value"], np.float32(poison)),
    }

    def attended(given):
        return attend(memory_efficient_attention, given, rule, "slopes", num_blocks=3, dropout=True)

    np.testing.assert_array_equal(
        ops.convert_to_numpy(attended(tensors(poisoned))), ops.convert_to_numpy(attended(tensors(arrays)))
    )
    expected = function_gradients(lambda given: attended(given) ** 2, arrays)
    actual = function_gradients(lambda given: attended(given) ** 2, poisoned)
    assert_equal([actual[name] for name in arrays], [expected[name] for name in arrays], 0)


def test_a_query_that_takes_no_part_may_be_nan(rng):
    arrays = arrays_for(rng)
    takes_part = RULES["query_mask"]["query_mask"][:, None, :, None]
    poisoned = {**arrays, "query": np.where(takes_part, arrays["query"], np.float32(np.nan))}

    def attended(given):
        return attend(memory_efficient_attention, given, "query_mask", num_blocks=3) ** 2

    expected, actual = (function_gradients(attended, given) for given in (arrays, poisoned))
    assert_equal([actual[name] for name in arrays], [expected[name] for name in arrays], 0)


# --- compiled, with lengths that only the run knows ---


def causal_rule_of(given):
    num_queries, num_keys = ops.shape(given["query"])[-2], ops.shape(given["key"])[-2]
    return MaskRule(
        query_positions=ops.arange(num_queries, dtype="int32"),
        key_positions=ops.arange(num_keys, dtype="int32"),
        causal=True,
        sliding_window=4,
        num_sink_tokens=2,
        offset=0,
    )


@pytest.mark.extended
@pytest.mark.skipif(
    BACKEND != "tensorflow", reason="only TensorFlow has sizes that are known in the run alone"
)
def test_lengths_unknown_before_the_run(rng):
    import tensorflow as tf

    def attended(given):
        return memory_efficient_attention(**given, mask=causal_rule_of(given), num_blocks=2)

    def with_gradients(given):
        with tf.GradientTape() as tape:
            tape.watch(given)
            output = attended(given)
            loss = tf.reduce_sum(output**2)
        return output, tape.gradient(loss, given)

    arrays = {**heads(rng, num_key_heads=K), "sink_logits": rng.normal(size=N).astype("float32")}
    free = {"query": (None, N, None, H), "key": (None, K, None, H), "value": (None, K, None, HV)}
    signature = {
        name: tf.TensorSpec(free.get(name, x.shape), x.dtype, name=name) for name, x in arrays.items()
    }
    function = tf.function(with_gradients, input_signature=[signature], autograph=False)
    for num_queries, num_keys in ((11, 13), (5, 3), (2, 7)):
        given = {**arrays, "query": arrays["query"][:, :, :num_queries]}
        given |= {name: arrays[name][:, :, :num_keys] for name in ("key", "value")}
        expected = with_gradients(tensors(given))
        actual = function(tensors(given))
        assert_equal(
            list(map(np.asarray, tf.nest.flatten(actual))), list(map(np.asarray, tf.nest.flatten(expected)))
        )


@pytest.mark.extended
def test_compiled_equals_eager(rng):
    arrays = arrays_for(rng, "table_of_queries", sinks=True, num_key_heads=K)
    case = {"rule": "together", "bias": "table_of_queries", "num_blocks": 3, **EVERYTHING}

    def attended(given):
        return attend(memory_efficient_attention, given, **case)

    actual = compiled(attended)(tensors(arrays))
    assert_equal([ops.convert_to_numpy(actual)], [ops.convert_to_numpy(attended(tensors(arrays)))])


# --- what is left out, and what is never held ---


@pytest.fixture
def num_pairs(monkeypatch):
    """How many pairs of a query and a key each product of queries and keys is over."""
    counts, products = [], blockwise_attention.products

    def counting(query, key):
        counts.append(query.shape[-2] * key.shape[-2])
        return products(query, key)

    monkeypatch.setattr(blockwise_attention, "products", counting)
    return counts


def square(rng, length, dtype="float32"):
    arrays = {name: rng.normal(size=(1, 2, length, H)).astype(dtype) for name in ("query", "key", "value")}
    positions = ops.arange(length, dtype="int32")
    return arrays, {"query_positions": positions, "key_positions": positions}


LENGTH, NUM_BLOCKS = 96, 8
STEP = LENGTH // NUM_BLOCKS
WORK = {
    "none": ({}, LENGTH**2),
    # Block i sees i + 1 blocks of keys.
    "causal": ({"causal": True, "offset": 0}, STEP**2 * NUM_BLOCKS * (NUM_BLOCKS + 1) // 2),
    "causal_somewhere": ({"causal": True}, LENGTH**2),
    # A block of 12 queries sees itself and the 4 keys before it, of which the first block has none.
    "causal_window": ({"causal": True, "sliding_window": 5, "offset": 0}, LENGTH * (STEP + 4) - STEP * 4),
    "window": ({"sliding_window": 5, "offset": 0}, LENGTH * (STEP + 8) - 2 * STEP * 4),
    "causal_window_sinks": (
        {"causal": True, "sliding_window": 5, "num_sink_tokens": 3, "offset": 0},
        LENGTH * (STEP + 4) - STEP * 4 + (NUM_BLOCKS - 1) * STEP * 3,
    ),
}


@pytest.mark.parametrize("name", WORK)
def test_keys_that_no_query_of_a_block_sees_are_left_out(rng, name, num_pairs):
    options, expected = WORK[name]
    arrays, positions = square(rng, LENGTH)
    rule = MaskRule(**positions, **options)
    memory_efficient_attention(**tensors(arrays), mask=rule, num_blocks=NUM_BLOCKS)
    assert sum(num_pairs) == expected
    num_pairs.clear()
    function_gradients(
        lambda given: memory_efficient_attention(**given, mask=rule, num_blocks=NUM_BLOCKS), arrays
    )
    # The logits forward, again backward, and the gradient of the scores.
    assert sum(num_pairs) == 3 * expected


@pytest.mark.parametrize(
    ("shape", "rule", "wanted"),
    [
        ((2, 4, 2048, 1), {}, 8),  # at least: fewer would leave out little under a causal mask
        ((1, 8, 16384, 1), {}, 64),  # 2^25 scores are 256 queries
        ((2, 4, 2048, 1), {"sliding_window": 64, "offset": 0}, 32),
        ((2, 4, 2048, 1), {"sliding_window": 64}, 8),
        ((2, 4, 2048, 1), {"sliding_window": 1, "offset": 0}, 256),
        ((0, 8, 0, 1), {}, 8),
    ],
)
def test_blocks_are_chosen_so_that_their_scores_fit(shape, rule, wanted):
    heads = keras.KerasTensor(shape)
    number = blockwise_attention._num_blocks(heads, heads, MaskRule(**rule), is_head_by_head=False)
    assert number == wanted


def test_blocks_of_single_heads_are_smaller():
    heads = keras.KerasTensor((7, 8, 16384, 1))
    assert (
        blockwise_attention._num_blocks(heads, heads, MaskRule(), is_head_by_head=True) == 256
    )  # of 64 queries, at least
    heads = keras.KerasTensor((1, 8, 4096, 1))
    assert (
        blockwise_attention._num_blocks(heads, heads, MaskRule(), is_head_by_head=True) == 8
    )  # of 512 queries
    halved = keras.KerasTensor((7, 8, 16384, 1), "bfloat16")
    assert blockwise_attention._num_blocks(halved, halved, MaskRule(), is_head_by_head=True) == 225  # of 73


@pytest.mark.skipif(BACKEND != "tensorflow", reason="reads a TensorFlow graph")
@pytest.mark.parametrize("rule", ["causal_known", "causal_sinks_known"])
def test_slices_begin_at_numbers_that_compilers_know(rng, rule):
    """XLA takes ten times as long to compile blocks of keys whose starts are computed."""
    import tensorflow as tf

    def gradients(given):
        with tf.GradientTape() as tape:
            tape.watch(given)
            output = attend(memory_efficient_attention, given, rule, num_blocks=3)
        return tape.gradient(output, given)

    graph = tf.function(gradients, autograph=False).get_concrete_function(tensors(arrays_for(rng))).graph
    slices = [op for op in graph.get_operations() if op.type in ("Slice", "StridedSlice")]
    assert len(slices) > 10
    assert {op.inputs[1].op.type for op in slices} == {"Const"}


def test_no_block_is_empty(rng, num_pairs):
    arrays, _ = square(rng, 5)
    memory_efficient_attention(**tensors(arrays), num_blocks=50)
    assert num_pairs == [5] * 5


def sizes_in(function, *signature):
    """The number of elements of every tensor of a TensorFlow graph."""
    graph = function.get_concrete_function(*signature).graph
    called = [op.type for op in graph.get_operations() if "Call" in op.type or op.type in ("While", "If")]
    assert not called, "tensors in there would not be seen"
    return [x.shape.num_elements() for op in graph.get_operations() for x in op.outputs]


@pytest.mark.extended
@pytest.mark.skipif(BACKEND != "tensorflow", reason="reads a TensorFlow graph")
def test_no_tensor_of_all_pairs_is_in_the_graph(rng):
    import tensorflow as tf

    length, num_heads = 512, 2
    arrays, positions = square(rng, length)
    arrays["sink_logits"] = np.zeros(num_heads, "float32")
    arrays["bias"] = np.zeros((1, 2, length, 7), "float32")
    mask = ops.convert_to_tensor(np.arange(length)[None] < 500)

    def graph(attention_function, **more):
        def with_gradients(given):
            rule = MaskRule(**positions, causal=True, offset=0, key_mask=mask, query_mask=mask)
            given = dict(given)
            with tf.GradientTape() as tape:
                tape.watch(given)
                parameters = given.pop("bias")
                output = attention_function(
                    **given,
                    mask=rule,
                    bias=make_bias("table_of_queries", parameters, positions),
                    soft_cap=2.0,
                    dropout=ScoreDropout(0.3, ops.convert_to_tensor(np.array(SEED, "int32"))),
                    **more,
                )
                output = output[0] if isinstance(output, tuple) else output
            return tape.gradient(output, given)

        return tf.function(with_gradients, autograph=False)

    signature = {name: tf.TensorSpec(x.shape, x.dtype, name=name) for name, x in arrays.items()}
    sizes = sizes_in(graph(memory_efficient_attention, num_blocks=3), signature)
    assert None not in sizes
    assert max(sizes) < length * length
    assert max(filter(None, sizes_in(graph(dot_product_attention), signature))) >= num_heads * length * length


@pytest.mark.parametrize(
    ("num_queries", "num_keys", "options", "wanted"),
    [
        (64, 64, {}, False),
        (2047, 2048, {}, False),
        (2048, 2048, {}, True),
        (1, 2**22, {}, True),
        (1024, 1024, {"sliding_window": 128, "offset": 0}, True),
        (1024, 1024, {"sliding_window": 129, "offset": 0}, False),
        (1023, 1024, {"sliding_window": 128, "offset": 0}, False),
        (1024, 1024, {"sliding_window": 128}, False),
    ],
)
def test_blocks_are_preferred_where_they_pay(num_queries, num_keys, options, wanted):
    query, key = (keras.KerasTensor((2, 3, length, 5)) for length in (num_queries, num_keys))
    assert bool(prefers_memory_efficient(query, key, MaskRule(**options))) is wanted


def test_blocks_are_not_preferred_where_a_length_is_unknown():
    known, free = keras.KerasTensor((2, 3, 4096, 5)), keras.KerasTensor((2, 3, None, 5))
    assert not any(
        prefers_memory_efficient(*pair) for pair in itertools.product((known, free), repeat=2) if free in pair
    )
