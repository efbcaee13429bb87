"""Batches of sequences for threads: who comes with whom, in which order the results are, and what an error does."""

import threading
import time

import numpy as np
import pytest

from keras_attn.tasks.batches import padded, run_in_batches

LENGTHS = np.random.default_rng(1).integers(1, 40, 101).tolist()
SEQUENCES = [[number] * length for number, length in enumerate(LENGTHS)]


@pytest.mark.parametrize("num_workers", [1, 2, 7, None])
@pytest.mark.parametrize("batch_size", [1, 10, 101, 500])
def test_results_are_in_the_order_of_the_sequences(batch_size, num_workers):
    batches = []

    def number_of_each(places):
        batches.append(places)
        time.sleep(0.002 * (len(batches) % 3))  # batches end in another order than they begin
        return [SEQUENCES[place][0] for place in places]

    assert run_in_batches(number_of_each, SEQUENCES, batch_size, num_workers) == list(range(101))
    assert sorted(map(len, batches)) == sorted(
        [batch_size] * (101 // batch_size) + [101 % batch_size] * (101 % batch_size > 0)
    )
    for batch in batches:  # no sequence of a length between two of a batch is in another one
        shortest, longest = (extreme(LENGTHS[place] for place in batch) for extreme in (min, max))
        between = [place for place, length in enumerate(LENGTHS) if shortest < length < longest]
        assert set(between) <= set(batch)


def test_as_many_threads_as_there_are_workers():
    meeting = threading.Barrier(5, timeout=30)

    def meet(places):
        meeting.wait()  # passes when five batches are in work at the same time
        return places

    assert run_in_batches(meet, SEQUENCES[:50], 10, num_workers=5) == list(range(50))


def test_no_sequences():
    assert run_in_batches(lambda places: places, [], 10) == []


def test_an_error_ends_it_before_the_batches_that_nobody_works_on():
    begun = []

    def fails(places):
        begun.append(places)
        raise KeyError("a batch of its own")

    with pytest.raises(KeyError, match="a batch of its own"):
        run_in_batches(fails, SEQUENCES, 1, num_workers=2)
    assert len(begun) < 101


@pytest.mark.parametrize("name", ["batch_size", "num_workers"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "4"])
def test_a_bad_number_is_refused(name, value):
    with pytest.raises(ValueError, match=f"`{name}` must be a positive integer. Received: {name}={value!r}"):
        run_in_batches(lambda places: places, SEQUENCES, **{"batch_size": 3, name: value})


@pytest.mark.extended
@pytest.mark.parametrize("to_buckets", [False, True])
def test_padded(to_buckets):
    ids = padded([[5, 6, 7], [8], [9, 10, 11, 12, 13]], to_buckets).numpy()
    assert ids.shape == ((4, 8) if to_buckets else (3, 5))
    np.testing.assert_array_equal(ids[:3, :5], [[5, 6, 7, -1, -1], [8, -1, -1, -1, -1], [9, 10, 11, 12, 13]])
    np.testing.assert_array_equal(ids[:, 5:], -1)
    np.testing.assert_array_equal(ids[3:], ids[2:3] if to_buckets else np.zeros((0, 5)))


@pytest.mark.parametrize(
    ("length", "bucket"), [(1, 1), (3, 4), (6, 8), (9, 12), (13, 16), (17, 24), (25, 32), (33, 48), (49, 64)]
)
def test_lengths_of_buckets(length, bucket):
    assert padded([[7] * length], to_buckets=True).shape == (1, bucket)
    assert padded([[7] * bucket], to_buckets=True).shape == (1, bucket)
