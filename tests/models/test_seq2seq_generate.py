"""Seq2SeqTransformer.generate against the search written out in NumPy over the model's own forward pass."""

import functools

import numpy as np
import pytest
from helpers_generation import answer, beam_search_by_hand, compilers, padded, quickest
from helpers_models import END, PAD, START, B, generate, make_batch, make_model, shared_model
from keras import ops

from keras_attn.generation import DecodingOptions

MAX_LENGTH = 7


@functools.cache
def forward(model):
    """Ids of a row, and a prefix padded to MAX_LENGTH -> log-probabilities at every place: one pass, no loop."""

    def logits(encoder_token_ids, decoder_token_ids):
        cache = model.init_cache(encoder_token_ids, length=MAX_LENGTH)
        return ops.log_softmax(model.call_with_cache(decoder_token_ids, cache, 0)[0])

    return compilers()[quickest()](logits)


def log_probabilities(model, encoder_token_ids, prefix):
    decoder_token_ids = np.full((1, MAX_LENGTH), START, "int32")
    decoder_token_ids[0, 1 : len(prefix) + 1] = prefix
    found = forward(model)(
        ops.convert_to_tensor(encoder_token_ids[None]), ops.convert_to_tensor(decoder_token_ids)
    )
    found = ops.convert_to_numpy(found)[0, len(prefix)].astype("float64")
    found[PAD] = -1e30  # never chosen
    return found


@pytest.mark.parametrize(
    ("variant", "num_beams", "length_penalty"),
    [pytest.param("post_norm", 1, 1.0, marks=pytest.mark.extended), ("pre_norm", 3, 1.0)],
)
def test_generate_is_the_search_written_out(variant, num_beams, length_penalty):
    model = shared_model(variant)
    ids = make_batch()["encoder_token_ids"]
    token_ids, scores = generate(
        model,
        ids,
        num_beams=num_beams,
        length_penalty=length_penalty,
        max_length=MAX_LENGTH,
        num_return_sequences=num_beams,
    )
    for row, row_ids, row_scores in zip(ids, token_ids, scores):
        by_hand = beam_search_by_hand(
            functools.partial(log_probabilities, model, row), MAX_LENGTH, num_beams, length_penalty
        )
        expected_ids, expected_scores = padded(by_hand, MAX_LENGTH, PAD)
        np.testing.assert_array_equal(row_ids, expected_ids)
        np.testing.assert_allclose(row_scores, expected_scores, atol=1e-5)


def test_max_length_is_max_sequence_length_by_default():
    model = make_model(max_sequence_length=3, num_decoder_layers=1)
    ids = make_batch(source_length=3)["encoder_token_ids"]
    assert generate(model, ids).shape == (B, 3)
    assert generate(model, ids, max_length=2).shape == (B, 2)


@pytest.mark.extended
def test_the_best_alone_or_the_n_best():
    model = shared_model()
    ids = make_batch()["encoder_token_ids"]
    token_ids, scores = generate(model, ids, num_beams=3, num_return_sequences=2, max_length=3)
    assert token_ids.shape == (B, 2, 3)
    assert scores.shape == (B, 2)
    best = generate(model, ids, num_beams=3, max_length=3)
    assert best.dtype == "int32"
    np.testing.assert_array_equal(best, token_ids[:, 0])


@pytest.mark.parametrize("number", [0, 4])
def test_number_of_answers_out_of_range(number):
    with pytest.raises(ValueError, match=f"num_return_sequences={number}"):
        shared_model().generate(np.array([[4, 5]]), START, END, num_beams=3, num_return_sequences=number)


def test_an_explicit_max_length_of_zero_is_an_error():
    with pytest.raises(ValueError, match=r"`max_length` must be a positive integer. Received: max_length=0"):
        shared_model().generate(np.array([[4, 5]]), START, END, max_length=0)


def test_an_empty_batch_and_an_empty_source():
    model = shared_model()
    options = {"num_beams": 2, "num_return_sequences": 2, "max_length": 3}
    token_ids, scores = generate(model, np.zeros((0, 7), "int32"), **options)
    assert token_ids.shape == (0, 2, 3)
    assert scores.shape == (0, 2)
    token_ids, scores = generate(model, np.zeros((2, 0), "int32"), **options)
    assert token_ids.shape == (2, 2, 3)
    assert np.isfinite(scores).all()
    # A row of pads alone is the same nothing to attend to.
    pads_ids, pads_scores = generate(model, np.zeros((2, 3), "int32"), **options)
    np.testing.assert_array_equal(token_ids, pads_ids)
    np.testing.assert_allclose(scores, pads_scores, atol=1e-5)


