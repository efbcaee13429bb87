"""NumPy arrays, gradients and compilers: the only code of this room that depends on the backend."""

import keras
import numpy as np
from keras import ops


def as_array(tensor):
    """A tensor's values as a NumPy array, of rank 0 too."""
    return np.asarray(ops.convert_to_numpy(tensor))


def gradients(function, tensors):
    """The gradients of a scalar function of tensors with respect to each of them, and the function's other result.

    Args:
        function: From tensors to a pair: a float scalar, and anything.
        tensors: List of float tensors.

    Returns:
        The list of gradients, zeros where the scalar does not depend on a tensor; and the second result.
    """
    backend = keras.backend.backend()
    if backend not in _GRADIENTS:
        raise ValueError(
            f"Gradients are taken on the backends {sorted(_GRADIENTS)}. Received: the backend {backend!r}."
        )
    return _GRADIENTS[backend](function, list(tensors))


def _by_tensorflow(function, tensors):
    import tensorflow as tf

    with tf.GradientTape() as tape:
        for tensor in tensors:
            tape.watch(tensor)
        scalar, other = function(*tensors)
    gradients = tape.gradient(scalar, tensors, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    # The gradient of what is gathered is IndexedSlices.
    return [tf.convert_to_tensor(gradient) for gradient in gradients], other


def _by_torch(function, tensors):
    import torch

    leaves = [tensor.detach().clone().requires_grad_() for tensor in tensors]
    with torch.enable_grad():
        scalar, other = function(*leaves)
    gradients = [torch.zeros_like(leaf) for leaf in leaves]
    if scalar.requires_grad:
        for number, gradient in enumerate(torch.autograd.grad(scalar, leaves, allow_unused=True)):
            if gradient is not None:
                gradients[number] = gradient
    return gradients, other


def _by_jax(function, tensors):
    import jax

    if not tensors:
        _, other = function()
        return [], other
    numbers = tuple(range(len(tensors)))
    return jax.grad(function, argnums=numbers, has_aux=True)(*tensors)


_GRADIENTS = {"tensorflow": _by_tensorflow, "torch": _by_torch, "jax": _by_jax}


def compiled(function, with_xla):
    """A function of tensors, traced as one graph; with XLA if asked for."""
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        return tf.function(function, jit_compile=with_xla, autograph=False)
    if backend == "jax":
        import jax

        return jax.jit(function)
    raise ValueError(
        f'The modes "graph" and "xla" need the backend tensorflow or jax. Received: the backend {backend!r}.'
    )
