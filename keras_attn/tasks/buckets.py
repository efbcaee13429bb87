"""Few shapes for compilers that compile each shape: batch sizes and lengths are rounded up."""

import bisect
import collections.abc
import contextlib
import numbers

import keras
import numpy as np
import tensorflow as tf

from keras_attn.compat.keras import all_layers
from keras_attn.ops import compiled_scope
from keras_attn.tasks.token_ids import NO_TOKEN

# The batch sizes that are compiled if no others are given.
BATCH_SIZES = (1, 4, 16, 64)
# The most numbers of a variable that becomes a constant. Each shape that is compiled has a copy of its own.
_FEW_NUMBERS = 2**14


def compiled_with_xla(function, frozen=None):
    """Compiles a function of tensors with XLA, separately for each input shape.

    Args:
        function: Function of tensors.
        frozen: Model of the function whose variables do not change any more, as in an export. Its small ones become
            constants, because each variable that is given to a call takes time: a model has hundreds.
    """

    def traced(*inputs):
        with compiled_scope(), contextlib.nullcontext() if frozen is None else _small_constants(frozen):
            return function(*inputs)

    traced.__name__ = getattr(function, "__name__", "compiled")  # XLA uses this name in its output
    return tf.function(traced, jit_compile=True, autograph=False)


def _small_constants(model):
    """A scope in which the model's small weights are constants of the graph that is being traced.

    TensorFlow changes the order of products to multiply constants first, which rounds in another way than in Python, and
    in int8 an answer can depend on it. Our formulas multiply them first themselves; Keras' RMSNormalization does not.
    """
    layers = all_layers(model)
    kept = {id(layer.scale) for layer in layers if isinstance(layer, keras.layers.RMSNormalization)}
    small = [
        variable
        for variable in model.weights
        if np.prod(variable.shape) <= _FEW_NUMBERS and id(variable) not in kept
    ]
    with tf.init_scope():  # where variables have values
        values = [variable.value.numpy() for variable in small]
    return keras.StatelessScope(state_mapping=list(zip(small, map(tf.constant, values))))


class Buckets:
    """The few shapes for which a function of texts' tokens is compiled with XLA: each batch size with each length.

    Args:
        batch_sizes: Increasing integers; larger batches are split into batches of the last size.
        lengths: Increasing integers, the numbers of tokens; the last is `longest`. Defaults to the powers of two from 16.
        longest: Integer, the most tokens of a text.
        meaning: String, what `longest` is, for the message: "model's max_sequence_length" for example.
        frozen: As in `compiled_with_xla`.

    Raises:
        ValueError: unless both rise and the last length is `longest`.
    """

    def __init__(self, batch_sizes, lengths, longest, meaning, frozen=None):
        self.frozen = frozen
        self.batch_sizes = _rising("batch_sizes", batch_sizes)
        self.lengths = powers_of_two(16, longest) if lengths is None else _rising("lengths", lengths)
        if self.lengths[-1] != longest:
            raise ValueError(f"`lengths` must end with the {meaning}={longest}. Received: {self.lengths}.")

    def __call__(self, function, inputs, shape):
        """The answers of a function to a batch of any size, compiled for these shapes alone.

        Args:
            function: Function of `inputs` to floats (B, *shape). No row changes the answer of another, and no pad that
                of a token.
            inputs: Dict of tensors (B, T), T at most `longest`. Rows and columns past them become 0 or False.
            shape: The sizes of the other axes of an answer, None for T.

        Returns:
            float32 (B, *shape).
        """
        rows, length = tf.unstack(tf.shape(next(iter(inputs.values()))))
        batch_size, padded = bucket_of(rows, self.batch_sizes), bucket_of(length, self.lengths)
        chunks = tf.maximum((rows + batch_size - 1) // batch_size, 1)
        margins = [[0, chunks * batch_size - rows], [0, padded - length]]
        inputs = {
            name: tf.reshape(tf.pad(x, margins), [chunks, batch_size, padded]) for name, x in inputs.items()
        }
        compiled = compiled_with_xla(lambda inputs: tf.cast(function(inputs), tf.float32), self.frozen)
        answers = tf.map_fn(compiled, inputs, fn_output_signature=tf.TensorSpec([None, *shape], tf.float32))
        answers = tf.reshape(answers, [-1, *(padded if size is None else size for size in shape)])[:rows]
        return answers[:, :length] if shape[0] is None else answers

    def decoded(self, function, token_ids, end_token_id, max_length):
        """What a search finds for a batch of any size, compiled for these shapes alone.

        Args:
            function: Function of int32 (B, T) to int32 (B, L). No row changes the answer of another.
            token_ids, end_token_id: As in `in_buckets`.
            max_length: Integer L.

        Returns:
            int32 (B, L).
        """
        chunks = in_buckets(token_ids, self.batch_sizes, self.lengths, end_token_id)
        spec = tf.TensorSpec([None, max_length], tf.int32)
        found = tf.map_fn(compiled_with_xla(function, self.frozen), chunks, fn_output_signature=spec)
        return tf.reshape(found, [-1, max_length])[: tf.shape(token_ids)[0]]


def powers_of_two(first, last):
    """`first`, its doubles below `last`, and `last`."""
    sizes = []
    while first < last:
        sizes.append(first)
        first *= 2
    return [*sizes, last]


def few_lengths(longest):
    """Powers of two and, from 12 on, one and a half times them: rising, up to the first that is at least `longest`."""
    powers = [2**exponent for exponent in range(longest.bit_length() + 1)]
    lengths = sorted({*powers, *(power * 3 // 2 for power in powers if power >= 8)})
    return lengths[: bisect.bisect_left(lengths, longest) + 1]


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


def _rising(name, sizes):
    given = list(sizes) if isinstance(sizes, collections.abc.Iterable) else []
    are_integers = all(isinstance(size, numbers.Integral) and not isinstance(size, bool) for size in given)
    if not given or not are_integers or given[0] < 1 or given != sorted(set(given)):
        raise ValueError(f"`{name}` must be rising positive integers. Received: {name}={sizes!r}.")
    return list(map(int, given))
