"""A decoding loop in TensorFlow graphs that run one operation after the other: a single row of float32 has a loop of its own."""

import weakref

import keras

from keras_attn.compat.tensorflow import (
    graph_around_control_flow,
    graph_around_function,
    values_from_outside,
)

# The graphs of steps and conditions: what they compute is computed in every step.
_STEP_GRAPHS = weakref.WeakSet()


def graph_around_loops():
    """The TensorFlow graph that is traced; inside a loop, or a branch, the graph around it, which runs once."""
    import tensorflow as tf

    graph = graph_around_control_flow(tf.compat.v1.get_default_graph())
    while graph in _STEP_GRAPHS:
        graph = graph_around_control_flow(graph_around_function(graph))
    return graph


def loop_over_steps(is_running, step, loop_vars, num_rows):
    """`keras.ops.while_loop` that takes less time for a single row, in a TensorFlow graph that has no gradient.

    TensorFlow takes the loop of `tf.while_loop` apart: each value that it reads, a weight too, passes through three operations
    in every step, and oneDNN multiplies where the processor is one for it, which for a single row of float32 takes twice as
    long as TensorFlow's own product. A `While` operation whose body is a function does neither.

    So there are two loops, one after the other, which call the same function. The first, a `While`, runs only for a single
    row of float32. The second, of `tf.while_loop`, runs the steps that are left: none after the first, else all.

    Args:
        is_running: Function of the loop's values, which returns a boolean scalar.
        step: Function of the loop's values, which returns their next values, of the same shapes and dtypes.
        loop_vars: Tuple of structures of tensors.
        num_rows: Integer scalar tensor, the number of rows that a step multiplies by a matrix.

    Returns:
        The last values, as `loop_vars`.

    Example:

    ```python
    import tensorflow as tf


    @tf.function(autograph=False)
    def doubled(x):
        return loop_over_steps(lambda i, x: i < 3, lambda i, x: (i + 1, 2 * x), (tf.constant(0), x), tf.shape(x)[0])


    doubled(tf.constant([5.0, 7.0]))  # (3, [40.0, 56.0])
    ```
    """
    import tensorflow as tf

    values = [tf.convert_to_tensor(value) for value in keras.tree.flatten(loop_vars)]
    num_loop_vars = len(values)

    def in_structure(function):
        return lambda *values: function(*keras.tree.pack_sequence_as(loop_vars, values[:num_loop_vars]))

    condition = _traced(in_structure(is_running), values)
    # A function reads tensors around it as further arguments. Here they are values of the loop that no step changes.
    values += condition.captured_inputs
    num_condition_values = len(values)
    values.append(tf.equal(num_rows, 1))

    def next_values(*values):
        changed = keras.tree.flatten(in_structure(step)(*values))
        return [*changed, *values[num_loop_vars:], *values_from_outside(tf.compat.v1.get_default_graph())]

    body = _traced(next_values, values)
    single_row_at = len(values) - 1
    values += body.captured_inputs
    read = values[num_loop_vars:]

    def runs_on(*values):
        return _call(condition, values[:num_condition_values])[0]

    def runs_on_with_a_single_row(*values):
        return tf.logical_and(values[single_row_at], runs_on(*values))

    if not _has_short_numbers(body.graph):
        values = _while(_traced(runs_on_with_a_single_row, values), body, values)
    values = tf.while_loop(
        lambda *values: runs_on(*values, *read),
        lambda *values: _call(body, [*values, *read])[:num_loop_vars],
        values[:num_loop_vars],
    )
    return keras.tree.pack_sequence_as(loop_vars, values)


def _traced(function, values):
    import tensorflow as tf

    def in_step_graph(*values):
        _STEP_GRAPHS.add(tf.compat.v1.get_default_graph())
        return function(*values)

    signature = [tf.TensorSpec(value.shape, value.dtype) for value in values]
    return tf.function(in_step_graph, signature, autograph=False).get_concrete_function()


def _call(function, values):
    import tensorflow as tf

    outputs = function.outputs
    results = tf.raw_ops.StatefulPartitionedCall(
        args=values, Tout=[output.dtype for output in outputs], f=function
    )
    for result, output in zip(results, outputs, strict=True):
        result.set_shape(output.shape)
    return results


def _while(condition, body, values):
    import tensorflow as tf

    shapes = [value.shape for value in values]
    results = tf.raw_ops.While(input=values, cond=condition, body=body, output_shapes=shapes)
    for result, shape in zip(results, shapes, strict=True):
        result.set_shape(shape)
    return results


def _has_short_numbers(graph):
    """Whether a graph computes with numbers of 8 or 16 bits, which TensorFlow's own products round otherwise than oneDNN's."""
    import tensorflow as tf

    short = (tf.bfloat16, tf.float16, tf.int8, tf.qint8)
    return any(output.dtype in short for operation in graph.get_operations() for output in operation.outputs)
