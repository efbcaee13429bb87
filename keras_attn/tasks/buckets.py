"""Few shapes for compilers that compile each shape: batch sizes and lengths are rounded up."""

import keras
import numpy as np
import tensorflow as tf

from keras_attn.ops import compiled_scope
from keras_attn.tasks.token_ids import NO_TOKEN


def compiled_with_xla(function):
    """Compiles a function of tensors with XLA, separately for each input shape."""

    def traced(*inputs):
        with compiled_scope():
            return function(*inputs)

    traced.__name__ = getattr(function, "__name__", "compiled")  # XLA uses this name in its output
    return tf.function(traced, jit_compile=True, autograph=False)


def compiled_with_jax(model, function):
    """Compiles a function of arrays with JAX, separately for each input shape, on this process' devices.

    The model's weights are inputs, with their values at the time of the call. If they are spread over the
    devices of several processes, each process has all of them and uses its own copy, so the others need not
    take part.
    """
    import jax

    variables = model.variables

    @jax.jit
    def compiled(values, *inputs):
        with keras.StatelessScope(state_mapping=list(zip(variables, values))):
            return function(*inputs)

    def call(*inputs):
        values = [variable.value for variable in variables]
        if not all(value.is_fully_addressable for value in values):
            values = [np.asarray(value) for value in values]
        return compiled(values, *keras.tree.map_structure(np.asarray, inputs))

    return call


def powers_of_two(first, last):
    """`first`, its doubles below `last`, and `last`."""
    sizes = []
    while first < last:
        sizes.append(first)
        first *= 2
    return [*sizes, last]


def bucket_of(size, sizes):
    """The first of the increasing `sizes` that is at least `size`, or the last; an int32 tensor."""
    fits = tf.searchsorted(tf.constant(sizes, tf.int32), [size])[0]
    return tf.gather(tf.constant(sizes, tf.int32), tf.minimum(fits, len(sizes) - 1))


def in_buckets(token_ids, batch_sizes, lengths, end_token_id):
    """Splits a batch of ids into chunks of few different shapes.

    Args:
        token_ids: int32 (B, S), S at most the last of `lengths`, filled with `NO_TOKEN`.
        batch_sizes, lengths: Lists of increasing integers.
        end_token_id: Integer. An empty batch becomes rows of it.

    Returns:
        int32 (chunks, a batch size, a length), at least one chunk. Rows past B repeat the last one, because
        rows of pads might be decoded for longer than any real row.
    """
    rows, length = tf.unstack(tf.shape(token_ids))
    more = bucket_of(length, lengths) - length
    token_ids = tf.pad(token_ids, [[0, 0], [0, more]], constant_values=NO_TOKEN)
    ends = tf.one_hot([0], tf.shape(token_ids)[1], end_token_id, NO_TOKEN, dtype=tf.int32)
    token_ids = tf.concat([token_ids, ends], axis=0)
    batch_size = bucket_of(rows, batch_sizes)
    chunks = tf.maximum((rows + batch_size - 1) // batch_size, 1)
    source_rows = tf.minimum(tf.range(chunks * batch_size), tf.maximum(rows - 1, 0))
    return tf.reshape(tf.gather(token_ids, source_rows), [chunks, batch_size, -1])
