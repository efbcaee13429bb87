"""The formula against float64 loops, and against two keys worked out by hand."""

import functools
import itertools
import math

import keras
import numpy as np
import pytest
from helpers_attention_oracle import dropout_multiplier
from helpers_layers import BACKEND, assert_equal, compiled, float64_enabled, function_gradients, tensors
from keras import ops

from keras_attn.ops import (
    MaskRule,
    ScoreDropout,
    attend,
    compiled_scope,
    dot_product_attention,
    inference_scope,
)

B, N, T, S, H, HV = 2, 3, 5, 7, 11, 13


def attention_in_loops(query, key, value, mask):
    """One query at a time, in float64, from equation 1 of Vaswani et al. 2017."""
    query, key, value = (np.asarray(x, "float64") for x in (query, key, value))
    output = np.zeros((*query.shape[:-1], value.shape[-1]))
    scores = np.zeros((*query.shape[:-1], key.shape[-2]))
    mask = np.broadcast_to(mask, scores.shape)
    for b, n, t in itertools.product(*map(range, query.shape[:-1])):
        allowed = [s for s in range(key.shape[-2]) if mask[b, n, t, s]]
        logits = [float(query[b, n, t] @ key[b, n, s]) / math.sqrt(query.shape[-1]) for s in allowed]
        weights = [math.exp(logit - max(logits)) for logit in logits]
        for s, weight in zip(allowed, weights):
            scores[b, n, t, s] = weight / sum(weights)
            output[b, n, t] += scores[b, n, t, s] * value[b, n, s]
    return output, scores


def heads(rng, dtype="float32"):
    shapes = (B, N, T, H), (B, N, S, H), (B, N, S, HV)
    return [rng.normal(size=shape).astype(dtype) for shape in shapes]


def attention(query, key, value, *mask, **options):
    return dot_product_attention(*map(ops.convert_to_tensor, (query, key, value)), *mask, **options)


@pytest.mark.parametrize("scores_too", [False, True])
def test_equals_loops_under_padding_in_a_graph_for_a_compiler(rng, scores_too):
    """The mask of queries is then no part of the logits. Row 1 has a query without keys, and NaN in all padding."""
    query, key, value = heads(rng)
    query_mask, key_mask = rng.random((B, T)) < 0.6, rng.random((B, S)) < 0.6
    query_mask[:, 0], query_mask[:, 1], key_mask[0, 0], key_mask[1] = True, False, True, False
    expected = attention_in_loops(
        query, key, value, query_mask[:, None, :, None] & key_mask[:, None, None, :]
    )
    for x, mask in ((query, query_mask), (key, key_mask), (value, key_mask)):
        x[np.broadcast_to(~mask[:, None, :, None], x.shape)] = np.nan
    rule = MaskRule(query_mask=ops.convert_to_tensor(query_mask), key_mask=ops.convert_to_tensor(key_mask))
    with compiled_scope():
        found = attend(
            *map(ops.convert_to_tensor, (query, key, value)), rule, return_attention_scores=scores_too
        )
        assert_equal([np.asarray(x) for x in found if x is not None], expected[: 1 + scores_too])

        arrays = {"query": query, "key": key, "value": value}
        gradients = function_gradients(
            lambda floats: attend(floats["query"], floats["key"], floats["value"], rule)[0], arrays
        )
        assert all(np.isfinite(gradient).all() for gradient in gradients.values())


MASK_SHAPES = [None, (T, S), (B, 1, T, S), (1, N, T, S), (B, N, T, S), (B, 1, 1, S), (B, 1, T, 1), (1, S)]


@pytest.mark.parametrize("shape", MASK_SHAPES, ids=str)
def test_equals_loops_under_masks_of_any_broadcastable_shape(rng, shape):
    query, key, value = heads(rng)
    masks = [] if shape is None else [rng.random(shape) < 0.6]
    found = attention(query, key, value, *map(ops.convert_to_tensor, masks))
    expected = attention_in_loops(query, key, value, masks[0] if masks else True)
    assert_equal([np.asarray(x) for x in found], expected, 1e-6)


