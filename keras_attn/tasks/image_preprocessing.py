"""Image preprocessing: from bytes of JPEG and PNG files to what a model reads, in the graph.

No row of a batch fails because of another. GIF and WebP are not read. TensorFlow unpacks all the frames of a GIF before it
gives one, so that a small file can take all memory; and WebP is not in every server.
"""

import dataclasses
import math
import numbers
import re

import tensorflow as tf

from keras_attn.checks import choose
from keras_attn.files import read_json
from keras_attn.huggingface.config_fields import not_obeyed
from keras_attn.huggingface.dry_run import note_without_effect

# Files with more pixels are not decoded, because a few kilobytes can unpack to gigabytes: the limit that Pillow warns at,
# `PIL.Image.MAX_IMAGE_PIXELS`, a quarter of a gigabyte of RGB.
MOST_PIXELS = 2**30 // 4 // 3

# Images of a batch that are decoded at the same time. AUTOTUNE takes longer to begin than small images take.
_THREADS = 8
# The Exif segment is one of a file's first ones, which have at most 64 KiB each.
_LENGTH_OF_HEAD = 2 * 2**16
_ORIENTATION_TAG = 0x0112
_MOST_ENTRIES = 256


def decode_image(contents):
    """The pixels of an image file, as Pillow decodes it, turned as its Exif orientation says.

    Alpha is dropped and grey becomes RGB, as in Pillow's `convert("RGB")`. Of 16 bits, the upper 8 count.

    Args:
        contents: Scalar string, a JPEG or PNG file.

    Returns:
        uint8 (H, W, 3).

    Raises:
        tf.errors.InvalidArgumentError: if it is neither, or damaged.
    """

    def jpeg():
        # The default method is faster and up to 12 levels off; this one is exactly Pillow's.
        pixels = tf.io.decode_jpeg(contents, channels=3, dct_method="INTEGER_ACCURATE")
        return _upright(pixels, exif_orientation(contents))

    def png():
        # The op reads other formats too: it gets nothing of them, which fails.
        return tf.io.decode_png(tf.where(_is_png(contents), contents, ""), channels=3)

    pixels = tf.cond(_is_jpeg(contents), jpeg, png)
    return tf.ensure_shape(pixels, [None, None, 3])


def decode_batch(contents, preprocessing):
    """Image files (B,) to images that are ready for a model; what cannot be read becomes zeros.

    Args:
        contents: String (B,).
        preprocessing: `ImagePreprocessing`.

    Returns:
        float32 (B, height, width, channels), and boolean (B,) twice: whether a file was decoded, and whether it was not
        because it has too many pixels.
    """
    shape = preprocessing.shape
    zeros = tf.zeros(shape)
    num_rows = tf.size(contents)

    def decode_row(row, content):
        is_too_large = preprocessing.most_pixels(header_size(content)) > MOST_PIXELS
        image = tf.cond(is_too_large, lambda: zeros, lambda: preprocessing(decode_image(content)))
        return row, is_too_large, tf.ensure_shape(image, shape)

    # The only ops that go on after an error are those of datasets. A row that fails is left out; one more keeps the batch
    # from being empty.
    rows = tf.data.Dataset.from_tensor_slices((tf.range(num_rows), contents))
    rows = rows.map(decode_row, num_parallel_calls=_THREADS, deterministic=False).ignore_errors()
    last = tf.data.Dataset.from_tensors((num_rows, tf.constant(False), zeros))
    batch = rows.concatenate(last).batch(tf.cast(num_rows, tf.int64) + 1).get_single_element()
    numbers, is_too_large, images = batch
    places = numbers[:, None]
    images = tf.scatter_nd(places, images, tf.concat([[num_rows + 1], shape], axis=0))[:num_rows]
    is_read = tf.scatter_nd(places, tf.ones_like(numbers), [num_rows + 1])[:num_rows] > 0
    is_too_large = tf.scatter_nd(places, tf.cast(is_too_large, tf.int32), [num_rows + 1])[:num_rows] > 0
    return tf.ensure_shape(images, [None, *shape]), is_read & ~is_too_large, is_too_large


