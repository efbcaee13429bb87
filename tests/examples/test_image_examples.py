"""The examples of images and signals do their whole road with a training of seconds."""

import pathlib
import re

import numpy as np
import pytest
from PIL import Image
from test_examples import run_example

import keras_attn


@pytest.mark.extended
def test_classify_images_does_the_whole_road(tmp_path):
    printed = run_example(
        "classify_images.py", tmp_path, "--epochs", "15", "--output", "run", "--saved-models", "served"
    )
    # After so little training it is wrong at times; one digit in ten is the answer of one that learnt nothing.
    assert float(re.search(r"accuracy on 360 new images: (.*)%", printed)[1]) > 50
    classifier = keras_attn.load(tmp_path / "run")
    file = tmp_path / "run" / "digit.png"
    with Image.open(file) as image:
        assert image.size == (8, 8)
    label = classifier(file)
    version = pathlib.Path("served", "digits", "1")
    assert f"{version}: verified; {pathlib.Path('run', 'digit.png')} is a {label}" in printed
    assert (tmp_path / version / "saved_model.pb").is_file()
    with Image.open(tmp_path / "run" / "attention.png") as image:
        picture = np.asarray(image)
    assert len(np.unique(picture.reshape(-1, picture.shape[-1]), axis=0)) > 100


@pytest.mark.slow
def test_classify_images_is_right_on_98_digits_of_100(tmp_path):
    printed = run_example("classify_images.py", tmp_path, "--splits", "5")
    assert float(re.search(r"Mean of 5 splits: (.*)%", printed)[1]) >= 98


@pytest.mark.extended
def test_classify_signals_learns_from_signals_that_are_changed_anew(tmp_path):
    printed = run_example("classify_signals.py", tmp_path, "--epochs", "4")
    # One signal in ten is the answer of one that learnt nothing.
    assert float(re.search(r"Seed 0: .* accuracy on 1000 new signals: (.*)%", printed)[1]) > 25
