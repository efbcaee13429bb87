"""What is said and served of the exports of image classifiers."""

import functools

import numpy as np
import tensorflow as tf

from keras_attn.tasks.attention_signature import ENCODER_OUTPUTS, SeenAttention
from keras_attn.tasks.image_bytes import decode_batch
from keras_attn.tasks.showing import grid_of, patch_layers, patch_pixels, size_of_patches
from keras_attn.tasks.signature_parts import Input, Signature, Status, TaskSignatures

_STATUS = (
    '"ok", or why an image has no answer: `image_not_decoded` (no JPEG or PNG, or damaged), `image_too_large`'
)

# The only description of the signatures of an image classifier's export; the first is the default.
IMAGE_CLASSIFIER_SIGNATURES = {
    "serving_default": Signature(
        "the label of each image",
        ["inputs"],
        {
            "outputs": "the best label; of a multi-label model all labels with a score of 0.5 or more, joined by commas; "
            "of an image that cannot be read, nothing"
        },
    ),
    "classify_images": Signature(
        "the scores of all labels for each image",
        ["inputs"],
        {"labels": "all labels, best first", "scores": "their scores", "status": _STATUS},
    ),
}

# That of exports which are asked for it.
_ATTENTION_SIGNATURE = Signature(
    "what every head looks at in each image",
    ["inputs"],
    {
        "grid": "the rows and columns of the patches, which are the last of the tokens",
        "image": "the pixels of the patches, as the model reads them, from 0 to 255: (row, column, channel)",
        "encoder_attention": "how much each token looks at each: (layer, head, the one, the other); 0 for an image that "
        "cannot be read",
        "encoder_layers": ENCODER_OUTPUTS["encoder_layers"],
        "status": _STATUS,
    },
)
# The most tokens of an image in an answer, which grows with their square.
_MOST_TOKENS = 400

_INPUTS = {"inputs": Input("JPEG or PNG files, bytes", tf.string)}
# The signatures that the README shows with a request, and the number of images in it.
_SHOWN = {"serving_default": 2, "classify_images": 1}


class ImageClassifierSignatures(TaskSignatures):
    """The graph functions of an `ImageClassifier`."""

    table = IMAGE_CLASSIFIER_SIGNATURES
    input_table = _INPUTS
    description = "A classifier that takes JPEG and PNG files and returns labels, for TF Serving: decoding and resizing are inside."
    shown = _SHOWN
    takes = "images"
    attention_signature = _ATTENTION_SIGNATURE

    def __init__(self, task, names=None, attention=False):
        super().__init__(task, names, attention)
        # Traced once: its graph is a function that the signatures call.
        strings = tf.TensorSpec([None], tf.string)
        self._answers = tf.function(lambda contents: task.answers(contents), [strings], autograph=False)

    def serving_default(self, inputs):
        """The label, or the labels, of each image."""
        answers = self._answers(inputs)
        if not self.task.multi_label:
            return {"outputs": answers["labels"][:, 0]}
        is_given = answers["is_read"][:, None] & (answers["scores"] >= 0.5)
        given = tf.strings.reduce_join(
            tf.where(is_given, tf.strings.join([",", answers["labels"]]), ""), axis=1
        )
        return {"outputs": tf.strings.regex_replace(given, "^,", "")}

    def classify_images(self, inputs):
        """All labels of each image, best first."""
        answers = dict(self._answers(inputs))
        status = _status(answers.pop("is_read"), answers.pop("is_too_large"))
        return {**answers, "status": status}

    def attention(self, inputs):
        """The attention scores of each image."""
        images, is_read, is_too_large = decode_batch(inputs, self.task.preprocessing)
        _, scores = self._seen_attention(images)
        are_tokens = {"encoder": (is_read[:, tf.newaxis],) * 2}
        grid = tf.constant([grid_of(self.task)], tf.int32)
        pixels = patch_pixels(self.task.preprocessing, images, size_of_patches(self.task))
        return {
            "grid": tf.tile(grid, [tf.shape(inputs)[0], 1]),
            "image": tf.cast(pixels, tf.int32),
            **self._seen_attention.outputs(scores, are_tokens),
            "status": _status(is_read, is_too_large),
        }

    @functools.cached_property
    def _seen_attention(self):
        task, grid = self.task, grid_of(self.task)
        if grid is None:
            raise ValueError(
                "An export gives the attention of models that say their patches, as a `VisionTransformer` does. "
                f"Received: {type(task.model).__name__}. Export without `attention`, and see it by `show` with `grid`."
            )

        def look(images):
            task.model(images, training=False)
            return []

        def choose(maps):
            layers = patch_layers(maps, grid[0] * grid[1])
            num_tokens = next(iter(layers.values())).shape[-1]
            if num_tokens > _MOST_TOKENS:
                raise ValueError(f"An image must have at most {_MOST_TOKENS} tokens. Received: {num_tokens}.")
            return {"encoder": layers}

        shape = task.preprocessing.shape
        spec = tf.TensorSpec([None, *shape], tf.float32)
        return SeenAttention(task.model, look, [spec], (np.zeros((1, *shape), "float32"),), choose)

    def examples(self, given=None):
        if given is None:
            return made_images(self.task.preprocessing)
        if not given:
            raise ValueError("`examples` must be images, one or more. Received: none.")
        read = self._answers(tf.constant(given, tf.string))["is_read"].numpy().tolist()
        if False in read:
            raise ValueError(
                f"`examples` must be images. Number {read.index(False)} is no JPEG or PNG file, damaged or too large."
            )
        return given

    def limits(self):
        """Lines about the images and the labels."""
        preprocessing = self.task.preprocessing
        height, width = preprocessing.image_size
        return [
            f"The model reads {height} x {width} pixels; larger and smaller images are resized inside the graph "
            f"({preprocessing.interpolation}).",
            "Exif orientations are obeyed, alpha is dropped, and files of more than 89 million pixels are not decoded.",
            f"Labels: {', '.join(self.task.labels)}.",
        ]


def _status(is_read, is_too_large):
    status = Status()
    status.note("image_not_decoded", ~is_read & ~is_too_large)
    status.note("image_too_large", is_too_large)
    return status.text()


def made_images(preprocessing):
    """Image files for a warm-up, where nobody gives typical ones: ramps of colour in three sizes.

    Args:
        preprocessing: `ImagePreprocessing`.

    Returns:
        A list of bytes: two PNG files and a JPEG file.
    """
    height, width = preprocessing.image_size
    sizes = ((height, width), (2 * height, width), (height, 3 * width))
    ramps = [_ramp(*size) for size in sizes]
    encoders = (tf.io.encode_png, tf.io.encode_png, tf.io.encode_jpeg)
    return [encode(ramp).numpy() for encode, ramp in zip(encoders, ramps)]


def _ramp(height, width):
    rows, columns = np.linspace(0, 255, height)[:, None], np.linspace(0, 255, width)
    return np.stack(np.broadcast_arrays(rows, columns, np.abs(rows - columns)), axis=-1).astype("uint8")
