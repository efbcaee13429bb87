import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from keras_attn.training import LabelSmoothedCrossentropy, Perplexity, token_negative_log_likelihood

B, T, V = 3, 5, 11
PAD = 0


def make_batch(seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(1, V, (B, T))
    labels[0, 3:] = PAD
    labels[2, 1:] = PAD
    logits = rng.normal(size=(B, T, V)).astype("float32") * 3
    return labels, logits


def token_losses_by_hand(labels, logits, label_smoothing):
    """One token at a time, in float64, from the definition of cross-entropy."""
    losses = np.zeros(labels.shape)
    for index in np.ndindex(*labels.shape):
        z = np.asarray(logits, "float64")[index]
        log_probabilities = z - z.max() - np.log(np.sum(np.exp(z - z.max())))
        target = np.full(z.shape, label_smoothing / z.size)
        target[labels[index]] += 1 - label_smoothing
        losses[index] = -np.sum(target * log_probabilities)
    return losses


def loss_by_hand(labels, logits, label_smoothing, weights=1.0):
    weights = np.broadcast_to(weights, labels.shape) * (labels != PAD)
    return np.sum(token_losses_by_hand(labels, logits, label_smoothing) * weights) / np.sum(weights)


def gradient_by_hand(labels, logits, label_smoothing, weights=1.0):
    z = np.asarray(logits, "float64")
    probabilities = np.exp(z - z.max(-1, keepdims=True))
    probabilities /= probabilities.sum(-1, keepdims=True)
    target = (1 - label_smoothing) * np.eye(z.shape[-1])[labels] + label_smoothing / z.shape[-1]
    weights = np.broadcast_to(weights, labels.shape) * (labels != PAD)
    return (probabilities - target) * (weights / weights.sum())[..., None]


def value_and_gradient(function, x):
    x = ops.convert_to_tensor(x)
    match keras.backend.backend():
        case "tensorflow":
            import tensorflow as tf

            with tf.GradientTape() as tape:
                tape.watch(x)
                value = function(x)
            gradient = tape.gradient(value, x)
        case "jax":
            import jax

            value, gradient = jax.jit(jax.value_and_grad(function))(x)
        case "torch":
            x.requires_grad_(True)
            value = function(x)
            value.backward()
            gradient = x.grad
    return ops.convert_to_numpy(value).item(), ops.convert_to_numpy(gradient)


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1, 0.7])
def test_value_and_gradient_equal_the_definition(label_smoothing):
    labels, logits = make_batch()
    loss = LabelSmoothedCrossentropy(label_smoothing)
    value, gradient = value_and_gradient(lambda z: loss(labels, z), logits)
    assert value == pytest.approx(loss_by_hand(labels, logits, label_smoothing), rel=1e-5)
    np.testing.assert_allclose(gradient, gradient_by_hand(labels, logits, label_smoothing), atol=1e-7)


def test_gradient_agrees_with_finite_differences():
    labels, logits = make_batch(1)
    loss = LabelSmoothedCrossentropy(0.1)
    _, gradient = value_and_gradient(lambda z: loss(labels, z), logits)
    for index in [(0, 0, 4), (1, 4, labels[1, 4]), (2, 0, labels[2, 0]), (2, 3, 7)]:
        step = np.zeros(logits.shape)
        step[index] = 1e-5
        difference = loss_by_hand(labels, logits + step, 0.1) - loss_by_hand(labels, logits - step, 0.1)
        assert gradient[index] == pytest.approx(difference / 2e-5, abs=1e-6)


def test_two_tokens_by_hand():
    logits = np.log([[[1.0, 2.0, 1.0], [1.0, 1.0, 6.0]]])
    # -log(2/4) and -log(6/8); smoothed by 0.3, every token of the vocabulary has 0.1 more.
    plain = (np.log(2) + np.log(8 / 6)) / 2
    smoothed = (0.8 * np.log(2) + 0.2 * np.log(4) + 0.8 * np.log(8 / 6) + 0.2 * np.log(8)) / 2
    assert float(LabelSmoothedCrossentropy()([[1, 2]], logits)) == pytest.approx(plain)
    assert float(LabelSmoothedCrossentropy(0.3)([[1, 2]], logits)) == pytest.approx(smoothed)


