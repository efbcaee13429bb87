import json
import os
import pathlib

import keras
import numpy as np
import tensorflow as tf

from keras_attn.checks import check_positive, choose
from keras_attn.files import read_json, replaced_folder
from keras_attn.huggingface import load_model, save_model
from keras_attn.inspection import capture_attention
from keras_attn.models import SwinTransformer, VisionTransformer
from keras_attn.plots import explore
from keras_attn.tasks.batches import of_batches
from keras_attn.tasks.image_bytes import decode_batch
from keras_attn.tasks.image_preprocessing import ImagePreprocessing
from keras_attn.tasks.image_processors import PREPROCESSOR_FILE, processor_fields, read_preprocessing
from keras_attn.tasks.image_signatures import ImageClassifierSignatures, made_images
from keras_attn.tasks.label_answers import best_first, checked_activation, label_answers, problem_type
from keras_attn.tasks.showing import (
    attention_answer,
    beside,
    compared_tasks,
    grid_of,
    image_maps,
    patch_layers,
    patch_pixels,
    size_of_patches,
)
from keras_attn.tasks.task import Task
from keras_attn.tasks.task_files import read_task, write_task


class ImageClassifier(Task):
    """A classifier of images: a JPEG or PNG file in, a label out; in Python, in a folder, and in TF Serving.

    Args:
        model: A `keras.Model` from float32 images (B, height, width, channels) to logits (B, L): a
            `VisionTransformer` with a head, or any other. A Keras model of your own is saved if its classes are
            registered.
        preprocessing: `ImagePreprocessing`: what the model reads.
        labels: List of strings, the name of each logit. Two may be alike, as ImageNet's cranes are.
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

    name, article, mixin = "image classifier", "An", keras.Model
    needs_tensorflow = "An image classifier needs Keras' TensorFlow backend: set KERAS_BACKEND=tensorflow."
    saved_options, saved_lists = ("multi_label", "activation"), ("labels",)
    tokenizer_names = ()

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
        self.labels = _check_labels(labels, _num_logits(model, preprocessing.shape))
        self.multi_label = multi_label
        self.activation = checked_activation(activation, multi_label, self.labels)

    @classmethod
    def from_checkpoint(cls, folder, labels, preprocessing=None, multi_label=False, **of_loading):
        """A classifier to fine-tune: the encoder of a checkpoint, and a new head.

        The head is the one that the architecture has in transformers, with fresh logits, whatever head the checkpoint has.

        Args:
            folder: Path of a checkpoint's folder: a ViT, DeiT or DINOv2 for example, with any head or none.
            labels: List of strings, the names of the new logits.
            preprocessing: `ImagePreprocessing`; by default what the folder's preprocessor_config.json says.
            multi_label: As in the constructor.
            **of_loading: `dtype` and `ignored_fields`, as in `keras_attn.huggingface.load_model`.

        Returns:
            `ImageClassifier`.

        Raises:
            FileNotFoundError: if a file is missing.
            ValueError: if a file is damaged, or the architecture has no classification head.

        Example: `ImageClassifier.from_checkpoint("dinov2-base", ["healthy", "rust"], dtype="mixed_bfloat16")`.
        """
        if isinstance(labels, str):
            raise ValueError(f"`labels` must be a list of strings. Received: labels={labels!r}.")
        labels, folder = list(labels), pathlib.Path(folder)
        model = load_model(folder, num_new_labels=len(labels), **of_loading)
        if preprocessing is None:
            preprocessing = read_preprocessing(folder, read_json(folder / "config.json"))
        return cls(model, preprocessing, labels, multi_label)

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
        single, contents = _contents(images)
        rows = self._rows(contents, batch_size, num_workers)
        for number, row in enumerate(rows):
            _check_read(row, "The image" if single else f"Image {number}")
        return label_answers(rows, self.multi_label, top_k, return_scores, single)

    def show(self, image, grid=None, title=None, path=None, compare=None, name="this"):
        """A page on which a person explores where the model looks: what each patch attends to, over the image itself.

        It shows the pixels that patches read: a `VisionTransformer` cuts off what is no whole patch, a `SwinTransformer` fills
        it with zeros, which are the grey of the preprocessing's `mean`.

        Args:
            image: An image, as in a call.
            grid: Pair of integers, the rows and columns of the patches of a model that does not say them by a `PatchEmbedding`.
                Before them there may be one token, or fewer than the grid has rows and columns. Of a `SwinTransformer`, those
                of a stage, whose windows are put in place; by default the first with at most 2,048.
            title: String above the page. Defaults to the label and its score.
            path: Where to write the page, as `.html`.
            compare: Another image classifier with the same patches of the same pixels, or a mapping from names to such, to
                show beside this one. By default it is "the other".
            name: String, the name of this classifier beside those of `compare`.

        Returns:
            `keras_attn.plots.Explorer`: a notebook shows it, and `save` writes it.

        Raises:
            ValueError: if the image cannot be read, no layer of the model attends from every patch to every patch, `grid` is not
                that of the model, or `compare` has other patches.

        Example:

        ```python
        from keras_attn.tasks import ImagePreprocessing

        encoder = keras_attn.models.VisionTransformer.from_sizes(
            image_size=8, patch_size=2, num_layers=2, hidden_dim=16, num_heads=2, intermediate_dim=32
        )
        model = keras_attn.models.EncoderWithHead(encoder, keras_attn.layers.ImageClassificationHead(2))
        classifier = keras_attn.ImageClassifier(model, ImagePreprocessing((8, 8)), ["cat", "dog"])
        explorer = classifier.show(np.full((31, 23, 3), 200, "uint8"))
        ```
        """
        single, contents = _contents(image)
        if not single:
            raise ValueError(f"`image` must be one image. Received: {len(contents)} of them.")
        others, compared = compared_tasks(self, compare), {}
        [label], [score] = self(image, top_k=1, return_scores=True)
        title = f"{label} ({score:.0%})" if title is None else title
        seen = image_maps(self, self.preprocessing.decoded(contents[0]), grid)
        for other_name, other in others.items():
            of_other = image_maps(other, other.preprocessing.decoded(contents[0]), grid)
            _check_same_patches(other_name, seen, of_other)
            compared[other_name] = of_other.layers
        return explore(
            seen.layers, image=seen.patches, grid=seen.grid, title=title, path=path, **beside(compared, name)
        )

    def save(self, folder):
        """Writes the model, the preprocessing and the options to `folder`, replacing an older image classifier there.

        The folder is built under a temporary name and then renamed. It holds JSON and a safetensors file: nothing that
        could contain code.

        Args:
            folder: Path.

        Raises:
            ValueError: if `folder` holds anything else, or the model is quantised to other than int8 or bfloat16.
        """
        write_task(self, folder)

    @classmethod
    def load(cls, folder):
        """Reads the classifier that `save` wrote; it never runs code from the folder.

        Args:
            folder: Path of the classifier, or of a run that made it.

        Raises:
            FileNotFoundError: if a file is missing.
            ValueError: if one is damaged, or the weights do not fit the configuration.
        """
        return read_task(cls, folder)

    def more_to_save(self):
        return {"preprocessing": self.preprocessing.config()}

    @classmethod
    def from_saved(cls, config):
        return {"preprocessing": ImagePreprocessing(**config["preprocessing"])}

    def export(self, folder, examples=None, signatures=None, quantization=None, attention=False):
        """Writes the next version of a SavedModel that takes image files, for TF Serving.

        The README next to the graph describes the signatures with all their inputs and outputs. A `status` is "ok", or says
        why an image has no answer: `image_not_decoded`, `image_too_large`; its label is then empty. The files next to the
        graph are those of `Translator.export`, and the examples as PNG or JPEG files.

        Decoding is no work for XLA, so there is no export for it.

        Args:
            folder: Path of the served model, for example `saved_models/digits`. Its name is the model's name.
            examples: List of typical images, as in a call, for the warm-up and the README.
            signatures: The names of the signatures to write beside `serving_default`; by default all.
            quantization: `"bfloat16"` or `"int8"`, as in `Translator.export`.
            attention: Boolean, whether to write a signature `attention` too: the scores of every head for an image, which
                `keras_attn.plots.explore_answer` makes a page of.

        Returns:
            `pathlib.Path` of the new version folder, `folder`/1 or the next integer.

        Raises:
            ValueError: if `examples`, `signatures` or `quantization` are invalid, or for int8 on a machine that cannot
                compute it, or the model has no attention that an export can give.
        """
        self._check_export(False, signatures)
        served = self.quantized(quantization)
        chosen = ImageClassifierSignatures(served, signatures, attention)
        if examples is not None:
            _, examples = _contents(examples)
        return served._export(folder, chosen, examples, unquantized=self)

    def export_model(self, folder, format, quantization=None):
        """Writes the classifier for another library.

        Args:
            folder: Path of the folder to write; it replaces an older checkpoint there.
            format: `"huggingface"`: what transformers' AutoModelForImageClassification and AutoImageProcessor load. The model
                must have the parts of a ViT, DeiT, DINOv2 or Swin.
            quantization: None; for translators.

        Returns:
            `pathlib.Path` of the folder.

        Raises:
            ValueError: for another format, or a model or preprocessing that transformers has not; the message names a
                difference.
        """
        choose("format", format, {"huggingface": None})
        if quantization is not None:
            raise ValueError(f"`quantization` is for translators. Received: quantization={quantization!r}.")
        kind = problem_type(self.multi_label, self.activation, len(self.labels))
        names = {str(number): name for number, name in enumerate(self.labels)}
        fields = processor_fields(self.preprocessing)
        with replaced_folder(folder, "config.json", "checkpoint") as built:
            save_model(self.model, built, _model_type(self.model), id2label=names, problem_type=kind)
            (built / PREPROCESSOR_FILE).write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")
        return pathlib.Path(folder)

    def _default_answers(self, contents):
        """What `serving_default` of the export answers to a list of image files, bytes or, as for any text, str."""
        contents = [text.encode("utf-8") if isinstance(text, str) else text for text in contents]
        answers = [self._served(row) for row in self._rows(contents, 64, None)]
        return [label.decode("utf-8") for label in answers]

    def _attention_answers(self, contents):
        asked, answers = [], []
        grid, size = grid_of(self), size_of_patches(self)
        contents = [text.encode("utf-8") if isinstance(text, str) else text for text in contents]
        for content, row in zip(contents, self._rows(contents, 64, None)):
            if row["is_read"]:
                image = self.preprocessing.decoded(content)
                with capture_attention(self.model, dtype="float32") as maps:
                    self.model(image[tf.newaxis], training=False)
                layers = patch_layers(maps, grid[0] * grid[1])
                asked.append(content)
                seen = {
                    "grid": np.array(grid),
                    "image": patch_pixels(self.preprocessing, image, size).numpy(),
                }
                answers.append({**attention_answer({"encoder": layers}, {}), **seen})
        return {"inputs": asked}, answers

    def verified_on(self):
        """Images, a damaged one, and what is none."""
        first, *others = made_images(self.preprocessing)
        return [first, *others, first[: len(first) // 2], b"", "4th of July 2016"]

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

    def _rows(self, contents, batch_size, num_workers):
        """{output: value} of `answers` for each image file."""
        graph = self.graph_of("answers", self.answers, [tf.TensorSpec([None], tf.string)])

        def of_batch(rows):
            batch = tf.constant([contents[row] for row in rows], tf.string, [len(rows)])
            outputs = {name: output.numpy() for name, output in graph(batch).items()}
            return [{name: output[row] for name, output in outputs.items()} for row in range(len(rows))]

        return of_batches(of_batch, contents, batch_size, num_workers)


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


def _check_labels(labels, num_logits):
    """The labels as a tuple of strings, one for each logit."""
    if isinstance(labels, str) or not all(isinstance(label, str) for label in labels):
        raise ValueError(f"`labels` must be a list of strings. Received: labels={labels!r}.")
    labels = tuple(labels)
    if len(labels) != num_logits:
        raise ValueError(
            f"`labels` must be {num_logits} strings, one for each logit. Received: {len(labels)}, {list(labels)!r:.200}."
        )
    return labels


def _check_read(row, what):
    if row["is_too_large"]:
        raise ValueError(f"{what} has too many pixels. Make it smaller first.")
    if not row["is_read"]:
        raise ValueError(f"{what} cannot be read: it is no JPEG or PNG file, or a damaged one.")


def _check_same_patches(name, seen, of_other):
    """Whether another classifier looks from the same patches of the same pixels, within a level of rounding."""
    rows, columns = of_other.grid
    num_tokens = [next(iter(one.layers.values())).shape[-1] for one in (seen, of_other)]
    same_sizes = seen.grid == of_other.grid and seen.patches.shape == of_other.patches.shape
    same_sizes = same_sizes and seen.levels.shape == of_other.levels.shape and len(set(num_tokens)) == 1
    if not same_sizes:
        raise ValueError(
            f"`compare` must have the same tokens: {seen.grid[0]} x {seen.grid[1]} patches of {seen.patches.shape} pixels, "
            f"{num_tokens[0]} tokens. {name!r} has {rows} x {columns} patches of {of_other.patches.shape} pixels, "
            f"{num_tokens[1]} tokens."
        )
    if np.abs(seen.levels.astype(int) - of_other.levels).max() > 1:
        raise ValueError(
            f"`compare` must read the same pixels of the image. The preprocessing of {name!r} resizes or crops otherwise."
        )


def _contents(images):
    """Whether there is one image, not a list, and the bytes of all images.

    Arrays become PNG files, so that every image takes the same way.
    """
    is_array = isinstance(images, np.ndarray) or tf.is_tensor(images)
    single = len(images.shape) < 4 if is_array else isinstance(images, bytes | str | os.PathLike)
    if not single and not is_array and not isinstance(images, list | tuple):
        raise ValueError(f"`images` must be an image or a list of images. Received: {type(images).__name__}.")
    return single, [_content(image) for image in ([images] if single else images)]


def _content(image):
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
    channels = pixels.shape[2] if pixels.ndim == 3 else 1 if pixels.ndim == 2 else None
    if pixels.dtype != np.uint8 or channels not in (1, 3, 4) or 0 in pixels.shape:
        raise ValueError(
            "An image in an array must be uint8 (H, W), (H, W, 1), (H, W, 3) or (H, W, 4), levels from 0 to 255. "
            f"Received: {pixels.dtype.name} {pixels.shape}."
        )
    return tf.io.encode_png(pixels.reshape(*pixels.shape[:2], channels), compression=1).numpy()
