"""What is said and served of the exports of image classifiers."""

import numpy as np
import tensorflow as tf

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

    def __init__(self, task, names=None):
        super().__init__(task, names)
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
        is_read, is_too_large = answers.pop("is_read"), answers.pop("is_too_large")
        status = Status()
        status.note("image_not_decoded", ~is_read & ~is_too_large)
        status.note("image_too_large", is_too_large)
        return {**answers, "status": status.text()}

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
