"""Caching apart from attending: what an attention layer does with a key/value cache.

`MultiHeadAttention.call` attends to keys and values. `KeyValueCaching` says which ones these are if there is a cache: the
slots of the cache alone, or the slots after the keys of this call were written to them.
"""

import collections
import numbers

from keras import ops

from keras_attn.layers.call_positions import CallPositions
from keras_attn.layers.masks import CallMasks
from keras_attn.ops import (
    KeyValueCache,
    check_mask_shape,
    computed_once,
    empty_cache,
    keep,
    poisoned,
    ring_positions,
    with_exact_sizes,
    write_cache,
    write_ring,
)

AttendedKeys = collections.namedtuple(
    "AttendedKeys",
    ["key", "value", "positions", "mask", "are_finite", "queries_are_finite"],
    defaults=[None, False, False],
)
AttendedKeys.__doc__ = """The keys and values that the queries of a call attend to.

key, value: heads (B, K, S, H) and (B, K, S, Hv).
positions: integers (S,) or (B, S), or None if nothing depends on positions.
mask: booleans (S,) or (B, S), False at slots of a cache without a key, or None.
are_finite, queries_are_finite: booleans, see `keys_are_finite` and `queries_are_finite` of `keras_attn.ops.MaskRule`.
"""


class KeyValueCaching:
    """Mixin of `MultiHeadAttention`, which describes the arguments `cache`, `cache_update_index` and `positions`."""

    def empty_cache(self, batch_size, length):
        """A cache for self-attention over up to `length` positions: zeros (B, K, C, H) and (B, K, C, Hv).

        C is `length`, or the number of slots that a sliding window needs if that is smaller, or if `length` is only known
        when a graph runs: a ring for causal calls.
        """
        if self.sliding_window:
            length = self._shortest_length(length)
        return empty_cache(
            batch_size,
            self._num_key_heads,
            length,
            self.key_dim,
            self.value_dim,
            dtype=self.compute_dtype,
            num_value_heads=self.num_key_value_heads,
        )

    def project_to_cache(self, value, key=None, value_mask=None, key_mask=None, key_positions=None):
        """The keys and values of `value` (B, S, D) as a cache that later calls attend to, computed once.

        Args:
            value, key, key_positions: As in the call.
            value_mask, key_mask: As in the call. Pass them to the later calls too. What stands at masked keys, be it NaN,
                reaches neither the cache nor a weight.

        Returns:
            A pair of tensors (B, K, S, H) and (B, K, S, Hv).
        """
        key = value if key is None else key
        are_used = self.rotary_embedding is not None
        positions = CallPositions(None, key_positions, None, is_causal=False, are_used=are_used)
        masks = CallMasks(None, value, key, value_mask=value_mask, key_mask=key_mask)
        if masks.key_mask is not None:
            check_mask_shape(masks.key_mask, value.shape[:-1], "value_mask", exact_axes=1)
            mask = with_exact_sizes(masks.key_mask, value, [1], "value_mask")
            mask = ops.expand_dims(mask, -1)
            clean_value = keep(value, mask)
            key = clean_value if key is value else keep(key, mask)
            value = clean_value
        _, key_heads, value_heads = self._heads(None, key, value)
        key_heads = self._key_heads(key_heads, positions)
        return poisoned(key_heads, masks.poison), poisoned(value_heads, masks.poison)

    def _project_with_cache(self, query, value, key, masks, positions, cache, step_projections):
        """The heads of the queries, the `AttendedKeys`, and the cache after the call, in the form of the one given."""
        is_written = positions.cache_update_index is not None
        if not is_written:
            key = value = None
        query_heads, key_heads, value_heads = self._heads(query, key, value, step_projections)
        query_heads = self._query_heads(query_heads, positions)
        stored = KeyValueCache(*cache)
        if is_written:
            key_heads = self._key_heads(key_heads, positions)
            is_ring = self._is_ring(stored, positions.is_causal)
            keys, stored = written_keys(
                key_heads, value_heads, stored, positions, self.num_sink_tokens, is_ring=is_ring
            )
        else:
            keys = AttendedKeys(stored.key, stored.value, positions.slot_positions(stored.key))
        # `project_to_cache` sets padding to 0, and keys at negative positions are written as 0. But a growing cache may hold
        # padding that only a mask shows.
        may_hold_padding = is_written and masks.key_mask is not None
        keys = keys._replace(are_finite=not may_hold_padding)
        if isinstance(cache, KeyValueCache):
            return query_heads, keys, stored
        return query_heads, keys, (stored.key, stored.value)

    def _is_ring(self, cache, is_causal):
        """Whether the newest keys replace the oldest in a cache."""
        if not (self.sliding_window and is_causal):
            return False
        num_slots = cache.key.shape[-2]
        return num_slots is not None and num_slots <= self._num_ring_slots()

    def _shortest_length(self, length):
        """The fewer of `length` and the slots of a ring. A ring needs a size that is known before a graph runs."""
        if isinstance(length, numbers.Integral):
            return min(length, self._num_ring_slots())
        return self._num_ring_slots()

    def _num_ring_slots(self):
        return self.sliding_window + self.num_sink_tokens

    def _check_cache(self, cache, masks, positions):
        if len(self._layout.attended) > 1 or self._layout.lead:
            raise ValueError("`cache` needs inputs of shape (B, T, D), with one axis to attend over.")
        if self._depends_on_length():
            raise ValueError(DYNAMIC_NTK_ADVICE)
        is_ring = self._is_ring(KeyValueCache(*cache), positions.is_causal)
        if positions.cache_update_index is None or not is_ring:
            return
        for name, argument in {"key_positions": positions.key_positions, **masks.key_arguments}.items():
            if argument is not None:
                raise ValueError(
                    f"A cache of fewer slots than positions takes no `{name}`: its slots hold other keys at every call. "
                    "Padding there has negative `positions`. Or make a longer cache with `keras_attn.ops.empty_cache`."
                )


