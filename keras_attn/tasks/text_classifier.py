from keras_attn.checks import check_positive
from keras_attn.huggingface import (
    is_sentence_transformer,
    load_model,
    load_sentence_encoder,
    model_type_of_origin,
    read_sentence_tokenizer,
    read_tokenizer,
)
from keras_attn.models import EncoderWithHead
from keras_attn.tasks.classifiers import (
    best_first,
    check_activation,
    check_labels,
    check_no_new_options,
    checkpoint_labels,
    joined_labels,
    label_answers,
    new_labels,
    save_classifier,
)
from keras_attn.tasks.encoder_task import PAIR_INPUTS, STATUS, EncoderFunctions, EncoderTask, num_logits
from keras_attn.tasks.signatures import Signature
from keras_attn.tasks.task import PageLabels

_BEST_FIRST = {"labels": "all labels, best first", "scores": "their scores", **STATUS}


class TextClassifierFunctions(EncoderFunctions):
    """The graph functions of a `TextClassifier`."""

    def serving_default(self, inputs):
        """The label, or the labels, of each text."""
        answers = self.task_answers(inputs)
        if not self.task.multi_label:
            return {"outputs": answers["labels"][:, 0]}
        return {"outputs": joined_labels(answers["labels"], answers["scores"] >= 0.5)}

    def classify(self, inputs):
        """All labels of each text, best first."""
        return self.task_answers(inputs)

    def classify_pairs(self, inputs, pairs):
        """All labels of each pair, best first."""
        return self.task_answers(inputs, pairs)

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

    name = "text classifier"
    heads = ("ForSequenceClassification",)
    mixin = EncoderWithHead
    saved_options = ("multi_label", "activation", "max_length")
    saved_lists = ("labels",)
    signatures = {
        "serving_default": Signature(
            "the label of each text",
            ["inputs"],
            {
                "outputs": "the best label; of a multi-label model all labels with a score of 0.5 or more, joined by commas"
            },
            view="text",
            shown=2,
        ),
        "classify": Signature(
            "the scores of all labels for each text", ["inputs"], _BEST_FIRST, view="labels", shown=1
        ),
        "classify_pairs": Signature(
            "the scores of all labels for each pair of texts", ["inputs", "pairs"], _BEST_FIRST, shown=1
        ),
    }
    signature_inputs = PAIR_INPUTS
    served_functions = TextClassifierFunctions
    export_description = (
        "A classifier that takes texts and returns labels, for TF Serving: the tokenizer is inside."
    )
    export_formats = ("huggingface",)
    page_labels = PageLabels("Text", "Type a text to classify", "Label")
    asked_signatures = ("classify",)

    def __init__(
        self, model, tokenizer, labels, multi_label=False, activation=None, max_length=None, jit_compile=False
    ):
        super().__init__(model, tokenizer, max_length, jit_compile)
        self.labels = check_labels(labels, num_logits(model))
        self.multi_label = multi_label
        self.activation = check_activation(activation, multi_label, self.labels)

    @classmethod
    def read_checkpoint(cls, folder, labels=None, multi_label=None, **options):
        if labels is None:
            check_no_new_options(multi_label=multi_label)
            return super().read_checkpoint(folder, **checkpoint_labels(folder), **options)
        read = read_tokenizer
        if is_sentence_transformer(folder):
            folder = load_sentence_encoder(folder).folder
            read = read_sentence_tokenizer
        labels = new_labels(labels)
        max_length = options.pop("max_length", None)
        model = load_model(folder, num_new_labels=len(labels), **options)
        return cls(model, read(folder), labels, bool(multi_label), max_length=max_length)

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
        columns = [texts] if pairs is None else [texts, pairs]
        rows = self.answer_rows(columns, batch_size, num_workers)
        return label_answers(rows, self.multi_label, top_k, return_scores, isinstance(texts, str | bytes))

    def _export_model(self, folder, format, quantization):
        model_type = model_type_of_origin(self.model) or "bert"
        return save_classifier(self, folder, model_type, self.tokenizer)

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
