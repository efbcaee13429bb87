"""The examples of images and signals do their whole road with a training of seconds."""

import io
import pathlib
import pickle
import re
import struct

import numpy as np
import pytest
from PIL import Image
from test_examples import load, run_example

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
    assert (tmp_path / "runs" / "signals" / "transformer.png").stat().st_size > 5000


@pytest.mark.extended
def test_classify_signals_by_a_conformer(tmp_path):
    printed = run_example(
        "classify_signals.py", tmp_path, "--model", "conformer", "--epochs", "2", "--output", "here"
    )
    # After two epochs; one in ten is right by chance.
    assert float(re.search(r"Seed 0: .* accuracy on 1000 new signals: (.*)%", printed)[1]) > 15
    assert (tmp_path / "here" / "conformer.png").stat().st_size > 5000


def as_of_python_2(value):
    """A pickle as Python 2 and its NumPy wrote the files of CIFAR: byte strings are its plain strings."""

    def save_string(pickler, string):
        pickler.write(b"T" + struct.pack("<i", len(string)) + string)
        pickler.memoize(string)

    opened = io.BytesIO()
    pickler = pickle._Pickler(opened, protocol=2)  # that of Python can be changed
    pickler.dispatch = {**pickler.dispatch, bytes: save_string}
    pickler.dump(value)
    return opened.getvalue().replace(b"numpy._core", b"numpy.core")


COLOURS = {b"red": (220, 40, 30), b"green": (30, 200, 40), b"blue": (20, 50, 210)}


def write_cifar(folder, rng, batch_size=20):
    """A folder in the format of CIFAR-10, whose labels are colours."""
    folder.mkdir()
    for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
        labels = rng.integers(0, len(COLOURS), batch_size)
        # (n, channels, rows, columns), flattened: all red levels first.
        planes = np.array(list(COLOURS.values()))[labels][:, :, None] + rng.integers(
            -20, 20, (batch_size, 3, 32 * 32)
        )
        batch = {
            b"data": planes.astype("uint8").reshape(batch_size, -1),
            b"labels": labels.tolist(),
            b"filenames": [b"a.png"] * batch_size,
        }
        (folder / name).write_bytes(as_of_python_2(batch))
    (folder / "batches.meta").write_bytes(
        as_of_python_2({b"label_names": list(COLOURS), b"num_vis": 32 * 32 * 3})
    )


@pytest.mark.extended
def test_classify_cifar_reads_the_format_and_does_the_whole_road(tmp_path, rng):
    write_cifar(tmp_path / "cifar", rng)
    small = ["--epochs", "8", "--batch-size", "15", "--num-layers", "1", "--hidden-dim", "32"]
    printed = run_example("classify_cifar.py", tmp_path, "cifar", *small, "--output", "run")
    assert "90 training images, 3 labels" in printed
    assert float(re.search(r"Accuracy on 20 test images: (.*)%", printed)[1]) > 80
    history = (tmp_path / "run" / "history.csv").read_text(encoding="utf-8").splitlines()
    assert len(history) == 1 + 8
    assert "val_accuracy" in history[0]
    classifier = keras_attn.load(tmp_path / "run" / "image_classifier")
    for name, colour in COLOURS.items():
        assert classifier(np.full((32, 32, 3), colour, "uint8")) == name.decode()
    for picture in ("confusions.png", "attention.png"):
        assert (tmp_path / "run" / picture).stat().st_size > 5000


def test_classify_cifar_reads_100_labels_and_calls_no_function_of_a_file(tmp_path, rng):
    cifar = load("classify_cifar")
    planes = rng.integers(0, 256, (7, 3 * 32 * 32)).astype("uint8")
    for name, value in {
        "meta": {b"fine_label_names": [b"apple", b"bear"], b"coarse_label_names": [b"fruit"]},
        "train": {b"data": planes, b"fine_labels": [0, 1, 1, 0, 1, 0, 1], b"coarse_labels": [0] * 7},
        "test": {b"data": planes[:2], b"fine_labels": [1, 0], b"coarse_labels": [0, 0]},
    }.items():
        (tmp_path / name).write_bytes(as_of_python_2(value))
    names, (pixels, labels), (test_pixels, _) = cifar.read_cifar(tmp_path)
    assert names == ["apple", "bear"]
    assert labels.tolist() == [0, 1, 1, 0, 1, 0, 1]
    assert pixels[3, 5, 11].tolist() == [planes[3, channel * 1024 + 5 * 32 + 11] for channel in range(3)]
    np.testing.assert_array_equal(test_pixels, pixels[:2])

    (tmp_path / "train").write_bytes(b"cbuiltins\nprint\n(Vhello\ntR.")
    with pytest.raises(pickle.UnpicklingError, match=r"builtins\.print, and it is not called"):
        cifar.read_cifar(tmp_path)
    with pytest.raises(SystemExit, match="There is no CIFAR in "):
        cifar.read_cifar(tmp_path / "nothing")
