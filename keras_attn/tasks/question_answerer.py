import collections

import numpy as np
import tensorflow as tf

from keras_attn.checks import check_positive
from keras_attn.models import EncoderWithHead
from keras_attn.tasks.batches import run_in_batches, warn_of_cuts
from keras_attn.tasks.encoder_task import STATUS, EncoderFunctions, EncoderTask, dense, num_logits
from keras_attn.tasks.signatures import TEXT, Input, Signature, second_text
from keras_attn.tasks.spans import num_characters, repaired, span_texts, whole_characters
from keras_attn.tasks.task import PageLabels
from keras_attn.text import as_utf8

Answer = collections.namedtuple("Answer", ["text", "score", "start", "end"])
Answer.__doc__ = """The answer to a question, a part of its context.

text: String.
score: Float, the probability of its first token times that of its last.
start, end: Integers, the first character in the context, and the one after the last.
"""

# What the scores of places where no answer may begin or end are less than.
_NEVER = -1e30


class AnswererFunctions(EncoderFunctions):
    """The graph functions of a `QuestionAnswerer`."""

    def serving_default(self, inputs, contexts):
        """The answer to each question."""
        return {"outputs": self.task_answers(inputs, contexts)["outputs"]}

    def answer(self, inputs, contexts):
        """The answer to each question, its score, and where it stands."""
        return self.task_answers(inputs, contexts)

    def limits(self):
        return [
            f"A question and its context have at most {self.task.max_length} tokens together, special tokens counted; what "
            "is longer is cut, the question to half of that. In Python, long contexts are read in overlapping windows.",
            *super().limits()[1:],
            f"An answer has at most {self.task.max_answer_length} tokens.",
        ]


