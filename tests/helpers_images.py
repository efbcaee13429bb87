"""Images, as files, for tests of decoding and of tasks; Pillow writes them, and is what decoding is compared with."""

import functools
import io

import keras
import numpy as np
from PIL import Image

import keras_attn
from keras_attn.tasks import ImagePreprocessing

HEIGHT, WIDTH, LABELS = 7, 5, ("cat", "dog", "é")


def pixels(height, width, channels=3, seed=0):
    """Random levels, in which neighbours are alike as in photos, and a little noise; (H, W) for one channel."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (height // 8 + 2, width // 8 + 2, channels), dtype=np.uint8)
    planes = [
        Image.fromarray(coarse[..., c]).resize((width, height), Image.Resampling.BICUBIC)
        for c in range(channels)
    ]
    levels = np.stack(planes, axis=-1) + rng.normal(size=(height, width, channels)) * 9
    levels = np.clip(levels, 0, 255).astype("uint8")
    return levels[..., 0] if channels == 1 else levels


def encoded(image, kind="PNG", **options):
    """The bytes of a file with an image or an array."""
    image = Image.fromarray(image) if isinstance(image, np.ndarray) else image
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def opened(content):
    return Image.open(io.BytesIO(content))


def as_pillow_reads(content):
    return np.asarray(opened(content).convert("RGB"))


def png_header(width, height):
    """The first bytes of a PNG file that says it has this size, and nothing more."""
    sizes = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    return b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + sizes + b"\x08\x02\0\0\0" + bytes(4)


def linear_model(num_channels=3, num_labels=3, seed=3):
    """Every pixel counts, and NumPy computes it in a line."""
    rng = np.random.default_rng(seed)
    model = keras.Sequential(
        [
            keras.Input((HEIGHT, WIDTH, num_channels)),
            keras.layers.Flatten(),
            keras.layers.Dense(num_labels, name="logits"),
        ]
    )
    for weight in model.weights:
        weight.assign(rng.normal(size=weight.shape))
    return model


@functools.cache
def image_classifier(preprocessing=None, **options):
    preprocessing = preprocessing or ImagePreprocessing((HEIGHT, WIDTH))
    model = linear_model(num_channels=preprocessing.num_channels)
    return keras_attn.ImageClassifier(model, preprocessing, LABELS, **options)


def patch_classifier():
    """Three blocks over 2 x 3 patches, a class token and a register."""
    encoder = keras_attn.models.VisionTransformer.from_sizes(
        image_size=(8, 12),
        patch_size=4,
        num_layers=3,
        num_register_tokens=1,
        hidden_dim=8,
        num_heads=2,
        intermediate_dim=9,
    )
    model = keras_attn.models.EncoderWithHead(encoder, keras_attn.layers.ImageClassificationHead(2))
    preprocessing = ImagePreprocessing((8, 12), mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.5))
    return keras_attn.ImageClassifier(model, preprocessing, ["cat", "dog"])
