"""Spans of tokens that are parts of a character, as those of bytes are."""

import re

import numpy as np
import pytest
import tensorflow as tf
from helpers_seed import set_seed

import keras_attn
from keras_attn.export import run_saved_model
from keras_attn.layers import TokenClassificationHead
from keras_attn.models import EncoderTransformer, EncoderWithHead
from keras_attn.tasks.spans import whole_characters
from keras_attn.text import ByteTokenizer

TEXTS = ["Zoë lives in Łódź", "", "é", "emoji 😀, ümläut", "日本"]


def test_bytes_are_widened_to_the_characters_that_they_are_parts_of():
    for text in TEXTS:
        of_byte = [number for number, character in enumerate(text) for _ in character.encode()]
        sizes = np.cumsum([0, *(len(character.encode()) for character in text)])
        pairs = [(start, end) for end in range(len(of_byte) + 1) for start in range(end)]
        if not pairs:
            continue
        expected = [(sizes[of_byte[start]], sizes[of_byte[end - 1] + 1]) for start, end in pairs]
        starts, ends = np.array(pairs, "int32").T
        found = whole_characters(tf.constant([text]), tf.zeros(len(pairs), tf.int64), starts, ends)
        np.testing.assert_array_equal(np.stack(found, 1), expected)


def test_a_span_without_bytes_is_empty():
    places = tf.constant([0, 3, 0])
    found = whole_characters(tf.constant(["abc", ""]), tf.constant([0, 0, 1], tf.int64), places, places)
    np.testing.assert_array_equal(np.stack(found), [[0, 3, 0], [0, 3, 0]])


def over_bytes(task, num_logits, *arguments, **options):
    set_seed(0)
    encoder = EncoderTransformer.from_sizes(259, 2, hidden_dim=16, num_heads=2, intermediate_dim=32)
    model = EncoderWithHead(encoder, TokenClassificationHead(num_logits))
    return task(model, ByteTokenizer(), *arguments, **options)


@pytest.mark.extended
@pytest.mark.parametrize("aggregation", ["simple", "none"])
def test_spans_of_bytes_are_whole_characters(aggregation):
    tagger = over_bytes(keras_attn.TokenClassifier, 3, ["O", "B-PER", "I-PER"], aggregation=aggregation)
    found = tagger(TEXTS)
    assert any(not span.text.isascii() for spans in found for span in spans)
    for text, spans in zip(TEXTS, found):
        assert all(span.text == text[span.start : span.end] != "" for span in spans)
    marked = tagger.default_answers(TEXTS)
    assert marked[1] == ""
    # A mark has characters, each stands once, and without the marks the text is what it was.
    assert not any("[](" in text for text in marked)
    assert [re.sub(r"\[([^]]+)\]\([A-Z-]+\)", r"\1", text) for text in marked] == TEXTS


@pytest.mark.extended
def test_an_answer_of_one_byte_is_a_whole_character(tmp_path):
    answerer = over_bytes(keras_attn.QuestionAnswerer, 2, max_answer_length=1)
    contexts = ["ë😀ł", "日本", "ab"]
    found = answerer(["who?"] * 3, contexts)
    for context, answer in zip(contexts, found):
        assert answer.text == context[answer.start : answer.end]
        assert len(answer.text) == 1
    version = answerer.export(tmp_path / "it", ["who?", "ë"], signatures=["answer"])
    request = {"signature": "answer", "inputs": {"inputs": ["who?"] * 3, "contexts": contexts}}
    served = run_saved_model(version, [request])[0]["outputs"]
    assert served["outputs"] == [answer.text for answer in found]
    assert served["starts"] == [answer.start for answer in found]
    assert served["ends"] == [answer.end for answer in found]
