"""`check_layer`: what every layer of the library must be able to do, asked of one layer at a time.

Written in `keras.ops` and NumPy, so that it runs on every backend; exports to TensorFlow are checked where
TensorFlow is the backend.
"""

import contextlib
import inspect
import json

import keras
import numpy as np
from keras import ops

from keras_attn.layers import (
    ClassificationHead,
    DecoderBlock,
    DifferentialAttention,
    EncoderBlock,
    ImageClassificationHead,
    MaskedLanguageModelHead,
    MultiHeadAttention,
    PatchEmbedding,
    Residual,
    SequenceEmbedding,
    TalkingHeadsAttention,
    TokenClassificationHead,
    TokenEmbedding,
)

BACKEND = keras.backend.backend()
# Layers whose outputs are logits that a loss or a softmax takes: float32 under mixed policies too.
LOGIT_HEADS = (ClassificationHead, ImageClassificationHead, MaskedLanguageModelHead, TokenClassificationHead)
# JAX traces anew for each length.
LENGTHS = (5, 7, 11, 2) if BACKEND == "tensorflow" else (5, 7, 2)


def check_layer(make_layer, make_inputs, tmp_path, child, padding=None, skip_connection=False):
    """Runs every check on one layer. XLA, SavedModels and files of weights are habits of tests/meetings.

    Args:
        make_layer: Function of constructor arguments (`dtype`, `dropout`) to a fresh layer.
        make_inputs: Function of a length to a dict of call arguments: NumPy arrays, and options that are none.
            The same length gives the same arrays.
        tmp_path: An empty folder.
        child: The `child` fixture: processes in which what was saved is loaded.
        padding: Dict from the name of a sequence argument to the name of its mask argument, or to None where the
            layer works on each position alone and needs no mask.
        skip_connection: Boolean, whether models add the inputs to the outputs (for layers without a batch axis).
    """
    inputs = make_inputs(LENGTHS[0])
    padding = padding or {}
    layer = built_layer(make_layer, inputs)
    check_symbolic_equals_eager(layer, make_inputs)
    check_graph_equals_eager(layer, make_inputs)
    check_training_flag(make_layer, inputs)
    check_fit_and_seeds(make_layer, make_inputs, skip_connection)
    with float64_enabled():
        check_gradients(make_layer, inputs)
    check_half_precision(make_layer, inputs)
    check_padding(layer, inputs, padding)
    check_saving(layer, make_inputs, tmp_path, child, skip_connection)


# --- running a layer ---


def split(inputs):
    """Call arguments as (arrays, options)."""
    arrays = {name: value for name, value in inputs.items() if isinstance(value, np.ndarray)}
    return arrays, {name: value for name, value in inputs.items() if name not in arrays}


def tensors(arrays):
    return {name: ops.convert_to_tensor(array) for name, array in arrays.items()}


def flat_arrays(outputs):
    """Every tensor of a structure as a NumPy array, half precision widened."""
    flat = keras.tree.flatten(outputs)
    wide = [x if is_wide(x) else ops.cast(x, "float32") for x in flat]
    return [ops.convert_to_numpy(x) for x in wide]


def is_wide(x):
    return keras.backend.standardize_dtype(x.dtype) not in ("float16", "bfloat16")


def run(layer, inputs, **options):
    """The outputs of an eager call, as a flat list of NumPy arrays."""
    arrays, given = split(inputs)
    return flat_arrays(layer(**tensors(arrays), **{**given, **options}))


def built_layer(make_layer, inputs, seed=5, **overrides):
    """A layer with random weights: zero biases and unit scales would hide a misplaced one."""
    layer = make_layer(**overrides)
    run(layer, inputs)
    rng = np.random.default_rng(seed)
    layer.set_weights([rng.normal(0, 0.4, weight.shape) for weight in layer.weights])
    return layer


def compiled(function, jit=True):
    """`function` of a dict of tensors, compiled: XLA, or on TensorFlow with `jit=False` a graph; as it is on torch."""
    if BACKEND == "torch":
        return function
    if BACKEND == "jax":
        import jax

        return jax.jit(function)
    import tensorflow as tf

    # Nothing here branches on a tensor, and Autograph would rewrite the library's functions for it.
    return tf.function(function, jit_compile=jit, autograph=False)


def float64_enabled():
    """JAX has float64 on request."""
    if BACKEND == "jax":
        import jax

        return jax.enable_x64(True)
    return contextlib.nullcontext()


