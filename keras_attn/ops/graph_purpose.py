"""What a traced graph is for, and where it runs: ops then use other operations, with the same results.

Only TensorFlow needs to be told. A function that it traces cannot know that XLA or a converter will compile the graph, that
nobody will take its gradient, that a bad index must not fail a whole batch, or that nobody reads a cache after it was
written. Whoever traces says so by a scope, and every op inside reads it, deep inside layers of users too: as an argument it would
pass through every layer, block and model.

The context variables of keras_attn, all of them. Each holds while one piece of code runs, in its thread, for code that is called
through methods whose arguments Keras or a user has fixed. The first three decide which operations compute an answer:

- `ops/graph_purpose.py`: what the traced graph is for, here.
- `layers/clean_padding.py`: the sequences whose padding is 0 already, so that the blocks of a model need not make it so again.
- `layers/projection.py`: the matrices that a loop over steps made before it began, for layers inside of it.
- `layers/layer_slots.py`: the layers that a config has described, or made, so that a shared layer stays one layer.
- `huggingface/dry_run.py`: whether checkpoints are only tried, without their weights, and which of their fields change nothing.
- `tasks/batches.py`: whether a warning is given when texts are cut.
- `terminal.py`: to whom the stages of a long command are shown.
- `terminal.py`: to whom the stages of a long command are shown.
- `inspection/watching.py`: who watches the layers that are called.
"""

import contextlib
import contextvars
import dataclasses

import keras
import numpy as np
from keras import ops

from keras_attn.compat.tensorflow import is_for_xla


@dataclasses.dataclass(frozen=True)
class _Purpose:
    is_compiled: bool = False
    is_inference: bool = False
    clamps_indices: bool = False
    # {id: tensor} of the tensors that were overwritten in an `overwriting_scope`; None outside of one.
    overwritten: dict | None = None
    # What layers of one step computed, see `computed_once`; None outside of a `step_scope`.
    shared: dict | None = None


_NONE_GIVEN = _Purpose()
_PURPOSE = contextvars.ContextVar("graph_purpose", default=_NONE_GIVEN)


@contextlib.contextmanager
def _scope(**changes):
    token = _PURPOSE.set(dataclasses.replace(_PURPOSE.get(), **changes))
    try:
        yield
    finally:
        _PURPOSE.reset(token)


def compiled_scope():
    """Declares that the graph is for a compiler, which fuses operations and needs a graph without branches.

    It may be compiled with XLA, or converted for another engine.

    Example:

    ```python
    with compiled_scope():
        cache = keras_attn.ops.empty_cache(batch_size=2, num_heads=4, length=32, key_dim=16)
    ```
    """
    return _scope(is_compiled=True)


def is_compiled_scope():
    """Whether the code runs inside `compiled_scope`."""
    return _PURPOSE.get().is_compiled


def inference_scope():
    """Declares that nobody takes a gradient of the graph: quantised layers then multiply with the fastest operations.

    Example:

    ```python
    with inference_scope():
        compiled = is_inference_scope()  # True
    ```
    """
    return _scope(is_inference=True)


def is_inference_scope():
    """Whether the code runs inside `inference_scope`."""
    return _PURPOSE.get().is_inference


def clamping_scope():
    """Graphs that are traced inside clamp indices instead of raising, see `indices_within`.

    In a served graph one bad row must not fail the others, and the steps of a search take its own tokens.

    Example:

    ```python
    with clamping_scope():
        indices = indices_within(keras.ops.convert_to_tensor([5, 2]), 7, "Token ids")
    ```
    """
    return _scope(clamps_indices=True)


def is_clamping_scope():
    """Whether the code runs inside `clamping_scope`."""
    return _PURPOSE.get().clamps_indices


