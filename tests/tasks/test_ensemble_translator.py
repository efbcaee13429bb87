"""A translator whose model is an ensemble goes the whole road: call, score, save, load, export, verify, other engines."""

import keras
import numpy as np
import pytest
from helpers_translators import EXAMPLES, byte_translator

import keras_attn
from keras_attn import runs
from keras_attn.export import verify_saved_model
from keras_attn.models import Ensemble

TEXTS = ["ab c", "", "a longer text"]


@pytest.fixture(scope="module")
def members():
    one = byte_translator()
    other = keras_attn.models.Seq2SeqTransformer.from_sizes(
        259, 1, 2, hidden_dim=12, num_heads=3, intermediate_dim=17, max_sequence_length=41
    )
    return [one.model, other]


@pytest.fixture(scope="module")
def translator(members):
    tokenizer = keras_attn.text.ByteTokenizer()
    return keras_attn.Translator(Ensemble(members), tokenizer, tokenizer, num_beams=2, max_length=7)


@pytest.mark.extended
def test_it_scores_by_the_mean_of_its_members_also_after_it_was_saved_and_loaded(translator, tmp_path):
    translator.save(tmp_path)
    loaded = keras_attn.Translator.load(tmp_path)
    assert loaded.model.max_sequence_length == min(37, 41)
    source, target = ([*ids, 2] for ids in translator.source_tokenizer.encode(["4 July", "2016"]))
    inputs = {"encoder_token_ids": np.array([source]), "decoder_token_ids": np.array([[1, *target[:-1]]])}
    probabilities = np.mean(
        [np.array(keras.ops.softmax(member(inputs))) for member in translator.model.members], axis=0
    )
    expected = np.log(probabilities[0, np.arange(len(target)), target]).mean()
    assert loaded.score("4 July", "2016") == pytest.approx(expected, abs=1e-5)


@pytest.mark.extended
def test_it_translates_aligns_streams_and_shows_attention(translator):
    texts, scores = translator(TEXTS, return_scores=True)
    assert texts[1] == ""
    assert len(scores) == 3
    assert "".join(translator.stream(TEXTS[2])) == translator(TEXTS[2], num_beams=1)
    _, attention_map = translator(TEXTS[0], return_attention_scores=True)
    assert attention_map.attention_scores.shape[:2] == translator.model.cross_attention_shape == (1, 5)
    assert [word.text for word in translator.align("a b", "c d").source_words] == ["a", "b"]


@pytest.mark.extended
@pytest.mark.parametrize("xla", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_what_it_exports_answers_as_it_does(translator, tmp_path, xla):
    sizes = {"batch_sizes": (1, 3), "lengths": (37,)} if xla else {}
    version_folder = translator.export(tmp_path / "exported", EXAMPLES, xla=xla, **sizes)
    checks = verify_saved_model(version_folder, expected=translator.default_answers)
    assert not [check for check in checks if check.problems]
    if not xla:
        runs.check_export(translator, version_folder, TEXTS)


@pytest.mark.extended
def test_engines_without_ensembles_say_so(translator, tmp_path):
    for format in ("ctranslate2", "huggingface"):
        with pytest.raises(ValueError, match=r"must be a Seq2SeqTransformer\. Received: Ensemble"):
            translator.export_model(tmp_path / format, format)