@pytest.mark.extended
def test_dropout_is_off_while_decoding():
    ids = make_batch()["encoder_token_ids"]
    without = generate(shared_model(), ids, max_length=3, num_return_sequences=1)
    found = generate(
        make_model(dropout=0.5, attention_dropout=0.5), ids, max_length=3, num_return_sequences=1
    )
    np.testing.assert_array_equal(found[0], without[0])
    np.testing.assert_array_equal(found[1], without[1])


# --- options ---

PAIRS = {
    "num_beams": np.array([3, 1, 2]),
    "min_length": np.array([1, 4, 6]),
    "max_length": np.array([7, 5, 7]),
    "no_repeat_ngram_size": np.array([1, 0, 2]),
    "repetition_penalty": np.array([1.0, 1.4, 1.1], "float32"),
    "prefix_token_ids": np.array([[-1, -1], [9, -1], [5, 8]]),
    "stop_token_ids": np.array([[-1], [6], [7]]),
}


@pytest.mark.extended
def test_rows_with_options_of_their_own_equal_the_search_written_out():
    model, ids = shared_model("pre_norm"), make_batch()["encoder_token_ids"][:3]
    token_ids, scores = generate(
        model,
        ids,
        num_beams=3,
        max_length=MAX_LENGTH,
        num_return_sequences=3,
        options=DecodingOptions(**PAIRS),
    )
    for row, row_ids in enumerate(ids):
        options = {name: value[row].tolist() for name, value in PAIRS.items()}
        num_beams = options.pop("num_beams")
        by_hand = beam_search_by_hand(
            functools.partial(log_probabilities, model, row_ids),
            options.pop("max_length"),
            num_beams,
            ends=(END, *(token for token in options.pop("stop_token_ids") if token >= 0)),
            **options,
        )
        expected_ids, expected_scores = padded(by_hand, MAX_LENGTH, PAD)
        np.testing.assert_array_equal(token_ids[row, :num_beams], expected_ids)
        np.testing.assert_allclose(scores[row, :num_beams], expected_scores, atol=1e-5)


@pytest.mark.extended
def test_samples_have_the_scores_of_the_model_and_do_not_depend_on_their_batch():
    model, ids = shared_model("post_norm"), make_batch()["encoder_token_ids"][:3]
    seeds = np.array([5, 6, 7], "int32")
    arguments = {"max_length": MAX_LENGTH, "num_return_sequences": 2}
    token_ids, scores = generate(model, ids, options=DecodingOptions(top_p=0.9, seed=seeds), **arguments)
    for row, (row_ids, row_scores) in enumerate(zip(token_ids, scores)):
        for tokens, score in zip(map(answer, row_ids), row_scores):
            total = sum(
                log_probabilities(model, ids[row], tokens[:i])[token] for i, token in enumerate(tokens)
            )
            np.testing.assert_allclose(score, total / len(tokens), rtol=1e-5)
    assert len({answer(tokens) for row in token_ids for tokens in row}) > 3
    alone = DecodingOptions(top_p=0.9, seed=seeds[1:2])
    np.testing.assert_array_equal(generate(model, ids[1:2], options=alone, **arguments)[0][0], token_ids[1])
    greedy = generate(model, ids, max_length=4, options=DecodingOptions(temperature=0.0))
    np.testing.assert_array_equal(greedy, generate(model, ids, max_length=4))


@pytest.mark.extended
def test_the_coverage_penalty_is_that_of_the_last_layers_attention():
    model, ids = shared_model("pre_norm"), make_batch()["encoder_token_ids"]
    token_ids, scores = generate(
        model,
        ids,
        num_beams=3,
        max_length=MAX_LENGTH,
        num_return_sequences=3,
        options=DecodingOptions(coverage_penalty=0.4),
    )
    for row, row_ids, row_scores in zip(ids, token_ids, scores):
        source = ops.convert_to_tensor(np.stack([row] * 3))
        logits, attention = model.decode(
            np.pad(row_ids[:, :-1], ((0, 0), (1, 0)), constant_values=START),
            model.encode(source),
            source != PAD,
            return_attention_scores=True,
        )
        log_probs = ops.convert_to_numpy(ops.log_softmax(logits))
        weights = ops.convert_to_numpy(attention[-1]).mean(axis=1)  # of all heads
        for place, (tokens, score) in enumerate(zip(map(answer, row_ids), row_scores)):
            total = sum(float(step[token]) for step, token in zip(log_probs[place], tokens))
            covered = weights[place, : len(tokens)].sum(axis=0)[row != PAD]
            penalty = np.log(np.minimum(covered, 1)).sum()
            np.testing.assert_allclose(score, total / len(tokens) + 0.4 * penalty, rtol=1e-4)
