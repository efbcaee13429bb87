"""MultiHeadAttention beside Keras' `MultiHeadAttention` and `GroupQueryAttention`: the same weights, answers and
gradients over a grid of arguments, and both answers where ours differs on purpose, as docs/attention.md lists."""

import inspect
import json
import pathlib
import re

import keras
import numpy as np
import pytest
from helpers_layers import BACKEND, flat_arrays, float64_enabled, gradients, run
from helpers_markdown import code_blocks
from keras import ops

from keras_attn.layers import MultiHeadAttention

HERE = pathlib.Path(__file__).parent
DOCUMENT = HERE.parents[1] / "docs" / "attention.md"
B, T, S, D, N, H, HV = 2, 5, 7, 13, 3, 11, 17
# Six heads of queries share the keys and values of three, two or one.
GROUPED_HEADS = 6
SCORES = {"return_attention_scores": True}


OBEYED_IN_SPITE_OF_A_WARNING = pytest.mark.filterwarnings(
    r"ignore:[\s\S]*does not support masking:UserWarning"
)


def sequence(rng, *lengths, width=D):
    return rng.normal(size=(B, *lengths, width)).astype("float32")


def multi_head(layer, **arguments):
    return layer(**{"num_heads": N, "key_dim": H, **arguments})


def grouped(layer, num_key_value_heads=2, **arguments):
    """The same layer in the words of either class."""
    if layer is MultiHeadAttention:
        names = {"num_heads": GROUPED_HEADS, "key_dim": H}
    else:
        names = {"num_query_heads": GROUPED_HEADS, "head_dim": H}
    return layer(**names, num_key_value_heads=num_key_value_heads, **arguments)


KERAS = {multi_head: keras.layers.MultiHeadAttention, grouped: keras.layers.GroupQueryAttention}


def twins(rng, make, inputs, **arguments):
    """Our layer and Keras', ours with the weights of Keras'."""
    ours, theirs = make(MultiHeadAttention, **arguments), make(KERAS[make], **arguments)
    shapes = [inputs["query"].shape, inputs["value"].shape, inputs.get("key", inputs["value"]).shape]
    for layer in (ours, theirs):
        layer.build(*shapes)
    assert description(ours) == description(theirs)
    theirs.set_weights([rng.normal(0, 0.4, weight.shape) for weight in theirs.weights])
    ours.set_weights(theirs.get_weights())
    return ours, theirs


def description(layer):
    return [(w.path.split("/")[1:], w.shape, w.dtype, w.trainable) for w in layer.weights]


def assert_close(actual, expected, tolerance=1e-6):
    """Each array equal to `tolerance` of the largest magnitude of all."""
    assert [x.shape for x in actual] == [x.shape for x in expected]
    largest = max(np.abs(x).max(initial=0) for x in expected)
    for a, b in zip(actual, expected):
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * largest)


def assert_same_answers(ours, theirs, inputs, tolerance=1e-6):
    """With and without scores; where Keras' layer on JAX cannot take values of another size, with them alone."""
    expected = run(theirs, inputs, **SCORES)
    for actual, other in zip(run(ours, inputs, **SCORES), expected, strict=True):
        assert_close([actual], [other], tolerance)
    plain = expected[0] if not_for_jax(theirs) else run(theirs, inputs)[0]
    assert_close(run(ours, inputs), [plain], tolerance)


def not_for_jax(layer):
    return BACKEND == "jax" and getattr(layer, "value_dim", None) != getattr(layer, "key_dim", None)


def assert_same_gradients(ours, theirs, inputs, tolerance=2e-6):
    """Of every input and weight. Keras computes its scores, which is what works with every argument."""
    coefficients = np.random.default_rng(19).normal(size=run(ours, inputs)[0].shape).astype("float32")
    coefficients = ops.convert_to_tensor(coefficients)
    actual, expected = (
        gradients(layer, {**inputs, **options}, lambda y: y * coefficients)
        for layer, options in ((ours, {}), (theirs, SCORES))
    )
    by_input, by_input_there = (
        {k: x for k, x in found[0].items() if "mask" not in k} for found in (actual, expected)
    )
    assert by_input.keys() == by_input_there.keys() >= {"query", "value"}
    assert_close(list(by_input.values()), list(by_input_there.values()), tolerance)
    assert_close(actual[1], expected[1], tolerance)


# --- the same arguments ---


@pytest.mark.parametrize("method", ["__init__", "build", "call", "compute_output_shape"])
def test_arguments_begin_with_those_of_keras(method):
    theirs, ours = (
        [(p.name, p.default) for p in parameters(layer, method) if p.kind is not p.VAR_KEYWORD]
        for layer in (keras.layers.MultiHeadAttention, MultiHeadAttention)
    )
    assert ours[: len(theirs)] == theirs
    assert len(theirs) > 2


def parameters(layer, method):
    return inspect.signature(getattr(layer, method)).parameters.values()


def test_calls_of_grouped_query_attention_are_calls_of_ours():
    names = [p.name for p in parameters(keras.layers.GroupQueryAttention, "call")]
    assert [p.name for p in parameters(MultiHeadAttention, "call")][: len(names)] == names


def test_constructor_arguments_of_grouped_query_attention_have_a_name_here():
    theirs = {p.name for p in parameters(keras.layers.GroupQueryAttention, "__init__")}
    ours = {p.name for p in parameters(MultiHeadAttention, "__init__")}
    assert theirs - ours == {"head_dim", "num_query_heads"}


@pytest.mark.parametrize("name", ["num_heads", "key_dim", "value_dim", "dropout", "use_bias"])
def test_public_attributes_are_those_of_keras(name):
    layers = [multi_head(cls, dropout=0.1) for cls in (MultiHeadAttention, keras.layers.MultiHeadAttention)]
    assert getattr(layers[0], name) == getattr(layers[1], name)


