"""The layers for the slot `position_bias` against transformers and loops in float64, shared, saved and reloaded."""

import functools
import re

import helpers_transformers  # noqa: F401 -- imports, before the fork
import keras
import numpy as np
import pytest
from helpers_layers import gradients
from keras import ops

from keras_attn.layers import (
    AlibiBias,
    EncoderBlock,
    MultiHeadAttention,
    PositionBias,
    RelativePositionBias,
    RelativePositionKeys,
)
from keras_attn.ops import DenseBias, PairBias, SlopeBias, TableBias

B, N, T, S, H = 2, 3, 5, 7, 11
PEERS = 'pip install "keras_attn[peers]"'
LAYERS = {
    "alibi": AlibiBias,
    "buckets": functools.partial(RelativePositionBias, num_buckets=8, max_distance=20),
    "keys": functools.partial(RelativePositionKeys, max_distance=2),
}
QUERIES = np.array([[0, 1, 2, 3, 4], [5, 3, 0, 1, 11]])
KEYS = np.array([[0, 1, 2, 3, 4, 5, 6], [2, 9, 1, 0, 0, 1, 4]])


def heads(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape or (B, N, T, H)).astype("float32")


def numbers(x):
    return ops.convert_to_numpy(ops.cast(x, "float32"))


def built(name, **arguments):
    layer = LAYERS[name](**arguments)
    layer.build((None, N, None, H))
    layer.set_weights([heads(*weight.shape, seed=3) for weight in layer.weights])
    return layer


# --- the papers ---


def test_alibi_lowers_logits_by_slope_times_distance_in_both_directions():
    expected = np.zeros((B, N, T, S))
    for b, n, t, s in np.ndindex(B, N, T, S):
        # Three heads: those of two, and the first of four.
        expected[b, n, t, s] = -[2**-4, 2**-8, 2**-2][n] * abs(int(KEYS[b, s]) - int(QUERIES[b, t]))
    np.testing.assert_allclose(numbers(AlibiBias()(heads(), QUERIES, KEYS)), expected, rtol=1e-6)
    square = numbers(AlibiBias()(heads()))
    np.testing.assert_array_equal(square, square.swapaxes(-1, -2))


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("num_buckets", "max_distance"), [(32, 128), (16, 50), (64, 256)])
def test_buckets_equal_transformers(num_buckets, max_distance, bidirectional):
    torch = pytest.importorskip("torch", reason=PEERS)
    transformers = pytest.importorskip("transformers", reason=PEERS)
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5", reason=PEERS)
    config = transformers.T5Config(
        d_model=N * H,
        d_kv=H,
        num_heads=N,
        is_decoder=not bidirectional,
        relative_attention_num_buckets=num_buckets,
        relative_attention_max_distance=max_distance,
    )
    peer = t5.T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    layer = RelativePositionBias(num_buckets, max_distance, bidirectional)
    layer.build((None, N, None, H))
    layer.set_weights([peer.relative_attention_bias.weight.detach().numpy()])
    with torch.no_grad():
        expected = peer.compute_bias(307, 311)[0].numpy()
        step = peer.compute_bias(2, 311, past_seen_tokens=301)[0].numpy()
    query = heads(1, N, 307, H)
    np.testing.assert_array_equal(numbers(layer(query, key_positions=np.arange(311))), expected)
    two = layer(query[:, :, :2], np.arange(301, 303), np.arange(311))
    np.testing.assert_array_equal(numbers(two), step)


def test_keys_equal_loops():
    layer = built("keys")
    vectors = layer.get_weights()[0].astype("float64")
    query = heads()
    expected = np.zeros((B, N, T, S))
    for b, n, t, s in np.ndindex(B, N, T, S):
        distance = min(max(int(KEYS[b, s]) - int(QUERIES[b, t]), -2), 2)
        expected[b, n, t, s] = query[b, n, t].astype("float64") @ vectors[distance + 2]
    np.testing.assert_allclose(numbers(layer(query, QUERIES, KEYS)), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "shapes"), [("alibi", []), ("buckets", [(8, N)]), ("keys", [(2 * 2 + 1, H)])]
)
def test_weights(name, shapes):
    layer = built(name)
    assert [tuple(weight.shape) for weight in layer.weights] == shapes
    assert [weight.name for weight in layer.weights] == ["embeddings"] * len(shapes)