def test_without_smoothing_it_is_keras_crossentropy_of_the_real_tokens():
    labels, logits = make_batch(2)
    real = labels != PAD
    expected = keras.losses.SparseCategoricalCrossentropy(from_logits=True)(labels[real], logits[real])
    assert float(LabelSmoothedCrossentropy()(labels, logits)) == pytest.approx(float(expected), rel=1e-6)


@pytest.mark.parametrize("shape", [(B,), (B, T)])
def test_sample_weight_gives_the_weighted_mean(shape):
    labels, logits = make_batch(3)
    weights = np.random.default_rng(4).uniform(0.2, 3.0, shape)
    token_weights = weights if shape == (B, T) else weights[:, None]
    loss = LabelSmoothedCrossentropy(0.1)
    value, gradient = value_and_gradient(lambda z: loss(labels, z, sample_weight=weights), logits)
    assert value == pytest.approx(loss_by_hand(labels, logits, 0.1, token_weights), rel=1e-5)
    np.testing.assert_allclose(gradient, gradient_by_hand(labels, logits, 0.1, token_weights), atol=1e-6)
    assert value != pytest.approx(loss_by_hand(labels, logits, 0.1), rel=1e-3)


@settings(max_examples=25, deadline=None)
@given(
    extra_columns=st.integers(0, 7),
    extra_rows=st.integers(0, 3),
    label_smoothing=st.sampled_from([0.0, 0.1]),
    seed=st.integers(0, 2**16),
)
def test_more_padding_changes_neither_value_nor_gradient(extra_columns, extra_rows, label_smoothing, seed):
    labels, logits = make_batch(seed)
    rows, columns = B + extra_rows, T + extra_columns
    padded_labels = np.full((rows, columns), PAD)
    padded_labels[:B, :T] = labels
    padded_logits = np.random.default_rng(seed).normal(size=(rows, columns, V)).astype("float32")
    padded_logits[:B, :T] = logits
    loss = LabelSmoothedCrossentropy(label_smoothing)
    value, gradient = value_and_gradient(lambda z: loss(labels, z), logits)
    padded_value, padded_gradient = value_and_gradient(lambda z: loss(padded_labels, z), padded_logits)
    assert padded_value == pytest.approx(value, rel=1e-6)
    np.testing.assert_allclose(padded_gradient[:B, :T], gradient, atol=1e-7)
    assert not padded_gradient[padded_labels == PAD].any()


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_nan_and_inf_in_padded_positions_leak_nowhere(poison, label_smoothing):
    labels, logits = make_batch(5)
    poisoned = np.where((labels == PAD)[..., None], poison, logits).astype("float32")
    loss = LabelSmoothedCrossentropy(label_smoothing)
    value, gradient = value_and_gradient(lambda z: loss(labels, z), poisoned)
    assert value == pytest.approx(loss_by_hand(labels, logits, label_smoothing), rel=1e-5)
    np.testing.assert_allclose(gradient, gradient_by_hand(labels, logits, label_smoothing), atol=1e-7)


def test_nan_at_tokens_of_weight_zero_leaks_nowhere():
    labels, logits = make_batch(6)
    weights = np.array([1.0, 0.0, 2.0])
    poisoned = logits.copy()
    poisoned[1] = np.nan
    loss = LabelSmoothedCrossentropy(0.1)
    value, gradient = value_and_gradient(lambda z: loss(labels, z, sample_weight=weights), poisoned)
    assert value == pytest.approx(loss_by_hand(labels, logits, 0.1, weights[:, None]), rel=1e-5)
    np.testing.assert_allclose(gradient, gradient_by_hand(labels, logits, 0.1, weights[:, None]), atol=1e-6)


def test_nan_weight_of_padding_counts_for_nothing():
    labels, logits = make_batch(7)
    weights = np.where(labels == PAD, np.nan, 1.0)
    value = float(LabelSmoothedCrossentropy()(labels, logits, sample_weight=weights))
    assert value == pytest.approx(loss_by_hand(labels, logits, 0.0), rel=1e-5)


def test_nan_at_a_real_token_is_not_hidden():
    labels, logits = make_batch(8)
    logits[1, 2] = np.nan
    assert np.isnan(float(LabelSmoothedCrossentropy()(labels, logits)))


