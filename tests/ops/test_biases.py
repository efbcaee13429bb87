"""Position biases against the papers' numbers, transformers, loops in float64, and the backends' own gradients."""

import math

import helpers_transformers  # noqa: F401 -- imports, before the fork
import keras
import numpy as np
import pytest
from helpers_layers import BACKEND, compiled, float64_enabled, function_gradients
from keras import ops

from keras_attn.ops import DenseBias, SlopeBias, TableBias, alibi_slopes, relative_position_bucket

B, N, T, S = 2, 3, 5, 7
FURTHEST = 5
R = 2 * FURTHEST + 1
PEERS = 'pip install "keras_attn[peers]"'

# Positions are packed, padded and shuffled: no formula may count on 0, 1, 2, ...
QUERY = np.array([0, 1, 2, 0, 9])
KEY = np.array([3, 0, 1, 2, 0, 1, -8])
QUERIES = np.array([[0, 1, 2, 3, 4], [5, 3, 0, 1, 11]])
KEYS = np.array([[0, 1, 2, 3, 4, 5, 6], [2, 9, 1, 0, 0, 1, 4]])


def clipped(relative_positions):
    return ops.clip(relative_positions, -FURTHEST, FURTHEST) + FURTHEST


def slopes(parameters, query_positions, key_positions):
    return SlopeBias(parameters, query_positions, key_positions)


def table(parameters, query_positions, key_positions):
    return TableBias(parameters, query_positions, key_positions, clipped)


def table_of_rows(parameters, query_positions, key_positions):
    return TableBias(parameters, query_positions, key_positions, clipped, has_query_axis=True)


def dense(parameters, query_positions, key_positions):
    return DenseBias(parameters)


POSITIONAL = {
    "slopes": (slopes, (N,), QUERY, KEY),
    "slopes_batched": (slopes, (N,), QUERIES, KEYS),
    "slopes_batched_keys": (slopes, (N,), QUERY, KEYS),
    "table": (table, (N, 1, R), QUERY, KEY),
    "table_batched_positions": (table, (N, 1, R), QUERIES, KEYS),
    "table_batched_queries": (table, (N, 1, R), QUERIES, KEY),
    "table_positions_of_one_row": (table, (N, 1, R), QUERIES[:1], KEYS[:1]),
    "table_batched": (table, (B, N, 1, R), QUERY, KEY),
    "table_of_one_row": (table, (1, N, 1, R), QUERIES, KEYS),
    "both_batched": (table, (B, N, 1, R), QUERIES, KEYS),
    "rows": (table_of_rows, (B, N, T, R), QUERY, KEY),
    "rows_batched_positions": (table_of_rows, (B, N, T, R), QUERIES, KEYS),
    "rows_positions_of_one_row": (table_of_rows, (B, N, T, R), QUERIES[:1], KEYS[:1]),
    "rows_unbatched": (table_of_rows, (N, T, R), QUERY, KEY),
    "rows_unbatched_positions_batched": (table_of_rows, (N, T, R), QUERIES, KEYS),
}
DENSE = {
    f"dense_{'_'.join(map(str, shape))}": (dense, shape, QUERY, KEY)
    for shape in ((B, N, T, S), (N, T, S), (T, S), (N, 1, S), (B, 1, 1, S), (B, 1, T, 1), (S,))
}
CASES = {**POSITIONAL, **DENSE}
# Where the blocks of queries and of keys end; the last ones are smaller.
BLOCKS = [(slice(t, min(t + 2, T)), slice(s, min(s + 3, S))) for t in range(0, T, 2) for s in range(0, S, 3)]


def numbers(name):
    return np.random.default_rng(3).normal(size=CASES[name][1])


def made(name, dtype="float32"):
    make, _, query_positions, key_positions = CASES[name]
    return make(ops.convert_to_tensor(numbers(name), dtype), query_positions, key_positions)


def upstream(*shape, dtype="float32"):
    return ops.convert_to_tensor(np.random.default_rng(5).normal(size=shape), dtype)


def rows_of(bias, queries):
    return bias.parameters[..., queries, :] if bias.has_query_axis else bias.parameters


def full(x):
    """`x` with every axis that it is to be broadcast to, as a NumPy array."""
    return np.broadcast_to(ops.convert_to_numpy(x), (B, N, T, S))


