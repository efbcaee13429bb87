"""The layers compose into models of one's own, functional and subclassed, without our model class."""

import pathlib

import keras
import numpy as np
import pytest
import reload_models
from helpers_models import (
    PAD,
    B,
    ComposedTranslator,
    T,
    V,
    assert_close,
    call,
    make_batch,
    run_in_new_process,
)
from keras import ops

from keras_attn.layers import (
    DecoderBlock,
    EncoderBlock,
    SinusoidalPositionEncoding,
    TokenEmbedding,
)
from keras_attn.training import LabelSmoothedCrossentropy


def functional_model(num_layers=2):
    encoder_token_ids = keras.Input((None,), dtype="int32", name="encoder_token_ids")
    decoder_token_ids = keras.Input((None,), dtype="int32", name="decoder_token_ids")
    embedding = TokenEmbedding(V, 14)
    encoder_padding_mask = ops.not_equal(encoder_token_ids, PAD)

    x = embedding(encoder_token_ids)
    x = x + SinusoidalPositionEncoding()(x)
    for _ in range(num_layers):
        x = EncoderBlock(17, num_heads=2, dropout=0.1)(x, padding_mask=encoder_padding_mask)
    y = embedding(decoder_token_ids)
    y = y + SinusoidalPositionEncoding()(y)
    for _ in range(num_layers):
        y = DecoderBlock(17, num_heads=2, dropout=0.1)(y, x, encoder_padding_mask=encoder_padding_mask)
    return keras.Model([encoder_token_ids, decoder_token_ids], embedding(y, reverse=True))


def functional_model_of_implicit_masks(num_layers=3):
    """`mask_zero` and no mask argument anywhere: Keras' own MultiHeadAttention loses the mask here."""
    encoder_token_ids = keras.Input((None,), dtype="int32", name="encoder_token_ids")
    decoder_token_ids = keras.Input((None,), dtype="int32", name="decoder_token_ids")
    embedding = TokenEmbedding(V, 14, mask_zero=True)
    x = embedding(encoder_token_ids)
    for _ in range(num_layers):
        x = EncoderBlock(17, num_heads=2)(x)
    y = embedding(decoder_token_ids)
    for _ in range(num_layers):
        y = DecoderBlock(17, num_heads=2)(y, x)
    return keras.Model([encoder_token_ids, decoder_token_ids], embedding(y, reverse=True))


MODELS = {
    "functional": functional_model,
    "implicit": functional_model_of_implicit_masks,
    "subclassed": ComposedTranslator,
}


@pytest.mark.parametrize(
    ("name", "num_layers"),
    [pytest.param("functional", 3, marks=pytest.mark.slow), ("implicit", 2), ("subclassed", 2)],
)
def test_padding_changes_nothing_in_any_depth(name, num_layers):
    model = MODELS[name](num_layers=num_layers)
    batch = make_batch()
    real = batch["decoder_token_ids"] != PAD
    logits = call(model, batch)
    assert logits.shape == (B, T, V)
    longer = {key: np.pad(ids, ((0, 0), (0, 4))) for key, ids in batch.items()}
    assert_close(call(model, longer)[:, :T][real], logits[real])
    ids = batch["encoder_token_ids"][-1]
    last = {
        "encoder_token_ids": ids[None, ids != PAD],
        "decoder_token_ids": batch["decoder_token_ids"][-1][None, real[-1]],
    }
    assert_close(call(model, last)[0], logits[-1][real[-1]])


@pytest.fixture(scope="module")
def trained():
    """Each model after some steps of training."""
    keras.utils.set_random_seed(13)
    labels = np.roll(make_batch()["decoder_token_ids"], -1, axis=1)
    labels[:, -1] = PAD
    models = {}
    for name, make in MODELS.items():
        model = models[name] = make(num_layers=1)
        model.compile(keras.optimizers.SGD(0.1), loss=LabelSmoothedCrossentropy(0.1), run_eagerly=True)
        losses = [model.train_on_batch(make_batch(), labels) for _ in range(3)]
        assert losses[-1] < losses[0], name
    return models


@pytest.mark.extended
@pytest.mark.parametrize("name", MODELS)
def test_the_source_still_matters(trained, name):
    batch = make_batch()
    other = batch | {"encoder_token_ids": make_batch(seed=8)["encoder_token_ids"]}
    assert np.abs(call(trained[name], other) - call(trained[name], batch)).max() > 1e-3


@pytest.mark.extended
@pytest.mark.parametrize("name", MODELS)
def test_symbolic_shape_is_the_eager_one(trained, name):
    symbolic = trained[name](
        {
            key: keras.KerasTensor((None, None), dtype="int32", name=key)
            for key in ("encoder_token_ids", "decoder_token_ids")
        }
    )
    assert symbolic.shape == (None, None, V)


@pytest.mark.slow
def test_a_new_process_answers_the_same_to_the_last_bit(trained, tmp_path):
    np.savez(tmp_path / "inputs.npz", **make_batch())
    for name, model in trained.items():
        model.save(tmp_path / f"{name}.keras")
    run_in_new_process(pathlib.Path(reload_models.__file__), tmp_path)
    there = dict(np.load(tmp_path / "outputs.npz"))
    assert len(there) == len(MODELS)
    for name, model in trained.items():
        np.testing.assert_array_equal(
            there[f"{name}.keras/predict"], model.predict(make_batch(), verbose=0), err_msg=name
        )