def gradients(layer, inputs, weigh):
    """The gradients of `sum(weigh(output))` by each float input and by each trainable weight.

    Args:
        layer: A built layer.
        inputs: Dict of call arguments.
        weigh: Function of the first output to a tensor, to be summed.

    Returns:
        A dict of arrays by input name, and a list of arrays (or None) in the order of `trainable_variables`.
    """
    arrays, options = split(inputs)
    floats = {name: x for name, x in tensors(arrays).items() if "float" in str(x.dtype)}
    others = {name: x for name, x in tensors(arrays).items() if name not in floats}
    if BACKEND == "jax":
        import jax

        state = [weight.value for weight in layer.non_trainable_variables]

        def loss(floats, weights):
            outputs, _ = layer.stateless_call(weights, state, **floats, **others, **options)
            return ops.sum(weigh(first(outputs)))

        weights = [weight.value for weight in layer.trainable_variables]
        by_input, by_weight = jax.grad(loss, argnums=(0, 1))(floats, weights)
    elif BACKEND == "torch":
        import torch

        floats = {name: x.requires_grad_(True) for name, x in floats.items()}
        weights = [weight.value for weight in layer.trainable_variables]
        value = ops.sum(weigh(first(layer(**floats, **others, **options))))
        sources = [*floats.values(), *weights]
        # What depends on nothing is an error to PyTorch.
        found = [None] * len(sources)
        if value.requires_grad:
            found = torch.autograd.grad(value, sources, allow_unused=True)
        by_input, by_weight = dict(zip(floats, found)), found[len(floats) :]
    else:
        import tensorflow as tf

        weights = [weight.value for weight in layer.trainable_variables]
        with tf.GradientTape() as tape:
            tape.watch(floats)
            value = tf.reduce_sum(weigh(first(layer(**floats, **others, **options))))
        by_input, by_weight = tape.gradient(value, (floats, weights))
        by_weight = [x if x is None else tf.convert_to_tensor(x) for x in by_weight]  # from IndexedSlices
    return (
        {name: None if x is None else ops.convert_to_numpy(x) for name, x in by_input.items()},
        [None if x is None else ops.convert_to_numpy(x) for x in by_weight],
    )


def function_gradients(function, arrays):
    """The gradients of `sum(function(tensors))` by each of a dict of float arrays, as a dict of arrays."""
    floats = tensors(arrays)
    if BACKEND == "jax":
        import jax

        # Compiled at once: op by op, JAX would compile every one of them.
        found = jax.jit(jax.grad(lambda floats: ops.sum(function(floats))))(floats)
    elif BACKEND == "torch":
        import torch

        floats = {name: x.requires_grad_(True) for name, x in floats.items()}
        value = ops.sum(function(floats))
        found = dict(zip(floats, torch.autograd.grad(value, list(floats.values()), allow_unused=True)))
    else:
        import tensorflow as tf

        with tf.GradientTape() as tape:
            tape.watch(floats)
            value = tf.reduce_sum(function(floats))
        found = tape.gradient(value, floats)
    return {name: None if x is None else ops.convert_to_numpy(x) for name, x in found.items()}


def first(outputs):
    return outputs[0] if isinstance(outputs, (tuple, list)) else outputs


def assert_equal(actual, expected, tolerance=1e-5):
    """Each array equal to `tolerance` of the largest magnitude; exactly equal if `tolerance` is 0."""
    assert len(actual) == len(expected)
    for a, b in zip(actual, expected):
        assert a.shape == b.shape
        if tolerance == 0:
            np.testing.assert_array_equal(a, b)
        else:
            np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * max(1.0, np.abs(b).max(initial=0)))


def symbols(inputs, other=None):
    """Keras inputs for the arrays of `inputs`; with `other`, the axes in which it differs have no fixed size."""
    arrays, _ = split(inputs)
    shapes = {name: x.shape for name, x in arrays.items()}
    if other is not None:
        shapes = {
            name: (
                None,
                *(size if size == now else None for size, now in zip(shape[1:], other[name].shape[1:])),
            )
            for name, shape in shapes.items()
        }
    return {
        name: keras.Input(batch_shape=shape, dtype=str(arrays[name].dtype), name=name)
        for name, shape in shapes.items()
    }


def functional_model(layer, make_inputs, skip_connection=False):
    """A functional model of the layer, for any length."""
    inputs = symbols(make_inputs(LENGTHS[0]), make_inputs(LENGTHS[1]))
    outputs = layer(**inputs, **split(make_inputs(LENGTHS[0]))[1])
    if skip_connection:
        outputs = next(iter(inputs.values())) + outputs
    return keras.Model(inputs, outputs)


