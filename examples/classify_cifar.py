"""Classify photos: a small Vision Transformer on CIFAR-10 or CIFAR-100, for those who have the files.

    python examples/classify_cifar.py cifar-10-batches-py
    python examples/classify_cifar.py cifar-100-python --epochs 200 --mixed-precision mixed_bfloat16

The folder is the unpacked "python version" of https://www.cs.toronto.edu/~kriz/cifar.html; nothing is downloaded. A tenth of the
training images is held out: after every epoch its loss and accuracy go to `history.csv`, and the weights of the best epoch are
kept. The test images are read once, at the end. The pictures are the confusions of labels, and what the model looked at.

A Transformer without convolution needs much augmentation on 50,000 images (Touvron et al., section 6). Here they are flipped,
shifted and recoloured by Keras' layers, and pairs of them are mixed.

References: Krizhevsky, 2009, "Learning Multiple Layers of Features from Tiny Images", the data; Dosovitskiy et al., 2021
(arXiv:2010.11929), section 3.1; Touvron et al., 2021 (arXiv:2012.12877), section 6; Zhang et al., 2018, "mixup"
(arXiv:1710.09412), section 2.
"""

import argparse
import importlib.util
import pathlib
import pickle

import keras
import numpy as np
import tensorflow as tf

import keras_attn
from keras_attn.inspection import rollout
from keras_attn.layers import ImageClassificationHead
from keras_attn.models import EncoderWithHead, VisionTransformer
from keras_attn.tasks import ImagePreprocessing
from keras_attn.training import WarmupCosineSchedule

SIZE = 32
PATCH_SIZE = 4
# The mean and standard deviation of the training pixels of CIFAR-10, which those of CIFAR-100 are near.
MEAN = (0.491, 0.482, 0.447)
STD = (0.247, 0.244, 0.262)
# Of each version: the file of names, its key, the key of labels, the files of training, and that of test.
VERSIONS = [
    ("batches.meta", b"label_names", b"labels", [f"data_batch_{i}" for i in range(1, 6)], "test_batch"),
    ("meta", b"fine_label_names", b"fine_labels", ["train"], "test"),
]
# What a pickled array is made of.
ARRAY_PARTS = ("_reconstruct", "ndarray", "dtype", "encode")


class ArraysOnly(pickle.Unpickler):
    """Reads pickled arrays. A pickle may name any function to be called; all others are refused."""

    def find_class(self, module, name):
        if module.split(".")[0] not in ("numpy", "_codecs") or name not in ARRAY_PARTS:
            raise pickle.UnpicklingError(f"A file of CIFAR needs no {module}.{name}, and it is not called.")
        # Old NumPy's numpy.core is numpy._core today.
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def read_batch(file):
    with open(file, "rb") as opened:
        return ArraysOnly(opened, encoding="bytes").load()


def read_cifar(folder):
    """Names of labels, and for training and test uint8 images (n, 32, 32, 3) and labels (n,)."""
    folder = pathlib.Path(folder)
    for meta, names, labels, training, test in VERSIONS:
        if (folder / meta).is_file():
            parts = [[read_batch(folder / file) for file in files] for files in (training, [test])]
            return [name.decode() for name in read_batch(folder / meta)[names]], *(
                (
                    np.concatenate([batch[b"data"] for batch in batches])
                    .reshape(-1, 3, SIZE, SIZE)
                    .transpose(0, 2, 3, 1),
                    np.concatenate([batch[labels] for batch in batches]),
                )
                for batches in parts
            )
    raise SystemExit(
        f"There is no CIFAR in {folder}: neither batches.meta nor meta. Unpack cifar-10-python.tar.gz or "
        "cifar-100-python.tar.gz, and give the folder that holds the batches."
    )


def make_model(num_labels, num_layers, hidden_dim):
    encoder = VisionTransformer.from_sizes(
        image_size=SIZE,
        patch_size=PATCH_SIZE,
        num_layers=num_layers,
        hidden_dim=hidden_dim,
        num_heads=hidden_dim // 32,
        intermediate_dim=2 * hidden_dim,
        dropout=0.1,
        stochastic_depth=0.1,
    )
    return EncoderWithHead(encoder, ImageClassificationHead(num_labels))


def scaled(pixels):
    return (tf.cast(pixels, "float32") / 255 - MEAN) / STD


def training_batches(pixels, labels, num_labels, batch_size):
    """Batches of images that are changed and mixed in pairs, anew in every epoch."""
    layers = [
        keras.layers.RandomFlip("horizontal"),
        keras.layers.RandomTranslation(0.125, 0.125, fill_mode="constant"),
        keras.layers.RandomColorJitter(
            value_range=(0, 255), brightness_factor=0.2, contrast_factor=0.2, saturation_factor=0.2
        ),
        keras.layers.MixUp(alpha=0.2),
    ]

    def changed(images, targets):
        batch = {"images": tf.cast(images, "float32"), "labels": tf.one_hot(targets, num_labels)}
        for layer in layers:
            batch = layer(batch, training=True)
        return scaled(batch["images"]), batch["labels"]

    data = tf.data.Dataset.from_tensor_slices((pixels, labels))
    batches = data.shuffle(len(labels)).batch(batch_size, drop_remainder=True)
    return batches.map(changed, num_parallel_calls=tf.data.AUTOTUNE).prefetch(2)


