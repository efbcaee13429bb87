"""The matrices of layers in the form in which a loop multiplies by them, made once before the loop.

They do not travel as arguments: Keras casts every float tensor that a layer is called with to the layer's compute dtype,
and so would cast the matrices of layers that are stored in another dtype, in each step.
"""

import contextlib
import contextvars

import keras

from keras_attn.ops import loop_form

_MADE = contextvars.ContextVar("made", default=None)


def step_matrices(model):
    """What the layers of a model would make again in every step of a loop, for `use_step_matrices`.

    Args:
        model: A model, or any object; one without layers has no matrices.

    Returns:
        Dict from the id of a layer to its matrix; and from the id of an attention layer, and whether it projects keys and
        values in a step, to its `StepProjections`.
    """
    if not isinstance(model, keras.Model):
        return {}
    made = {}
    for layer in model._flatten_layers():
        if hasattr(layer, "makes_step_matrix") and layer.makes_step_matrix():
            made[id(layer)] = loop_form(layer.step_matrix())
        if hasattr(layer, "attention_of_steps"):
            for attention, of_keys in layer.attention_of_steps():
                made[id(attention), of_keys] = attention.step_projections(of_keys)
    return made


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


def made_projections(layer, of_keys):
    """The `StepProjections` of an attention layer that were made before the loop, or None."""
    return (_MADE.get() or {}).get((id(layer), of_keys))