def test_float64_stays_float64(rng):
    query, key, value = heads(rng, "float64")
    mask = rng.random((T, S)) < 0.6
    with float64_enabled():
        tensors = [ops.convert_to_tensor(x, dtype="float64") for x in (query, key, value)]
        outputs = [np.asarray(x) for x in dot_product_attention(*tensors, mask=ops.convert_to_tensor(mask))]
    # `keras.ops.matmul` multiplies float64 matrices in float32 on torch.
    tolerance = 1e-6 if BACKEND == "torch" else 1e-14
    assert_equal(outputs, attention_in_loops(query, key, value, mask), tolerance)


def test_two_keys_by_hand():
    # Logits ln 3 and 0: weights 3/4 and 1/4. The second query is opposite: 1/4 and 3/4.
    query = np.array([[1.0, 0.0], [-1.0, 0.0]], "float32") * math.log(3) * math.sqrt(2)
    key = np.array([[1.0, 5.0], [0.0, -5.0]], "float32")
    value = np.array([[4.0, 0.0], [0.0, 8.0]], "float32")
    output, scores = dot_product_attention(
        *(ops.convert_to_tensor(x[None, None]) for x in (query, key, value))
    )
    np.testing.assert_allclose(np.asarray(scores)[0, 0], [[0.75, 0.25], [0.25, 0.75]], rtol=1e-6)
    np.testing.assert_allclose(np.asarray(output)[0, 0], [[3.0, 2.0], [1.0, 6.0]], rtol=1e-6)


def test_two_masked_keys_by_hand():
    ones = ops.ones((1, 1, 2, 2))
    value = ops.convert_to_tensor(np.array([[[[4.0, 0.0], [0.0, 8.0]]]], "float32"))
    mask = ops.convert_to_tensor([[True, False], [False, False]])
    output, scores = dot_product_attention(ones, ones, value, mask)
    np.testing.assert_array_equal(np.asarray(scores)[0, 0], [[1.0, 0.0], [0.0, 0.0]])
    np.testing.assert_array_equal(np.asarray(output)[0, 0], [[4.0, 0.0], [0.0, 0.0]])


def test_scale_replaces_the_square_root(rng):
    query, key, value = heads(rng)
    actual = attention(query, key, value, scale=0.25)
    expected = attention_in_loops(query * 0.25 * math.sqrt(H), key, value, True)
    assert_equal([np.asarray(x) for x in actual], expected, 1e-6)


def test_dropout_acts_on_the_scores_that_weigh_and_not_on_those_returned(rng):
    query, key, value = heads(rng)
    dropout = ScoreDropout(0.3, ops.convert_to_tensor(np.array([31, 7], "int32")))
    output, scores = attention(query, key, value, dropout=dropout)
    _, expected_scores = attention_in_loops(query, key, value, True)
    dropped = expected_scores * dropout_multiplier(0.3, (31, 7), expected_scores.shape)
    expected_output = np.einsum("bnts,bnsv->bntv", dropped, value)
    assert_equal([np.asarray(output), np.asarray(scores)], [expected_output, expected_scores], 1e-6)


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_what_the_mask_rules_out_reaches_nobody(rng, poison):
    query, key, value = heads(rng)
    mask = rng.random((B, 1, T, S)) < 0.7
    mask[0, :, :, 4:] = False
    mask[1, :, 2] = False
    clean = attention(query, key, value, ops.convert_to_tensor(mask))
    key[0, :, 4:] = value[0, :, 4:] = poison
    query[1, :, 2] = poison
    dirty = attention(query, key, value, ops.convert_to_tensor(mask))
    assert_equal([np.asarray(x) for x in dirty], [np.asarray(x) for x in clean], 0)
    assert not np.asarray(dirty[0])[1, :, 2].any()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("logit", [6e4, -6e4])
def test_large_logits_stay_finite_and_right(dtype, logit):
    # One key at +-6e4, the others at 0: all weight on it, or none.
    query = ops.cast(ops.ones((1, 1, 2, 1)), dtype)
    key = ops.cast(np.array([[[[logit], [0.0], [0.0]]]]), dtype)
    value = ops.cast(np.array([[[[4.0], [2.0], [1.0]]]]), dtype)
    mask = ops.convert_to_tensor([[True, True, False], [True, True, True]])
    output, _ = attention(query, key, value, mask)
    expected = [4.0, 4.0] if logit > 0 else [2.0, 1.5]
    np.testing.assert_array_equal(np.asarray(ops.cast(output, "float32"))[0, 0, :, 0], expected)


