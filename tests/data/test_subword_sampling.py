"""Segmentations drawn anew for each epoch, against the texts they are of and the algorithm of the paper."""

import collections
import io
import itertools
import math

import numpy as np
import pytest
import sentencepiece

from keras_attn.data import BatchPosition, TextPairs, translation_batches
from keras_attn.text import ByteTokenizer, SentencePieceTokenizer

END = 3
WORDS = "der hund läuft schnell durch den tiefen schnee nach hause und bellt".split()


def make_pairs(num_pairs, seed=0, most=13):
    generator = np.random.default_rng(seed)
    sides = (
        [" ".join(generator.choice(WORDS, generator.integers(0, most))) for _ in range(num_pairs)]
        for _ in range(2)
    )
    return TextPairs(*sides, f"pairs {seed}")


@pytest.fixture(scope="module")
def tokenizer():
    return SentencePieceTokenizer.train([*make_pairs(211).sources, "ein ÿ, 12"], 331, "bpe")


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


def drawn(tokenizer, texts, dropout, seed=0):
    ids = tokenizer.tokenize(texts)
    values, row_splits = tokenizer.bpe_dropout()(
        ids.values.numpy(), ids.row_splits.numpy(), dropout, np.random.default_rng(seed)
    )
    return [values[begin:end].tolist() for begin, end in itertools.pairwise(row_splits)]


def test_drawn_ids_are_of_the_same_texts(tokenizer):
    texts = ["", "der ÿ hund, läuft", "x\ud800 \x00 y ツ", "12", *make_pairs(53).targets, ""]
    usual = tokenizer.encode(texts)
    assert drawn(tokenizer, texts, 0.0) == usual
    first = drawn(tokenizer, texts, 0.3)
    assert first != usual
    assert drawn(tokenizer, texts, 0.3) == first
    assert drawn(tokenizer, texts, 0.3, seed=1) != first
    assert tokenizer.decode(first) == tokenizer.decode(usual)


@pytest.mark.parametrize("split_by_whitespace", [True, False])
def test_each_step_leaves_out_a_share_of_the_merges(split_by_whitespace):
    """The frequencies of segmentations, against Algorithm 1 of the paper with all its branches."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["ab a", "ab a", "aab", "ba a"] * 5),
        model_writer=model,
        vocab_size=13,
        model_type="bpe",
        split_by_whitespace=split_by_whitespace,
        pad_id=0,
        unk_id=1,
        bos_id=2,
        eos_id=3,
        minloglevel=2,
    )
    tokenizer, dropout, count = SentencePieceTokenizer(model.getvalue()), 0.3, 20000
    order = {piece: i for i, piece in enumerate(tokenizer.token_strings(range(13)))}
    text = "ab aab"
    counts = collections.Counter(map(tuple, drawn(tokenizer, [text] * count, dropout)))
    found = {tuple(tokenizer.token_strings(ids)): n for ids, n in counts.items()}
    expected = segmentations(tuple("▁ab▁aab"), order, dropout, split_by_whitespace)
    assert len(expected) > 10
    assert sum(expected.values()) == pytest.approx(1)
    assert set(found) <= set(expected)
    for pieces, probability in expected.items():
        deviation = math.sqrt(count * probability * (1 - probability))
        assert abs(found.get(pieces, 0) - count * probability) < 4.5 * deviation + 3, pieces


def segmentations(pieces, order, dropout, across_words):
    """The probability of each end of Algorithm 1, for each word, or for the whole."""
    text = "".join(pieces)
    if across_words and text.count("▁") > 1:
        cut = text.rindex("▁")
        parts = (segmentations(tuple(part), order, dropout, False) for part in (text[:cut], text[cut:]))
        return {
            (*first, *second): p * q
            for (first, p), (second, q) in itertools.product(*(x.items() for x in parts))
        }
    possible = [i for i in range(len(pieces) - 1) if pieces[i] + pieces[i + 1] in order]
    possible.sort(key=lambda i: (order[pieces[i] + pieces[i + 1]], i))
    ends = collections.Counter({pieces: dropout ** len(possible)})
    for rank, i in enumerate(possible):
        after = (*pieces[:i], pieces[i] + pieces[i + 1], *pieces[i + 2 :])
        for end, probability in segmentations(after, order, dropout, False).items():
            ends[end] += (1 - dropout) * dropout**rank * probability
    return ends


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "form", [{}, {"bucket_boundaries": (11, 23, 37)}, {"packed_length": 79}, {"weights": [1, 2]}], ids=str
)
def test_epochs_have_all_pairs_in_other_segmentations(tokenizer, form):
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


@pytest.mark.extended
def test_an_epoch_is_the_same_wherever_one_begins(tokenizer, tmp_path):
    (tmp_path / "tokens").mkdir()
    pairs = make_pairs(53)
    in_memory = make_batches(tokenizer, pairs)
    whole = [array for epoch in range(3) for batch in arrays_of(in_memory, epoch) for array in batch]
    on_disk = make_batches(tokenizer, pairs, token_folder=tmp_path / "run" / "tokens")
    later = make_batches(tokenizer, pairs, token_folder=tmp_path / "run" / "tokens")
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
    other_seed = make_batches(tokenizer, pairs, seed=1)
    assert set(rows_of(arrays_of(other_seed, 0))) != set(rows_of(arrays_of(in_memory, 0)))


def test_a_segmentation_that_is_too_long_gives_way_to_the_usual_one(tokenizer):
    pairs = make_pairs(53)
    usual = make_batches(tokenizer, pairs, subword_sampling=0.0, max_sequence_length=11)
    batches = make_batches(tokenizer, pairs, subword_sampling=0.9, max_sequence_length=11)
    assert batches.over_long == usual.over_long != {}
    rows, as_before = (rows_of(arrays_of(x, 0)) for x in (batches, usual))
    assert texts_of(tokenizer, rows) == texts_of(tokenizer, as_before)
    assert max(len(side) for row in rows for side in row) == 10  # and END
    assert 0 < len(set(rows) & set(as_before)) < len(set(rows))


def test_other_tokenizers_are_refused():
    unigram = SentencePieceTokenizer.train(["ab"] * 3, 264, "unigram")
    for tokenizer, received in ((ByteTokenizer(), "ByteTokenizer"), (unigram, ".* model that is not BPE")):
        with pytest.raises(ValueError, match=f"`subword_sampling` leaves out merges .* Received: {received}"):
            make_batches(tokenizer, make_pairs(7))
