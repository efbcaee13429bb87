"""The decoding loop alone: when it stops, what it counts, and how the cache grows under it."""

import keras
import pytest
from keras import ops

from keras_attn.generation import cache_lengths, decode
from keras_attn.ops import empty_cache, write_cache

SLOTS_PER_STEP = 3


class Counting:
    """A search that writes the number of each step into its slots, and sums up what the cache holds."""

    num_hypotheses, first_slot, limit, compiler = SLOTS_PER_STEP, 0, None, None

    def __init__(self, max_length, stop_after):
        self.max_length, self.stop_after, self.sizes = max_length, stop_after, []

    def begin(self):
        length = cache_lengths(self.max_length)[0] * SLOTS_PER_STEP
        return ops.zeros(()), (empty_cache(2, 1, length, 1),), None

    def for_rows(self, row_values):
        return self

    def is_done(self, state):
        return state >= self.stop_after * (self.stop_after + 1) / 2

    def next_state(self, index, state, cache):
        ((key, value),) = cache
        self.sizes.append(key.shape[-2])
        new = ops.zeros((2, 1, SLOTS_PER_STEP, 1)) + ops.cast(index + 1, "float32")
        key, value = write_cache((key, value), new, new, index * SLOTS_PER_STEP)
        # What was written before the cache grew must still be there.
        return ops.sum(key[0]) / SLOTS_PER_STEP, ((key, value),)


def run(max_length, stop_after):
    """The steps run, their sum, and the caches' sizes."""
    search = Counting(max_length, stop_after)
    total, steps = decode(search)
    return int(steps), float(total), search.sizes


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("max_length", "stop_after", "largest"),
    [
        (1, 9, 1),
        (7, 3, 7),
        (16, 99, 16),
        (17, 99, 17),
        (70, 16, 16),
        (70, 17, 32),
        (70, 33, 64),
        (70, 65, 70),
        (200, 99, 128),
    ],
)
def test_steps_and_sizes(max_length, stop_after, largest):
    steps, total, sizes = run(max_length, stop_after)
    assert steps == min(max_length, stop_after)
    assert total == steps * (steps + 1) / 2
    if keras.backend.backend() != "jax":  # whose loop also traces the segments it never enters
        assert max(sizes) == largest * SLOTS_PER_STEP
    assert set(sizes) <= {min(size, max_length) * SLOTS_PER_STEP for size in (16, 32, 64, 128, 256)}


def test_a_state_that_is_finished_from_the_start_runs_no_step():
    steps, total, _ = run(70, 0)
    assert (steps, total) == (0, 0.0)


@pytest.mark.parametrize(
    ("max_length", "expected"),
    [(1, [1]), (15, [15]), (16, [16]), (17, [16, 17]), (64, [16, 32, 64]), (200, [16, 32, 64, 128, 200])],
)
def test_cache_lengths(max_length, expected):
    assert cache_lengths(max_length) == expected