def test_only_padding_gives_zero_and_a_zero_gradient():
    _, logits = make_batch(9)
    labels = np.full((B, T), PAD)
    value, gradient = value_and_gradient(lambda z: LabelSmoothedCrossentropy(0.1)(labels, z), logits)
    assert value == 0.0
    assert not gradient.any()


def test_empty_batch_gives_zero():
    value = LabelSmoothedCrossentropy(0.1)(np.zeros((0, T), "int32"), np.zeros((0, T, V), "float32"))
    assert float(value) == 0.0


@pytest.mark.parametrize("pad_token_id", [-100, V - 1])
def test_pad_token_id_may_be_any_integer(pad_token_id):
    labels, logits = make_batch(11)
    labels[labels == V - 1] = 1
    moved = np.where(labels == PAD, pad_token_id, labels)
    value, gradient = value_and_gradient(
        lambda z: LabelSmoothedCrossentropy(0.1, pad_token_id=pad_token_id)(moved, z), logits
    )
    assert value == pytest.approx(loss_by_hand(labels, logits, 0.1), rel=1e-5)
    np.testing.assert_allclose(gradient, gradient_by_hand(labels, logits, 0.1), atol=1e-7)


@pytest.mark.parametrize("label", [V, V + 7, -1])
def test_label_outside_the_vocabulary_is_loud(label):
    labels, logits = make_batch(12)
    labels[1, 1] = label
    assert np.isnan(float(LabelSmoothedCrossentropy()(labels, logits)))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_logits_are_computed_in_float32(dtype):
    labels, logits = make_batch(13)
    half = ops.cast(logits, dtype)
    value = LabelSmoothedCrossentropy(0.1)(labels, half)
    assert keras.backend.standardize_dtype(value.dtype) == "float32"
    exact = ops.convert_to_numpy(ops.cast(half, "float32"))
    assert float(value) == pytest.approx(loss_by_hand(labels, exact, 0.1), rel=1e-5)


def test_logits_of_60000_are_finite_and_exact():
    labels = np.array([[1, 2]])
    logits = np.zeros((1, 2, 3), "float16")
    logits[0, 0] = [-6e4, 6e4, -6e4]
    logits[0, 1] = [6e4, 6e4, -6e4]
    loss = LabelSmoothedCrossentropy(0.1)
    value, gradient = value_and_gradient(lambda z: loss(labels, z), logits.astype("float32"))
    assert float(loss(labels, logits)) == pytest.approx(value, rel=1e-6)
    assert value == pytest.approx(loss_by_hand(labels, logits, 0.1), rel=1e-6)
    np.testing.assert_allclose(gradient, gradient_by_hand(labels, logits, 0.1), atol=1e-7)


# Where the graph is not the matter: JAX compiles each op that runs alone.
IS_EAGER = keras.backend.backend() != "jax"


def small_model(dtype=None):
    return keras.Sequential(
        [
            keras.Input((None,), dtype="int32"),
            keras.layers.Embedding(V, 7, dtype=dtype),
            keras.layers.Dense(V, dtype=dtype),
        ]
    )


@pytest.mark.extended
def test_fit_and_evaluate_report_the_token_mean():
    keras.utils.set_random_seed(1)
    labels, _ = make_batch(14)
    model = small_model()
    model.compile("sgd", loss=LabelSmoothedCrossentropy(0.1))
    expected = loss_by_hand(labels, model.predict(labels, verbose=0), 0.1)
    assert model.evaluate(labels, labels, verbose=0) == pytest.approx(expected, rel=1e-5)
    history = model.fit(labels, labels, epochs=3, verbose=0).history["loss"]
    assert history[0] == pytest.approx(expected, rel=1e-5)
    assert history[2] < history[0]


def test_training_step_is_the_same_with_more_padding():
    labels, _ = make_batch(15)
    padded = np.pad(labels, ((0, 2), (0, 6)))
    weights = []
    for batch in (labels, padded):
        keras.utils.set_random_seed(2)
        model = small_model()
        model.compile(keras.optimizers.SGD(1.0), LabelSmoothedCrossentropy(0.1), run_eagerly=IS_EAGER)
        model.fit(batch, batch, batch_size=len(batch), verbose=0)
        weights.append(model.get_weights())
    for ours, padded_weights in zip(*weights, strict=True):
        np.testing.assert_allclose(padded_weights, ours, atol=1e-6)


