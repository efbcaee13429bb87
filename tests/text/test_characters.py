"""Characters that a model has not met in training: what is counted, when it is told, and that it is kept."""

import io
import sys

import numpy as np
import pytest
import tensorflow as tf
from helpers_encoder_tasks import classifier
from helpers_text_generators import byte_generator
from helpers_translators import byte_translator

import keras_attn
from keras_attn.runs.combined_translators import tokenizer_files
from keras_attn.runs.task_commands import translate_lines
from keras_attn.text import (
    ByteTokenizer,
    SentencePieceTokenizer,
    WordPieceTokenizer,
    characters_of,
    load_tokenizer,
)
from keras_attn.text.characters import are_many

TEXTS = ["der müde Hund", "Ein Hund, 12 Katzen! $x^2$ [a-z] \\ ]"]
# A text, and how many of its characters `TEXTS` lack as they stand: counted by hand.
COUNTED = {
    "der müde": (0, 7),
    "\tder \u200b\nHund": (0, 7),  # white space and invisible characters do not count
    "[a-z]\\]$^": (0, 9),
    "猫と犬 der": (3, 6),
    "u\u0308": (1, 2),
    "Ｅｉｎ": (3, 3),
    "HUND": (3, 4),
    "😀": (1, 1),
    "": (0, 0),
    "\r\n": (0, 0),
}
# Tokenizers that normalise read these as characters that are known.
NORMALISED = {"u\u0308": (0, 1), "Ｅｉｎ": (0, 3)}
LOWERCASE = {**NORMALISED, "HUND": (0, 4)}


def byte_tokenizer():
    tokenizer = ByteTokenizer()
    tokenizer.characters = characters_of(TEXTS)
    return tokenizer


def test_characters_are_sorted_and_without_white_space():
    assert characters_of(["Hund\u2028 und\t", "", "Katze\x00\ud800😀"]) == "HKadentuz😀"
    assert characters_of([]) == ""
    many = ["ab"] * 5000 + ["猫"]
    assert characters_of(many) == "ab猫"
    assert characters_of(["a" * (1 << 20) + "ü"]) == "aü"


@pytest.mark.parametrize(
    ("make", "others"),
    [
        (byte_tokenizer, {}),
        (lambda: SentencePieceTokenizer.train(TEXTS * 9, 320), NORMALISED),
        (lambda: SentencePieceTokenizer.train(TEXTS * 9, 320, lowercase=True), LOWERCASE),
        (lambda: SentencePieceTokenizer.train(TEXTS * 9, 320, keep_white_space=True), {}),
        (lambda: WordPieceTokenizer.train(TEXTS * 9, 120), {"u\u0308": (1, 2)}),
        (
            lambda: WordPieceTokenizer.train(TEXTS * 9, 120, lowercase=True),
            {"u\u0308": (0, 1), "HUND": (0, 4)},
        ),
    ],
)
def test_unknown_characters_are_counted_as_the_tokenizer_reads_them(make, others, tmp_path):
    tokenizer = make()
    expected = COUNTED | others
    graph = tf.function(
        tokenizer.count_unknown_characters, [tf.TensorSpec([None], tf.string)], autograph=False
    )
    for count in (tokenizer.count_unknown_characters, graph):
        num_unknown, num_characters = count(tf.constant(list(expected)))
        counts = zip(num_unknown.numpy().tolist(), num_characters.numpy().tolist())
        assert dict(zip(expected, counts)) == expected
    assert graph(tf.constant([], tf.string))[0].shape == (0,)
    tokenizer.save(tmp_path / "tokenizer")
    assert load_tokenizer(tmp_path / "tokenizer").characters == tokenizer.characters == characters_of(TEXTS)


def test_a_tokenizer_that_does_not_know_says_nothing(tmp_path):
    tokenizer = ByteTokenizer()
    assert tokenizer.count_unknown_characters(["a"]) is None
    tokenizer.save(tmp_path / "tokenizer")
    assert load_tokenizer(tmp_path / "tokenizer").characters is None
    # Runs that are averaged may have met different texts.
    assert tokenizer_files(tokenizer) == tokenizer_files(byte_tokenizer())
    (tmp_path / "tokenizer" / "characters.txt").write_bytes(b"\xff")
    with pytest.raises(ValueError, match=r"characters\.txt must be UTF-8"):
        load_tokenizer(tmp_path / "tokenizer")


def test_a_single_accent_is_not_worth_a_word_and_a_foreign_text_is():
    cases = {
        (0, 0): 0,
        (0, 9): 0,
        (1, 1): 1,
        (1, 2): 0,
        (1, 30): 0,
        (2, 3): 1,
        (2, 8): 1,
        (2, 9): 0,
        (9, 12): 1,
    }
    num_unknown, num_characters = np.array(list(cases)).T
    np.testing.assert_array_equal(are_many(num_unknown, num_characters), np.array(list(cases.values()), bool))


def test_the_status_of_every_text_task_tells_them(tmp_path):
    translator = byte_translator()
    texts = tf.constant(["der Hund", "猫と犬の時間です der", "müdé"])
    assert _statuses(translator, "score", texts, texts) == ["ok"] * 3
    translator.source_tokenizer.characters = characters_of(TEXTS)
    told = ["ok", "unknown_characters_8_of_11", "ok"]
    assert _statuses(translator, "score", texts, texts) == told
    assert "{} of {} characters" in translator.statuses["unknown_characters"]
    translator.save(tmp_path / "translator")
    loaded = keras_attn.load(tmp_path / "translator")
    assert _statuses(loaded, "score", texts, texts) == told

    generator = byte_generator()
    generator.tokenizer.characters = characters_of(TEXTS)
    assert _statuses(generator, "score", texts) == told

    task = classifier()
    task.tokenizer.characters = "abc"
    assert _statuses(task, "classify", tf.constant(["abc ab", "ab xyz"])) == [
        "ok",
        "unknown_characters_3_of_5",
    ]


def _statuses(task, signature, *inputs):
    answer = getattr(task.served_functions(task), signature)(*inputs)
    return [status.decode() for status in answer["status"].numpy()]


def test_translate_tells_which_lines_are_cut(monkeypatch, capfd):
    translator = byte_translator(num_beams=1)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    limit = translator.model.max_sequence_length
    translate_lines(translator, texts=["Hund", "x" * (limit + 7)])  # END is a token too
    sentence = f"Line 2 is too long ({limit + 8} tokens): only the first {limit} were read. Split it.\n"
    assert capfd.readouterr().err == sentence
    with pytest.warns(UserWarning, match="too long"):
        translator("x" * (limit + 7))


def test_translate_tells_them_on_standard_error(monkeypatch, capfd):
    translator = byte_translator(num_beams=1)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    translate_lines(translator, texts=["猫と犬"])
    assert capfd.readouterr().err == ""
    translator.source_tokenizer.characters = characters_of(TEXTS)
    translate_lines(translator, texts=["猫と犬"])
    written = capfd.readouterr()
    assert written.err == "3 of 3 characters are not in this model's training data.\n"
    assert written.out.count("\n") == 1
    translate_lines(translator, texts=["Hund", "猫 x", "", "猫と x"])
    written = capfd.readouterr()
    sentence = "Line 4: 2 of 3 characters are not in this model's training data.\n"
    assert (written.err, written.out.count("\n")) == (sentence, 4)
    translate_lines(translator, texts=["猫と", "Hund", "猫と x"])
    assert capfd.readouterr().err == (
        "Line 1: 2 of 2 characters are not in this model's training data. So it is in 2 of 3 lines.\n"
    )