def exif_orientation(contents):
    """The Exif orientation of a JPEG file, int64 from 1 to 8; 1, upright, if it has none.

    Reference: Exif 2.32 (CIPA DC-008), section 4.6.2.
    """
    head = tf.io.decode_raw(tf.strings.substr(contents, 0, _LENGTH_OF_HEAD), tf.uint8)
    head = tf.pad(head, [[0, 16]])
    size = tf.size(head, tf.int64)
    # Marker, length of the segment, name.
    pattern = [0xFF, 0xE1, None, None, *b"Exif\0\0"]
    ends = size - len(pattern)
    is_start = tf.reduce_all(
        [head[i : ends + i] == byte for i, byte in enumerate(pattern) if byte is not None], axis=0
    )
    starts = tf.where(is_start)[:, 0] + len(pattern)
    tiff = tf.concat([starts, [size]], axis=0)[0]  # the end, past which all bytes are 0, if there is none

    def byte(offset):
        value = tf.gather(head, tf.minimum(offset, size - 1))
        return tf.where(offset < size, tf.cast(value, tf.int64), 0)

    is_little = byte(tiff) == ord("I")

    def number(offset, length):
        bytes_ = [byte(offset + i) for i in range(length)]
        big = sum(value * 256 ** (length - 1 - i) for i, value in enumerate(bytes_))
        little = sum(value * 256**i for i, value in enumerate(bytes_))
        return tf.where(is_little, little, big)

    entries = tiff + number(tiff + 4, 4)
    offsets = entries + 2 + 12 * tf.range(tf.minimum(number(entries, 2), _MOST_ENTRIES))
    tags = number(offsets, 2)
    values = number(offsets + 8, 2)
    is_valid = (tags == _ORIENTATION_TAG) & (values >= 1) & (values <= 8)
    return tf.concat([values[is_valid], [1]], axis=0)[0]


def _upright(pixels, orientation):
    """Pixels (H, W, 3) as they are to be seen; orientations from 5 on swap the axes."""
    pixels = tf.cond(orientation >= 5, lambda: tf.transpose(pixels, [1, 0, 2]), lambda: pixels)
    turn = (orientation - 1) % 4
    # The transposed picture is that of 1, 6 is it mirrored, 7 turned by 180 degrees, 8 upside down; 2, 3 and 4 alike.
    pixels = tf.cond((turn == 1) | (turn == 2), lambda: tf.reverse(pixels, [1]), lambda: pixels)
    return tf.cond((turn == 2) | (turn == 3), lambda: tf.reverse(pixels, [0]), lambda: pixels)


def header_size(contents):
    """The height and width that the header of a JPEG or PNG file states, int64 (2,), 0 of others; nothing is decoded."""

    def jpeg():
        return tf.io.extract_jpeg_shape(contents, tf.int64)[:2]

    def png():
        header = tf.strings.substr(tf.strings.join([contents, b"\0" * 24]), 16, 8)
        sizes = tf.reshape(tf.cast(tf.io.decode_raw(header, tf.uint8), tf.int64), [2, 4])
        width, height = tf.unstack(tf.reduce_sum(sizes * [2**24, 2**16, 2**8, 1], axis=1))
        return tf.where(_is_png(contents), tf.stack([height, width]), 0)

    return tf.cond(_is_jpeg(contents), jpeg, png)


def _is_jpeg(contents):
    return tf.strings.substr(contents, 0, 3) == b"\xff\xd8\xff"


