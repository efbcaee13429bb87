"""Heads in checkpoints: which one a config asks for, and each as a layer of ours with its table of names."""

import collections
import dataclasses
from collections.abc import Callable

from keras_attn.layers import (
    ClassificationHead,
    ImageClassificationHead,
    MaskedLanguageModelHead,
    TokenClassificationHead,
)
from keras_attn.models import EncoderWithHead, Seq2SeqReader
from keras_attn.models.checkpoint_names import At

Labels = collections.namedtuple("Labels", ["names", "is_multi_label"])
Labels.__doc__ = """What a classifier's config says of its labels: their names by id, and whether a text may have several."""


def labels(config):
    """The labels of a classifier.

    Args:
        config: Dict, a config.json.

    Returns:
        `Labels`: a list of strings in the order of the logits ("LABEL_0", "LABEL_1", ... if the config names none), and a
        boolean, whether each label has a probability of its own (`problem_type` "multi_label_classification").

    Raises:
        ValueError: if `id2label` does not name a label for each of 0, 1, 2, ..., or `problem_type` is unknown.

    Example:

    ```python
    names, is_multi_label = labels({"id2label": {"0": "bad", "1": "good"}})  # ["bad", "good"], False
    ```
    """
    names_by_id = config.get("id2label")
    if names_by_id is None:
        names = [f"LABEL_{i}" for i in range(_num_labels(config))]
    else:
        names = _names_in_order(names_by_id)
    problem_type = config.get("problem_type")
    if problem_type not in _PROBLEM_TYPES:
        raise ValueError(f"`problem_type` is not known. Received: problem_type={problem_type!r:.50}.")
    return Labels(names, problem_type == "multi_label_classification")


_PROBLEM_TYPES = (None, "regression", "single_label_classification", "multi_label_classification")


def _num_labels(config):
    """The number of labels of a config without names."""
    count = config.get("num_labels")
    if count is None:
        count = config.get("_num_labels")
    if count is None:
        count = 2
    if type(count) is not int or not 0 < count <= 10**6:
        raise ValueError(f"`num_labels` must be a positive integer. Received: num_labels={count!r:.50}.")
    return count


def _names_in_order(names_by_id):
    names = []
    if isinstance(names_by_id, dict):
        by_id = {str(label_id): name for label_id, name in names_by_id.items()}
        names = [by_id.get(str(i)) for i in range(len(by_id))]
    if not names or not all(isinstance(name, str) for name in names):
        raise ValueError(
            f"`id2label` must name a label for each of 0, 1, 2, .... Received: {names_by_id!r:.100}."
        )
    return names


@dataclasses.dataclass(frozen=True)
class Head:
    """A head of a checkpoint.

    Args:
        make: Function from the encoder to the layer, whose name is "head".
        names: Table of names, see `keras_attn.models.checkpoint_names`, of a model whose head is at "head".
        same: As in `Architecture`.
        reader: Function that wraps a full Transformer, at "seq2seq", into a model that reads texts as an encoder does; None
            if the model is an encoder.
    """

    make: Callable
    names: dict
    same: tuple = ()
    reader: Callable | None = None

    def on(self, encoder):
        """The `EncoderWithHead` of this head and an encoder, or what `reader` makes of a full Transformer."""
        if self.reader is not None:
            encoder.name = "seq2seq"
            encoder = self.reader(encoder)
        encoder.name = "encoder"  # in place of a numbered name
        return EncoderWithHead(encoder, self.make(encoder))


def with_head(architecture, head):
    """The `Architecture` of an encoder with a head, from that of the encoder."""

    def make():
        return head.on(architecture.make())

    path = "encoder" if head.reader is None else "encoder/seq2seq"
    names = head.names | {f"{path}/{ours}": theirs for ours, theirs in architecture.names.items()}
    return dataclasses.replace(architecture, make=make, names=names, same=architecture.same + head.same)


