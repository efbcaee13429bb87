"""A decoding loop in TensorFlow graphs gives what the same loop in Python gives, for one row and for several."""

import keras
import numpy as np
import pytest

if keras.backend.backend() != "tensorflow":
    pytest.skip("graphs of TensorFlow", allow_module_level=True)

import tensorflow as tf

from keras_attn.ops import loop_over_steps

RNG = np.random.default_rng(3)
MATRIX = RNG.normal(size=(5, 5)).astype("float32") / 3
BIAS = RNG.normal(size=(5,)).astype("float32")


def in_graph(dtype="float32"):
    """x = matmul(x, MATRIX) + BIAS, as long as there are steps and the sum of all numbers is below a limit; a function."""
    variable = tf.Variable(BIAS, dtype=dtype)

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, 5], dtype),
            tf.TensorSpec([], tf.int32),
            tf.TensorSpec([], tf.float32),
        ],
        autograph=False,
    )
    def run(x, last, limit):
        matrix = tf.cast(MATRIX, dtype) * tf.cast(
            last > 0, dtype
        )  # not a constant: the step reads it from outside

        def is_running(index, state):
            return tf.logical_and(index < last, tf.reduce_sum(tf.cast(state["x"], "float32")) < limit)

        def step(index, state):
            return index + 1, {"x": tf.matmul(state["x"], matrix) + variable, "count": state["count"] + 2}

        state = {"x": x, "count": tf.zeros([tf.shape(x)[0]], tf.int32)}
        return loop_over_steps(is_running, step, (tf.constant(0), state), tf.shape(x)[0])

    return run


def in_python(x, last, limit):
    x, index = np.asarray(x, "float64"), 0
    while index < last and x.sum() < limit:
        x = x @ MATRIX.astype("float64") + BIAS
        index += 1
    return index, x


@pytest.mark.parametrize("num_rows", [1, 2, 7, 0])
@pytest.mark.parametrize(("last", "limit"), [(11, 1e9), (0, 1e9), (11, -1e9), (11, 1.5)])
def test_the_loop_runs_as_in_python(num_rows, last, limit):
    x = RNG.normal(size=(num_rows, 5)).astype("float32")
    index, state = in_graph()(x, last, limit)
    expected_index, expected = in_python(x, last, limit)
    assert int(index) == expected_index
    np.testing.assert_allclose(state["x"], expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(state["count"], [2 * expected_index] * num_rows)
    assert state["x"].shape == x.shape


def loops_of(run):
    graph = run.get_concrete_function().graph
    return [op.type for op in graph.get_operations() if "While" in op.type]


def test_a_single_row_of_float32_has_a_loop_of_its_own_and_one_of_bfloat16_has_not():
    assert len(loops_of(in_graph())) == 2
    assert len(loops_of(in_graph("bfloat16"))) == 1


def test_what_a_step_assigns_is_assigned_in_every_step():
    count = tf.Variable(0)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)], autograph=False)
    def run(x):
        def step(index, x):
            count.assign_add(1)
            return index + 1, x / 2

        return loop_over_steps(lambda index, x: index < 5, step, (tf.constant(0), x), tf.shape(x)[0])

    for x in ([8.0], [8.0, 16.0, 32.0]):
        count.assign(0)
        _, halves = run(tf.constant(x))
        np.testing.assert_allclose(halves, np.array(x) / 32)
        assert int(count) == 5
