"""Attention layers for Keras 3, and the road from two text files to a served translator.

`import keras_attn` brings layers, models and training recipes, on any Keras backend. What needs TensorFlow or an
optional package (`Translator`, `text`, `data`, `export`, `tasks`, `runs`, `plots`) is imported when first used.
"""

import importlib

from keras_attn import layers, models, training
from keras_attn._version import __version__

__all__ = ["Translator", "__version__", "layers", "models", "training"]

_LAZY_ROOMS = ("cli", "data", "export", "generation", "ops", "plots", "runs", "tasks", "text")


def __getattr__(name):
    if name == "Translator":
        return importlib.import_module("keras_attn.tasks").Translator
    if name in _LAZY_ROOMS:
        return importlib.import_module(f"keras_attn.{name}")
    raise AttributeError(f"module 'keras_attn' has no attribute {name!r}")
