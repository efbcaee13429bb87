import collections
import itertools
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_attn.data import TextPairs, batch_by_tokens, translation_batches
from keras_attn.text import ByteTokenizer

START, END, FIRST_BYTE = 1, 2, 3
BOUNDARIES = (5, 7, 11, 17, 23)


def byte_ids(text):
    return [byte + FIRST_BYTE for byte in text.encode("utf-8")]


def random_pairs(num_pairs, longest=21, seed=0):
    generator = np.random.default_rng(seed)
    letters = np.array(list("abcdefghé"))

    def texts():
        return [
            "".join(generator.choice(letters, length))
            for length in generator.integers(0, longest // 2, num_pairs)
        ]

    return TextPairs(texts(), texts(), "random")


def make_batches(pairs, **options):
    options = {"max_tokens": 47, "max_sequence_length": 23, "bucket_boundaries": BOUNDARIES, **options}
    return translation_batches(pairs, ByteTokenizer(), ByteTokenizer(), **options)


def as_arrays(dataset):
    return [
        (inputs["encoder_token_ids"].numpy(), inputs["decoder_token_ids"].numpy(), labels.numpy())
        for inputs, labels in dataset
    ]


def rows_without_pads(batches):
    rows = []
    for batch in batches:
        for row in zip(*batch):
            rows.append(tuple(tuple(ids[ids != 0].tolist()) for ids in row))
    return rows


def expected_rows(pairs):
    """Teacher forcing spelled out in plain Python."""
    return [
        (
            (*byte_ids(source), END),
            (START, *byte_ids(target)),
            (*byte_ids(target), END),
        )
        for source, target in zip(pairs.sources, pairs.targets)
    ]


def test_one_pair_by_hand():
    batches = make_batches(TextPairs(["Hi"], ["é!a"]))
    ((encoder, decoder, labels),) = as_arrays(batches.dataset)
    assert encoder.tolist() == [[75, 108, 2, 0, 0]]
    assert decoder.tolist() == [[1, 198, 172, 36, 100]]
    assert labels.tolist() == [[198, 172, 36, 100, 2]]
    assert (batches.num_pairs, batches.num_tokens, batches.padding_share) == (1, 5, pytest.approx(0.2))


@pytest.mark.parametrize("shuffle", [True, False])
def test_an_epoch_holds_every_pair_once(shuffle):
    pairs = random_pairs(317)
    batches = make_batches(pairs, shuffle=shuffle)
    for _ in range(2):
        rows = rows_without_pads(as_arrays(batches.dataset))
        assert collections.Counter(rows) == collections.Counter(expected_rows(pairs))
    assert batches.num_pairs == 317
    assert batches.over_long == ()


def test_shapes_budget_pads_and_counts():
    batches = make_batches(random_pairs(317))
    arrays = as_arrays(batches.dataset)
    assert len(batches.dataset) == batches.dataset.cardinality() == len(arrays)
    partial = collections.Counter()
    for batch in arrays:
        (rows, length), *other_shapes = {ids.shape for ids in batch}
        assert not other_shapes
        assert length in BOUNDARIES
        assert rows * length <= 47
        partial[length] += rows < 47 // length
        longest = max((ids != 0).sum(axis=1).max() for ids in batch)
        assert all(boundary >= length or boundary < longest for boundary in BOUNDARIES)
        for ids in batch:
            assert ids.dtype == np.int32
            is_pad = ids == 0
            assert (np.diff(is_pad.astype(int), axis=1) >= 0).all()  # from the first pad on, pads alone
    assert max(partial.values()) == 1
    num_real = [sum((ids != 0).sum() for ids in side) for side in zip(*arrays)]
    num_positions = sum(encoder.size + labels.size for encoder, _, labels in arrays)
    assert batches.num_tokens == num_real[2]
    assert batches.padding_share == pytest.approx(1 - (num_real[0] + num_real[2]) / num_positions)


def test_each_pair_goes_to_the_smallest_bucket_that_holds_both_sides():
    pairs = random_pairs(101)
    for encoder, decoder, labels in as_arrays(make_batches(pairs).dataset):
        for row in zip(encoder, decoder, labels):
            longest = max((ids != 0).sum() for ids in row)
            assert encoder.shape[1] == min(boundary for boundary in BOUNDARIES if boundary >= longest)


def test_a_bucket_longer_than_the_budget_has_batches_of_one_row():
    arrays = as_arrays(make_batches(random_pairs(53), max_tokens=3).dataset)
    assert {encoder.shape[0] for encoder, _, _ in arrays} == {1}
    assert len(arrays) == 53


def epochs(batches, num_epochs=3):
    return [
        [ids.tolist() for batch in as_arrays(batches.dataset) for ids in batch] for _ in range(num_epochs)
    ]


def test_the_same_seed_gives_the_same_sequence_of_different_epochs():
    pairs = random_pairs(211)
    first, again, other = (epochs(make_batches(pairs, seed=seed)) for seed in (3, 3, 5))
    assert first == again
    assert all(first[i] != epoch for i in range(3) for epoch in first[i + 1 :] + other)


def test_shuffling_moves_pairs_between_batches_and_mixes_the_buckets():
    arrays = as_arrays(make_batches(random_pairs(211)).dataset)
    lengths = [encoder.shape[1] for encoder, _, _ in arrays]
    changes = sum(a != b for a, b in itertools.pairwise(lengths))
    assert changes > 2 * len(set(lengths))
    batches = make_batches(random_pairs(211))
    members = [
        {frozenset(rows_without_pads([batch])) for batch in as_arrays(batches.dataset)} for _ in range(2)
    ]
    assert len(members[0] & members[1]) < len(members[0]) / 2


def test_without_shuffling_every_epoch_is_the_same_and_buckets_keep_their_order():
    pairs = random_pairs(97)
    batches = make_batches(pairs, shuffle=False)
    first, second = epochs(batches, 2)
    assert first == second
    rows = rows_without_pads(as_arrays(batches.dataset))
    longest = [max(map(len, row)) for row in expected_rows(pairs)]
    bucket = [min(boundary for boundary in BOUNDARIES if boundary >= length) for length in longest]
    in_order = [expected_rows(pairs)[i] for i in sorted(range(97), key=lambda i: bucket[i])]
    assert rows == in_order


def test_over_long_pairs_are_left_out_and_reported():
    # With END, 13 letters make 14 tokens: one too many for 13 tokens. 12 letters just fit.
    sources = ["a" * 12, "b" * 13, "c", "d", "e" * 29]
    targets = ["v", "w", "x" * 12, "y" * 13, "z" * 31]
    batches = make_batches(TextPairs(sources, targets), max_sequence_length=13)
    kept = expected_rows(TextPairs([sources[0], sources[2]], [targets[0], targets[2]]))
    assert sorted(rows_without_pads(as_arrays(batches.dataset))) == sorted(kept)
    assert batches.over_long == (2, 4, 5)
    assert (batches.num_pairs, batches.num_tokens) == (2, 2 + 13)
    assert {batch[0].shape[1] for batch in as_arrays(batches.dataset)} == {13}
    assert batches.report() == (
        "Pairs: 2, batches: 1, target tokens: 15, padding: 42.3% of the positions. "
        "Pairs longer than 13 tokens, left out: 3, from line 2, 4, 5."
    )


def test_a_long_list_of_over_long_lines_is_cut_in_the_report_only():
    pairs = TextPairs(["a", *["b" * 31] * 1013], ["c"] * 1014)
    batches = make_batches(pairs)
    assert batches.over_long == tuple(range(2, 1015))
    assert batches.report().endswith(": 1,013, from line 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 and 1,003 more.")
    assert make_batches(TextPairs(["a", "b" * 31], ["c", "d"])).report().endswith(": 1, from line 2.")
    assert "left out" not in make_batches(TextPairs(["a"], ["c"])).report()


def test_nothing_left_is_an_error():
    with pytest.raises(ValueError, match=r"each of the 2 pairs .*Received: max_sequence_length=7\."):
        make_batches(TextPairs(["a" * 11, "b"], ["c", "d" * 13]), max_sequence_length=7)
    with pytest.raises(ValueError, match="each of the 0 pairs"):
        make_batches(TextPairs([], []))


@pytest.mark.parametrize("bad_id", [-1, 0, 259, 1000])
def test_ids_outside_the_vocabulary_are_refused(bad_id):
    ids = tf.ragged.constant([[5, 6, 7], [], [8, bad_id]], dtype=tf.int32)
    broken = types.SimpleNamespace(
        tokenize=lambda texts: ids, vocabulary_size=259, start_token_id=START, end_token_id=END
    )
    pairs = TextPairs(["a", "b", "c"], ["d", "e", "f"])
    message = rf"The {{}} tokenizer's ids .* Received: id {bad_id} in line 3, vocabulary_size=259\."
    with pytest.raises(ValueError, match=message.format("source")):
        translation_batches(pairs, broken, ByteTokenizer())
    with pytest.raises(ValueError, match=message.format("target")):
        translation_batches(pairs, ByteTokenizer(), broken)


def test_two_tokenizers_each_see_their_side():
    swapped = types.SimpleNamespace(
        tokenize=ByteTokenizer().tokenize, vocabulary_size=300, start_token_id=293, end_token_id=283
    )
    batches = translation_batches(TextPairs(["a"], ["b"]), ByteTokenizer(), swapped, bucket_boundaries=(3,))
    ((encoder, decoder, labels),) = as_arrays(batches.dataset)
    assert (encoder.tolist(), decoder.tolist(), labels.tolist()) == (
        [[100, 2, 0]],
        [[293, 101, 0]],
        [[101, 283, 0]],
    )


def test_more_texts_than_one_call_of_the_tokenizer_takes(monkeypatch):
    monkeypatch.setattr("keras_attn.data.batching._TEXTS_PER_TOKENIZER_CALL", 13)
    sizes = []

    class Counting(ByteTokenizer):
        def tokenize(self, texts):
            sizes.append(len(texts))
            return super().tokenize(texts)

    pairs = random_pairs(31)
    batches = translation_batches(pairs, Counting(), ByteTokenizer())
    assert sizes == [13, 13, 5]
    for _ in range(2):
        rows = rows_without_pads(as_arrays(batches.dataset))
        assert collections.Counter(rows) == collections.Counter(expected_rows(pairs))
    assert sizes == [13, 13, 5]  # an epoch costs no tokenizing


def test_bad_arguments():
    pairs = random_pairs(3)
    for boundaries in [(), (0, 5), (5, 5), (7, 5)]:
        with pytest.raises(
            ValueError, match=r"positive and ascending, at least one\. Received: bucket_boundaries="
        ):
            make_batches(pairs, bucket_boundaries=boundaries)
    with pytest.raises(
        ValueError, match=r"`max_tokens` must be a positive number of tokens\. Received: max_tokens=0"
    ):
        make_batches(pairs, max_tokens=0)
    with pytest.raises(ValueError, match="Received: max_sequence_length=0"):
        make_batches(pairs, max_sequence_length=0)
    rows = tf.ragged.constant([[5, 6, 7], [8]])
    with pytest.raises(ValueError, match=r"2 rows of at most 3 tokens, bucket_boundaries=\(2,\)"):
        batch_by_tokens(rows, 7, (2,))
    with pytest.raises(ValueError, match="0 rows"):
        batch_by_tokens(rows[:0], 7, (2,))


def test_boundaries_from_the_longest_length_on_are_replaced_by_it():
    pairs = TextPairs(["a" * 12, "b" * 3, "c" * 6], ["d", "e", "f"])
    shapes = {
        encoder.shape[1] for encoder, _, _ in as_arrays(make_batches(pairs, max_sequence_length=13).dataset)
    }
    assert shapes == {5, 7, 13}


def test_batch_by_tokens_agrees_with_tf_data_bucketing():
    """The same batches, as sets of rows, as `bucket_by_sequence_length`, whose boundaries are exclusive."""
    generator = np.random.default_rng(7)
    rows = [generator.integers(1, 1000, length).tolist() for length in generator.integers(1, 24, 131)]
    ours = batch_by_tokens(tf.ragged.constant(rows, dtype=tf.int32), 47, BOUNDARIES, shuffle=False)
    theirs = tf.data.Dataset.from_generator(
        lambda: iter(rows), output_signature=tf.TensorSpec([None], tf.int32)
    ).bucket_by_sequence_length(
        tf.size,
        [boundary + 1 for boundary in BOUNDARIES],
        [*(47 // boundary for boundary in BOUNDARIES), 1],
        pad_to_bucket_boundary=True,
    )
    assert sorted(batch.numpy().tolist() for batch in ours) == sorted(
        batch.numpy().tolist() for batch in theirs
    )


def tiny_model():
    encoder = keras.Input((None,), dtype="int32", name="encoder_token_ids")
    decoder = keras.Input((None,), dtype="int32", name="decoder_token_ids")
    summary = keras.layers.GlobalAveragePooling1D(keepdims=True)(keras.layers.Embedding(259, 3)(encoder))
    logits = keras.layers.Dense(259)(keras.layers.Embedding(259, 3)(decoder) + summary)
    return keras.Model({"encoder_token_ids": encoder, "decoder_token_ids": decoder}, logits)


def test_keras_fit_knows_the_length_of_an_epoch():
    batches = make_batches(random_pairs(37))
    model = tiny_model()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.Adam(0.1), loss=loss)
    steps = []
    spy = keras.callbacks.LambdaCallback(on_train_begin=lambda logs: steps.append(spy.params["steps"]))
    history = model.fit(batches.dataset, epochs=2, shuffle=False, verbose=0, callbacks=[spy]).history
    assert steps == [len(batches.dataset)]
    assert model.optimizer.iterations == 2 * len(batches.dataset)
    assert history["loss"][1] < history["loss"][0]


def test_keras_fit_sees_every_pair_each_epoch_in_a_new_order():
    pairs = random_pairs(37)
    seen = []

    def spying_loss(labels, logits):
        seen.extend(tuple(row[row != 0].tolist()) for row in labels.numpy())
        return keras.ops.mean(logits, axis=-1)

    model = tiny_model()
    model.compile(optimizer="sgd", loss=spying_loss, run_eagerly=True)
    model.fit(make_batches(pairs).dataset, epochs=2, shuffle=False, verbose=0)
    labels = collections.Counter(label for _, _, label in expected_rows(pairs))
    assert collections.Counter(seen[:37]) == collections.Counter(seen[37:]) == labels
    assert seen[:37] != seen[37:]
