"""Whether the traced graph is for a compiler: ops then use other operations, with the same results."""

import contextlib
import contextvars

import keras
from keras import ops

from keras_attn.compat.tensorflow import is_for_xla

_COMPILED = contextvars.ContextVar("compiled", default=False)
_INFERENCE = contextvars.ContextVar("inference", default=False)


@contextlib.contextmanager
def compiled_scope():
    """Declares that the graph is for a compiler, which fuses operations and needs a graph without branches.

    Only TensorFlow needs this: a traced function cannot know that it will be compiled with XLA, or converted
    for another engine.

    Example:

    ```python
    with compiled_scope():
        cache = keras_attn.ops.empty_cache(batch_size=2, num_heads=4, length=32, key_dim=16)
    ```
    """
    token = _COMPILED.set(True)
    try:
        yield
    finally:
        _COMPILED.reset(token)


@contextlib.contextmanager
def inference_scope():
    """Declares that nobody takes a gradient of the graph: quantised layers then multiply with the fastest operations.

    Example:

    ```python
    with inference_scope():
        compiled = is_inference_scope()  # True
    ```
    """
    token = _INFERENCE.set(True)
    try:
        yield
    finally:
        _INFERENCE.reset(token)


def is_inference_scope():
    """Whether the code runs inside `inference_scope`."""
    return _INFERENCE.get()


def custom_gradient(function):
    """`keras.ops.custom_gradient`; where nobody takes a gradient (`inference_scope`), what the function gives alone.

    TensorFlow keeps each custom gradient that is traced, and with it the whole graph, for as long as the process lives.

    Args:
        function: Function of tensors that returns its outputs and the function that is their gradient.

    Example:

    ```python
    @custom_gradient
    def clipped(x):
        return keras.ops.clip(x, -1, 1), lambda upstream: upstream


    clipped(keras.ops.ones((2, 3)))
    ```
    """
    with_gradient = ops.custom_gradient(function)

    def call(*inputs):
        return function(*inputs)[0] if is_inference_scope() else with_gradient(*inputs)

    return call


def is_compiled_scope():
    """Whether the code runs inside `compiled_scope`."""
    return _COMPILED.get()


def is_compiled_graph():
    """Whether the traced graph is for a compiler: inside `compiled_scope`, or TensorFlow's `jit_compile=True`."""
    if _COMPILED.get() or keras.backend.backend() != "tensorflow":
        return _COMPILED.get()
    import tensorflow as tf

    return is_for_xla(tf.compat.v1.get_default_graph())


def runs_op_by_op(x):
    """Whether `x` is in a TensorFlow graph that takes batches of any size and runs one op after the other, uncompiled.

    There it is faster to work on a part of a tensor: to write in place, to use another kernel for small
    tensors, to drop rows from a batch.

    Example:

    ```python
    runs_op_by_op(keras.ops.zeros((2, 3)))  # False: the batch size is known
    ```
    """
    if keras.backend.backend() != "tensorflow" or isinstance(x, keras.KerasTensor) or _COMPILED.get():
        return False
    return bool(x.shape) and x.shape[0] is None


def if_true(condition, then, otherwise):
    """What `then()` returns if the condition is true, else what `otherwise()` returns; both are functions.

    A condition on a size that is not known when the graph is traced is known to XLA, which compiles one branch only.

    Args:
        condition: Boolean, or a boolean scalar tensor.

    Example:

    ```python
    size = if_true(keras.ops.shape(keras.ops.ones((3,)))[0] < 5, lambda: "few", lambda: "many")  # "few"
    ```
    """
    if isinstance(condition, bool):
        return then() if condition else otherwise()
    return ops.cond(condition, then, otherwise)
