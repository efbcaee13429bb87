import pathlib

import tensorflow as tf

from keras_attn.checks import check_positive, choose
from keras_attn.files import replaced_folder
from keras_attn.huggingface import (
    is_sentence_transformer,
    load_model,
    load_sentence_encoder,
    model_type_of_origin,
    read_sentence_tokenizer,
    read_tokenizer,
    save_model,
)
from keras_attn.models import EncoderWithHead
from keras_attn.tasks.encoder_signatures import STATUS, EncoderSignatures
from keras_attn.tasks.encoder_task import EncoderTask, check_labels
from keras_attn.tasks.label_answers import best_first, checked_activation, label_answers, problem_type
from keras_attn.tasks.signature_parts import Signature

_BEST_FIRST = {"labels": "all labels, best first", "scores": "their scores", **STATUS}

# The only description of the signatures of a text classifier's export; the first is the default.
CLASSIFIER_SIGNATURES = {
    "serving_default": Signature(
        "the label of each text",
        ["inputs"],
        {
            "outputs": "the best label; of a multi-label model all labels with a score of 0.5 or more, joined by commas"
        },
    ),
    "classify": Signature("the scores of all labels for each text", ["inputs"], _BEST_FIRST),
    "classify_pairs": Signature(
        "the scores of all labels for each pair of texts", ["inputs", "pairs"], _BEST_FIRST
    ),
}
# The signatures that the README shows with a request, and the number of texts in it.
_SHOWN = {"serving_default": 2, "classify": 1, "classify_pairs": 1}


class ClassifierSignatures(EncoderSignatures):
    """The graph functions of a `TextClassifier`."""

    table = CLASSIFIER_SIGNATURES
    description = "A classifier that takes texts and returns labels, for TF Serving: the tokenizer is inside."
    shown = _SHOWN

    def serving_default(self, inputs):
        """The label, or the labels, of each text."""
        answers = self._answers(inputs)
        if not self.task.multi_label:
            return {"outputs": answers["labels"][:, 0]}
        is_given = answers["scores"] >= 0.5
        given = tf.strings.reduce_join(
            tf.where(is_given, tf.strings.join([",", answers["labels"]]), ""), axis=1
        )
        return {"outputs": tf.strings.regex_replace(given, "^,", "")}

    def classify(self, inputs):
        """All labels of each text, best first."""
        return self._answers(inputs)

    def classify_pairs(self, inputs, pairs):
        """All labels of each pair, best first."""
        return self._answers(inputs, pairs)

    def limits(self):
        return [*super().limits(), f"Labels: {', '.join(self.task.labels)}."]


