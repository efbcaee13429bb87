"""LoRA in a minute: a model of digits learns to read mirror writing from 10 images of each digit, by 6 % of its weights.

    python examples/lora_in_a_minute.py

A Vision Transformer learns scikit-learn's digits as in `classify_images.py`, in fewer epochs. Then every image is mirrored, and
10 images of each digit are all that there is to learn from. LoRA freezes the model and trains thin matrices beside the
kernels of its queries and values. A copy that trains all weights and a model that begins from nothing get the same images and
as many updates. Merged, the adapted model has no weight more than before.

Reference: Hu et al., 2021, "LoRA: Low-Rank Adaptation of Large Language Models" (arXiv:2106.09685), section 4.
"""

import argparse
import importlib.util
import pathlib
import time

import keras
import numpy as np
from classify_images import NUM_LABELS, make_model, read_digits, train
from sklearn.model_selection import train_test_split

from keras_attn.models import merge_lora

RANK = 4
IMAGES_OF_A_DIGIT = 10
BATCH_SIZE = 50
LEARNING_RATES = {"LoRA": 0.01, "all weights": 0.001, "from nothing": 0.003}


def read_and_split():
    """Pixels and mirrored pixels, labels, and the indices of training, of a few of it, and of test."""
    pixels, labels = read_digits()
    training, test = train_test_split(np.arange(len(labels)), test_size=360, stratify=labels, random_state=0)
    by_digit = [training[labels[training] == digit] for digit in range(NUM_LABELS)]
    few = np.concatenate([indices[:IMAGES_OF_A_DIGIT] for indices in by_digit])
    return pixels, pixels[:, :, ::-1], labels, training, few, test


def make_variants(base):
    """What is trained: the base with LoRA, a copy of the base, and a new model."""
    variants = {name: make_model() for name in LEARNING_RATES}
    for name in ("LoRA", "all weights"):
        variants[name].set_weights(base.get_weights())
    variants["LoRA"].encoder.enable_lora(RANK)
    variants["LoRA"].head.trainable = False
    return variants


def answers(model, pixels):
    return np.argmax(model.predict(pixels / np.float32(255), batch_size=512, verbose=0), axis=-1)


def adapt(model, pixels, labels, learning_rate, epochs, accuracy):
    """Trains, and returns the accuracy before, and after every so many epochs."""
    schedule = keras.optimizers.schedules.CosineDecay(learning_rate, epochs * len(labels) // BATCH_SIZE)
    model.compile(
        keras.optimizers.Adam(schedule), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    curve = [accuracy(model)]
    every = max(1, epochs // 10)
    for done in range(0, epochs, every):
        model.fit(
            pixels / np.float32(255),
            labels,
            batch_size=BATCH_SIZE,
            epochs=min(every, epochs - done),
            verbose=0,
        )
        curve.append(accuracy(model))
    return curve


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=40, help="of the digits as they are")
    parser.add_argument("--adaptation-epochs", type=int, default=60)
    parser.add_argument("--output", default="runs/lora_in_a_minute", help="folder of the picture")
    arguments = parser.parse_args()
    if min(arguments.epochs, arguments.adaptation_epochs) < 1:
        parser.error("--epochs and --adaptation-epochs must be at least 1")
    return arguments


def main():
    arguments = parse_arguments()
    pixels, mirrored, labels, training, few, test = read_and_split()
    classifier, seconds = train(pixels[training], labels[training], arguments.epochs, seed=0)
    base = classifier.model

    def accuracy(model, pixels=mirrored):
        return np.mean(answers(model, pixels[test]) == labels[test])

    print(
        f"Trained in {seconds:.0f} s; accuracy on {len(test)} new images: {accuracy(base, pixels):.1%}, "
        f"mirrored: {accuracy(base):.1%}"
    )
    variants = make_variants(base)
    curves = {}
    for name, model in variants.items():
        start = time.monotonic()
        rate = LEARNING_RATES[name]
        curves[name] = adapt(model, mirrored[few], labels[few], rate, arguments.adaptation_epochs, accuracy)
        trained = sum(map(np.size, model.trainable_weights))
        print(
            f"{name}: {trained:,} weights trained ({trained / base.count_params():.1%} of the model's) in "
            f"{time.monotonic() - start:.0f} s on {len(few)} mirrored images; accuracy, mirrored: {curves[name][-1]:.1%}",
            flush=True,
        )

    adapted = merge_lora(variants["LoRA"])
    changed = np.sum(answers(adapted, mirrored[test]) != answers(variants["LoRA"], mirrored[test]))
    print(
        f"Merged: {adapted.count_params():,} weights, {base.count_params():,} before; {changed} answers changed."
    )
    if importlib.util.find_spec("matplotlib"):
        shown = [test[labels[test] == digit][0] for digit in range(NUM_LABELS)]
        file = pathlib.Path(arguments.output) / "lora.png"
        draw(mirrored[shown], answers(base, mirrored[shown]), answers(adapted, mirrored[shown]), curves, file)
        print(f"What it learned lies in {file}")


def draw(pixels, before, after, curves, file):
    """The mirrored digits with what was read before and after, and the accuracy of each way by the share of its training."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    images, lines = figure.subfigures(1, 2, width_ratios=(1.3, 1))
    for panel, image, old, new in zip(images.subplots(2, 5).ravel(), pixels, before, after):
        panel.imshow(image[..., 0], cmap="gray_r")
        panel.set_title(f"{old} → {new}", fontsize=10)
        panel.axis("off")
    images.suptitle("read before LoRA → after")
    panel = lines.subplots()
    for name, curve in curves.items():
        panel.plot(np.linspace(0, 100, len(curve)), curve, label=name)
    panel.set(xlabel="% of the updates", ylabel="accuracy on new mirrored digits", ylim=(0, 1))
    panel.legend(loc="lower right")
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=100)


if __name__ == "__main__":
    main()
