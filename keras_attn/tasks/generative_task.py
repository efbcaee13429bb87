"""What the tasks that write texts share: options of a search, calls in batches, and streams."""

import dataclasses
import math
import numbers

import numpy as np
from keras import ops

from keras_attn.checks import check_positive
from keras_attn.generation import DecodingOptions, Hypotheses, check_num_hypotheses
from keras_attn.models import gives_logits
from keras_attn.tasks.batches import of_batches
from keras_attn.tasks.streaming import stream_text
from keras_attn.tasks.task import Task, as_given


class GenerativeTask(Task):
    """A model that writes texts, and its tokenizers.

    A subclass implements `found(...)`, a search in the model, `texts_of(...)`, the text of token ids,
    `stream_inputs(...)`, the inputs of a stream's search, and `longest`, the most tokens that the model can write.

    Args:
        model: A model with the `mixin`.
        tokenizers: Dict from the name of an attribute to a tokenizer.
        output_tokenizer: The tokenizer of what is written.
        num_beams, length_penalty, max_length, jit_compile, options: As in the subclass. `max_length` is `longest` by default.
    """

    saved_options = ("num_beams", "length_penalty", "max_length", "jit_compile")
    data_names = ("num_beams", "length_penalty", "max_length")

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

    def search_options(self, num_beams=None, length_penalty=None, max_length=None, num_return_sequences=1):
        """The arguments of a search; the defaults are this task's."""
        length_penalty = self.length_penalty if length_penalty is None else length_penalty
        if not math.isfinite(length_penalty):
            raise ValueError(f"`length_penalty` must be finite. Received: length_penalty={length_penalty}.")
        return {
            "num_beams": self.num_beams
            if num_beams is None
            else check_num_hypotheses("num_beams", num_beams),
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
        found = self.found(token_ids, options, compiler)
        return Hypotheses(found[:, None], None) if options["num_return_sequences"] is None else found

    def with_defaults(self, options):
        """`DecodingOptions`, those of this task where `options` have none; ids that stop or are suppressed are added."""
        options = DecodingOptions() if options is None else options
        return dataclasses.replace(self.options, **options.given() | self._joined(options))

    def _joined(self, options):
        joined = {}
        for name in ("stop_token_ids", "suppressed_token_ids"):
            own, given = getattr(self.options, name), getattr(options, name)
            if own is not None and given is not None:
                given = ops.convert_to_tensor(given, dtype="int32")
                own = ops.broadcast_to(ops.convert_to_tensor(own), (*ops.shape(given)[:-1], len(own)))
                joined[name] = ops.concatenate([own, given], axis=-1)
        return joined

    def _unwritable_token_ids(self):
        """Ids that stand for no text and end nothing: of special tokens, of the pad, of rows beyond the vocabulary."""
        tokenizer, pad = self.output_tokenizer, self.model.pad_token_id
        sizes = [getattr(self.model, f"{side}vocabulary_size", None) for side in ("target_", "")]
        size = next((size for size in sizes if size is not None), tokenizer.vocabulary_size)
        never = {*tokenizer.special_token_ids, *tokenizer.unused_token_ids, *([pad] if pad >= 0 else [])}
        never |= set(range(tokenizer.vocabulary_size, size))
        return tuple(sorted(never - {tokenizer.end_token_id, *(self.options.stop_token_ids or ())}))

    def _answers(self, token_ids, options, answer_batch, batch_size, num_workers):
        """An `Answer` for each list of ids; `answer_batch` takes a batch of them and its options as arrays."""

        def answer(rows):
            return answer_batch([token_ids[row] for row in rows], options.arrays_of(rows, len(token_ids)))

        return of_batches(answer, token_ids, batch_size, num_workers)

    def _stream(self, text, token_ids, max_length, longest):
        max_length = self.max_length if max_length is None else max_length
        if not isinstance(text, str | bytes):
            raise ValueError(f"`text` must be a string. Received: {type(text).__name__}.")
        if not isinstance(max_length, numbers.Integral) or not 1 <= max_length <= longest:
            raise ValueError(f"`max_length` must be in [1, {longest}]. Received: max_length={max_length}.")
        return stream_text(self, lambda: token_ids(int(max_length)))


def columns_of(answers, num_return_sequences, return_scores, single, more=()):
    """What a call returns: texts, scores if wanted, and `more` columns; for a single text, its own values.

    Args:
        answers: List of `Answer`s.
        num_return_sequences: Integer, or None for the first text and score of each answer.
        return_scores, single: Booleans.
        more: Lists with a value for each text.
    """
    columns = [[answer.texts if num_return_sequences else answer.texts[0] for answer in answers]]
    if return_scores:
        columns.append([answer.scores if num_return_sequences else answer.scores[0] for answer in answers])
    return as_given([*columns, *more], single)


# Options that a task may have as its own: one value for all texts.
_DEFAULTS = (
    "min_length",
    "no_repeat_ngram_size",
    "repetition_penalty",
    "renormalize",
    "first_token_id",
    "last_token_id",
    "stop_token_ids",
    "suppressed_token_ids",
    "suppressed_first_token_ids",
    "exact_stopping",
    "early_stopping",
)


def _checked_defaults(options):
    """`DecodingOptions` of a task, whose ids are tuples.

    Raises:
        ValueError: for an option that is not for all calls of a task, or has a value for each text.
    """
    given = {} if options is None else options.given()
    unknown = sorted(set(given) - set(_DEFAULTS))
    if unknown:
        raise ValueError(f"`options` of a task must be among {list(_DEFAULTS)}. Received: {unknown}.")
    wrong = sorted(name for name, value in given.items() if np.ndim(value) != name.endswith("_ids"))
    if wrong:
        raise ValueError(f"`options` of a task must have one value for all texts. Received others: {wrong}.")
    given = {name: np.asarray(value).tolist() for name, value in given.items()}
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    defaults = DecodingOptions(**given)
    defaults.per_row(1)  # raises for a value out of range
    return defaults
