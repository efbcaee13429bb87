"""Classify signals: a Transformer or a Conformer reads mnist1d, 40 samples a signal, better than the published convolutional network.

    python examples/classify_signals.py
    python examples/classify_signals.py --model conformer --seeds 2

The package mnist1d makes its 5,000 signals itself, 4,000 of them for training, with its default arguments. It published 94 %
for a convolutional network and 91 % for a GRU. A signal is a digit's outline, shifted around a circle, with a slope and
noise; so each signal is shifted, stretched, tilted and made noisy anew in every epoch. The settings were compared on 800 of
the training signals.

Two samples are a token. In the Transformer, rotary positions say how far tokens are apart, which is all that a shifted outline
has in common. The Conformer has no positions: its convolutions see what is near, and its attention the rest; it needs fewer
epochs. The picture shows which samples are attended to.

References: Greydanus and Kobak, 2024, "Scaling Down Deep Learning with MNIST-1D" (arXiv:2011.14439), section 3;
Su et al., 2021, "RoFormer" (arXiv:2104.09864), section 3.2; Gulati et al., 2020, "Conformer" (arXiv:2005.08100), section 2.
"""

import argparse
import importlib.util
import pathlib
import time

import keras
import numpy as np
import tensorflow as tf
from conformer import ConformerBlock
from mnist1d.data import make_dataset

import keras_attn
from keras_attn.layers import ImageClassificationHead, PatchEmbedding
from keras_attn.models import EncoderWithHead, VisionTransformer
from keras_attn.training import WarmupCosineSchedule

LENGTH = 40
SAMPLES_OF_A_TOKEN = 2
NUM_LABELS = 10
BATCH_SIZE = 100


def make_transformer():
    """A signal is an image of one row, whose patches are its tokens."""
    return VisionTransformer.from_sizes(
        image_size=(1, LENGTH),
        patch_size=(1, SAMPLES_OF_A_TOKEN),
        num_layers=3,
        num_channels=1,
        use_class_token=False,
        hidden_dim=64,
        num_heads=4,
        intermediate_dim=128,
        position_encoding="rotary",
    )


def make_conformer():
    embedding = PatchEmbedding(
        (1, SAMPLES_OF_A_TOKEN), 64, num_channels=1, position=None, use_class_token=False
    )
    return VisionTransformer(embedding, [ConformerBlock(128, num_heads=4, kernel_size=5) for _ in range(2)])


# Of each: what makes it, and for how many epochs it is trained.
MODELS = {"transformer": (make_transformer, 200), "conformer": (make_conformer, 30)}


def changed(signals, labels):
    """Each signal shifted around the circle, stretched by up to 10 %, scaled by up to 20 %, tilted, and made noisy."""

    def drawn(low, high):
        return tf.random.uniform([BATCH_SIZE, 1], low, high)

    places = tf.math.floormod(tf.range(LENGTH, dtype="float32") * drawn(0.9, 1.1) + drawn(0, LENGTH), LENGTH)
    before = tf.cast(places, "int32") % LENGTH
    share = places - tf.floor(places)
    after = tf.gather(signals, (before + 1) % LENGTH, batch_dims=1)
    signals = tf.gather(signals, before, batch_dims=1) * (1 - share) + after * share
    signals = signals * drawn(0.8, 1.2) + tf.linspace(-1.0, 1.0, LENGTH) * drawn(-0.5, 0.5)
    signals += tf.random.normal(tf.shape(signals), stddev=0.02)
    return signals[:, tf.newaxis, :, tf.newaxis], labels


def train(make_encoder, signals, labels, epochs, seed):
    """A model of signals (B, 1, 40, 1)."""
    keras.utils.set_random_seed(seed)
    data = tf.data.Dataset.from_tensor_slices((signals.astype("float32"), np.eye(NUM_LABELS)[labels]))
    batches = data.shuffle(len(labels)).batch(BATCH_SIZE, drop_remainder=True)
    updates = epochs * (len(labels) // BATCH_SIZE)
    model = EncoderWithHead(make_encoder(), ImageClassificationHead(NUM_LABELS, pooling="mean"))
    schedule = WarmupCosineSchedule(3e-3, warmup_steps=max(1, updates // 10), total_steps=updates + 1)
    model.compile(
        # The weights that the model has at the end are the mean of those of the last updates.
        keras.optimizers.AdamW(schedule, weight_decay=0.05, use_ema=True, ema_momentum=0.99),
        keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1),
    )
    model.fit(batches.map(changed).prefetch(2), epochs=epochs, shuffle=False, verbose=0)
    return model


def accuracy(model, signals, labels):
    logits = model.predict(signals[:, np.newaxis, :, np.newaxis], batch_size=500, verbose=0)
    return np.mean(np.argmax(logits, axis=-1) == labels)


def draw(model, signals, labels, file):
    """Each signal, its samples the larger and darker the more attention they get in the last layer."""
    from matplotlib.figure import Figure

    inputs = signals[:, np.newaxis, :, np.newaxis].astype("float32")
    with keras_attn.capture_attention(model) as maps:
        answers = np.argmax(model(inputs), axis=-1)
    received = list(maps.values())[-1].astype("float32").mean(axis=(1, 2))
    received = np.repeat(received / received.max(axis=1, keepdims=True), SAMPLES_OF_A_TOKEN, axis=1)
    figure = Figure(figsize=(12, 4), layout="constrained")
    panels = figure.subplots(2, 5, sharex=True).ravel()
    for panel, signal, label, answer, shares in zip(panels, signals, labels, answers, received):
        panel.plot(signal, color="lightgrey", zorder=0)
        panel.scatter(range(LENGTH), signal, c=shares, s=60 * shares, cmap="Blues", vmin=0, vmax=1)
        panel.set_title(f"{label}: {answer}", fontsize=9)
        panel.set_yticks([])
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=80)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=sorted(MODELS), default="transformer")
    parser.add_argument(
        "--seeds", type=int, default=1, help="how many models are trained, with seeds 0, 1, ..."
    )
    parser.add_argument("--epochs", type=int, help="default: 200 for a Transformer, 30 for a Conformer")
    parser.add_argument("--output", default="runs/signals", help="folder of the picture")
    arguments = parser.parse_args()
    make_encoder, epochs = MODELS[arguments.model]
    epochs = epochs if arguments.epochs is None else arguments.epochs
    if min(epochs, arguments.seeds) < 1:
        parser.error("--epochs and --seeds must be at least 1")
    data = make_dataset()
    found = []
    for seed in range(arguments.seeds):
        start = time.monotonic()
        model = train(make_encoder, data["x"], data["y"], epochs, seed)
        found.append(accuracy(model, data["x_test"], data["y_test"]))
        print(
            f"Seed {seed}: trained in {time.monotonic() - start:.0f} s; accuracy on {len(data['y_test'])} new signals: "
            f"{found[-1]:.2%}",
            flush=True,
        )
    if arguments.seeds > 1:
        print(f"Mean of {len(found)} seeds: {np.mean(found):.2%}")
    if importlib.util.find_spec("matplotlib"):
        shown = [np.flatnonzero(data["y_test"] == digit)[0] for digit in range(NUM_LABELS)]
        file = pathlib.Path(arguments.output) / f"{arguments.model}.png"
        draw(model, data["x_test"][shown], data["y_test"][shown], file)
        print(f"Which samples it attends to lies in {file}")


if __name__ == "__main__":
    main()