class SlotsFromFunctions:
    """For a subclass of a layer, whose slots may be functions of a dtype: each layer then has slots of its own."""

    def __init__(self, *args, dtype=None, **kwargs):
        made = {
            name: value(dtype=dtype)
            if callable(value) and not isinstance(value, keras.layers.Layer)
            else value
            for name, value in kwargs.items()
            if name in (*self._SLOTS, "norm")
        }
        super().__init__(*args, dtype=dtype, **{**kwargs, **made})


@keras.saving.register_keras_serializable(package="keras_attn_tests")
class AttentionWithSlots(SlotsFromFunctions, MultiHeadAttention):
    def __init__(self, num_heads, key_dim, dropout=0.0, **kwargs):
        super().__init__(num_heads, key_dim, dropout=dropout, **kwargs)


@keras.saving.register_keras_serializable(package="keras_attn_tests")
class EncoderBlockWithSlots(SlotsFromFunctions, EncoderBlock):
    def __init__(self, intermediate_dim=None, num_heads=None, dropout=0.0, attention_dropout=0.0, **kwargs):
        super().__init__(
            intermediate_dim, num_heads, dropout=dropout, attention_dropout=attention_dropout, **kwargs
        )


@keras.saving.register_keras_serializable(package="keras_attn_tests")
class DecoderBlockWithSlots(SlotsFromFunctions, DecoderBlock):
    def __init__(self, intermediate_dim=None, num_heads=None, dropout=0.0, attention_dropout=0.0, **kwargs):
        super().__init__(
            intermediate_dim, num_heads, dropout=dropout, attention_dropout=attention_dropout, **kwargs
        )


@keras.saving.register_keras_serializable(package="keras_attn_tests")
class SequenceEmbeddingWithSlots(SlotsFromFunctions, SequenceEmbedding):
    def __init__(self, token, dropout=0.0, **kwargs):
        super().__init__(token=token, dropout=dropout, **kwargs)


@keras.saving.register_keras_serializable(package="keras_attn_tests")
class PatchEmbeddingWithSlots(SlotsFromFunctions, PatchEmbedding):
    def __init__(self, patch_size, hidden_dim, dropout=0.0, **kwargs):
        super().__init__(patch_size, hidden_dim, dropout=dropout, **kwargs)


@keras.saving.register_keras_serializable(package="keras_attn_tests")
class MaskedLanguageModelHeadWithSlots(SlotsFromFunctions, MaskedLanguageModelHead):
    def __init__(self, token_embedding, dropout=0.0, **kwargs):
        super().__init__(token_embedding=token_embedding, dropout=dropout, **kwargs)


@keras.saving.register_keras_serializable(package="keras_attn_tests")
class ResidualDense(SlotsFromFunctions, Residual):
    """`Residual` around a Dense layer: a function is no argument that a functional model could save."""

    _SLOTS = ("norm",)

    def __init__(self, dropout=0.0, **kwargs):
        super().__init__(dropout=dropout, **kwargs)

    def build(self, input_shape):
        super().build(input_shape)
        self._dense = keras.layers.Dense(input_shape[-1], dtype=self.dtype_policy, name="dense")
        self._dense.build(input_shape)

    def call(self, inputs, training=None):
        return super().call(inputs, sublayer=self._dense, training=training)


@keras.saving.register_keras_serializable(package="keras_attn_tests")
class EmbeddingBothWays(TokenEmbedding):
    """Ids to vectors to logits, so that the untied weights of both directions are trained."""

    def call(self, inputs):
        return super().call(super().call(inputs), reverse=True)

    def compute_output_spec(self, inputs):
        vectors = super().compute_output_spec(inputs)
        return super().compute_output_spec(vectors, reverse=True)


def gives_scores(layer):
    """Whether the attention scores may be asked for."""
    arguments = inspect.signature(layer.call).parameters
    return "return_attention_scores" in arguments and not getattr(layer, "memory_efficient", None)


# --- the checks ---


