"""Memory while a checkpoint is loaded: variables take none until the values from the files are in them."""

import contextlib

import tensorflow as tf


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
            with tf.Graph().as_default():  # where the initialiser says its shape and computes nothing
                described = initial_value()
            if described.dtype.is_floating:
                shape, dtype = described.shape.as_list(), described.dtype
                # The operating system gives such memory when it is first written to; an assignment replaces it.
                options["initial_value"] = lambda: tf.raw_ops.Empty(shape=shape, dtype=dtype)
        return next_creator(**options)

    with tf.variable_creator_scope(create):
        yield
