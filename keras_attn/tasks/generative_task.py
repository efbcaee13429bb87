"""What the tasks that write texts share: the arguments of a search, the search for a batch, and its graphs."""

import collections
import dataclasses
import math
import numbers

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from keras_attn.checks import check_max_length, check_positive
from keras_attn.generation import (
    OPTIONS,
    DecodingOptions,
    Hypotheses,
    check_num_hypotheses,
    checked_options,
)
from keras_attn.models import gives_logits
from keras_attn.tasks.batches import NO_TOKEN, compiled_with_xla, padded, run_in_batches
from keras_attn.tasks.other_backends import function_of_arrays
from keras_attn.tasks.search_functions import BEAM_OPTIONS
from keras_attn.tasks.streams import stream_text
from keras_attn.tasks.task import Task, as_given

# Options that a task may have as its own: one value for all texts.
_TASK_OPTIONS = [name for name, option in OPTIONS.items() if option.task_default]
_SHORTEST_GRAPH = 16

Answer = collections.namedtuple("Answer", ["texts", "scores", "token_ids"])
Answer.__doc__ = """The answers to one text.

texts, scores: Lists, best first.
token_ids: Their ids, int32 array (n, L), filled with `NO_TOKEN`.
"""


class GenerativeTask(Task):
    """A model that writes texts, and its tokenizers.

    A subclass implements `run_search(...)`, which calls the model's `generate`; `answer_texts(...)`, the texts of token ids;
    and `stream_inputs(...)`, the inputs of a stream's search.

    Args:
        model: A model with the `mixin`.
        tokenizers: Dict from the name of an attribute to a tokenizer.
        output_tokenizer: The tokenizer of what is written.
        num_beams, length_penalty, max_length, jit_compile, options: As in the subclass. `max_length` is `longest` by default.
    """

    saved_options = ("num_beams", "length_penalty", "max_length", "jit_compile")
    data_names = ("num_beams", "length_penalty", "max_length")
    drawing_signature = "sample"

    def __init__(
        self,
        model,
        tokenizers,
        output_tokenizer,
        num_beams,
        length_penalty,
        max_length,
        jit_compile,
        options=None,
    ):
        super().__init__(model, tokenizers)
        if not gives_logits(model):
            raise ValueError(
                f"`model` must give logits of tokens, with which {self.article.lower()} {self.name} writes. Received: a "
                "body without an output projection."
            )
        self.output_tokenizer = output_tokenizer
        self.num_beams = check_num_hypotheses("num_beams", num_beams)
        self.length_penalty = length_penalty
        self.max_length = check_positive("max_length", max_length, optional=True) or self.longest
        self.jit_compile = jit_compile
        self.options = _checked_defaults(options)
        self.unwritable_token_ids = self._unwritable_token_ids()

    @property
    def longest(self):
        """Integer, the most tokens that the model can write, END included."""
        return self.model.max_sequence_length

    def neutral_values(self):
        neutral = super().neutral_values()
        own = self.options.given()
        for name in BEAM_OPTIONS:
            if name in own and name in neutral and not OPTIONS[name].is_list:
                neutral[name] = type(neutral[name])(own[name])
        neutral["length_penalty"] = float(self.length_penalty)
        return neutral

    def widget_of(self, input_name):
        widget = super().widget_of(input_name)
        if input_name != "num_beams":
            return widget
        if self.num_beams == 1:
            return None
        least, _, step = widget["range"]
        return {**widget, "range": [least, self.num_beams, step], "zero": str(self.num_beams)}

    def search_options(
        self,
        num_beams=None,
        length_penalty=None,
        max_length=None,
        num_return_sequences=1,
    ):
        """The arguments of a search, a dict; the defaults are this task's.

        If `num_return_sequences` is None, the search returns one answer without a score, so greedy search need not compute it.
        """
        num_beams = self.num_beams if num_beams is None else check_num_hypotheses("num_beams", num_beams)
        if length_penalty is None:
            length_penalty = self.length_penalty
        if not math.isfinite(length_penalty):
            raise ValueError(f"`length_penalty` must be finite. Received: length_penalty={length_penalty}.")
        if max_length is None:
            max_length = self.max_length
        return {
            "num_beams": num_beams,
            "length_penalty": float(length_penalty),
            "max_length": max_length,
            "num_return_sequences": num_return_sequences,
        }

    def _unwritable_token_ids(self):
        """Ids that stand for no text and end nothing: of special tokens, of the pad, of rows beyond the vocabulary."""
        tokenizer = self.output_tokenizer
        num_logits = getattr(self.model, "target_vocabulary_size", None)
        if num_logits is None:
            num_logits = getattr(self.model, "vocabulary_size", None)
        if num_logits is None:
            num_logits = tokenizer.vocabulary_size
        never = set(tokenizer.special_token_ids) | set(tokenizer.unused_token_ids)
        never |= set(range(tokenizer.vocabulary_size, num_logits))
        if self.model.pad_token_id >= 0:
            never.add(self.model.pad_token_id)
        ends = {tokenizer.end_token_id, *(self.options.stop_token_ids or ())}
        return tuple(sorted(never - ends))

    # A search, from the lists of ids of a call down to the model's `generate`.

    def _answers(self, token_ids, search, options=None, batch_size=1, num_workers=None):
        """The `Answer` to each list of ids.

        Args:
            token_ids: List of lists of ids.
            search: The result of `search_options`.
            options: `DecodingOptions` with one value for all lists or one for each; or None.
            batch_size, num_workers: As in `run_in_batches`.
        """

        def answer_rows(rows):
            batch = [token_ids[row] for row in rows]
            batch_options = {} if options is None else options.row_arrays(rows, len(token_ids))
            return self._answer_batch(batch, search, batch_options)

        return run_in_batches(answer_rows, token_ids, batch_size, num_workers)

    def _answer_batch(self, input_ids, search, options):
        """The `Answer` to each list of ids of a batch; `options` are arrays with a value for each list, by their names."""
        num_rows = len(input_ids)
        inputs = padded(input_ids, to_buckets=self.jit_compile or keras.backend.backend() == "jax")
        num_more = inputs.shape[0] - num_rows  # rows that only fill the bucket
        if num_more:
            options = {name: _with_last_row_repeated(values, num_more) for name, values in options.items()}
        token_ids, scores = self._search_batch(inputs, search, options)
        token_ids = np.asarray(token_ids)[:num_rows, : search["num_return_sequences"] or 1]
        num_answers = token_ids.shape[1]
        if scores is None:
            scores = np.zeros((num_rows, num_answers))
        else:
            scores = np.asarray(scores)[:num_rows, :num_answers]
        is_used = np.any(token_ids != NO_TOKEN, axis=(0, 1))
        longest = np.max(np.flatnonzero(is_used), initial=0) + 1
        token_ids = token_ids[:, :, :longest]
        texts = self.answer_texts(input_ids, token_ids).numpy()
        answers = []
        for row_texts, row_scores, row_ids in zip(texts, scores, token_ids):
            is_answer = np.isfinite(row_scores)
            is_answer[0] = True  # if the options allow no answer: "" with score -inf
            answer_texts = [text.decode("utf-8") for text in row_texts[is_answer]]
            answers.append(Answer(answer_texts, row_scores[is_answer].tolist(), row_ids[is_answer]))
        return answers

    def _search_batch(self, inputs, search, options):
        """The token ids (B, n, L) of the answers to rows of ids (B, S), and their scores (B, n) or None.

        A search is one graph. There is another graph for another number of beams or samples, for other options and numbers of
        ids in them, and for another longest answer; the last two are rounded up, so that there are few graphs. Values of
        options, limits and penalties are inputs of the graph. A beam search returns all beams, and its caller takes the first.

        With `jit_compile`, XLA compiles parts of the graph, for each shape of its inputs. On JAX, all of it is compiled; on
        PyTorch, nothing.
        """
        is_graph = keras.backend.backend() == "tensorflow"
        compiler = compiled_with_xla if self.jit_compile and is_graph else None
        max_length = check_max_length(search["max_length"], self.longest)
        num_beams = search["num_beams"]
        num_answers = search["num_return_sequences"]
        is_sampling = False
        if options or num_answers is not None:  # without them, there is nothing to check
            is_sampling = checked_options(DecodingOptions(**options), num_beams, num_answers).is_sampling
        if is_sampling:
            num_beams = 1
        elif num_beams > 1:
            num_answers = num_beams
        sizes = {
            "num_beams": num_beams,
            "num_return_sequences": num_answers,
            "max_length": self.graph_length(max_length),
        }
        options = {name: _few_widths(values) for name, values in options.items()}
        limits = {
            "limit": np.int32(max_length),
            "length_penalty": np.float32(search["length_penalty"]),
        }

        def generate(token_ids, options, limits):
            return self.generate(
                token_ids, {**sizes, **limits, "options": DecodingOptions(**options)}, compiler
            )

        key = tuple(sizes.values())
        if not is_graph:
            key += tuple((name, values.shape[1:]) for name, values in options.items())
            function = self.cached(key, lambda: function_of_arrays(self.model, generate))
            return function(inputs, options, limits)
        option_specs = {
            name: tf.TensorSpec([None, *values.shape[1:]], values.dtype, name)
            for name, values in options.items()
        }
        limit_specs = {name: tf.TensorSpec([], value.dtype, name) for name, value in limits.items()}
        specs = [tf.TensorSpec([None, None], tf.int32), option_specs, limit_specs]
        graph = self.graph_of((*key, *option_specs.values()), generate, specs)
        return graph(inputs, options, limits)

    def graph_length(self, max_length):
        """The most tokens that a graph can write for answers of `max_length`: one of few lengths, at least that long."""
        length = _SHORTEST_GRAPH
        while length < max_length:
            length *= 2
        return min(length, self.longest)

    def generate(self, token_ids, search, compiler=None):
        """Ids (B, S), filled with `NO_TOKEN` -> `Hypotheses` with ids (B, n, L), filled too, and scores (B, n).

        `search` is the result of `search_options`. It may have other arguments of the model's `generate` too: `options`, the
        `DecodingOptions` that replace the task's own, for example. The scores are None if `num_return_sequences` is None.
        """
        search = {**search, "options": self.with_defaults(search.get("options"))}
        result = self.run_search(token_ids, search, compiler)
        if search["num_return_sequences"] is None:
            return Hypotheses(result[:, None], None)
        return result

    def with_defaults(self, options):
        """The `DecodingOptions` of a call, with this task's own where it gives none.

        Ids of stop and of suppressed tokens are added to the task's own.
        """
        if options is None:
            return self.options
        changes = options.given()
        for name in ("stop_token_ids", "suppressed_token_ids"):
            own = getattr(self.options, name)
            if own is not None and name in changes:
                given = ops.convert_to_tensor(changes[name], dtype="int32")
                own = ops.broadcast_to(ops.convert_to_tensor(own), (*ops.shape(given)[:-1], len(own)))
                changes[name] = ops.concatenate([own, given], axis=-1)
        return dataclasses.replace(self.options, **changes)

    def _trimmed(self, token_ids):
        """Ids (L,) that were written -> the list of those up to END, included."""
        token_ids = token_ids.tolist()
        end = self.output_tokenizer.end_token_id
        stops = [len(token_ids)]
        if end in token_ids:
            stops.append(token_ids.index(end) + 1)
        if NO_TOKEN in token_ids:
            stops.append(token_ids.index(NO_TOKEN))
        return token_ids[: min(stops)]

    def _stream(self, text, make_token_ids, max_length):
        if max_length is None:
            max_length = self.max_length
        if not isinstance(text, str | bytes):
            raise ValueError(f"`text` must be a string. Received: {type(text).__name__}.")
        if not isinstance(max_length, numbers.Integral) or not 1 <= max_length <= self.longest:
            raise ValueError(
                f"`max_length` must be in [1, {self.longest}]. Received: max_length={max_length}."
            )
        return stream_text(self, lambda: make_token_ids(int(max_length)))