def check_config(make_layer):
    layer = make_layer()
    config = layer.get_config()
    parameters = inspect.signature(type(layer).__init__).parameters.values()
    names = {p.name for p in parameters if p.kind is not p.VAR_KEYWORD} - {"self"}
    assert names <= set(config)
    # Keras layers have an `output_shape` of their own.
    assert all(hasattr(layer, name) for name in names - {"output_shape"})
    given = getattr(make_layer, "keywords", {})
    plain = {name: value for name, value in given.items() if isinstance(value, (bool, int, float))}
    assert {name: config[name] for name in plain} == {
        name: (value,) if isinstance(config[name], tuple) else value for name, value in plain.items()
    }
    again = type(layer).from_config(config)
    assert keras.layers.serialize(again) == keras.layers.serialize(layer)
    serialized = json.loads(json.dumps(keras.layers.serialize(layer)))
    assert keras.layers.serialize(keras.layers.deserialize(serialized)) == keras.layers.serialize(layer)


def check_symbolic_equals_eager(layer, make_inputs):
    inputs = make_inputs(LENGTHS[0])
    arrays, options = split(inputs)
    if gives_scores(layer):
        options["return_attention_scores"] = True
    eager = keras.tree.flatten(layer(**tensors(arrays), **options))
    fixed = keras.tree.flatten(layer(**symbols(inputs), **options))
    free = keras.tree.flatten(layer(**symbols(inputs, make_inputs(LENGTHS[1])), **options))
    assert len(eager) == len(fixed) == len(free)
    for value, exact, loose in zip(eager, fixed, free):
        assert tuple(exact.shape) == tuple(value.shape)
        assert len(loose.shape) == len(value.shape)
        assert all(size in (None, now) for size, now in zip(loose.shape, value.shape))
        dtypes = {keras.backend.standardize_dtype(x.dtype) for x in (value, exact, loose)}
        # Keras on torch traces weights in their own dtype, not in the policy's.
        assert len(dtypes) == 1 or BACKEND == "torch"


def check_graph_equals_eager(layer, make_inputs):
    """A graph gives at every length what eager calls give, with one trace (on JAX, which knows no free sizes, one a
    length).
    """
    cases = [make_inputs(length) for length in LENGTHS]
    options = split(cases[0])[1]
    expected = [run(layer, inputs) for inputs in cases]
    traces = []

    def call(arrays):
        traces.append(1)
        return layer(**arrays, **options)

    if BACKEND == "tensorflow":
        import tensorflow as tf

        free = symbols(cases[0], cases[1])
        signature = {name: tf.TensorSpec(x.shape, x.dtype, name=name) for name, x in free.items()}
        function, expected_traces = tf.function(call, input_signature=[signature], autograph=False), 1
    else:
        function, expected_traces = compiled(call), len(LENGTHS)  # torch traces nothing
    for _ in range(2):
        for inputs, outputs in zip(cases, expected):
            assert_equal(flat_arrays(function(tensors(split(inputs)[0]))), outputs)
        assert len(traces) == expected_traces or BACKEND == "torch"


def check_training_flag(make_layer, inputs):
    """Dropout is active in training and absent outside, and a layer without it answers the same in both."""
    layer = built_layer(make_layer, inputs)
    expected = run(layer, inputs)
    if "training" not in inspect.signature(layer.call).parameters:
        return
    names = {"dropout", "attention_dropout"} & set(layer.get_config())
    off = built_layer(make_layer, inputs, **dict.fromkeys(names, 0.0))
    assert_equal(run(off, inputs, training=True), run(off, inputs, training=False), tolerance=0)
    for name in names:
        layer = built_layer(make_layer, inputs, **{**dict.fromkeys(names, 0.0), name: 0.5})
        assert_equal(run(layer, inputs, training=False), expected, tolerance=0)
        assert_equal(run(layer, inputs), expected, tolerance=0)
        one, two = run(layer, inputs, training=True), run(layer, inputs, training=True)
        assert not np.allclose(one[0], expected[0], atol=1e-3)
        assert not np.allclose(one[0], two[0], atol=1e-3)


