"""What is refused eagerly is refused in graphs: by an error where one can be raised, by NaN where none can."""

import keras
import numpy as np
import pytest
from helpers_layers import BACKEND, compiled
from keras import ops

from keras_attn.ops import (
    as_boolean_mask,
    attend,
    compiled_scope,
    dot_product_attention,
    mask_poison,
    memory_efficient_attention,
    poisoned,
    with_exact_sizes,
)

VALUES = [[0.0, -1e9], [1.0, 0.5], [0, 2], [0.0, -np.inf], [1.0, np.nan]]
DTYPES = ["bool", "int8", "uint8", "int32", "float16", "bfloat16", "float32"]
DTYPES += ["int64"] if BACKEND == "tensorflow" else []
only_tensorflow = pytest.mark.skipif(BACKEND != "tensorflow", reason="only TensorFlow's graphs can raise")
not_torch = pytest.mark.skipif(BACKEND == "torch", reason="eager")


def checked(arrays):
    return as_boolean_mask(arrays["mask"], "a_mask"), mask_poison(arrays["mask"])


@only_tensorflow
@pytest.mark.parametrize("values", VALUES)
def test_a_graph_raises_what_is_raised_eagerly(values):
    import tensorflow as tf

    with pytest.raises(ValueError, match="`a_mask` must be") as eager:
        as_boolean_mask(np.array([values]), "a_mask")
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        compiled(checked, jit=False)({"mask": tf.constant([values])})
    text = str(eager.value)
    start, hint = text[: text.index(" [")], text[text.index("What") :]
    assert start in str(error.value)
    assert hint in str(error.value)
    assert f"[{values[1]:g}]" in str(error.value)


@not_torch
@pytest.mark.parametrize("values", VALUES)
def test_a_compiled_function_gives_nan(values):
    _, poison = compiled(checked)({"mask": ops.convert_to_tensor([values])})
    assert np.isnan(np.asarray(poison))


@not_torch
@pytest.mark.parametrize("jit", [True, False] if BACKEND == "tensorflow" else [True])
def test_zeros_and_ones_of_any_dtype_pass(jit):
    masks = {dtype: ops.cast(np.array([[1, 0, 1]]), dtype) for dtype in DTYPES}

    def check_all(masks):
        return {
            name: (as_boolean_mask(mask, name), poisoned(ops.ones(2, "float16"), mask_poison(mask)))
            for name, mask in masks.items()
        }

    for mask, ones in compiled(check_all, jit)(masks).values():
        np.testing.assert_array_equal(mask, [[True, False, True]])
        np.testing.assert_array_equal(ones, [1, 1])


def test_an_empty_mask_passes():
    if BACKEND != "torch":
        for jit in (True, False):
            mask, poison = compiled(checked, jit)({"mask": ops.zeros((0, 3))})
            assert tuple(mask.shape) == (0, 3)
            assert np.asarray(poison) == 0


def test_nothing_is_added_where_nothing_can_be_wrong():
    x = ops.ones((2, 3))
    assert mask_poison(None, ops.ones((2, 3), "bool"), np.ones((2, 3), "int32")) is None
    assert poisoned(x, None) is x
    assert poisoned(None, ops.zeros(())) is None
    mask = ops.ones((2, 3), "bool")
    assert as_boolean_mask(mask, "a_mask") is mask
    assert with_exact_sizes(mask, x, [1], "a_mask") is mask


def test_one_wrong_mask_of_several_is_enough():
    if BACKEND != "torch":
        poison = compiled(lambda given: mask_poison(given["right"], None, given["wrong"]))(
            {"right": ops.ones((2, 3)), "wrong": ops.ones((5,), "int32") * 3}
        )
        assert np.isnan(np.asarray(poison))


def test_a_symbolic_mask_is_refused_by_its_poison():
    inputs = keras.Input((3,))
    outputs = poisoned(ops.ones((1,)), mask_poison(inputs))
    model = keras.Model(inputs, outputs)
    assert np.isfinite(ops.convert_to_numpy(model(np.array([[0.0, 1.0, 1.0]])))).all()
    assert np.isnan(ops.convert_to_numpy(model(np.array([[0.0, 1.0, -1e9]])))).all()


