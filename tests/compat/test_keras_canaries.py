"""What keras_attn/compat/keras.py uses of Keras is there and means what it did. It runs on every backend."""

import gc
import inspect
from unittest import mock

import keras
import numpy as np
import pytest
from helpers_canaries import Canaries, users_of
from keras import ops

from keras_attn.compat import keras as compat

CANARIES = Canaries(compat, "keras")


@pytest.mark.parametrize("name", CANARIES.lines)
def test_canary(name):
    with CANARIES.explained(name):
        CANARIES[name]()


@pytest.mark.parametrize("name", CANARIES.lines)
def test_somebody_uses(name):
    assert users_of(name, CANARIES.path)


def test_a_broken_line_is_named_with_its_users(monkeypatch):
    monkeypatch.delattr(keras.layers.Layer, "_flatten_layers")
    line = CANARIES.lines["all_layers"]
    message = (
        rf"^keras_attn/compat/keras.py:{line}: `all_layers` does not hold with keras \d.*_flatten_layers.*"
        r"It is used by .*models/model_copies\.py, .*models/quantization\.py"
    )
    with pytest.raises(AssertionError, match=message), CANARIES.explained("all_layers"):
        CANARIES["all_layers"]()


def dense(units=3, **options):
    layer = keras.layers.Dense(units, **options)
    layer.build((None, 5))
    return layer


def same(these, those):
    """Whether two lists hold the same objects in the same order."""
    return list(map(id, these)) == list(map(id, those))


@CANARIES.of("all_layers", "direct_sublayers")
def nested_layers():
    first, inner = dense(), keras.Sequential([dense(2)])
    model = keras.Sequential([first, inner])
    layers = compat.all_layers(model)
    assert layers[0] is model
    assert {id(layer) for layer in layers} == {id(layer) for layer in (model, first, inner, inner.layers[0])}
    assert len(layers) == 4
    assert same(compat.direct_sublayers(model), [first, inner])
    # Of a layer that is no model.
    wrapper = keras.layers.TimeDistributed(first)
    assert same(compat.all_layers(wrapper), [wrapper, first])
    assert same(compat.direct_sublayers(wrapper), [first])


@CANARIES.of("layers_and_variables_of_its_own")
def own_lists():
    normalization = keras.layers.BatchNormalization()
    normalization.build((None, 5))
    layers, trainable, others = compat.layers_and_variables_of_its_own(normalization)
    assert not layers
    assert same(trainable, [normalization.gamma, normalization.beta])
    assert same(others, [normalization.moving_mean, normalization.moving_variance])
    outer = keras.layers.Layer()
    layers, *_ = compat.layers_and_variables_of_its_own(outer)
    outer.inner = dense()
    assert same(layers, [outer.inner])


class Model(keras.Model):
    def __init__(self):
        super().__init__()
        self.width = 7
        self.dense = dense(1)

    def call(self, inputs):
        return self.dense(inputs)


@CANARIES.of("bookkeeping_attributes", "is_tracking_attribute", "DTYPE_POLICY")
def attributes_of_a_model():
    model = Model()
    model.compile("adam", "mse")
    x = np.ones((4, 5), "float32")
    model.fit(x, x[:, :1], validation_data=(x, x[:, :1]), verbose=0)
    model.predict(x, verbose=0)
    names = set(vars(model)) - compat.bookkeeping_attributes()
    names = {name for name in names if not compat.is_tracking_attribute(name)}
    assert names | {"dense"} == {"width", "dense", compat.DTYPE_POLICY}  # PyTorch keeps layers elsewhere
    assert vars(dense(dtype="mixed_bfloat16"))[compat.DTYPE_POLICY].name == "mixed_bfloat16"
    if keras.backend.backend() == "tensorflow":
        assert any(compat.is_tracking_attribute(name) for name in vars(model))


@CANARIES.of("unlocked")
def new_weights():
    layer = dense()
    with pytest.raises(ValueError, match="already built"):
        layer.add_weight((2,), name="one_more")
    with compat.unlocked(layer):
        layer.one_more = layer.add_weight((2,), name="one_more")
    assert same(layer.weights, [layer.kernel, layer.bias, layer.one_more])
    with pytest.raises(ValueError, match="already built"):
        layer.add_weight((2,), name="another")


@CANARIES.of("delete_variable")
def deleting():
    layer = dense()
    with mock.patch.object(gc, "collect") as collect:
        compat.delete_variable(layer, "bias")
    assert not collect.called
    assert not hasattr(layer, "bias")
    assert same(layer.weights, [layer.kernel])