def answer_columns(answers, num_return_sequences, return_scores, single, more=()):
    """What a call returns: texts, scores if wanted, and `more` columns; for a single text, its own values.

    Args:
        answers: List of `Answer`s.
        num_return_sequences: Integer, or None for the first text and score of each answer.
        return_scores, single: Booleans.
        more: Lists with a value for each text.
    """
    if num_return_sequences:
        texts = [answer.texts for answer in answers]
        scores = [answer.scores for answer in answers]
    else:
        texts = [answer.texts[0] for answer in answers]
        scores = [answer.scores[0] for answer in answers]
    columns = [texts, scores] if return_scores else [texts]
    return as_given([*columns, *more], single)


def _with_last_row_repeated(values, num_more):
    paddings = [(0, num_more)] + [(0, 0)] * (values.ndim - 1)
    return np.pad(values, paddings, "edge")


def _few_widths(values):
    """Ids (B, P), filled with `NO_TOKEN`, for a P that is a power of two; other options unchanged."""
    if values.ndim < 2:
        return values
    width = max(values.shape[1], 1)
    more = (1 << (width - 1).bit_length()) - values.shape[1]
    return np.pad(values, [(0, 0), (0, more)], constant_values=NO_TOKEN)


def _checked_defaults(options):
    """`DecodingOptions` of a task, whose ids are tuples.

    Raises:
        ValueError: for an option that is not for all calls of a task, or has a value for each text.
    """
    given = {} if options is None else options.given()
    unknown = sorted(set(given) - set(_TASK_OPTIONS))
    if unknown:
        raise ValueError(f"`options` of a task must be among {_TASK_OPTIONS}. Received: {unknown}.")
    wrong = sorted(name for name, value in given.items() if np.ndim(value) != OPTIONS[name].is_list)
    if wrong:
        raise ValueError(f"`options` of a task must have one value for all texts. Received others: {wrong}.")
    plain = {}
    for name, value in given.items():
        value = np.asarray(value).tolist()
        plain[name] = tuple(value) if isinstance(value, list) else value
    defaults = DecodingOptions(**plain)
    defaults.per_row(1)  # raises for a value out of range
    return defaults