def test_softmax_of_half_precision_is_computed_in_float32(rng):
    """4096 equal scores sum to 1: added up in bfloat16 they would stop at 256 / 4096."""
    query = ops.zeros((1, 1, 2, 3), dtype="bfloat16")
    key = ops.zeros((1, 1, 4096, 3), dtype="bfloat16")
    _, scores = dot_product_attention(query, key, key)
    np.testing.assert_array_equal(np.asarray(ops.cast(scores, "float32")), 1 / 4096)


def test_masked_rows_are_0_where_the_default_float_is_half_precision(rng):
    query, key, value = heads(rng)
    mask = rng.random((T, S)) < 0.6
    mask[2] = False
    keras.config.set_floatx("float16")
    try:
        outputs = dot_product_attention(
            *(ops.convert_to_tensor(x) for x in (query, key, value)), mask=ops.convert_to_tensor(mask)
        )
    finally:
        keras.config.set_floatx("float32")
    assert_equal([np.asarray(x) for x in outputs], attention_in_loops(query, key, value, mask), 1e-6)


GRADIENT_CASES = {
    "plain": {},
    "mask": {"mask": True},
    "everything": {"mask": True, "bias": True, "soft_cap": 3.0, "dropout": True},
    "sinks": {"mask": True, "sinks": True},
}


def case_of(rng, mask=False, bias=False, dropout=False, sinks=False, **options):
    """Arrays for which there are gradients, and a function of them; two key heads for four query heads."""
    shapes = {"query": (B, 4, T, H), "key": (B, 2, S, H), "value": (B, 2, S, HV)}
    shapes |= {"bias": (4, T, S)} if bias else {}
    shapes |= {"sink_logits": (4,)} if sinks else {}
    arrays = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    if mask:
        options["mask"] = rng.random((B, 1, T, S)) < 0.6
        options["mask"][0, 0, 2] = False
    upstream = rng.normal(size=(B, 4, T, HV))

    def weighed(given, asked):
        drop = ScoreDropout(0.3, ops.convert_to_tensor(np.array([31, 7], "int32"))) if dropout else None
        result = attend(**given, **options, dropout=drop, return_attention_scores=asked)
        return ops.sin(result[0]) * ops.convert_to_tensor(upstream)

    return arrays, weighed


@pytest.mark.parametrize("name", GRADIENT_CASES)
def test_asking_for_scores_changes_neither_output_nor_gradient(rng, name):
    tolerance = 1e-13 if BACKEND == "tensorflow" else 1e-6
    with float64_enabled():
        arrays, weighed = case_of(rng, **GRADIENT_CASES[name])
        outputs, gradients = zip(
            *(
                (
                    ops.convert_to_numpy(weighed(tensors(arrays), asked)),
                    function_gradients(functools.partial(weighed, asked=asked), arrays),
                )
                for asked in (True, False)
            )
        )
    assert_equal([outputs[1]], [outputs[0]], 0 if BACKEND == "tensorflow" else tolerance)
    assert_equal([gradients[1][x] for x in arrays], [gradients[0][x] for x in arrays], tolerance)


@pytest.mark.sampled(1)
@pytest.mark.skipif(BACKEND != "tensorflow", reason="only TensorFlow has a gradient of its own there")
@pytest.mark.parametrize(
    ("name", "compiler"), [("plain", "eager"), ("mask", "eager"), ("everything", "function")]
)
def test_second_derivatives_are_those_of_the_formula(rng, name, compiler):
    import tensorflow as tf

    arrays, weighed = case_of(rng, **GRADIENT_CASES[name])
    given = {name: tf.constant(x) for name, x in arrays.items()}

    def second(asked):
        def derivative(given):
            with tf.GradientTape() as outer:
                outer.watch(given)
                with tf.GradientTape() as inner:
                    inner.watch(given)
                    y = weighed(given, asked)
                first = inner.gradient(y, given)
                z = sum(tf.reduce_sum(tf.sin(x)) for x in first.values())
            return outer.gradient(z, given)

        if compiler != "eager":
            derivative = tf.function(derivative, jit_compile=compiler == "xla", autograph=False)
        return [x.numpy() for x in derivative(given).values()]

    assert_equal(second(False), second(True), 1e-12)


