"""Given translations: words are aligned by attention, and unknown ones are replaced by those of the source."""

import keras
import numpy as np
import pytest
from helpers_marks import CUTS_ARE_EXPECTED
from helpers_translators import ODD_TEXTS, SENTENCES, byte_translator, subword_translator

import keras_attn
from keras_attn.generation import DecodingOptions
from keras_attn.tasks import replace_unknown_words
from keras_attn.tasks.given_translations import Word, word_alignment
from keras_attn.text import ByteTokenizer, SentencePieceTokenizer

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


UNKNOWN = 1
SOURCE = "a dog runs through Köpenick ."


@pytest.fixture(scope="module")
def translator_of_words():
    """A target vocabulary that spells no umlauts, and a source vocabulary of bytes."""
    keras.utils.set_random_seed(7)
    source = SentencePieceTokenizer.train(SENTENCES[:3], 290)
    target = SentencePieceTokenizer.train(SENTENCES[:3], 60, byte_fallback=False)
    sizes = {"hidden_dim": 12, "num_heads": 3, "intermediate_dim": 17, "max_sequence_length": 41}
    model = keras_attn.models.Seq2SeqTransformer.from_sizes(
        source.vocabulary_size, 1, 3, target_vocabulary_size=target.vocabulary_size, tie_output=False, **sizes
    )
    for weight in model.trainable_weights:  # fresh weights look nearly everywhere alike
        if weight.path.endswith("kernel"):
            weight.assign(weight * 6)
    return keras_attn.Translator(model, source, target, num_beams=2, max_length=17)


def looked_at_by_hand(translator_of_words, source, prefix):
    """The word of the source under the greatest attention of the second of three layers, at each token of a prefix."""
    tokenizer, model = translator_of_words.source_tokenizer, translator_of_words.model
    source_ids = np.array([[*tokenizer.encode([source])[0], tokenizer.end_token_id]])
    start = translator_of_words.target_tokenizer.start_token_id
    encoded = model.encode(source_ids)
    _, scores = model.decode(
        np.array([[start, *prefix[:-1]]]), encoded, source_ids != 0, return_attention_scores=True
    )
    places = scores[1].numpy()[0].mean(0).argmax(-1)
    words, number = [], -1
    for piece in tokenizer.token_strings(source_ids[0]):
        number += piece.startswith("▁")
        words.append(source.split()[number] if piece != "</s>" else None)
    return [words[place] for place in places]


@pytest.mark.parametrize("source", [SOURCE, "two children play", "x y z a b c dog"])
@pytest.mark.extended
def test_unknown_tokens_become_the_words_that_they_looked_at(translator_of_words, source):
    encode = translator_of_words.target_tokenizer.encode
    prefix = [*encode(["dog"])[0], *encode(["Ω"])[0], *encode(["a ΩΩ dog"])[0], *encode(["Ω"])[0]]
    assert prefix.count(UNKNOWN) == 3
    # Only what is forced: nothing may be chosen after it but END.
    options = DecodingOptions(prefix_token_ids=[*prefix, translator_of_words.target_tokenizer.end_token_id])
    assert translator_of_words(source, options=options) == "dog  ⁇  a  ⁇  dog  ⁇ "
    copied = [
        word or "⁇"
        for word, token in zip(looked_at_by_hand(translator_of_words, source, prefix), prefix)
        if token == UNKNOWN
    ]
    expected = f"dog {copied[0]} a {copied[1]} dog {copied[2]}"
    assert replace_unknown_words(translator_of_words, source, options=options) == expected
    assert set(copied) - {"⁇"} <= set(source.split())


@pytest.mark.extended
def test_every_text_gets_its_own_words(translator_of_words):
    tokenizer = translator_of_words.target_tokenizer
    options = DecodingOptions(prefix_token_ids=[*tokenizer.encode(["Ω dog Ω"])[0], tokenizer.end_token_id])
    texts = [SOURCE, "", "two children play", *SENTENCES]
    together = replace_unknown_words(translator_of_words, texts, options=options, batch_size=3)
    assert together == [replace_unknown_words(translator_of_words, text, options=options) for text in texts]
    assert together[1] == ""


@pytest.mark.extended
def test_broken_and_long_text_give_words_too(translator_of_words):
    tokenizer = translator_of_words.target_tokenizer
    options = DecodingOptions(prefix_token_ids=[*tokenizer.encode(["Ω"])[0], tokenizer.end_token_id])
    repaired = b"caf\xe9 \xff dog".decode("utf-8", "replace")
    assert replace_unknown_words(translator_of_words, b"caf\xe9 \xff dog", options=options) in {
        *repaired.split(),
        "⁇",
    }
    assert replace_unknown_words(translator_of_words, "word " * 200_000, options=options) in {"word", "⁇"}
    assert replace_unknown_words(translator_of_words, "   ", options=options) in {"", "⁇"}


@pytest.mark.extended
def test_known_words_stay_as_they_are(translator_of_words):
    suppressed = DecodingOptions(suppressed_token_ids=[UNKNOWN])
    expected = translator_of_words(SENTENCES, options=suppressed)
    assert replace_unknown_words(translator_of_words, SENTENCES, options=suppressed) == expected
    plain = byte_translator()  # has no unknown token at all
    assert replace_unknown_words(plain, SENTENCES) == plain(SENTENCES)
    assert replace_unknown_words(plain, SENTENCES, num_beams=1) == plain(SENTENCES, num_beams=1)
    assert replace_unknown_words(plain, []) == []
