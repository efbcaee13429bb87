"""An ensemble's probabilities are the mean of its members', in every step of every search, and after each road to a folder."""

import keras
import numpy as np
import pytest
from helpers_generation import answer, beam_search_by_hand, compilers, quickest
from helpers_models import END, START, TARGET_V, make_batch, make_model, shared_model

from keras_attn.generation import DecodingOptions
from keras_attn.models import Ensemble, load_weights, quantized_copy, save_weights

# Another depth, width and norm order than the other member's.
OTHER = {"seed": 11, "num_decoder_layers": 1, "hidden_dim": 10, "num_heads": 5}

SAMPLING = DecodingOptions(temperature=0.9, seed=7)


@pytest.fixture(scope="module")
def ensemble():
    return Ensemble([shared_model("two_vocabularies"), make_model("two_vocabularies", **OTHER)])


def softmax(logits):
    logits = keras.ops.convert_to_numpy(logits).astype("float64")
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def mean_of(members, inputs):
    return np.mean([softmax(member(inputs)) for member in members], axis=0)


@pytest.mark.extended
def test_a_call_is_the_mean_of_the_probabilities_and_so_is_a_step(ensemble):
    inputs = make_batch()
    source, target = inputs["encoder_token_ids"], inputs["decoder_token_ids"] % TARGET_V
    inputs = {**inputs, "decoder_token_ids": target}
    expected = mean_of(ensemble.members, inputs)
    log_probs = keras.ops.convert_to_numpy(ensemble(inputs))
    real = target != 0
    assert log_probs.dtype == "float32"
    np.testing.assert_allclose(log_probs[real], np.log(expected[real]), atol=2e-5)
    np.testing.assert_allclose(np.exp(log_probs).sum(-1), 1.0, atol=1e-5)
    forced, scores = ensemble.teacher_forced(source, target, return_attention_scores=True)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(forced)[real], np.log(expected[real]), atol=2e-5)
    assert len(scores) == ensemble.cross_attention_shape[0] == 1
    assert scores[0].shape[1] == ensemble.cross_attention_shape[1] == 2 + 5
    [scores] = map(keras.ops.convert_to_numpy, scores)
    np.testing.assert_allclose(scores.sum(-1), 1.0, atol=1e-5)
    # Each member's last layer, side by side.
    for member, heads in zip(ensemble.members, (slice(0, 2), slice(2, 7))):
        _, own = member.teacher_forced(source, target, return_attention_scores=True)
        np.testing.assert_allclose(scores[:, heads], keras.ops.convert_to_numpy(own[-1]), atol=1e-6)


@pytest.mark.extended
def test_searches_find_what_a_search_by_hand_finds_with_the_mean_of_full_forward_passes(ensemble):
    source = make_batch(seed=5)["encoder_token_ids"][:1]
    source = source[:, : int((source != 0).sum())]

    def log_probs(prefix):
        tokens = np.array([[START, *prefix]])
        inputs = {"encoder_token_ids": source, "decoder_token_ids": tokens}
        # A pad in the prefix would be masked; the search never chooses one.
        of_last = np.log(mean_of(ensemble.members, inputs)[0, -1])
        of_last[0] = -np.inf
        return of_last

    [(score, tokens), *_] = beam_search_by_hand(log_probs, 5, 3, 0.8)
    compiled = compilers()[quickest()]
    found = compiled(
        lambda source: ensemble.generate(
            source, START, END, 3, length_penalty=0.8, max_length=5, num_return_sequences=1
        )
    )(source)
    assert answer(found.token_ids[0, 0]) == tokens
    np.testing.assert_allclose(found.scores[0, 0], score, atol=2e-5)


def test_a_token_of_no_probability_has_a_finite_logarithm():
    members = [make_model(seed=seed) for seed in (3, 4)]
    for member in members:
        table = member.target_embedding.token.embeddings
        table.assign(table * 300)
    inputs = make_batch()
    expected = mean_of(members, inputs)
    found = keras.ops.convert_to_numpy(Ensemble(members)(inputs))
    possible = expected > 1e-37
    assert 0.02 < possible.mean() < 0.98
    np.testing.assert_allclose(found[possible], np.log(expected[possible]), atol=5e-4)
    np.testing.assert_allclose(found[expected < 1e-39], np.log(2.0**-126), atol=1e-5)


@pytest.mark.extended
def test_copies_answer_as_one_model_does():
    model = shared_model()
    copies = Ensemble([model, keras.models.clone_model(model)])
    copies.members[1].set_weights(model.get_weights())
    inputs = make_batch()
    found = keras.ops.convert_to_numpy(copies(inputs))
    expected = keras.ops.convert_to_numpy(keras.ops.log_softmax(model(inputs)))
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(found).max())


@pytest.mark.extended
@pytest.mark.parametrize("search", ["beams", "sampling"])
def test_copies_decode_as_one_model_does(search):
    more = {"beams": {"num_beams": 3, "length_penalty": 0.7}, "sampling": {"options": SAMPLING}}[search]
    source = make_batch()["encoder_token_ids"]
    one, several = (
        compilers()[quickest()](
            lambda source, model=model: model.generate(
                source, START, END, max_length=6, num_return_sequences=1, **more
            )
        )(source)
        for model in (shared_model(), Ensemble([shared_model()] * 2))
    )
    np.testing.assert_array_equal(one.token_ids, several.token_ids)
    np.testing.assert_allclose(one.scores, several.scores, atol=2e-5)


def test_what_does_not_go_together_is_refused():
    small = shared_model("two_vocabularies")
    with pytest.raises(ValueError, match=r"same `vocabulary_size`.*13, 17"):
        Ensemble([small, make_model("two_vocabularies", vocabulary_size=17)])
    with pytest.raises(ValueError, match=r"same `target_vocabulary_size`.*11, 13"):
        Ensemble([small, shared_model()])
    with pytest.raises(ValueError, match=r"same `pad_token_id`.*0, 1"):
        Ensemble([shared_model(), make_model(pad_token_id=1)])
    for members, received in (([], "none"), ([keras.layers.Dense(3)], "Dense")):
        with pytest.raises(ValueError, match=f"one or more. Received: {received}"):
            Ensemble(members)
    with pytest.raises(ValueError, match="must be a list of layers"):
        Ensemble(small.hidden_dim)
    with pytest.raises(ValueError, match=r"quantised alike.*\['int8', None\]"):
        Ensemble([quantized_copy(small, "int8"), small])


def test_the_weights_of_all_members_are_saved(ensemble, tmp_path):
    save_weights(ensemble, tmp_path / "weights.safetensors")
    config = keras.saving.serialize_keras_object(ensemble)
    twin = keras.saving.deserialize_keras_object(config)
    assert len(twin.weights) == sum(len(member.weights) for member in ensemble.members)
    load_weights(twin, tmp_path / "weights.safetensors")
    inputs = make_batch()
    inputs["decoder_token_ids"] %= TARGET_V
    np.testing.assert_array_equal(*map(keras.ops.convert_to_numpy, (twin(inputs), ensemble(inputs))))


def test_a_member_that_is_there_twice_is_one_model_also_in_a_copy():
    member = shared_model()
    copies = Ensemble.from_config(Ensemble([member, member]).get_config())
    assert copies.members[0] is copies.members[1] is not member
    assert len(copies.weights) == len(member.weights)
