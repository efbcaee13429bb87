import copy
import dataclasses
from collections.abc import Callable
from typing import Any

from keras import ops

from keras_attn.checks import check_positive
from keras_attn.generation.decode import cache_lengths, decode, room_for
from keras_attn.generation.options import MAX_HYPOTHESES, DecodingOptions
from keras_attn.generation.processors import process, without_tokens
from keras_attn.generation.prompt import AnswerStart, Prompt
from keras_attn.generation.shortlist import (
    FEWEST_LISTED,
    ListedTokens,
    in_vocabulary,
    limits_of,
    limits_without,
)
from keras_attn.ops import clamping_scope

# For more tokens that cannot be written, a copy of the logits without them takes less time than an operation for each.
_MANY_UNWRITABLE = 8


@dataclasses.dataclass(frozen=True)
class SearchInputs:
    """The inputs of any search: the functions of a model, and the data of its rows.

    The hypotheses of a row are query positions over one shared cache: step i fills K slots, one for each of the row's K
    hypotheses (beams, or samples), and a mask shows each of them the slots of its own history.

    Args:
        step: Function (token_ids, index, cache, attention_mask) -> (logits, cache): int32 (B, K) tokens, all at
            position `index`, an int32 scalar; the slot of hypothesis k is `index * K + k`; boolean (B, K, slots), True
            at slots that a hypothesis may attend to; float (B, K, V) logits. With `coverage` it also returns attention
            scores (B, K, S); with `row_context` it takes that as a fifth argument.
        make_cache: Function (slots) -> a tuple of key/value cache pairs with `slots` empty slots. After a
            prompt of P tokens, P - 1 filled slots come before these; the masks and slots of `step` count from
            the first empty one.
        batch_size: Integer B, or integer scalar tensor.
        max_length: Integer, the most tokens of an answer, END included. Tensors have this size.
        start_token_id: Integer, or integers (B,), the token before an answer; None with a `prompt`.
        end_token_id: Integer.
        pad_token_id: Integer. The pad is never chosen; it fills the columns after an answer. -1, which is no token,
            tells where an answer ends even if the model's pad is END.
        unwritable_token_ids: Integers, tokens that stand for no text, such as START. They are never chosen, except by
            a prefix. Their probability stays in the normaliser, so that scores stay those of a forward pass.
        prompt: `Prompt`, tokens before the answer, the last of which is used as START. Options that depend on
            the tokens of a hypothesis include them.
        row_context: A structure of tensors (B, ...) with the data of each row that `step` reads and does not
            change. With it, finished rows can leave the batch, see `decode`.
        coverage: Floats (B, S), the sums of attention that the coverage penalty starts from: 0 at source tokens, 1 at
            pads. Given if and only if the options have a `coverage_penalty`.
        compiler: As in `decode`.
        read: Function (token_ids, index, cache) -> (logits, cache) for T tokens of one hypothesis, int32 (B, T), one
            after another from position `index` on, each of which sees those before; with `row_context` it takes that
            as a fourth argument. Only `speculative_decode` needs it.
        listed: `ListedTokens`, of which `step` then returns the logits (B, K, U); or None for all tokens. Probabilities
            are those among the tokens that a row may have.
        limit: int32 scalar, from 1 to `max_length`: the most tokens of an answer as data of a graph, which is then the same for
            all limits; or None for `max_length`.
    """

    step: Callable
    make_cache: Callable
    batch_size: Any
    max_length: int
    start_token_id: Any
    end_token_id: int
    pad_token_id: int = 0
    unwritable_token_ids: tuple[int, ...] = ()
    prompt: Prompt | None = None
    row_context: Any = None
    coverage: Any = None
    compiler: Callable | None = None
    read: Callable | None = None
    listed: ListedTokens | None = None
    limit: Any = None


