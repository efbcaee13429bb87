"""What the tasks of encoders share: texts to the inputs of a model, calls in batches, the signatures of exports."""

import functools

import numpy as np
import tensorflow as tf

from keras_attn.checks import check_positive
from keras_attn.huggingface import load_model, read_tokenizer
from keras_attn.models import EncoderWithHead
from keras_attn.tasks.attention_maps import (
    ATTENTION_LENGTH,
    CROSS_OUTPUTS,
    DECODER_OUTPUTS,
    ENCODER_OUTPUTS,
    AttentionFunction,
    attention_limit,
    by_kind,
    check_same_tokens,
    single_answer,
    special_tokens,
    text_maps,
)
from keras_attn.tasks.batches import BATCH_SIZES, NO_TOKEN, Buckets, run_in_batches, warn_of_cuts
from keras_attn.tasks.signatures import (
    TEXT,
    UNKNOWN_CHARACTERS,
    Input,
    Signature,
    SignatureFunctions,
    Status,
    is_repaired,
    second_text,
    vocabulary,
)
from keras_attn.tasks.task import Task, only_text
from keras_attn.text import as_utf8

INPUTS = {"inputs": Input("the texts", widget=TEXT)}
PAIR_INPUTS = {
    **INPUTS,
    "pairs": Input(
        "the second text of each pair", widget=second_text("Second text", "Read together with the first.")
    ),
}
STATUS = {
    "status": '"ok", or what was done to a text, joined by commas: `text_repaired` (invalid UTF-8), `text_truncated`, '
    "`unknown_characters_9_of_12` (of 12 characters, 9 are not in the training data)"
}


class EncoderFunctions(SignatureFunctions):
    """The graph functions of an `EncoderTask`; the arguments are those of `SignatureFunctions`."""

    def __init__(self, task, names=None, *, attention=False, buckets=None):
        super().__init__(task, names, attention=attention, buckets=buckets)
        # Each is traced once, and its graph is a function that the signatures call.
        strings = tf.TensorSpec([None], tf.string)
        self._text_answers = tf.function(lambda texts: task.answers(texts), [strings], autograph=False)
        self._pair_answers = tf.function(
            lambda texts, pairs: task.answers(texts, pairs), [strings, strings], autograph=False
        )

    def example_inputs(self, signature_name, examples, ask):
        inputs = {"inputs": examples}
        for name in self.table[signature_name].inputs[1:]:  # the second texts, if there are any
            inputs[name] = [*examples[1:], examples[0]]
        return inputs

    def attention(self, *texts):
        """The attention scores of each text, or pair of texts."""
        task = self.task
        status = Status()
        framed = task.framed(*texts, max_length=min(ATTENTION_LENGTH, task.max_length))
        status.note("text_repaired", tf.reduce_any([is_repaired(column) for column in texts], axis=0))
        status.note("text_truncated", framed.is_cut)
        status.note_unknown_characters(task.tokenizer, *texts)
        inputs = task.model_inputs(framed)
        token_ids = inputs["token_ids"]
        is_token = inputs["padding_mask"]
        read_ids = {"encoder_tokens": tf.where(is_token, token_ids, NO_TOKEN)}
        if hasattr(task.encoder, "seq2seq"):
            first = task.encoder.start_token_id
            if first is None:  # the text's own last token
                last = tf.maximum(tf.reduce_sum(tf.cast(is_token, tf.int32), axis=1) - 1, 0)
                first = tf.gather(token_ids, last, batch_dims=1)
            first = tf.broadcast_to(tf.cast(first, token_ids.dtype), tf.shape(token_ids)[:1])
            shifted = tf.concat([first[:, tf.newaxis], token_ids[:, :-1]], axis=1)
            read_ids["decoder_tokens"] = tf.where(is_token, shifted, NO_TOKEN)
        _, scores = self._attention_function(*inputs.values())
        tokens = {name: self._token_strings(task.tokenizer, ids) for name, ids in read_ids.items()}
        return {
            **tokens,
            **self._attention_function.outputs(scores, dict.fromkeys(scores, (is_token, is_token))),
            "status": status.text(),
        }

    @functools.cached_property
    def _attention_function(self):
        task = self.task
        length = min(5, task.max_length)
        with tf.init_scope():
            texts = [tf.constant([""])] * len(self.table["attention"].inputs)
            names = list(task.model_inputs(task.framed(*texts)))

        def read(*inputs):
            task.model(dict(zip(names, inputs)), training=False)
            return []

        example = [np.zeros((1, length), bool if name == "padding_mask" else "int32") for name in names]
        example[names.index("padding_mask")][:] = True
        sides = ["encoder"]
        if hasattr(task.encoder, "seq2seq"):
            sides += ["decoder", "cross"]
        return AttentionFunction(
            task.model,
            read,
            [tf.TensorSpec([None, None], array.dtype) for array in example],
            example,
            lambda maps: by_kind(maps, dict.fromkeys(sides, (length, length))),
        )

    def num_tokens(self, text):
        columns = self.example_inputs("serving_default", [text], None).values()
        framed = self.task.framed(*(tf.constant(column, tf.string) for column in columns))
        return int(framed.token_ids.row_lengths()[0])

    def limits(self):
        lines = [
            f"A text, or a pair of texts, has at most {self.task.max_length} tokens, special tokens counted; what is "
            "longer is cut.",
            f"Vocabulary: {vocabulary(self.task.tokenizer)}.",
        ]
        if "attention" in self.names:
            lines.append(attention_limit(min(ATTENTION_LENGTH, self.task.max_length)))
        return lines

    def task_answers(self, *texts):
        """The task's answers, `status` among them."""
        graph = self._text_answers if len(texts) == 1 else self._pair_answers
        answers = dict(graph(*texts))
        status = Status()
        repaired = [is_repaired(column) for column in texts]
        status.note("text_repaired", tf.reduce_any(repaired, axis=0))
        status.note("text_truncated", answers.pop("is_cut"))
        status.note_unknown_characters(self.task.tokenizer, *texts)
        return {**answers, "status": status.text()}


