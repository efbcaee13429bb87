"""The ring of a sliding window against a dict from slots to positions that is filled one position at a time."""

import numpy as np
import pytest
from helpers_layers import BACKEND, compiled
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from keras_attn.ops import empty_cache, ring_positions, write_ring

B, K, H, HV = 2, 3, 5, 7


def filled_by_hand(num_slots, num_sink_tokens, last):
    """Which position each slot holds once 0, 1, ..., `last` were written, -1 for none."""
    slots = np.full(num_slots, -1)
    period = num_slots - num_sink_tokens
    for position in range(last + 1):
        if position < num_sink_tokens:
            slots[position] = position
        else:
            slots[num_sink_tokens + (position - num_sink_tokens) % period] = position
    return slots


def last_positions(*values):
    return ops.convert_to_tensor(np.array(values, "int32"))


@pytest.mark.parametrize(("num_slots", "num_sink_tokens"), [(1, 0), (5, 0), (5, 2), (7, 3), (3, 2)])
def test_positions_of_slots(num_slots, num_sink_tokens):
    for last in range(-3, 30):
        actual = ring_positions(num_slots, num_sink_tokens, last_positions(last))
        np.testing.assert_array_equal(actual, filled_by_hand(num_slots, num_sink_tokens, last))


def test_each_row_has_its_own_positions():
    actual = ring_positions(5, 2, last_positions([-1], [1], [4], [11]))
    np.testing.assert_array_equal(actual, [filled_by_hand(5, 2, last) for last in (-1, 1, 4, 11)])


def test_while_there_is_room_slots_are_positions():
    np.testing.assert_array_equal(ring_positions(7, 2, last_positions(6)), np.arange(7))


@settings(max_examples=30 if BACKEND == "tensorflow" else 3, deadline=None, derandomize=True)
@given(
    num_slots=st.integers(1, 7),
    num_sink_tokens=st.integers(0, 3),
    lengths=st.lists(st.integers(1, 11), min_size=1, max_size=5),
    first=st.tuples(st.integers(-3, 0), st.integers(-3, 0)),
)
def test_chunks_leave_what_single_positions_would(num_slots, num_sink_tokens, lengths, first):
    num_sink_tokens = min(num_sink_tokens, num_slots - 1)
    rng = np.random.default_rng(sum(lengths))
    total = sum(lengths)
    key = rng.normal(size=(B, K, total, H)).astype("float32")
    value = rng.normal(size=(B, K, total, HV)).astype("float32")
    positions = np.arange(total, dtype="int32") + np.array(first, "int32")[:, None]
    ring, index = empty_cache(B, K, num_slots, H, HV), 0
    for length in lengths:
        part = slice(index, index + length)
        tensors = (ops.convert_to_tensor(x) for x in (key[:, :, part], value[:, :, part], positions[:, part]))
        ring = write_ring(ring, *tensors, num_sink_tokens)
        index += length
    for row, start in enumerate(first):
        stands = filled_by_hand(num_slots, num_sink_tokens, total - 1 + start)
        for stored, whole in zip(ring, (key, value)):
            index = np.where(stands >= 0, stands - start, 0)
            expected = np.where((stands >= 0)[:, None], whole[row][:, index], 0)
            np.testing.assert_array_equal(np.asarray(stored)[row], expected)


@pytest.mark.parametrize("length", [1, 3, 11])
def test_positions_may_be_one_row_for_all(rng, length):
    key, value = (rng.normal(size=(B, K, length, size)).astype("float32") for size in (H, HV))
    ring = tuple(
        ops.convert_to_tensor(rng.normal(size=x.shape).astype("float32")) for x in empty_cache(B, K, 5, H, HV)
    )
    positions = np.arange(9, 9 + length, dtype="int32")
    new = (ops.convert_to_tensor(key), ops.convert_to_tensor(value))
    one = write_ring(ring, *new, ops.convert_to_tensor(positions), 2)
    each = write_ring(ring, *new, ops.convert_to_tensor(np.tile(positions, (B, 1))), 2)
    for x, y, old in zip(one, each, ring):
        np.testing.assert_array_equal(x, y)
        np.testing.assert_array_equal(np.asarray(x)[:, :, :2], np.asarray(old)[:, :, :2])


def test_padding_is_not_written(rng):
    key = np.full((B, K, 3, H), np.nan, "float32")
    ring = empty_cache(B, K, 5, H)
    positions = ops.convert_to_tensor(np.array([[-3, -2, -1], [-4, -3, -2]], "int32"))
    for stored in write_ring(ring, ops.convert_to_tensor(key), ops.convert_to_tensor(key), positions):
        np.testing.assert_array_equal(stored, np.zeros((B, K, 5, H)))


@pytest.mark.parametrize("jit", [True, False])
def test_compiled_steps_equal_eager_ones(rng, jit):
    step = compiled(
        lambda given: write_ring(given["ring"], given["new"], given["new"], given["positions"], 1), jit
    )
    eager = jitted = empty_cache(B, K, 3, H)
    for position in range(8):
        new = ops.convert_to_tensor(rng.normal(size=(B, K, 1, H)).astype("float32"))
        positions = ops.convert_to_tensor(np.array([position], "int32"))
        eager = write_ring(eager, new, new, positions, 1)
        jitted = step({"ring": jitted, "new": new, "positions": positions})
        for x, y in zip(eager, jitted):
            np.testing.assert_array_equal(x, y)


def test_the_ring_keeps_its_dtype(rng):
    new = ops.convert_to_tensor(rng.normal(size=(B, K, 1, H)).astype("float32"))
    for stored in write_ring(empty_cache(B, K, 3, H, dtype="bfloat16"), new, new, last_positions(4)):
        assert "bfloat16" in str(stored.dtype)
