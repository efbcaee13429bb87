"""Batches of token ids: padding to few shapes for compilers, and calls of many texts batch by batch."""

import bisect
import collections.abc
import concurrent.futures
import contextlib
import contextvars
import numbers
import os
import sys
import warnings

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from keras_attn.checks import check_positive
from keras_attn.compat.keras import all_layers
from keras_attn.ops import compiled_scope

# Fills the rows of a batch in this room. No vocabulary has this id. A pad may be a token: some checkpoints pad with END, or with
# the id of a real word.
NO_TOKEN = -1


def for_model(token_ids):
    """Ids (B, S) filled with `NO_TOKEN` -> what a model takes: ids, and the mask that is True at tokens."""
    token_ids = ops.convert_to_tensor(token_ids)
    return ops.maximum(token_ids, 0), token_ids >= 0


def filled(token_ids):
    """Ragged ids -> dense ids (B, S), filled with `NO_TOKEN`, of at least one column."""
    dense = token_ids.to_tensor(NO_TOKEN)
    # An empty batch, or one of empty texts, has no widest row, but needs a first column.
    missing = tf.maximum(1 - tf.shape(dense)[1], 0)
    return tf.pad(dense, [[0, 0], [0, missing]], constant_values=NO_TOKEN)


def to_texts(tokenizer, token_ids):
    """Ids (B, n, L) -> strings (B, n)."""
    flat = tf.reshape(token_ids, [-1, tf.shape(token_ids)[-1]])
    return tf.reshape(tokenizer.detokenize(flat), tf.shape(token_ids)[:2])


def continuations(tokenizer, prompts, token_ids):
    """Ids of prompts (B, P), filled, and ids (B, n, L) after them -> the texts that follow, strings (B, n).

    They are what is added to the texts of the prompts: of tokens alone, a tokenizer may drop the space before a word.
    """
    num_answers = tf.shape(token_ids)[1]
    # A tokenizer reads no further than END, which may be the token before a text, or be in a prompt.
    prompts = tf.where(prompts == tokenizer.end_token_id, NO_TOKEN, prompts)
    repeated = tf.repeat(prompts[:, tf.newaxis], num_answers, axis=1)
    whole = to_texts(tokenizer, tf.concat([repeated, token_ids], axis=2))
    before = tf.strings.length(tokenizer.detokenize(prompts))
    before = tf.repeat(before[:, tf.newaxis], num_answers, axis=1)
    lengths = tf.strings.length(whole)
    return tf.strings.substr(whole, tf.minimum(before, lengths), lengths)


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
        constants = contextlib.nullcontext() if frozen is None else _small_constants(frozen)
        with compiled_scope(), constants:
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
        batch_size = bucket_of(rows, self.batch_sizes)
        padded = bucket_of(length, self.lengths)
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


def run_in_batches(function, sequences, batch_size, num_workers=None):
    """The results of a function of batches, one for each sequence.

    Sequences of similar length are batched together, the longest first, so there is little padding and the
    last batches are short.

    Args:
        function: Function of a list of integers, the indices of a batch's sequences, that returns as many
            results. Threads call it.
        sequences: List of lists.
        batch_size: Integer.
        num_workers: Integer, the number of batches processed at the same time; by default one for each
            processor, or 1 with a GPU.

    Returns:
        The list of results, in the order of `sequences`.

    Raises:
        ValueError: if `batch_size` or `num_workers` is not positive.
    """
    batch_size = check_positive("batch_size", batch_size)
    num_workers = check_positive("num_workers", num_workers, optional=True)
    if len(sequences) == 1:
        return list(function([0]))
    num_workers = num_workers or _num_workers()
    order = sorted(range(len(sequences)), key=lambda number: -len(sequences[number]))
    batches = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
    results = [None] * len(sequences)
    for batch, batch_results in zip(batches, _in_threads(function, batches, num_workers)):
        for number, result in zip(batch, batch_results):
            results[number] = result
    return results


def padded(sequences, to_buckets=False):
    """Lists of ids -> int32 tensor (B, S) filled with `NO_TOKEN`.

    `to_buckets` rounds B up to a power of two, and S to one of `few_lengths`: compilers compile each shape.
    """
    rows = len(sequences)
    length = max(map(len, sequences))
    if to_buckets:
        rows = 1 << (rows - 1).bit_length()
        length = few_lengths(length)[-1]
    token_ids = np.full((rows, length), NO_TOKEN, "int32")
    for row in range(rows):
        # Rows that only fill the bucket repeat the last one: a row of pads would be decoded to `max_length`.
        sequence = sequences[min(row, len(sequences) - 1)]
        token_ids[row, : len(sequence)] = sequence
    return tf.constant(token_ids)


_noted_cuts = contextvars.ContextVar("noted_cuts", default=None)


@contextlib.contextmanager
def untold_cuts():
    """Within the block, no warning says that texts are cut: for texts that the library itself makes up, to check an export.

    Example:

    ```python
    with untold_cuts():
        answers = task(texts)
    ```
    """
    with noted_cuts():
        yield


@contextlib.contextmanager
def noted_cuts():
    """Within the block, no warning says that texts are cut; a list of how many, by the call, tells the caller instead.

    Example:

    ```python
    with noted_cuts() as cuts:
        answers = task(texts)
    num_cut = sum(cuts)
    ```
    """
    cuts = []
    token = _noted_cuts.set(cuts)
    try:
        yield cuts
    finally:
        _noted_cuts.reset(token)


def warn_of_cuts(num_cut, num_texts, limit):
    """Warns, at the line that called the library, if texts of a call are too long to be read whole.

    Args:
        num_cut, num_texts: Integers, how many texts are cut, of how many.
        limit: String, what is read of them.
    """
    if not num_cut:
        return
    cuts = _noted_cuts.get()
    if cuts is not None:
        cuts.append(num_cut)
        return
    frame = sys._getframe(1)
    level = 2  # of the caller of the library, for `warnings`
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("keras_attn."):
        frame = frame.f_back
        level += 1
    verb = "is" if num_cut == 1 else "are"
    warnings.warn(f"{num_cut} of {num_texts} texts {verb} too long: {limit}.", stacklevel=level)


def _num_workers():
    return 1 if tf.config.list_physical_devices("GPU") else os.cpu_count() or 1


def _in_threads(function, batches, num_workers):
    if len(batches) < 2 or num_workers == 1:
        yield from map(function, batches)
        return
    pool = concurrent.futures.ThreadPoolExecutor(min(num_workers, len(batches)))
    try:
        yield from pool.map(function, batches)
    finally:  # an interrupt does not wait for batches that have not begun
        pool.shutdown(cancel_futures=True)