def by_hand(name):
    """One pair at a time, in float64, from the definitions."""
    make, _, query_positions, key_positions = CASES[name]
    parameters = numbers(name)
    query_positions = np.broadcast_to(query_positions, (B, T))
    key_positions = np.broadcast_to(key_positions, (B, S))
    expected = np.zeros((B, N, T, S))
    for b, n, t, s in np.ndindex(B, N, T, S):
        distance = int(key_positions[b, s]) - int(query_positions[b, t])
        if make is slopes:
            expected[b, n, t, s] = -parameters[n] * abs(distance)
        elif make is dense:
            expected[b, n, t, s] = np.broadcast_to(parameters, (B, N, T, S))[b, n, t, s]
        else:
            entry = min(max(distance, -FURTHEST), FURTHEST) + FURTHEST
            expected[b, n, t, s] = np.broadcast_to(parameters, (B, N, T, R))[b, n, t, entry]
    return expected


@pytest.mark.parametrize("name", CASES)
def test_dense_equals_the_definition(name):
    with float64_enabled():
        np.testing.assert_allclose(full(made(name, "float64").dense()), by_hand(name), rtol=1e-12)
    np.testing.assert_allclose(full(made(name).dense()), by_hand(name), rtol=1e-6)


@pytest.mark.sampled(9)
@pytest.mark.parametrize("name", CASES)
def test_blocks_tile_to_dense(name):
    bias = made(name)
    tiled = np.full((B, N, T, S), np.nan, "float32")
    for queries, keys in BLOCKS:
        tiled[..., queries, keys] = ops.convert_to_numpy(bias.block(rows_of(bias, queries), queries, keys))
    np.testing.assert_array_equal(tiled, full(bias.dense()))


@pytest.mark.sampled(9)
@pytest.mark.parametrize("name", CASES)
def test_gradient_equals_autodiff_of_dense(name):
    bias = made(name)
    make, _, query_positions, key_positions = CASES[name]
    weights = upstream(B, N, T, S)
    expected = function_gradients(
        lambda given: make(given["x"], query_positions, key_positions).dense() * weights,
        {"x": ops.convert_to_numpy(bias.parameters)},
    )["x"]
    actual = bias.gradient(bias.parameters, weights, slice(None), slice(None))
    assert tuple(actual.shape) == tuple(bias.parameters.shape)
    np.testing.assert_allclose(
        ops.convert_to_numpy(actual), expected, rtol=0, atol=1e-5 * np.abs(expected).max()
    )


@pytest.mark.sampled(9)
@pytest.mark.parametrize("name", CASES)
def test_block_gradients_sum_to_the_whole(name):
    bias = made(name)
    weights = upstream(B, N, T, S)
    whole = ops.convert_to_numpy(bias.gradient(bias.parameters, weights, slice(None), slice(None)))
    total = np.zeros_like(whole)
    for queries, keys in BLOCKS:
        parameters = rows_of(bias, queries)
        gradient = bias.gradient(parameters, weights[..., queries, keys], queries, keys)
        assert tuple(gradient.shape) == tuple(parameters.shape)
        # A view, so that the rows of the block are added where they belong.
        rows = total[..., queries, :] if bias.has_query_axis else total
        rows += ops.convert_to_numpy(gradient)
    np.testing.assert_allclose(total, whole, rtol=1e-5, atol=1e-5)


@pytest.mark.sampled(7)
@pytest.mark.parametrize("name", POSITIONAL)
@pytest.mark.parametrize("c", [1, 4096, 1_000_003])
def test_adding_c_to_all_positions_changes_nothing(name, c):
    bias = made(name)
    make, _, query_positions, key_positions = CASES[name]
    shifted = make(bias.parameters, query_positions + c, key_positions + c)
    np.testing.assert_array_equal(full(shifted.dense()), full(bias.dense()))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", list(CASES)[::2])