def test_compiled_model_reloads_with_its_loss(tmp_path):
    labels, _ = make_batch(16)
    model = small_model()
    loss = LabelSmoothedCrossentropy(0.2, pad_token_id=4, name="smoothed")
    model.compile("sgd", loss, run_eagerly=IS_EAGER)
    model.fit(labels, labels, verbose=0)
    model.save(tmp_path / "model.keras")
    reloaded = keras.models.load_model(tmp_path / "model.keras")
    assert reloaded.loss.get_config() == {
        "label_smoothing": 0.2,
        "pad_token_id": 4,
        "reduction": "mean_with_sample_weight",
        "name": "smoothed",
        "from_logits": True,
    }
    expected = model.evaluate(labels, labels, verbose=0)
    assert reloaded.evaluate(labels, labels, verbose=0) == pytest.approx(expected, rel=1e-6)


@pytest.mark.extended
def test_mixed_float16_training_stays_finite():
    keras.utils.set_random_seed(3)
    labels, _ = make_batch(17)
    model = small_model("mixed_float16")
    model.layers[-1].bias.assign(np.linspace(-6e4, 6e4, V))
    model.compile(keras.optimizers.Adam(0.01), loss=LabelSmoothedCrossentropy(0.1))
    history = model.fit(labels, labels, epochs=11, verbose=0).history["loss"]
    assert np.all(np.isfinite(history))
    assert history[0] > 1e3
    assert all(np.all(np.isfinite(weight)) for weight in model.get_weights())


@pytest.mark.extended
@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="tf.function is TensorFlow's.")
def test_compiled_with_unknown_sizes_equals_eager():
    import tensorflow as tf

    labels, logits = make_batch(18)
    loss = LabelSmoothedCrossentropy(0.1)

    def step(y, z):
        with tf.GradientTape() as tape:
            tape.watch(z)
            value = loss(y, z)
        return value, tape.gradient(value, z)

    signature = [tf.TensorSpec((None, None), tf.int64), tf.TensorSpec((None, None, V), tf.float32)]
    compiled = tf.function(step, input_signature=signature, jit_compile=True)
    value, gradient = compiled(tf.constant(labels, tf.int64), tf.constant(logits))
    assert float(value) == pytest.approx(loss_by_hand(labels, logits, 0.1), rel=1e-5)
    np.testing.assert_allclose(gradient, gradient_by_hand(labels, logits, 0.1), atol=1e-7)


def test_token_values_are_those_of_the_definition_and_zero_at_padding():
    labels, logits = make_batch(19)
    values = ops.convert_to_numpy(token_negative_log_likelihood(labels, logits, label_smoothing=0.1))
    expected = token_losses_by_hand(labels, logits, 0.1) * (labels != PAD)
    np.testing.assert_allclose(values, expected, rtol=1e-5)


@pytest.mark.parametrize("label_smoothing", [-0.1, 1.0, float("nan"), "0.1", None])
def test_bad_label_smoothing_is_refused(label_smoothing):
    with pytest.raises(
        ValueError, match=r"`label_smoothing` must be a number in \[0, 1\)\. Received: label_smoothing="
    ):
        LabelSmoothedCrossentropy(label_smoothing)


def test_bad_pad_token_id_is_refused():
    with pytest.raises(ValueError, match=r"`pad_token_id` must be an integer\. Received: pad_token_id=None"):
        LabelSmoothedCrossentropy(pad_token_id=None)


def test_shapes_that_do_not_fit_are_refused():
    labels, logits = make_batch(20)
    loss = LabelSmoothedCrossentropy()
    with pytest.raises(ValueError, match=r"y_true.shape=\(3, 4\), y_pred.shape=\(3, 5, 11\)"):
        loss(labels[:, :4], logits)
    with pytest.raises(ValueError, match=r"y_true.shape=\(3, 5\), y_pred.shape=\(3, 11\)"):
        loss(labels, logits[:, 0])
    with pytest.raises(ValueError, match=r"sample_weight.shape=\(5,\), y_true.shape=\(3, 5\)"):
        loss(labels, logits, sample_weight=np.ones(T))


