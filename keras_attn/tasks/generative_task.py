"""What the tasks that write texts share: options of a search, calls in batches, and streams."""

import dataclasses
import math
import numbers

import numpy as np
from keras import ops

from keras_attn.checks import check_positive
from keras_attn.generation import OPTIONS, DecodingOptions, Hypotheses, check_num_hypotheses
from keras_attn.models import gives_logits
from keras_attn.tasks.batches import NO_TOKEN, run_in_batches
from keras_attn.tasks.search_functions import BEAM_OPTIONS
from keras_attn.tasks.search_graphs import search_batch, stream_text
from keras_attn.tasks.task import Task, as_given

# Options that a task may have as its own: one value for all texts.
_TASK_OPTIONS = [name for name, option in OPTIONS.items() if option.task_default]


class GenerativeTask(Task):
    """A model that writes texts, and its tokenizers.

    A subclass implements `search(...)`, a search in the model, `answer_texts(...)`, the texts of token ids,
    `stream_inputs(...)`, the inputs of a stream's search, and `longest`, the most tokens that the model can write.

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

    def search_options(self, num_beams=None, length_penalty=None, max_length=None, num_return_sequences=1):
        """The arguments of a search; the defaults are this task's."""
        num_beams = self.num_beams if num_beams is None else check_num_hypotheses("num_beams", num_beams)
        if length_penalty is None:
            length_penalty = self.length_penalty
        if not math.isfinite(length_penalty):
            raise ValueError(f"`length_penalty` must be finite. Received: length_penalty={length_penalty}.")
        return {
            "num_beams": num_beams,
            "length_penalty": float(length_penalty),
            "max_length": self.max_length if max_length is None else max_length,
            "num_return_sequences": num_return_sequences,
        }

    def generate(self, token_ids, options, compiler=None):
        """Ids (B, S), filled with `NO_TOKEN` -> `Hypotheses` with ids (B, n, L), filled too, and scores (B, n).

        If `num_return_sequences` is None, n is 1 and there are no scores, so greedy search need not compute
        them.
        """
        options = {**options, "options": self.with_defaults(options.get("options"))}
        result = self.search(token_ids, options, compiler)
        if options["num_return_sequences"] is None:
            return Hypotheses(result[:, None], None)
        return result

    def with_defaults(self, options):
        """`DecodingOptions`, those of this task where `options` have none; ids that stop or are suppressed are added."""
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

    def _answers(self, token_ids, search, options, batch_size, num_workers):
        """An `Answer` for each list of ids; the options are None or have a value for each."""

        def answer(rows):
            batch = [token_ids[row] for row in rows]
            batch_options = {} if options is None else options.arrays_of(rows, len(token_ids))
            return search_batch(self, batch, batch_options, search)

        return run_in_batches(answer, token_ids, batch_size, num_workers)

    def _answer(self, token_ids, search, options=None):
        """The `Answer` for one list of ids."""
        options = {} if options is None else options.arrays_of([0], 1)
        [answer] = search_batch(self, [token_ids], options, search)
        return answer

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
