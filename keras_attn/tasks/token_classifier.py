import collections

import tensorflow as tf

from keras_attn.checks import choose
from keras_attn.models import EncoderWithHead
from keras_attn.tasks.classifiers import check_labels, checkpoint_labels
from keras_attn.tasks.encoder_task import STATUS, EncoderFunctions, EncoderTask, dense, num_logits
from keras_attn.tasks.signatures import Signature
from keras_attn.tasks.spans import (
    Spans,
    flat_tokens,
    joined,
    marked,
    num_characters,
    repaired,
    span_texts,
    whole_characters,
)
from keras_attn.tasks.task import PageLabels

Span = collections.namedtuple("Span", ["label", "score", "start", "end", "text"])
Span.__doc__ = """A part of a text with a label.

label: String.
score: Float, the mean probability of the label of its tokens.
start, end: Integers, the first character, and the one after the last; Python's `text[start:end]` is the span.
text: String.
"""

# The beginnings of labels that say where in a span a token stands; those that begin a span.
_PLACES = ("B-", "I-", "E-", "S-", "L-", "U-")
_BEGINS = ("B-", "S-", "U-")
_OUTSIDE = "O"


class TokenClassifierFunctions(EncoderFunctions):
    """The graph functions of a `TokenClassifier`."""

    def serving_default(self, inputs):
        """Each text with its spans marked."""
        return {"outputs": self.task_answers(inputs)["outputs"]}

    def spans(self, inputs):
        """The spans of each text."""
        return {name: output for name, output in self.task_answers(inputs).items() if name != "outputs"}

    def limits(self):
        return [*super().limits(), f"Labels of tokens: {', '.join(self.task.labels)}."]