def test_the_sum_takes_the_weights_as_they_are(rng):
    labels = rng.integers(1, 7, (3, 5)).astype("int32")
    labels[1, 2:] = 0
    logits = rng.normal(size=(3, 5, 7)).astype("float32")
    weights = np.array([0.5, 2.0, 0.25], "float32")
    values = np.array(token_negative_log_likelihood(labels, logits, label_smoothing=0.1))
    loss = LabelSmoothedCrossentropy(0.1, reduction="sum")
    np.testing.assert_allclose(loss(labels, logits, weights), weights @ values.sum(axis=1), rtol=1e-6)
    with pytest.raises(ValueError, match=r"`reduction` must be one of .*Received: reduction='mean'"):
        LabelSmoothedCrossentropy(reduction="mean")


def ends_in(*layers):
    return keras.Sequential([keras.Input((T,), dtype="int32"), keras.layers.Embedding(V, 7), *layers])


# Besides those that habits of tests/meetings/measures.py train with.
SOFTMAX_MODELS = {
    "float32 after bfloat16": lambda: ends_in(
        keras.layers.Dense(V, dtype="mixed_bfloat16"), keras.layers.Activation("softmax", dtype="float32")
    ),
    "bfloat16": lambda: ends_in(keras.layers.Dense(V, activation="softmax", dtype="bfloat16")),
    "nested": lambda: keras.Sequential([ends_in(keras.layers.Dense(V, activation="softmax"))]),
    "of each token": lambda: ends_in(
        keras.layers.TimeDistributed(keras.layers.Dense(V, activation="softmax"))
    ),
}
LOSS_OR_METRIC = [LabelSmoothedCrossentropy, Perplexity]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("make", LOSS_OR_METRIC)
@pytest.mark.parametrize("name", SOFTMAX_MODELS)
def test_probabilities_are_never_taken_for_logits(name, make):
    labels, _ = make_batch(21)
    probabilities = SOFTMAX_MODELS[name]()(labels)
    with pytest.raises(ValueError, match=r"`y_pred` must be logits.*or give `from_logits=False`"):
        make()(labels, probabilities)
    with pytest.raises(ValueError, match="y_pred=rows of numbers between 0 and 1 whose sums are 1"):
        make()(labels, ops.convert_to_numpy(ops.cast(probabilities, "float32")))


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_from_logits_false_takes_probabilities(label_smoothing):
    labels, logits = make_batch(22)
    loss = LabelSmoothedCrossentropy(label_smoothing, from_logits=False)
    poisoned = np.where((labels == PAD)[..., None], np.nan, logits).astype("float32")
    value, gradient = value_and_gradient(lambda z: loss(labels, ops.softmax(z)), poisoned)
    assert value == pytest.approx(loss_by_hand(labels, logits, label_smoothing), rel=1e-5)
    real = labels != PAD
    expected = gradient_by_hand(labels, logits, label_smoothing)
    np.testing.assert_allclose(gradient[real], expected[real], atol=1e-6)
    perplexity = float(Perplexity(from_logits=False)(labels, ops.softmax(logits)))
    assert perplexity == pytest.approx(np.exp(loss_by_hand(labels, logits, 0.0)), rel=1e-5)


def test_from_logits_false_is_finite_at_zero_and_refuses_logits():
    loss = LabelSmoothedCrossentropy(0.1, from_logits=False)
    assert loss.get_config()["from_logits"] is False
    zeros = np.zeros((1, 2, 3), "float16")
    zeros[..., 0] = 1
    # A probability of 0 counts as 2 ** -126.
    assert float(LabelSmoothedCrossentropy(from_logits=False)([[1, 2]], zeros)) == pytest.approx(
        126 * np.log(2), rel=1e-6
    )
    assert np.isfinite(float(loss([[1, 2]], zeros)))
    labels, logits = make_batch(23)
    assert np.isnan(float(loss(labels, logits)))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("scale", [0.0, 1e-3, 1.0])
def test_logits_are_never_taken_for_probabilities(scale):
    rng = np.random.default_rng(24)
    for size in (2, 3, 17):
        for _ in range(7):
            logits = (scale * rng.uniform(size=(3, 7, size))).astype("float32")
            assert np.isfinite(float(LabelSmoothedCrossentropy()(rng.integers(1, size, (3, 7)), logits)))
