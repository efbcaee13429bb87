import numpy as np
import tensorflow as tf

from keras_attn.checks import choose
from keras_attn.huggingface import (
    is_sentence_transformer,
    load_model,
    load_sentence_encoder,
    read_sentence_tokenizer,
    read_tokenizer,
)
from keras_attn.models import DecoderTransformer, EncoderTransformer, EncoderWithHead
from keras_attn.ops import POOLINGS, pooled
from keras_attn.tasks.encoder_task import PAIR_INPUTS, STATUS, EncoderFunctions, EncoderTask
from keras_attn.tasks.signatures import Signature
from keras_attn.tasks.task import PageLabels


class EmbedderFunctions(EncoderFunctions):
    """The graph functions of a `TextEmbedder`."""

    def serving_default(self, inputs):
        """The vector of each text."""
        return {"outputs": self.task_answers(inputs)["outputs"]}

    def embed(self, inputs):
        """The vector of each text, and its status."""
        return self.task_answers(inputs)

    def similarity(self, inputs, pairs):
        """The cosine of two texts, and their status."""
        # Both in one batch: the model is called once.
        answers = self.task_answers(tf.concat([inputs, pairs], axis=0))
        first, second = tf.split(_unit_vectors(answers["outputs"]), 2)
        one, other = tf.split(answers["status"], 2)
        both = tf.where(one == "ok", other, tf.strings.join([one, other], ","))
        status = tf.where((one == other) | (other == "ok"), one, both)
        return {"scores": tf.reduce_sum(first * second, axis=1), "status": status}