# --- the protocol of the slot ---


@pytest.mark.parametrize("name", LAYERS)
def test_the_call_is_the_dense_pair_bias(name):
    layer, query = built(name), ops.convert_to_tensor(heads())
    bias = layer.pair_bias(query, QUERIES, KEYS)
    np.testing.assert_array_equal(numbers(layer(query, QUERIES, KEYS)), numbers(bias.dense()))
    queries, keys = slice(1, 3), slice(2, 7)
    parameters = bias.parameters[..., queries, :] if bias.has_query_axis else bias.parameters
    block = numbers(bias.block(parameters, queries, keys))
    np.testing.assert_array_equal(block, numbers(bias.dense())[..., queries, keys])


@pytest.mark.parametrize("name", LAYERS)
def test_positions_count_up_unless_given(name):
    layer, query = built(name), heads()
    expected = numbers(layer(query, np.arange(T), np.arange(T)))
    np.testing.assert_array_equal(numbers(layer(query)), expected)
    np.testing.assert_array_equal(numbers(layer(query, np.arange(T) + 100)), expected)
    assert not np.allclose(numbers(layer(query, key_positions=np.arange(T) + 1)), expected)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_under_mixed_precision_the_bias_itself_is_float32(name, policy):
    layer, query = built(name, dtype=policy), ops.convert_to_tensor(heads())
    # Attention asks for it in its own call, where Keras casts weights to the compute dtype.
    holder = Holder(layer, dtype=policy)
    bias = holder(query)
    assert keras.backend.standardize_dtype(bias.dtype) == "float32"
    exact = numbers(built(name).pair_bias(query, np.arange(T), np.arange(T)).dense())
    if name == "keys":  # a product with the query, in the dtype of the query as all products are
        np.testing.assert_allclose(numbers(bias), exact, rtol=0, atol=2**-7 * np.abs(exact).max())
    else:
        np.testing.assert_array_equal(numbers(bias), exact)
    assert keras.backend.standardize_dtype(layer(query).dtype) == layer.compute_dtype


@pytest.mark.parametrize("name", ["buckets", "keys"])
def test_the_gradient_of_the_weights_equals_finite_differences(name):
    layer, query = built(name), ops.convert_to_tensor(heads())
    coefficients = heads(B, N, T, S, seed=9)
    start = layer.get_weights()[0]

    def value(weights):
        layer.set_weights([weights])
        return np.sum(numbers(layer(query, QUERIES, KEYS)).astype("float64") * coefficients)

    inputs = {"query": heads(), "query_positions": QUERIES, "key_positions": KEYS}
    _, (gradient,) = gradients(layer, inputs, lambda bias: bias * ops.convert_to_tensor(coefficients))
    assert gradient.shape == start.shape
    # The bias is linear in its weights: a step of 1 is as good as a small one, and loses no digits.
    for index in np.ndindex(start.shape):
        step = np.zeros_like(start)
        step[index] = 1.0
        np.testing.assert_allclose(gradient[index], value(start + step) - value(start), rtol=1e-4, atol=1e-4)


# --- shared by several layers ---


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("alibi", (None, 5, None, H), "`AlibiBias` must be used with one `num_heads`. Received: num_heads=5"),
        ("buckets", (None, 5, None, H), "`RelativePositionBias` must be used with one `num_heads`."),
        ("keys", (None, N, None, 13), "`RelativePositionKeys` must be used with one `key_dim`."),
    ],
)
def test_it_is_built_for_one_size_of_heads(name, shape, message):
    layer = built(name)
    weights = layer.get_weights()
    layer.build((B, N, 13, H))
    assert len(layer.weights) == len(weights)
    for now, before in zip(layer.get_weights(), weights):
        np.testing.assert_array_equal(now, before)
    with pytest.raises(ValueError, match=re.escape(message)):
        layer.build(shape)
    with pytest.raises(ValueError, match=re.escape(message)):
        layer(heads(B, shape[1], T, shape[3]))
    assert layer(heads()).shape[-2:] == (T, T)


