import functools
import json
import os
import pathlib

import keras
import numpy as np
import tensorflow as tf

from keras_attn.checks import check_positive
from keras_attn.files import read_json
from keras_attn.huggingface import load_model
from keras_attn.inspection import capture_attention
from keras_attn.models import SwinTransformer, VisionTransformer
from keras_attn.tasks.attention_maps import (
    ENCODER_OUTPUTS,
    AttentionFunction,
    grid_of,
    image_maps,
    patch_layers,
    patch_pixels,
    single_answer,
    size_of_patches,
)
from keras_attn.tasks.batches import run_in_batches
from keras_attn.tasks.classifiers import (
    best_first,
    check_activation,
    check_labels,
    check_no_new_options,
    checkpoint_labels,
    different_labels,
    joined_labels,
    label_answers,
    new_labels,
    save_classifier,
)
from keras_attn.tasks.encoder_task import rows_of_outputs
from keras_attn.tasks.image_preprocessing import (
    PREPROCESSOR_FILE,
    ImagePreprocessing,
    decode_batch,
    processor_fields,
    read_preprocessing,
)
from keras_attn.tasks.signatures import IMAGE, Input, Signature, SignatureFunctions, Status
from keras_attn.tasks.task import PageLabels, Task

_STATUS = (
    '"ok", or why an image has no answer: `image_not_decoded` (no JPEG or PNG, or damaged), `image_too_large`'
)
# The most tokens of an image in an answer of `attention`, which grows with their square.
_MOST_TOKENS = 400


class ImageClassifierFunctions(SignatureFunctions):
    """The graph functions of an `ImageClassifier`; the arguments are those of `SignatureFunctions`."""

    def __init__(self, task, names=None, *, attention=False, buckets=None):
        super().__init__(task, names, attention=attention, buckets=buckets)
        # Traced once: its graph is a function that the signatures call.
        strings = tf.TensorSpec([None], tf.string)
        self._answers = tf.function(lambda contents: task.answers(contents), [strings], autograph=False)

    def serving_default(self, inputs):
        """The label, or the labels, of each image."""
        answers = self._answers(inputs)
        if not self.task.multi_label:
            return {"outputs": answers["labels"][:, 0]}
        is_chosen = answers["is_read"][:, None] & (answers["scores"] >= 0.5)
        return {"outputs": joined_labels(answers["labels"], is_chosen)}

    def classify_images(self, inputs):
        """All labels of each image, best first."""
        answers = dict(self._answers(inputs))
        status = _status(answers.pop("is_read"), answers.pop("is_too_large"))
        return {**answers, "status": status}

    def attention(self, inputs):
        """The attention scores of each image."""
        images, is_read, is_too_large = decode_batch(inputs, self.task.preprocessing)
        _, scores = self._attention_function(images)
        is_token = is_read[:, tf.newaxis]
        are_tokens = {"encoder": (is_token, is_token)}
        grid = tf.constant([grid_of(self.task)], tf.int32)
        pixels = patch_pixels(self.task.preprocessing, images, size_of_patches(self.task))
        return {
            "grid": tf.tile(grid, [tf.shape(inputs)[0], 1]),
            "image": tf.cast(pixels, tf.int32),
            **self._attention_function.outputs(scores, are_tokens),
            "status": _status(is_read, is_too_large),
        }

    @functools.cached_property
    def _attention_function(self):
        task = self.task
        grid = grid_of(task)
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
        return AttentionFunction(task.model, look, [spec], (np.zeros((1, *shape), "float32"),), choose)

    def examples(self, given=None):
        if given is None:
            return sample_images(self.task.preprocessing)
        _, images = _image_files(given)
        if not images:
            raise ValueError("`examples` must be images, one or more. Received: none.")
        is_read = self._answers(tf.constant(images, tf.string))["is_read"].numpy().tolist()
        if False in is_read:
            raise ValueError(
                f"`examples` must be images. Number {is_read.index(False)} is no JPEG or PNG file, damaged or too large."
            )
        return images

    def limits(self):
        preprocessing = self.task.preprocessing
        height, width = preprocessing.image_size
        return [
            f"The model reads {height} x {width} pixels; larger and smaller images are resized inside the graph "
            f"({preprocessing.interpolation}).",
            "Exif orientations are obeyed, alpha is dropped, and files of more than 89 million pixels are not decoded.",
            f"Labels: {', '.join(self.task.labels)}.",
        ]


