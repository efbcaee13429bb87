"""Image files become the pixels that Pillow reads of them, and are resized as Pillow resizes them."""

import numpy as np
import PIL
import pytest
import tensorflow as tf
from helpers_images import as_pillow_reads, encoded, opened, pixels
from PIL import Image, ImageOps

from keras_attn.tasks import ImagePreprocessing
from keras_attn.tasks.image_preprocessing import decode_image, exif_orientation, header_size

RGB, GREY, RGBA = pixels(31, 23), pixels(31, 23, 1), pixels(31, 23, 4)
FILES = {
    "grey": encoded(GREY),
    "grey and alpha": encoded(Image.fromarray(GREY).convert("LA")),
    "RGB": encoded(RGB),
    "RGBA": encoded(RGBA),
    "palette": encoded(Image.fromarray(RGB).quantize(37)),
    "transparent palette": encoded(Image.fromarray(RGB).quantize(37), transparency=3),
    "black and white": encoded(Image.fromarray(GREY).convert("1")),
    "JPEG": encoded(RGB, "JPEG", quality=75),
    "JPEG, full colour": encoded(RGB, "JPEG", quality=95, subsampling=0),
    "JPEG, progressive": encoded(RGB, "JPEG", progressive=True),
    "JPEG, grey": encoded(GREY, "JPEG"),
    "JPEG, CMYK": encoded(Image.fromarray(RGB).convert("CMYK"), "JPEG"),
}


@pytest.mark.parametrize("kind", FILES)
def test_files_are_read_as_pillow_reads_them(kind):
    actual = decode_image(FILES[kind]).numpy()
    np.testing.assert_array_equal(actual, as_pillow_reads(FILES[kind]))
    assert header_size(FILES[kind]).numpy().tolist() == [31, 23]


def test_of_sixteen_bits_the_upper_eight_count():
    # Pillow cuts levels above 255 off instead.
    levels = np.arange(31 * 23, dtype="uint16").reshape(31, 23) * 89
    actual = decode_image(encoded(Image.fromarray(levels)))
    np.testing.assert_array_equal(actual[..., 0], levels >> 8)


@pytest.mark.parametrize("endian", ["<", ">"])
@pytest.mark.parametrize("orientation", range(10))
def test_exif_orientations_are_obeyed(orientation, endian):
    exif = Image.Exif()
    exif.endian = endian
    exif[0x010F] = "a maker, whose entry comes first"
    exif[0x0112] = orientation
    content = encoded(RGB, "JPEG", exif=exif)
    assert exif_orientation(content) == (orientation if 1 <= orientation <= 8 else 1)
    expected = np.asarray(ImageOps.exif_transpose(opened(content)))
    np.testing.assert_array_equal(decode_image(content), expected)


def test_damaged_exif_is_none(rng):
    exif = Image.Exif()
    exif[0x0112] = 6
    content = encoded(RGB, "JPEG", exif=exif)
    start = content.index(b"Exif\0\0") + 6
    for _ in range(40):
        damaged = bytearray(content)
        for place in start + rng.integers(0, 26, 5):
            damaged[place] = rng.integers(256)
        assert 1 <= exif_orientation(bytes(damaged)) <= 8
        assert decode_image(bytes(damaged)).shape[2] == 3
    for end in (start, start + 3, start + 9, start + 15):
        assert exif_orientation(content[:end]) == 1


PILLOW = {"bilinear": 2, "bicubic": 3, "lanczos3": 1, "nearest": 0}
# Pillow begins with the width here; where the height shrinks by more than twice as many pixels, Pillow 13 begins with it.
SIZES = [
    ((61, 89), (23, 19)),
    ((37, 41), (53, 43)),
    ((59, 83), (67, 71)),
    ((97, 53), (97, 31)),
    ((1, 7), (5, 3)),
]
HEIGHT_FIRST = [((89, 61), (19, 47)), ((83, 59), (71, 67))]


def resized(content, **options):
    plain = {"scale": 1.0, **options}
    return ImagePreprocessing(**plain)(content).numpy()


def compare_with_pillow(before, after, interpolation, channels):
    for content in (pixels(*before), np.random.default_rng(1).integers(0, 256, (*before, 3), dtype=np.uint8)):
        image = Image.fromarray(content).convert("L") if channels == 1 else Image.fromarray(content)
        expected = np.asarray(image.resize(after[::-1], PILLOW[interpolation]), "float32")
        actual = resized(content, image_size=after, interpolation=interpolation, num_channels=channels)
        difference = np.abs(actual - expected.reshape(*after, channels))
        assert difference.max() <= 1
        assert np.mean(difference > 0) <= 0.01


