"""A run keeps the average of its epochs; the best epoch, best by choice, must be better than chance makes it."""

import json
import types

import keras
import numpy as np
import pytest
from helpers_recipes import TINY

from keras_attn import runs
from keras_attn.data import TextPairs
from keras_attn.models import save_weights
from keras_attn.runs.language_model_run import LanguageModelRun
from keras_attn.runs.translation_run import TranslationRun
from keras_attn.training import p_value_of_differences, paired_p_value

WORDS = [f"w{number}" for number in range(31)]
NUM_PAIRS = 60
WORKERS = types.SimpleNamespace(is_first=True, count=1)


def references(seed=3):
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, size=9)) for _ in range(NUM_PAIRS)]


def with_mistakes(texts, wrong):
    """`texts`, in which those with the indices `wrong` have a word that is not theirs."""
    return ["?" + text[1:] if row in set(wrong) else text for row, text in enumerate(texts)]


class FakeTranslator:
    """Translates as `answers` says."""

    num_beams, length_penalty = 1, 1.0

    def __init__(self, answers):
        self.answers = answers

    def __call__(self, sources):
        return self.answers()


class ModelOfOneWeight(keras.Model):
    """A model whose only weight tells which checkpoint it is: 1 the best epoch, 5 the average of 3 and 7."""

    def __init__(self):
        super().__init__()
        self.number = self.add_weight(shape=(), name="number")
        self.built = True


def run_between(tmp_path, of_average, of_best, metric, starts=False):
    """A run that has trained: the translations of its average and of its best epoch are these."""
    pairs = TextPairs([str(row) for row in range(NUM_PAIRS)], references(), "words")
    recipe = runs.Recipe(model=TINY, metric=metric, bleu_tokenize="none", num_averaged=2, num_beams=1)
    run = TranslationRun(recipe, runs.DataSplits(pairs, pairs, None), tmp_path, 0, WORKERS)
    run.model = ModelOfOneWeight()
    for name, value in (("best", 1.0), ("epoch-002", 3.0), ("epoch-003", 7.0)):
        run.model.number.assign(value)
        save_weights(run.model, tmp_path / "checkpoints" / f"{name}.safetensors")
    answers = {1.0: of_best, 5.0: of_average}
    run.translator = FakeTranslator(lambda: answers[float(run.model.number)])
    if starts:  # no epoch was better than the weights at the start
        run.score_before, run.keep_best = 1.0, types.SimpleNamespace(best_epoch=None)
    run.choose_weights()
    return run


@pytest.mark.parametrize("metric", ["bleu", "chrf", "exact_match"])
def test_a_lead_of_the_best_epoch_that_chance_explains_keeps_the_average(tmp_path, metric):
    texts = references()
    of_average, of_best = with_mistakes(texts, range(20)), with_mistakes(texts, range(3, 21))
    run = run_between(tmp_path, of_average, of_best, metric)
    scores = [
        run.results[f"validation, {name}"][metric] for name in ("best epoch", "average of the last 2 epochs")
    ]
    assert scores[0] > scores[1]  # by which the best epoch was kept before
    assert float(run.model.number) == 5.0
    kept = run.results["kept"]
    assert kept["weights"] == "average of the last 2 epochs"
    assert kept["p_value"] > 0.05
    assert "may be chance" in kept["reason"]
    assert (tmp_path / "checkpoints" / "average.safetensors").is_file()
    assert f"Kept: average of the last 2 epochs; {kept['reason']}." in (tmp_path / "log.txt").read_text()
    json.dumps(run.results)


def test_a_best_epoch_that_is_surely_better_is_kept(tmp_path):
    texts = references()
    run = run_between(tmp_path, with_mistakes(texts, range(25)), texts, "bleu")
    assert float(run.model.number) == 1.0
    assert run.results["kept"]["weights"] == "best epoch"
    assert run.results["kept"]["p_value"] < 0.05
    assert not (tmp_path / "checkpoints" / "average.safetensors").exists()


def test_a_run_never_ends_worse_than_it_began(tmp_path):
    texts = references()
    run = run_between(
        tmp_path, with_mistakes(texts, range(20)), with_mistakes(texts, range(3, 21)), "bleu", starts=True
    )
    assert float(run.model.number) == 1.0
    assert run.results["kept"]["weights"] == "weights at the start"


def test_an_average_that_scores_as_well_is_kept_without_a_test(tmp_path):
    run = run_between(tmp_path, references(), references(), "chrf")
    assert float(run.model.number) == 5.0
    assert run.results["kept"]["p_value"] is None
    assert run.results["kept"]["reason"] == "the best epoch does not score better on validation"


def test_a_language_model_compares_its_losses_window_by_window():
    run = LanguageModelRun.__new__(LanguageModelRun)
    rng = np.random.default_rng(5)
    of_average, noise = rng.normal(70, 9, size=37), rng.normal(0, 1, size=37)
    assert run.p_value(of_average, of_average - 1 + 0.1 * noise) < 0.05
    assert run.p_value(of_average, of_average + noise - noise.mean() - 0.05) > 0.05


def test_the_p_value_is_that_of_the_normal_distribution_where_sentences_are_many():
    """Against the normal approximation: a difference of z standard errors."""
    rng = np.random.default_rng(7)
    noise = rng.normal(size=997)
    noise = (noise - noise.mean()) / noise.std()
    for z, expected in ((0.5, 0.6171), (1.5, 0.1336), (2.5, 0.0124)):
        assert p_value_of_differences(noise + z / np.sqrt(997)) == pytest.approx(expected, abs=0.03)


def test_equal_translations_and_wrong_arguments():
    texts = references()
    assert paired_p_value(texts, list(texts), texts) == 1.0
    assert p_value_of_differences(np.zeros(3)) == 1.0
    other = with_mistakes(texts, [4])  # one sentence tells nothing
    for metric in ("bleu", "chrf", "exact_match"):
        assert paired_p_value(other, texts, texts, metric, "none") > 0.05
    with pytest.raises(ValueError, match="`metric` must be"):
        paired_p_value(texts, other, texts, "ter")
    with pytest.raises(ValueError, match="same length"):
        paired_p_value(texts, other[:3], texts)
