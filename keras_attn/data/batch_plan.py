"""Batch plans: which rows form a batch, as index arrays, from their lengths and a random generator."""

import itertools

import numpy as np

from keras_attn.checks import check_positive

_OPEN_ROWS = 64


def batch_by_tokens(lengths, max_tokens, bucket_boundaries=None, generator=None):
    """Groups rows of similar length, with as many rows per batch as the token budget allows.

    No row is lost or duplicated. `tf.data.Dataset.bucket_by_sequence_length` groups a stream of elements;
    here all lengths are known, so the whole order is an array that a seed reproduces, and a batch ends where
    the budget is used up.

    Args:
        lengths: Integers (N,) or (N, sides): the number of tokens of each row, on each of its sides.
        max_tokens: Largest number of positions, pads included, of any side of a batch. A longer row forms a
            batch alone.
        bucket_boundaries: Lengths to pad to, ascending: a batch holds rows of one bucket. None: rows are
            sorted by length, and a batch is padded to its longest row.
        generator: `numpy.random.Generator` for the order of rows of equal length, and of the batches. None:
            rows keep their order, and batches go from short to long.

    Returns:
        A list of integer arrays, the rows of each batch.

    Raises:
        ValueError: If `max_tokens` is not positive, if the boundaries are not positive and ascending, or if a
            row is longer than the last of them.

    Example:

    ```python
    from keras_attn.data import batch_by_tokens

    batches = batch_by_tokens([2, 1, 5], max_tokens=8, bucket_boundaries=(4, 8))
    assert [batch.tolist() for batch in batches] == [[0, 1], [2]]
    ```
    """
    check_positive("max_tokens", max_tokens)
    lengths = _by_side(lengths)
    longest = lengths.max(axis=1, initial=0)
    rows = np.arange(len(longest)) if generator is None else generator.permutation(len(longest))
    if bucket_boundaries is None:
        # Rows with equal longer sides are sorted by their shorter sides too, which needs fewer pads.
        shortest = lengths.min(axis=1, initial=0)
        rows = rows[np.lexsort((shortest[rows], longest[rows]))]
    else:
        boundaries = checked_boundaries(bucket_boundaries)
        longest = boundaries[find_bucket(longest, boundaries)]
        rows = rows[np.argsort(longest[rows], kind="stable")]
    cuts = _cuts(longest[rows], max_tokens, whole_buckets=bucket_boundaries is not None)
    batches = [rows[first:last] for first, last in itertools.pairwise(cuts)]
    if generator is None:
        return batches
    return [batches[i] for i in generator.permutation(len(batches))]


def _cuts(ascending, max_tokens, whole_buckets):
    """The start of each batch and the end of the last, for rows of ascending length."""
    cuts = [0]
    first = 0
    while first < len(ascending):
        window = ascending[first : first + max(1, max_tokens // max(1, ascending[first]))]
        num_positions = window * np.arange(1, len(window) + 1)
        fits = num_positions <= max_tokens
        if whole_buckets:
            fits = window == window[0]
        count = len(window) if fits.all() else int(np.argmin(fits))
        first += max(1, count)
        cuts.append(first)
    return cuts


def pack_by_tokens(lengths, row_length, generator=None):
    """Puts several sequences into each row of a fixed length, so that few positions are pads.

    Best fit with a limited number of open rows: each sequence goes to the row where it leaves the least
    space. If it fits in no open row, the fullest row is closed.

    Args:
        lengths: Integers (N, sides): the number of tokens of each sequence on each side.
        row_length: Integer, the positions of a row on each side.
        generator: `numpy.random.Generator` for the order of the sequences. None: the given order.

    Returns:
        A list of integer arrays, the sequences of each row.

    Raises:
        ValueError: if a sequence is longer than `row_length`.

    Example:

    ```python
    from keras_attn.data import pack_by_tokens

    rows = pack_by_tokens([[3, 2], [5, 4], [2, 2]], row_length=5)
    assert sorted(row.tolist() for row in rows) == [[0, 2], [1]]
    ```
    """
    lengths = _by_side(lengths)
    if lengths.max(initial=0) > row_length:
        raise ValueError(
            "`row_length` must be at least the length of the longest sequence. "
            f"Received: row_length={row_length}, longest={lengths.max()}."
        )
    order = np.arange(len(lengths)) if generator is None else generator.permutation(len(lengths))
    room = np.zeros((_OPEN_ROWS, lengths.shape[1]), np.int64)
    open_rows = [[] for _ in range(_OPEN_ROWS)]
    closed_rows = []
    for sequence in order.tolist():
        left = room - lengths[sequence]
        fits = (left >= 0).all(axis=1)
        total = left.sum(axis=1)
        if fits.any():
            row = int(np.argmin(np.where(fits, total, np.iinfo(np.int64).max)))
        else:
            row = int(np.argmin(total))
            closed_rows.append(open_rows[row])
            open_rows[row] = []
            left[row] = row_length - lengths[sequence]
        open_rows[row].append(sequence)
        room[row] = left[row]
    return [np.array(row) for row in closed_rows + open_rows if row]


def _by_side(lengths):
    lengths = np.asarray(lengths)
    return lengths if lengths.ndim == 2 else lengths[:, np.newaxis]


def checked_boundaries(boundaries):
    """The boundaries as an array, or a ValueError."""
    boundaries = list(boundaries)
    ascending = all(low < high for low, high in itertools.pairwise(boundaries))
    if not boundaries or boundaries[0] < 1 or not ascending:
        raise ValueError(
            "`bucket_boundaries` must be lengths in tokens, positive and ascending, at least one. "
            f"Received: bucket_boundaries={tuple(boundaries)}."
        )
    return np.array(boundaries)


def find_bucket(longest, boundaries):
    """The bucket indices of rows with these lengths, an integer array."""
    if longest.max(initial=0) > boundaries[-1]:
        raise ValueError(
            "No row may be longer than the last of `bucket_boundaries`. Received: a row of "
            f"{longest.max()} tokens, bucket_boundaries={tuple(boundaries.tolist())}."
        )
    return np.searchsorted(boundaries, longest)