def _is_png(contents):
    return tf.strings.substr(contents, 0, 8) == b"\x89PNG\r\n\x1a\n"


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
        config = dataclasses.asdict(self)
        for name, value in config.items():
            if isinstance(value, tuple):
                config[name] = list(value)
        return config

    def _resized(self, pixels):
        """The image in levels, float32, in the size before the crop."""
        height, width = tf.unstack(tf.shape(pixels)[:2])
        size = tf.cast(self._size_of(tf.shape(pixels, tf.int64)[:2]), tf.int32)
        if self.interpolation == "nearest" or not self.antialias:
            return tf.cast(tf.image.resize(pixels, size, self.interpolation), tf.float32)
        kernel = _KERNELS[self.interpolation]
        # Pillow's rule since version 13 (its pull request 9549).
        less_height = height - size[0]
        less_width = width - size[1]
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
        top = (height - self.image_size[0]) // 2
        left = (width - self.image_size[1]) // 2
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


PREPROCESSOR_FILE = "preprocessor_config.json"

# What an image processor does where its file says nothing, by the beginning of its class's name.
_DEFAULTS = {
    "ViT": {"size": 224, "resample": 2, "image_mean": 0.5, "image_std": 0.5},
    "DeiT": {
        "size": 256,
        "resample": 3,
        "do_center_crop": True,
        "crop_size": 224,
        "image_mean": 0.5,
        "image_std": 0.5,
    },
    "Bit": {
        "size": {"shortest_edge": 224},
        "resample": 3,
        "do_center_crop": True,
        "crop_size": 224,
        # OPENAI_CLIP_MEAN and OPENAI_CLIP_STD of transformers
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
    },
}
_COMMON_DEFAULTS = {"do_resize": True, "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True}
# The processor of old files, which do not name one.
_UNNAMED_PROCESSORS = {
    "vit": "ViT",
    "deit": "DeiT",
    "swin": "ViT",
    "dinov2": "Bit",
    "dinov2_with_registers": "Bit",
}
_OBEYED = {*_COMMON_DEFAULTS, *_DEFAULTS["DeiT"], "default_to_square"}
# What the fields that are obeyed for some values ask for otherwise.
_REFUSED = {
    "do_resize": "images of sizes of their own, of which no batch can be made",
    "resample": "another filter than those of numbers 0 to 3",
    "pad_size": "margins around images",
}
# Fields of the class that change no pixel: they say how a call gives its result, or what is done here in any case.
WITHOUT_EFFECT = {
    "do_convert_rgb",
    "data_format",
    "input_data_format",
    "return_tensors",
    "device",
    "disable_grouping",
    "image_seq_length",
    "do_pad",
}
_FIELDS_OF_FILE = {
    "image_processor_type",
    "feature_extractor_type",
    "processor_class",
    "_valid_processor_keys",
}
# Pillow's numbers of resampling filters.
_INTERPOLATIONS = {0: "nearest", 1: "lanczos3", 2: "bilinear", 3: "bicubic"}


def read_preprocessing(folder, config, ignored_fields=()):
    """The `ImagePreprocessing` of a checkpoint's preprocessor_config.json.

    Args:
        folder: `pathlib.Path`.
        config: Dict, the content of config.json, for files that do not name their processor.
        ignored_fields: Names of fields that are taken for absent.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if its processor is not known, or it asks for what `ImagePreprocessing` does not do.
    """
    path = folder / PREPROCESSOR_FILE
    if not path.is_file():
        raise FileNotFoundError(
            f"There is no {path}, which says how images are resized and normalised. Give `preprocessing=`, a "
            "keras_attn.tasks.ImagePreprocessing."
        )
    try:
        given = {name: value for name, value in read_json(path).items() if name not in ignored_fields}
        return _preprocessing(given, config.get("model_type"), config.get("num_channels", 3))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} cannot be used: {error}") from error


