"""Batches for training against the pairs they are made from, spelled out in plain Python."""

import collections
import types

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers_marks import slow_but

from keras_attn.data import BatchPosition, TextPairs, translation_batches
from keras_attn.data.token_pairs import PairForm
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


def as_arrays(batches, epoch=0, position=None):
    """The batches of an epoch, from a position in it if one is given."""
    first = position.update if position else 0
    count = (len(batches.plan(epoch)) - first) * batches.num_micro_batches
    return [
        (inputs["encoder_token_ids"].numpy(), inputs["decoder_token_ids"].numpy(), labels.numpy())
        for inputs, labels, *_ in batches.dataset(position or BatchPosition(epoch, 0)).take(count)
    ]


def rows_without_pads(batches):
    rows = []
    for batch in batches:
        for row in zip(*batch):
            rows.append(tuple(tuple(ids[ids != 0].tolist()) for ids in row))
    return [row for row in rows if any(row)]  # rows of pads alone fill a batch up


def expected_rows(pairs):
    """Teacher forcing spelled out in plain Python."""
    return [
        ((*byte_ids(source), END), (START, *byte_ids(target)), (*byte_ids(target), END))
        for source, target in zip(pairs.sources, pairs.targets)
    ]


FORMS = {
    "longest": {"bucket_boundaries": None},
    "buckets": {},
    "packed": {"packed_length": 29},
    "micro_batches": {"num_micro_batches": 3},
}


def unpacked(batches, epoch=0):
    """The pairs of an epoch of packed batches, by their segment ids."""
    rows = []
    for inputs, labels in batches.dataset((epoch, 0)).take(len(batches.plan(epoch))):
        for source, target, label, source_ids, target_ids in zip(
            inputs["encoder_token_ids"].numpy(),
            inputs["decoder_token_ids"].numpy(),
            labels.numpy(),
            inputs["encoder_segment_ids"].numpy(),
            inputs["decoder_segment_ids"].numpy(),
        ):
            assert (source[source_ids == 0] == 0).all()
            assert (label[target_ids == 0] == 0).all()
            assert source_ids.max() == target_ids.max()
            for number in range(1, source_ids.max() + 1):
                sides = (
                    source[source_ids == number],
                    target[target_ids == number],
                    label[target_ids == number],
                )
                rows.append(tuple(tuple(ids.tolist()) for ids in sides))
    return rows


def rows_of_epoch(batches, epoch):
    return (
        unpacked(batches, epoch) if batches._packed_length else rows_without_pads(as_arrays(batches, epoch))
    )


def test_one_pair_by_hand():
    batches = make_batches(TextPairs(["Hi"], ["é!a"]), bucket_boundaries=None)
    ((encoder, decoder, labels),) = as_arrays(batches)
    assert encoder.tolist() == [[75, 108, 2]]
    assert decoder.tolist() == [[1, 198, 172, 36, 100]]
    assert labels.tolist() == [[198, 172, 36, 100, 2]]
    assert (batches.num_pairs, batches.num_tokens, batches.padding_share) == (1, 5, 0)
    ((encoder, decoder, labels),) = as_arrays(make_batches(TextPairs(["Hi"], ["é!a"])))
    assert encoder.tolist() == [[75, 108, 2, 0, 0]] + [[0] * 5] * 8  # 47 // 5 rows


@pytest.mark.sampled(2)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shuffle", [True, False])
def test_an_epoch_holds_every_pair_once(form, shuffle):
    pairs = random_pairs(101)
    batches = make_batches(pairs, shuffle=shuffle, **FORMS[form])
    orders = [rows_of_epoch(batches, epoch) for epoch in (0, 7)]
    for rows in orders:
        assert collections.Counter(rows) == collections.Counter(expected_rows(pairs))
    assert (orders[0] != orders[1]) == shuffle
    assert batches.num_pairs == 101
    assert batches.over_long == {}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("form", FORMS)