class EncoderTask(Task):
    """A model that reads whole texts, and its tokenizer: the base class of tasks that encode, a user's own among them.

    A subclass declares itself as `Task` says, and implements `answers(texts)`, or `answers(texts, pairs)`, which calls and the
    export share: from string tensors (B,) to {name: tensor (B, ...)}, with the booleans `is_cut` among them. There it calls its
    model through `computed`, which is the part that XLA compiles. Its `served_functions` is a subclass of `EncoderFunctions`.

    Args:
        model: A model with the `mixin`.
        tokenizer: A tokenizer of `keras_attn.text`.
        max_length: Integer, the most tokens of a text, special tokens counted, or None for as many as the model and the
            tokenizer allow. A call warns of longer texts, which are cut.
        jit_compile: Boolean, whether the model is compiled with XLA in Python: faster, but each new shape takes seconds to
            compile, so batches are padded to few shapes. The export is not affected.

    Raises:
        ValueError: if the tokenizer has more ids than the model, or `max_length` is out of range.

    Example:

    ```python
    from keras_attn.tasks import EncoderFunctions, EncoderTask, Signature


    class ScorerFunctions(EncoderFunctions):
        def serving_default(self, inputs):
            return {"outputs": self.task_answers(inputs)["outputs"]}


    class Scorer(EncoderTask):
        name = "scorer"
        mixin = keras_attn.models.EncoderWithHead
        saved_options = ("scale", "max_length")
        signatures = {
            "serving_default": Signature("the score of each text", ["inputs"], {"outputs": "the score"}, view="text")
        }
        served_functions = ScorerFunctions

        def __init__(self, model, tokenizer, scale=1.0, max_length=None, jit_compile=False):
            super().__init__(model, tokenizer, max_length, jit_compile)
            self.scale = scale

        def __call__(self, texts):
            return [float(row["outputs"]) for row in self.answer_rows([texts])]

        def answers(self, texts):
            framed = self.framed(texts)
            logits = self.computed(self.logits, self.model_inputs(framed), 1)
            return {"outputs": logits[:, 0] * self.scale, "is_cut": framed.is_cut}


    encoder = keras_attn.models.EncoderTransformer.from_sizes(259, 1, hidden_dim=16, num_heads=2, intermediate_dim=32)
    model = keras_attn.models.EncoderWithHead(encoder, keras_attn.layers.ClassificationHead(1))
    scorer = Scorer(model, keras_attn.text.ByteTokenizer(), scale=2.0)
    texts = ["What a film!", "Never again."]
    scores = scorer(texts)
    scorer.save("scorer")
    assert keras_attn.load("scorer")(texts) == scores
    version = scorer.export("saved_models/scorer")  # with its declaration, for `keras-attn serve`
    ```
    """

    saved_options = ("max_length",)
    signature_inputs = INPUTS
    served_functions = EncoderFunctions
    statuses = {
        "text_truncated": "The text was too long and was cut.",
        "text_repaired": "The text held bytes that are not UTF-8. They were replaced.",
        **UNKNOWN_CHARACTERS,
    }
    show_options = ("pair",)

    def __init__(self, model, tokenizer, max_length=None, jit_compile=False):
        super().__init__(model, {"tokenizer": tokenizer})
        if tokenizer.vocabulary_size > model.vocabulary_size:
            raise ValueError(
                "The tokenizer must have no more ids than the model. Received: tokenizer with "
                f"{tokenizer.vocabulary_size} ids, model with {model.vocabulary_size}."
            )
        self.tokenizer = tokenizer
        longest = min(model.max_sequence_length, tokenizer.framing.max_length or model.max_sequence_length)
        self.max_length = check_positive("max_length", max_length, optional=True) or longest
        least = tokenizer.framing.num_special(is_pair=True)
        if not least <= self.max_length <= model.max_sequence_length:
            raise ValueError(
                f"`max_length` must have room for {least} special tokens, and be at most the model's "
                f"max_sequence_length={model.max_sequence_length}. Received: max_length={self.max_length}."
            )
        self.jit_compile = jit_compile
        self._buckets = self._make_buckets(BATCH_SIZES, None) if jit_compile else None

    @property
    def encoder(self):
        """The model without its head."""
        return self.model.encoder if isinstance(self.model, EncoderWithHead) else self.model

    def more_to_save(self):
        return {"jit_compile": True} if self.jit_compile else {}

    @classmethod
    def from_saved(cls, config, folder):
        return {"jit_compile": config.get("jit_compile", False)}

    @classmethod
    def read_checkpoint(cls, folder, dtype=None, ignored_fields=(), **options):
        """The task of a model with the right head; `options` are arguments of the constructor."""
        model = load_model(folder, dtype=dtype, ignored_fields=ignored_fields)
        tokenizer = read_tokenizer(folder, ignored_fields=ignored_fields)
        return cls(model, tokenizer, **options)

    def attention_signature(self):
        return Signature(
            "what every head looks at while the model reads",
            self.signatures["serving_default"].inputs,
            {**ENCODER_OUTPUTS, **DECODER_OUTPUTS, **CROSS_OUTPUTS, **STATUS},
        )

    def as_exported(self, quantization, buckets):
        task = super().as_exported(quantization, buckets)
        task._buckets = None if buckets is None else task.xla_buckets(**buckets)
        return task

    def xla_buckets(self, batch_sizes, lengths):
        return self._make_buckets(batch_sizes, lengths, frozen=self.model)

    def attended(self, content, others, pair=None):
        texts = [content] if pair is None else [content, pair]
        if not all(isinstance(text, str | bytes) for text in texts):
            received = [type(text).__name__ for text in texts]
            raise ValueError(f"`text` must be one string, and `pair` too. Received: {received}.")
        title = only_text(content)
        texts = [tf.constant(as_utf8(text)) for text in texts]
        framed = self.framed(*texts)
        self.warn_of_cuts(framed.is_cut.numpy())
        if not framed.token_ids.row_lengths()[0]:
            raise ValueError("`text` must hold a token. Received an empty text.")
        maps, tokens = text_maps(self, self.model_inputs(framed))
        compared = {}
        for name, other in others.items():
            compared[name], other_tokens = text_maps(other, other.model_inputs(other.framed(*texts)))
            check_same_tokens(name, tokens, other_tokens)
        shown = {
            "maps": maps,
            "tokens": tokens,
            "special_tokens": special_tokens(self.tokenizer),
            "title": title,
        }
        return shown, compared

    def _attention_answers(self, texts):
        names = self.signatures["serving_default"].inputs
        asked = []
        answers = []
        for text in texts:
            columns = [tf.constant([text])] * len(names)
            framed = self.framed(*columns, max_length=min(ATTENTION_LENGTH, self.max_length))
            if framed.token_ids.row_lengths()[0]:
                maps, tokens = text_maps(self, self.model_inputs(framed), dtype="float32")
                asked.append(text)
                answers.append(single_answer(maps, tokens))
        return dict.fromkeys(names, asked), answers

    def computed(self, function, inputs, *shape):
        """The result of a function of the model's inputs, which XLA compiles if this task has `jit_compile`.

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
        """The model's outputs for its inputs, outside of training."""
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

    def _make_buckets(self, batch_sizes, lengths, frozen=None):
        return Buckets(batch_sizes, lengths, self.max_length, f"{self.name}'s max_length", frozen)

    def answer_rows(self, columns, batch_size=64, num_workers=None):
        """{output: value} for each text, or pair of texts.

        Args:
            columns: Lists of strings, as many as `answers` has inputs.
            batch_size, num_workers: Integers, as in `run_in_batches`.

        Raises:
            ValueError: if the lists differ in length.
        """
        columns = [as_utf8(texts) for texts in columns]
        if len({len(texts) for texts in columns}) > 1:
            raise ValueError(
                f"The texts must be as many as their pairs. Received: {list(map(len, columns))}."
            )
        specs = [tf.TensorSpec([None], tf.string)] * len(columns)
        graph = self.graph_of(("answers", len(columns)), self.answers, specs)

        def answer(rows):
            batch = [tf.constant([texts[row] for row in rows], tf.string, [len(rows)]) for texts in columns]
            return rows_of_outputs(graph(*batch))

        texts = [b"".join(row) for row in zip(*columns)]
        rows = run_in_batches(answer, texts, batch_size, num_workers)
        self.warn_of_cuts([row.get("is_cut", False) for row in rows])
        return rows

    def warn_of_cuts(self, is_cut, what="a text"):
        """Warns if texts are cut, and says how much of one is read; `is_cut` is a boolean for each text."""
        limit = f"{self.max_length} tokens of {what} are read, special tokens counted"
        warn_of_cuts(int(np.sum(is_cut)), len(is_cut), limit)


def dense(ragged, default):
    """Ragged (B, None) -> (B, T), T at least 1."""
    tensor = ragged.to_tensor(default)
    return tf.pad(tensor, [[0, 0], [0, tf.maximum(1 - tf.shape(tensor)[1], 0)]], constant_values=default)


def rows_of_outputs(outputs):
    """{output: tensor (B, ...)} -> for each row {output: value}."""
    outputs = {name: output.numpy() for name, output in outputs.items()}
    num_rows = len(next(iter(outputs.values())))
    return [{name: output[row] for name, output in outputs.items()} for row in range(num_rows)]


def num_logits(model):
    """The number of logits that the head of an `EncoderWithHead` gives."""
    return model.head.compute_output_shape((None, None, model.hidden_dim))[-1]
