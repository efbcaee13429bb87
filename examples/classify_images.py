"""Classify images: a small Vision Transformer learns scikit-learn's handwritten digits, is saved, exported and asked.

    python examples/classify_images.py
    python examples/classify_images.py --splits 5

The first trains on one split of the 1,797 images of 8 x 8 pixels, prints the accuracy on its fifth, exports the classifier,
verifies the export on a PNG file, and draws what the model looked at. The second gives the mean of five stratified splits.

The settings were compared by cross-validation on the first split's training images. The model has no convolution: each patch
of 2 x 2 pixels is a token.

Reference: Dosovitskiy et al., 2021, "An Image is Worth 16x16 Words" (arXiv:2010.11929), sections 3.1 and 4.5.
"""

import argparse
import pathlib
import time

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import StratifiedKFold

import keras_attn
from keras_attn.export import verify_saved_model
from keras_attn.inspection import rollout
from keras_attn.layers import ImageClassificationHead
from keras_attn.models import EncoderWithHead, VisionTransformer
from keras_attn.tasks import ImagePreprocessing
from keras_attn.training import WarmupCosineSchedule

SIZE = 8
PATCH_SIZE = 2
NUM_LABELS = 10
BATCH_SIZE = 64
# The share of images that are changed. The others stay as sharp as those that are read later.
AUGMENTED = 0.8


def read_digits():
    """Levels from 0 to 255, uint8 (1797, 8, 8, 1), and labels; the package has 17 levels."""
    digits = load_digits()
    return np.round(digits.images * 255 / 16).astype("uint8")[..., None], digits.target


def make_model():
    encoder = VisionTransformer.from_sizes(
        image_size=SIZE,
        patch_size=PATCH_SIZE,
        num_layers=3,
        num_channels=1,
        hidden_dim=64,
        num_heads=4,
        intermediate_dim=128,
        dropout=0.1,
    )
    return EncoderWithHead(encoder, ImageClassificationHead(NUM_LABELS))


def training_batches(pixels, labels):
    """Batches in which most images are turned, shifted, scaled and made noisy, anew in every epoch."""
    augment = keras.Sequential(
        [
            keras.layers.RandomRotation(0.03, fill_mode="constant"),
            keras.layers.RandomTranslation(0.0625, 0.0625, fill_mode="constant"),
            keras.layers.RandomZoom(0.1, 0.1, fill_mode="constant"),
            keras.layers.GaussianNoise(0.05),
        ]
    )

    def augmented(images, targets):
        chosen = tf.random.uniform([BATCH_SIZE, 1, 1, 1]) < AUGMENTED
        return tf.where(chosen, augment(images, training=True), images), targets

    images = tf.data.Dataset.from_tensor_slices((pixels / np.float32(255), np.eye(NUM_LABELS)[labels]))
    batches = images.shuffle(len(labels)).batch(BATCH_SIZE, drop_remainder=True)
    return batches.map(augmented, num_parallel_calls=2).prefetch(2)


def train(pixels, labels, epochs, seed):
    """A classifier of uint8 images, and the seconds that its training took."""
    keras.utils.set_random_seed(seed)
    start = time.monotonic()
    model = make_model()
    updates = epochs * (len(labels) // BATCH_SIZE)
    schedule = WarmupCosineSchedule(2e-3, warmup_steps=max(1, updates // 10), total_steps=updates + 1)
    model.compile(
        # The weights that the model has at the end are the mean of those of the last updates.
        keras.optimizers.AdamW(schedule, weight_decay=0.05, use_ema=True, ema_momentum=0.99),
        keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1),
    )
    model.fit(training_batches(pixels, labels), epochs=epochs, shuffle=False, verbose=0)
    names = [str(digit) for digit in range(NUM_LABELS)]
    classifier = keras_attn.ImageClassifier(model, ImagePreprocessing((SIZE, SIZE), num_channels=1), names)
    return classifier, time.monotonic() - start


def accuracy(classifier, pixels, labels):
    return np.mean(np.array(classifier(pixels, batch_size=512), int) == labels)


def draw(classifier, pixels, labels, path):
    """Each digit, and over it how much of each patch arrives at the class token, by attention rollout."""
    import matplotlib.pyplot as plt

    with keras_attn.capture_attention(classifier.model) as maps:
        classifier.model(pixels / np.float32(255))
    rows, columns = classifier.model.encoder.embedding.grid_size((SIZE, SIZE))
    patches = rollout(maps)[:, 0, 1:].reshape(len(pixels), rows, columns)
    figure, panels = plt.subplots(2, len(pixels), figsize=(len(pixels), 2.4), squeeze=False)
    for column, (image, seen, label) in enumerate(zip(pixels, patches, labels)):
        panels[0, column].set_title(f"{label}: {classifier(image)}", fontsize=9)
        panels[0, column].imshow(image[..., 0], cmap="gray_r")
        panels[1, column].imshow(image[..., 0], cmap="gray_r")
        panels[1, column].imshow(
            np.kron(seen / seen.max(), np.ones((PATCH_SIZE, PATCH_SIZE))), cmap="viridis", alpha=0.7
        )
    for panel in panels.ravel():
        panel.axis("off")
    figure.savefig(path, dpi=150, bbox_inches="tight")
    plt.close(figure)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--splits", type=int, default=1, choices=range(1, 6), help="how many of five splits")
    parser.add_argument("--epochs", type=int, default=120)
    parser.add_argument("--output", default="runs/digits", help="folder of the classifier and the picture")
    parser.add_argument("--saved-models", default="saved_models", help="folder of the export")
    arguments = parser.parse_args()
    if arguments.epochs < 1:
        parser.error("--epochs must be at least 1")
    return arguments


def main():
    arguments = parse_arguments()
    pixels, labels = read_digits()
    splits = StratifiedKFold(5, shuffle=True, random_state=0).split(pixels, labels)
    accuracies = []
    for number, (training, test) in zip(range(arguments.splits), splits):
        classifier, seconds = train(pixels[training], labels[training], arguments.epochs, seed=number)
        accuracies.append(accuracy(classifier, pixels[test], labels[test]))
        print(
            f"Split {number + 1}: trained in {seconds:.0f} s; accuracy on {len(test)} new images: {accuracies[-1]:.2%}",
            flush=True,
        )
    if arguments.splits > 1:
        print(f"Mean of {len(accuracies)} splits: {np.mean(accuracies):.2%}")
        return
    output = pathlib.Path(arguments.output)
    classifier.save(output / "image_classifier")
    shown = [test[labels[test] == digit][0] for digit in range(NUM_LABELS)]
    draw(classifier, pixels[shown], labels[shown], output / "attention.png")
    print(f"What it looked at lies in {output / 'attention.png'}")
    file = output / "digit.png"
    file.write_bytes(tf.io.encode_png(pixels[shown[7]]).numpy())
    export(classifier, pathlib.Path(arguments.saved_models) / "digits", pixels[shown[:3]], file)


def export(classifier, folder, examples, file):
    version = classifier.export(folder, examples=list(examples))
    checks = verify_saved_model(version, [file.read_bytes(), "no image"], classifier.default_answers)
    problems = [problem for check in checks for problem in check.problems]
    print(f"{version}: {', '.join(problems) or f'verified; {file} is a {classifier(file)}'}")
    print(f"keras-attn serve {version.parent}")


if __name__ == "__main__":
    main()
