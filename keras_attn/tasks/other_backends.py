"""A function of tensors as JAX or PyTorch runs it best, for what a task does with a graph on TensorFlow."""

import keras
import numpy as np


def function_of_arrays(model, function):
    """The function as the backend runs it best: compiled with JAX; on PyTorch as it is, without gradients.

    Args:
        model: The model whose weights `function` uses.
        function: Function of tensors, or of nested structures of them. It returns such a structure; None stands for
            nothing in it.

    Returns:
        Function of NumPy arrays that returns NumPy arrays.
    """
    if keras.backend.backend() == "jax":
        call = _compiled_with_jax(model, function)
    else:
        call = _without_gradients(function)

    def to_numpy(x):
        return None if x is None else keras.ops.convert_to_numpy(x)

    return lambda *inputs: keras.tree.map_structure(to_numpy, call(*inputs))


def _compiled_with_jax(model, function):
    """The function, compiled separately for each input shape, on this process' devices.

    The model's weights are inputs, with their values at the time of the call. If they are spread over the
    devices of several processes, each process has all of them and uses its own copy, so the others need not
    take part.
    """
    import jax

    variables = model.variables

    @jax.jit
    def compiled(values, *inputs):
        with keras.StatelessScope(state_mapping=list(zip(variables, values))):
            return function(*inputs)

    def call(*inputs):
        values = [variable.value for variable in variables]
        if not all(value.is_fully_addressable for value in values):
            values = [np.asarray(value) for value in values]
        return compiled(values, *keras.tree.map_structure(np.asarray, inputs))

    return call


def _without_gradients(function):
    import torch

    def call(*inputs):
        with torch.no_grad():
            return function(*keras.tree.map_structure(keras.ops.convert_to_tensor, inputs))

    return call