DYNAMIC_NTK_ADVICE = (
    'A `rotary_embedding` with "dynamic_ntk" scaling rotates all of a sequence by its length, so it takes '
    'no `cache` and no `key_positions` of their own. Take "yarn" or "linear" scaling instead.'
)


def written_keys(key, value, cache, positions, num_sink_tokens, *, is_ring):
    """The keys and values that a call attends to in a growing cache, and the cache after the call.

    Args:
        key, value: The heads (B, K, T, H) and (B, K, T, Hv) of the keys and values that the call projects.
        cache: `KeyValueCache`.
        positions: `CallPositions` of the call.
        num_sink_tokens: Integer, the first slots of a ring, which are never replaced.
        is_ring: Boolean, whether the newest keys replace the oldest in `cache`.

    Returns:
        `AttendedKeys`, and the `KeyValueCache` with the new keys and values written.
    """
    new_positions = positions.new_key_positions(key)
    if positions.positions is not None and new_positions is not None:
        # What padding holds, such as a NaN, would be in the cache for all later calls.
        is_token = computed_once(_tokens_of_heads, new_positions)
        key = keep(key, is_token)
        value = keep(value, is_token)
    if is_ring:
        return _ring_keys(key, value, cache, new_positions, num_sink_tokens)
    cache = write_cache(cache, key, value, positions.cache_update_index)
    slot_positions = positions.slot_positions(cache.key)
    mask = None
    if positions.positions is not None and slot_positions is not None:
        mask = computed_once(_is_token, slot_positions)  # slots before the first position are padding
    return AttendedKeys(cache.key, cache.value, slot_positions, mask), cache


def _is_token(positions):
    """False at the negative positions of padding."""
    return positions >= 0


def _tokens_of_heads(positions):
    """`_is_token` of positions (T,) or (B, T), which broadcasts to heads (B, K, T, H)."""
    is_token = _is_token(positions)
    if len(is_token.shape) > 1:
        is_token = ops.expand_dims(is_token, 1)
    return ops.expand_dims(is_token, -1)


def _ring_keys(key, value, ring, new_positions, num_sink_tokens):
    """The old ring and the new keys, because the first new queries still see keys that are then replaced."""
    stored_positions = ring_positions(ring.key.shape[-2], num_sink_tokens, new_positions[..., :1] - 1)
    positions = ops.concatenate([stored_positions, new_positions], axis=-1)
    all_keys = ops.concatenate([ring.key, key], axis=-2)
    all_values = ops.concatenate([ring.value, value], axis=-2)
    keys = AttendedKeys(all_keys, all_values, positions, positions >= 0)
    key, value = write_ring(ring[:2], key, value, new_positions, num_sink_tokens)
    return keys, ring._replace(key=key, value=value)