class TextClassifier(EncoderTask):
    """A classifier and its tokenizer: a text, or a pair of texts, in, a label out; in Python, in a folder, and in TF Serving.

    Args:
        model: An `EncoderWithHead` with a logit for each label: its head is a `ClassificationHead` or gives the same shape.
        tokenizer: A tokenizer of `keras_attn.text`.
        labels: List of strings, the name of each logit.
        multi_label: Boolean, whether a text has any number of labels, each of which has a probability of its own.
        activation: What makes scores of logits: "softmax", "sigmoid" or "linear" (regression, ranking). Defaults to
            "sigmoid" for `multi_label` or one label, else "softmax".
        max_length: Integer, the most tokens of a text or a pair, special tokens counted; what is longer is cut. Defaults to
            what the model and the tokenizer allow.
        jit_compile: Boolean, whether the model is compiled with XLA in Python, for few shapes that batches are padded to. Each
            takes seconds to compile. The export is not affected.

    Raises:
        ValueError: if the labels do not fit the model, its vocabulary is smaller than the tokenizer's, or an argument is out
            of range.

    Example:

    ```python
    encoder = keras_attn.models.EncoderTransformer.from_sizes(259, 2, hidden_dim=16, num_heads=2, intermediate_dim=32)
    model = keras_attn.models.EncoderWithHead(encoder, keras_attn.layers.ClassificationHead(2, intermediate_dim=16))
    classifier = keras_attn.TextClassifier(model, keras_attn.text.ByteTokenizer(), ["bad", "good"])
    label = classifier("What a film!")
    labels, scores = classifier(["What a film!", "Never again."], return_scores=True)
    ```

    Reference: [Devlin et al., 2019](https://arxiv.org/abs/1810.04805), section 4.1.
    """

    name, mixin = "text classifier", EncoderWithHead
    signatures = ClassifierSignatures
    saved_options, saved_lists = ("multi_label", "activation", "max_length"), ("labels",)

    def __init__(
        self, model, tokenizer, labels, multi_label=False, activation=None, max_length=None, jit_compile=False
    ):
        super().__init__(model, tokenizer, max_length, jit_compile)
        self.labels = check_labels(labels, model)
        self.multi_label = multi_label
        self.activation = checked_activation(activation, multi_label, self.labels)

    @classmethod
    def from_checkpoint(cls, folder, labels, multi_label=False, max_length=None, **of_loading):
        """A classifier to fine-tune: the encoder and the tokenizer of a checkpoint, and a new head.

        The head is the one that the architecture has in transformers. Its logits have fresh weights, whatever head the
        checkpoint has; a projection before them, BERT's pooler for instance, is that of the files if they hold one.

        Args:
            folder: Path of a checkpoint's folder: an encoder with any head or none.
            labels: List of strings, the names of the new logits.
            multi_label, max_length: As in the constructor.
            **of_loading: `dtype` and `ignored_fields`, as in `keras_attn.huggingface.load_model`.

        Returns:
            `TextClassifier`.

        Raises:
            FileNotFoundError: if a file is missing.
            ValueError: if a file is damaged, the architecture has no classification head, or the labels are not different
                strings.

        Example: `TextClassifier.from_checkpoint("bert-base-uncased", ["bad", "good"], dtype="mixed_bfloat16")`.
        """
        if isinstance(labels, str):
            raise ValueError(f"`labels` must be a list of strings. Received: labels={labels!r}.")
        labels = list(labels)
        read = read_tokenizer
        if is_sentence_transformer(folder):
            folder = load_sentence_encoder(folder).folder
            read = read_sentence_tokenizer
        model = load_model(folder, num_new_labels=len(labels), **of_loading)
        return cls(model, read(folder), labels, multi_label, max_length=max_length)

    def __call__(self, texts, pairs=None, top_k=None, return_scores=False, batch_size=64, num_workers=None):
        """The label of a string, or of each of a list of strings.

        Args:
            texts: String, or list of strings. Invalid text is repaired.
            pairs: None, or as many second texts.
            top_k: Integer: each answer is then the list of that many labels, best first.
            return_scores: Boolean, whether scores are returned too.
            batch_size: Integer, the number of texts in one batch; texts of similar length are batched together.
            num_workers: Integer, the number of batches at the same time, by threads. Defaults to the number of
                processors, or 1 with a GPU.

        Returns:
            The label of each text; with `multi_label`, the list of its labels with a score of 0.5 or more. With
            `return_scores`, a tuple of that and the scores, which are floats or lists of floats.

        Raises:
            ValueError: if `top_k` is out of range, or there are not as many pairs as texts.
        """
        check_positive("top_k", top_k, optional=True)
        rows = self._rows([texts] if pairs is None else [texts, pairs], batch_size, num_workers)
        return label_answers(rows, self.multi_label, top_k, return_scores, isinstance(texts, str | bytes))

    def export_model(self, folder, format, quantization=None):
        """Writes the classifier for another library.

        Args:
            folder: Path of the folder to write; it replaces an older checkpoint there.
            format: `"huggingface"`: what transformers' AutoModelForSequenceClassification and AutoTokenizer load. The model
                must have the parts of a BERT, or of the checkpoint that it was loaded from if that can be written.
            quantization: None; for translators.

        Returns:
            `pathlib.Path` of the folder.

        Raises:
            ValueError: for another format, or a model of other parts; the message names a difference.
        """
        choose("format", format, {"huggingface": None})
        if quantization is not None:
            raise ValueError(f"`quantization` is for translators. Received: quantization={quantization!r}.")
        kind = problem_type(self.multi_label, self.activation, len(self.labels))
        names = {str(number): name for number, name in enumerate(self.labels)}
        with replaced_folder(folder, "config.json", "checkpoint") as built:
            model_type = model_type_of_origin(self.model) or "bert"
            save_model(self.model, built, model_type, self.tokenizer, id2label=names, problem_type=kind)
        return pathlib.Path(folder)

    def _default_answers(self, texts):
        return [",".join(answer) for answer in self(texts)] if self.multi_label else self(texts)

    def answers(self, texts, pairs=None):
        """Strings (B,) -> labels and scores (B, L), best first, and whether a text was cut."""
        framed = self.framed(texts, pairs)
        logits = self.computed(self.logits, self.model_inputs(framed), len(self.labels))
        labels, scores = best_first(logits, self.labels, self.activation)
        return {
            "labels": labels,
            "scores": scores,
            "is_cut": framed.is_cut,
        }
