from keras import ops

from keras_attn.layers.clean_padding import real_token_mask
from keras_attn.ops import largest_in_segment, successive_positions, token_positions


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