@pytest.mark.parametrize("name", ["query_dense", "key_dense", "value_dense", "output_dense"])
def test_projections_are_those_of_keras(rng, name):
    query = sequence(rng, T)
    ours, theirs = twins(rng, multi_head, {"query": query, "value": query})
    mine, other = getattr(ours, name), getattr(theirs, name)
    assert isinstance(mine, type(other))
    x = rng.normal(size=(B, T, *mine.kernel.shape[: -2 if name != "output_dense" else -1])).astype("float32")
    assert_close(run(mine, {"inputs": x}), run(other, {"inputs": x}))


# --- the same weights ---

CONFIGURATIONS = [
    {},
    {"output_shape": (2, 3), "value_dim": HV},
    {"num_heads": 1, "key_dim": 2},
    {"dropout": 0.3},
    {"use_gate": True, "value_dim": HV, "use_bias": False, "output_shape": 19, "sliding_window": 2},
]
GROUPED_CONFIGURATIONS = [
    {},
    {"num_key_value_heads": GROUPED_HEADS},
    {"num_key_value_heads": 3, "use_bias": False},
    {"dropout": 0.3},
    {"num_key_value_heads": 1, "use_gate": True, "use_bias": False, "sliding_window": 2},
]
EVERY_CONFIGURATION = [
    *((multi_head, arguments) for arguments in CONFIGURATIONS),
    *((grouped, arguments) for arguments in GROUPED_CONFIGURATIONS),
]
# JAX compiles every op for every shape.
SLOW_ELSEWHERE = [] if BACKEND == "tensorflow" else [pytest.mark.slow]


def marks_of(arguments):
    return SLOW_ELSEWHERE if arguments else []


def name_of(value):
    return getattr(value, "__name__", None) or str(value)


def built(layer):
    layer.build((B, T, D), (B, S, D), (B, S, D + 4))
    return layer


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"bias_initializer": "random_normal", "use_gate": True},
        {"kernel_initializer": keras.initializers.RandomNormal(seed=3)},
    ],
    ids=["default", "biases", "seeded"],
)
@pytest.mark.parametrize("make", [multi_head, grouped])
def test_a_seed_starts_the_weights_that_it_starts_in_keras(make, arguments):
    weights = []
    for layer in (MultiHeadAttention, KERAS[make]):
        keras.utils.set_random_seed(23)
        weights.append(built(make(layer, **arguments)).get_weights())
    for mine, other in zip(*weights, strict=True):
        np.testing.assert_array_equal(mine, other)


def model_of(layer, rng):
    """A functional model of three layers, with random weights."""
    query, value = keras.Input((None, D), name="query"), keras.Input((None, D), name="value")
    x = keras.layers.LayerNormalization()(value)
    model = keras.Model([query, value], keras.layers.Dense(5)(layer(query, x)))
    model.set_weights([rng.normal(0, 0.4, weight.shape) for weight in model.weights])
    return model


@pytest.mark.sampled(2)
@pytest.mark.parametrize("arguments", [{}, {"use_gate": True, "value_dim": HV}, {"dropout": 0.3}], ids=str)
@pytest.mark.parametrize("from_keras", [True, False], ids=["from_keras", "to_keras"])
def test_a_weight_file_of_one_loads_into_the_other(rng, tmp_path, arguments, from_keras):
    classes = [keras.layers.MultiHeadAttention, MultiHeadAttention]
    source, target = (
        model_of(multi_head(layer, **arguments), rng) for layer in classes[:: 1 if from_keras else -1]
    )
    source.save_weights(tmp_path / "model.weights.h5")
    target.load_weights(tmp_path / "model.weights.h5")
    for saved, loaded in zip(source.get_weights(), target.get_weights(), strict=True):
        np.testing.assert_array_equal(loaded, saved)


FULL_CONFIGURATION = {
    "value_dim": HV,
    "dropout": 0.1,
    "use_bias": False,
    "output_shape": (2, 3),
    "attention_axes": 1,
    "sliding_window": 2,
    "kernel_initializer": keras.initializers.RandomNormal(stddev=0.3, seed=5),
    "bias_initializer": "ones",
    "kernel_regularizer": "l2",
    "bias_regularizer": {"class_name": "L1", "config": {"l1": 0.2}},
    "activity_regularizer": "l1",
    "kernel_constraint": "non_neg",
    "bias_constraint": keras.constraints.MaxNorm(3),
    "use_gate": True,
    "seed": 29,
    "dtype": "mixed_bfloat16",
    "name": "attention",
}


@pytest.mark.parametrize("arguments", [{}, FULL_CONFIGURATION], ids=["default", "full"])
def test_a_config_of_keras_is_a_config_of_ours(arguments):
    theirs = multi_head(keras.layers.MultiHeadAttention, **arguments)
    config = json.loads(json.dumps(keras.layers.serialize(theirs)))["config"]
    ours = MultiHeadAttention.from_config(config)
    described = json.loads(json.dumps(keras.layers.serialize(ours)))["config"]
    assert {name: described[name] for name in config} == config
    assert set(FULL_CONFIGURATION) <= set(config)


def test_the_description_of_a_model_of_keras_becomes_a_model_of_ours(rng):
    theirs = model_of(multi_head(keras.layers.MultiHeadAttention, use_gate=True), rng)
    description = json.loads(theirs.to_json())
    for layer in description["config"]["layers"]:
        if layer["class_name"] == "MultiHeadAttention":
            layer.update(module="keras_attn.layers", registered_name="keras_attn>MultiHeadAttention")
    ours = keras.models.model_from_json(json.dumps(description))
    assert sum(isinstance(layer, MultiHeadAttention) for layer in ours.layers) == 1
    ours.set_weights(theirs.get_weights())
    inputs = {"query": sequence(rng, T), "value": sequence(rng, S)}
    assert_close(flat_arrays(ours(inputs)), flat_arrays(theirs(inputs)))