class Search:
    """Base of the strategies in the loop of `decode`. It holds the data of the rows of a batch.

    A subclass has `start_state()`, `is_done(state)` and `next_state(index, state, cache, step)`. A search is run at once
    with `run`, or one step at a time with `begin` and `advance`.

    Args:
        inputs: `SearchInputs`.
        num_hypotheses: Integer n, the hypotheses of each row.
        options: `DecodingOptions`, or None.
        length_penalty: Float, a scalar tensor, or floats (B,).

    Raises:
        ValueError: if n or `max_length` is not positive, or n is greater than `MAX_HYPOTHESES`.
    """

    count_name = "num_beams"  # the name of n in messages

    def __init__(self, inputs, num_hypotheses=1, options=None, length_penalty=1.0):
        self.num_hypotheses = check_num_hypotheses(self.count_name, num_hypotheses)
        self.max_length = check_positive("max_length", inputs.max_length)
        self.limit = self.max_length if inputs.limit is None else inputs.limit
        self.inputs = inputs
        self.shape = (inputs.batch_size, self.num_hypotheses)
        self.pad_token_id = inputs.pad_token_id
        self.options = (DecodingOptions() if options is None else options).per_row(inputs.batch_size)
        self.answer_start = AnswerStart(inputs.prompt, inputs.start_token_id, self.shape)
        self.length_penalty = length_penalty
        if not isinstance(length_penalty, (int, float)):
            self.length_penalty = ops.convert_to_tensor(length_penalty)
        # What a shortlist allows, made once for all steps: of each row, and of tokens that may be written.
        self.limits, self.writable = (), None
        if inputs.listed is not None:
            self.limits = limits_of(inputs.listed)
            self.writable = limits_without(inputs.listed, self.never())

    @property
    def end_token_ids(self):
        """(1, 1) or (B, 1 + Q) integers: END and the other tokens that end an answer."""
        end = ops.full((1, 1), self.inputs.end_token_id, dtype="int32")
        stops = self.options.stop_token_ids
        if stops is None:
            return end
        return ops.concatenate([ops.broadcast_to(end, (ops.shape(stops)[0], 1)), stops], axis=1)

    def are_ends(self, token_ids):
        """Which of `token_ids` (B, K) end an answer, booleans (B, K)."""
        ends = self.end_token_ids
        if self.options.stop_token_ids is None:
            return token_ids == ends
        return ops.any(ops.expand_dims(token_ids, -1) == ends[:, None, :], axis=-1)

    def begin(self):
        """State, cache and context before the first step; the cache has room for the first of `cache_lengths`."""
        state = self.start_state()
        first = cache_lengths(self.max_length)[0]
        first = room_for(first, self.inputs.limit, state, self.inputs.compiler)
        cache = self.inputs.make_cache(first * self.num_hypotheses)
        knows_rows = self.inputs.row_context is not None
        return state, cache, (self._of_rows(), self.inputs.row_context) if knows_rows else None

    def advance(self, index, state, cache, context):
        """State and cache after step `index`."""
        with (
            clamping_scope()
        ):  # The ids of a step are the search's own: the graph of a loop has no checks of them.
            if context is None:
                return self.next_state(index, state, cache, self.inputs.step)
            of_rows, row_context = context
            return self._for_rows(of_rows).next_state(
                index, state, cache, lambda *of_step: self.inputs.step(*of_step, row_context)
            )

    def run(self):
        """The last state and the number of steps."""
        state, cache, context = self.begin()
        return decode(
            self.advance,
            self.is_done,
            state,
            cache,
            self.max_length,
            slots_per_step=self.num_hypotheses,
            first_slot=self.answer_start.first_slot,
            context=context,
            compiler=self.inputs.compiler,
            limit=self.inputs.limit,
        )

    def searched(self, logits, uses_list):
        """The `allowed` logits to find the best tokens in, and the tokens to exclude there, if no option changes them.

        Together they keep out the pad and unwritable tokens. A pad in the middle of an answer would look like its end.
        """
        never = self.never()
        if uses_list:
            return ops.minimum(logits, self.writable), ()
        return (logits, never) if len(never) <= _MANY_UNWRITABLE else (without_tokens(logits, never), ())

    def uses_list(self, count=1):
        """Whether tokens are chosen among those of a shortlist, by the k best of which each step begins.

        Processors of options know all tokens.
        """
        listed = self.inputs.listed
        is_long = listed is not None and count <= min(FEWEST_LISTED, listed.vocabulary_size)
        return is_long and not self.options.changes_log_probs and not self.options.is_sampling

    def allowed(self, logits, uses_list):
        """The logits of a step, float32, with the tokens impossible that are not of a row."""
        logits = ops.cast(logits, "float32")
        if self.inputs.listed is None:
            return logits
        logits = ops.minimum(logits, ops.expand_dims(self.limits, 1))
        return logits if uses_list else in_vocabulary(logits, self.inputs.listed)

    def token_ids_at(self, places, uses_list):
        """The tokens at places of the last axis of `allowed` logits."""
        return ops.take(self.inputs.listed.token_ids, places) if uses_list else places

    def processed(self, log_probs, sequences, index):
        """Log-probabilities (B, K, V) after all processors of the options, with the pad made impossible."""
        processed = process(
            self.options,
            log_probs,
            self.answer_start.history(sequences, index),
            index,
            self.end_token_ids,
            self.inputs.unwritable_token_ids,
            self.limit,
        )
        return without_tokens(processed, self._but_end((self.pad_token_id,)))

    def never(self):
        """The tokens that no search chooses: a tuple of integers."""
        return self._but_end((self.pad_token_id, *self.inputs.unwritable_token_ids))

    def _but_end(self, token_ids):
        """`token_ids` without END, which is the pad too in some models."""
        return tuple(token_id for token_id in token_ids if token_id != self.inputs.end_token_id)

    def _of_rows(self):
        """All tensors of this object that have a value for each row."""
        return {
            "options": self.options.given(),
            "prompt": () if self.answer_start.prompt is None else self.answer_start.prompt,
            "length_penalty": self.length_penalty if is_of_rows(self.length_penalty) else (),
            "limits": self.limits,
        }

    def _for_rows(self, of_rows):
        """The same search for other rows."""
        search = copy.copy(self)
        search.limits = of_rows["limits"]
        search.options = dataclasses.replace(self.options, **of_rows["options"])
        if self.answer_start.prompt is not None:
            search.answer_start = self.answer_start.for_prompt(of_rows["prompt"])
        if is_of_rows(self.length_penalty):
            search.length_penalty = of_rows["length_penalty"]
        return search


def is_of_rows(value):
    """Whether a number or a tensor has a value for each row."""
    return not isinstance(value, (int, float)) and len(value.shape) > 0


def column(value):
    """A number and a scalar unchanged, a tensor (B,) as (B, 1)."""
    return ops.expand_dims(value, -1) if is_of_rows(value) else value


def check_num_hypotheses(name, value):
    """`value` as an `int`.

    Raises:
        ValueError: if it is not a positive integer, or is greater than `MAX_HYPOTHESES`.
    """
    value = check_positive(name, value)
    if value > MAX_HYPOTHESES:
        raise ValueError(
            f"`{name}` must be at most {MAX_HYPOTHESES} (keras_attn.generation.MAX_HYPOTHESES): every step makes a row of "
            f"logits for each. Received: {name}={value}."
        )
    return value