def test_compiled_equals_eager(rng):
    query, key, value = heads(rng)
    mask = rng.random((B, 1, T, S)) < 0.6
    arrays = dict(
        zip(("query", "key", "value", "mask"), map(ops.convert_to_tensor, (query, key, value, mask)))
    )
    eager = dot_product_attention(**arrays)
    for jit in (True, False):
        actual = compiled(lambda arrays: dot_product_attention(**arrays), jit)(arrays)
        assert_equal([np.asarray(x) for x in actual], [np.asarray(x) for x in eager], 1e-6)


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="graphs of TensorFlow alone learn sizes late"
)
def test_one_query_of_a_batch_of_unknown_size():
    """Small batches and large ones go ways of their own."""
    import tensorflow as tf

    rng = np.random.default_rng(3)
    spec = [tf.TensorSpec([None, 3, size, 7], "float32") for size in (1, None, None)]
    attend_with_scores, attend_alone = (
        tf.function(
            lambda *heads, kept=kept: attend(*heads, return_attention_scores=kept),
            input_signature=spec,
            autograph=False,
        )
        for kept in (True, False)
    )
    for batch_size, num_keys in ((1, 5), (2, 11), (17, 131)):
        query, key, value = (
            rng.normal(size=(batch_size, 3, size, 7)).astype("float32") for size in (1, num_keys, num_keys)
        )
        logits = np.einsum("bnth,bnsh->bnts", query, key, dtype="float64") / 7**0.5
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        output, scores = attend_with_scores(query, key, value)
        np.testing.assert_allclose(scores, weights, rtol=1e-5, atol=1e-6)
        expected = np.einsum("bnts,bnsh->bnth", weights, value)
        np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-6)
        output, scores = attend_alone(query, key, value)
        assert scores is None
        np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="graphs of TensorFlow alone learn sizes late")
def test_one_query_of_another_dtype_than_the_keys():
    """A cache may be in float32 where queries are in bfloat16."""
    import tensorflow as tf

    rng = np.random.default_rng(5)
    spec = [tf.TensorSpec([None, 3, 1, 7], "bfloat16"), tf.TensorSpec([None, 3, 131, 7], "float32")]
    step = tf.function(lambda query, key: attend(query, key, key)[0], input_signature=spec, autograph=False)
    for batch_size in (1, 17):
        query = tf.cast(rng.normal(size=(batch_size, 3, 1, 7)), "bfloat16")
        key = tf.cast(rng.normal(size=(batch_size, 3, 131, 7)), "float32")
        expected, _ = dot_product_attention(tf.cast(query, "float32"), key, key)
        np.testing.assert_allclose(tf.cast(step(query, key), "float32"), expected, rtol=2e-2, atol=2e-2)


@pytest.mark.skipif(
    BACKEND != "tensorflow", reason="only TensorFlow's graphs learn their batch size when they run"
)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("bfloat16", 0.0)])
def test_one_query_of_a_step_has_the_answer_that_it_has_in_any_batch(rng, dtype, tolerance):
    """No size of a batch is computed in another form: there is no branch."""
    import tensorflow as tf

    specs = [tf.TensorSpec([None, N, length, 16], dtype) for length in (1, 29, 29)]
    step = tf.function(lambda *x: attend(*x)[0], specs, autograph=False)
    query, key, value = (tf.cast(rng.normal(size=(61, *spec.shape[1:])), dtype) for spec in specs)
    expected = tf.cast(step(query, key, value), "float32")
    if dtype == "bfloat16":  # logits and the softmax are float32, as they are eagerly
        np.testing.assert_array_equal(expected, tf.cast(attend(query, key, value)[0], "float32"))
    for size in (1, 2, 7, 19):
        found = tf.cast(step(query[:size], key[:size], value[:size]), "float32")
        np.testing.assert_allclose(found, expected[:size], rtol=0, atol=tolerance)
    types = {operation.type for operation in step.get_concrete_function().graph.get_operations()}
    assert not types & {"If", "StatelessIf"}


def test_a_nan_query_without_keys_gives_0_where_a_graph_is_only_run(rng):
    query, key, value = heads(rng)
    mask = np.ones((B, 1, T, S), bool)
    mask[1, :, 2] = False
    mask = ops.convert_to_tensor(mask)
    expected = ops.convert_to_numpy(attention(query, key, value, mask)[0])
    query[1, :, 2] = np.nan
    with inference_scope():
        found = ops.convert_to_numpy(attention(query, key, value, mask)[0])
    assert not found[1, :, 2].any()
    np.testing.assert_array_equal(found, expected)
