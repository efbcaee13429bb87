"""Segmentations drawn anew for each epoch, against the texts they are of."""

import collections

import numpy as np
import pytest

from keras_attn.data import BatchPosition, TextPairs, translation_batches
from keras_attn.text import ByteTokenizer, SentencePieceTokenizer

END = 3
WORDS = [
    "der",
    "hund",
    "läuft",
    "schnell",
    "durch",
    "den",
    "tiefen",
    "schnee",
    "nach",
    "hause",
    "und",
    "bellt",
]


def make_pairs(num_pairs, seed=0, most=13):
    generator = np.random.default_rng(seed)
    sides = (
        [" ".join(generator.choice(WORDS, generator.integers(0, most))) for _ in range(num_pairs)]
        for _ in range(2)
    )
    return TextPairs(*sides, f"pairs {seed}")


@pytest.fixture(scope="module")
def tokenizers():
    texts = make_pairs(211).sources
    sizes = {"bpe": 331, "unigram": 283}
    return {kind: SentencePieceTokenizer.train(texts, size, kind) for kind, size in sizes.items()}


def make_batches(tokenizer, pairs, **options):
    options = {"max_tokens": 97, "max_sequence_length": 61, "bucket_boundaries": None} | options
    return translation_batches(pairs, tokenizer, tokenizer, **{"subword_sampling": 0.1} | options)


def arrays_of(batches, epoch, update=0):
    count = len(batches.plan(epoch)) - update
    return [
        [*map(np.array, (inputs["encoder_token_ids"], inputs["decoder_token_ids"], labels))]
        for inputs, labels, *_ in batches.dataset(BatchPosition(epoch, update)).take(count)
    ]


def rows_of(arrays):
    """The sources and labels of an epoch's pairs, without END, of which a packed row has several."""
    return [
        pair
        for sources, _, labels in arrays
        for row in zip(sources, labels)
        for pair in zip(*map(parts_of, row), strict=True)
    ]


def parts_of(ids):
    ends = np.flatnonzero(ids == END)
    return [tuple(ids[first:end].tolist()) for first, end in zip([0, *ends + 1], ends)]


def texts_of(tokenizer, rows):
    """The texts of pairs, counted."""
    return collections.Counter(zip(*map(tokenizer.decode, zip(*rows))))


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_drawn_ids_are_of_the_same_texts(tokenizers, kind):
    tokenizer, texts = tokenizers[kind], ["", "der ÿ hund, läuft", "x\ud800 \x00 y", *make_pairs(53).targets]
    drawn = tokenizer.sampling(0.3, 7)
    first, second = (drawn.tokenize(texts).to_list() for _ in range(2))
    assert first != second
    assert tokenizer.sampling(0.3, 7).tokenize(texts).to_list() == first
    assert tokenizer.sampling(0.3, 8).tokenize(texts).to_list() != first
    assert tokenizer.decode(first) == tokenizer.decode(second) == tokenizer.decode(tokenizer.encode(texts))


def test_a_share_of_the_merges_is_left_out():
    tokenizer = SentencePieceTokenizer.train(["ab"] * 3, 265, "bpe")
    assert tokenizer.token_strings(range(260, 265)) == ["ab", "▁ab", "a", "b", "▁"]
    drawn = tokenizer.sampling(0.25, 3).tokenize(["ab"] * 4000).to_list()
    counts = collections.Counter(map(len, drawn))
    # Neither merge is left out; the second; the first.
    assert [counts[n] / 4000 for n in (1, 2, 3)] == pytest.approx([0.75**2, 0.75 * 0.25, 0.25], abs=0.03)


@pytest.mark.parametrize(
    "form", [{}, {"bucket_boundaries": (11, 23, 37)}, {"packed_length": 79}, {"weights": [1, 2]}], ids=str
)
def test_epochs_have_all_pairs_in_other_segmentations(tokenizers, form):
    tokenizer = tokenizers["bpe"]
    pairs = [make_pairs(53), make_pairs(31, seed=1)]
    batches = make_batches(tokenizer, pairs, **form)
    usual = make_batches(tokenizer, pairs, subword_sampling=0.0, **form)
    assert batches.longest == usual.longest
    rows = [rows_of(arrays_of(batches, epoch)) for epoch in range(3)]
    expected = texts_of(tokenizer, rows_of(arrays_of(usual, 0)))
    assert [texts_of(tokenizer, of_epoch) for of_epoch in rows] == [expected] * 3
    assert len({frozenset(of_epoch) for of_epoch in rows}) == 3
    for _, inputs, labels in arrays_of(batches, 1) if "packed_length" not in form else []:
        np.testing.assert_array_equal(np.where(labels == END, 0, labels)[:, :-1], inputs[:, 1:])


def test_an_epoch_is_the_same_wherever_one_begins(tokenizers, tmp_path):
    (tmp_path / "tokens").mkdir()
    pairs = make_pairs(53)
    in_memory = make_batches(tokenizers["bpe"], pairs)
    whole = [array for epoch in range(3) for batch in arrays_of(in_memory, epoch) for array in batch]
    on_disk = make_batches(tokenizers["bpe"], pairs, token_folder=tmp_path / "run" / "tokens")
    later = make_batches(tokenizers["bpe"], pairs, token_folder=tmp_path / "run" / "tokens")
    again = [
        *(array for batch in arrays_of(on_disk, 0) for array in batch),
        *(array for batch in arrays_of(on_disk, 1)[:2] for array in batch),
        *(array for batch in arrays_of(later, 1, update=2) for array in batch),
        *(array for batch in arrays_of(later, 2) for array in batch),
    ]
    assert len(whole) == len(again)
    for array, other in zip(whole, again):
        np.testing.assert_array_equal(array, other)
    assert not list((tmp_path / "run" / "tokens").glob("sampled*"))
    other_seed = make_batches(tokenizers["bpe"], pairs, seed=1)
    assert set(rows_of(arrays_of(other_seed, 0))) != set(rows_of(arrays_of(in_memory, 0)))


def test_a_segmentation_that_is_too_long_gives_way_to_the_usual_one(tokenizers):
    tokenizer, pairs = tokenizers["bpe"], make_pairs(53)
    usual = make_batches(tokenizer, pairs, subword_sampling=0.0, max_sequence_length=11)
    batches = make_batches(tokenizer, pairs, subword_sampling=0.9, max_sequence_length=11)
    assert batches.over_long == usual.over_long != {}
    rows, as_before = (rows_of(arrays_of(x, 0)) for x in (batches, usual))
    assert texts_of(tokenizer, rows) == texts_of(tokenizer, as_before)
    assert max(len(side) for row in rows for side in row) == 10  # and END
    assert 0 < len(set(rows) & set(as_before)) < len(set(rows))


def test_other_tokenizers_are_refused():
    with pytest.raises(ValueError, match=r"`subword_sampling` draws .* Received: a ByteTokenizer"):
        make_batches(ByteTokenizer(), make_pairs(7))
