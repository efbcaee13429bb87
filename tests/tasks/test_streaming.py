"""Streams of a greedy translation: the same text, in pieces that are never taken back."""

import types

import numpy as np
import pytest
from helpers_marks import CUTS_ARE_EXPECTED, slow_but
from helpers_seed import set_seed
from helpers_translators import INVALID_UTF8, ODD_TEXTS, SENTENCES, byte_translator, subword_translator

import keras_attn
from keras_attn.text import ByteTokenizer

pytestmark = [pytest.mark.extended, CUTS_ARE_EXPECTED]


@pytest.fixture(scope="module", params=[byte_translator, subword_translator])
def translator(request):
    return request.param()


@pytest.mark.parametrize(
    "texts", [SENTENCES, [*ODD_TEXTS, INVALID_UTF8, "lone \ud800 surrogate"]], ids=["plain", "odd"]
)
def test_the_pieces_are_the_greedy_translation(translator, texts):
    for text in texts:
        pieces = list(translator.stream(text))
        assert "".join(pieces) == translator(text, num_beams=1)
        assert all(pieces)


@pytest.mark.parametrize("policy", slow_but(["mixed_bfloat16"], ["float32", "mixed_bfloat16"]))
def test_33_texts_under_a_policy(policy):
    set_seed(3)
    model = keras_attn.models.Seq2SeqTransformer.from_sizes(
        259,
        2,
        2,
        hidden_dim=32,
        num_heads=2,
        intermediate_dim=48,
        max_sequence_length=97,
        normalize_first=True,
        tie_output=False,
        dtype=policy,
    )
    # Logits that are close to each other, of texts that differ, past the first 16 slots of the cache, and the next 16.
    rng = np.random.default_rng(3)
    for weight in model.trainable_variables:
        if len(weight.shape) > 1:
            scale = (3 if "embed" in weight.path else 2.5) / np.sqrt(weight.shape[0])
            weight.assign(rng.normal(size=weight.shape) * scale)
    tokenizer = ByteTokenizer()
    translator = keras_attn.Translator(model, tokenizer, tokenizer, max_length=37)
    letters = list("abcdefgh äöü")
    texts = ["".join(rng.choice(letters, rng.integers(1, 60))) for _ in range(33)]
    expected = [translator(text, num_beams=1) for text in texts]
    assert ["".join(translator.stream(text)) for text in texts] == expected
    assert len(set(expected)) > 25


@pytest.mark.slow
def test_a_compiled_stream_is_the_compiled_translation():
    translator = byte_translator(jit_compile=True)
    for text in SENTENCES[:2]:
        assert "".join(translator.stream(text)) == translator(text, num_beams=1)


@pytest.mark.slow
def test_other_weights_give_other_texts_that_are_streamed_alike():
    translator, rng, lengths = byte_translator(max_length=37), np.random.default_rng(3), []
    embedding = translator.model.target_embedding.token.embeddings
    for _ in range(12):
        # Bytes of characters of two and three bytes, and letters: whole characters and broken ones.
        embedding.assign(rng.normal(size=embedding.shape) * 0.3)
        likely = 3 + np.array([0x61, 0x62, 0xC3, 0xA4, 0xE2, 0x82, 0xAC, 0x20])
        translator.model.decoder_norm.beta.assign(np.asarray(embedding)[likely].sum(0))
        pieces = list(translator.stream("ab"))
        assert "".join(pieces) == translator("ab", num_beams=1)
        assert not any("\N{REPLACEMENT CHARACTER}" in piece[-1] for piece in pieces[:-1])
        lengths.append(len(pieces))
    assert max(lengths) > 5


def test_a_piece_comes_before_the_next_step_is_made():
    translator = byte_translator()
    steps, graph_of = [], translator.graph_of

    def counting(key, *arguments, **options):
        graph = graph_of(key, *arguments, **options)
        return lambda *inputs: (
            (steps.append(key[0]), graph(*inputs))[1] if key[0] == "stream_step" else graph(*inputs)
        )

    def with_outputs(key, *arguments, **options):
        counted = counting(key, *arguments, **options)
        counted.structured_outputs = graph_of(key, *arguments, **options).structured_outputs
        return counted

    translator.graph_of = with_outputs
    stream = translator.stream(SENTENCES[0])
    assert isinstance(stream, types.GeneratorType)
    assert steps == []
    made = []
    for piece in stream:
        made.append((len(steps), piece))
    assert made[0][0] < made[-1][0] <= translator.max_length


def test_an_empty_text_has_no_piece(translator):
    assert list(translator.stream("")) == []


def test_a_limit_is_kept():
    translator = byte_translator()
    for max_length in (1, 5):
        expected = translator(SENTENCES[0], num_beams=1, max_length=max_length)
        assert "".join(translator.stream(SENTENCES[0], max_length)) == expected


@pytest.mark.parametrize("max_length", [0, 38, 2.0])
def test_a_wrong_limit_is_refused_at_once(max_length):
    with pytest.raises(
        ValueError, match=r"`max_length` must be (in \[1, 37\]|a positive integer)\. Received: max_length="
    ):
        byte_translator().stream("a", max_length)


def test_a_list_is_refused_at_once(translator):
    with pytest.raises(ValueError, match=r"`text` must be a string\. Received: list\."):
        translator.stream(["a"])