def test_shapes_budget_pads_and_counts(form):
    batches = make_batches(random_pairs(151), **FORMS[form])
    arrays = as_arrays(batches)
    assert len(batches) == len(arrays)
    num_real = [sum((ids != 0).sum() for ids in side) for side in zip(*arrays)]
    num_positions = sum(encoder.size + labels.size for encoder, _, labels in arrays)
    assert batches.num_tokens == num_real[2]
    assert batches.padding_share == pytest.approx(1 - (num_real[0] + num_real[2]) / num_positions)
    for encoder, decoder, labels in arrays:
        assert decoder.shape == labels.shape
        for ids in (encoder, labels):
            assert ids.dtype == np.int32
            assert ids.size <= 47
            assert (np.diff((ids == 0).astype(int), axis=1) >= 0).all()  # from the first pad on, pads alone


def test_batches_padded_to_their_longest_have_no_needless_column():
    for encoder, _, labels in as_arrays(make_batches(random_pairs(151), bucket_boundaries=None)):
        assert (encoder[:, -1] != 0).any()
        assert (labels[:, -1] != 0).any()
        assert (encoder[:, 0] != 0).all()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("form", ["buckets", "micro_batches", "packed"])
def test_there_is_one_shape_for_each_bucket(form):
    arrays = as_arrays(make_batches(random_pairs(151), **FORMS[form]))
    shapes = {(encoder.shape, labels.shape) for encoder, _, labels in arrays}
    assert len(shapes) == len({encoder.shape[1] for encoder, _, _ in arrays}) < len(arrays)


def test_each_pair_goes_to_the_smallest_bucket_that_holds_both_sides():
    pairs = random_pairs(101)
    for encoder, decoder, labels in as_arrays(make_batches(pairs)):
        for row in zip(encoder, decoder, labels):
            longest = max((ids != 0).sum() for ids in row)
            assert not longest or encoder.shape[1] == min(b for b in BOUNDARIES if b >= longest)


@pytest.mark.extended
@pytest.mark.parametrize("form", slow_but(("longest", "micro_batches"), FORMS))
def test_the_batches_from_any_place_on_are_the_rest(form):
    pairs = random_pairs(19)
    batches = make_batches(pairs, **FORMS[form])
    count = 2 * len(batches) + 3
    whole = [
        [ids.numpy().tolist() for ids in tf.nest.flatten(batch)] for batch in batches.dataset().take(count)
    ]
    position, passed = BatchPosition(), 0
    while passed < count:
        other = make_batches(pairs, **FORMS[form])  # nothing is left over from what was asked before
        rest = [
            [ids.numpy().tolist() for ids in tf.nest.flatten(batch)]
            for batch in other.dataset(position).take(count - passed)
        ]
        assert rest == whole[passed:]
        position, passed = batches.after(position), passed + batches.num_micro_batches
    assert position.epoch == 2


def test_the_order_is_a_function_of_the_seed():
    pairs = random_pairs(71)
    first, again, other = (
        [rows_of_epoch(make_batches(pairs, seed=seed), epoch) for epoch in range(3)] for seed in (3, 3, 5)
    )
    assert first == again
    assert all(first[i] != epoch for i in range(3) for epoch in first[i + 1 :] + other)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("form", ["longest", "buckets", "packed"])
def test_micro_batches_and_workers_share_the_rows_of_an_update(form):
    pairs = random_pairs(97)
    options = {**FORMS[form], "num_micro_batches": 2}
    workers = [make_batches(pairs, worker=(number, 3), **options) for number in range(3)]
    whole = make_batches(pairs, **FORMS[form])
    seen = []
    rows = {labels.shape[0] for _, labels, _ in make_batches(pairs, num_devices=4).dataset().take(9)}
    assert all(count % 4 == 0 for count in rows)
    for update, *parts in zip(whole.plan(0), *(_in_twos(worker) for worker in workers)):
        parts = [part for worker in parts for part in worker]
        assert len({labels.shape for _, labels, _ in parts}) == 1
        tokens = [(labels.numpy() != 0).sum() for _, labels, _ in parts]
        assert sum(tokens) == update.num_tokens
        # Keras averages the two micro-batches; the workers' parts are summed.
        total = sum((labels.numpy() != 0).sum(axis=1) @ weights.numpy() for _, labels, weights in parts)
        assert total / 2 == pytest.approx(1)
        seen += [tuple(row[row != 0].tolist()) for _, labels, _ in parts for row in labels.numpy()]
    if form != "packed":
        labels = collections.Counter(row[2] for row in expected_rows(pairs))
        assert collections.Counter(filter(None, seen)) == labels