def overwriting_scope():
    """Declares that nobody reads a cache after it was written here, so `write_cache` may overwrite its tensors.

    It is for a loop in a TensorFlow graph that runs op by op, whose caches are `unshared` before the loop. There a step
    moves its new keys and values alone; otherwise TensorFlow copies the whole cache in each step. A tensor that is
    written twice in a step is copied the second time, and one that is not float32 always: TensorFlow's kernels for
    GPUs may not know its dtype.

    Example:

    ```python
    with overwriting_scope():
        cache = keras_attn.ops.empty_cache(batch_size=2, num_heads=4, length=32, key_dim=16)
    ```
    """
    return _scope(overwritten={})


def step_scope():
    """Declares that one step of a search is traced: its masks are not checked, and its layers share what is `computed_once`.

    Example:

    ```python
    with step_scope():
        mask = computed_once(keras.ops.logical_not, keras.ops.convert_to_tensor([True, False]))
    ```
    """
    return _scope(shared={})


def is_step_scope():
    """Whether the code runs inside `step_scope`."""
    return _PURPOSE.get().shared is not None


def computed_once(function, *inputs):
    """`function(*inputs)`; in a `step_scope` of a TensorFlow graph, a later call with the same inputs gets the same result.

    Every layer of a model makes the same mask of its caches, and each operation of a small model takes about as long as a
    product of matrices.

    Args:
        function: Function that is defined once: not a lambda.
        *inputs: Tensors, small arrays, dataclasses of tensors, numbers or strings.

    Example:

    ```python
    mask = computed_once(keras.ops.logical_not, keras.ops.convert_to_tensor([True, False]))
    ```
    """
    shared = _PURPOSE.get().shared
    if shared is None or keras.backend.backend() != "tensorflow":
        return function(*inputs)
    import tensorflow as tf

    # A tensor of a branch is unknown outside of it. The graph and the inputs are kept, so that their ids stay theirs.
    graph = tf.compat.v1.get_default_graph()
    key = (id(graph), function, *(_identity(x) for x in inputs))
    if key not in shared:
        shared[key] = (function(*inputs), graph, inputs)
    return shared[key][0]


def _identity(x):
    if dataclasses.is_dataclass(x):
        return tuple(_identity(getattr(x, field.name)) for field in dataclasses.fields(x))
    if isinstance(x, np.ndarray):
        return (x.shape, x.tobytes())
    return x if x is None or isinstance(x, (int, float, str)) else id(x)


def overwritten_tensors():
    """The tensors that were overwritten inside `overwriting_scope`, a dict by their `id`; None outside of one."""
    return _PURPOSE.get().overwritten


def is_compiled_graph():
    """Whether the traced graph is for a compiler: inside `compiled_scope`, or TensorFlow's `jit_compile=True`."""
    if is_compiled_scope() or keras.backend.backend() != "tensorflow":
        return is_compiled_scope()
    import tensorflow as tf

    return is_for_xla(tf.compat.v1.get_default_graph())


def is_interpreted_graph():
    """Whether a TensorFlow graph is traced that is not for a compiler: each of its operations takes time to start."""
    if keras.backend.backend() != "tensorflow" or is_compiled_scope():
        return False
    import tensorflow as tf

    return tf.inside_function()


def runs_op_by_op(x):
    """Whether `x` is in a TensorFlow graph that takes batches of any size and runs one op after the other, uncompiled.

    There it is faster to work on a part of a tensor: to write in place, to use another kernel for small
    tensors, to drop rows from a batch.

    Example:

    ```python
    runs_op_by_op(keras.ops.zeros((2, 3)))  # False: the batch size is known
    ```
    """
    if keras.backend.backend() != "tensorflow" or isinstance(x, keras.KerasTensor) or is_compiled_scope():
        return False
    return bool(x.shape) and x.shape[0] is None


def is_tensorflow_on_cpu():
    """Whether operations are TensorFlow's, and there is no GPU for them."""
    if keras.backend.backend() != "tensorflow":
        return False
    import tensorflow as tf

    return not tf.config.list_physical_devices("GPU")


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
    if not isinstance(condition, bool):
        return ops.cond(condition, then, otherwise)
    return then() if condition else otherwise()


