"""The one decoding loop: it knows a step function and a strategy, never a model."""

import keras
from keras import ops

from keras_attn.ops import extend_cache, runs_op_by_op

# The cache starts with room for this many steps and doubles when it is full, so that a short answer under a long
# limit costs what it costs under a short one; shapes stay static, as XLA needs them.
_FIRST_SEGMENT = 32

# A batch that is compiled for each of its sizes keeps the rows that are done when it has come down to so many.
_FEWEST_COMPILED_ROWS = 8


def decode(
    advance,
    is_done,
    state,
    cache,
    max_length,
    slots_per_step=1,
    first_slot=0,
    context=None,
    compiler=None,
):
    """Runs `advance` until every row is done, or `max_length` steps.

    With a `context`, a TensorFlow graph that takes batches of any size leaves out the rows that are done, as soon as they
    are half of the batch: a batch then takes about as long as its answers together, not as its longest.

    Args:
        advance: Function (index, state, cache, context) -> (state, cache) of one step; index is an int32 scalar from 0
            on. `state` and `cache` are structures of tensors whose shapes it keeps.
        is_done: Function (state) -> boolean (B,), or a scalar if there is no `context`. What is done stays as it is.
        state: What the strategy carries from step to step; with a `context`, tensors (B, ...).
        cache: A structure of key/value cache pairs with room for `first_slot + cache_length(max_length) *
            slots_per_step` slots.
        max_length: Integer, the most steps.
        slots_per_step: Integer, the cache slots that a step fills.
        first_slot: Integer, or integer scalar, the slots that are filled before the first step, by a prompt.
        context: A structure of tensors (B, ...) with all that steps need to know of rows and do not change, or None.
        compiler: Function that compiles a function of tensors, for TensorFlow graphs: the steps between two changes of
            the batch's size are compiled, and that is halved whenever it can be.

    Returns:
        The last state and the number of steps that were run, an int32 scalar.
    """
    rows = keras.tree.flatten(state)[0]
    drops_rows = context is not None and runs_op_by_op(rows)
    loop = _steps
    if drops_rows:
        loop = _LiveRows(rows, state, compiler)
        state, cache, context = loop.with_open_batch((state, cache, context))
    index = ops.zeros((), dtype="int32")
    length = cache_length(max_length)
    while True:
        last = min(length, max_length)
        index, state, cache, context = loop(advance, is_done, index, last, state, cache, context)
        if last == max_length:
            return (loop.everyone if drops_rows else state), index
        length *= 2
        cache = _extend(cache, first_slot + min(length, max_length) * slots_per_step)


def cache_length(max_length):
    """The steps that the first cache must have room for."""
    return min(_FIRST_SEGMENT, max_length)


def _steps(advance, is_done, index, last, state, cache, context):
    """Steps up to `last`, or until every row is done."""
    return *ops.while_loop(
        lambda index, state, cache: ops.logical_and(index < last, ops.logical_not(ops.all(is_done(state)))),
        lambda index, state, cache: (index + 1, *advance(index, state, cache, context)),
        (index, state, cache),
    ), context


class _LiveRows:
    """The loop over a batch that rows leave when they are done.

    Args:
        rows: A tensor (B, ...).
        state: Of all rows, at the beginning.
        compiler: As of `decode`.
    """

    def __init__(self, rows, state, compiler):
        self.everyone = state  # where those that have left stay
        self.numbers = ops.arange(ops.shape(rows)[0], dtype="int32")  # of those that are left
        self.compiler = compiler

    def with_open_batch(self, structure):
        """The same without batch sizes that are written down (of options, say): the loop would hold on to them."""
        return keras.tree.map_structure(
            lambda x: x if x.shape[0] is None else ops.take(x, self.numbers, axis=0), structure
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

        def phase(index, everyone, numbers, state, cache, context):
            live = num_live(state)
            size, fewest = self._sizes(ops.shape(numbers)[0], live)
            numbers, state, cache, context = ops.cond(
                size < ops.shape(numbers)[0],
                lambda: _taken((numbers, state, cache, context), _live_first(is_done(state))[:size]),
                lambda: (numbers, state, cache, context),
            )
            index, state, cache = run(index, fewest, state, cache, context)
            places = ops.expand_dims(numbers, -1)
            everyone = keras.tree.map_structure(
                lambda x, rows: ops.scatter_update(x, places, rows), everyone, state
            )
            return index, everyone, numbers, state, cache, context

        index, self.everyone, self.numbers, state, cache, context = ops.while_loop(
            lambda index, everyone, numbers, state, cache, context: ops.logical_and(
                index < last, num_live(state) > 0
            ),
            phase,
            (index, self.everyone, self.numbers, state, cache, context),
        )
        return index, state, cache, context

    def _sizes(self, num_rows, num_live):
        """How many rows the batch is to have now, and how few must be live for it to become smaller again."""
        if self.compiler is None:
            size = ops.where(num_live <= num_rows // 2, num_live, num_rows)
            return size, size // 2
        sizes = num_rows // ops.convert_to_tensor([2**i for i in range(16)])
        is_enough = sizes >= ops.maximum(num_live, ops.minimum(_FEWEST_COMPILED_ROWS, num_rows))
        size = ops.min(ops.where(is_enough, sizes, num_rows))
        return size, ops.where(size // 2 >= _FEWEST_COMPILED_ROWS, size // 2, 0)


def _live_first(done):
    """Row numbers, those that are done behind the others."""
    num_rows = ops.shape(done)[0]
    return ops.argsort(ops.arange(num_rows, dtype="int32") + num_rows * ops.cast(done, "int32"))


def _taken(structure, rows):
    return keras.tree.map_structure(lambda x: ops.take(x, rows, axis=0), structure)


def _extend(cache, length):
    if isinstance(cache, (tuple, list)) and not keras.ops.is_tensor(cache[0]):
        return tuple(_extend(part, length) for part in cache)
    return extend_cache(cache, length)
