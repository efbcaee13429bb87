"""From the pixels of an image to what a model reads: size, crop, scale and normalisation, as one value."""

import dataclasses
import math
import numbers

import tensorflow as tf

from keras_attn.checks import choose
from keras_attn.tasks.image_bytes import decode_image

# Keras' names of interpolations: the kernels of TensorFlow's op that widens them where an image shrinks, as Pillow does.
_KERNELS = {"bilinear": "triangle", "bicubic": "keyscubic", "lanczos3": "lanczos3", "nearest": None}


@dataclasses.dataclass(frozen=True)
class ImagePreprocessing:
    """What is done to an image before a model reads it: resizing, a crop of the middle, `(pixels * scale - mean) / std`.

    With `antialias`, an image is resized as Pillow does it, and with it Hugging Face's image processors: one axis after the
    other, rounded to whole levels each time. Of Pillow 13's levels, less than 1 in 100 differs, by 1. It begins with the
    height where that shrinks by many more pixels than the width; earlier versions always begin with the width. Without `antialias`, the pixels are those of Keras' `Resizing`
    layer and `image_dataset_from_directory`, floats, in which what is smaller than a pixel is missed.

    Args:
        image_size: (height, width) of what the model reads, in pixels.
        num_channels: Integer, 3 (RGB) or 1 (grey: ITU-R 601-2 luma, as Pillow's `convert("L")`).
        resize_to: (height, width) of the image of which the middle, `image_size`, is taken; or an integer, the length of its
            shorter side, for the aspect ratio to stay. Defaults to `image_size`.
        interpolation: "bilinear", "bicubic", "lanczos3" or "nearest".
        antialias: Boolean, see above.
        scale: Float, what levels from 0 to 255 are multiplied by.
        mean, std: Floats, or a float for each channel.

    Raises:
        ValueError: if a value is out of range, or the crop is larger than the image.

    Example:

    ```python
    from keras_attn.tasks import ImagePreprocessing

    preprocessing = ImagePreprocessing((224, 224), resize_to=256, interpolation="bicubic", mean=0.5, std=0.5)
    image = preprocessing(np.zeros((480, 640, 3), "uint8"))  # float32 (224, 224, 3), of -1
    ```
    """

    image_size: tuple
    num_channels: int = 3
    resize_to: tuple | int | None = None
    interpolation: str = "bilinear"
    antialias: bool = True
    scale: float = 1 / 255
    mean: tuple | float = 0.0
    std: tuple | float = 1.0

    def __post_init__(self):
        size = _size("image_size", self.image_size)
        resize_to = size if self.resize_to is None else self.resize_to
        if not isinstance(resize_to, numbers.Integral) or isinstance(resize_to, bool):
            resize_to = _size("resize_to", resize_to)
        if self.num_channels not in (1, 3):
            raise ValueError(f"`num_channels` must be 1 or 3. Received: num_channels={self.num_channels!r}.")
        shorter = (resize_to, resize_to) if isinstance(resize_to, numbers.Integral) else resize_to
        if any(length < cropped for length, cropped in zip(shorter, size)):
            raise ValueError(
                f"`resize_to` must be at least `image_size`. Received: resize_to={self.resize_to!r}, image_size={size}."
            )
        choose("interpolation", self.interpolation, _KERNELS)
        if not _is_finite(self.scale) or self.scale == 0:
            raise ValueError(f"`scale` must be a number other than 0. Received: scale={self.scale!r}.")
        values = {
            "image_size": size,
            "num_channels": int(self.num_channels),
            "resize_to": int(resize_to) if isinstance(resize_to, numbers.Integral) else resize_to,
            "antialias": bool(self.antialias),
            "scale": float(self.scale),
            "mean": self._by_channel("mean"),
            "std": self._by_channel("std"),
        }
        if 0.0 in values["std"]:
            raise ValueError(f"`std` must not be 0. Received: std={self.std!r}.")
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def shape(self):
        """(height, width, channels) of what the model reads."""
        return (*self.image_size, self.num_channels)

    def __call__(self, pixels):
        """uint8 (H, W, 3), or (H, W, 1) for a model of grey images -> float32 (height, width, channels)."""
        pixels = tf.convert_to_tensor(pixels)
        if self.num_channels == 1 and pixels.shape[-1] == 3:
            pixels = _grey(pixels)
        pixels = self._cropped(self._resized(pixels))
        return tf.ensure_shape((pixels * self.scale - self.mean) / self.std, self.shape)

    def levels(self, images):
        """What the model reads (..., height, width, channels) -> uint8, the pixels that a person sees."""
        levels = (images * self.std + self.mean) / self.scale
        return tf.cast(tf.clip_by_value(tf.round(levels), 0, 255), tf.uint8)

    def decoded(self, contents):
        """The bytes of a JPEG or PNG file, a scalar string -> float32 (height, width, channels).

        For a `tf.data.Dataset` of training images: what the model learns from is then what it is asked about.

        Raises:
            tf.errors.InvalidArgumentError: if the file is damaged, or of another format.
        """
        return self(decode_image(contents))

    def most_pixels(self, size):
        """The most pixels that an image of a size, int64 (2,), ever has on its way, int64: a thin one may grow long."""
        before = tf.minimum(size, 2**31)  # of which the product is no overflow
        after = self._size_of(before)
        return tf.maximum(before[0] * before[1], after[0] * after[1])

    def config(self):
        """The arguments, as values that JSON can hold."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in dataclasses.asdict(self).items()
        }

    def _resized(self, pixels):
        """The image in levels, float32, in the size before the crop."""
        height, width = tf.unstack(tf.shape(pixels)[:2])
        size = tf.cast(self._size_of(tf.shape(pixels, tf.int64)[:2]), tf.int32)
        if self.interpolation == "nearest" or not self.antialias:
            return tf.cast(tf.image.resize(pixels, size, self.interpolation), tf.float32)
        kernel = _KERNELS[self.interpolation]
        # Pillow's rule since version 13 (its pull request 9549).
        less_height, less_width = height - size[0], width - size[1]
        is_height_first = (less_height > 0) & (less_height > 2 * less_width)
        between = tf.where(is_height_first, [size[0], width], [height, size[1]])
        pixels = _in_levels(pixels, between, kernel)
        return _in_levels(pixels, size, kernel)

    def _size_of(self, size):
        """The size before the crop, of an image of a size; int64 (2,)."""
        if not isinstance(self.resize_to, int):
            return tf.constant(self.resize_to, tf.int64)
        # The longer side is truncated to whole pixels, as transformers does it.
        return tf.maximum(size * self.resize_to // tf.reduce_min(size), self.resize_to)

    def _cropped(self, pixels):
        height, width = tf.unstack(tf.shape(pixels)[:2])
        top, left = (height - self.image_size[0]) // 2, (width - self.image_size[1]) // 2
        return pixels[top : top + self.image_size[0], left : left + self.image_size[1]]

    def _by_channel(self, name):
        given = getattr(self, name)
        values = [given] * self.num_channels if isinstance(given, numbers.Real) else list(given)
        if len(values) != self.num_channels or not all(map(_is_finite, values)):
            raise ValueError(
                f"`{name}` must be a number, or one for each of {self.num_channels} channels. Received: {name}={given!r}."
            )
        return tuple(map(float, values))


def _in_levels(pixels, size, kernel):
    """An image of another size in whole levels from 0 to 255, float32."""
    scale = tf.cast(size, tf.float32) / tf.cast(tf.shape(pixels)[:2], tf.float32)
    resized = tf.raw_ops.ScaleAndTranslate(
        images=pixels[None],
        size=size,
        scale=scale,
        translation=[0.0, 0.0],
        kernel_type=kernel,
        antialias=True,
    )
    return tf.clip_by_value(tf.floor(resized[0] + 0.5), 0.0, 255.0)


def _grey(pixels):
    """uint8 (H, W, 3) -> (H, W, 1), in Pillow's fixed-point arithmetic."""
    levels = tf.reduce_sum(tf.cast(pixels, tf.int32) * [19595, 38470, 7471], axis=-1, keepdims=True)
    return tf.cast((levels + 2**15) // 2**16, tf.uint8)


def _size(name, value):
    try:
        height, width = value
    except (TypeError, ValueError):
        height = width = None
    if not all(
        isinstance(n, numbers.Integral) and not isinstance(n, bool) and n > 0 for n in (height, width)
    ):
        raise ValueError(f"`{name}` must be (height, width) in pixels. Received: {name}={value!r}.")
    return int(height), int(width)


def _is_finite(value):
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)
