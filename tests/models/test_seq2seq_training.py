"""Seq2SeqTransformer as a keras.Model: fit, evaluate, predict, save; what is loaded is what was saved."""

import keras
import numpy as np
import pytest
from helpers_models import END, PAD, START, call, generate, make_batch, make_model

from keras_attn.models import Seq2SeqTransformer
from keras_attn.training import LabelSmoothedCrossentropy, MaskedAccuracy, NoamSchedule, Perplexity

VOCABULARY_SIZE = 11


def copy_task(num_rows, seed):
    """Sequences of 2 to 7 tokens, to be repeated: inputs with teacher forcing, and labels that end in END."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(4, VOCABULARY_SIZE, (num_rows, 7)).astype("int32")
    lengths = rng.integers(2, 8, (num_rows, 1))
    tokens[np.arange(7) >= lengths] = PAD
    labels = np.pad(tokens, ((0, 0), (0, 1)))
    np.put_along_axis(labels, lengths, END, axis=1)
    decoder_token_ids = np.concatenate([np.full((num_rows, 1), START, "int32"), labels[:, :-1]], axis=1)
    decoder_token_ids[decoder_token_ids == END] = PAD
    return {"encoder_token_ids": tokens, "decoder_token_ids": decoder_token_ids}, labels


def compiled_model(**options):
    sizes = {"hidden_dim": 32, "num_heads": 4, "intermediate_dim": 64, "max_sequence_length": 17}
    model = Seq2SeqTransformer.from_sizes(VOCABULARY_SIZE, 1, 1, **sizes, **{"dropout": 0.0, **options})
    model.compile(
        optimizer=keras.optimizers.Adam(NoamSchedule(32, warmup_steps=50), beta_2=0.98),
        loss=LabelSmoothedCrossentropy(0.1),
        metrics=[MaskedAccuracy(), Perplexity()],
    )
    return model


@pytest.fixture(scope="module")
def trained():
    keras.utils.set_random_seed(3)
    model = compiled_model()
    history = model.fit(*copy_task(6400, seed=1), batch_size=64, epochs=2, verbose=0).history
    return model, history


@pytest.mark.extended
def test_a_copy_task_is_learned(trained):
    model, history = trained
    assert history["loss"][-1] < history["loss"][0]
    inputs, labels = copy_task(199, seed=2)
    evaluated = model.evaluate(inputs, labels, verbose=0, return_dict=True)
    assert evaluated["accuracy"] > 0.95
    assert 1.0 < evaluated["perplexity"] < 1.3
    # The metric by hand, from predict.
    logits = model.predict(inputs, verbose=0)
    real = labels != PAD
    assert evaluated["accuracy"] == pytest.approx(np.mean(logits.argmax(-1)[real] == labels[real]), abs=1e-6)
    answers = generate(model, inputs["encoder_token_ids"], num_beams=3, max_length=8)
    assert np.mean((answers == labels).all(axis=1)) > 0.9


@pytest.mark.extended
def test_a_compiled_model_goes_on_where_it_was(trained, tmp_path):
    model, _ = trained
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    inputs, labels = copy_task(64, seed=6)
    assert again.evaluate(inputs, labels, verbose=0) == model.evaluate(inputs, labels, verbose=0)
    assert int(again.optimizer.iterations) == int(model.optimizer.iterations) == 200
    rate = 32**-0.5 * min(201**-0.5, 201 * 50**-1.5)
    assert float(again.optimizer.learning_rate) == pytest.approx(rate, rel=1e-6)
    assert again.loss.get_config() == model.loss.get_config()
    assert again.loss.label_smoothing == 0.1
    # The optimizer's moments too: three more updates lead to the same weights.
    more = copy_task(192, seed=7)
    for one in (model, again):
        one.fit(*more, batch_size=64, epochs=1, shuffle=False, verbose=0)
    for first, second in zip(model.trainable_weights, again.trainable_weights, strict=True):
        np.testing.assert_allclose(
            keras.ops.convert_to_numpy(second), keras.ops.convert_to_numpy(first), atol=1e-6
        )


def test_tied_weights_stay_tied_after_reload(tmp_path):
    model = make_model(num_decoder_layers=1)
    model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")
    again = make_model(seed=6, num_decoder_layers=1)
    again.load_weights(tmp_path / "model.weights.h5")
    batch = make_batch(pads=False)
    for reloaded in (keras.saving.load_model(tmp_path / "model.keras"), again):
        assert reloaded.source_embedding.token is reloaded.target_embedding.token
        assert len(reloaded.weights) == len(model.weights)
        before = call(reloaded, batch)
        np.testing.assert_array_equal(before, call(model, batch))
        embeddings = keras.ops.convert_to_numpy(reloaded.target_embedding.token.embeddings).copy()
        unused = 12
        embeddings[unused] += 1.0
        reloaded.target_embedding.token.embeddings.assign(embeddings)
        changed = np.abs(call(reloaded, batch) - before).max(axis=(0, 1)) > 1e-6
        np.testing.assert_array_equal(changed, np.arange(13) == unused)
        # And the other way: as an input, a changed embedding moves what the encoder answers.
        encoded = keras.ops.convert_to_numpy(reloaded.encode(np.array([[unused, 4]])))
        embeddings[unused] -= 2.0
        reloaded.target_embedding.token.embeddings.assign(embeddings)
        assert (
            np.abs(keras.ops.convert_to_numpy(reloaded.encode(np.array([[unused, 4]]))) - encoded).max()
            > 1e-3
        )