def test_whole_and_blocks_in_a_graph_that_knows_no_lengths(name):
    """In TensorFlow all sizes but those of heads and tables, and the ends of the blocks, are known at run time only."""
    make, _, query_positions, key_positions = CASES[name]
    bias = made(name)
    weights = upstream(B, N, T, S)

    def run(parameters, query_positions, key_positions, weights, first_key):
        bias = make(parameters, query_positions, key_positions)
        queries, keys = (
            slice(1, None),
            slice(first_key, ops.shape(key_positions)[-1] if make is slopes else 5),
        )
        rows = rows_of(bias, queries)
        return (
            bias.dense(),
            bias.gradient(parameters, weights, slice(None), slice(None)),
            bias.block(rows, queries, keys),
            bias.gradient(rows, weights[..., queries, keys], queries, keys),
        )

    arguments = (bias.parameters, query_positions, key_positions, weights)
    expected = run(*arguments, 2)
    for actual, value in zip(traced(run, arguments, first_key=2), expected):
        np.testing.assert_allclose(
            ops.convert_to_numpy(actual), ops.convert_to_numpy(value), rtol=1e-5, atol=1e-5
        )


def traced(run, arguments, first_key):
    """`run` compiled by the backend, where it has a compiler."""
    if BACKEND == "torch":
        return run(*map(ops.convert_to_tensor, arguments), ops.convert_to_tensor(first_key))
    if BACKEND == "jax":
        import jax

        return jax.jit(run, static_argnums=4)(*arguments, first_key)
    import tensorflow as tf

    arguments = [tf.convert_to_tensor(x) for x in arguments]
    known = (1, N, R)
    signature = [tf.TensorSpec([n if n in known else None for n in x.shape], x.dtype) for x in arguments]
    function = tf.function(run, input_signature=[*signature, tf.TensorSpec((), "int32")], autograph=False)
    return function(*arguments, first_key)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="JAX's graphs are compiled above")
@pytest.mark.parametrize("name", ["slopes", "rows_unbatched_positions_batched"])
def test_compiled_by_xla(name):
    make, _, query_positions, key_positions = CASES[name]
    weights = upstream(B, N, T, S)

    def run(given):
        bias = make(given["parameters"], query_positions, key_positions)
        return bias.dense(), bias.gradient(given["parameters"], weights, slice(None), slice(None))

    given = {"parameters": made(name).parameters}
    for actual, expected in zip(compiled(run)(given), run(given)):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["slopes", "table", "rows", "dense_3_5_7"])
def test_half_precision_parameters_give_a_float32_bias_and_their_own_gradient(name, dtype):
    bias = made(name, dtype)
    expected = made(name)
    assert keras.backend.standardize_dtype(bias.dense().dtype) == "float32"
    np.testing.assert_allclose(full(bias.dense()), full(expected.dense()), rtol=2**-8)
    weights = upstream(B, N, T, S)
    actual = bias.gradient(bias.parameters, weights, slice(None), slice(None))
    assert keras.backend.standardize_dtype(actual.dtype) == dtype
    # The sum runs in float32 and is rounded once.
    exact = expected.gradient(expected.parameters, weights, slice(None), slice(None))
    np.testing.assert_array_equal(
        ops.convert_to_numpy(ops.cast(actual, "float32")),
        ops.convert_to_numpy(ops.cast(ops.cast(exact, dtype), "float32")),
    )


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64"])
def test_positions_may_be_of_any_integer_dtype(dtype):
    # Unsigned differences would wrap around.
    parameters = made("table").parameters
    expected = table(parameters, np.abs(QUERY), np.abs(KEY)).dense()
    actual = table(parameters, np.abs(QUERY).astype(dtype), np.abs(KEY).astype("int32")).dense()
    np.testing.assert_array_equal(full(actual), full(expected))


# --- ALiBi ---


def test_slopes_printed_in_the_paper():
    # Section 3: "for models with 8 heads, the slopes are the geometric sequence 1/2^1, 1/2^2, ..., 1/2^8", and with
    # 16 heads "1/2^0.5, 1/2^1, 1/2^1.5, ..., 1/2^8".
    eight = [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]
    np.testing.assert_array_equal(ops.convert_to_numpy(alibi_slopes(8)), eight)
    sixteen = [2**-0.5, 2**-1, 2**-1.5, 2**-2, 2**-2.5, 2**-3, 2**-3.5, 2**-4]
    sixteen += [2**-4.5, 2**-5, 2**-5.5, 2**-6, 2**-6.5, 2**-7, 2**-7.5, 2**-8]
    np.testing.assert_allclose(ops.convert_to_numpy(alibi_slopes(16)), sixteen, rtol=1e-7)