@keras.saving.register_keras_serializable(package="keras_attn_tests")
class Holder(keras.layers.Layer):
    """As attention holds a position bias: built by it, asked for a pair bias in its call.

    `get_config` gives the bias as it is. Keras serialises what it finds in a config, and numbers the objects that
    occur twice; the number would be written to a copy if `get_config` serialised the bias itself.
    """

    def __init__(self, position_bias, **kwargs):
        super().__init__(**kwargs)
        self.position_bias = position_bias

    def build(self, query_shape):
        self.position_bias.build(query_shape)

    def call(self, query):
        positions = ops.arange(ops.shape(query)[-2], dtype="int32")
        return self.position_bias.pair_bias(query, positions, positions).dense()

    def get_config(self):
        return {**super().get_config(), "position_bias": self.position_bias}

    @classmethod
    def from_config(cls, config):
        if isinstance(config["position_bias"], dict):
            config["position_bias"] = keras.saving.deserialize_keras_object(config["position_bias"])
        return cls(**config)


@pytest.mark.extended
@pytest.mark.parametrize("name", ["buckets", "keys"])
def test_layers_that_share_a_bias_share_it_after_reloading(name, tmp_path):
    shared = LAYERS[name]()
    query = keras.Input((N, None, H))
    outputs = [Holder(shared, name=f"holder_{i}")(query) for i in range(2)]
    model = keras.Model(query, outputs)
    assert len(model.weights) == 1
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert len(again.weights) == 1
    for _ in range(2):
        for actual, expected in zip(again(heads()), model(heads())):
            np.testing.assert_array_equal(numbers(actual), numbers(expected))
        # Whoever holds it, one change is seen by both.
        for loaded in (again, model):
            bias = loaded.get_layer("holder_0").position_bias
            bias.set_weights([weight * 2 for weight in bias.get_weights()])
    assert again.get_layer("holder_0").position_bias is again.get_layer("holder_1").position_bias


@pytest.mark.extended
def test_blocks_that_share_a_bias_share_it_after_reloading(tmp_path):
    bias = RelativePositionBias(num_buckets=6, max_distance=11)
    x = y = keras.Input((None, 14))
    for _ in range(2):
        attention = MultiHeadAttention(2, 3, position_bias=bias)
        y = EncoderBlock(17, self_attention=attention)(y)
    model = keras.Model(x, y)
    bias.embeddings.assign(np.random.default_rng(3).normal(size=(6, 2)))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert len(loaded.weights) == len(model.weights)
    first, second = (layer.self_attention.position_bias for layer in loaded.layers[1:])
    assert first is second
    inputs = np.random.default_rng(5).normal(size=(2, 7, 14)).astype("float32")
    np.testing.assert_array_equal(ops.convert_to_numpy(loaded(inputs)), ops.convert_to_numpy(model(inputs)))
    copied = keras.models.clone_model(model)
    assert copied.layers[1].self_attention.position_bias is not bias


@keras.saving.register_keras_serializable(package="keras_attn_tests")
class LaterBias(PositionBias):
    """A learned number for each head, added where the key is later than the query."""

    def create_weights(self, size):
        self.strength = self.add_weight(
            name="strength", shape=(size, 1, 1), initializer="ones", autocast=False
        )

    def pair_bias(self, query, query_positions, key_positions):
        table = ops.convert_to_tensor(self.strength) * ops.convert_to_tensor([0.0, 1.0])
        return TableBias(table, query_positions, key_positions, index=is_later)


def is_later(distance):
    return ops.cast(distance > 0, "int32")