class TextEmbedder(EncoderTask):
    """An encoder and its tokenizer: a text in, a vector out; in Python, in a folder, and in TF Serving.

    Args:
        model: An `EncoderTransformer`; a `DecoderTransformer`, usually with `pooling="last"`; or an `EncoderWithHead`
            whose head gives one vector for each text, with `pooling=None`.
        tokenizer: A tokenizer of `keras_attn.text`.
        pooling: String: how the vectors of a text's tokens become one, as in `keras_attn.layers.Pooling`; or None.
        normalize: Boolean, whether vectors have length 1.
        max_length: Integer, the most tokens of a text, special tokens counted; what is longer is cut. Defaults to what the
            model and the tokenizer allow.
        jit_compile: Boolean, whether the model is compiled with XLA in Python, for few shapes that batches are padded to. Each
            takes seconds to compile. The export is not affected.

    Raises:
        ValueError: if the model is none of these, its vocabulary is smaller than the tokenizer's, or an argument is out of
            range.

    Example:

    ```python
    model = keras_attn.models.EncoderTransformer.from_sizes(259, 2, hidden_dim=16, num_heads=2, intermediate_dim=32)
    embedder = keras_attn.TextEmbedder(model, keras_attn.text.ByteTokenizer())
    vectors = embedder(["A dog runs.", "Ein Hund rennt."])  # (2, 16)
    scores = embedder.similarity("Where is the dog?", ["A dog runs.", "It rains."])  # (2,)
    ```

    Reference: [Reimers and Gurevych, 2019](https://arxiv.org/abs/1908.10084), section 3.
    """

    name = "text embedder"
    bodies = ("encoder",)
    checkpoint_formats = ("sentence-transformers",)
    mixin = (EncoderTransformer, DecoderTransformer, EncoderWithHead)
    saved_options = ("pooling", "normalize", "max_length")
    signatures = {
        "serving_default": Signature(
            "the vector of each text", ["inputs"], {"outputs": "the vector"}, view="vector", shown=1
        ),
        "embed": Signature(
            "the vector of each text, and what was done to it",
            ["inputs"],
            {"outputs": "the vector", **STATUS},
            view="vector",
        ),
        "similarity": Signature(
            "how alike two texts are",
            ["inputs", "pairs"],
            {"scores": "the cosine of the angle between their vectors", **STATUS},
            shown=1,
        ),
    }
    signature_inputs = PAIR_INPUTS
    served_functions = EmbedderFunctions
    export_description = (
        "A model that takes texts and returns a vector for each, for TF Serving: the tokenizer is inside."
    )
    page_labels = PageLabels("Text", "Type a text", "Vector")
    asked_signatures = ("embed",)

    def __init__(self, model, tokenizer, pooling="mean", normalize=True, max_length=None, jit_compile=False):
        super().__init__(model, tokenizer, max_length, jit_compile)
        if isinstance(model, EncoderWithHead):
            if pooling is not None:
                raise ValueError(
                    "`pooling` must be None for a model whose head gives the vectors. "
                    f"Received: pooling={pooling!r}."
                )
        else:
            choose("pooling", pooling, POOLINGS)
        self.pooling = pooling
        self.normalize = normalize

    @classmethod
    def read_checkpoint(
        cls, folder, pooling=None, normalize=None, max_length=None, jit_compile=False, **loading_options
    ):
        """Of a sentence-transformers folder, or of an encoder alone: the mean, normalized, unless something else is given.

        What is given goes before what the folder says.
        """
        ignored_fields = loading_options.get("ignored_fields", ())
        if is_sentence_transformer(folder):
            read = load_sentence_encoder(folder, **loading_options)
            model = read.model
            if pooling is None:
                pooling = read.pooling
            if normalize is None:
                normalize = read.normalize
            max_length = max_length or read.max_length
            tokenizer = read_sentence_tokenizer(read.folder, ignored_fields)
        else:
            model = load_model(folder, head=False, **loading_options)
            tokenizer = read_tokenizer(folder, ignored_fields=ignored_fields)
            pooling = pooling or "mean"
            normalize = True if normalize is None else normalize
        return cls(model, tokenizer, pooling, normalize, max_length, jit_compile)

    def __call__(self, texts, batch_size=64, num_workers=None):
        """The vector of a string, or of each of a list of strings.

        Args:
            texts: String, or list of strings. Invalid text is repaired; an empty text has the vector of its special
                tokens.
            batch_size: Integer, the number of texts in one batch; texts of similar length are batched together.
            num_workers: Integer, the number of batches at the same time, by threads. Defaults to the number of
                processors, or 1 with a GPU.

        Returns:
            float32 array (D,), or (n, D) for a list.
        """
        rows = self.answer_rows([texts], batch_size, num_workers)
        vectors = [row["outputs"] for row in rows]
        if isinstance(texts, str | bytes):
            return vectors[0]
        return np.stack(vectors) if vectors else np.zeros((0, self._num_values()), "float32")

    def similarity(self, texts, others, pairwise=False, batch_size=64):
        """The cosine of the angle between the vectors of texts.

        Args:
            texts, others: Strings, or lists of strings.
            pairwise: Boolean, whether the first text is compared with the first other, the second with the second, and so
                on, instead of each with each.
            batch_size: Integer, as in a call.

        Returns:
            float32 array (n, m), or (n,) with `pairwise`; without the axis of an argument that is a string.

        Raises:
            ValueError: with `pairwise`, unless there are as many of both.
        """
        first = self._unit(self(texts, batch_size))
        second = self._unit(self(others, batch_size))
        if not pairwise:
            return first @ second.T
        if first.shape != second.shape:
            raise ValueError(
                "`texts` and `others` must be as many with `pairwise=True`. "
                f"Received: {first.shape[:-1]} and {second.shape[:-1]}."
            )
        return np.sum(first * second, axis=-1)

    def answers(self, texts):
        """Strings (B,) -> vectors and whether a text was cut."""
        framed = self.framed(texts)
        return {"outputs": self.vectors(self.model_inputs(framed)), "is_cut": framed.is_cut}

    def vectors(self, inputs):
        """The inputs of the model, as `model_inputs` gives them -> float32 vectors (B, D)."""
        return self.computed(self._vectors, inputs, self._num_values())

    def _vectors(self, inputs):
        if self.pooling is None:
            vectors = self.model(inputs, training=False)
        else:
            sequence, padding_mask = self.model.sequence_and_mask(inputs)
            vectors = pooled(tf.cast(sequence, tf.float32), padding_mask, self.pooling)
        vectors = tf.cast(vectors, tf.float32)
        return _unit_vectors(vectors) if self.normalize else vectors

    def _num_values(self):
        if self.pooling is None:
            return self.model.head.compute_output_shape((None, None, self.model.hidden_dim))[-1]
        return self.model.hidden_dim

    @staticmethod
    def _unit(vectors):
        return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


def _unit_vectors(vectors):
    """Vectors (B, D) of length 1; 0 stays 0."""
    return vectors / tf.maximum(tf.norm(vectors, axis=-1, keepdims=True), 1e-12)