@pytest.mark.parametrize("channels", [3, 1])
@pytest.mark.parametrize("interpolation", PILLOW)
@pytest.mark.parametrize(("before", "after"), SIZES)
def test_resizing_is_pillows_to_one_level(before, after, interpolation, channels):
    compare_with_pillow(before, after, interpolation, channels)


@pytest.mark.skipif(int(PIL.__version__.split(".")[0]) < 13, reason="Pillow begins with the width")
@pytest.mark.parametrize("interpolation", PILLOW)
@pytest.mark.parametrize(("before", "after"), HEIGHT_FIRST)
def test_resizing_begins_with_the_height_where_it_shrinks_much_more(before, after, interpolation):
    compare_with_pillow(before, after, interpolation, 3)


@pytest.mark.parametrize("shape", [(61, 89), (89, 61), (31, 31), (13, 90)])
def test_the_shorter_side_is_resized_and_the_middle_cropped(shape):
    content = pixels(*shape)
    height, width = shape
    # As transformers computes it: the longer side is truncated.
    size = (37, int(37 * width / height)) if height <= width else (int(37 * height / width), 37)
    expected = np.asarray(Image.fromarray(content).resize(size[::-1], Image.Resampling.BICUBIC), "float32")
    top, left = (size[0] - 23) // 2, (size[1] - 29) // 2
    expected = expected[top : top + 23, left : left + 29]
    actual = resized(content, image_size=(23, 29), resize_to=37, interpolation="bicubic")
    assert np.abs(actual - expected).max() <= 1


def test_without_antialias_it_is_keras_resizing():
    import keras

    content = pixels(61, 89)
    expected = keras.layers.Resizing(23, 19)(content[None].astype("float32"))[0]
    actual = resized(content, image_size=(23, 19), antialias=False)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-4)


def test_levels_are_scaled_and_normalised():
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.25, 2)
    actual = ImagePreprocessing((31, 23), mean=mean, std=std)(RGB)
    np.testing.assert_allclose(actual, (RGB / 255 - mean) / std, rtol=1e-5, atol=1e-5)
    grey = ImagePreprocessing((31, 23), num_channels=1, scale=2)(GREY[..., None])
    np.testing.assert_allclose(grey[..., 0], GREY * 2.0)


@pytest.mark.extended
def test_training_data_takes_the_same_way(tmp_path):
    (tmp_path / "image.png").write_bytes(FILES["RGB"])
    preprocessing = ImagePreprocessing((7, 5), mean=0.5, std=0.5)
    paths = tf.data.Dataset.from_tensors(str(tmp_path / "image.png"))
    dataset = paths.map(lambda path: preprocessing.decoded(tf.io.read_file(path)))
    np.testing.assert_array_equal(next(iter(dataset)), preprocessing(RGB))


def test_config_goes_round_through_json():
    import json

    for options in (
        {},
        {"resize_to": 11, "mean": 0.5},
        {"num_channels": 1, "resize_to": (9, 8), "antialias": False},
    ):
        value = ImagePreprocessing((7, 5), **options)
        twin = ImagePreprocessing(**json.loads(json.dumps(value.config())))
        assert twin == value
        assert hash(twin) == hash(value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image_size": 7}, r"`image_size` must be \(height, width\) in pixels. Received: image_size=7"),
        ({"image_size": (7, 0)}, "`image_size` must be"),
        ({"image_size": (7.0, 5)}, "`image_size` must be"),
        ({"resize_to": (6, 5)}, "`resize_to` must be at least `image_size`"),
        ({"resize_to": 6}, "`resize_to` must be at least `image_size`"),
        ({"resize_to": True}, "`resize_to` must be"),
        ({"num_channels": 4}, "`num_channels` must be 1 or 3. Received: num_channels=4"),
        ({"interpolation": "hamming"}, "`interpolation` must be one of"),
        ({"scale": 0}, "`scale` must be a number other than 0"),
        ({"scale": float("nan")}, "`scale` must be a number"),
        ({"mean": (0.5, 0.5)}, "`mean` must be a number, or one for each of 3 channels"),
        ({"std": (1, 0, 1)}, "`std` must not be 0"),
        ({"std": "one"}, "`std` must be a number"),
    ],
)
def test_wrong_values_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        ImagePreprocessing(**{"image_size": (7, 5), **options})
