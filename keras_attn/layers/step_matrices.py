"""The matrices of layers in the form in which a loop multiplies by them, made once before the loop."""

import contextlib
import contextvars

import keras

_MADE = contextvars.ContextVar("made", default=None)


def step_matrices(model):
    """{layer's id: matrix} of all layers of a model whose matrices a loop would make again in every step.

    Args:
        model: A model, or any object; one without layers has no matrices.
    """
    if not isinstance(model, keras.Model):
        return {}
    layers = [layer for layer in model._flatten_layers() if hasattr(layer, "makes_step_matrix")]
    return {id(layer): layer.step_matrix() for layer in layers if layer.makes_step_matrix()}


@contextlib.contextmanager
def use_step_matrices(made):
    """Layers that are called inside use these matrices, which `step_matrices` has made."""
    token = _MADE.set(made)
    try:
        yield
    finally:
        _MADE.reset(token)


def step_matrix(layer):
    """A layer's matrix: the one made before the loop, or else a new one."""
    made = (_MADE.get() or {}).get(id(layer))
    return layer.step_matrix() if made is None else made