def test_a_bias_of_ones_own_is_shared_computed_in_blocks_and_reloaded(tmp_path):
    bias = LaterBias()
    in_blocks, dense = (
        MultiHeadAttention(N, H, position_bias=bias, memory_efficient=forced) for forced in (True, False)
    )
    x = keras.Input((None, 13))
    model = keras.Model(x, dense(x, x))
    inputs = heads(B, T, 13)
    in_blocks(inputs, inputs)
    assert len(bias.weights) == 1
    bias.strength.assign(heads(N, 1, 1))
    expected = np.where(KEYS[:, None, None] > QUERIES[:, None, :, None], heads(N, 1, 1), 0)
    np.testing.assert_array_equal(numbers(bias(heads(), QUERIES, KEYS)), expected)
    in_blocks.set_weights(dense.get_weights())
    np.testing.assert_allclose(numbers(in_blocks(inputs, inputs)), numbers(model(inputs)), atol=1e-5)
    model.save(tmp_path / "model.keras")
    reloaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(numbers(reloaded(inputs)), numbers(model(inputs)))
    with pytest.raises(ValueError, match="`LaterBias` must be used with one `num_heads`"):
        MultiHeadAttention(N + 1, H, position_bias=bias)(inputs, inputs)


# --- a bias that does not fit ---

POSITIONS = np.arange(T)
OF_ROWS = np.stack([POSITIONS, POSITIONS + 2, POSITIONS + 3])  # as many rows as heads


def answering(make):
    """A bias whose `pair_bias` is `make`."""

    class LagBias(PositionBias):
        def pair_bias(self, query, query_positions, key_positions):
            return make(query, query_positions, key_positions)

    layer = LagBias()
    layer.build((None, N, None, H))
    return layer


def lags(query, query_positions, key_positions):
    positions = (ops.convert_to_tensor(key_positions), ops.convert_to_tensor(query_positions))
    return ops.cast(ops.expand_dims(positions[0], -2) - ops.expand_dims(positions[1], -1), "float32")


def table(*shape, has_query_axis=False, index=is_later):
    def make(query, query_positions, key_positions):
        return TableBias(ops.ones(shape), query_positions, key_positions, index, has_query_axis)

    return make


@pytest.mark.parametrize("wrap", [DenseBias, ops.copy, lambda lag: DenseBias(lag[:, :1])])
def test_a_bias_of_each_row_is_not_taken_for_one_of_each_head(wrap):
    bias = answering(lambda *arguments: wrap(lags(*arguments)))
    row = np.array([[0, 0, 1, 1, 3]])
    np.testing.assert_array_equal(numbers(bias(heads(1, N, T, H), row)).shape[-3], 1)
    with pytest.raises(
        ValueError, match=r"axes \(B, N, T, S\) = \(3, 3, 5, 5\).*Received: \(3, .*`bias\[:, None\]`"
    ):
        bias(heads(3, N, T, H), OF_ROWS)
    attention = MultiHeadAttention(N, H, position_bias=answering(lambda *arguments: wrap(lags(*arguments))))
    x = ops.convert_to_tensor(heads(3, T, 13))
    with pytest.raises(ValueError, match=r"`LagBias\.pair_bias`: for positions of each row"):
        attention(x, x, positions=OF_ROWS)


def test_with_an_axis_of_heads_a_row_in_a_batch_is_the_row_alone():
    attention = MultiHeadAttention(
        N, H, position_bias=answering(lambda *given: lags(*given)[..., None, :, :])
    )
    x = heads(3, T, 13)
    whole = numbers(attention(x, x, positions=OF_ROWS))
    alone = numbers(attention(x[1:2], x[1:2], positions=OF_ROWS[1:2]))
    np.testing.assert_allclose(whole[1:2], alone, atol=1e-5)