def train(model, training, held_out, num_labels, folder, options):
    """Trains, with a log; the model ends with the weights of the best epoch."""
    batches = training_batches(*training, num_labels, options.batch_size)
    updates = options.epochs * len(batches)
    schedule = WarmupCosineSchedule(
        options.learning_rate, warmup_steps=max(1, updates // 20), total_steps=updates + 1
    )
    model.compile(
        keras.optimizers.AdamW(schedule, weight_decay=0.05),
        keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1),
        metrics=["accuracy"],
    )
    validation = tf.data.Dataset.from_tensor_slices(held_out).batch(500)
    validation = validation.map(lambda images, targets: (scaled(images), tf.one_hot(targets, num_labels)))
    best = folder / "best.weights.h5"
    model.fit(
        batches,
        validation_data=validation,
        epochs=options.epochs,
        shuffle=False,
        verbose=2,
        callbacks=[
            keras.callbacks.CSVLogger(folder / "history.csv"),
            keras.callbacks.ModelCheckpoint(
                best, monitor="val_accuracy", mode="max", save_best_only=True, save_weights_only=True
            ),
        ],
    )
    model.load_weights(best)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", default="cifar-10-batches-py", help="the folder of the batches")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--num-layers", type=int, default=6)
    parser.add_argument("--hidden-dim", type=int, default=192, help="a multiple of 32")
    parser.add_argument("--mixed-precision", choices=("mixed_bfloat16", "mixed_float16"), default="float32")
    parser.add_argument(
        "--output", default="runs/cifar", help="folder of the log, the classifier and the pictures"
    )
    options = parser.parse_args()
    if min(options.epochs, options.batch_size, options.num_layers, options.hidden_dim) < 1:
        parser.error("--epochs, --batch-size, --num-layers and --hidden-dim must be at least 1")
    if options.learning_rate <= 0:
        parser.error("--learning-rate must be above 0")
    return options


def main():
    options = parse_arguments()
    names, (pixels, labels), (test_pixels, test_labels) = read_cifar(options.folder)
    folder = pathlib.Path(options.output)
    folder.mkdir(parents=True, exist_ok=True)
    keras.utils.set_random_seed(1)
    keras.config.set_dtype_policy(options.mixed_precision)

    order = np.random.default_rng(1).permutation(len(labels))
    held_out, training = np.split(order, [len(labels) // 10])
    model = make_model(len(names), options.num_layers, options.hidden_dim)
    print(f"{model.count_params():,} parameters, {len(training):,} training images, {len(names)} labels")
    train(
        model,
        (pixels[training], labels[training]),
        (pixels[held_out], labels[held_out]),
        len(names),
        folder,
        options,
    )

    preprocessing = ImagePreprocessing((SIZE, SIZE), mean=MEAN, std=STD)
    classifier = keras_attn.ImageClassifier(model, preprocessing, names)
    classifier.save(folder / "image_classifier")
    confusions = evaluate(model, test_pixels, test_labels, names)
    if importlib.util.find_spec("matplotlib"):
        draw_confusions(confusions, names, folder / "confusions.png")
        draw_attention(classifier, test_pixels[:10], test_labels[:10], folder / "attention.png")
        print(f"Its confusions and what it looked at lie in {folder}")


def evaluate(model, test_pixels, test_labels, names):
    """Prints the accuracy and the most frequent mistake; returns how often each label was answered for each."""
    answers = np.argmax(model.predict(scaled(test_pixels), batch_size=500, verbose=0), axis=-1)
    print(f"Accuracy on {len(test_labels):,} test images: {np.mean(answers == test_labels):.2%}")
    confusions = np.zeros((len(names), len(names)), int)
    np.add.at(confusions, (test_labels, answers), 1)
    wrong = confusions * ~np.eye(len(names), dtype=bool)
    true, said = np.unravel_index(wrong.argmax(), wrong.shape)
    if wrong.any():
        print(f"Most often wrong: {wrong.max()} times {names[said]!r} for {names[true]!r}")
    return confusions


def draw_confusions(confusions, names, file):
    from matplotlib.figure import Figure

    inches = 2 + 0.25 * len(names)
    figure = Figure(figsize=(inches, inches), layout="constrained")
    panel = figure.subplots()
    panel.imshow(
        confusions / np.maximum(1, confusions.sum(axis=1, keepdims=True)), cmap="Blues", vmin=0, vmax=1
    )
    panel.set_xticks(range(len(names)), names, rotation=90)
    panel.set_yticks(range(len(names)), names)
    panel.set(xlabel="answer", ylabel="label")
    figure.savefig(file, dpi=100)


def draw_attention(classifier, pixels, labels, file):
    """Photos, and below each how much of each patch arrives at the class token, by attention rollout."""
    from matplotlib.figure import Figure

    with keras_attn.capture_attention(classifier.model) as maps:
        classifier.model(scaled(pixels))
    seen = rollout(maps)[:, 0, 1:].reshape(len(pixels), SIZE // PATCH_SIZE, SIZE // PATCH_SIZE)
    figure = Figure(figsize=(1.2 * len(pixels), 3), layout="constrained")
    panels = figure.subplots(2, len(pixels), squeeze=False)
    for column, (image, patches) in enumerate(zip(pixels, seen)):
        panels[0, column].set_title(f"{classifier.labels[labels[column]]}:\n{classifier(image)}", fontsize=8)
        panels[0, column].imshow(image)
        panels[1, column].imshow(image)
        panels[1, column].imshow(
            np.kron(patches / patches.max(), np.ones((PATCH_SIZE, PATCH_SIZE))),
            cmap="viridis",
            alpha=0.7,
        )
    for panel in panels.ravel():
        panel.axis("off")
    figure.savefig(file, dpi=100)


if __name__ == "__main__":
    main()
