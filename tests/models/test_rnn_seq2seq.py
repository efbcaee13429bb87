"""RNNSeq2Seq: one answer in training, step by step, in beams and graphs; and the same road as the Transformer's."""

import functools
import itertools

import keras
import numpy as np
import pytest
from keras import ops

from keras_attn.generation import DecodingOptions
from keras_attn.models import RNNSeq2Seq

START, END, V = 2, 3, 31
OPTIONS = {
    "gru": {},
    "two_layers_of_lstm": {"cell": "lstm", "num_encoder_layers": 2, "num_decoder_layers": 2},
    "two_vocabularies": {"target_vocabulary_size": 29, "tie_output": False},
}


def make_model(name="gru", **options):
    keras.utils.set_random_seed(7)
    options = {"hidden_dim": 13, "dropout": 0.0, "max_sequence_length": 17, **OPTIONS[name], **options}
    model = RNNSeq2Seq(V, **options)
    for weight in model.trainable_variables:  # biases too, so that nothing is 0 by chance
        weight.assign(weight + 0.1 * keras.random.normal(weight.shape, seed=11))
    return model


# For tests that only call it.
shared_model = functools.cache(make_model)


def make_ids(rng, lengths=(7, 4, 1)):
    source = rng.integers(4, 29, (len(lengths), max(lengths))).astype("int32")
    source[np.arange(source.shape[1]) >= np.array(lengths)[:, None]] = 0
    return source, rng.integers(4, 29, (len(lengths), 5)).astype("int32")


def logits_of(model, source, target):
    return ops.convert_to_numpy(model({"encoder_token_ids": source, "decoder_token_ids": target}))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def gru_by_hand(cell, x, h):
    kernel, recurrent, bias = (np.array(weight, "float64") for weight in cell.weights)
    of_input = np.split(x @ kernel + bias[0], 3, axis=-1)
    of_state = np.split(h @ recurrent + bias[1], 3, axis=-1)
    update, reset = (sigmoid(of_input[i] + of_state[i]) for i in range(2))
    return update * h + (1 - update) * np.tanh(of_input[2] + reset * of_state[2])


def test_the_model_is_that_of_the_papers(rng):
    """Every formula by hand in float64, row by row, without pads or batches."""
    model = shared_model()
    source, target = make_ids(rng)
    logits = logits_of(model, source, target)
    table = np.array(model.target_embedding.embeddings, "float64")
    (encoder,) = model.encoder_layers
    (cell,) = model.cells
    attention = model.attention
    query, query_bias, key, logit_kernel = (
        np.array(weight, "float64")
        for weight in (
            attention.query_dense.kernel,
            attention.query_dense.bias,
            attention.key_dense.kernel,
            attention.logit_kernel,
        )
    )
    first, first_bias = (np.array(weight, "float64") for weight in model.first_state_dense.weights)
    out, out_bias = (np.array(weight, "float64") for weight in model.output_dense.weights)
    scale = 13**0.5
    for row, ids in enumerate(source):
        embedded = table[ids[ids != 0]] * scale
        states = []
        for layer, order in ((encoder.forward_layer, 1), (encoder.backward_layer, -1)):
            h, of_direction = np.zeros(13), []
            for x in embedded[::order]:
                h = gru_by_hand(layer.cell, x, h)
                of_direction.append(h)
            states.append(np.array(of_direction[::order]))
        encoded = np.concatenate(states, axis=-1)
        h, fed = np.split(np.tanh(encoded.mean(axis=0) @ first + first_bias), 2)
        for step, token_id in enumerate(target[row]):
            x = table[token_id] * scale
            h = gru_by_hand(cell, np.concatenate([x, fed]), h)
            energies = np.tanh(h @ query + query_bias + encoded @ key) @ logit_kernel
            scores = np.exp(energies - energies.max())
            context = scores / scores.sum() @ encoded
            fed = np.tanh(np.concatenate([h, context, x]) @ out + out_bias)
            np.testing.assert_allclose(logits[row, step], fed @ table.T, atol=1e-4)


@pytest.mark.extended
@pytest.mark.parametrize("name", OPTIONS)
def test_step_by_step_equals_the_whole(rng, name):
    model = shared_model(name)
    source, target = make_ids(rng)
    expected = logits_of(model, source, target)
    for widths in ([5], [1, 1, 3]):
        cache, found, index = model.init_cache(source, length=7), [], 0
        for width in widths:
            logits, cache = model.call_with_cache(target[:, index : index + width], cache, index)
            found.append(ops.convert_to_numpy(logits))
            index += width
        np.testing.assert_allclose(np.concatenate(found, axis=1), expected, atol=1e-5)


@pytest.mark.parametrize("name", ["gru"])
def test_pads_and_batch_mates_change_nothing(rng, name):
    model = shared_model(name)
    source, target = make_ids(rng)
    expected = logits_of(model, source, target)
    padded = logits_of(model, np.pad(source, ((0, 0), (0, 4))), target)
    np.testing.assert_allclose(padded, expected, atol=1e-5)
    alone = logits_of(model, source[1:2, :4], target[1:2])
    np.testing.assert_allclose(alone[0], expected[1], atol=1e-5)
    source[1, 0] = 28 if source[1, 0] != 28 else 27
    assert np.abs(logits_of(model, source, target)[1] - expected[1]).max() > 1e-3