class ImageClassifier(Task):
    """A classifier of images: a JPEG or PNG file in, a label out; in Python, in a folder, and in TF Serving.

    Args:
        model: A `keras.Model` from float32 images (B, height, width, channels) to logits (B, L): a
            `VisionTransformer` with a head, or any other. A Keras model of your own is saved if its classes are
            registered.
        preprocessing: `ImagePreprocessing`: what the model reads.
        labels: List of different strings, the name of each logit. Of labels that repeat in a checkpoint, as ImageNet's cranes
            do, the later ones get their number: "crane (517)".
        multi_label: Boolean, whether an image has any number of labels, each of which has a probability of its own.
        activation: What makes scores of logits: "softmax", "sigmoid" or "linear" (for a model that ends in a softmax).
            Defaults to "sigmoid" for `multi_label` or one label, else "softmax".

    Raises:
        ValueError: if the model does not give one logit for each label, or an argument is out of range.

    Example:

    ```python
    from keras_attn.tasks import ImagePreprocessing

    model = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(2)])
    classifier = keras_attn.ImageClassifier(model, ImagePreprocessing((8, 8), num_channels=1), ["cat", "dog"])
    pixels = np.full((31, 23, 3), 200, "uint8")
    label = classifier(pixels)
    labels, scores = classifier([pixels, tf.io.encode_png(pixels).numpy()], return_scores=True)
    ```

    Reference: [Dosovitskiy et al., 2021](https://arxiv.org/abs/2010.11929), section 3.1.
    """

    name = "image classifier"
    heads = ("ForImageClassification", "ForImageClassificationWithTeacher")
    article = "An"
    mixin = keras.Model
    tokenizer_names = ()
    saved_options = ("multi_label", "activation")
    saved_lists = ("labels",)
    signatures = {
        "serving_default": Signature(
            "the label of each image",
            ["inputs"],
            {
                "outputs": "the best label; of a multi-label model all labels with a score of 0.5 or more, joined by commas; "
                "of an image that cannot be read, nothing"
            },
            view="text",
            shown=2,
        ),
        "classify_images": Signature(
            "the scores of all labels for each image",
            ["inputs"],
            {"labels": "all labels, best first", "scores": "their scores", "status": _STATUS},
            view="labels",
            shown=1,
        ),
    }
    signature_inputs = {"inputs": Input("JPEG or PNG files, bytes", widget=IMAGE)}
    served_functions = ImageClassifierFunctions
    export_description = "A classifier that takes JPEG and PNG files and returns labels, for TF Serving: decoding and resizing are inside."
    export_formats = ("huggingface",)
    compiles_with_xla = False
    takes = "images"
    page_labels = PageLabels("Image", "", "Label")
    asked_signatures = ("classify_images",)
    statuses = {
        "image_not_decoded": "This is no JPEG or PNG file, or a damaged one.",
        "image_too_large": "The image is too large.",
    }
    show_options = ("grid",)

    def __init__(self, model, preprocessing, labels, multi_label=False, activation=None):
        if not isinstance(model, keras.Model):
            raise ValueError(f"`model` must be a keras.Model. Received: {type(model).__name__}.")
        super().__init__(model, {})
        if not isinstance(preprocessing, ImagePreprocessing):
            raise ValueError(
                "`preprocessing` must be a keras_attn.tasks.ImagePreprocessing. "
                f"Received: {type(preprocessing).__name__}."
            )
        self.preprocessing = preprocessing
        self.labels = check_labels(labels, _num_logits(model, preprocessing.shape))
        self.multi_label = multi_label
        self.activation = check_activation(activation, multi_label, self.labels)

    @classmethod
    def read_checkpoint(cls, folder, labels=None, preprocessing=None, multi_label=None, **loading_options):
        """`preprocessing` replaces what preprocessor_config.json says, fields of which may be ignored too."""
        if labels is None:
            check_no_new_options(multi_label=multi_label)
            arguments = checkpoint_labels(folder)
            model = load_model(folder, **loading_options)
        else:
            arguments = {"labels": new_labels(labels), "multi_label": bool(multi_label)}
            model = load_model(folder, num_new_labels=len(arguments["labels"]), **loading_options)
        if preprocessing is None:
            config = read_json(folder / "config.json")
            ignored_fields = loading_options.get("ignored_fields", ())
            preprocessing = read_preprocessing(folder, config, ignored_fields)
        return cls(model, preprocessing, **arguments)

    def __call__(self, images, top_k=None, return_scores=False, batch_size=64, num_workers=None):
        """The label of an image, or of each of a list of images.

        Args:
            images: An image, or a list of images, or a uint8 array (n, H, W, C). An image is the bytes of a JPEG or PNG file;
                the path of one; or a uint8 array (H, W), (H, W, 1), (H, W, 3) or (H, W, 4), the alpha of which is dropped.
            top_k: Integer: each answer is then the list of that many labels, best first.
            return_scores: Boolean, whether scores are returned too.
            batch_size: Integer, the number of images in one batch.
            num_workers: Integer, the number of batches at the same time, by threads. Defaults to the number of
                processors, or 1 with a GPU.

        Returns:
            The label of each image; with `multi_label`, the list of its labels with a score of 0.5 or more. With
            `return_scores`, a tuple of that and the scores, which are floats or lists of floats.

        Raises:
            ValueError: if an image cannot be read, naming the first such, or `top_k` is out of range.
            OSError: if a file cannot be opened.
        """
        check_positive("top_k", top_k, optional=True)
        single, contents = _image_files(images)
        rows = self.answer_rows(contents, batch_size, num_workers)
        for number, row in enumerate(rows):
            what = "The image" if single else f"Image {number}"
            _check_read(row, what)
        return label_answers(rows, self.multi_label, top_k, return_scores, single)

    def attended(self, content, others, grid=None):
        single, contents = _image_files(content)
        if not single:
            raise ValueError(f"`image` must be one image. Received: {len(contents)} of them.")
        [label], [score] = self(content, top_k=1, return_scores=True)
        seen = image_maps(self, self.preprocessing.decoded(contents[0]), grid)
        compared = {}
        for name, other in others.items():
            other_seen = image_maps(other, other.preprocessing.decoded(contents[0]), grid)
            _check_same_patches(name, seen, other_seen)
            compared[name] = other_seen.layers
        shown = {
            "maps": seen.layers,
            "image": seen.patches,
            "grid": seen.grid,
            "title": f"{label} ({score:.0%})",
        }
        return shown, compared

    def more_to_save(self):
        return {"preprocessing": self.preprocessing.config()}

    @classmethod
    def from_saved(cls, config, folder):
        config["options"]["labels"] = different_labels(config["options"]["labels"])
        return {"preprocessing": ImagePreprocessing(**config["preprocessing"])}

    def attention_signature(self):
        return Signature(
            "what every head looks at in each image",
            ["inputs"],
            {
                "grid": "the rows and columns of the patches, which are the last of the tokens",
                "image": "the pixels of the patches, as the model reads them, from 0 to 255: (row, column, channel)",
                "encoder_attention": "how much each token looks at each: (layer, head, the one, the other); 0 for an image "
                "that cannot be read",
                "encoder_layers": ENCODER_OUTPUTS["encoder_layers"],
                "status": _STATUS,
            },
        )

    def _export_model(self, folder, format, quantization):
        fields = processor_fields(self.preprocessing)

        def write_fields(folder):
            text = json.dumps(fields, indent=2) + "\n"
            (folder / PREPROCESSOR_FILE).write_text(text, encoding="utf-8")

        return save_classifier(self, folder, _model_type(self.model), write_more=write_fields)

    def _default_answers(self, contents):
        """What `serving_default` of the export answers to a list of image files, bytes or, as for any text, str."""
        rows = self.answer_rows(_as_bytes(contents), 64, None)
        return [self._served(row).decode("utf-8") for row in rows]

    def _attention_answers(self, contents):
        asked = []
        answers = []
        grid = grid_of(self)
        size = size_of_patches(self)
        contents = _as_bytes(contents)
        for content, row in zip(contents, self.answer_rows(contents, 64, None)):
            if not row["is_read"]:
                continue
            image = self.preprocessing.decoded(content)
            with capture_attention(self.model, dtype="float32") as maps:
                self.model(image[tf.newaxis], training=False)
            layers = patch_layers(maps, grid[0] * grid[1])
            answer = single_answer({"encoder": layers}, {})
            answer["grid"] = np.array(grid)
            answer["image"] = patch_pixels(self.preprocessing, image, size).numpy()
            asked.append(content)
            answers.append(answer)
        return {"inputs": asked}, answers

    def verification_inputs(self):
        """Sample images, a truncated image, and non-image bytes."""
        images = sample_images(self.preprocessing)
        truncated = images[0][: len(images[0]) // 2]
        return [*images, truncated, b"", "4th of July 2016"]

    def _served(self, row):
        if not row["is_read"]:
            return b""
        if not self.multi_label:
            return row["labels"][0]
        return b",".join(row["labels"][: np.sum(row["scores"] >= 0.5)])

    def answers(self, contents):
        """Image files (B,) -> labels and scores (B, L), best first, and whether an image was read or is too large."""
        images, is_read, is_too_large = decode_batch(contents, self.preprocessing)
        # Layers that change images for training do so by default.
        logits = tf.cast(self.model(images, training=False), tf.float32)
        labels, scores = best_first(logits, self.labels, self.activation)
        return {
            "labels": tf.where(is_read[:, None], labels, ""),
            "scores": tf.where(is_read[:, None], scores, 0.0),
            "is_read": is_read,
            "is_too_large": is_too_large,
        }

    def answer_rows(self, contents, batch_size, num_workers):
        """{output: value} of `answers` for each image file."""
        graph = self.graph_of("answers", self.answers, [tf.TensorSpec([None], tf.string)])

        def answer(rows):
            batch = tf.constant([contents[row] for row in rows], tf.string, [len(rows)])
            return rows_of_outputs(graph(batch))

        return run_in_batches(answer, contents, batch_size, num_workers)


def _model_type(model):
    """What transformers calls such a model."""
    body = getattr(model, "encoder", model)
    if isinstance(body, SwinTransformer):
        return "swin"
    if not isinstance(body, VisionTransformer):
        raise ValueError(
            f"transformers has a VisionTransformer or SwinTransformer with a head. Received: {type(body).__name__}."
        )
    if body.embedding.use_distillation_token:
        return "deit"
    if body.blocks[0].layer_scale is None:
        return "vit"
    return "dinov2_with_registers" if body.embedding.num_register_tokens else "dinov2"


def _num_logits(model, shape):
    """The number of logits that a model gives for an image.

    Raises:
        ValueError: if it takes no such images, or gives something else.
    """
    if not model.built:
        raise ValueError("`model` has no weights yet. Call it once on images before it becomes a task.")
    try:
        # One image: oneDNN's convolutions of none give wrong shapes.
        logits = model(np.zeros((1, *shape), "float32"), training=False)
    except Exception as error:
        raise ValueError(
            f"`model` must take images (B, {', '.join(map(str, shape))}), which `preprocessing` makes: {error}"
        ) from error
    shapes = keras.tree.map_structure(lambda tensor: ("B", *tensor.shape[1:]), logits)
    if not isinstance(shapes, tuple) or len(shapes) != 2 or shapes[0] != "B":
        raise ValueError(f"`model` must give logits (B, L). Received: a model that gives {shapes}.")
    return shapes[1]


def _check_read(row, what):
    if row["is_too_large"]:
        raise ValueError(f"{what} has too many pixels. Make it smaller first.")
    if not row["is_read"]:
        raise ValueError(f"{what} cannot be read: it is no JPEG or PNG file, or a damaged one.")


def _check_same_patches(name, seen, other_seen):
    """Whether another classifier looks from the same patches of the same pixels, within a level of rounding."""
    rows, columns = other_seen.grid
    num_tokens = [next(iter(one.layers.values())).shape[-1] for one in (seen, other_seen)]
    same_sizes = seen.grid == other_seen.grid and seen.patches.shape == other_seen.patches.shape
    same_sizes = same_sizes and seen.levels.shape == other_seen.levels.shape and len(set(num_tokens)) == 1
    if not same_sizes:
        raise ValueError(
            f"`compare` must have the same tokens: {seen.grid[0]} x {seen.grid[1]} patches of {seen.patches.shape} pixels, "
            f"{num_tokens[0]} tokens. {name!r} has {rows} x {columns} patches of {other_seen.patches.shape} pixels, "
            f"{num_tokens[1]} tokens."
        )
    if np.abs(seen.levels.astype(int) - other_seen.levels).max() > 1:
        raise ValueError(
            f"`compare` must read the same pixels of the image. The preprocessing of {name!r} resizes or crops otherwise."
        )


def _image_files(images):
    """Whether there is one image, not a list, and the bytes of all images.

    Arrays become PNG files, so that every image takes the same way.
    """
    is_array = isinstance(images, np.ndarray) or tf.is_tensor(images)
    single = len(images.shape) < 4 if is_array else isinstance(images, bytes | str | os.PathLike)
    if not single and not is_array and not isinstance(images, list | tuple):
        raise ValueError(f"`images` must be an image or a list of images. Received: {type(images).__name__}.")
    if single:
        images = [images]
    return single, [_image_file(image) for image in images]


def _as_bytes(contents):
    """Strings as any task takes them, and bytes -> bytes."""
    return [content.encode("utf-8") if isinstance(content, str) else content for content in contents]


def _image_file(image):
    if isinstance(image, bytes):
        return image
    if isinstance(image, str | os.PathLike):
        return pathlib.Path(image).read_bytes()
    if not isinstance(image, np.ndarray) and not tf.is_tensor(image):
        raise ValueError(
            "An image must be the bytes of a JPEG or PNG file, the path of one, or a uint8 array. "
            f"Received: {type(image).__name__}."
        )
    pixels = np.asarray(image)
    channels = None
    if pixels.ndim == 2:
        channels = 1
    elif pixels.ndim == 3:
        channels = pixels.shape[2]
    if pixels.dtype != np.uint8 or channels not in (1, 3, 4) or 0 in pixels.shape:
        raise ValueError(
            "An image in an array must be uint8 (H, W), (H, W, 1), (H, W, 3) or (H, W, 4), levels from 0 to 255. "
            f"Received: {pixels.dtype.name} {pixels.shape}."
        )
    return tf.io.encode_png(pixels.reshape(*pixels.shape[:2], channels), compression=1).numpy()


def _status(is_read, is_too_large):
    status = Status()
    status.note("image_not_decoded", ~is_read & ~is_too_large)
    status.note("image_too_large", is_too_large)
    return status.text()


def sample_images(preprocessing):
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
    rows = np.linspace(0, 255, height)[:, None]
    columns = np.linspace(0, 255, width)
    return np.stack(np.broadcast_arrays(rows, columns, np.abs(rows - columns)), axis=-1).astype("uint8")