def test_before_the_batch_is_known_a_bias_of_each_row_is_refused():
    x = keras.Input((T, 13))
    positions = keras.Input((T,), dtype="int32")
    attention = MultiHeadAttention(N, H, position_bias=answering(lags))
    with pytest.raises(ValueError, match="for positions of each row"):
        attention(x, x, positions=positions)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (table(2), "the table must be (N or 1, 1, R) with N = 3. Received: (2,)"),
        (table(N, 2), "the table must be (N or 1, 1, R) with N = 3. Received: (3, 2)"),
        (table(N + 1, 1, 2), "the table must be (N or 1, 1, R) with N = 3. Received: (4, 1, 2)"),
        (table(B + 1, N, 1, 2), "the table must be (N or 1, 1, R) with N = 3. Received: (3, 3, 1, 2)"),
        (table(N, T, 2), "the table must be (N or 1, 1, R) with N = 3. Received: (3, 5, 2)"),
        (
            table(N, S, 2, has_query_axis=True),
            "the table must be (N or 1, T, R) with N = 3, T = 5. Received: (3, 7, 2)",
        ),
        (
            lambda *given: SlopeBias(ops.ones((N, 1)), *given[1:]),
            "the slopes must be (N,) with N = 3. Received: (3, 1)",
        ),
        (
            lambda *given: SlopeBias(ops.ones(N + 1), *given[1:]),
            "the slopes must be (N,) with N = 3. Received: (4,)",
        ),
        (
            lambda *given: SlopeBias(ops.ones(N), given[2], given[1]),
            "`query_positions` of the bias must be (T,) or (B, T) with T = 5. Received: (7,)",
        ),
        (
            lambda *_: DenseBias(ops.ones((N + 1, T, S))),
            "must broadcast to (B, N, T, S) = (2, 3, 5, 7). Received: (4, 5, 7)",
        ),
        (lambda *_: ops.ones((S, T)), "must broadcast to (B, N, T, S) = (2, 3, 5, 7). Received: (7, 5)"),
        (lambda *_: ops.ones((1, B, N, T, S)), "Received: (1, 2, 3, 5, 7)"),
        (lambda *_: None, "must return a TableBias, another PairBias, or a tensor. Received: None"),
    ],
)
def test_a_bias_that_does_not_fit_is_named_with_both_shapes(make, message):
    with pytest.raises(ValueError, match=f"`LagBias.pair_bias`.*{re.escape(message)}"):
        answering(make)(heads(), POSITIONS, np.arange(S))


@pytest.mark.parametrize("index", [lambda lag: lag + 2, lambda lag: lag - 9])
@pytest.mark.parametrize("is_graph", [False, True])
def test_an_entry_outside_the_table_raises_and_is_not_one_of_the_next_row(index, is_graph):
    bias = answering(table(N, 1, 4, index=index))
    call = bias
    errors = ValueError
    if is_graph:
        tf = pytest.importorskip("tensorflow")
        if keras.backend.backend() != "tensorflow":
            pytest.skip("only TensorFlow's graphs raise")
        call = tf.function(bias)
        errors = (ValueError, tf.errors.InvalidArgumentError)
    with pytest.raises(errors, match=r"What `index` of a TableBias returns must lie in \[0, 4\)"):
        call(ops.convert_to_tensor(heads()))


def test_index_returns_integers():
    with pytest.raises(
        ValueError, match=r"`index` of a TableBias must return integers\. Received: dtype float32"
    ):
        answering(table(N, 1, 4, index=lambda lag: ops.cast(lag, "float32")))(heads())


def test_a_method_that_is_missing_is_named():
    class LagBias(PositionBias):
        pass

    class LagPairs(PairBias):
        parameters = None

    bias = LagBias()
    bias.build((None, N, None, H))
    with pytest.raises(
        NotImplementedError, match=r"`LagBias` must define `pair_bias\(query, query_positions, key_p"
    ):
        bias(heads())
    with pytest.raises(NotImplementedError, match="`LagPairs` must define `block"):
        answering(lambda *_: LagPairs())(heads())
    with pytest.raises(NotImplementedError, match="`LagPairs` must define `gradient"):
        LagPairs().gradient(None, None, None, None)


@pytest.mark.parametrize(("dtype", "memory_efficient"), [("float32", False), ("int32", True)])
def test_a_plain_tensor_is_a_bias(dtype, memory_efficient):
    plain, wrapped = (
        MultiHeadAttention(N, H, position_bias=answering(make), memory_efficient=memory_efficient, seed=3)
        for make in (lambda *given: ops.cast(lags(*given), dtype), lambda *given: DenseBias(lags(*given)))
    )
    x = heads(B, T, 13)
    wrapped(x, x)
    plain(x, x)
    plain.set_weights(wrapped.get_weights())
    np.testing.assert_allclose(numbers(plain(x, x)), numbers(wrapped(x, x)), atol=1e-6)
