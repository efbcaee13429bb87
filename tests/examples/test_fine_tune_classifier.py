"""The example that fine-tunes a classifier: it learns, with LoRA it trains few weights, and what it saves is an ordinary task."""

import re

import pytest
from test_examples import run_example

from keras_attn import TextClassifier
from keras_attn.models import read_weights


def printed_accuracies(printed):
    return [float(number) for number in re.search(r"held-out texts: (.*)%; .*: (.*)%", printed).groups()]


@pytest.mark.extended
def test_fine_tune_classifier_beats_the_commonest_label(tmp_path):
    printed = run_example("fine_tune_classifier.py", tmp_path, "--output", "run")
    accuracy, majority = printed_accuracies(printed)
    assert majority < 60
    assert accuracy > 90
    classifier = TextClassifier.load(tmp_path / "run" / "classifier")
    assert classifier.labels == ("cancel", "keep")
    text = "please do not cancel the lamp and send the table"
    assert classifier(text) == "keep"


@pytest.mark.extended
def test_fine_tune_classifier_with_lora_on_files_goes_on_and_merges(tmp_path):
    lines = [f"{a} {b}\t{label}" for a in "abcdefg" for b, label in (("up", "yes"), ("down", "no"))]
    for name in ("train.tsv", "dev.tsv"):
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    command = ["--train", "train.tsv", "--validation", "dev.tsv", "--lora-rank", "2", "--output", "run"]
    command += ["--mixed-precision", "mixed_bfloat16"]
    first = run_example("fine_tune_classifier.py", tmp_path, *command, "--epochs", "1")
    assert float(re.search(r"weights are trained \((.*)%\)", first)[1]) < 15
    longer = run_example("fine_tune_classifier.py", tmp_path, *command, "--epochs", "2")
    assert "Resumed after update 1, in epoch 2" in longer
    weights = read_weights(tmp_path / "run" / "classifier" / "model.safetensors")
    assert not any("lora" in name for name in weights)
