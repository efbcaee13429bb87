"""The largest of many values, and entries of rows by index."""

import functools
import math

import numpy as np
from keras import ops

from keras_attn.ops.graph_purpose import axis_size, runs_op_by_op, shape_to_keep
from keras_attn.ops.softmax import log_normalizer

# Rows up to this length are searched directly.
_MANY = 1024
# The columns of rows whose length is known only in the run.
_FEW = 64
# XLA finds the maximum of a column of more than 32 numbers with a kernel, of fewer with a slower loop.
_FEWEST_ROWS = 40


def top_k(x, k, excluded=()):
    """The k largest values of the last axis and their indices, largest first.

    `keras.ops.top_k` and `keras.ops.argmax` search all values, which takes longer on CPUs than the matrix product that
    the values come from. Here the values are arranged in columns, and only the k columns with the largest maxima are
    searched: no other column can hold one of the k largest values. The order of equal values is not specified, but it
    is the same eagerly and compiled.

    Args:
        x: Floats (R, T, V) or (..., V) with V known before the run.
        k: Integer, at most V.
        excluded: A few integers, indices that are not found. If fewer than k are left, the last values are -inf.

    Returns:
        Values (..., k), in the dtype of `x`, and indices int32 (..., k).

    Example:

    ```python
    values, indices = top_k(keras.random.normal((2, 3, 8000)), k=4)
    ```
    """
    return _top_k(x, k, excluded)[:2]


def top_k_and_normalizer(x, k, excluded=()):
    """`top_k`, and `log_normalizer` of all values, those of `excluded` too: what a step of beam search needs.

    On CPUs each pass over so many values counts. The largest of the columns' maxima serves the normaliser.

    Args:
        x, k, excluded: As in `top_k`.

    Returns:
        Values (..., k), indices int32 (..., k), and the normaliser (..., 1).

    Example:

    ```python
    logits = keras.random.normal((2, 3, 8000))
    values, indices, normalizer = top_k_and_normalizer(logits, k=4, excluded=(0, 2))
    log_probs = values - normalizer
    ```
    """
    values, indices, largest = _top_k(x, k, excluded)
    return values, indices, log_normalizer(x, largest)


