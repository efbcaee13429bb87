"""The keys and values that the queries of a call attend to: the call's own, those of a cache, or both."""

import collections

from keras import ops

from keras_attn.ops import keep, ring_positions, write_cache, write_ring

AttendedKeys = collections.namedtuple("AttendedKeys", ["key", "value", "positions", "mask"], defaults=[None])
AttendedKeys.__doc__ = """Heads (B, K, S, H) and (B, K, S, Hv) that a call attends to.

positions: integers (S,) or (B, S), or None if nothing depends on positions.
mask: booleans (S,) or (B, S), False at slots of a cache without a key, or None.
"""


def attended_keys(new, cache, call_positions, num_sink_tokens, is_ring):
    """The keys and values that a call attends to, and the cache after the call.

    Args:
        new: The heads (B, K, S, H) and (B, K, S, Hv) of the keys and values that the call projects, or None.
        cache: `KeyValueCache`, or None. It must be given if `new` is None.
        call_positions: `CallPositions` of the call.
        num_sink_tokens: Integer, the first slots of a ring, which are never replaced.
        is_ring: Boolean, whether the newest keys replace the oldest in `cache`.

    Returns:
        `AttendedKeys`, and the `KeyValueCache` with the new keys and values written, or None without a cache.
    """
    if new is None:
        return AttendedKeys(*cache[:2], call_positions.of_slots(ops.shape(cache.key)[-2])), cache
    new_positions = call_positions.of_new_keys(ops.shape(new[0])[-2])
    if cache is None:
        return AttendedKeys(*new, new_positions), None
    if call_positions.positions is not None and new_positions is not None:
        # What padding holds, such as a NaN, would be in the cache for all later calls.
        is_token = _before_last_axes(new_positions >= 0)
        new = tuple(keep(x, is_token) for x in new)
    if is_ring:
        return _keys_of_ring(new, cache, new_positions, num_sink_tokens)
    key, value = write_cache(cache[:2], *new, call_positions.index)
    positions = call_positions.of_slots(ops.shape(cache.key)[-2])
    # Slots before the first position are padding.
    mask = None if call_positions.positions is None or positions is None else positions >= 0
    return AttendedKeys(key, value, positions, mask), cache._replace(key=key, value=value)


def _before_last_axes(mask):
    """(T,) or (B, T) -> what broadcasts to heads (B, K, T, H)."""
    return ops.expand_dims(mask if len(mask.shape) == 1 else ops.expand_dims(mask, 1), -1)


def _keys_of_ring(new, ring, new_positions, num_sink_tokens):
    """The old ring and the new keys, because the first new queries still see keys that are then replaced."""
    stored_positions = ring_positions(ring.key.shape[-2], num_sink_tokens, new_positions[..., :1] - 1)
    heads = [ops.concatenate(pair, axis=-2) for pair in zip(ring[:2], new)]
    positions = ops.concatenate([stored_positions, new_positions], axis=-1)
    key, value = write_ring(ring[:2], *new, new_positions, num_sink_tokens)
    return AttendedKeys(*heads, positions, positions >= 0), ring._replace(key=key, value=value)
