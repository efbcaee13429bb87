"""The one decoding loop: it knows a step function and a strategy, never a model."""

import keras
from keras import ops

from keras_attn.ops import extend_cache

# The cache starts with room for this many steps and doubles when it is full, so that a short answer under a long
# limit costs what it costs under a short one; shapes stay static, as XLA needs them.
_FIRST_SEGMENT = 32


def decode(advance, is_finished, state, cache, max_length, slots_per_step=1, first_slot=0):
    """Runs `advance` until every row has finished, or `max_length` steps.

    Args:
        advance: Function (index, state, cache) -> (state, cache) of one step; index is an int32 scalar from 0 on.
            `state` and `cache` are structures of tensors whose shapes it keeps.
        is_finished: Function (state) -> boolean scalar.
        state: What the strategy carries from step to step.
        cache: A structure of key/value cache pairs with room for `first_slot + cache_length(max_length) *
            slots_per_step` slots.
        max_length: Integer, the most steps.
        slots_per_step: Integer, the cache slots that a step fills.
        first_slot: Integer, or integer scalar, the slots that are filled before the first step, by a prompt.

    Returns:
        The last state and the number of steps that were run, an int32 scalar.
    """
    index = ops.zeros((), dtype="int32")
    length = cache_length(max_length)
    while True:
        last = min(length, max_length)
        index, state, cache = ops.while_loop(
            lambda index, state, cache, last=last: ops.logical_and(
                index < last, ops.logical_not(is_finished(state))
            ),
            lambda index, state, cache: (index + 1, *advance(index, state, cache)),
            (index, state, cache),
        )
        if last == max_length:
            return state, index
        length *= 2
        cache = _extend(cache, first_slot + min(length, max_length) * slots_per_step)


def cache_length(max_length):
    """The steps that the first cache must have room for."""
    return min(_FIRST_SEGMENT, max_length)


def _extend(cache, length):
    if isinstance(cache, (tuple, list)) and not keras.ops.is_tensor(cache[0]):
        return tuple(_extend(part, length) for part in cache)
    return extend_cache(cache, length)
