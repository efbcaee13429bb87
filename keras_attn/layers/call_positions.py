"""The positions of the queries and keys of one call of an attention layer."""

from keras import ops

from keras_attn.layers.masks import real_token_mask
from keras_attn.ops import axis_size, largest_in_segment, successive_positions, token_positions


class CallPositions:
    """The positions of the queries and keys of one call, and whether their order hides keys.

    Args:
        positions: Integers (T,) or (B, T), the positions of the queries, or None for successive positions.
        key_positions: Integers (S,) or (B, S), or None.
        cache_update_index: Integer scalar, the first slot that the call writes in a growing cache, or None.
        is_causal: Boolean, whether a query sees only keys at its own position and before.
        are_used: Boolean, whether anything depends on positions. If not, all positions are None.

    Attributes:
        sequence_length: Integers (B, <axes>, T) or (B, <axes>, 1), see `measure`, or None.
    """

    def __init__(self, positions, key_positions, cache_update_index, is_causal, are_used):
        self.positions = positions
        self.key_positions = key_positions
        self.cache_update_index = cache_update_index
        self.is_causal = is_causal
        self.are_used = are_used
        self.sequence_length = None

    def count_tokens(self, key_mask, segment_ids):
        """Takes the rule of `token_positions` for the positions of self-attention, if none were given.

        Most of attention depends on distances alone, which pads before and after the tokens do not change. Sinks and
        `"dynamic_ntk"` need to know which token is the first.

        Args:
            key_mask: Boolean (B, T), True at keys that may be attended, or None.
            segment_ids: Integers (B, T), or None.
        """
        is_token = real_token_mask(key_mask, segment_ids)
        if self.positions is None and self.key_positions is None and is_token is not None:
            self.positions = token_positions(is_token, segment_ids)

    def measure(self, query, key_mask, segment_ids):
        """Sets `sequence_length` to the length of the sequence that each token is in: its largest position + 1.

        Without pads and segments it stays None, which means the length of all positions.

        Args:
            query: The queries (B, <axes>, T, D).
            key_mask: Boolean (B, <axes>, T), True at keys that may be attended, or None.
            segment_ids: Integers (B, T), or None.
        """
        is_token = real_token_mask(key_mask, segment_ids)
        if is_token is not None:
            counts = ops.where(is_token, self.query_positions(query) + 1, 0)
            self.sequence_length = largest_in_segment(counts, segment_ids)

    @property
    def offset(self):
        """The position of the first query, if it is known before the run and keys have the positions 0, 1, 2, ..."""
        if self.positions is not None or self.key_positions is not None:
            return None
        if self.cache_update_index is None:
            return 0
        if isinstance(self.cache_update_index, int):
            return self.cache_update_index
        return None

    def query_positions(self, queries):
        """The positions of queries (..., T, X): integers (T,) or (B, T), or None."""
        if not self.are_used:
            return None
        if self.positions is not None:
            return _checked(self.positions, "positions", queries.shape[-2])
        first = 0 if self.cache_update_index is None else self.cache_update_index
        return successive_positions(axis_size(queries, -2), first)

    def new_key_positions(self, keys):
        """The positions of keys (..., S, X) that the call projects: with a growing cache, those of the queries."""
        if self.cache_update_index is not None or not self.are_used:
            return self.query_positions(keys)
        if self.key_positions is not None:
            return _checked(self.key_positions, "key_positions", keys.shape[-2])
        if self.positions is not None:
            return _checked(self.positions, "key_positions", keys.shape[-2])
        return successive_positions(axis_size(keys, -2))

    def slot_positions(self, slots):
        """The positions of the slots (..., S, X) of a cache. A growing cache is filled in the order of positions."""
        if self.cache_update_index is None or not self.are_used:
            return self.new_key_positions(slots)
        if self.key_positions is not None:
            return _checked(self.key_positions, "key_positions", slots.shape[-2])
        slots = successive_positions(axis_size(slots, -2))
        if self.positions is None:
            return slots
        first = ops.cast(self.positions, "int32")[..., :1]
        return slots + first - ops.cast(self.cache_update_index, "int32")


def _checked(positions, name, length):
    positions = ops.cast(ops.convert_to_tensor(positions), "int32")
    known = positions.shape[-1] if len(positions.shape) else -1
    is_wrong = isinstance(known, int) and isinstance(length, int) and known != length
    if len(positions.shape) not in (1, 2) or is_wrong:
        hint = " By default they are `positions`." if name == "key_positions" else ""
        raise ValueError(
            f"`{name}` must have shape (length,) or (batch, length), here with length {length}. "
            f"Received: {name} of shape {tuple(positions.shape)}.{hint}"
        )
    return positions
