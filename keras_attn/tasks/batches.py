"""Runs a function of batches on many sequences."""

import concurrent.futures
import contextlib
import contextvars
import os
import sys
import warnings

import numpy as np
import tensorflow as tf

from keras_attn.checks import check_positive
from keras_attn.tasks.buckets import few_lengths
from keras_attn.tasks.token_ids import NO_TOKEN


def of_batches(function, sequences, batch_size, num_workers=None):
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
    num_workers = _num_workers() if num_workers is None else num_workers
    batch_size = check_positive("batch_size", batch_size)
    num_workers = check_positive("num_workers", num_workers)
    order = sorted(range(len(sequences)), key=lambda number: -len(sequences[number]))
    batches = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
    results = [None] * len(sequences)
    for batch, of_batch in zip(batches, _in_threads(function, batches, num_workers)):
        for number, result in zip(batch, of_batch):
            results[number] = result
    return results


def padded(sequences, to_buckets=False):
    """Lists of ids -> int32 tensor (B, S) filled with `NO_TOKEN`.

    `to_buckets` rounds B up to a power of two, and S to one of `few_lengths`: compilers compile each shape.
    """
    rows, length = len(sequences), max(map(len, sequences))
    if to_buckets:
        rows, length = 1 << (rows - 1).bit_length(), few_lengths(length)[-1]
    token_ids = np.full((rows, length), NO_TOKEN, "int32")
    for row in range(rows):
        # Rows that only fill the bucket repeat the last one: a row of pads would be decoded to `max_length`.
        sequence = sequences[min(row, len(sequences) - 1)]
        token_ids[row, : len(sequence)] = sequence
    return tf.constant(token_ids)


_tells_cuts = contextvars.ContextVar("tells_cuts", default=True)


@contextlib.contextmanager
def untold_cuts():
    """In the block, texts are cut without a warning: those that the library itself asks about, to check an export.

    Example:

    ```python
    with untold_cuts():
        answers = task(texts)
    ```
    """
    token = _tells_cuts.set(False)
    try:
        yield
    finally:
        _tells_cuts.reset(token)


def warn_of_cuts(num_cut, num_texts, limit):
    """Warns, at the line that called the library, if texts of a call are too long to be read whole.

    Args:
        num_cut, num_texts: Integers, how many texts are cut, of how many.
        limit: String, what is read of them.
    """
    if not num_cut or not _tells_cuts.get():
        return
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("keras_attn."):
        frame, level = frame.f_back, level + 1
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