def _in_twos(batches):
    elements = list(batches.dataset().take(len(batches)))
    return list(zip(elements[::2], elements[1::2]))


@pytest.mark.extended
@pytest.mark.parametrize("weight", slow_but([1.3], [0.5, 1.3, 2]))
def test_weights_say_how_often_the_pairs_of_a_corpus_come(weight):
    often, once = random_pairs(53), random_pairs(11, seed=1)
    once = TextPairs([f"z{text}" for text in once.sources], once.targets)
    batches = make_batches([often, once], weights=[weight, 1])
    num_epochs = 10
    seen = [collections.Counter(rows_of_epoch(batches, epoch)) for epoch in range(num_epochs)]
    for counts in seen:
        assert all(counts[row] == 1 for row in expected_rows(once))
        assert abs(sum(counts.values()) - 11 - weight * 53) < 1
    total = sum(seen, collections.Counter())
    by_pair = collections.Counter(expected_rows(often))  # the same short pair may stand in it twice
    for row, copies in by_pair.items():
        assert abs(total[row] / copies - weight * num_epochs) < 1
    with pytest.raises(ValueError, match=r"weights=\[1\] for 2"):
        make_batches([often, once], weights=[1])


def test_over_long_pairs_are_left_out_and_reported():
    # With END, 13 letters make 14 tokens: one too many for 13 tokens. 12 letters just fit.
    sources = ["a" * 12, "b" * 13, "c", "d", "e" * 29]
    targets = ["v", "w", "x" * 12, "y" * 13, "z" * 31]
    batches = make_batches(TextPairs(sources, targets), max_sequence_length=13)
    kept = expected_rows(TextPairs([sources[0], sources[2]], [targets[0], targets[2]]))
    assert sorted(rows_without_pads(as_arrays(batches))) == sorted(kept)
    assert batches.over_long == {"pairs": (2, 4, 5)}
    assert (batches.num_pairs, batches.num_tokens) == (2, 2 + 13)
    assert {batch[0].shape[1] for batch in as_arrays(batches)} == {13}
    assert batches.report() == (
        "Pairs: 2, batches: 1, target tokens: 15, padding: 61.5% of the positions. "
        "Too long, and left out of pairs: 3 pairs, line 2, 4, 5."
    )


def test_a_long_list_of_over_long_lines_is_cut_in_the_report_only():
    pairs = TextPairs(["a", *["b" * 31] * 1013], ["c"] * 1014)
    batches = make_batches(pairs)
    assert batches.over_long == {"pairs": tuple(range(2, 1015))}
    assert batches.report().endswith(": 1,013 pairs, line 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 and 1,003 more.")
    assert make_batches(TextPairs(["a", "b" * 31], ["c", "d"])).report().endswith(": 1 pair, line 2.")
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
    batches = translation_batches(TextPairs(["a"], ["b"]), ByteTokenizer(), swapped, bucket_boundaries=None)
    ((encoder, decoder, labels),) = as_arrays(batches)
    assert (encoder.tolist(), decoder.tolist(), labels.tolist()) == ([[100, 2]], [[293, 101]], [[101, 283]])


def test_more_texts_than_one_call_of_the_tokenizer_takes(monkeypatch):
    monkeypatch.setattr("keras_attn.data.token_pairs._TEXTS_PER_TOKENIZER_CALL", 13)
    sizes = []

    class Counting(ByteTokenizer):
        def tokenize(self, texts):
            sizes.append(len(texts))
            return super().tokenize(texts)

    pairs = random_pairs(31)
    batches = translation_batches(pairs, Counting(), ByteTokenizer())
    assert sizes == [13, 13, 5]
    for _ in range(2):
        rows = rows_without_pads(as_arrays(batches))
        assert collections.Counter(rows) == collections.Counter(expected_rows(pairs))
    assert sizes == [13, 13, 5]  # an epoch costs no tokenizing


