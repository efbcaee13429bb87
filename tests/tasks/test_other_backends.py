"""Translators and text generators on every Keras backend: their answers are those of the model's own `generate`."""

import keras
import numpy as np
import pytest

import keras_attn
from keras_attn import runs
from keras_attn.models import DecoderTransformer, Seq2SeqTransformer
from keras_attn.runs.evaluation import window_losses
from keras_attn.text import ByteTokenizer

# With TensorFlow other tests show the same.
pytestmark = [pytest.mark.extended] if keras.backend.backend() == "tensorflow" else []

TEXTS = ["4 July", "", "é", "a longer text than the others"]
SIZES = {"hidden_dim": 14, "num_heads": 2, "intermediate_dim": 19, "max_sequence_length": 41}


def with_drawn_weights(model, rng):
    """The model with weights that make it answer each text in another way, alike on all backends."""
    for variable in model.trainable_variables:
        if len(variable.shape) > 1:
            variable.assign(rng.normal(0, 1, variable.shape))
    return model


@pytest.fixture
def translator(rng):
    tokenizer = ByteTokenizer()
    model = Seq2SeqTransformer.from_sizes(
        tokenizer.vocabulary_size, num_encoder_layers=2, num_decoder_layers=1, **SIZES
    )
    return keras_attn.Translator(with_drawn_weights(model, rng), tokenizer, tokenizer, max_length=11)


@pytest.fixture
def generator(rng):
    tokenizer = ByteTokenizer()
    model = DecoderTransformer.from_sizes(tokenizer.vocabulary_size, num_layers=2, **SIZES)
    return keras_attn.TextGenerator(with_drawn_weights(model, rng), tokenizer, max_length=7)


@pytest.mark.parametrize("num_beams", [1, 3])
def test_a_translator_answers_as_its_model_does(translator, num_beams):
    tokenizer = translator.source_tokenizer
    rows = [[*ids, tokenizer.end_token_id] for ids in tokenizer.encode(TEXTS)]
    source = np.zeros((len(rows), max(map(len, rows))), "int32")
    for row, ids in zip(source, rows):
        row[: len(ids)] = ids
    found = keras.ops.convert_to_numpy(
        translator.model.generate(
            source,
            tokenizer.start_token_id,
            tokenizer.end_token_id,
            num_beams=num_beams,
            max_length=11,
            unwritable_token_ids=translator.unwritable_token_ids,
        )
    )
    expected = tokenizer.decode([[token for token in row if token not in (0, 3)] for row in found.tolist()])
    assert translator(TEXTS, num_beams=num_beams) == [
        "" if not text else answer for text, answer in zip(TEXTS, expected)
    ]
    assert len(set(expected)) == 4


def test_a_text_generator_answers_as_its_model_does(generator):
    tokenizer = generator.tokenizer
    prompt = np.array([[tokenizer.start_token_id, *tokenizer.encode(["ab"])[0]]])
    found = keras.ops.convert_to_numpy(
        generator.model.generate(
            prompt, tokenizer.end_token_id, max_length=7, unwritable_token_ids=generator.unwritable_token_ids
        )
    )
    assert generator(["ab"]) == tokenizer.decode(
        [[token for token in found[0].tolist() if token not in (0, 3)]]
    )


def test_what_needs_graphs_says_so(translator):
    if keras.backend.backend() == "tensorflow":
        assert "".join(translator.stream("4 July")) == translator("4 July", num_beams=1)
        return
    with pytest.raises(RuntimeError, match=r"load the saved translator there\.$"):
        next(iter(translator.stream("4 July")))


def test_the_losses_of_windows_are_those_of_their_tokens(generator, rng):
    ids = rng.integers(4, 250, (3, 13)).astype("int32")
    logits = keras.ops.convert_to_numpy(generator.model({"token_ids": ids[:, :-1]})).astype("float64")
    log_probabilities = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    expected = -np.take_along_axis(log_probabilities, ids[:, 1:, None], axis=-1).sum(axis=(1, 2))
    actual = window_losses(generator.model)(ids[:, :-1], ids[:, 1:])
    np.testing.assert_allclose(np.asarray(actual), expected, rtol=1e-5)


@pytest.mark.skipif(keras.backend.backend() == "tensorflow", reason="tests/runs is for TensorFlow")
def test_a_run_validates_and_goes_on(tmp_path):
    file, folder = str(tmp_path / "dates.tsv"), tmp_path / "run"
    (tmp_path / "dates.tsv").write_text("4 July 2016\t2016-07-04\n" * 5, encoding="utf-8")
    recipe = runs.Recipe(
        model={**SIZES, "num_encoder_layers": 1, "num_decoder_layers": 1},
        data=(file,),
        validation=(file,),
        tokenizer="bytes",
        max_tokens=128,
        padding="buckets",
        bucket_boundaries=(32,),
        steps_per_epoch=3,
        epochs=1,
        warmup_steps=2,
        num_averaged=1,
        num_beams=2,
        metric="chrf",
    )
    for epochs in (1, 2):
        translator = runs.train(recipe.data, folder, recipe.replace(epochs=epochs), verbose=0)
    assert translator("4 July 2016") == keras_attn.Translator.load(folder / "translator")("4 July 2016")
    assert len((folder / "history.csv").read_text(encoding="utf-8").splitlines()) == 3