def test_the_code_in_the_document_runs():
    blocks = [block for block in code_blocks(section()) if block.language == "python"]
    assert blocks
    namespace = {}
    for block in blocks:
        exec(compile(block.code, DOCUMENT.name, "exec"), namespace)


# --- the same answers and gradients ---


def near(*shape):
    """Whether a query may attend to a key whatever else a mask says: no query is left without keys.

    Keys beside each query, so that masks of single keys, the causal one and a window leave one of them.
    """
    distance = np.abs(np.arange(shape[-2])[:, None] - np.arange(shape[-1]))
    return np.broadcast_to(distance <= 1, shape)


def allowed(rng, *shape, dtype="bool"):
    return (near(*shape) | (rng.random(shape) < 0.5)).astype(dtype)


def without(*keys):
    """True at all S keys of a row but one."""
    return np.arange(S) != np.array(keys)[:, None]


MASKS = {
    "none": lambda rng, heads: {},
    "causal": lambda rng, heads: {"use_causal_mask": True},
    "T_S": lambda rng, heads: {"attention_mask": allowed(rng, T, S)},
    "1_T_S_uint8": lambda rng, heads: {"attention_mask": allowed(rng, 1, T, S, dtype="uint8")},
    "B_T_S": lambda rng, heads: {"attention_mask": allowed(rng, B, T, S)},
    "B_N_T_S_int32": lambda rng, heads: {"attention_mask": allowed(rng, B, heads, T, S, dtype="int32")},
    "B_1_T_S_float32": lambda rng, heads: {"attention_mask": allowed(rng, B, 1, T, S, dtype="float32")},
    "B_1_1_S": lambda rng, heads: {"attention_mask": without(1, 6)[:, None, None]},
    "value": lambda rng, heads: {"value_mask": without(1, 6)},
    "value_S": lambda rng, heads: {"value_mask": without(4)[0]},
    "key_int32": lambda rng, heads: {"key_mask": without(3, 1).astype("int32")},
    "causal_B_N_T_S": lambda rng, heads: {
        "attention_mask": allowed(rng, B, heads, T, S),
        "use_causal_mask": True,
    },
    "all": lambda rng, heads: {
        "attention_mask": allowed(rng, B, T, S),
        "value_mask": without(1, 6),
        "key_mask": without(6, 3),
        "use_causal_mask": True,
    },
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("make", "arguments"),
    [pytest.param(make, arguments, marks=marks_of(arguments)) for make, arguments in EVERY_CONFIGURATION],
    ids=name_of,
)
def test_equals_keras_under_every_mask(rng, make, arguments):
    inputs = {"query": sequence(rng, T), "value": sequence(rng, S)}
    ours, theirs = twins(rng, make, inputs, **arguments)
    # A layer without options meets every mask; each of the others meets some, and all at once.
    start, step = (EVERY_CONFIGURATION.index((make, arguments)) % 4, 4) if arguments else (0, 1)
    for make_mask in [*[*MASKS.values()][start::step], MASKS["all"]]:
        masks = make_mask(rng, ours.num_heads)
        assert_same_answers(ours, theirs, {**inputs, **masks})
    assert_same_gradients(ours, theirs, {**inputs, **masks})


# No mask, and one of each kind.
@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("make", "mask"),
    [(multi_head, mask) for mask in ("none", "causal", "B_T_S", "value", "key_int32", "all")]
    + [(grouped, "all")],
    ids=name_of,
)
def test_equals_keras_with_a_key_of_its_own(rng, make, mask):
    inputs = {"query": sequence(rng, T), "value": sequence(rng, S), "key": sequence(rng, S)}
    ours, theirs = twins(rng, make, inputs)
    inputs = {**inputs, **MASKS[mask](rng, ours.num_heads)}
    assert_same_answers(ours, theirs, inputs)
    assert_same_gradients(ours, theirs, inputs)


@pytest.mark.parametrize("make", [multi_head, grouped])
def test_query_key_and_value_may_have_three_widths(rng, make):
    inputs = {
        "query": sequence(rng, T, width=13),
        "value": sequence(rng, S, width=17),
        "key": sequence(rng, S, width=19),
    }
    ours, theirs = twins(rng, make, inputs)
    assert_same_answers(ours, theirs, inputs)
    assert_same_gradients(ours, theirs, inputs)


@pytest.mark.parametrize(
    "arguments", [{}, {"use_gate": True, "value_dim": HV}, {"sliding_window": 2}], ids=str
)
@pytest.mark.parametrize("causal", [False, True])
def test_equals_keras_in_self_attention(rng, arguments, causal):
    x = ops.convert_to_tensor(sequence(rng, T))
    ours, theirs = twins(rng, multi_head, {"query": x, "value": x}, **arguments)
    actual, expected = (layer(x, x, use_causal_mask=causal, **SCORES) for layer in (ours, theirs))
    assert_close(flat_arrays(actual), flat_arrays(expected))


@OBEYED_IN_SPITE_OF_A_WARNING
@pytest.mark.parametrize("make", [multi_head, grouped])
def test_equals_keras_on_implicit_masks(rng, make):
    """Of the first call, before Keras' layer takes the masks away; and the mask that goes on with the output."""
    values, real = sequence(rng, T), np.array([[True] * 3 + [False] * 2, [True] * 4 + [False]])
    ours, theirs = twins(rng, make, {"query": values, "value": values})
    outputs = []
    for layer in (ours, theirs):
        x = keras.layers.Masking()(ops.convert_to_tensor(np.where(real[..., None], values, np.float32(0))))
        outputs.append(layer(x, x))
        np.testing.assert_array_equal(flat_arrays(outputs[-1]._keras_mask)[0], real)
    actual, expected = (flat_arrays(x)[0] for x in outputs)
    # Queries that are padding have no key.
    assert_close([actual[real]], [expected[real]])


