"""The one decoding loop of all searches. It uses a search and its step function, never a model."""

import keras
from keras import ops

from keras_attn.ops import extend_cache, loop_over_steps, overwriting_scope, rows_at, runs_op_by_op, unshared

# The cache starts with room for this many steps and doubles when it is full, so that a short answer costs the
# same under a long limit as under a short one. Shapes stay static, as XLA needs them.
_FIRST_SEGMENT = 16
# A batch that is compiled for each of its sizes shrinks to these parts of its rows, and not to fewer rows than this. Each
# size is a compilation, and each change takes as long as a step of a small model; the first half brings most.
_COMPILED_PARTS = (1, 2, 8, 32, 128, 512, 2048)
_FEWEST_COMPILED_ROWS = 8


def decode(search):
    """Runs the steps of a search until every row is done, or `max_length` steps.

    Where the batch size is known (eagerly, with XLA, on other backends) this function runs the loop. A TensorFlow graph that
    takes batches of any size, which an export without XLA is, runs `_decode_live_rows`: it drops finished rows as soon as they
    are half of the batch, so that the time depends on the total length of the answers, not on the longest one.

    Args:
        search: `Search`. Its `is_done(state)` is boolean (B,), or a scalar if no row can leave the batch; rows that are done
            do not change.

    Returns:
        The last state and the number of steps that were run, an int32 scalar.
    """
    state, cache, row_values = search.begin()
    if row_values is not None and _takes_any_batch_size(state):
        return _decode_live_rows(search, state, cache, row_values)

    def is_running(last):
        return lambda index, state, cache: ops.logical_and(
            index < last, ops.logical_not(ops.all(search.is_done(state)))
        )

    def step(index, state, cache):
        return index + 1, *search.for_rows(row_values).next_state(index, state, cache)

    index = ops.zeros((), dtype="int32")
    for length in cache_lengths(search.max_length):
        if length > _FIRST_SEGMENT:
            cache = _extend_cache(search, cache, room_for(search, length, state))
        last = length if search.limit is None else ops.minimum(length, search.limit)
        index, state, cache = ops.while_loop(is_running(last), step, (index, state, cache))
    return state, index


def cache_lengths(max_length):
    """The numbers of steps that the cache has room for as it grows: a list that ends with `max_length`.

    Example:

    ```python
    cache_lengths(100)  # [16, 32, 64, 100]
    ```
    """
    lengths = [_FIRST_SEGMENT]
    while lengths[-1] < max_length:
        lengths.append(2 * lengths[-1])
    lengths[-1] = max_length
    return lengths


def room_for(search, length, state):
    """The number of steps that a cache has room for, of one of `cache_lengths`: no more than a limit allows.

    A compiler compiles each size, so it has few of them.
    """
    if search.limit is None or search.compiler is not None or not _takes_any_batch_size(state):
        return length
    return ops.minimum(length, search.limit)


def extend_caches(caches, length):
    """A structure of key/value cache pairs, each with room for `length` slots.

    Example:

    ```python
    caches = (keras_attn.ops.empty_cache(batch_size=2, num_heads=4, length=32, key_dim=16),)
    caches = extend_caches(caches, length=64)
    ```
    """
    if isinstance(caches, (tuple, list)) and not keras.ops.is_tensor(caches[0]):
        return tuple(extend_caches(part, length) for part in caches)
    return extend_cache(caches, length)


def _extend_cache(search, cache, num_steps):
    return extend_caches(cache, search.first_slot + num_steps * search.num_hypotheses)


def _takes_any_batch_size(state):
    return runs_op_by_op(keras.tree.flatten(state)[0])