def _top_k(x, k, excluded):
    """The k largest values without those of some indices, their indices, and the largest of all values, or None."""
    size = x.shape[-1]
    excluded = sorted({index for index in excluded if index >= 0 and (size is None or index < size)})
    if 0 in x.shape:  # PyTorch has no maximum of an empty tensor
        shape = (*x.shape[:-1], k)
        return ops.zeros(shape, x.dtype), ops.zeros(shape, "int32"), None
    if size is not None and size <= max(_MANY, k * k):
        values, indices = _search(_without(x, np.arange(size, dtype="int32"), excluded), k)
        return values, indices, None
    lead = shape_to_keep(x)[:-1]
    num_columns = max(_FEW, k) if size is None else _num_columns(size, k)
    is_known = size is not None
    if not is_known:
        size = ops.shape(x)[-1]
    num_rows = -(-size // num_columns)
    if not is_known or size < num_rows * num_columns:
        missing = ((0, 0),) * len(lead) + ((0, num_rows * num_columns - size),)
        x = ops.pad(x, missing, constant_values=-float("inf"))
    x = ops.reshape(x, (-1, num_rows, num_columns))
    maxima = _maximum(x, axis=-2)
    _, columns = _search(_maxima_without(maxima, x, excluded), k)
    # Not the first value of that search: XLA would then sort all maxima.
    largest = _maximum(maxima, axis=-1, keepdims=True)
    first_of_row = ops.convert_to_tensor(_first_of_rows(num_rows, num_columns))
    candidate_indices = ops.reshape(first_of_row + ops.expand_dims(columns, 1), (-1, num_rows * k))
    candidates = entries_at(ops.reshape(x, (-1, num_rows * num_columns)), candidate_indices)
    values, chosen = _search(_without(candidates, candidate_indices, excluded), k)
    indices = chosen // k * num_columns + entries_at(columns, chosen % k)
    if lead.count(None) > 1:
        lead = ops.shape(x)[:-1]
    else:
        lead = tuple(-1 if known is None else known for known in lead)
    shape = (*lead, k)
    return ops.reshape(values, shape), ops.reshape(indices, shape), ops.reshape(largest, (*lead, 1))


def _maxima_without(maxima, x, excluded):
    """The maxima (R, c) of the columns of `x` (R, n, c) without the values at some indices of the flat rows.

    Only the columns between the first and the last that hold such an index are read again: no copy of all values is made.
    """
    if not excluded:
        return maxima
    num_rows = axis_size(x, 1)
    num_columns = x.shape[2]
    columns = [index % num_columns for index in excluded]
    first = min(columns)
    last = max(columns) + 1
    indices = _first_of_rows(num_rows, num_columns) + np.arange(first, last, dtype="int32")
    new_maxima = _maximum(_without(x[:, :, first:last], indices, excluded), axis=-2)
    return ops.concatenate([maxima[:, :first], new_maxima, maxima[:, last:]], axis=-1)


def _first_of_rows(num_rows, num_columns):
    """The index of the first value of each row, (rows, 1): NumPy's if it is known before the run."""
    if isinstance(num_rows, int):
        return np.arange(num_rows, dtype="int32")[:, None] * np.int32(num_columns)
    return ops.expand_dims(ops.arange(num_rows, dtype="int32") * num_columns, -1)


def _maximum(x, axis, *, keepdims=False):
    """The maximum over an axis. An empty batch has one too, for which PyTorch and JAX need `initial`."""
    if runs_op_by_op(x):
        return ops.max(x, axis=axis, keepdims=keepdims)
    return ops.max(x, axis=axis, keepdims=keepdims, initial=-float("inf"))


def _without(x, indices, excluded):
    """`x` with -inf where the index of a value is excluded."""
    if not excluded:
        return x
    if isinstance(indices, np.ndarray):
        limits = np.where(np.isin(indices, excluded), -np.inf, np.inf)
        return ops.minimum(x, ops.convert_to_tensor(limits, x.dtype))
    is_excluded = functools.reduce(ops.logical_or, [indices == index for index in excluded])
    return ops.minimum(x, ops.cast(ops.where(is_excluded, -float("inf"), float("inf")), x.dtype))


def entries_at(x, indices):
    """The entries of each row of `x` (R, n, ...) at its own `indices` (R, m): (R, m, ...).

    `keras.ops.take_along_axis` takes about thirty operations for this instead of a few, which matters in a
    decoding step.

    Example:

    ```python
    entries_at(keras.ops.convert_to_tensor([[1, 2], [3, 4]]), keras.ops.convert_to_tensor([[1], [0]]))  # [[2], [3]]
    ```
    """
    if runs_op_by_op(x):
        import tensorflow as tf

        return tf.gather(x, indices, batch_dims=1)
    width = axis_size(x, 1)
    count = axis_size(indices, 1)
    rest = ops.shape(x)[2:] if None in x.shape[2:] else tuple(x.shape[2:])
    first = ops.expand_dims(ops.arange(axis_size(x, 0), dtype="int32") * width, -1)
    flat = ops.reshape(indices + first, (-1,))
    return ops.reshape(ops.take(ops.reshape(x, (-1, *rest)), flat, axis=0), (-1, count, *rest))


def _num_columns(size, k):
    """About sqrt(k * size), so that there are as many columns as candidates, unless the columns are then short.

    It is a divisor of `size` if one is near.
    """
    wanted = min(math.isqrt(k * size), max(2 * k, size // _FEWEST_ROWS))
    return next((number for number in range(wanted, 3 * wanted) if size % number == 0), wanted)


def _search(x, k):
    """The k largest values, and their indices."""
    if k > 1:
        values, indices = ops.top_k(x, k)
        return values, ops.cast(indices, "int32")
    best = _maximum(x, axis=-1, keepdims=True)
    if runs_op_by_op(x):
        import tensorflow as tf

        return best, ops.expand_dims(tf.argmax(x >= best, axis=-1, output_type="int32"), -1)
    # The argmax of integers, not of `x`: for floats, Keras on TensorFlow first handles -0.0 with bit operations, which
    # neither ONNX nor LiteRT has.
    indices = ops.argmax(ops.cast(x >= best, "int32"), axis=-1, keepdims=True)
    return best, ops.cast(indices, "int32")
