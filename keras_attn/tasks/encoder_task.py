"""What the tasks of encoders share: texts to the inputs of a model, calls in batches, saving and exporting."""

import numpy as np
import tensorflow as tf

from keras_attn.checks import check_positive
from keras_attn.models import EncoderWithHead
from keras_attn.tasks.attention_signature import ATTENTION_LENGTH
from keras_attn.tasks.batches import of_batches, warn_of_cuts
from keras_attn.tasks.buckets import BATCH_SIZES, Buckets
from keras_attn.tasks.showing import (
    attention_answer,
    beside,
    check_same_tokens,
    compared_tasks,
    explore_text,
    text_maps,
)
from keras_attn.tasks.task import Task
from keras_attn.tasks.task_files import read_task, write_task
from keras_attn.text import as_utf8


class EncoderTask(Task):
    """A model that reads whole texts, and its tokenizer.

    A subclass sets `signatures`, the class of its `EncoderSignatures`, and implements `answers(texts)`, or
    `answers(texts, pairs)`: a function of string tensors (B,) to {name: tensor (B, ...)}, `is_cut` among them, which
    calls and the export share. It calls its model through `computed`, the part that XLA compiles.

    Args:
        model: A model with the `mixin`.
        tokenizer: A tokenizer of `keras_attn.text`.
        max_length: Integer, the most tokens of a text, special tokens counted, or None for as many as the model and the
            tokenizer allow. A call warns of longer texts, which are cut.
        jit_compile: Boolean, whether the model is compiled with XLA in Python: faster, but each new shape takes seconds to
            compile, so batches are padded to few shapes. The export is not affected.

    Raises:
        ValueError: if the tokenizer has more ids than the model, or `max_length` is out of range.
    """

    signatures = None
    saved_options = ("max_length",)

    def __init__(self, model, tokenizer, max_length=None, jit_compile=False):
        super().__init__(model, {"tokenizer": tokenizer})
        if tokenizer.vocabulary_size > model.vocabulary_size:
            raise ValueError(
                "The tokenizer must have no more ids than the model. Received: tokenizer with "
                f"{tokenizer.vocabulary_size} ids, model with {model.vocabulary_size}."
            )
        self.tokenizer = tokenizer
        self.max_length = check_positive("max_length", max_length, optional=True) or min(
            model.max_sequence_length, tokenizer.framing.max_length or model.max_sequence_length
        )
        least = tokenizer.framing.num_special(is_pair=True)
        if not least <= self.max_length <= model.max_sequence_length:
            raise ValueError(
                f"`max_length` must have room for {least} special tokens, and be at most the model's "
                f"max_sequence_length={model.max_sequence_length}. Received: max_length={self.max_length}."
            )

        self.jit_compile = jit_compile
        self._buckets = self._buckets_of(BATCH_SIZES, None) if jit_compile else None

    @property
    def needs_tensorflow(self):
        """What is said on other backends."""
        return f"A {self.name} needs Keras' TensorFlow backend: set KERAS_BACKEND=tensorflow."

    @property
    def encoder(self):
        """The model without its head."""
        return self.model.encoder if isinstance(self.model, EncoderWithHead) else self.model

    def save(self, folder):
        """Writes the model, the tokenizer and the options to `folder`, replacing an older task of this kind there.

        The folder is built under a temporary name and then renamed. It holds JSON, the tokenizer's files and a
        safetensors file: nothing that could contain code. LoRA is merged in what is written.

        Args:
            folder: Path.

        Raises:
            ValueError: if `folder` holds anything else, or the model is quantised to other than int8 or
                bfloat16.
        """
        write_task(self, folder)

    @classmethod
    def load(cls, folder):
        """Reads the task that `save` wrote; it never runs code from the folder.

        Args:
            folder: Path of the task.

        Raises:
            FileNotFoundError: if a file is missing.
            ValueError: if one is damaged, or the weights do not fit the configuration.
        """
        return read_task(cls, folder)

    def as_exported(self, quantization, buckets):
        task = super().as_exported(quantization, buckets)
        task._buckets = buckets and self._buckets_of(**buckets, frozen=task.model)
        return task

    def more_to_save(self):
        return {"jit_compile": True} if self.jit_compile else {}

    @classmethod
    def from_saved(cls, config):
        return {"jit_compile": config.get("jit_compile", False)}

    def export(
        self,
        folder,
        examples=None,
        xla=False,
        batch_sizes=BATCH_SIZES,
        lengths=None,
        signatures=None,
        quantization=None,
        attention=False,
    ):
        """Writes the next version of a SavedModel that takes strings, for TF Serving.

        The README next to the graph describes the signatures with all their inputs and outputs. Every input has the batch
        as its first axis. A `status` is "ok", or names what was done to a text, joined by commas: `text_repaired`
        (invalid UTF-8), `text_truncated`. The files next to the graph are those of `Translator.export`.

        With `xla=True`, the export is a different model, which needs its own folder. It has only `serving_default`, with its
        model part compiled with XLA, which the server must enable (`--xla_cpu_compilation_enabled`). Batches are padded
        inside the graph, so only the shapes of `batch_sizes` and `lengths` occur, and each of them is warmed up.

        Args:
            folder: Path of the served model, for example `saved_models/mood`. Its name is the model's name.
            examples: List of typical texts, for the warm-up and the README.
            xla: Boolean, whether to export a model that XLA compiles.
            batch_sizes: With `xla`, increasing integers; larger batches are split into batches of the last size.
            lengths: With `xla`, increasing integers, the number of tokens of a text, or of a pair of texts, special tokens
                counted. The last is this task's `max_length`. Defaults to the powers of two from 16.
            signatures: Without `xla`, the names of the signatures to write beside `serving_default`; by default all.
            quantization: `"bfloat16"` or `"int8"`, as in `Translator.export`.
            attention: Without `xla`, whether to write a signature `attention` too: the scores of every head for a text,
                which `keras_attn.plots.explore_answer` makes a page of.

        Returns:
            `pathlib.Path` of the new version folder, `folder`/1 or the next integer.

        Raises:
            ValueError: if `examples`, `batch_sizes`, `lengths`, `signatures` or `quantization` are invalid, or a model with
                LoRA is to be quantised, or for int8 without `xla` on a machine that cannot compute it, or the model has no
                attention that an export can give.
        """
        self._check_export(xla, signatures, attention, batch_sizes, lengths)
        served = self.as_exported(
            quantization, {"batch_sizes": batch_sizes, "lengths": lengths} if xla else None
        )
        chosen = self.signatures(served, () if xla else signatures, served._buckets, attention)
        return served._export(folder, chosen, examples, unquantized=self)

    def show(self, text, pair=None, title=None, path=None, compare=None, name="this"):
        """A page on which a person explores what the model attends to in a text, layer by layer and head by head.

        Args:
            text: String.
            pair: String, the second text of a pair; of a question answerer the context.
            title: String above the page. Defaults to the text.
            path: Where to write the page, as `.html`.
            compare: Another task of this kind and of the same tokens, or a mapping from names to such, to show beside this
                one. By default it is "the other".
            name: String, the name of this task beside those of `compare`.

        Returns:
            `keras_attn.plots.Explorer`: a notebook shows it, and `save` writes it.

        Raises:
            ValueError: if the text has no token, or more than the page can have, or `compare` has other tokens.

        Example:

        ```python
        encoder = keras_attn.models.EncoderTransformer.from_sizes(259, 2, hidden_dim=16, num_heads=2, intermediate_dim=32)
        embedder = keras_attn.TextEmbedder(encoder, keras_attn.text.ByteTokenizer())
        explorer = embedder.show("What a film!")
        ```
        """
        self._check_backend()
        texts = [text] if pair is None else [text, pair]
        if not all(isinstance(one, str | bytes) for one in texts):
            raise ValueError(
                f"`text` must be one string, and `pair` too. Received: {[type(one).__name__ for one in texts]}."
            )
        others, compared = compared_tasks(self, compare), {}
        texts = [tf.constant(as_utf8(one)) for one in texts]
        framed = self.framed(*texts)
        self.warn_of_cuts(framed.is_cut.numpy())
        if not framed.token_ids.row_lengths()[0]:
            raise ValueError("`text` must hold a token. Received an empty text.")
        title = as_utf8(text)[0].decode() if title is None else title
        maps, tokens = text_maps(self, self.model_inputs(framed))
        for other_name, other in others.items():
            compared[other_name], of_other = text_maps(other, other.model_inputs(other.framed(*texts)))
            check_same_tokens(other_name, tokens, of_other)
        return explore_text(self, maps, tokens, title, path, **beside(compared, name))

    def _attention_answers(self, texts):
        asked, answers = [], []
        for text in texts:
            of_row = [tf.constant([text])] * len(self.signatures.table["serving_default"].inputs)
            framed = self.framed(*of_row, max_length=min(ATTENTION_LENGTH, self.max_length))
            if framed.token_ids.row_lengths()[0]:
                maps, tokens = text_maps(self, self.model_inputs(framed), dtype="float32")
                asked.append(text)
                answers.append(attention_answer(maps, tokens))
        return dict.fromkeys(self.signatures.table["serving_default"].inputs, asked), answers

    def computed(self, function, inputs, *shape):
        """What a function of the model's inputs gives, compiled with XLA if this task is.

        Args:
            function: Function of a dict as `model_inputs` gives it to floats (B, *shape).
            inputs: The dict.
            *shape: The sizes of the axes after the batch, None for the number of tokens.

        Returns:
            float32 (B, *shape).
        """
        if self._buckets is None:
            return tf.cast(function(inputs), tf.float32)
        return self._buckets(function, inputs, shape)

    def logits(self, inputs):
        """What the model gives for its inputs where it does not learn."""
        return self.model(inputs, training=False)

    def framed(self, texts, pairs=None, max_length=None):
        """`Framed` for strings (B,), cut to `max_length`, by default this task's."""
        second = None if pairs is None else self.tokenizer.tokenize(pairs)
        return self.tokenizer.framing(self.tokenizer.tokenize(texts), second, max_length or self.max_length)

    def model_inputs(self, framed):
        """The inputs of the model for `Framed` texts: at least one column, which an empty batch needs."""
        lengths = framed.token_ids.row_lengths()
        token_ids = dense(framed.token_ids, max(self.model.pad_token_id, 0))
        inputs = {"token_ids": token_ids, "padding_mask": tf.sequence_mask(lengths, tf.shape(token_ids)[1])}
        token_type = getattr(self.encoder.embedding, "token_type", None)
        # A table of one type (RoBERTa's) has no other for the second text, whatever a pair's template says.
        if token_type is not None and token_type.input_dim > 1:
            inputs["token_type_ids"] = dense(framed.token_type_ids, 0)
        return inputs

    def _buckets_of(self, batch_sizes, lengths, frozen=None):
        return Buckets(batch_sizes, lengths, self.max_length, f"{self.name}'s max_length", frozen)

    def _rows(self, columns, batch_size, num_workers, function=None):
        """{output: value} for each text, or pair of texts.

        Args:
            columns: Lists of strings, as many as the function has inputs.
            batch_size, num_workers: Integers, as in `of_batches`.
            function: Function of string tensors (B,). Defaults to `answers`.

        Raises:
            ValueError: if the lists differ in length.
        """
        columns = [as_utf8(texts) for texts in columns]
        if len({len(texts) for texts in columns}) > 1:
            raise ValueError(
                f"The texts must be as many as their pairs. Received: {list(map(len, columns))}."
            )
        function = function or self.answers
        graph = self.graph_of(
            (function.__name__, len(columns)), function, [tf.TensorSpec([None], tf.string)] * len(columns)
        )

        def of_batch(rows):
            batch = (tf.constant([texts[row] for row in rows], tf.string, [len(rows)]) for texts in columns)
            outputs = {name: output.numpy() for name, output in graph(*batch).items()}
            return [{name: output[row] for name, output in outputs.items()} for row in range(len(rows))]

        rows = of_batches(of_batch, [b"".join(row) for row in zip(*columns)], batch_size, num_workers)
        self.warn_of_cuts([row.get("is_cut", False) for row in rows])
        return rows

    def warn_of_cuts(self, is_cut, what="a text"):
        """Warns if texts are cut, booleans of which are given, with how much of one is read."""
        limit = f"{self.max_length} tokens of {what} are read, special tokens counted"
        warn_of_cuts(int(np.sum(is_cut)), len(is_cut), limit)


def dense(ragged, default):
    """Ragged (B, None) -> (B, T), T at least 1."""
    tensor = ragged.to_tensor(default)
    return tf.pad(tensor, [[0, 0], [0, tf.maximum(1 - tf.shape(tensor)[1], 0)]], constant_values=default)


def check_labels(labels, model):
    """The labels as a tuple.

    Raises:
        ValueError: unless they are different strings, one for each logit of the model's head.
    """
    if isinstance(labels, str) or not all(isinstance(label, str) for label in labels):
        raise ValueError(f"`labels` must be a list of strings. Received: labels={labels!r}.")
    labels = tuple(labels)
    num_labels = model.head.compute_output_shape((None, None, model.hidden_dim))[-1]
    if len(set(labels)) != len(labels) or len(labels) != num_labels:
        raise ValueError(
            f"`labels` must be {num_labels} different strings, one for each logit. Received: labels={list(labels)}."
        )
    return labels