@CANARIES.of("stored_matrix")
def matrices():
    einsum = keras.layers.EinsumDense("ab,bc->ac", output_shape=3)
    einsum.build((None, 5))
    embedding = keras.layers.Embedding(5, 3)
    embedding.build()
    for layer in (dense(), einsum, embedding):
        before = ops.convert_to_numpy(layer.weights[0])
        layer.enable_lora(2)
        for weight in layer.trainable_weights:
            weight.assign(np.ones(weight.shape))
        matrix = compat.stored_matrix(layer)
        assert isinstance(matrix, keras.Variable)
        np.testing.assert_array_equal(ops.convert_to_numpy(matrix), before)
    quantized = dense()
    quantized.quantize("int8")
    assert keras.backend.standardize_dtype(compat.stored_matrix(quantized).dtype) == "int8"


@CANARIES.of("called_method", "replaced_method")
def replaced_calls():
    layer = dense(1)
    x = np.ones((2, 5), "float32")
    assert compat.called_method(layer) == "call"
    for method in ("call", "quantized_call"):
        calls = []
        with compat.replaced_method(
            layer, method, lambda inputs, calls=calls: calls.append(inputs) or inputs
        ):
            assert tuple(layer(x).shape) == (2, 5)
        assert len(calls) == 1
        assert tuple(layer(x).shape) == (2, 1)
        assert method not in vars(layer)
        if method == "call":
            layer.quantize("int8")
        assert compat.called_method(layer) == "quantized_call"


@CANARIES.of("synchronize_jax_state")
def states_while_training():
    model = keras.Sequential([dense(1, kernel_initializer="zeros")])
    model.compile("sgd", "mse")
    seen = []

    def note(batch, logs):
        compat.synchronize_jax_state(model)
        seen.append(float(ops.convert_to_numpy(model.layers[0].kernel)[0, 0]))

    x = np.ones((4, 5), "float32")
    watch = keras.callbacks.LambdaCallback(on_train_batch_end=note)
    model.fit(x, x[:, :1], batch_size=2, callbacks=[watch], verbose=0)
    assert 0 < seen[0] < seen[1]


class Masked(keras.layers.Layer):
    """Keeps the mask that Keras passes to it."""

    def __init__(self):
        super().__init__()
        self.supports_masking = True

    def call(self, inputs, mask=None):
        self.seen = None if mask is None else ops.convert_to_numpy(mask)
        return inputs


@CANARIES.of("implicit_mask", "set_implicit_mask")
def masks_on_tensors():
    ids = np.array([[4, 2, 0], [1, 0, 0]])
    vectors = keras.layers.Embedding(5, 3, mask_zero=True)(ids)
    np.testing.assert_array_equal(ops.convert_to_numpy(compat.implicit_mask(vectors)), ids != 0)
    other = ops.ones((2, 3, 3))
    assert compat.implicit_mask(other) is None
    compat.set_implicit_mask(other, ops.convert_to_tensor(ids != 0))
    layer = Masked()
    layer(other)
    np.testing.assert_array_equal(layer.seen, ids != 0)
    symbolic = keras.layers.Embedding(5, 3, mask_zero=True)(keras.Input((None,), dtype="int32"))
    assert compat.implicit_mask(symbolic) is not None


@CANARIES.of("symbolic_history", "calls_of")
def histories():
    assert compat.symbolic_history(ops.ones((2, 3))) is None
    inputs = keras.Input((5,))
    layer = dense()
    layer(keras.Input((5,)))
    history = compat.symbolic_history(layer(inputs))
    assert history.operation is layer
    assert (history.node_index, history.tensor_index) == (1, 0)
    node = compat.calls_of(layer)[history.node_index]
    assert same(node.input_tensors, [inputs])
    assert node.arguments.args[0] is inputs
    assert not node.arguments.kwargs
    assert tuple(node.output_tensors[0].shape) == (None, 3)
    total = inputs + 1.0
    assert not isinstance(compat.symbolic_history(total).operation, keras.layers.Layer)


@CANARIES.of("functional_model")
def models_in_a_sequential():
    model = keras.Sequential([keras.Input((5,)), dense()])
    assert [type(operation).__name__ for operation in compat.functional_model(model).operations] == [
        "InputLayer",
        "Dense",
    ]
    functional = keras.Model(model.inputs, model.outputs)
    assert compat.functional_model(functional) is functional


@CANARIES.of("comes_from_activation")
def marked_outputs():
    logits = ops.ones((2, 3))
    for activation in (keras.activations.softmax, keras.activations.sigmoid):
        assert compat.comes_from_activation(activation(logits))
    assert not compat.comes_from_activation(keras.activations.relu(logits))


