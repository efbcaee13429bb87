"""Plans of batches against what their definitions say, spelled out in plain Python."""

import collections
import itertools

import numpy as np
import pytest
import tensorflow as tf

from keras_attn.data import batch_by_tokens, pack_by_tokens

BOUNDARIES = (5, 7, 11, 17, 23)


def random_lengths(count, sides=2, longest=23, seed=0):
    return np.random.default_rng(seed).integers(1, longest + 1, (count, sides))


def rows_of(batches):
    return collections.Counter(row for batch in batches for row in batch.tolist())


@pytest.mark.parametrize("boundaries", [None, BOUNDARIES])
@pytest.mark.parametrize("shuffle", [False, True])
def test_every_row_is_in_one_batch_within_the_budget(boundaries, shuffle):
    lengths = random_lengths(331)
    generator = np.random.default_rng(5) if shuffle else None
    batches = batch_by_tokens(lengths, 47, boundaries, generator)
    assert rows_of(batches) == collections.Counter(range(331))
    for batch in batches:
        longest = lengths[batch].max()
        if boundaries is not None:
            longest = min(boundary for boundary in boundaries if boundary >= longest)
        assert len(batch) * longest <= 47


def test_batches_end_only_where_the_next_row_does_not_fit():
    lengths = random_lengths(331)
    batches = batch_by_tokens(lengths, 47)
    for batch, following in itertools.pairwise(batches):
        assert lengths[batch].max() <= lengths[following].max()
        assert (len(batch) + 1) * lengths[following[0]].max() > 47


def test_a_row_longer_than_the_budget_is_a_batch_alone():
    batches = batch_by_tokens([3, 11, 2, 13], max_tokens=7)
    assert [batch.tolist() for batch in batches] == [[2, 0], [1], [3]]
    batches = batch_by_tokens([3, 11, 2, 13], 7, (3, 13))
    assert [batch.tolist() for batch in batches] == [[0, 2], [1], [3]]


def test_buckets_agree_with_tf_data():
    """The same batches, as sets of rows, as `bucket_by_sequence_length`, whose boundaries are exclusive."""
    generator = np.random.default_rng(7)
    rows = [generator.integers(1, 1000, length).tolist() for length in generator.integers(1, 24, 131)]
    ours = [[rows[i] for i in batch] for batch in batch_by_tokens([len(row) for row in rows], 47, BOUNDARIES)]
    theirs = tf.data.Dataset.from_generator(
        lambda: iter(rows), output_signature=tf.TensorSpec([None], tf.int32)
    ).bucket_by_sequence_length(
        tf.size, [boundary + 1 for boundary in BOUNDARIES], [*(47 // boundary for boundary in BOUNDARIES), 1]
    )
    theirs = [[row[row != 0].tolist() for row in batch.numpy()] for batch in theirs]
    assert sorted(ours) == sorted(theirs)


def test_a_seed_gives_its_order_again_and_moves_rows_between_batches():
    lengths = random_lengths(331)

    def plan(seed):
        return [
            tuple(batch.tolist())
            for batch in batch_by_tokens(lengths, 47, BOUNDARIES, np.random.default_rng(seed))
        ]

    assert plan(3) == plan(3)
    common = {frozenset(batch) for batch in plan(3)} & {frozenset(batch) for batch in plan(5)}
    assert len(common) < len(plan(3)) / 3
    widths = [lengths[list(batch)].max() for batch in plan(3)]
    assert widths != sorted(widths)


def test_packing_holds_every_sequence_once_and_leaves_little_room():
    lengths = random_lengths(331, longest=13)
    for generator in (None, np.random.default_rng(3)):
        rows = pack_by_tokens(lengths, 31, generator)
        assert rows_of(rows) == collections.Counter(range(331))
        assert all((lengths[row].sum(axis=0) <= 31).all() for row in rows)
        assert lengths.sum() > 0.85 * len(rows) * 31 * 2
    with pytest.raises(ValueError, match="row_length=12, longest=13"):
        pack_by_tokens(lengths, 12)


def test_nothing_makes_no_batch():
    assert batch_by_tokens(np.empty((0, 2), int), 7) == []
    assert pack_by_tokens(np.empty((0, 2), int), 7) == []


def test_bad_arguments():
    for boundaries in [(), (0, 5), (5, 5), (7, 5)]:
        with pytest.raises(ValueError, match=r"ascending, at least one\. Received: bucket_bound"):
            batch_by_tokens([1], 47, boundaries)
    with pytest.raises(ValueError, match=r"`max_tokens` must be a positive integer\. Received: max_tokens=0"):
        batch_by_tokens([1], 0)
    with pytest.raises(ValueError, match=r"a row of 3 tokens, bucket_boundaries=\(2,\)"):
        batch_by_tokens([3, 1], 7, (2,))
