"""The gradient of a cross-entropy by its logits, and by the factors of the product that gave them, against NumPy in float64."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_attn.layers import TokenEmbedding
from keras_attn.training import LabelSmoothedCrossentropy
from keras_attn.training.crossentropy import CrossentropyGradient, factors_of_product

B, T, V, D, PAD = 3, 5, 13, 7, 0

is_tensorflow = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="only TensorFlow's graphs know the factors"
)


@pytest.fixture
def factors(rng):
    """Vectors (B, T, D), a table (V, D), and labels (B, T) with padding."""
    labels = rng.integers(1, V, (B, T))
    labels[1, 2:] = PAD
    return rng.normal(size=(B, T, D)).astype("float32"), rng.normal(size=(V, D)).astype("float32"), labels


@pytest.fixture
def taken(monkeypatch):
    """The gradients that were taken by the factors of a product."""
    calls, by_factors = [], CrossentropyGradient.by_factors

    def counted(gradient, *args):
        calls.append(gradient)
        return by_factors(gradient, *args)

    monkeypatch.setattr(CrossentropyGradient, "by_factors", counted)
    return calls


def of_logits_by_hand(logits, labels, label_smoothing, scale=1.0):
    """Loss and its gradient by logits (..., V)."""
    log_probabilities = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    size = logits.shape[-1]
    target = (1 - label_smoothing) * np.eye(size)[labels] + label_smoothing / size
    weights = (labels != PAD) * scale / (labels != PAD).sum()
    loss = -np.sum((target * log_probabilities).sum(-1) * weights)
    return loss, (np.exp(log_probabilities) - target) * weights[..., None]


def by_hand(x, table, labels, label_smoothing, scale=1.0):
    """Loss, and its gradients by vectors, table and logits."""
    x, table = x.astype("float64"), table.astype("float64")
    loss, by_logits = of_logits_by_hand(x @ table.T, labels, label_smoothing, scale)
    return loss, by_logits @ table, np.einsum("btv,btd->vd", by_logits, x), by_logits


def product(rows, table):
    return ops.matmul(rows, ops.transpose(table))


def logits_of(x, table, dtype="float32"):
    shape = ops.shape(x)
    x, table = ops.cast(x, dtype), ops.cast(table, dtype)
    logits = product(ops.reshape(x, (-1, x.shape[-1])), table)
    return ops.cast(ops.reshape(logits, (*shape[:-1], V)), "float32")


def graph(function, size=D):
    """`function` of vectors, table and labels as a graph of batches of any size: what it returns, and gradients by all."""
    import tensorflow as tf

    def step(x, table, labels):
        with tf.GradientTape() as tape:
            tape.watch([x, table])
            value, *watched = function(x, table, labels)
        return value, *tape.gradient(value, [x, table, *watched])

    signature = [
        tf.TensorSpec([None, None, size]),
        tf.TensorSpec([V, size]),
        tf.TensorSpec([None, None], tf.int64),
    ]
    return tf.function(step, signature)


def assert_equal(actual, expected, **tolerance):
    tolerance = tolerance or {"rtol": 1e-5, "atol": 1e-7}
    for ours, theirs in zip(actual, expected, strict=True):
        np.testing.assert_allclose(np.asarray(ours, "float64"), theirs, **tolerance)


@pytest.mark.parametrize("label_smoothing", [0.0, 0.3])
def test_its_entries_are_those_of_the_definition(rng, label_smoothing):
    logits = rng.normal(size=(5, V))
    probabilities = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    labels, upstream = np.array([3, 0, V - 1, 3, 6]), np.array([0.5, -2.0, 0.0, 1.0, 0.25])
    gradient = CrossentropyGradient(
        ops.convert_to_tensor(probabilities, "float32"),
        ops.convert_to_tensor(labels, "int32"),
        label_smoothing,
        ops.ones(5),
        ops.convert_to_tensor(upstream, "float32"),
    )
    target = (1 - label_smoothing) * np.eye(V)[labels] + label_smoothing / V
    expected = upstream[:, None] * (probabilities - target)
    np.testing.assert_allclose(ops.convert_to_numpy(gradient.by_logits()), expected, rtol=1e-5, atol=1e-7)


@pytest.mark.sampled(1)
@is_tensorflow
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_gradients_by_the_factors_are_those_of_the_definition(factors, taken, label_smoothing):
    loss = LabelSmoothedCrossentropy(label_smoothing)
    actual = graph(lambda x, table, y: [loss(y, logits_of(x, table))])(*factors)
    assert len(taken) == 1
    assert_equal(actual, by_hand(*factors, label_smoothing)[:3])


@is_tensorflow
def test_in_bfloat16_a_label_of_probability_near_1_keeps_its_gradient(factors, taken):
    labels, table = factors[2], 9 * np.eye(V, dtype="float32")
    x = np.eye(V, dtype="float32")[labels]  # probability 0.9985, in bfloat16 1

    def function(x, table, labels):
        return [LabelSmoothedCrossentropy()(labels, logits_of(x, table, "bfloat16"))]

    _, by_x, by_table = graph(function, size=V)(x, table, labels)
    assert len(taken) == 1
    for actual, exact in zip((by_x, by_table), by_hand(x, table, labels, 0.0)[1:3]):
        assert np.linalg.norm(actual - exact) < 0.01 * np.linalg.norm(exact)


@is_tensorflow
@pytest.mark.parametrize("label_smoothing", [0.0, 0.2])
def test_bfloat16_and_padding_with_nan(rng, factors, taken, label_smoothing):
    """Vectors and tables that bfloat16 holds exactly. Its products are rounded, and 2^-8 is what that may cost."""
    labels = factors[2]
    x, table = rng.integers(-4, 5, factors[0].shape) / 4, rng.integers(-4, 5, factors[1].shape) / 4
    given = np.where((labels == PAD)[..., None], np.nan, x).astype("float32"), table.astype("float32"), labels
    loss = LabelSmoothedCrossentropy(label_smoothing)
    _, *actual = graph(lambda x, table, y: [loss(y, logits_of(x, table, "bfloat16"))])(*given)
    assert len(taken) == 1
    for ours, exact in zip(actual, by_hand(x, table, labels, label_smoothing)[1:3]):
        assert np.linalg.norm(ours - exact) < 2**-7 * np.linalg.norm(exact)


@is_tensorflow
def test_weights_and_padding_with_nan(factors, taken):
    x, table, labels = factors
    x = np.where((labels == PAD)[..., None], np.nan, x)
    loss = LabelSmoothedCrossentropy(0.1)
    weighted = graph(lambda x, table, y: [3.0 * loss(y, logits_of(x, table))])(x, table, labels)
    assert len(taken) == 1
    assert_equal(weighted, by_hand(np.nan_to_num(x), table, labels, 0.1, scale=3.0)[:3])
    x[0, 0] = np.nan  # a real token
    value, by_x, by_table = graph(lambda x, table, y: [loss(y, logits_of(x, table))])(x, table, labels)
    assert np.isnan(value)
    assert np.isnan(by_x[0, 0]).all()
    assert np.isnan(by_table).any()


@is_tensorflow
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_the_output_of_a_token_embedding_is_such_a_product(factors, taken, policy):
    x, labels = (
        np.repeat(factors[0], 7, axis=0),
        np.repeat(factors[2], 7, axis=0),
    )  # few rows are multiplied in parts
    inputs = keras.Input((None, D), dtype="float32")
    model = keras.Model(inputs, TokenEmbedding(V, D, dtype=policy)(inputs, reverse=True))
    model.compile("sgd", LabelSmoothedCrossentropy(0.1))
    model.train_on_batch(x, labels)
    assert len(taken) == 1


@pytest.mark.extended
@is_tensorflow
def test_two_losses_of_one_product(factors, taken):
    first, second = LabelSmoothedCrossentropy(0.1), LabelSmoothedCrossentropy(0.4)

    def two(x, table, labels):
        logits = logits_of(x, table)
        return [first(labels, logits) + second(labels, logits)]

    both = [a + b for a, b in zip(by_hand(*factors, 0.1)[:3], by_hand(*factors, 0.4)[:3])]
    assert_equal(graph(two)(*factors), both)
    assert len(taken) == 2


@pytest.mark.extended
@is_tensorflow
def test_what_changes_a_product_is_differentiated_by_its_logits(factors, taken):
    first = LabelSmoothedCrossentropy(0.1)

    def scaled(x, table, labels):
        return [first(labels, 2.0 * logits_of(x, table))]

    def cut(x, table, labels):
        return [first(labels[:, 1:], logits_of(x, table)[:, :-1])]

    def chosen(x, table, labels):  # rows, whose gradient comes as rows and their numbers
        rows = [3, 0, 14, 4, 11, 2, 12, 1, 13, 5, 10, 6, 9, 7, 8]
        logits = ops.take(product(ops.reshape(x, (-1, D)), table), rows, axis=0)
        return [first(ops.take(ops.reshape(labels, (-1, 1)), rows, axis=0), ops.reshape(logits, (-1, 1, V)))]

    def otherwise_cut(x, table, labels):  # V rows of B * T logits
        logits = ops.reshape(logits_of(x, table), (1, V, B * T))
        return [first(ops.reshape(labels, (1, -1))[:, :V], logits)]

    x, table, labels = factors
    value, by_x, by_table = by_hand(2 * x, table, labels, 0.1)[:3]
    assert_equal(graph(scaled)(*factors), [value, 2 * by_x, by_table])
    value, by_x, by_table = by_hand(x[:, :-1], table, labels[:, 1:], 0.1)[:3]
    assert_equal(graph(cut)(*factors), [value, np.pad(by_x, [(0, 0), (0, 1), (0, 0)]), by_table])
    assert_equal(graph(chosen)(*factors), by_hand(*factors, 0.1)[:3])
    logits = (x.astype("float64") @ table.T).reshape(V, B * T)
    value, by_logits = of_logits_by_hand(logits, labels.reshape(-1)[:V], 0.1)
    by_logits = by_logits.reshape(B, T, V)
    expected = [value, by_logits @ table, np.einsum("btv,btd->vd", by_logits, x)]
    assert_equal(graph(otherwise_cut)(*factors), expected)
    assert not taken


@is_tensorflow
def test_an_identity_keeps_the_gradient_by_logits(factors, taken):
    import tensorflow as tf

    loss = LabelSmoothedCrossentropy(0.1)

    def function(x, table, labels):
        logits = tf.identity(logits_of(x, table))
        return [loss(labels, logits), logits]

    assert_equal(graph(function)(*factors), by_hand(*factors, 0.1))
    assert not taken


def test_factors_of_logits(factors):
    x, table, _ = factors
    assert factors_of_product(logits_of(x, table)) is None
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        @tf.function
        def sizes(x, table):
            rows, found = factors_of_product(logits_of(x, table, "bfloat16"))
            assert factors_of_product(tf.matmul(x[0], table, transpose_b=True)) is None
            assert factors_of_product(2.0 * logits_of(x, table)) is None
            return tf.shape(rows), tf.shape(found)

        rows, found = sizes(x, table)
        assert (*rows, *found) == (B * T, D, V, D)