# The axes between batch and features of queries and of keys. What is not attended over has one size in both.
IMAGES = {None: ((3, 5), (2, 7)), 1: ((3, 5), (7, 5)), -2: ((3, 5), (3, 7)), (2, 1): ((3, 5), (2, 7))}


def image_masks(rng, axes, of_query, of_key):
    """One of each rank that Keras takes: over pairs, with the batch, with what is not attended over, with heads."""
    axes = {None: (1, 2), 1: (1,), -2: (2,)}.get(axes, axes)
    pairs = [of_query[axis - 1] for axis in axes] + [of_key[axis - 1] for axis in axes]
    lead = [size for axis, size in enumerate(of_query, 1) if axis not in axes]
    for shape in (pairs, [B, *pairs], [B, *lead, *pairs], [B, *lead, N, *pairs]):
        mask = rng.random(shape) < 0.5
        mask[(..., *[0] * len(axes))] = True  # each query has the first key
        yield {"attention_mask": mask}


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "arguments",
    [{}, {"use_gate": True, "value_dim": HV, "output_shape": (2, 3), "use_bias": False}],
    ids=["default", "gate"],
)
@pytest.mark.parametrize("axes", [None, 1, -2, (2, 1)], ids=str)
def test_equals_keras_over_axes_of_images(rng, axes, arguments):
    of_query, of_key = IMAGES[axes]
    inputs = {"query": sequence(rng, *of_query), "value": sequence(rng, *of_key)}
    ours, theirs = twins(rng, multi_head, inputs, attention_axes=axes, **arguments)
    assert_same_answers(ours, theirs, inputs)
    for masks in image_masks(rng, axes, of_query, of_key):
        assert_same_answers(ours, theirs, {**inputs, **masks})
    assert_same_gradients(ours, theirs, {**inputs, **masks})


def test_equals_keras_over_three_of_four_axes(rng):
    inputs = {"query": sequence(rng, 2, 3, 5), "value": sequence(rng, 2, 3, 5)}
    ours, theirs = twins(rng, multi_head, inputs, attention_axes=(3, 1))
    assert_same_answers(ours, theirs, inputs)


POLICIES = {
    # Keras' layer computes the factor 1 / sqrt(H) in float32 on TensorFlow, `keras.ops.matmul` all products on PyTorch.
    "float64": 1e-7 if BACKEND == "tensorflow" else 2e-6,
    "mixed_float16": 4e-3,
    "float16": 4e-3,
    "mixed_bfloat16": 2e-2,
    "bfloat16": 2e-2,
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("make", "arguments", "policy"),
    [
        *((make, {}, policy) for make in (multi_head, grouped) for policy in POLICIES),
        (multi_head, {"use_gate": True}, "mixed_bfloat16"),
        (grouped, {"dropout": 0.3}, "mixed_float16"),
    ],
    ids=name_of,
)
def test_equals_keras_under_every_policy(rng, make, arguments, policy):
    dtype = "float64" if policy == "float64" else "float32"
    inputs = {"query": sequence(rng, T).astype(dtype), "value": sequence(rng, S).astype(dtype)}
    with float64_enabled():
        ours, theirs = twins(rng, make, inputs, dtype=policy, **arguments)
        assert [w.dtype for w in ours.weights] == [w.dtype for w in theirs.weights]
        inputs = {**inputs, "attention_mask": allowed(rng, B, T, S)}
        assert_same_answers(ours, theirs, inputs, POLICIES[policy])
        dtypes = [[str(x.dtype) for x in layer(**inputs, **SCORES)] for layer in (ours, theirs)]
    assert dtypes[0] == dtypes[1]


@pytest.mark.extended
def test_a_training_step_is_that_of_keras(rng):
    """Weights after three steps of `fit`, with every kind of regularizer and constraint."""
    arguments = {
        "kernel_regularizer": "l2",
        "bias_regularizer": "l1",
        "activity_regularizer": "l2",
        "kernel_constraint": keras.constraints.MaxNorm(2),
        "bias_constraint": "non_neg",
    }
    x = {"query": sequence(rng, T), "value": sequence(rng, S)}
    target = sequence(rng, T, width=5)
    models = [model_of(multi_head(cls, **arguments), rng) for cls in (MultiHeadAttention, KERAS[multi_head])]
    models[0].set_weights(models[1].get_weights())
    losses = []
    for model in models:
        model.compile(optimizer=keras.optimizers.SGD(0.005), loss="mse")
        losses.append(model.fit(x, target, batch_size=B, epochs=3, verbose=0).history["loss"])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
    assert losses[0][0] > losses[0][-1]
    assert_close(models[0].get_weights(), models[1].get_weights(), 1e-5)


# --- where ours differs on purpose ---