def test_bad_arguments():
    pairs = random_pairs(3)
    with pytest.raises(ValueError, match="Received: max_sequence_length=0"):
        make_batches(pairs, max_sequence_length=0)
    with pytest.raises(ValueError, match="Received: max_tokens=0"):
        make_batches(pairs, max_tokens=0)
    for name in ("num_micro_batches", "num_devices"):
        with pytest.raises(ValueError, match=f"`{name}` must be a positive integer. Received: {name}=0"):
            make_batches(pairs, **{name: 0})
    with pytest.raises(ValueError, match=r"Received: worker=\(2, 2\)"):
        make_batches(pairs, worker=(2, 2))


def test_boundaries_from_the_longest_length_on_are_replaced_by_it():
    pairs = TextPairs(["a" * 12, "b" * 3, "c" * 6], ["d", "e", "f"])
    shapes = {encoder.shape[1] for encoder, _, _ in as_arrays(make_batches(pairs, max_sequence_length=13))}
    assert shapes == {5, 7, 13}


def tiny_model():
    encoder = keras.Input((None,), dtype="int32", name="encoder_token_ids")
    decoder = keras.Input((None,), dtype="int32", name="decoder_token_ids")
    masks = {
        f"{side}_padding_mask": keras.Input((None,), dtype="bool", name=f"{side}_padding_mask")
        for side in ("encoder", "decoder")
    }
    summary = keras.layers.GlobalAveragePooling1D(keepdims=True)(
        keras.layers.Embedding(259, 3)(encoder), mask=masks["encoder_padding_mask"]
    )
    logits = keras.layers.Dense(259)(keras.layers.Embedding(259, 3)(decoder) + summary)
    logits = logits * keras.ops.cast(masks["decoder_padding_mask"], "float32")[..., None]
    return keras.Model({"encoder_token_ids": encoder, "decoder_token_ids": decoder, **masks}, logits)


@pytest.mark.extended
@pytest.mark.parametrize("position", slow_but([(1, 2)], [(0, 0), (1, 2)]))
def test_keras_fit_sees_every_pair_each_epoch_in_a_new_order(position):
    pairs = random_pairs(37)
    batches = make_batches(pairs)
    seen = []

    def spying_loss(labels, logits):
        seen.extend(tuple(row[row != 0].tolist()) for row in labels.numpy() if row.any())
        return keras.ops.mean(logits, axis=-1)

    model = tiny_model()
    model.compile(optimizer="sgd", loss=spying_loss, run_eagerly=True)
    steps = 2 * len(batches) - position[1]
    model.fit(batches.dataset(position), epochs=1, steps_per_epoch=steps, shuffle=False, verbose=0)
    expected = collections.Counter(row[2] for row in expected_rows(pairs))
    whole = [[row[2] for row in rows_of_epoch(batches, epoch)] for epoch in (position[0], position[0] + 1)]
    assert collections.Counter(whole[0]) == collections.Counter(whole[1]) == expected
    assert seen == (whole[0] + whole[1])[-len(seen) :]
    assert len(seen) > 37
    assert whole[0] != whole[1]


@pytest.mark.parametrize("form", slow_but(("longest", "packed"), FORMS))
def test_batches_of_ids_on_disk_are_those_of_ids_in_memory(tmp_path, form):
    corpora = [random_pairs(31), random_pairs(17, longest=61, seed=3), random_pairs(11, seed=5)]
    options = {**FORMS[form], "weights": [1, 2, 0.5], "seed": 7}
    in_memory = make_batches(corpora, **options)
    on_disk = make_batches(corpora, **options, token_folder=tmp_path / "run" / "tokens")
    assert on_disk.report() == in_memory.report()
    assert "Too long, and left out of random (2): " in on_disk.report()
    for epoch in range(2):
        for batch, expected in zip(as_arrays(on_disk, epoch), as_arrays(in_memory, epoch), strict=True):
            for array, other in zip(batch, expected):
                np.testing.assert_array_equal(array, other)


