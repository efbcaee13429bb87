"""Attention layers for Keras 3, and tools to train and serve a translator from two text files.

`import keras_attn` imports layers, models and training, which run on any Keras backend. Modules that need
TensorFlow or an optional package (`load`, `Translator` and the other tasks, `capture_attention`, `check_masks`, `explain_masks`, `inspection`, `text`, `data`, `export`, `huggingface`, `opennmt`, `tasks`, `runs`, `serve`, `plots`) are
imported on first use.
"""

import importlib

from keras_attn import layers, models, training
from keras_attn._version import __version__
from keras_attn.task_registry import CLASS_NAMES

_LAZY_INSPECTION = ("capture_attention", "check_masks", "explain_masks")
__all__ = [*CLASS_NAMES, *_LAZY_INSPECTION, "__version__", "layers", "load", "models", "training"]

_LAZY_ROOMS = (
    "cli",
    "data",
    "export",
    "generation",
    "huggingface",
    "info",
    "inspection",
    "opennmt",
    "ops",
    "plots",
    "runs",
    "serve",
    "tasks",
    "text",
)


def __getattr__(name):
    if name in CLASS_NAMES:
        return getattr(importlib.import_module("keras_attn.tasks"), name)
    if name in _LAZY_INSPECTION:
        return getattr(importlib.import_module("keras_attn.inspection"), name)
    if name == "load":
        return importlib.import_module("keras_attn.tasks").load_task
    if name in _LAZY_ROOMS:
        return importlib.import_module(f"keras_attn.{name}")
    raise AttributeError(f"module 'keras_attn' has no attribute {name!r}")
