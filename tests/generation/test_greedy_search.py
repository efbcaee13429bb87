"""Greedy search, which compares nothing, against a beam search of one beam, which is tested by hand."""

import functools

import keras
import numpy as np
import pytest
from helpers_marks import extended_but

from keras_attn.generation import DecodingOptions, SearchInputs, greedy_search
from keras_attn.models import Seq2SeqTransformer
from keras_attn.ops import empty_cache

V, SMALL_V, START, END = 4099, 29, 2, 3
# Options with a value a row, in and out of effect; the last leaves its row nothing that it may choose.
OPTIONS = {
    "none": {},
    "ends": {
        "min_length": [5, 1, 3, 1, 2],
        "max_length": [6, 2, 7, 1, 5],
        "stop_token_ids": [[7, 8], [-1, -1], [9, -1], [11, 12], [-1, 5]],
    },
    "repetition": {"repetition_penalty": [1.0, 1.7, 1.2, 3.0, 1.0], "no_repeat_ngram_size": [0, 1, 2, 3, 1]},
    "prefix, and of scores alone": {
        "prefix_token_ids": [[5, 6, 7], [-1, -1, -1], [8, -1, -1], [3, -1, -1], [9, 9, -1]],
        "wu_length_penalty": 0.7,
        "coverage_penalty": 0.3,
    },
}


@functools.cache
def model_of(vocabulary_size):
    keras.utils.set_random_seed(3)
    return Seq2SeqTransformer.from_sizes(
        vocabulary_size,
        num_encoder_layers=1,
        num_decoder_layers=1,
        hidden_dim=12,
        num_heads=2,
        intermediate_dim=20,
    )


@pytest.mark.parametrize("name", extended_but(("repetition",), OPTIONS))
def test_greedy_search_is_a_search_of_one_beam(name):
    model, source = model_of(V), np.random.default_rng(4).integers(4, V, (5, 7))
    arguments = {"max_length": 5, "options": DecodingOptions(**OPTIONS[name])}
    greedy = model.generate(source, START, END, **arguments)
    beams = model.generate(source, START, END, num_beams=1, num_return_sequences=1, **arguments)
    np.testing.assert_array_equal(
        keras.ops.convert_to_numpy(greedy), keras.ops.convert_to_numpy(beams.token_ids)[:, 0]
    )


def test_a_row_without_a_possible_token_has_no_answer():
    model, source = model_of(SMALL_V), np.random.default_rng(4).integers(4, SMALL_V, (2, 7))
    # Every token of the vocabulary is forbidden to the first row, and none to the second.
    suppressed = np.stack([np.arange(SMALL_V), np.full(SMALL_V, -1)])
    options = DecodingOptions(suppressed_token_ids=suppressed)
    found = keras.ops.convert_to_numpy(model.generate(source, START, END, max_length=3, options=options))
    beams = model.generate(source, START, END, num_return_sequences=1, max_length=3, options=options)
    assert (found[0] == 0).all()
    assert (found[1] != 0).any()
    np.testing.assert_array_equal(found, keras.ops.convert_to_numpy(beams.token_ids)[:, 0])


def test_a_row_without_a_possible_token_has_no_sample():
    model, source = model_of(SMALL_V), np.random.default_rng(4).integers(4, SMALL_V, (2, 7))
    suppressed = np.stack([np.arange(SMALL_V), np.full(SMALL_V, -1)])
    options = DecodingOptions(suppressed_token_ids=suppressed, temperature=1.0)
    found = model.generate(source, START, END, num_return_sequences=3, max_length=3, options=options)
    token_ids, scores = (keras.ops.convert_to_numpy(x) for x in found)
    assert (token_ids[0] == 0).all()
    assert np.isneginf(scores[0]).all()
    assert (token_ids[1] != 0).any()
    assert np.isfinite(scores[1]).all()


def test_what_is_possible_is_found_however_low_its_score():
    length_penalty = -58.0  # below what stands for the impossible, and below all numbers of float32
    model, source = model_of(SMALL_V), np.random.default_rng(4).integers(4, SMALL_V, (2, 7))
    found = model.generate(
        source, START, END, num_beams=2, length_penalty=length_penalty, num_return_sequences=2, max_length=5
    )
    assert np.isfinite(keras.ops.convert_to_numpy(found.scores)).all()


def test_a_pad_is_never_the_best_token():
    """Of four tokens the pad, 0, is always the likeliest, then 1."""

    def step(token_ids, index, cache, attention_mask):
        likes = keras.ops.convert_to_tensor([3.0, 2.0, 1.0, 0.0])
        return keras.ops.zeros((*token_ids.shape, 4)) + likes, cache

    inputs = SearchInputs(
        step,
        make_cache=lambda slots: (empty_cache(2, 1, slots, 1),),
        batch_size=2,
        max_length=5,
        start_token_id=2,
        end_token_id=3,
    )
    token_ids = greedy_search(inputs)
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(token_ids), np.ones((2, 5)))
