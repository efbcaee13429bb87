"""Variables of a checkpoint's model take no memory until values are assigned, and values are assigned without copies."""

import contextlib
import functools
import math

import numpy as np
import tensorflow as tf

_PART_BYTES = 2**21
_ALIGNMENT = 64  # TensorFlow copies memory that is aligned otherwise


@contextlib.contextmanager
def unwritten_variables():
    """Variables made in the block have a size, but neither values nor memory of their own until something is assigned.

    Initialisers would write a whole model of random numbers, of which none is kept. Variables that hold no floats, the
    states of random generators for instance, are initialised as ever.

    Example:

    ```python
    with unwritten_variables():
        layer = keras.layers.Dense(4)
        layer.build((None, 3))
    layer.set_weights([np.ones((3, 4)), np.zeros(4)])
    ```
    """

    def create(next_creator, **options):
        initial_value = options["initial_value"]
        if callable(initial_value):
            with tf.Graph().as_default():  # here the initialiser computes nothing, but shows its shape
                described = initial_value()
            if described.dtype.is_floating:
                # The operating system gives such memory when it is first written to; an assignment replaces it.
                options["initial_value"] = functools.partial(
                    tf.raw_ops.Empty, shape=described.shape.as_list(), dtype=described.dtype
                )
        return next_creator(**options)

    with tf.variable_creator_scope(create):
        yield


def assign_in_parts(variable, array):
    """Assigns an array without a copy of it: rows are cast and written one part after another.

    TensorFlow makes two copies of an array that becomes a tensor. A variable that is assigned slice by slice is copied
    whenever it is read, ever after: so the parts become one array, whose memory the variable takes over.

    Args:
        variable: Keras variable of floats.
        array: Floats of its shape, and of any dtype; or what gives them by slices, `Folder.rows`.

    Raises:
        FloatingPointError: if there is a value that is NaN or infinite in the variable's dtype; the message says so.

    Example:

    ```python
    variable = keras.Variable(np.zeros((3, 5)))
    assign_in_parts(variable, np.ones((3, 5), "float16"))
    ```
    """
    dtype = np.dtype(variable.dtype)
    row_bytes = max(1, math.prod(array.shape[1:])) * dtype.itemsize
    num_rows = max(1, _PART_BYTES // row_bytes)
    if len(array) <= num_rows:
        variable.assign(_cast(array[:], dtype))
        return
    whole = _aligned_array(array.shape, dtype)
    for first in range(0, len(array), num_rows):
        whole[first : first + num_rows] = _cast(array[first : first + num_rows], dtype)
    variable.assign(_as_tensor(whole))


def _aligned_array(shape, dtype):
    """An array without values, at an address at which a tensor may begin."""
    num_bytes = math.prod(shape) * dtype.itemsize
    memory = np.empty(num_bytes + _ALIGNMENT, np.uint8)
    first = -memory.ctypes.data % _ALIGNMENT
    return memory[first : first + num_bytes].view(dtype).reshape(shape)


def _as_tensor(array):
    """A tensor in the memory of an aligned array."""
    if array.dtype.isbuiltin == 1:
        return tf.experimental.dlpack.from_dlpack(array.__dlpack__())
    bits = array.view(f"uint{8 * array.dtype.itemsize}")  # DLPack does not know NumPy's bfloat16
    return tf.bitcast(tf.experimental.dlpack.from_dlpack(bits.__dlpack__()), array.dtype)


def _cast(array, dtype):
    """The array in a dtype, if all values are finite then."""
    with np.errstate(over="ignore"):  # an infinite value is refused
        array = np.ascontiguousarray(array, dtype)
    if not np.isfinite(array).all():
        raise FloatingPointError(f"NaN or infinite in {dtype}")
    return array