# The rows of the table in docs/attention.md, each with the test that shows both answers.
DIFFERENCES = {
    "Masks that the inputs carry": "test_keras_erases_the_masks_of_its_callers",
    "A mask given where the input carries one": "test_given_masks_join_those_that_the_inputs_carry",
    "Masks that the inputs of `GroupQueryAttention` carry": "test_masks_that_are_obeyed_bring_no_warning",
    "`query_mask`": "test_keras_ignores_an_explicit_query_mask",
    "`query_mask` of `GroupQueryAttention`": "test_a_masked_query_has_one_answer",
    "A query with no key to attend to": "test_keras_answers_a_fully_masked_row_in_two_ways",
    "NaN and Inf at masked keys": "test_keras_lets_nan_out_of_masked_values",
    "A mask with an axis of heads beside other masks": "test_a_mask_of_heads_joins_other_masks",
    "Additive masks": "test_additive_masks_are_refused",
    "Masks with fractions": "test_fractions_in_a_mask_are_refused",
    "A `value_mask` of one column": "test_a_mask_of_one_column_is_refused",
    "An `attention_mask` over keys alone": "test_an_attention_mask_may_be_over_keys_alone",
    "A padding mask (B, S) given as `attention_mask`": "test_a_padding_mask_in_place_of_pairs_is_refused",
    "`value_mask` where an axis other than the last is attended over": "test_a_value_mask_follows_the_axes",
    "`use_causal_mask` and `sliding_window` over an inner axis": "test_order_is_that_of_the_attended_axis",
    "Causal attention of the newest queries": "test_keras_aligns_causal_attention_top_left_under_a_cache",
    "Dropout": "test_dropout_draws_other_numbers_at_the_same_rate",
    "Half precision": "test_keras_computes_the_softmax_in_half_precision_with_dropout",
    "Logits below -30,000 in float16": "test_a_masked_key_never_wins_in_float16",
    "float64": "test_the_scale_is_float64_in_float64",
    "`value_dim` on the JAX backend": "test_value_dim_works_on_every_backend",
    "Shapes of scores in a functional model": "test_keras_mistakes_the_shape_of_symbolic_scores",
    "Masks on the scores": "test_scores_carry_no_mask",
    "`activity_regularizer` of `GroupQueryAttention`": "test_activity_is_regularised_once",
    "`query` and `value` of two widths in `GroupQueryAttention`": "test_widths_may_differ_in_functional_models",
    "`flash_attention` in the config": "test_keras_leaves_flash_attention_out_of_its_config",
    "`attention_axes` in the config": "test_the_config_is_that_of_the_constructor",
    "Arguments out of range": "test_arguments_out_of_range_are_refused_at_once",
    "Subclasses with their own `_compute_attention`": "test_there_is_no_method_to_override",
}


def section():
    """The part of the document that this file proves."""
    text = DOCUMENT.read_text(encoding="utf-8")
    return re.search(r"^## Parity with Keras\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE).group(1)


def test_the_table_has_the_differences_that_are_tested():
    lines = section().partition("| What | Keras | keras_attn | Why |\n|---|---|---|---|\n")[2].splitlines()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line]
    assert [row[0] for row in rows] == list(DIFFERENCES)
    assert all(all(row) and len(row) == 4 for row in rows)


@pytest.mark.parametrize("difference", DIFFERENCES)
def test_the_test_of_a_difference_exists(difference):
    assert callable(globals()[DIFFERENCES[difference]])


def both(rng, make=multi_head, **arguments):
    inputs = {"query": sequence(rng, T), "value": sequence(rng, S)}
    return inputs, *twins(rng, make, inputs, **arguments)


def refusal(function):
    """What the ValueError of a call says, or None where there is none."""
    try:
        function()
    except ValueError as error:
        return str(error)
    return None


def test_keras_ignores_an_explicit_query_mask(rng):
    inputs, ours, theirs = both(rng)
    query_mask = np.array([[True] * 3 + [False] * 2, [True] * 5])
    masked = {**inputs, "query_mask": query_mask}
    assert_close(run(theirs, masked), run(theirs, inputs))
    actual = run(ours, masked)[0]
    assert_close([actual[query_mask]], [run(ours, inputs)[0][query_mask]])
    bias = ops.convert_to_numpy(ours.output_dense.bias.value)
    np.testing.assert_array_equal(actual[~query_mask], np.broadcast_to(bias, (2, D)))


def test_keras_erases_the_masks_of_its_callers(rng):
    inputs, ours, theirs = both(rng)
    ids = np.array([[3, 1, 2, 0, 0, 0, 0], [4, 5, 0, 0, 0, 0, 0]])
    mask = ids != 0
    for layer, kept in ((ours, True), (theirs, False)):
        value = keras.layers.Embedding(11, D, mask_zero=True)(ids)
        query = ops.convert_to_tensor(inputs["query"])
        once, twice = layer(query, value), layer(query, value)
        explicit = layer(query, ops.convert_to_tensor(ops.convert_to_numpy(value)), value_mask=mask)
        assert_close(flat_arrays(once), flat_arrays(explicit))
        assert (getattr(value, "_keras_mask", None) is not None) is kept
        assert np.allclose(*flat_arrays((twice, once)), atol=1e-4) is kept


def test_keras_answers_a_fully_masked_row_in_two_ways(rng):
    inputs, ours, theirs = both(rng)
    mask = np.ones((B, T, S), bool)
    mask[1, 2] = False
    masked = {**inputs, "attention_mask": mask}
    plain, with_scores = run(theirs, masked)[0], run(theirs, masked, return_attention_scores=True)[0]
    assert not np.allclose(plain[1, 2], with_scores[1, 2], atol=1e-2)
    with_dropout, _ = twins(rng, multi_head, inputs, dropout=0.1)
    with_dropout.set_weights(ours.get_weights())
    bias = ops.convert_to_numpy(ours.output_dense.bias.value)
    for output in (
        run(ours, masked)[0],
        run(ours, masked, return_attention_scores=True)[0],
        run(with_dropout, masked)[0],
        run(with_dropout, masked, training=True)[0],
    ):
        np.testing.assert_array_equal(output[1, 2], bias)


def test_keras_lets_nan_out_of_masked_values(rng):
    inputs, ours, theirs = both(rng)
    mask = np.array([[True] * 4 + [False] * 3, [True] * 7])
    value = np.where(mask[..., None], inputs["value"], np.float32(np.nan))
    masked = {"query": inputs["query"], "value": value, "value_mask": mask}
    assert np.isnan(run(theirs, masked)[0]).any()
    assert_close(run(ours, masked), run(ours, {**inputs, "value_mask": mask}), 0)


