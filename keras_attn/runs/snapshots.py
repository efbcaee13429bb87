"""Snapshots of the state of a training run: taken between two steps, copied during the next ones."""

import keras
import numpy as np
import tensorflow as tf

from keras_attn.training import training_state
from keras_attn.training.state import constants_of_state, state_variables


def state_snapshots(model):
    """A function that takes snapshots of a model's state at almost no cost for a step.

    TensorFlow's variables share their memory with values read from them until they are assigned to, so
    nothing is copied when a snapshot is taken. JAX donates the memory to the next step, and PyTorch writes
    into it: there, everything is copied at once.

    Args:
        model: A compiled `keras.Model`, built.

    Returns:
        Function without arguments that takes a snapshot. It returns another function without arguments, which
        any thread may call, and which returns what `keras_attn.training.training_state` would have returned.
    """
    return _read_by_tensorflow(model) if keras.backend.backend() == "tensorflow" else lambda: _copied(model)


def _copied(model):
    state = training_state(model)
    return lambda: state


def _read_by_tensorflow(model):
    variables, constants = state_variables(model), constants_of_state(model)
    # In a graph, because so many calls from Python take longer than all the rest.
    read = tf.function(
        lambda: [variable.value.read_value() for variable in variables.values()], autograph=False
    )

    def take():
        values = read()
        return lambda: {
            **{name: np.array(value) for name, value in zip(variables, values, strict=True)},
            **constants,
        }

    return take
