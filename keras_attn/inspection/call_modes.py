"""The ways in which `check_masks` calls a model: contexts, each of which yields the function that compiles its calls."""

import contextlib

import keras

from keras_attn.compat.keras import all_layers, attention_dropout_attribute
from keras_attn.inspection.backends import compiled


def _not_compiled(function):
    return function


@contextlib.contextmanager
def _eager(perturbed):
    yield _not_compiled


@contextlib.contextmanager
def _graph(perturbed):
    yield lambda function: compiled(function, with_xla=False)


@contextlib.contextmanager
def _xla(perturbed):
    yield lambda function: compiled(function, with_xla=True)


@contextlib.contextmanager
def _training(perturbed):
    with contextlib.ExitStack() as stack:
        for layer in all_layers(perturbed.model):
            if isinstance(layer, keras.layers.BatchNormalization):
                stack.callback(setattr, layer, "trainable", layer.trainable)
                layer.trainable = False
        stack.enter_context(perturbed.training(True))
        yield _not_compiled


@contextlib.contextmanager
def _dropout(perturbed):
    with contextlib.ExitStack() as stack:
        for layer in all_layers(perturbed.model):
            name = attention_dropout_attribute(layer)
            if name is not None and not getattr(layer, name):
                stack.callback(setattr, layer, name, getattr(layer, name))
                setattr(layer, name, 0.1)
        stack.enter_context(perturbed.training(False))
        yield _not_compiled


def _in_half_precision(policy):
    @contextlib.contextmanager
    def context(perturbed):
        with contextlib.ExitStack() as stack:
            for layer in all_layers(perturbed.model):
                stack.callback(setattr, layer, "dtype_policy", layer.dtype_policy)
                layer.dtype_policy = policy
            yield _not_compiled

    return context


MODES = {
    "eager": _eager,
    "graph": _graph,
    "xla": _xla,
    "training": _training,
    "dropout": _dropout,
    "mixed_float16": _in_half_precision("mixed_float16"),
    "mixed_bfloat16": _in_half_precision("mixed_bfloat16"),
}