def masked_language_model(token, dense, norm, decoder, bias, make_norm, **options):
    """The head of a masked language model, whose output is the token embedding.

    Args:
        token: Name of the tensor of token embeddings.
        dense, norm, decoder, bias: Names in the checkpoint, the last of a whole tensor or None.
        make_norm: Function without arguments that returns the norm layer.
        **options: Of `MaskedLanguageModelHead`.
    """
    names = {"head/intermediate": dense, "head/norm": norm}
    same = [(token, f"{decoder}.weight")]
    if bias is not None:
        names["head/output_bias"] = At(bias)
        same.append((bias, f"{decoder}.bias"))

    def make(encoder):
        norm = make_norm()
        return MaskedLanguageModelHead(
            encoder.embedding.token, norm=norm, use_bias=bias is not None, name="head", **options
        )

    return Head(make, names, tuple(same))


def classification(num_labels, output, dense=None, **options):
    """A logit of each label for a text; `dense` is the name of the projection before, whose width is the model's."""
    return _label_head(ClassificationHead, num_labels, output, dense, **options)


def token_classification(num_labels, output, dense=None, **options):
    """A logit of each label for each token."""
    return _label_head(TokenClassificationHead, num_labels, output, dense, **options)


def image_classification(num_labels, names, **options):
    """A logit of each label for an image.

    Args:
        num_labels: Integer.
        names: Dict from the names of our projections to theirs.
        **options: Of `ImageClassificationHead`.
    """

    def make(encoder):
        return ImageClassificationHead(num_labels, name="head", **options)

    return Head(make, {f"head/{ours}": theirs for ours, theirs in names.items()})


def classifiers(read_num_labels, text, dropout=0.0, **text_options):
    """{task: function that returns the head}, where tokens have a projection to labels, and texts what is said here.

    Args:
        read_num_labels: Function that returns the number of labels; a model without such a head does not call it.
        text: Name of the projection of texts to labels.
        dropout: Float, before the logits.
        **text_options: As in `classification`.
    """
    return {
        "SequenceClassification": lambda: classification(
            read_num_labels(), text, dropout=dropout, **text_options
        ),
        "TokenClassification": lambda: token_classification(read_num_labels(), "classifier", dropout=dropout),
        "QuestionAnswering": lambda: token_classification(read_num_labels(), "qa_outputs"),
    }


def last_token_head(fields):
    """{task: function that returns the head} of decoders, which classify by the vector of a text's last token."""

    def text_head():
        return classification(fields.num_labels(), "score", pooling="last", use_bias=False)

    return {"SequenceClassification": text_head}


def reading_heads(fields, end_token_id, start_token_id, wraps=False):
    """{task: function that returns the head} of full Transformers: the decoder reads the text again, one token later.

    Args:
        fields: `Fields`.
        end_token_id, start_token_id: Integers, for configs that do not name them.
        wraps: Boolean, whether a text's own last token is the decoder's first, as in mBART.
    """

    def token_id(name, default):
        value = fields.get(name, default)
        if value is None:
            value = default
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(f"`{name}` must be an integer. Received: {name}={value!r}.")
        return value

    def reader(end):
        start = None if wraps else token_id("decoder_start_token_id", start_token_id)
        return lambda seq2seq: Seq2SeqReader(seq2seq, start, end)

    def text_head():
        dropout = fields.rate("classifier_dropout")
        head = classification(
            fields.num_labels(),
            "classification_head.out_proj",
            "classification_head.dense",
            pooling="last",
            dropout=dropout,
        )
        return dataclasses.replace(head, reader=reader(token_id("eos_token_id", end_token_id)))

    def span_head():
        return dataclasses.replace(
            token_classification(fields.num_labels(), "qa_outputs"), reader=reader(None)
        )

    return {"SequenceClassification": text_head, "QuestionAnswering": span_head}


def _label_head(head_class, num_labels, output, dense, norm=None, make_norm=None, **options):
    names = {"head/output": output}
    if dense is not None:
        names["head/intermediate"] = dense
    if norm is not None:
        names["head/norm"] = norm

    def make(encoder):
        width = None if dense is None else encoder.hidden_dim
        layer = None if make_norm is None else make_norm()
        return head_class(num_labels, intermediate_dim=width, norm=layer, name="head", **options)

    return Head(make, names)
