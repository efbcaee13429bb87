"""Words linked by hand, offsets against slices of the text, and both against the attention of the model."""

import numpy as np
import pytest
from helpers_marks import CUTS_ARE_EXPECTED
from helpers_translators import ODD_TEXTS, SENTENCES, subword_translator

from keras_attn.tasks.given_translations import Word, word_alignment
from keras_attn.text import ByteTokenizer

pytestmark = CUTS_ARE_EXPECTED


@pytest.fixture(scope="module")
def translator():
    return subword_translator()


def spans_of(tokenizer, text):
    _, starts, stops = tokenizer.tokenize_with_offsets([text])
    return list(zip(starts.to_list()[0], stops.to_list()[0]))


def test_links_by_hand():
    """Tokens "the", " red", " b", "us" and "le", " 🚌", " rou", "ge"; " 🚌" is 5 bytes, and one character."""
    source, target = "the red bus", "le 🚌  rouge"
    source_spans = [(0, 3), (3, 7), (7, 9), (9, 11)]
    target_spans = [(0, 2), (2, 7), (7, 12), (12, 14)]
    found = word_alignment(source, target, source_spans, target_spans, [0, 3, 1, 4, 2])
    assert found.source_words == [Word("the", 0, 3), Word("red", 4, 7), Word("bus", 8, 11)]
    assert found.target_words == [Word("le", 0, 2), Word("🚌", 3, 4), Word("rouge", 6, 11)]
    # "ge" looked at END, and END at "b".
    assert found.links == [(0, 0), (2, 1), (1, 2)]


def test_white_space_and_empty_spans_link_nothing_of_their_own():
    found = word_alignment("a b", "é", [(0, 1), (1, 2), (2, 3)], [(0, 0), (0, 2)], [1, 2])
    assert found.links == [(1, 0)]
    assert word_alignment("", "", [], [], [0]).links == []


@pytest.mark.extended
def test_links_are_where_the_attention_is_strongest(translator):
    """Of translations that are all prefix: an untrained model's own are encoded to other tokens than it chose."""
    target, tokenizer = SENTENCES[3], translator.target_tokenizer
    tokens = tokenizer.encode([target])[0]
    translations, maps = translator(
        SENTENCES, num_beams=1, target_prefix=target, max_length=len(tokens), return_attention_scores=True
    )
    assert translations == [target] * len(SENTENCES)
    layer = len(translator.model.decoder_blocks) - 2
    alignments = translator.align(SENTENCES, translations)
    for source, attention_map, alignment in zip(SENTENCES, maps, alignments):
        assert [word.text for word in alignment.source_words] == source.split()
        assert [word.text for word in alignment.target_words] == target.split()
        for text, words in ((source, alignment.source_words), (target, alignment.target_words)):
            assert all(text[word.start : word.stop] == word.text for word in words)
        assert tokenizer.token_strings(tokens) == attention_map.target_tokens
        looked_at = attention_map.attention_scores[layer].mean(0).argmax(-1)
        spans = spans_of(translator.source_tokenizer, source), spans_of(tokenizer, target)
        assert alignment == word_alignment(source, target, *spans, looked_at.tolist())
    assert any(alignment.links for alignment in alignments)


@pytest.mark.extended
def test_one_text_and_its_own_translation(translator):
    text = SENTENCES[0]
    assert translator.align(text) == translator.align([text], [translator(text)])[0]
    assert translator.align([]) == []


@pytest.mark.extended
def test_odd_texts_are_aligned(translator):
    targets = ODD_TEXTS[::-1]
    short = [text[:12] for text in targets]
    alignments = translator.align(ODD_TEXTS, short)
    assert [len(a.target_words) for a in alignments] == [len(text.split()) for text in short]


def test_a_target_that_is_too_long_is_refused(translator):
    with pytest.raises(ValueError, match="`max_sequence_length` of the model is"):
        translator.align("a", "word " * 300)


@pytest.mark.parametrize("text", [*SENTENCES, "x😀 ﬁne  Ⅷ été", "", " a\tb "])
def test_offsets_cover_the_text_in_order(translator, text):
    for tokenizer in (translator.source_tokenizer, translator.target_tokenizer, ByteTokenizer()):
        ids, starts, stops = (x.to_list()[0] for x in tokenizer.tokenize_with_offsets([text]))
        assert ids == tokenizer.encode([text])[0]
        assert starts[1:] == stops[:-1]
        assert all(0 <= start <= stop <= len(text.encode()) for start, stop in zip(starts, stops))
        covered = b"".join(text.encode()[start:stop] for start, stop in zip(starts, stops)).decode()
        assert covered.split() == text.split()
    assert np.all(np.diff([0, *stops]) >= 0)