def _decode_live_rows(search, state, cache, row_values):
    """Finished rows leave the batch, and the cache grows; the last state has all rows, in their first order.

    The loop runs in phases. A phase first drops the finished rows if that makes the batch much smaller, and gives the
    cache room for more steps if it is full. Then it runs steps until enough of the remaining rows are done, or the
    cache is full again. One graph serves all sizes of the batch and of the cache.
    """
    lengths = cache_lengths(search.max_length)

    def count_live(state):
        return ops.sum(ops.cast(ops.logical_not(search.is_done(state)), "int32"))

    def run_steps(index, last, fewest, state, cache, row_values):
        """Steps up to `last`, or until `fewest` rows are live."""

        def step(index, state, cache):
            return index + 1, *search.for_rows(row_values).next_state(index, state, cache)

        def is_running(index, state, cache):
            return ops.logical_and(index < last, count_live(state) > fewest)

        with overwriting_scope():
            loop_vars = (index, state, unshared(cache))
            # A step multiplies a row of each hypothesis; that loop is faster for one.
            if search.compiler is None and search.num_hypotheses == 1:
                return loop_over_steps(is_running, step, loop_vars, _batch_size(state))
            return ops.while_loop(is_running, step, loop_vars)

    if search.compiler is not None:
        run_steps = search.compiler(run_steps)

    def make_room(cache, index):
        """The cache with room for the step `index`, and the number of steps before it needs more."""
        room = ops.convert_to_tensor(lengths, "int32")
        room = ops.min(ops.where(room > index, room, lengths[-1]))
        last = room if search.limit is None else ops.minimum(room, search.limit)
        if search.compiler is None:
            room = last
        return _extend_cache(search, cache, room), last

    def phase(index, all_rows, row_numbers, state, cache, row_values):
        num_rows = ops.shape(row_numbers)[0]
        size, fewest = _sizes(_batch_size(all_rows), num_rows, count_live(state), search.compiler)
        row_numbers, state, cache, row_values = ops.cond(
            size < num_rows,
            lambda: _take((row_numbers, state, cache, row_values), _live_first(search.is_done(state))[:size]),
            lambda: (row_numbers, state, cache, row_values),
        )
        cache, last = make_room(cache, index)
        index, state, cache = run_steps(index, last, fewest, state, cache, row_values)
        indices = ops.expand_dims(row_numbers, -1)
        all_rows = keras.tree.map_structure(
            lambda x, rows: ops.scatter_update(x, indices, rows), all_rows, state
        )
        return index, all_rows, row_numbers, state, cache, row_values

    # The removed rows keep their state here.
    all_rows = state
    # The numbers of the rows in the batch.
    row_numbers = ops.arange(_batch_size(state), dtype="int32")
    # A loop cannot change a size that is known before it starts. Gathered rows make the batch size unknown; a 0 that
    # tracing does not know makes the number of slots unknown.
    index = ops.sum(row_numbers[:0])
    state, cache, row_values = _take((state, cache, row_values), row_numbers)
    cache, _ = make_room(cache, index)
    last = lengths[-1] if search.limit is None else search.limit
    index, all_rows, *_ = ops.while_loop(
        lambda index, all_rows, row_numbers, state, *_: ops.logical_and(index < last, count_live(state) > 0),
        phase,
        (index, all_rows, row_numbers, state, cache, row_values),
    )
    return all_rows, index


def _batch_size(state):
    return ops.shape(keras.tree.flatten(state)[0])[0]


def _sizes(num_all, num_rows, num_live, compiler):
    """The size of the batch in a phase, and the number of live rows at which the phase ends.

    Args:
        num_all: The rows that the batch began with.
        num_rows: The rows that it has.
        num_live: Those that are not done.
        compiler: As in `SearchInputs`.
    """
    if compiler is None:
        size = ops.where(num_live <= num_rows // 2, num_live, num_rows)
        return size, size // 2
    sizes = num_all // ops.convert_to_tensor(_COMPILED_PARTS)
    sizes = ops.where(sizes >= _FEWEST_COMPILED_ROWS, sizes, num_all)
    size = ops.min(ops.where(sizes >= num_live, sizes, num_rows))
    return size, ops.max(ops.where(sizes < size, sizes, 0))


def _live_first(done):
    """Row numbers, the finished rows last."""
    num_rows = ops.shape(done)[0]
    return ops.argsort(ops.arange(num_rows, dtype="int32") + num_rows * ops.cast(done, "int32"))


def _take(structure, rows):
    return keras.tree.map_structure(lambda x: rows_at(x, rows), structure)
