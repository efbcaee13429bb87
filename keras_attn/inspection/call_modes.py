"""The ways in which `check_masks` calls a model: contexts that give what compiles a function of tensors."""

import contextlib

import keras

from keras_attn.compat.keras import all_layers, attention_dropout_attribute
from keras_attn.inspection.backends import compiled


@contextlib.contextmanager
def _eager(perturbed):
    yield lambda function: function


@contextlib.contextmanager
def _graph(perturbed):
    yield lambda function: compiled(function, with_xla=False)


@contextlib.contextmanager
def _xla(perturbed):
    yield lambda function: compiled(function, with_xla=True)


@contextlib.contextmanager
def _training(perturbed):
    normalizations = [
        layer for layer in all_layers(perturbed.model) if isinstance(layer, keras.layers.BatchNormalization)
    ]
    trainable = [layer.trainable for layer in normalizations]
    try:
        for layer in normalizations:
            layer.trainable = False
        with perturbed.training(True):
            yield lambda function: function
    finally:
        for layer, value in zip(normalizations, trainable):
            layer.trainable = value


@contextlib.contextmanager
def _dropout(perturbed):
    changed = []
    for layer in all_layers(perturbed.model):
        name = attention_dropout_attribute(layer)
        if name is not None and not getattr(layer, name):
            changed.append((layer, name, getattr(layer, name)))
            setattr(layer, name, 0.1)
    try:
        with perturbed.training(False):
            yield lambda function: function
    finally:
        for layer, name, value in changed:
            setattr(layer, name, value)


def _in_half_precision(policy):
    @contextlib.contextmanager
    def context(perturbed):
        layers = all_layers(perturbed.model)
        before = [layer.dtype_policy for layer in layers]
        try:
            for layer in layers:
                layer.dtype_policy = policy
            yield lambda function: function
        finally:
            for layer, own in zip(layers, before):
                layer.dtype_policy = own

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
