"""Watchers of attention layers: they see every call of the layers while a `with` block is open.

The layers' code is not touched: their methods are wrapped on the instances, and unwrapped at the end. A watcher sees only
the calls of the thread (or task) that opened its block.
"""

import contextlib
import contextvars
import functools
import threading

import keras
from keras import ops

from keras_attn.checks import concrete_values
from keras_attn.compat.keras import replaced_method
from keras_attn.inspection.attention_layers import call_kind

_OPEN = contextvars.ContextVar("open_watchers", default=())
_LOCK = threading.Lock()
# The methods that are wrapped: {(id of the object, name): `_Wrapping`}.
_WRAPPED = {}
_COMPILED = ("fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch")

HOW_TO_CALL = (
    "Attention is seen in eager calls only: compiled code does not run Python. Call the model itself, `model(x)`, outside "
    "of `tf.function` and `jit`; or compile it with `run_eagerly=True` for `predict` and `fit`."
)


class Watcher:
    """Sees the calls of some layers.

    Args:
        layers: Dict from paths to attention layers.
        see: Function (path, `AttentionCall`), called after each call of one of the layers.
        takes_traced: Boolean, whether calls in a graph or under a transformation are seen too. Otherwise they raise.
    """

    def __init__(self, layers, see, takes_traced=False):
        self.paths = {id(layer): path for path, layer in layers.items()}
        self.layers = layers
        self.see = see
        self.takes_traced = takes_traced


@contextlib.contextmanager
def watching(watcher, model=None):
    """Opens a watcher. `model` refuses compiled `predict`, `fit` and so on while it is open."""
    with contextlib.ExitStack() as stack:
        for layer in watcher.layers.values():
            kind = call_kind(layer)
            stack.enter_context(wrapped(layer, kind.method, functools.partial(_watched, kind=kind)))
        if isinstance(model, keras.Model):
            for name in _COMPILED:
                stack.enter_context(wrapped(model, name, functools.partial(_eager_only, watcher=watcher)))
        token = _OPEN.set((*_OPEN.get(), watcher))
        try:
            yield
        finally:
            _OPEN.reset(token)


class _Wrapping:
    """A method of one object that is replaced while any block needs it. It holds the object, whose id is in use."""

    def __init__(self, owner, name, wrap):
        self.owner = owner
        self.num_blocks = 0
        self._replacement = contextlib.ExitStack()
        self._replacement.enter_context(replaced_method(owner, name, wrap(owner, getattr(owner, name))))

    def end(self):
        self._replacement.close()


@contextlib.contextmanager
def wrapped(owner, name, wrap):
    """Replaces a method of one object, once for all open blocks."""
    key = (id(owner), name)
    with _LOCK:
        if key not in _WRAPPED:
            _WRAPPED[key] = _Wrapping(owner, name, wrap)
        wrapping = _WRAPPED[key]
        wrapping.num_blocks += 1
    try:
        yield
    finally:
        with _LOCK:
            wrapping.num_blocks -= 1
            if not wrapping.num_blocks:
                del _WRAPPED[key]
                wrapping.end()


def _watched(layer, original, kind):
    @functools.wraps(original)
    def method(*args, **kwargs):
        watchers = [watcher for watcher in _OPEN.get() if id(layer) in watcher.paths]
        if not watchers or _is_symbolic(args, kwargs):
            return original(*args, **kwargs)
        call = kind(layer, original, args, kwargs)
        if not all(watcher.takes_traced for watcher in watchers) and _is_traced(call.output):
            raise RuntimeError(HOW_TO_CALL)
        for watcher in watchers:
            watcher.see(watcher.paths[id(layer)], call)
        return call.result

    return method


def _eager_only(model, original, watcher):
    @functools.wraps(original)
    def method(*args, **kwargs):
        if watcher in _OPEN.get() and not _runs_eagerly(model):
            raise RuntimeError(HOW_TO_CALL)
        return original(*args, **kwargs)

    return method


def _runs_eagerly(model):
    if keras.backend.backend() == "torch":
        return not model.jit_compile
    return bool(model.run_eagerly)


def _is_symbolic(args, kwargs):
    return any(isinstance(x, keras.KerasTensor) for x in keras.tree.flatten((args, kwargs)))


def _is_traced(tensor):
    return ops.is_tensor(tensor) and concrete_values(tensor[:0]) is None