def test_keras_aligns_causal_attention_top_left_under_a_cache(rng):
    x = sequence(rng, T)
    heads = rng.normal(size=(B, T, N, H)).astype("float32")
    last = ops.dot_product_attention(heads[:, -1:], heads, heads, is_causal=True)
    np.testing.assert_allclose(last, heads[:, :1], rtol=1e-5)  # the last query has seen the first key alone
    layer, _ = twins(rng, multi_head, {"query": x, "value": x})
    full = run(layer, {"query": x, "value": x, "use_causal_mask": True})[0]
    _, cache = layer(
        x[:, :-1], x[:, :-1], use_causal_mask=True, cache=layer.empty_cache(B, T), cache_update_index=0
    )
    output, _ = layer(x[:, -1:], x[:, -1:], use_causal_mask=True, cache=cache, cache_update_index=T - 1)
    assert_close(flat_arrays(output), [full[:, -1:]])


def test_keras_mistakes_the_shape_of_symbolic_scores(rng):
    query, value = keras.Input((T, D)), keras.Input((S, D))
    shapes = [
        layer(query, value, return_attention_scores=True)[1].shape
        for layer in (keras.layers.MultiHeadAttention(N, H), MultiHeadAttention(N, H))
    ]
    assert shapes == [(None, N, T, T), (None, N, T, S)]


def test_keras_leaves_flash_attention_out_of_its_config():
    assert "flash_attention" not in keras.layers.MultiHeadAttention(N, H).get_config()
    assert MultiHeadAttention(N, H, flash_attention=False).get_config()["flash_attention"] is False


def test_keras_computes_the_softmax_in_half_precision_with_dropout(rng):
    """4096 equal scores: 1 / 4096 each, but where their sum is kept in bfloat16."""
    x = np.zeros((1, 4096, D), "float32")
    logits = []

    class Recorder(keras.layers.MultiHeadAttention):
        def _masked_softmax(self, attention_scores, attention_mask=None):
            logits.append(keras.backend.standardize_dtype(attention_scores.dtype))
            return super()._masked_softmax(attention_scores, attention_mask)

    Recorder(N, H, dropout=0.1, dtype="mixed_float16")(x[:, :3], x)
    assert logits == ["float16"]
    layer = MultiHeadAttention(N, H, dropout=0.1, dtype="mixed_bfloat16")
    _, scores = layer(x[:, :3], x, return_attention_scores=True)
    np.testing.assert_array_equal(ops.convert_to_numpy(ops.cast(scores, "float32")), 1 / 4096)


@OBEYED_IN_SPITE_OF_A_WARNING
@pytest.mark.parametrize("make", [multi_head, grouped])
def test_given_masks_join_those_that_the_inputs_carry(rng, make):
    inputs, ours, theirs = both(rng, make)
    real = np.array([[True] * 4 + [False] * 3, [True] * 6 + [False]])
    given = without(1, 2)
    for layer, seen in ((ours, real & given), (theirs, given)):
        value = keras.layers.Masking()(ops.convert_to_tensor(np.where(real[..., None], inputs["value"], 0)))
        _, scores = layer(ops.convert_to_tensor(inputs["query"]), value, value_mask=given, **SCORES)
        scores = flat_arrays(scores)[0]
        np.testing.assert_array_equal(scores > 0, np.broadcast_to(seen[:, None, None], scores.shape))


def test_masks_that_are_obeyed_bring_no_warning(rng):
    inputs, ours, theirs = both(rng, grouped)
    values = ops.convert_to_tensor(np.where(without(1, 6)[..., None], inputs["value"], np.float32(0)))
    query = ops.convert_to_tensor(inputs["query"])
    with pytest.warns(UserWarning, match="will therefore destroy the mask information"):
        expected = theirs(query, keras.layers.Masking()(values))
    actual = ours(query, keras.layers.Masking()(values))
    assert_close(flat_arrays(actual), flat_arrays(expected))
    assert_close(flat_arrays(actual), run(ours, {**inputs, "value_mask": without(1, 6)}))


def test_a_masked_query_has_one_answer(rng):
    inputs, ours, theirs = both(rng, grouped)
    real = np.array([[True] * 3 + [False] * 2, [True] * 5])
    inputs["query_mask"] = real
    plain, with_scores = (run(theirs, inputs, **options)[0] for options in ({}, SCORES))
    assert not np.allclose(plain[~real], with_scores[~real], atol=1e-2)
    assert_close([plain[real]], [with_scores[real]])
    bias = ops.convert_to_numpy(ours.output_dense.bias.value)
    for output in (run(ours, inputs)[0], run(ours, inputs, **SCORES)[0]):
        assert_close([output[real]], [plain[real]])
        np.testing.assert_array_equal(output[~real], np.broadcast_to(bias, (2, D)))


def test_a_mask_of_heads_joins_other_masks(rng):
    """Keras' layer lays the rows of the other mask on the heads: an error, or worse where there are B heads."""
    inputs, ours, theirs = both(rng, num_heads=B)
    pairs, keys = allowed(rng, B, B, T, S), without(1, 6)
    inputs = {**inputs, "attention_mask": pairs, "value_mask": keys}
    for layer, joined in ((ours, pairs & keys[:, None, None]), (theirs, pairs & keys[:, None])):
        np.testing.assert_array_equal(run(layer, inputs, **SCORES)[1] > 0, joined)
    inputs, ours, theirs = both(rng)
    inputs = {**inputs, "attention_mask": allowed(rng, B, N, T, S), "value_mask": keys}
    with pytest.raises(Exception, match=r"(?i)shape|broadcast|size"):
        run(theirs, inputs)
    joined = inputs["attention_mask"] & keys[:, None, None]
    np.testing.assert_array_equal(run(ours, inputs, **SCORES)[1] > 0, joined)