def check_fit_and_seeds(make_layer, make_inputs, skip_connection):
    """One `fit` step moves every weight; one seed gives one start, and from there the same bits again."""
    arrays, _ = split(make_inputs(LENGTHS[0]))

    def seeded():
        keras.utils.set_random_seed(7)
        layer = make_layer()
        return layer, functional_model(layer, make_inputs, skip_connection)

    def state(layer):
        """The weights, and where its random numbers are; on PyTorch NumPy's arrays would be views of them."""
        return [ops.convert_to_numpy(variable.value).copy() for variable in layer.variables]

    layer, model = seeded()
    if not layer.weights:
        return
    # JAX compiles each op that runs alone.
    model.compile(optimizer=keras.optimizers.SGD(0.5), loss="mse", run_eagerly=BACKEND != "jax")
    target = np.random.default_rng(3).normal(size=model(tensors(arrays)).shape)
    start, ends = state(layer), []
    assert_equal(state(seeded()[0]), start, 0)
    # PyTorch's dropout draws from a generator of its own, and Keras' first step there draws once more to learn shapes.
    for _ in range(3 if BACKEND == "torch" else 2):
        for variable, value in zip(layer.variables, start):
            variable.assign(value)
        keras.utils.set_random_seed(7)
        history = model.fit(arrays, target, batch_size=len(target), shuffle=False, verbose=0)
        assert np.isfinite(history.history["loss"]).all()
        ends.append(state(layer))
    assert_equal(*ends[-2:], tolerance=0)
    has_moved = {id(v): not np.array_equal(*values) for v, *values in zip(layer.variables, start, ends[0])}
    for weight in layer.weights:
        assert is_key_bias(weight) or has_moved[id(weight)], f"{weight.path} did not move"


def is_key_bias(weight):
    """It adds the same number to all logits of a query, which the softmax takes out: its gradient is 0."""
    return weight.path.endswith("key/bias")


def check_gradients(make_layer, inputs):
    """A gradient reaches every weight and input, and agrees with finite differences in float64."""
    arrays, options = split(inputs)
    wide = {name: x.astype("float64") if x.dtype == "float32" else x for name, x in arrays.items()}
    layer = built_layer(make_layer, {**wide, **options}, dtype="float64")
    rng = np.random.default_rng(13)
    coefficients = rng.normal(size=run(layer, {**wide, **options})[0].shape)
    by_input, by_weight = gradients(
        layer, {**wide, **options}, lambda y: y * ops.convert_to_tensor(coefficients, y.dtype)
    )
    for weight, gradient in zip(layer.trainable_variables, by_weight):
        assert gradient is not None, weight.path
        assert is_key_bias(weight) or np.abs(gradient).max() > 1e-6, weight.path
    # A layer of positions alone has no use for the values of its inputs.
    by_input = {name: np.zeros(wide[name].shape) if x is None else x for name, x in by_input.items()}
    if BACKEND != "tensorflow":
        return  # under every policy Keras' norms compute in float32 on JAX, its matrix products on torch
    start = layer.get_weights()

    def value(step, weight_directions, input_directions):
        layer.set_weights([w + step * d for w, d in zip(start, weight_directions)])
        moved = {name: wide[name] + step * d for name, d in input_directions.items()}
        return np.sum(run(layer, {**wide, **moved, **options})[0] * coefficients)

    for _ in range(3):
        weight_directions = [rng.normal(size=w.shape) for w in start]
        input_directions = {name: rng.normal(size=x.shape) for name, x in by_input.items()}
        step = 1e-6
        difference = value(step, weight_directions, input_directions)
        difference = (difference - value(-step, weight_directions, input_directions)) / (2 * step)
        slopes = [np.sum(g * d) for g, d in zip(by_weight, weight_directions)]
        slopes += [np.sum(by_input[name] * d) for name, d in input_directions.items()]
        np.testing.assert_allclose(difference, sum(slopes), rtol=1e-5, atol=1e-5)


def check_half_precision(make_layer, inputs):
    """Within bounds of the largest magnitude."""
    arrays, options = split(inputs)
    expected = run(built_layer(make_layer, inputs), inputs)
    large = {name: x * np.float32(20) if x.dtype == "float32" else x for name, x in arrays.items()}
    for policy, tolerance in (("mixed_bfloat16", 3e-2), ("mixed_float16", 4e-3)):
        layer = built_layer(make_layer, inputs, dtype=policy)
        assert all(keras.backend.standardize_dtype(w.dtype) == "float32" for w in layer.weights)
        output = first(layer(**tensors(arrays), **options))
        dtype = "float32" if isinstance(layer, LOGIT_HEADS) else layer.compute_dtype
        assert keras.backend.standardize_dtype(output.dtype) == dtype
        assert layer.compute_dtype != "float32"
        assert_equal(run(layer, inputs), expected, tolerance)
        assert np.isfinite(run(layer, {**large, **options})[0]).all()
        symbolic = first(layer(**symbols(inputs), **options))
        assert keras.backend.standardize_dtype(symbolic.dtype) == dtype or BACKEND == "torch"


