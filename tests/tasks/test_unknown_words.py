"""Words of the source in the place of unknown tokens, against attention read by hand."""

import keras
import numpy as np
import pytest
from helpers_marks import CUTS_ARE_EXPECTED
from helpers_translators import SENTENCES, byte_translator

import keras_attn
from keras_attn.generation import DecodingOptions
from keras_attn.tasks import replace_unknown_words
from keras_attn.text import SentencePieceTokenizer

pytestmark = [pytest.mark.extended, CUTS_ARE_EXPECTED]

UNKNOWN = 1
SOURCE = "a dog runs through Köpenick ."


@pytest.fixture(scope="module")
def translator():
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


def looked_at_by_hand(translator, source, prefix):
    """The word of the source under the greatest attention of the second of three layers, at each token of a prefix."""
    tokenizer, model = translator.source_tokenizer, translator.model
    source_ids = np.array([[*tokenizer.encode([source])[0], tokenizer.end_token_id]])
    start = translator.target_tokenizer.start_token_id
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
def test_unknown_tokens_become_the_words_that_they_looked_at(translator, source):
    encode = translator.target_tokenizer.encode
    prefix = [*encode(["dog"])[0], *encode(["Ω"])[0], *encode(["a ΩΩ dog"])[0], *encode(["Ω"])[0]]
    assert prefix.count(UNKNOWN) == 3
    # Only what is forced: nothing may be chosen after it but END.
    options = DecodingOptions(prefix_token_ids=[*prefix, translator.target_tokenizer.end_token_id])
    assert translator(source, options=options) == "dog  ⁇  a  ⁇  dog  ⁇ "
    copied = [
        word or "⁇"
        for word, token in zip(looked_at_by_hand(translator, source, prefix), prefix)
        if token == UNKNOWN
    ]
    expected = f"dog {copied[0]} a {copied[1]} dog {copied[2]}"
    assert replace_unknown_words(translator, source, options=options) == expected
    assert set(copied) - {"⁇"} <= set(source.split())


def test_every_text_gets_its_own_words(translator):
    tokenizer = translator.target_tokenizer
    options = DecodingOptions(prefix_token_ids=[*tokenizer.encode(["Ω dog Ω"])[0], tokenizer.end_token_id])
    texts = [SOURCE, "", "two children play", *SENTENCES]
    together = replace_unknown_words(translator, texts, options=options, batch_size=3)
    assert together == [replace_unknown_words(translator, text, options=options) for text in texts]
    assert together[1] == ""


def test_broken_and_long_text_give_words_too(translator):
    tokenizer = translator.target_tokenizer
    options = DecodingOptions(prefix_token_ids=[*tokenizer.encode(["Ω"])[0], tokenizer.end_token_id])
    repaired = b"caf\xe9 \xff dog".decode("utf-8", "replace")
    assert replace_unknown_words(translator, b"caf\xe9 \xff dog", options=options) in {*repaired.split(), "⁇"}
    assert replace_unknown_words(translator, "word " * 200_000, options=options) in {"word", "⁇"}
    assert replace_unknown_words(translator, "   ", options=options) in {"", "⁇"}


def test_known_words_stay_as_they_are(translator):
    suppressed = DecodingOptions(suppressed_token_ids=[UNKNOWN])
    expected = translator(SENTENCES, options=suppressed)
    assert replace_unknown_words(translator, SENTENCES, options=suppressed) == expected
    plain = byte_translator()  # has no unknown token at all
    assert replace_unknown_words(plain, SENTENCES) == plain(SENTENCES)
    assert replace_unknown_words(plain, SENTENCES, num_beams=1) == plain(SENTENCES, num_beams=1)
    assert replace_unknown_words(plain, []) == []
