"""The decoding loop over a batch from which finished rows are removed."""

import keras
from keras import ops

# A batch that is compiled for each of its sizes keeps its finished rows once it has shrunk to this many.
_FEWEST_COMPILED_ROWS = 8


class LiveRows:
    """Runs steps over the rows that are not done, and keeps the state of those that were removed.

    The loop runs in phases. A phase first drops the finished rows if that makes the batch much smaller, then runs
    steps until enough of the remaining rows are done.

    Args:
        rows: A tensor (B, ...).
        state: The state of all rows before the first step.
        compiler: Function that compiles a function of tensors, or None, see `decode`.
    """

    def __init__(self, rows, state, compiler):
        self.all_rows = state  # the removed rows keep their state here
        self.row_numbers = ops.arange(ops.shape(rows)[0], dtype="int32")  # of the rows still in the batch
        self.compiler = compiler

    def with_open_batch(self, structure):
        """The same tensors with an unknown batch size, because a loop cannot change a known one."""
        return keras.tree.map_structure(
            lambda x: x if x.shape[0] is None else ops.take(x, self.row_numbers, axis=0), structure
        )

    def __call__(self, advance, is_done, index, last, state, cache, context):
        def num_live(state):
            return ops.sum(ops.cast(ops.logical_not(is_done(state)), "int32"))

        def steps(index, fewest, state, cache, context):
            return ops.while_loop(
                lambda index, state, cache: ops.logical_and(index < last, num_live(state) > fewest),
                lambda index, state, cache: (index + 1, *advance(index, state, cache, context)),
                (index, state, cache),
            )

        run = steps if self.compiler is None else self.compiler(steps)

        def phase(index, all_rows, row_numbers, state, cache, context):
            live = num_live(state)
            size, fewest = self._sizes(ops.shape(row_numbers)[0], live)
            row_numbers, state, cache, context = ops.cond(
                size < ops.shape(row_numbers)[0],
                lambda: _taken((row_numbers, state, cache, context), _live_first(is_done(state))[:size]),
                lambda: (row_numbers, state, cache, context),
            )
            index, state, cache = run(index, fewest, state, cache, context)
            indices = ops.expand_dims(row_numbers, -1)
            all_rows = keras.tree.map_structure(
                lambda x, rows: ops.scatter_update(x, indices, rows), all_rows, state
            )
            return index, all_rows, row_numbers, state, cache, context

        index, self.all_rows, self.row_numbers, state, cache, context = ops.while_loop(
            lambda index, all_rows, row_numbers, state, cache, context: ops.logical_and(
                index < last, num_live(state) > 0
            ),
            phase,
            (index, self.all_rows, self.row_numbers, state, cache, context),
        )
        return index, state, cache, context

    def _sizes(self, num_rows, num_live):
        """The size of the batch in this phase, and the number of live rows at which the phase ends."""
        if self.compiler is None:
            size = ops.where(num_live <= num_rows // 2, num_live, num_rows)
            return size, size // 2
        sizes = num_rows // ops.convert_to_tensor([2**i for i in range(16)])
        is_enough = sizes >= ops.maximum(num_live, ops.minimum(_FEWEST_COMPILED_ROWS, num_rows))
        size = ops.min(ops.where(is_enough, sizes, num_rows))
        return size, ops.where(size // 2 >= _FEWEST_COMPILED_ROWS, size // 2, 0)


def _live_first(done):
    """Row numbers, the finished rows last."""
    num_rows = ops.shape(done)[0]
    return ops.argsort(ops.arange(num_rows, dtype="int32") + num_rows * ops.cast(done, "int32"))


def _taken(structure, rows):
    return keras.tree.map_structure(lambda x: ops.take(x, rows, axis=0), structure)