def check_padding(layer, inputs, padding):
    """What stands at padded positions, NaN included, matters to no real position, forward or backward, and to no weight.

    Weights get the same gradients as if zeros stood there.
    """
    if not padding:
        return
    masks = {
        name: prefix_mask(inputs[name].shape[:-1]) if mask_name is None else inputs[mask_name]
        for name, mask_name in padding.items()
    }
    expected = run(layer, inputs)[0]
    # Outputs stand where the first argument has its positions.
    real = masks.get(next(iter(inputs)), np.ones(expected.shape[:2], bool))
    real = real.reshape(*real.shape, *(1,) * (expected.ndim - real.ndim))
    coefficients = np.random.default_rng(17).normal(size=expected.shape).astype("float32")

    def weigh(y):
        return ops.where(real, y, 0.0) * ops.convert_to_tensor(coefficients, y.dtype)

    expected_gradients, expected_of_weights = gradients(layer, inputs, weigh)
    for fill in (-7.25, np.nan, np.inf, -np.inf):
        filled = {
            name: np.where(mask[..., None], inputs[name], np.float32(fill)) for name, mask in masks.items()
        }
        filled = {**inputs, **filled}
        output = run(layer, filled)[0]
        np.testing.assert_array_equal(np.where(real, output, 0), np.where(real, expected, 0))
        filled_gradients, of_weights = gradients(layer, filled, weigh)
        if None not in padding.values():  # the layer knows what is padding
            assert_equal(of_weights, expected_of_weights, 1e-5)
        for name, mask in masks.items():
            np.testing.assert_allclose(
                filled_gradients[name][mask], expected_gradients[name][mask], rtol=1e-5, atol=1e-6
            )
            assert not expected_gradients[name][~mask].any()
    for name, mask_name in padding.items():
        if mask_name is not None:
            unmasked = run(layer, {**inputs, mask_name: np.ones_like(masks[name])})[0]
            assert not np.allclose(unmasked, expected, atol=1e-3), f"{mask_name} changes nothing"
            check_masked_row(layer, inputs, name, mask_name, expected)


def check_masked_row(layer, inputs, name, mask_name, expected):
    """A row of pads alone: its scores and gradients are 0, and its neighbours do not notice."""
    mask = inputs[mask_name].copy()
    mask[0] = False
    inputs = {**inputs, mask_name: mask}
    output, *scores = run(layer, inputs, **({"return_attention_scores": True} if gives_scores(layer) else {}))
    assert np.isfinite(output).all()
    np.testing.assert_array_equal(output[1:], expected[1:])
    if scores:
        check_sums_of_scores(layer, scores)
    by_input, _ = gradients(layer, inputs, lambda y: y[:1])
    assert all(np.isfinite(x).all() for x in by_input.values())
    if isinstance(layer, MultiHeadAttention):
        bias = layer.output_dense.bias
        bias = 0.0 if bias is None else ops.convert_to_numpy(bias.value)
        np.testing.assert_array_equal(output[0], np.broadcast_to(bias, output[0].shape))
        assert not any(x.any() for x in by_input.values())
    if name != next(iter(inputs)):
        assert not by_input[name].any()


def check_sums_of_scores(layer, scores):
    # Attention over two axes has scores (B, N, T1, T2, S1, S2).
    sums = [x.sum((-2, -1) if x.ndim == 6 else -1) for x in scores]
    if getattr(layer, "use_sink_logits", False):
        assert all(((x >= 0) & (x < 1)).all() for x in sums)
    elif not isinstance(layer, (DifferentialAttention, TalkingHeadsAttention)):  # their scores are mixtures
        assert all(((x == 0) | (np.abs(x - 1) < 1e-5)).all() for x in sums)
    assert any((x[0] == 0).all() for x in sums)


def prefix_mask(shape):
    """True at the first positions of each row, a different number in each."""
    counts = np.arange(1, 1 + shape[0]).reshape(-1, *(1,) * (len(shape) - 1))
    return np.broadcast_to(np.arange(shape[-1]) < counts * shape[-1] // (shape[0] + 1) + 1, shape)


def check_saving(layer, make_inputs, folder, child, skip_connection):
    """A `.keras` file gives the same bits in a new process."""
    model = functional_model(layer, make_inputs, skip_connection)
    model.save(folder / "model.keras")
    cases = [split(make_inputs(length))[0] for length in LENGTHS[:2]]
    for i, arrays in enumerate(cases):
        np.savez(folder / f"inputs_{i}.npz", **arrays)
    for actual, arrays in zip(child("keras", folder, len(cases)), cases):
        assert_equal(actual, flat_arrays(model(tensors(arrays))), tolerance=0)
