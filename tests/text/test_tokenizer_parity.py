"""The pipelines of published tokenizers: the hard strings of tests/benchmarks/tokenizer_parity.py."""

import pytest
from helpers_marks import extended_but
from helpers_texts import fuzzed_texts, sentences
from helpers_tokenizer_parity import KINDS, before_end, hard_strings, named_difference, streamed

from keras_attn.tasks.streams import final_pieces
from keras_attn.text import ByteTokenizer

SENTENCES = sentences(1500)
EMOJI = ["👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽", "🧑🏿‍🚀é你\u0301 🇩🇪", "a 1️⃣"]


def check(kind, texts):
    pair = KINDS[kind](SENTENCES)
    expected, found = pair.encode(texts), pair.ours.preprocess(texts)[0].to_list()
    differing = [
        (text, ids, ours)
        for text, ids, ours in zip(texts, expected, found, strict=True)
        if ids != ours and named_difference(pair, text, ids, ours) is None
    ]
    assert differing == []
    rows = [before_end(pair.ours, ids) for ids in expected]
    assert pair.ours.decode(rows) == pair.decode(rows)
    for ids in found[:5]:
        pieces = streamed(pair.ours, ids)
        assert "".join(pieces) == pair.ours.decode([ids])[0]
        assert not any("\ufffd" in piece for piece in pieces)


@pytest.mark.parametrize("kind", extended_but(("Gemma",), KINDS))
def test_hard_strings_have_their_ids_and_are_decoded_and_streamed_like_theirs(kind):
    assert len(set(hard_strings())) == 500
    check(kind, [*EMOJI, *hard_strings(), *fuzzed_texts(300, seed=1)])


def test_a_stream_keeps_back_a_character_until_it_is_complete_and_gives_what_is_left_at_the_end():
    end = ByteTokenizer.open_end
    assert list(final_pieces(["a", "a\ufffd", "a\ufffd\ufffd", "a€", "a€b"], end)) == ["a", "€", "b"]
    assert list(final_pieces(["a", "a\ufffd"], end)) == ["a", "\ufffd"]
    assert list(final_pieces([], end)) == []