def test_additive_masks_are_refused(rng):
    """Keras' layer takes 0 for False and -1e9 for True: the keys that such a mask hides are those it leaves."""
    inputs, ours, theirs = both(rng)
    mask = allowed(rng, T, S)
    additive = {**inputs, "attention_mask": np.where(mask, 0, -1e9).astype("float32")}
    _, scores = run(theirs, additive, **SCORES)
    np.testing.assert_array_equal(scores > 0, np.broadcast_to(~mask, scores.shape))
    assert "`attention_mask` must be boolean, or hold only 0 and 1" in refusal(lambda: run(ours, additive))


def test_fractions_in_a_mask_are_refused(rng):
    """To `GroupQueryAttention` 0.3 is True, but False where it computes scores."""
    inputs, ours, theirs = both(rng, grouped)
    mask = allowed(rng, T, S)
    inputs["attention_mask"] = np.where(mask, 0.3, 0).astype("float32")
    assert_close(run(theirs, inputs), run(theirs, {**inputs, "attention_mask": mask}))
    assert not run(theirs, inputs, **SCORES)[1].any()
    assert "`attention_mask` must be boolean, or hold only 0 and 1" in refusal(lambda: run(ours, inputs))


def test_a_mask_of_one_column_is_refused(rng):
    inputs, ours, theirs = both(rng)
    inputs["value_mask"] = np.array([[True], [False]])
    assert not run(theirs, inputs, **SCORES)[1][1].any()
    assert "`value_mask` must have shape (2, 7)" in refusal(lambda: run(ours, inputs))


def test_a_padding_mask_in_place_of_pairs_is_refused(rng):
    x, padding_mask = keras.Input((5, D)), keras.Input((7,), dtype="bool")
    value = keras.Input((7, D))
    with pytest.raises(ValueError, match="Pass a padding mask"):
        MultiHeadAttention(2, 3)(x, value, attention_mask=padding_mask)
    if BACKEND == "tensorflow":  # the others find that two sizes differ
        output = keras.layers.MultiHeadAttention(2, 3)(x, value, attention_mask=padding_mask)
        assert output.shape == (None, 5, D)


def test_an_attention_mask_may_be_over_keys_alone(rng):
    inputs, ours, theirs = both(rng)
    mask = without(2)[0]
    with pytest.raises(Exception, match="axis -3 is out of bounds"):
        run(theirs, {**inputs, "attention_mask": mask})
    expected = run(theirs, {**inputs, "attention_mask": np.tile(mask, (T, 1))})
    assert_close(run(ours, {**inputs, "attention_mask": mask}), expected)


def test_a_value_mask_follows_the_axes(rng):
    """Over a square, Keras' layer hides the pixels of the transposed mask."""
    x = sequence(rng, 5, 5)
    inputs = {"query": x, "value": x}
    ours, theirs = twins(rng, multi_head, inputs, attention_axes=1)
    mask = rng.random((B, 5, 5)) < 0.6
    mask[:, 0] = mask[:, :, 0] = True
    for layer, hidden in ((ours, np.swapaxes(mask, 1, 2)), (theirs, mask)):
        _, scores = run(layer, {**inputs, "value_mask": mask}, **SCORES)  # (B, columns, N, T, S)
        np.testing.assert_array_equal(scores > 0, np.broadcast_to(hidden[:, :, None, None], scores.shape))
    oblong = sequence(rng, 3, 5)
    inputs = {"query": oblong, "value": oblong, "value_mask": np.ones((B, 3, 5), bool)}
    assert "must be broadcastable" in refusal(lambda: run(theirs, inputs))
    assert_close(run(ours, inputs), run(ours, {"query": oblong, "value": oblong}))


@pytest.mark.parametrize("window", [None, 2])
def test_order_is_that_of_the_attended_axis(rng, window):
    x = sequence(rng, 3, 5)
    inputs = {"query": x, "value": x, "use_causal_mask": True}
    ours, theirs = twins(rng, multi_head, inputs, attention_axes=2, sliding_window=window)
    assert "must be broadcastable" in refusal(lambda: run(theirs, inputs))
    row = multi_head(keras.layers.MultiHeadAttention, sliding_window=window)
    row.build((B, 5, D), (B, 5, D))
    row.set_weights(theirs.get_weights())
    expected = [run(row, {"query": x[:, i], "value": x[:, i], "use_causal_mask": True})[0] for i in range(3)]
    assert_close(run(ours, inputs), [np.stack(expected, axis=1)])


def test_dropout_draws_other_numbers_at_the_same_rate():
    """Values of 1 under equal scores come out as the mean of what the scores are multiplied by, which is 1."""
    query, value = np.zeros((1, 211, 1), "float32"), np.ones((1, 997, 1), "float32")
    arguments = {"num_heads": 1, "key_dim": 1, "use_bias": False, "kernel_initializer": "ones", "seed": 31}
    outputs = [
        run(layer(dropout=0.3, **arguments), {"query": query, "value": value}, training=True)[0]
        for layer in (MultiHeadAttention, MultiHeadAttention, keras.layers.MultiHeadAttention)
    ]
    np.testing.assert_array_equal(outputs[0], outputs[1])
    assert np.abs(outputs[0] - outputs[2]).max() > 0.01
    for output in outputs[1:]:
        np.testing.assert_allclose(output.mean(), 1, atol=0.01)
        # The standard deviation of a mean of 997 of them.
        np.testing.assert_allclose(output.std(), (0.3 / 0.7 / 997) ** 0.5, rtol=0.2)


