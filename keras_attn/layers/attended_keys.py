"""The keys and values that the queries of a call attend to, and the positions of both."""

import collections

from keras import ops

from keras_attn.layers.masks import real_token_mask
from keras_attn.ops import (
    keep,
    largest_in_segment,
    ring_positions,
    successive_positions,
    token_positions,
    write_cache,
    write_ring,
)


class CallPositions:
    """The positions of the queries and keys of one call of an attention layer.

    Args:
        positions: Integers (T,) or (B, T), the positions of the queries, or None for successive positions.
        key_positions: Integers (S,) or (B, S), or None.
        cache_update_index: Integer scalar, the first slot that the call writes in a growing cache, or None.
        used: Boolean, whether anything depends on positions. If not, all positions are None.

    Attributes:
        sequence_length: Integers (B, <axes>, T) or (B, <axes>, 1), see `measure`, or None.
    """

    def __init__(self, positions, key_positions, cache_update_index, used):
        self.positions = positions
        self.key_positions = key_positions
        self.index = cache_update_index
        self.used = used
        self.sequence_length = None

    def count_tokens(self, key_mask, segment_ids):
        """Takes the rule of `token_positions` for the positions of self-attention, if none were given.

        Most of attention depends on distances alone, which pads before and after the tokens do not change. The others,
        sinks and `"dynamic_ntk"`, need to know which token is the first.

        Args:
            key_mask: Boolean (B, T), True at keys that may be attended, or None.
            segment_ids: Integers (B, T), or None.
        """
        is_token = real_token_mask(key_mask, segment_ids)
        if self.positions is None and self.key_positions is None and is_token is not None:
            self.positions = token_positions(is_token, segment_ids)

    def measure(self, length, key_mask, segment_ids):
        """Sets `sequence_length` to the length of the sequence that each token is in: its largest position + 1.

        It stays None, which means that of all positions, if there are no pads and no segments.

        Args:
            length: Integer, or integer scalar T.
            key_mask: Boolean (B, <axes>, T), True at keys that may be attended, or None.
            segment_ids: Integers (B, T), or None.
        """
        is_token = real_token_mask(key_mask, segment_ids)
        if is_token is not None:
            counts = ops.where(is_token, self.of_queries(length) + 1, 0)
            self.sequence_length = largest_in_segment(counts, segment_ids)

    @property
    def offset(self):
        """The position of the first query, if it is known before the run and keys have the positions 0, 1, 2, ..."""
        if self.positions is not None or self.key_positions is not None:
            return None
        if self.index is None:
            return 0
        return self.index if isinstance(self.index, int) else None

    def of_queries(self, length):
        if not self.used:
            return None
        if self.positions is not None:
            return _checked(self.positions, "positions", length)
        return successive_positions(length, 0 if self.index is None else self.index)

    def of_new_keys(self, length):
        """Positions of the keys that the call projects: with a growing cache, those of the queries."""
        if self.index is not None or not self.used:
            return self.of_queries(length)
        if self.key_positions is None and self.positions is None:
            return successive_positions(length)
        given = self.positions if self.key_positions is None else self.key_positions
        return _checked(given, "key_positions", length)

    def of_slots(self, length):
        """Positions of the slots of a cache. A growing cache is filled in the order of positions."""
        if self.index is None or not self.used:
            return self.of_new_keys(length)
        if self.key_positions is not None:
            return _checked(self.key_positions, "key_positions", length)
        slots = successive_positions(length)
        if self.positions is None:
            return slots
        return slots + ops.cast(self.positions, "int32")[..., :1] - ops.cast(self.index, "int32")


def _checked(positions, name, length):
    positions = ops.cast(ops.convert_to_tensor(positions), "int32")
    known = positions.shape[-1] if len(positions.shape) else -1
    if len(positions.shape) not in (1, 2) or (None not in (known, length) and _differ(known, length)):
        raise ValueError(
            f"`{name}` must have shape (length,) or (batch, length), here with length {length}. "
            f"Received: {name} of shape {tuple(positions.shape)}."
            + (" By default they are `positions`." if name == "key_positions" else "")
        )
    return positions


def _differ(known, length):
    return isinstance(known, int) and isinstance(length, int) and known != length


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
