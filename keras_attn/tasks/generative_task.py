"""What the tasks that write texts share: options of a search, calls in batches, and streams."""

import math
import numbers

from keras_attn.checks import check_positive
from keras_attn.generation import Hypotheses, check_num_hypotheses
from keras_attn.tasks.batches import of_batches
from keras_attn.tasks.streaming import stream_text
from keras_attn.tasks.task import Task, as_given


class GenerativeTask(Task):
    """A model that writes texts, and its tokenizers.

    A subclass implements `found(...)`, a search in the model, `texts_of(...)`, the text of token ids, and
    `stream_inputs(...)`, the inputs of a stream's search.

    Args:
        model: A model with the `mixin`.
        tokenizers: Dict from the name of an attribute to a tokenizer.
        output_tokenizer: The tokenizer of what is written.
        num_beams, length_penalty, max_length, jit_compile: As in the subclass.
        longest: Integer, the largest and the default `max_length`.
    """

    saved_options = ("num_beams", "length_penalty", "max_length", "jit_compile")

    def __init__(
        self, model, tokenizers, output_tokenizer, num_beams, length_penalty, max_length, jit_compile, longest
    ):
        super().__init__(model, tokenizers)
        self.output_tokenizer = output_tokenizer
        self.num_beams = check_num_hypotheses("num_beams", num_beams)
        self.length_penalty = length_penalty
        self.max_length = check_positive("max_length", max_length, optional=True) or longest
        self.jit_compile = jit_compile
        self.unwritable_token_ids = tuple(
            sorted(set(output_tokenizer.special_token_ids) - {output_tokenizer.end_token_id})
        )

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
        """Ids (B, S) -> `Hypotheses` with ids (B, n, L) and scores (B, n).

        If `num_return_sequences` is None, n is 1 and there are no scores, so greedy search need not compute
        them.
        """
        found = self.found(token_ids, options, compiler)
        return Hypotheses(found[:, None], None) if options["num_return_sequences"] is None else found

    def _answers(self, token_ids, options, answer_batch, batch_size, num_workers):
        """An `Answer` for each list of ids; `answer_batch` takes a batch of them and its options as arrays."""

        def answer(rows):
            return answer_batch([token_ids[row] for row in rows], options.of_rows(rows, len(token_ids)))

        return of_batches(answer, token_ids, batch_size, num_workers)

    def _stream(self, text, token_ids, max_length, longest):
        max_length = self.max_length if max_length is None else max_length
        if not isinstance(text, str | bytes):
            raise ValueError(f"`text` must be a string. Received: {type(text).__name__}.")
        if not isinstance(max_length, numbers.Integral) or not 1 <= max_length <= longest:
            raise ValueError(f"`max_length` must be in [1, {longest}]. Received: max_length={max_length}.")
        return stream_text(self, lambda: token_ids(int(max_length)), int(max_length))


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