def processor_fields(preprocessing):
    """The content of a preprocessor_config.json with which transformers does the same, a dict.

    Raises:
        ValueError: if no processor of transformers does it.
    """
    if not preprocessing.antialias:
        raise ValueError(
            f"The image processors of transformers resize with antialias. Received: antialias={preprocessing.antialias}."
        )
    is_cropped = preprocessing.resize_to != preprocessing.image_size
    if isinstance(preprocessing.resize_to, tuple):
        kind = "DeiT" if is_cropped else "ViT"
        size = dict(zip(("height", "width"), preprocessing.resize_to))
    else:
        kind = "Bit"
        size = {"shortest_edge": preprocessing.resize_to}
    crop = {}
    if is_cropped:
        crop_size = dict(zip(("height", "width"), preprocessing.image_size))
        crop = {"do_center_crop": True, "crop_size": crop_size}
    (number,) = (n for n, name in _INTERPOLATIONS.items() if name == preprocessing.interpolation)
    return {
        "image_processor_type": f"{kind}ImageProcessor",
        # Theirs make no grey of colours: grey images stay so, and others have too many channels for the model.
        "do_convert_rgb": preprocessing.num_channels == 3,
        "do_resize": True,
        "size": size,
        "resample": number,
        **crop,
        "do_rescale": True,
        "rescale_factor": preprocessing.scale,
        "do_normalize": True,
        "image_mean": list(preprocessing.mean),
        "image_std": list(preprocessing.std),
    }


def _preprocessing(given, model_type, num_channels):
    fields = {**_COMMON_DEFAULTS, **_DEFAULTS[_kind(given, model_type)]}
    fields |= given  # a null stands for nothing to do, and not for the default
    note_without_effect(PREPROCESSOR_FILE, sorted(set(fields) - _OBEYED - _FIELDS_OF_FILE - {"pad_size"}))
    is_refused = {
        "do_resize": not fields["do_resize"],
        "resample": fields["resample"] not in _INTERPOLATIONS,
        # Without a size, the images of a batch are padded to that of the largest: all have one here.
        "pad_size": bool(fields.get("do_pad")) and fields.get("pad_size") is not None,
    }
    for name, meaning in _REFUSED.items():
        if is_refused[name]:
            raise ValueError(not_obeyed(PREPROCESSOR_FILE, name, fields[name], meaning))
    is_square = fields.get("default_to_square", _kind(given, model_type) != "Bit")
    resize_to = _processor_size(fields["size"], is_shorter_side=not is_square)
    is_cropped = fields.get("do_center_crop", False)
    if is_cropped and "crop_size" not in fields:
        raise ValueError("a crop must have a size. Received: do_center_crop=True, and no crop_size.")
    image_size = _processor_size(fields["crop_size"]) if is_cropped else resize_to
    if isinstance(image_size, int):
        raise ValueError(
            "an image that keeps its aspect ratio must be cropped. Received: do_center_crop=False."
        )
    is_normalised = fields["do_normalize"]
    return ImagePreprocessing(
        image_size,
        num_channels,
        resize_to,
        _INTERPOLATIONS[fields["resample"]],
        scale=fields["rescale_factor"] if fields["do_rescale"] else 1.0,
        mean=fields["image_mean"] if is_normalised else 0.0,
        std=fields["image_std"] if is_normalised else 1.0,
    )


def _kind(given, model_type):
    """The key in `_DEFAULTS` of a processor."""
    name = given.get("image_processor_type") or given.get("feature_extractor_type")
    if name is None:
        kind = _UNNAMED_PROCESSORS.get(model_type)
    else:
        kind = re.sub(r"(FeatureExtractor|ImageProcessor)(Fast|Pil)?$", "", str(name))
    if kind not in _DEFAULTS:
        raise ValueError(
            f"its processor must be one of {', '.join(f'{kind}ImageProcessor' for kind in _DEFAULTS)}. "
            f"Received: {name!r}."
        )
    return kind


def _processor_size(value, *, is_shorter_side=False):
    """(height, width), or the length of the shorter side as an integer."""
    if isinstance(value, numbers.Integral):
        return int(value) if is_shorter_side else (int(value), int(value))
    if isinstance(value, list) and len(value) == 2:
        return tuple(value)
    if isinstance(value, dict) and set(value) == {"height", "width"}:
        return value["height"], value["width"]
    if isinstance(value, dict) and set(value) == {"shortest_edge"}:
        return value["shortest_edge"]
    raise ValueError(f"a size must have a height and a width, or a shortest edge. Received: {value!r}.")