def attention_of_keras(kind, **options):
    sizes = {"num_heads": 2} if kind is keras.layers.MultiHeadAttention else {"num_query_heads": 2}
    if kind is keras.layers.GroupQueryAttention:
        sizes["num_key_value_heads"] = 2
    size = {"key_dim": 3} if kind is keras.layers.MultiHeadAttention else {"head_dim": 3}
    return kind(**sizes, **size, **options)


KINDS = (keras.layers.MultiHeadAttention, keras.layers.GroupQueryAttention)


@CANARIES.of("ATTENTION_METHOD", "combine_equation", "WITH_ATTENTION_SCORES", "causal_mask_of_layer")
def attending():
    x = keras.random.normal((2, 5, 7))
    for kind in KINDS:
        layer = attention_of_keras(kind)
        expected, expected_scores = layer(x, x, return_attention_scores=True, use_causal_mask=True)
        method = getattr(layer, compat.ATTENTION_METHOD)
        seen = []

        def attend(*args, layer=layer, method=method, seen=seen, **kwargs):
            arguments = inspect.signature(method).bind(*args, **kwargs).arguments
            vars(layer).update(compat.WITH_ATTENTION_SCORES)
            if "return_attention_scores" in inspect.signature(method).parameters:
                arguments["return_attention_scores"] = True
            result = method(**arguments)
            seen.append((arguments["value"], result))
            return result

        with compat.replaced_method(layer, compat.ATTENTION_METHOD, attend):
            output = layer(x, x, use_causal_mask=True)
        ((value, (attended, scores)),) = seen
        for one, other in ((scores, expected_scores), (output, expected)):
            np.testing.assert_allclose(ops.convert_to_numpy(one), ops.convert_to_numpy(other), atol=1e-5)
        product = ops.einsum(compat.combine_equation(layer), scores, value)
        np.testing.assert_allclose(ops.convert_to_numpy(product), ops.convert_to_numpy(attended), atol=1e-5)
        mask = compat.causal_mask_of_layer(layer, x, x)
        np.testing.assert_array_equal(ops.convert_to_numpy(mask)[0], np.tri(5, dtype=bool))


@CANARIES.of("attention_axes")
def axes():
    layer = attention_of_keras(keras.layers.MultiHeadAttention, attention_axes=(1, 2))
    layer(np.ones((2, 3, 4, 5), "float32"), np.ones((2, 3, 4, 5), "float32"))
    assert tuple(compat.attention_axes(layer)) == (1, 2)
    for kind in KINDS:
        layer = attention_of_keras(kind)
        layer(np.ones((2, 3, 5), "float32"), np.ones((2, 3, 5), "float32"))
        assert compat.attention_axes(layer) in (None, (1,))


@CANARIES.of("attention_dropout_attribute")
def dropouts():
    for kind in KINDS:
        layer = attention_of_keras(kind, dropout=0.25)
        assert getattr(layer, compat.attention_dropout_attribute(layer)) == 0.25
    assert compat.attention_dropout_attribute(dense()) is None


@CANARIES.of("backend_optimizer_class")
def optimizer_classes():
    for optimizer in (keras.optimizers.Adam, keras.optimizers.AdamW):
        assert compat.backend_optimizer_class(optimizer) is type(optimizer())


@CANARIES.of("adam_moments", "trained_variables", "moving_averages")
def states_of_an_optimizer():
    variables = [keras.Variable(np.ones(size, "float32"), name=f"x{size}") for size in (2, 3)]
    optimizer = keras.optimizers.Adam(0.5, beta_1=0.9, beta_2=0.99, use_ema=True, ema_momentum=0.75)
    optimizer.build(variables)
    optimizer.apply([ops.full((2,), 10.0), ops.full((3,), 20.0)])
    assert same(compat.trained_variables(optimizer), variables)
    for variable, gradient in zip(variables, (10, 20)):
        momentum, velocity = compat.adam_moments(optimizer, variable)
        assert momentum.shape == velocity.shape == variable.shape
        np.testing.assert_allclose(ops.convert_to_numpy(momentum), 0.1 * gradient, rtol=1e-5)
        np.testing.assert_allclose(ops.convert_to_numpy(velocity), 0.01 * gradient**2, rtol=1e-5)
    averages = compat.moving_averages(optimizer)
    assert [tuple(average.shape) for average in averages] == [(2,), (3,)]
    assert not keras.optimizers.SGD(0.5).use_ema


@CANARIES.of("learning_rate_schedule")
def schedules():
    schedule = keras.optimizers.schedules.CosineDecay(0.5, 7)
    assert compat.learning_rate_schedule(keras.optimizers.Adam(schedule)) is schedule
    assert compat.learning_rate_schedule(keras.optimizers.Adam(0.5)) is None
