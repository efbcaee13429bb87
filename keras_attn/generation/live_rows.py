"""The decoding loop over a batch from which finished rows are removed."""

import keras
from keras import ops

from keras_attn.ops import overwriting_scope, unshared

# A batch that is compiled for each of its sizes shrinks to these parts of its rows, and not to fewer rows than this. Each
# size is a compilation, and each change takes as long as a step of a small model; the first half brings most.
_COMPILED_PARTS = (1, 2, 8, 32, 128, 512, 2048)
_FEWEST_COMPILED_ROWS = 8


def decode_live_rows(advance, is_done, state, cache, context, lengths, extended, compiler=None, limit=None):
    """Runs `advance` until every row is done; finished rows leave the batch, and the cache grows.

    The loop runs in phases. A phase first drops the finished rows if that makes the batch much smaller, and gives the
    cache room for more steps if it is full. Then it runs steps until enough of the remaining rows are done, or the
    cache is full again. One graph serves all sizes of the batch and of the cache.

    Args:
        advance, is_done, state, cache, context, compiler, limit: As in `decode`.
        lengths: Rising integers, the numbers of steps that the cache has room for as it grows.
        extended: Function (cache, number of steps) -> the cache with room for that many steps.

    Returns:
        The last state of all rows, in their first order, and the number of steps that were run, an int32 scalar.
    """
    row_numbers = ops.arange(
        ops.shape(keras.tree.flatten(state)[0])[0], dtype="int32"
    )  # of the rows in the batch

    def num_live(state):
        return ops.sum(ops.cast(ops.logical_not(is_done(state)), "int32"))

    def steps(index, last, fewest, state, cache, context):
        with overwriting_scope():
            return ops.while_loop(
                lambda index, state, cache: ops.logical_and(index < last, num_live(state) > fewest),
                lambda index, state, cache: (index + 1, *advance(index, state, cache, context)),
                (index, state, unshared(cache)),
            )

    def with_room(cache, index):
        """The cache with room for the step `index`, and the number of steps before it needs more."""
        room = ops.convert_to_tensor(lengths, "int32")
        room = ops.min(ops.where(room > index, room, lengths[-1]))
        steps = room if limit is None else ops.minimum(room, limit)
        return extended(cache, room if compiler is not None else steps), steps

    last = lengths[-1] if limit is None else limit
    run = steps if compiler is None else compiler(steps)

    def phase(index, all_rows, row_numbers, state, cache, context):
        num_rows = ops.shape(keras.tree.flatten(all_rows)[0])[0], ops.shape(row_numbers)[0]
        size, fewest = _sizes(*num_rows, num_live(state), compiler)
        row_numbers, state, cache, context = ops.cond(
            size < ops.shape(row_numbers)[0],
            lambda: _taken((row_numbers, state, cache, context), _live_first(is_done(state))[:size]),
            lambda: (row_numbers, state, cache, context),
        )
        cache, room = with_room(cache, index)
        index, state, cache = run(index, room, fewest, state, cache, context)
        indices = ops.expand_dims(row_numbers, -1)
        all_rows = keras.tree.map_structure(
            lambda x, rows: ops.scatter_update(x, indices, rows), all_rows, state
        )
        return index, all_rows, row_numbers, state, cache, context

    # A loop cannot change a size that is known before it. Taken rows make the batch size unknown; a first index that
    # is no constant, the number of slots.
    all_rows, index = state, ops.sum(row_numbers[:0])
    state, cache, context = _taken((state, cache, context), row_numbers)
    cache, _ = with_room(cache, index)
    # The removed rows keep their state in `all_rows`.
    index, all_rows, *_ = ops.while_loop(
        lambda index, all_rows, row_numbers, state, cache, context: ops.logical_and(
            index < last, num_live(state) > 0
        ),
        phase,
        (index, all_rows, row_numbers, state, cache, context),
    )
    return all_rows, index


def _sizes(num_all, num_rows, num_live, compiler):
    """The size of the batch in a phase, and the number of live rows at which the phase ends.

    Args:
        num_all: The rows that the batch began with.
        num_rows: The rows that it has.
        num_live: Those that are not done.
        compiler: As in `decode`.
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


def _taken(structure, rows):
    return keras.tree.map_structure(lambda x: ops.take(x, rows, axis=0), structure)
