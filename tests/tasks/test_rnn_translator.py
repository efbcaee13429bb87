"""The baseline's whole road: translate, score, align, stream, save, load, export, other engines."""

import keras
import numpy as np
import pytest

import keras_attn
from keras_attn import runs
from keras_attn.models import RNNSeq2Seq
from keras_attn.text import ByteTokenizer

pytestmark = pytest.mark.extended

TEXTS = ["4 July 2016", "", "le 1er mars", "2.2.77 was a day", "x"]


@pytest.fixture(scope="module")
def translator():
    keras.utils.set_random_seed(3)
    tokenizer = ByteTokenizer()
    model = RNNSeq2Seq(259, hidden_dim=20, max_sequence_length=37)
    return keras_attn.Translator(model, tokenizer, tokenizer, num_beams=3, max_length=11)


def test_scores_alignments_and_streams_agree_with_translations(translator):
    texts = translator(TEXTS)
    assert texts[1] == ""
    source, target = ([*ids, 2] for ids in translator.source_tokenizer.encode(["4 July", "2016"]))
    inputs = {"encoder_token_ids": np.array([source]), "decoder_token_ids": np.array([[1, *target[:-1]]])}
    log_probs = np.array(keras.ops.log_softmax(translator.model(inputs)))[0, np.arange(len(target)), target]
    assert translator.score("4 July", "2016") == pytest.approx(log_probs.mean(), abs=1e-5)
    assert "".join(translator.stream(TEXTS[2])) == translator(TEXTS[2], num_beams=1)
    _, attention_map = translator(TEXTS[0], return_attention_scores=True)
    assert attention_map.attention_scores.shape[:2] == (1, 1)
    np.testing.assert_allclose(attention_map.attention_scores.sum(axis=-1), 1, atol=1e-5)
    alignment = translator.align("a b", "c d")
    assert [word.text for word in alignment.source_words] == ["a", "b"]


def test_an_engine_that_has_no_such_model_says_so(translator, tmp_path):
    with pytest.raises(ValueError, match=r"must be a Seq2SeqTransformer\. Received: RNNSeq2Seq"):
        translator.export_model(tmp_path / "model", "ctranslate2")


def test_a_recipe_trains_it(tmp_path):
    pairs = keras_attn.data.TextPairs(list("abcdefgh"), list("ABCDEFGH"), "capitals")
    recipe = runs.Recipe(
        model={"kind": "rnn", "hidden_dim": 16, "dropout": 0.0, "max_sequence_length": 16},
        tokenizer="bytes",
        max_tokens=64,
        epochs=60,
        learning_rate=0.02,
        warmup_steps=5,
        dtype="float32",
        metric="exact_match",
        stop_at=100.0,
        num_averaged=1,
    )
    translator = runs.train(runs.DataSplits(pairs, pairs, None), tmp_path / "run", recipe, verbose=0)
    assert translator(pairs.sources) == pairs.targets
    with pytest.raises(ValueError, match="`kind` of a model must be one of transformer, rnn"):
        runs.train(
            runs.DataSplits(pairs, pairs, None),
            tmp_path / "cnn",
            recipe.replace(model={"kind": "cnn"}),
            verbose=0,
        )