@only_tensorflow
@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize(("shape", "sizes"), [((2, 5), (5,)), ((2, 7, 1), (7, 1)), ((1, 5), (5,))])
def test_sizes_that_fit_pass(shape, sizes, jit):
    actual = sized_graph(len(shape), len(sizes), jit)(np.ones(shape, bool), *sizes)
    np.testing.assert_array_equal(actual, np.ones(shape, bool))


@only_tensorflow
@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize(("shape", "sizes"), [((2, 1), (5,)), ((5, 1), (5,)), ((2, 1, 7), (5, 7))])
def test_a_size_of_1_that_would_broadcast_raises(shape, sizes, jit):
    import tensorflow as tf

    # XLA says it in words of its own, before anything runs.
    message = "must be equal" if jit else r"`value_mask` must have the sizes of what it masks"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        sized_graph(len(shape), len(sizes), jit)(np.ones(shape, bool), *sizes)


def sized_graph(rank, num_sizes, jit):
    """A graph of a mask of unknown shape, and of a tensor that has the sizes it should have."""
    import tensorflow as tf

    function = tf.function(
        lambda mask, x: with_exact_sizes(mask, x, range(num_sizes), "value_mask"),
        input_signature=[tf.TensorSpec([None] * rank, tf.bool), tf.TensorSpec([None] * num_sizes)],
        jit_compile=jit,
    )
    return lambda mask, *sizes: function(mask, tf.zeros(sizes))


@only_tensorflow
def test_a_graph_that_is_for_another_engine_has_no_assertions():
    import tensorflow as tf

    def function(mask):
        with compiled_scope():
            return as_boolean_mask(mask, "a_mask"), with_exact_sizes(mask, mask, [1], "a_mask")

    graph = tf.function(function).get_concrete_function(tf.TensorSpec([None, None])).graph
    assert not [op for op in graph.get_operations() if op.type == "Assert"]


@pytest.mark.parametrize("function", [dot_product_attention, memory_efficient_attention, attend])
@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (np.ones((5, 1, 7, 11), bool), r"`mask` must broadcast to shape \(1, 3, 7, 11\).*\(5, 1, 7, 11\)"),
        (np.ones((11, 7), bool), r"must broadcast to .* Received: mask of shape \(11, 7\)"),
        (np.ones((1, 1, 1, 7, 11), bool), "must broadcast to"),
        (np.full((7, 11), -1e9, "float32"), r"`mask` must be boolean.* \[-1000000000.0\]"),
    ],
    ids=["batch", "turned", "axes", "values"],
)
def test_an_op_says_which_mask_it_wants(function, mask, message):
    query, key = ops.ones((1, 3, 7, 5)), ops.ones((1, 3, 11, 5))
    with pytest.raises(ValueError, match=message):
        function(query, key, key, mask=ops.convert_to_tensor(mask))


@pytest.mark.parametrize("function", [dot_product_attention, memory_efficient_attention])
def test_an_op_takes_zeros_and_ones_of_any_shape_that_broadcasts(rng, function):
    query, key = rng.normal(size=(2, 3, 7, 5)), rng.normal(size=(2, 3, 11, 5))
    query, key = (ops.convert_to_tensor(x.astype("float32")) for x in (query, key))
    for shape in ((), (11,), (7, 1), (3, 1, 11), (2, 1, 7, 11)):
        mask = np.array(rng.integers(0, 2, shape), "float32")
        expected = dot_product_attention(query, key, key, mask=ops.convert_to_tensor(mask == 1))[0]
        output = function(query, key, key, mask=ops.convert_to_tensor(mask))
        output = output[0] if isinstance(output, tuple) else output
        np.testing.assert_allclose(
            ops.convert_to_numpy(output), ops.convert_to_numpy(expected), rtol=1e-5, atol=1e-6
        )