def test_twelve_heads_take_eight_slopes_and_every_other_of_sixteen():
    expected = [*(2.0**-i for i in range(1, 9)), 2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5]
    np.testing.assert_allclose(ops.convert_to_numpy(alibi_slopes(12)), expected, rtol=1e-7)


def slopes_of_the_authors(num_heads):
    """`get_slopes` of https://github.com/ofirpress/attention_with_linear_biases, fairseq/models/transformer.py."""
    if math.log2(num_heads).is_integer():
        start = 2 ** (-(2 ** -(math.log2(num_heads) - 3)))
        return [start * start**i for i in range(num_heads)]
    closest = 2 ** math.floor(math.log2(num_heads))
    return slopes_of_the_authors(closest) + slopes_of_the_authors(2 * closest)[0::2][: num_heads - closest]


@pytest.mark.parametrize("num_heads", [1, 2, 3, 5, 7, 8, 12, 20, 32, 71, 112])
def test_slopes_equal_the_authors(num_heads):
    assert tuple(alibi_slopes(num_heads).shape) == (num_heads,)
    slopes = ops.convert_to_numpy(alibi_slopes(num_heads))
    np.testing.assert_allclose(slopes, slopes_of_the_authors(num_heads), rtol=1e-6)


@pytest.mark.extended
def test_causal_attention_cannot_tell_the_bias_from_blooms():
    # Bloom adds slope * key position, which differs by a number for each query.
    torch = pytest.importorskip("torch", reason=PEERS)
    bloom = pytest.importorskip("transformers.models.bloom.modeling_bloom", reason=PEERS)
    positions = np.arange(11)
    alibi = bloom.build_alibi_tensor(torch.ones(1, 11), 12, torch.float32).numpy()
    difference = ops.convert_to_numpy(SlopeBias(alibi_slopes(12), positions, positions).dense()) - alibi
    for t in range(11):
        seen = difference[:, t, : t + 1]
        np.testing.assert_allclose(seen, np.broadcast_to(seen[:, :1], seen.shape), atol=1e-5)


# --- T5's buckets ---

RELATIVE_POSITIONS = np.concatenate([np.arange(-300, 301), [-100_000, -5000, 5000, 100_000]])
BOTH_WAYS = [
    (32, 128),
    (32, 64),
    (64, 256),
    (16, 50),
    (8, 20),
    (10, 101),
    (6, 2),
    (4, 3),
    (4, 200),
    (256, 300),
]
ONE_WAY = [(32, 128), (32, 256), (16, 97), (7, 30), (3, 11), (2, 5)]


@pytest.mark.parametrize(
    ("num_buckets", "max_distance", "bidirectional"),
    [(*pair, True) for pair in BOTH_WAYS] + [(*pair, False) for pair in ONE_WAY],
)
def test_buckets_equal_transformers(num_buckets, max_distance, bidirectional):
    torch = pytest.importorskip("torch", reason=PEERS)
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5", reason=PEERS)
    expected = t5.T5Attention._relative_position_bucket(
        torch.tensor(RELATIVE_POSITIONS), bidirectional, num_buckets, max_distance
    )
    actual = relative_position_bucket(
        ops.convert_to_tensor(RELATIVE_POSITIONS), num_buckets, max_distance, bidirectional
    )
    assert keras.backend.standardize_dtype(actual.dtype) == "int32"
    np.testing.assert_array_equal(ops.convert_to_numpy(actual), expected.numpy())


def test_buckets_of_the_paper_by_hand():
    # 32 buckets of both directions: 8 distances of each have their own, the other 8 buckets grow by 16^(1/8), so
    # that distances 8 to 127 fill them.
    distances = [0, 1, 7, 8, 11, 12, 15, 16, 22, 23, 31, 32, 45, 46, 64, 90, 91, 127, 128, 10**6]
    expected = [0, 1, 7, 8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 14, 14, 15, 15, 15, 15]
    before = relative_position_bucket(-np.array(distances))
    np.testing.assert_array_equal(ops.convert_to_numpy(before), expected)
    after = relative_position_bucket(np.array(distances[1:]))
    np.testing.assert_array_equal(ops.convert_to_numpy(after), np.array(expected[1:]) + 16)