def test_a_masked_key_never_wins_in_float16(rng):
    """Keras gives masked keys a logit of -30,000, and takes their share away after the softmax."""
    arguments = {"use_bias": False, "kernel_initializer": "ones", "dtype": "mixed_float16"}
    inputs = {
        "query": np.ones((1, 1, 1), "float32"),
        "value": np.array([[[-5e4], [-4e4], [1.0]]], "float32"),
        "value_mask": np.array([[True, True, False]]),
    }
    scores = [
        run(layer(1, 1, dropout=0.1, **arguments), inputs, **SCORES)[1].ravel()
        for layer in (MultiHeadAttention, keras.layers.MultiHeadAttention)
    ]
    np.testing.assert_array_equal(scores, [[0, 1, 0], [0, 0, 0]])


def test_the_scale_is_float64_in_float64():
    """On PyTorch it is `keras.ops.matmul` that computes in float32."""
    query, value = np.ones((1, 1, 1)), np.array([[[0.1], [0.7], [-0.4]]])
    arguments = {"use_bias": False, "kernel_initializer": "ones", "dtype": "float64"}
    logits = np.sqrt(11) * value.ravel()  # 11 equal products over sqrt(11)
    expected = np.exp(logits) / np.exp(logits).sum()
    errors = []
    with float64_enabled():
        for layer in (MultiHeadAttention, keras.layers.MultiHeadAttention):
            scores = run(layer(1, 11, **arguments), {"query": query, "value": value}, **SCORES)[1]
            errors.append(np.abs(scores - expected).max())
    assert errors[0] < (1e-7 if BACKEND == "torch" else 1e-15)
    if BACKEND == "tensorflow":
        assert errors[1] > 1e-10


def test_value_dim_works_on_every_backend(rng):
    inputs, ours, theirs = both(rng, value_dim=HV)
    expected = run(theirs, inputs, **SCORES)[0]
    assert_close(run(ours, inputs), [expected])
    if BACKEND == "jax":
        with pytest.raises(Exception, match="cannot reshape"):
            run(theirs, inputs)


@pytest.mark.parametrize("make", [multi_head, grouped])
def test_scores_carry_no_mask(rng, make):
    inputs, ours, theirs = both(rng, make)
    for layer, carried in ((ours, False), (theirs, True)):
        _, scores = layer(**inputs, value_mask=without(1, 6), **SCORES)
        assert (getattr(scores, "_keras_mask", None) is not None) is carried


def test_activity_is_regularised_once(rng):
    """The activity of the four projections; by `GroupQueryAttention` its output and scores once more."""
    inputs, ours, theirs = both(rng, grouped, activity_regularizer="l2")
    for options, more in (({}, 1), (SCORES, 2)):
        losses = []
        for layer in (ours, theirs):
            keras.tree.map_structure(ops.convert_to_numpy, layer(**inputs, **options))
            losses.append([float(ops.convert_to_numpy(loss)) for loss in layer.losses])
        assert [len(x) for x in losses] == [4, 4 + more]
        assert set(np.round(losses[0], 2)) <= set(np.round(losses[1], 2))


def test_widths_may_differ_in_functional_models():
    query, value = keras.Input((T, D)), keras.Input((S, D + 4))
    theirs, ours = grouped(keras.layers.GroupQueryAttention), grouped(MultiHeadAttention)
    assert "must be equal" in refusal(lambda: theirs(query, value))
    assert ours(query, value).shape == (None, T, D)
    # Nothing in its mathematics asks for it.
    x = ops.ones((B, T, D)), ops.ones((B, S, D + 4))
    assert grouped(keras.layers.GroupQueryAttention)(*x).shape == ours(*x).shape


@pytest.mark.parametrize(
    ("axes", "of_constructor", "of_keras"), [(None, None, (1,)), (-2, (-2,), (1,))], ids=str
)
def test_the_config_is_that_of_the_constructor(axes, of_constructor, of_keras):
    """Keras' layer, once built for sequences, describes one that attends over the first axis of anything."""
    for layer, expected in (
        (MultiHeadAttention, of_constructor),
        (keras.layers.MultiHeadAttention, of_keras),
    ):
        layer = multi_head(layer, attention_axes=axes)
        assert layer.get_config()["attention_axes"] == of_constructor
        assert built(layer).get_config()["attention_axes"] == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dropout": 1.0}, "`dropout` must be a number in [0, 1)"),
        ({"num_heads": True}, "`num_heads` must be a positive integer"),
        ({"output_shape": 0}, "`output_shape` must be a positive integer"),
        ({"attention_axes": 0}, "`attention_axes` must name axes between the batch and the features"),
        ({"attention_axes": 2}, "`attention_axes` must name axes between the batch and the features"),
        ({"attention_axes": ()}, "`attention_axes` must name axes between the batch and the features"),
        ({"attention_axes": (1, 1)}, "`attention_axes` must name axes between the batch and the features"),
    ],
    ids=str,
)
def test_arguments_out_of_range_are_refused_at_once(rng, arguments, message):
    x = sequence(rng, T)
    theirs = multi_head(keras.layers.MultiHeadAttention, **arguments)
    assert run(theirs, {"query": x, "value": x})[0].shape == (B, T, D)
    assert message in refusal(
        lambda: run(multi_head(MultiHeadAttention, **arguments), {"query": x, "value": x})
    )


def test_there_is_no_method_to_override(rng):
    class Halved(keras.layers.MultiHeadAttention):
        def _compute_attention(self, *args, **kwargs):
            output, scores = super()._compute_attention(*args, **kwargs)
            return output / 2, scores

    inputs, _, theirs = both(rng, use_bias=False)
    halved = multi_head(Halved, use_bias=False)
    halved.build((B, T, D), (B, S, D))
    halved.set_weights(theirs.get_weights())
    assert_close(run(halved, inputs), [run(theirs, inputs)[0] / 2])
    assert not hasattr(MultiHeadAttention, "_compute_attention")
