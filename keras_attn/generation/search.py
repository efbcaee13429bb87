import copy
import dataclasses

from keras import ops

from keras_attn.generation.decode import cache_length, decode
from keras_attn.generation.prompt import Place


class Search:
    """A strategy in the loop of `decode`: what all of them know of the rows of a batch.

    A subclass has `start_state()`, `advance(index, state, cache, step)` and `is_done(state)`.

    Args:
        step, max_length, start_token_id, end_token_id, pad_token_id, prompt, row_context, compiler: As in `beam_search`.
        shape: The number of rows and of hypotheses to each, (B, n).
        options: `DecodingOptions` with values for B rows.
        length_penalty: Float, or floats (B,).

    Raises:
        ValueError: if n or `max_length` is not positive.
    """

    count_name = "num_beams"  # what callers call n

    def __init__(
        self,
        step,
        shape,
        max_length,
        start_token_id,
        end_token_id,
        pad_token_id,
        options,
        prompt=None,
        length_penalty=1.0,
        row_context=None,
        compiler=None,
    ):
        for name, value in ((self.count_name, shape[1]), ("max_length", max_length)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"`{name}` must be a positive integer. Received: {name}={value}.")
        self.step = step
        self.shape = shape
        self.max_length = max_length
        self.end_token_id = end_token_id
        self.pad_token_id = pad_token_id
        self.options = options
        self.place = Place(prompt, start_token_id, shape)
        self.length_penalty = length_penalty
        self.row_context = row_context
        self.compiler = compiler

    @property
    def num_hypotheses(self):
        return self.shape[1]

    @property
    def end_token_ids(self):
        return self.options.end_token_ids(self.end_token_id)

    def run(self, start_state, make_cache):
        """The last state and the number of steps."""
        knows_rows = self.row_context is not None
        return decode(
            self._advance,
            self.is_done,
            start_state,
            make_cache(cache_length(self.max_length) * self.num_hypotheses),
            self.max_length,
            slots_per_step=self.num_hypotheses,
            first_slot=self.place.first_slot,
            context=(self._of_rows(), self.row_context) if knows_rows else None,
            compiler=self.compiler,
        )

    def _advance(self, index, state, cache, context):
        if context is None:
            return self.advance(index, state, cache, self.step)
        of_rows, row_context = context
        return self._for_rows(of_rows).advance(
            index, state, cache, lambda *inputs: self.step(*inputs, row_context)
        )

    def _of_rows(self):
        """All tensors of this object with a value for each row."""
        has_penalties = not isinstance(self.length_penalty, (int, float))
        return {
            "options": self.options.given(),
            "prompt": () if self.place.prompt is None else self.place.prompt,
            "length_penalty": ops.convert_to_tensor(self.length_penalty) if has_penalties else (),
        }

    def _for_rows(self, of_rows):
        """The same search for other rows."""
        search = copy.copy(self)
        search.options = dataclasses.replace(self.options, **of_rows["options"])
        if self.place.prompt is not None:
            search.place = self.place.for_prompt(of_rows["prompt"])
        if not isinstance(self.length_penalty, (int, float)):
            search.length_penalty = of_rows["length_penalty"]
        return search
