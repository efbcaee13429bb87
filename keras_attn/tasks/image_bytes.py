"""Bytes of JPEG and PNG files to pixels, in the graph: no row of a batch fails because of another.

GIF and WebP are not read. TensorFlow unpacks all the frames of a GIF before it gives one, so that a small file can take
all memory; and WebP is not in every server.
"""

import tensorflow as tf

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

    def of_row(row, content):
        is_too_large = preprocessing.most_pixels(header_size(content)) > MOST_PIXELS
        image = tf.cond(is_too_large, lambda: zeros, lambda: preprocessing(decode_image(content)))
        return row, is_too_large, tf.ensure_shape(image, shape)

    # The only ops that go on after an error are those of datasets. A row that fails is left out; one more keeps the batch
    # from being empty.
    rows = tf.data.Dataset.from_tensor_slices((tf.range(num_rows), contents))
    rows = rows.map(of_row, num_parallel_calls=_THREADS, deterministic=False).ignore_errors()
    last = tf.data.Dataset.from_tensors((num_rows, tf.constant(False), zeros))
    batch = rows.concatenate(last).batch(tf.cast(num_rows, tf.int64) + 1).get_single_element()
    numbers, is_too_large, images = batch
    found = numbers[:, None]
    images = tf.scatter_nd(found, images, tf.concat([[num_rows + 1], shape], axis=0))[:num_rows]
    is_read = tf.scatter_nd(found, tf.ones_like(numbers), [num_rows + 1])[:num_rows] > 0
    is_too_large = tf.scatter_nd(found, tf.cast(is_too_large, tf.int32), [num_rows + 1])[:num_rows] > 0
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
    tags, values = number(offsets, 2), number(offsets + 8, 2)
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