@pytest.mark.parametrize(("num_beams", "name"), [(4, "gru"), (4, "two_layers_of_lstm")])
def test_the_score_of_an_answer_is_that_of_teacher_forcing(rng, name, num_beams):
    model = shared_model(name)
    source, _ = make_ids(rng)
    found = model.generate(
        source, START, END, num_beams=num_beams, max_length=5, num_return_sequences=num_beams
    )
    token_ids, scores = (ops.convert_to_numpy(x) for x in found)
    for place in range(num_beams):
        ids = token_ids[:, place]
        shifted = np.concatenate([np.full((3, 1), START, "int32"), ids[:, :-1]], axis=1)
        log_probs = ops.convert_to_numpy(ops.log_softmax(logits_of(model, source, shifted)))
        of_tokens = np.take_along_axis(log_probs, ids[:, :, None], axis=-1)[:, :, 0]
        real = ids != 0
        np.testing.assert_allclose(scores[:, place], (of_tokens * real).sum(1) / real.sum(1), atol=1e-5)
    assert (np.diff(scores, axis=1) <= 0).all()


def test_one_beam_is_greedy_and_beams_enough_find_the_best():
    """Against all answers of at most three tokens over six."""
    keras.utils.set_random_seed(3)
    model = RNNSeq2Seq(6, hidden_dim=5, dropout=0.0, max_sequence_length=3)
    for weight in model.trainable_variables:
        weight.assign(2.0 * weight)
    source = np.array([[4, 5, 3]], "int32")
    tokens = range(1, 6)  # the search never chooses a pad
    sequences = {
        sequence[: sequence.index(END) + 1] if END in sequence else sequence
        for sequence in itertools.product(tokens, repeat=3)
    }
    sequences = sorted(sequences)
    target = np.array([[*sequence, 0, 0][:3] for sequence in sequences])
    shifted = np.concatenate([np.full((len(target), 1), START), target[:, :-1]], axis=1)
    log_probs = ops.convert_to_numpy(
        ops.log_softmax(logits_of(model, np.repeat(source, len(target), 0), shifted))
    )
    scores = {
        sequence: sum(log_probs[row, step, token_id] for step, token_id in enumerate(sequence))
        / len(sequence)
        for row, sequence in enumerate(sequences)
    }
    best = max(scores, key=scores.get)
    found = ops.convert_to_numpy(model.generate(source, START, END, num_beams=25, max_length=3))[0]
    assert tuple(found[found != 0]) == best


@pytest.mark.extended
def test_decoding_options_are_obeyed(rng):
    model = shared_model()
    source, _ = make_ids(rng)
    prefix = np.array([[9, 10]] * 3)
    options = DecodingOptions(prefix_token_ids=prefix, coverage_penalty=0.2)
    token_ids = ops.convert_to_numpy(
        model.generate(source, START, END, num_beams=3, max_length=5, options=options)
    )
    assert (token_ids[:, :2] == prefix).all()
    draws = [
        ops.convert_to_numpy(
            model.generate(
                source, START, END, max_length=5, options=DecodingOptions(temperature=1.0, seed=seed)
            )
        )
        for seed in (1, 1, 2)
    ]
    assert (draws[0] == draws[1]).all()
    assert (draws[0] != draws[2]).any()


@pytest.mark.extended
def test_training_changes_every_weight_and_drops_out(rng):
    model = make_model(dropout=0.3)
    source, target = make_ids(rng)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, run_eagerly=True)
    inputs = {"encoder_token_ids": source, "decoder_token_ids": target}
    before = [np.array(weight) for weight in model.trainable_variables]
    model.fit(inputs, target, verbose=0)
    for weight, old in zip(model.trainable_variables, before):
        assert (np.array(weight) != old).any(), weight.path
    one, other = (ops.convert_to_numpy(model(inputs, training=True)) for _ in range(2))
    assert (one != other).any()
    assert (logits_of(model, source, target) == logits_of(model, source, target)).all()


def test_bad_arguments_say_what_is_wrong():
    with pytest.raises(ValueError, match=r"`cell` must be one of .*gru"):
        RNNSeq2Seq(V, cell="simple")
    with pytest.raises(ValueError, match="`hidden_dim` must be"):
        RNNSeq2Seq(V, hidden_dim=0)
    model = shared_model()
    ids = np.ones((1, 3), "int32")
    with pytest.raises(ValueError, match=r"and may have .*Received: .*encoder_segment_ids"):
        model({"encoder_token_ids": ids, "decoder_token_ids": ids, "encoder_segment_ids": ids})
    with pytest.raises(ValueError, match="max_length=18, max_sequence_length=17"):
        model.generate(ids, START, END, max_length=18)
    with pytest.raises(ValueError, match="31"):
        logits_of(model, np.array([[31]]), ids)