class QuestionAnswerer(EncoderTask):
    """A model that finds answers in texts, and its tokenizer: a question and a context in, a part of the context out.

    The answer is the part with the highest probability of its first token times that of its last, both among the
    tokens of the context.

    Args:
        model: An `EncoderWithHead` with two logits for each token, as `TokenClassificationHead(2)` gives: that of the first
            token of the answer, and that of the last.
        tokenizer: A tokenizer of `keras_attn.text`.
        max_answer_length: Integer, the most tokens of an answer.
        stride: Integer, how many tokens two windows of a long context share. Defaults to 128, or a quarter of `max_length`
            if that is less.
        max_length: Integer, the most tokens of a question and a window of its context, special tokens counted. Defaults to
            what the model and the tokenizer allow.
        jit_compile: Boolean, whether the model is compiled with XLA in Python, for few shapes that batches are padded to. Each
            takes seconds to compile. The export is not affected.

    Raises:
        ValueError: if the model has not two logits, its vocabulary is smaller than the tokenizer's, or a number is out of
            range.

    Example:

    ```python
    encoder = keras_attn.models.EncoderTransformer.from_sizes(259, 2, hidden_dim=16, num_heads=2, intermediate_dim=32)
    model = keras_attn.models.EncoderWithHead(encoder, keras_attn.layers.TokenClassificationHead(2))
    answerer = keras_attn.QuestionAnswerer(model, keras_attn.text.ByteTokenizer())
    answer = answerer("Who lives in London?", "Ada lives in London.")
    print(answer.text, answer.score, answer.start, answer.end)
    ```

    Reference: [Devlin et al., 2019](https://arxiv.org/abs/1810.04805), section 4.2.
    """

    name = "question answerer"
    heads = ("ForQuestionAnswering",)
    mixin = EncoderWithHead
    saved_options = ("max_answer_length", "stride", "max_length")
    signatures = {
        "serving_default": Signature(
            "the answer to each question",
            ["inputs", "contexts"],
            {"outputs": "the answer, a part of the context"},
            view="text",
            shown=1,
        ),
        "answer": Signature(
            "the answer to each question, and where it stands",
            ["inputs", "contexts"],
            {
                "outputs": "the answer, a part of the context",
                "scores": "the probability of its first token times that of its last",
                "starts": "its first character in the context, the first being 0",
                "ends": "the character after its last one",
                **STATUS,
            },
            view="span_of_second",
            shown=1,
        ),
    }
    signature_inputs = {
        "inputs": Input("the questions", widget=TEXT),
        "contexts": Input(
            "the text that holds the answer to each",
            widget=second_text("Context", "The text that holds the answer."),
        ),
    }
    served_functions = AnswererFunctions
    export_description = "A model that takes questions and texts and finds the answers in them, for TF Serving: the tokenizer is inside."
    page_labels = PageLabels("Question", "Type a question, and its context beside", "Answer")
    asked_signatures = ("answer",)

    def __init__(
        self, model, tokenizer, max_answer_length=15, stride=None, max_length=None, jit_compile=False
    ):
        super().__init__(model, tokenizer, max_length, jit_compile)
        if num_logits(model) != 2:
            raise ValueError("`model` must have a head with two logits for each token.")
        self.max_answer_length = check_positive("max_answer_length", max_answer_length)
        room = self.max_length - tokenizer.framing.num_special(is_pair=True)
        # A question has at most half of the room, so a window always moves on.
        most = max((room - room // 2) - 1, 0)
        self.stride = min(128, self.max_length // 4, most) if stride is None else stride
        if not 0 <= self.stride <= most:
            raise ValueError(f"`stride` must be in [0, {most}]. Received: stride={stride}.")

    def __call__(self, questions, contexts, batch_size=64, num_workers=None):
        """The answer to a question, or to each of a list of questions.

        Args:
            questions, contexts: Two strings, or two lists of strings. Invalid text is repaired. A context that is too long is
                read in windows, and the best answer of all windows is given.
            batch_size: Integer, the number of windows in one batch.
            num_workers: Integer, the number of batches at the same time, by threads. Defaults to the number of
                processors, or 1 with a GPU.

        Returns:
            An `Answer`, or a list of them; one of an empty text, with the score 0, for a context without tokens.

        Raises:
            ValueError: if there are not as many contexts as questions.
        """
        single = isinstance(questions, str | bytes)
        if single != isinstance(contexts, str | bytes):
            raise ValueError("`questions` and `contexts` must be two strings or two lists of strings.")
        questions = as_utf8(questions)
        contexts = as_utf8(contexts)
        if len(questions) != len(contexts):
            raise ValueError(
                "`questions` and `contexts` must be as many. "
                f"Received: {len(questions)} questions, {len(contexts)} contexts."
            )
        room = self._question_room()
        lengths = self.tokenizer.tokenize(tf.constant(questions, tf.string, [len(questions)])).row_lengths()
        limit = f"the first {room} tokens of a question are read"
        warn_of_cuts(int(np.sum(lengths > room)), len(questions), limit)
        windows = []
        for row, (question, context) in enumerate(zip(questions, contexts)):
            windows += self._windows(row, question, context)
        ragged_ids = tf.RaggedTensorSpec([None, None], tf.int32, 1)
        graph = self.graph_of("windows", self._window_answers, [ragged_ids] * 2)

        def answer(numbers):
            parts = [[windows[number][part] for number in numbers] for part in ("question", "context")]
            outputs = graph(*(tf.ragged.constant(ids, tf.int32, 1) for ids in parts))
            return list(zip(*(values.numpy() for values in outputs)))

        token_ids = [window["question"] + window["context"] for window in windows]
        best = run_in_batches(answer, token_ids, batch_size, num_workers)
        answers = [Answer("", 0.0, 0, 0)] * len(questions)
        for window, (score, first, last) in zip(windows, best):
            row = window["row"]
            if score > answers[row].score:
                answers[row] = _answer(window, float(score), first, last, contexts[row])
        return answers[0] if single else answers

    def _default_answers(self, texts):
        rows = self.answer_rows([texts, texts], 64, None)
        return [row["outputs"].decode("utf-8") for row in rows]

    def answers(self, questions, contexts):
        """Strings (B,) -> the columns of `answer`, and whether a question or a context was cut."""
        contexts = repaired(contexts)
        asked = self.tokenizer.tokenize(questions)
        question = asked[:, : self._question_room()]
        context, starts, ends = self.tokenizer.tokenize_with_offsets(contexts)
        framed = self._framed(question, context)
        scores, first, last = self._best(framed)
        rows = tf.range(tf.size(contexts, tf.int64))
        has_answer = scores > 0

        # Rows without tokens have no first one to be read.
        def byte_offset(offsets, place):
            values = tf.concat([offsets.values, [0]], axis=0)
            index = tf.where(has_answer, starts.row_starts() + place, 0)
            return tf.where(has_answer, tf.gather(values, index), 0)

        start = byte_offset(starts, first)
        end = byte_offset(ends, last)
        start, end = whole_characters(contexts, rows, start, end)
        return {
            "outputs": span_texts(contexts, rows, start, end),
            "scores": scores,
            "starts": num_characters(contexts, rows, start),
            "ends": num_characters(contexts, rows, end),
            "is_cut": framed.is_cut | (asked.row_lengths() > self._question_room()),
        }

    def _question_room(self, max_length=None):
        """The most tokens of a question: half of those that are not special."""
        max_length = max_length or self.max_length
        return (max_length - self.tokenizer.framing.num_special(is_pair=True)) // 2

    def _framed(self, question, context, max_length=None):
        max_length = max_length or self.max_length
        return self.tokenizer.framing(question, context, max_length, "only_second", with_places=True)

    def framed(self, texts, pairs=None, max_length=None):
        """`Framed` for questions (B,) and their contexts, which are cut to `max_length`, by default this task's."""
        if pairs is None:
            raise ValueError(
                "A question answerer reads a question and its context: give the context as `pair`."
            )
        asked = self.tokenizer.tokenize(texts)
        room = self._question_room(max_length)
        framed = self._framed(asked[:, :room], self.tokenizer.tokenize(pairs), max_length)
        return framed._replace(is_cut=framed.is_cut | (asked.row_lengths() > room))

    def _window_answers(self, question, context):
        return self._best(self._framed(question, context))

    def _best(self, framed):
        """The score of the best answer in each row, 0 if there is none, and its first and last token in the context."""
        logits = self.computed(self.logits, self.model_inputs(framed), None, 2)
        is_context = dense(framed.sources, -1) == 1
        has_context = tf.reduce_any(is_context, axis=1)
        logits = tf.where(is_context[:, :, tf.newaxis], logits, _NEVER)
        probabilities = tf.nn.softmax(logits, axis=1)
        scores = probabilities[:, :, tf.newaxis, 0] * probabilities[:, tf.newaxis, :, 1]  # (B, T, T)
        length = tf.shape(scores)[1]
        scores = tf.linalg.band_part(scores, 0, tf.minimum(self.max_answer_length, length) - 1)
        flat = tf.reshape(scores, [-1, length * length])
        best = tf.argmax(flat, axis=1, output_type=tf.int32)
        score = tf.where(has_context, tf.reduce_max(flat, axis=1), 0.0)
        places = tf.cast(tf.maximum(dense(framed.places, -1), 0), tf.int64)
        first = tf.gather(places, best // length, batch_dims=1)
        last = tf.gather(places, best % length, batch_dims=1)
        return score, first, last

    def _windows(self, row, question, context):
        """The windows of a context: dicts of the ids, and of the bytes that tokens of the context stand for."""
        [question_ids] = self.tokenizer.encode([question])
        question_ids = question_ids[: self._question_room()]
        offsets = self.tokenizer.tokenize_with_offsets([context])
        ids, starts, ends = (values.to_list()[0] for values in offsets)
        size = self.max_length - self.tokenizer.framing.num_special(is_pair=True) - len(question_ids)
        for begin in range(0, max(len(ids) - self.stride, 1), size - self.stride):
            part = slice(begin, begin + size)
            yield {
                "row": row,
                "question": question_ids,
                "context": ids[part],
                "starts": starts[part],
                "ends": ends[part],
            }


def _answer(window, score, first, last, context):
    """The `Answer` of UTF-8 bytes whose first and last token in a window are these."""
    start = window["starts"][first]
    end = window["ends"][last]
    while start < end and _is_inside_a_character(context, start):
        start -= 1
    while _is_inside_a_character(context, end):
        end += 1
    text = context[start:end].decode("utf-8")
    first_character = len(context[:start].decode("utf-8"))
    return Answer(text, score, first_character, len(context[:end].decode("utf-8")))


def _is_inside_a_character(text, place):
    """Whether a byte of UTF-8 goes on with the character before it."""
    return place < len(text) and text[place] & 0xC0 == 0x80
