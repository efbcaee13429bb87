"""The state of a training run, taken between two steps and copied while the next ones go on."""

import keras
import numpy as np
import tensorflow as tf

from keras_attn.training import training_state
from keras_attn.training.state import state_variables


def state_snapshots(model):
    """A way to take the state of a model that costs a step next to nothing.

    TensorFlow's variables share their memory with what was read from them until they are assigned to, so that nothing
    is copied when a snapshot is taken. JAX gives the memory away to the next step, and PyTorch writes into it: there
    all is copied at once.

    Args:
        model: A compiled `keras.Model`, built.

    Returns:
        Function without arguments that takes a snapshot: another function without arguments, for any thread, which
        returns what `keras_attn.training.training_state` would have returned.
    """
    return _read_by_tensorflow(model) if keras.backend.backend() == "tensorflow" else lambda: _copied(model)


def _copied(model):
    state = training_state(model)
    return lambda: state


def _read_by_tensorflow(model):
    variables = state_variables(model)
    # In a graph: as many calls from Python take longer than all the rest.
    read = tf.function(
        lambda: [variable.value.read_value() for variable in variables.values()], autograph=False
    )

    def take():
        values = read()
        return lambda: {name: np.array(value) for name, value in zip(variables, values)}

    return take