def test_ids_on_disk_are_made_once(tmp_path, monkeypatch):
    pairs = random_pairs(31)
    first = make_batches(pairs, token_folder=tmp_path / "tokens")

    def refuse(*arguments):
        raise AssertionError("tokenized again")

    monkeypatch.setattr("keras_attn.data.token_pairs.tokenize_pairs", refuse)
    again = make_batches(pairs, token_folder=tmp_path / "tokens")
    assert rows_without_pads(as_arrays(again)) == rows_without_pads(as_arrays(first))
    (tmp_path / "tokens" / "source_ids.bin").write_bytes(b"\1\0\0\0")
    with pytest.raises(ValueError, match=r"tokens is damaged: it holds 1 source ids of \d+"):
        make_batches(pairs, token_folder=tmp_path / "tokens")


class ReversedBytes(ByteTokenizer):
    def _texts_to_ids(self, texts):
        token_ids = super()._texts_to_ids(texts)
        return token_ids.with_values(2 * FIRST_BYTE + 255 - token_ids.values)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("change", ["texts", "tokenizer", "length", "start", "form"])
def test_ids_of_other_texts_or_tokenizers_are_not_used(tmp_path, change):
    pairs, tokenizer, given = random_pairs(31), ByteTokenizer(), {}
    changed = {
        "texts": (random_pairs(31, seed=1), tokenizer, {}),
        "tokenizer": (pairs, ReversedBytes(), {}),
        "length": (pairs, tokenizer, {"max_sequence_length": 11}),
        "start": (pairs, tokenizer, {"form": PairForm(target_start=(1, 7))}),
        "form": (pairs, tokenizer, {"form": PairForm(lambda texts: tokenizer.tokenize(texts)[:, ::-1])}),
    }[change]
    folder = {"token_folder": tmp_path / "tokens"}
    for texts, of_pairs, options in ((pairs, tokenizer, given), changed, (pairs, tokenizer, given)):
        options = {"max_tokens": 256, "max_sequence_length": 37, **options}
        kept = as_arrays(translation_batches(texts, of_pairs, of_pairs, **options, **folder))
        made = as_arrays(translation_batches(texts, of_pairs, of_pairs, **options))
        assert rows_without_pads(kept) == rows_without_pads(made)


def test_ids_that_a_killed_process_left_unfinished_are_made_anew(tmp_path):
    (tmp_path / ".unfinished-1234-0-tokens").mkdir()
    (tmp_path / ".unfinished-1234-0-tokens" / "source_ids.bin").write_bytes(b"half")
    batches = make_batches(random_pairs(31), token_folder=tmp_path / "tokens")
    assert batches.num_pairs == 31
    assert [path.name for path in tmp_path.iterdir()] == ["tokens"]


def test_a_tokenizer_that_fails_leaves_no_ids_on_disk(tmp_path):
    tokenizer = ByteTokenizer()
    tokenizer.vocabulary_size = 50
    with pytest.raises(ValueError, match="tokenizer's ids must be from 1"):
        translation_batches(random_pairs(31), tokenizer, tokenizer, token_folder=tmp_path / "run" / "tokens")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("num_devices", [1, 2])
def test_masks_are_true_at_the_tokens_in_a_dtype_that_several_devices_can_add(num_devices):
    batches = make_batches(random_pairs(23), num_devices=num_devices)
    inputs = next(iter(batches.dataset()))[0]
    of_tensorflow = keras.backend.backend() == "tensorflow"
    for side in ("encoder", "decoder"):
        mask = np.asarray(inputs[f"{side}_padding_mask"])
        assert mask.dtype == ("int32" if num_devices > 1 and of_tensorflow else "bool")
        np.testing.assert_array_equal(mask, np.asarray(inputs[f"{side}_token_ids"]) != 0)