class TokenClassifier(EncoderTask):
    """A classifier of tokens and its tokenizer: a text in, labelled spans out; in Python, in a folder, and in TF Serving.

    Args:
        model: An `EncoderWithHead` with a logit of each label for each token, as a `TokenClassificationHead` gives.
        tokenizer: A tokenizer of `keras_attn.text`.
        labels: List of strings, the name of each logit. "O" is no span. "B-PER" begins a span "PER", and "I-PER" continues
            one or, after another label, begins one; so do labels without such a beginning.
        aggregation: String: "simple" joins successive tokens of one label to a span, as transformers'
            `aggregation_strategy="simple"` does; "none" makes each token a span with its own label.
        max_length: Integer, the most tokens of a text, special tokens counted; what is longer is cut. Defaults to what the
            model and the tokenizer allow.
        jit_compile: Boolean, whether the model is compiled with XLA in Python, for few shapes that batches are padded to. Each
            takes seconds to compile. The export is not affected.

    Raises:
        ValueError: if the labels do not fit the model, its vocabulary is smaller than the tokenizer's, or an argument is out
            of range.

    Example:

    ```python
    encoder = keras_attn.models.EncoderTransformer.from_sizes(259, 2, hidden_dim=16, num_heads=2, intermediate_dim=32)
    model = keras_attn.models.EncoderWithHead(encoder, keras_attn.layers.TokenClassificationHead(3))
    tagger = keras_attn.TokenClassifier(model, keras_attn.text.ByteTokenizer(), ["O", "B-PER", "I-PER"])
    for span in tagger("Ada lives in London"):
        print(span.label, span.score, span.start, span.end, span.text)
    ```

    Reference: [Devlin et al., 2019](https://arxiv.org/abs/1810.04805), section 5.3.
    """

    name = "token classifier"
    heads = ("ForTokenClassification",)
    mixin = EncoderWithHead
    saved_options = ("aggregation", "max_length")
    saved_lists = ("labels",)
    signatures = {
        "serving_default": Signature(
            "each text with its spans marked",
            ["inputs"],
            {"outputs": "the text, in which a span is written [span](label)"},
            view="text",
            shown=2,
        ),
        "spans": Signature(
            "the spans of each text",
            ["inputs"],
            {
                "labels": 'the label of each span; "" past the last',
                "scores": "its score, the mean probability of the label of its tokens; 0 past the last",
                "starts": "its first character in the text, the first being 0; -1 past the last",
                "ends": "the character after its last one; -1 past the last",
                "texts": 'the span; "" past the last',
                **STATUS,
            },
            view="spans",
            shown=1,
        ),
    }
    served_functions = TokenClassifierFunctions
    export_description = (
        "A model that takes texts and finds labelled spans in them, for TF Serving: the tokenizer is inside."
    )
    page_labels = PageLabels("Text", "Type a text to find spans in", "Spans")
    asked_signatures = ("spans",)

    def __init__(self, model, tokenizer, labels, aggregation="simple", max_length=None, jit_compile=False):
        super().__init__(model, tokenizer, max_length, jit_compile)
        self.labels = check_labels(labels, num_logits(model))
        choose("aggregation", aggregation, {"simple": True, "none": False})
        self.aggregation = aggregation

    @classmethod
    def read_checkpoint(cls, folder, **options):
        labels = checkpoint_labels(folder)["labels"]
        return super().read_checkpoint(folder, labels=labels, **options)

    def __call__(self, texts, batch_size=64, num_workers=None):
        """The spans of a string, or of each of a list of strings.

        Args:
            texts: String, or list of strings. Invalid text is repaired, and offsets are those in the repaired text.
            batch_size: Integer, the number of texts in one batch; texts of similar length are batched together.
            num_workers: Integer, the number of batches at the same time, by threads. Defaults to the number of
                processors, or 1 with a GPU.

        Returns:
            A list of `Span`s, or a list of such lists.
        """
        answers = [_row_spans(row) for row in self.answer_rows([texts], batch_size, num_workers)]
        return answers[0] if isinstance(texts, str | bytes) else answers

    def _default_answers(self, texts):
        return [row["outputs"].decode("utf-8") for row in self.answer_rows([texts], 64, None)]

    def answers(self, texts):
        """Strings (B,) -> the columns of `spans` (B, most spans), the texts marked, and whether a text was cut."""
        texts = repaired(texts)
        token_ids, starts, ends = self.tokenizer.tokenize_with_offsets(texts)
        framed = self.tokenizer.framing(token_ids, None, self.max_length, with_places=True)
        logits = self.computed(self.logits, self.model_inputs(framed), None, len(self.labels))
        is_text = dense(framed.sources, -1) >= 0
        probabilities = tf.nn.softmax(tf.boolean_mask(logits, is_text))
        rows, starts, ends = flat_tokens(framed, 0, starts, ends)
        starts, ends = whole_characters(texts, rows, starts, ends)
        spans = self._spans(rows, probabilities, starts, ends)
        inside = texts, spans.rows
        columns = {
            "labels": (spans.labels, ""),
            "scores": (spans.scores, 0.0),
            "starts": (num_characters(*inside, spans.starts), -1),
            "ends": (num_characters(*inside, spans.ends), -1),
            "texts": (span_texts(*inside, spans.starts, spans.ends), ""),
        }
        num_rows = tf.size(texts, tf.int64)
        by_row = {
            name: tf.RaggedTensor.from_value_rowids(values, spans.rows, num_rows).to_tensor(default)
            for name, (values, default) in columns.items()
        }
        return {**by_row, "outputs": marked(texts, spans), "is_cut": framed.is_cut}

    def _spans(self, rows, probabilities, starts, ends):
        """`Spans` of the tokens of all texts, one after the other."""
        label = tf.argmax(probabilities, axis=1)
        score = tf.reduce_max(probabilities, axis=1)
        if self.aggregation == "none":
            names = tags = tf.gather(tf.constant(self.labels), label)
            begins = tf.ones_like(label, tf.bool)
        else:
            tags = [name[2:] if name.startswith(_PLACES) else name for name in self.labels]
            names = tags = tf.gather(tf.constant(tags), label)
            begins = tf.gather(tf.constant([name.startswith(_BEGINS) for name in self.labels]), label)
        spans = joined(Spans(rows, names, score, starts, ends), tags, begins)
        is_span = spans.labels != _OUTSIDE
        return Spans(*(tf.boolean_mask(values, is_span) for values in spans))


def _row_spans(row):
    """The `Span`s of a row of `answers`."""
    columns = [row[name].tolist() for name in ("labels", "scores", "starts", "ends", "texts")]
    return [
        Span(label.decode("utf-8"), score, start, end, text.decode("utf-8"))
        for label, score, start, end, text in zip(*columns)
        if label
    ]