def custom_gradient(function):
    """`keras.ops.custom_gradient` whose gradient is a function of the upstream gradient alone, on every backend.

    Where nobody takes a gradient (`inference_scope`), it is what the function gives alone: TensorFlow keeps each custom
    gradient that is traced, and with it the whole graph, for as long as the process lives.

    Args:
        function: Function of tensors that returns its output and the function that is its gradient.

    Example:

    ```python
    @custom_gradient
    def clipped(x):
        return keras.ops.clip(x, -1, 1), lambda upstream: upstream


    clipped(keras.ops.ones((2, 3)))
    ```
    """

    @ops.custom_gradient
    def with_gradient(*inputs):
        output, gradient = function(*inputs)

        # PyTorch passes the inputs too, and the upstream gradient by keyword.
        def gradient_of_backend(*args, upstream=None):
            return gradient(args[-1] if upstream is None else upstream)

        return output, gradient_of_backend

    def call(*inputs):
        if is_inference_scope():
            output, _ = function(*inputs)
            return output
        return with_gradient(*inputs)

    return call


def axis_size(x, axis):
    """The size of one axis of `x`: an integer if it is known before the run, else an int32 scalar.

    `keras.ops.shape` adds operations for every unknown size of `x` to a TensorFlow graph, and so to each step of a loop.

    Example:

    ```python
    axis_size(keras.KerasTensor((None, 5, 12)), -1)  # 12
    ```
    """
    size = x.shape[axis]
    if size is not None or keras.backend.backend() != "tensorflow" or isinstance(x, keras.KerasTensor):
        return size
    import tensorflow as tf

    return tf.shape(x)[axis]


def shape_to_keep(x):
    """The shape of `x` for `reshape`, with -1 for a size that is unknown before the run.

    `keras.ops.shape` adds operations to every step of a graph; a single unknown size can be -1 instead. If several sizes
    are unknown, the result is `keras.ops.shape(x)`.

    Example:

    ```python
    shape_to_keep(keras.KerasTensor((None, 5, 12)))  # (-1, 5, 12)
    ```
    """
    sizes = tuple(x.shape)
    if sizes.count(None) > 1:
        return ops.shape(x)
    return tuple(-1 if size is None else size for size in sizes)


def rows_at(x, indices):
    """The rows of `x` at indices of its first axis, none of which is negative.

    `keras.ops.take` also takes negative indices, by about ten operations of a TensorFlow graph.

    Args:
        x: Tensor (R, ...).
        indices: Integers, each from 0 to R - 1.

    Returns:
        Tensor of the shape of `indices` and then that of a row.

    Example:

    ```python
    last, first = rows_at(keras.ops.arange(5), keras.ops.convert_to_tensor([4, 0]))
    ```
    """
    if keras.backend.backend() == "tensorflow" and not isinstance(x, keras.KerasTensor):
        import tensorflow as tf

        return tf.gather(x, indices)
    return ops.take(x, indices, axis=0)


def split_by_sizes(x, sizes, axis):
    """A list of the parts of `x` that have these sizes along an axis.

    `keras.ops.split` takes where the parts end, and computes their sizes by operations of a TensorFlow graph.

    Args:
        x: Tensor.
        sizes: Integers, whose sum is the size of the axis.
        axis: Integer.

    Returns:
        List of tensors, with the shape of `x` but for the axis.

    Example:

    ```python
    two, three = split_by_sizes(keras.ops.arange(5), [2, 3], axis=0)
    ```
    """
    if len(sizes) == 1:
        return [x]
    if keras.backend.backend() == "tensorflow" and not isinstance(x, keras.KerasTensor):
        import tensorflow as tf

        return tf.split(x, sizes, axis)
    return ops.split(x, np.cumsum(sizes)[:-1].tolist(), axis)
