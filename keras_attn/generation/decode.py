"""The decoding loop of all searches. It uses a step function and a strategy, never a model."""

import keras
from keras import ops

from keras_attn.generation.live_rows import decode_live_rows
from keras_attn.ops import extend_cache, runs_op_by_op

# The cache starts with room for this many steps and doubles when it is full, so that a short answer costs the
# same under a long limit as under a short one. Shapes stay static, as XLA needs them.
_FIRST_SEGMENT = 16


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
    limit=None,
):
    """Runs `advance` until every row is done, or `max_length` steps.

    With a `context`, a TensorFlow graph that takes batches of any size drops finished rows as soon as they are half of
    the batch. The time then depends on the total length of the answers, not on the longest one.

    Args:
        advance: Function (index, state, cache, context) -> (state, cache) of one step; index is an int32 scalar from 0
            on. `state` and `cache` are structures of tensors whose shapes it keeps.
        is_done: Function (state) -> boolean (B,), or a scalar if there is no `context`. Rows that are done
            must not change.
        state: The values that the strategy carries from step to step; with a `context`, tensors (B, ...).
        cache: A structure of key/value cache pairs with room for `first_slot + cache_lengths(max_length)[0] *
            slots_per_step` slots.
        max_length: Integer, the most steps.
        slots_per_step: Integer, the cache slots that a step fills.
        first_slot: Integer, or integer scalar, the number of slots that a prompt has filled before the first step.
        context: A structure of tensors (B, ...) with the data of rows that steps read and do not change, or
            None.
        compiler: Function that compiles a function of tensors, for TensorFlow graphs: it compiles the steps between two
            changes of the batch size, which then shrinks to a half and an eighth instead of to the number of live rows.
        limit: As in `SearchInputs`. The cache must have the room that `room_for` says.

    Returns:
        The last state and the number of steps that were run, an int32 scalar.
    """

    def extended(cache, num_steps):
        return extend_caches(cache, first_slot + num_steps * slots_per_step)

    lengths = cache_lengths(max_length)
    if context is not None and runs_op_by_op(keras.tree.flatten(state)[0]):
        return decode_live_rows(advance, is_done, state, cache, context, lengths, extended, compiler, limit)
    index = ops.zeros((), dtype="int32")
    for number, length in enumerate(lengths):
        if number:
            cache = extended(cache, room_for(length, limit, state, compiler))
        last = length if limit is None else ops.minimum(length, limit)
        index, state, cache = _steps(advance, is_done, index, last, state, cache, context)
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
    return [*lengths[:-1], max_length]


def room_for(length, limit, state, compiler):
    """The number of steps that a cache has room for, of one of `cache_lengths`: no more than a limit allows.

    A compiler compiles each size, so it has few of them.

    Args:
        length: Integer.
        limit, state, compiler: As in `decode`.
    """
    if limit is None or compiler is not None or not runs_op_by_op(keras.tree.flatten(state)[0]):
        return length
    return ops.minimum(length, limit)


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


def _steps(advance, is_done, index, last, state, cache, context):
    """Steps up to `last`, or until every row is done."""
    return ops.while_loop(
        lambda index, state, cache: ops.logical_and(index < last, ops.logical_not(ops.all(is_done(state)))),
        lambda index, state, cache: (index + 1, *advance(index, state, cache, context)),
        (index, state, cache),
    )
