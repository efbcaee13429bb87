"""What decides between two ways to the same numbers: whether a compiler will see the graph that is being traced."""

import contextlib
import contextvars

import keras

_COMPILED = contextvars.ContextVar("compiled", default=False)


@contextlib.contextmanager
def compiled_scope():
    """Says that what is traced inside is for a compiler, which wants one straight graph and fuses what is in it.

    Only TensorFlow needs to be told: a traced function cannot see that it is going to be compiled with XLA, or converted
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


def runs_op_by_op(x):
    """Whether `x` is in a TensorFlow graph that takes batches of any size and runs as it is traced, each op for itself.

    There work on part of a tensor pays: writing in place, another kernel for few numbers, rows that leave a batch.

    Example:

    ```python
    runs_op_by_op(keras.ops.zeros((2, 3)))  # False: the batch size is known
    ```
    """
    if keras.backend.backend() != "tensorflow" or isinstance(x, keras.KerasTensor) or _COMPILED.get():
        return False
    return bool(x.shape) and x.shape[0] is None
