"""An encoder and a head as one model: shared weights stay shared, names are complete, it trains and adapts."""

import keras
import numpy as np
import pytest
from helpers_models import PAD, assert_close
from keras import ops

from keras_attn import layers
from keras_attn.models import (
    DecoderTransformer,
    EncoderTransformer,
    EncoderWithHead,
    load_weights,
    read_shapes,
    save_weights,
)

V, D, L = 13, 20, 3
IDS = np.array([[5, 6, 7, 8, 9], [4, 11, 12, PAD, PAD], [PAD] * 5], "int32")
SIZES = {"hidden_dim": D, "num_heads": 2, "intermediate_dim": 17, "max_sequence_length": 19}
HEADS = {
    "classification": lambda encoder: layers.ClassificationHead(L, intermediate_dim=D, name="head"),
    "token": lambda encoder: layers.TokenClassificationHead(L, name="head"),
    "masked": lambda encoder: layers.MaskedLanguageModelHead(encoder.embedding.token, name="head"),
}


def make_model(kind="classification", encoder_class=EncoderTransformer, seed=3):
    encoder = encoder_class.from_sizes(V, 2, **SIZES, name="encoder")
    model = EncoderWithHead(encoder, HEADS[kind](encoder))
    rng = np.random.default_rng(seed)
    for weight in model.weights:
        weight.assign(rng.normal(size=weight.shape) * 0.4)
    return model


def run(model, ids=IDS):
    return ops.convert_to_numpy(model(ops.convert_to_tensor(ids)))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", HEADS)
def test_the_head_reads_the_sequence_and_the_mask(kind):
    model = make_model(kind)
    ids = ops.convert_to_tensor(IDS)
    expected = model.head(model.encoder(ids), padding_mask=ids != PAD)
    np.testing.assert_array_equal(run(model), ops.convert_to_numpy(expected))
    short = run(model, IDS[1:2, :3])
    assert_close(run(model)[1] if kind == "classification" else run(model)[1, :3], short[0])


@pytest.mark.extended
def test_copies_are_whole_and_share_what_is_shared(tmp_path):
    model = make_model("masked")
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    save_weights(model, tmp_path / "model.safetensors")
    read = type(model).from_config(model.get_config())
    load_weights(read, tmp_path / "model.safetensors")
    for copy in (again, clone, read):
        np.testing.assert_array_equal(run(copy), run(model))
        assert copy.get_config() == model.get_config()
        assert len(copy.weights) == len(model.weights)
        assert copy.encoder.embedding.token is not model.encoder.embedding.token
        assert copy.head.token_embedding is copy.encoder.embedding.token


def test_the_names_of_weights_are_those_of_the_parts(tmp_path):
    model = make_model("masked")
    save_weights(model, tmp_path / "model.safetensors")
    names = set(read_shapes(tmp_path / "model.safetensors"))
    assert {"encoder", "head"} == {name.split("/")[0] for name in names}
    of_head = {name for name in names if name.startswith("head/")}
    ends = {"intermediate/kernel", "intermediate/bias", "norm/gamma", "norm/beta", "output_bias"}
    assert of_head == {f"head/{end}" for end in ends}
    assert len(names) == len(model.weights)


def test_the_last_token_of_a_decoder_is_classified():
    decoder = DecoderTransformer.from_sizes(V, 2, **SIZES)
    model = EncoderWithHead(decoder, layers.ClassificationHead(L, pooling="last", use_bias=False))
    assert_close(run(model)[1], run(model, IDS[1:2, :3])[0])
    later = IDS.copy()
    later[0, -1] = 4
    assert np.abs(run(model, later)[0] - run(model)[0]).max() > 1e-3


@pytest.mark.extended
def test_it_trains_with_lora_in_the_encoder():
    model = make_model()
    model.encoder.enable_lora(2)
    before = [np.array(weight) for weight in model.encoder.weights if "lora" not in weight.name]
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    losses = model.fit(IDS, np.array([2, 1, 0]), epochs=5, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    trained = {weight.path for weight in model.trainable_weights}
    assert (
        len(trained) == 4 * 2 * 2 - 2 * 2 * 2 + 4
    )  # two matrices of two projections in two blocks, and the head
    after = [np.array(weight) for weight in model.encoder.weights if "lora" not in weight.name]
    assert all(map(np.array_equal, before, after))


def test_parts_that_are_none():
    encoder = EncoderTransformer.from_sizes(V, 1, **SIZES)
    with pytest.raises(ValueError, match="`head` must be a layer"):
        EncoderWithHead(encoder, None)
    with pytest.raises(ValueError, match="`encoder` must be a model with the method `sequence_and_mask`"):
        EncoderWithHead(layers.TokenEmbedding(V, D), layers.ClassificationHead(2))
