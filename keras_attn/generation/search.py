"""What all searches share: their inputs, and the rows of a batch that a step works on."""

import collections
import copy
import dataclasses
from collections.abc import Callable
from typing import Any

from keras import ops

from keras_attn.checks import check_positive
from keras_attn.generation.decoding_loop import cache_lengths, room_for
from keras_attn.generation.options import MAX_HYPOTHESES, DecodingOptions
from keras_attn.generation.processors import IMPOSSIBLE, History, process, without_tokens
from keras_attn.ops import clamping_scope

# With more unwritable tokens than this, one copy of the logits without them is faster than an operation for each.
_MANY_UNWRITABLE = 8

# A shortlist of a batch has at least this many tokens, so that a search finds as many candidates as it looks for.
FEWEST_LISTED = 256

ListedTokens = collections.namedtuple("ListedTokens", ["token_ids", "is_listed", "vocabulary_size"])
ListedTokens.__doc__ = """A shortlist: the tokens that the answers of a batch may have.

token_ids: int32 (U,), rising: those of all rows, and others if that makes fewer than `FEWEST_LISTED`.
is_listed: Boolean (B, U), True at the tokens of a row: what batch-mates may write changes nothing.
vocabulary_size: Integer V.
"""

Prompt = collections.namedtuple("Prompt", ["token_ids", "start"])
Prompt.__doc__ = """Tokens before an answer, padded on the left.

token_ids: int32 (B, P).
start: int32 (B,), the column of each row's first token.
"""

Hypotheses = collections.namedtuple("Hypotheses", ["token_ids", "scores"])
Hypotheses.__doc__ = """The answers of a search, best first.

token_ids: int32 (B, n, L): the tokens after START, END included, then pads.
scores: float32 (B, n): log-probability / length ** length_penalty; -inf where there is no n-th hypothesis.
"""


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
        compiler: Function that compiles a function of tensors, for TensorFlow graphs: it compiles the steps between two
            changes of the batch size, which then shrinks to a half and an eighth instead of to the number of live rows.
        read: Function (token_ids, index, cache) -> (logits, cache) for T tokens of one hypothesis, int32 (B, T), one
            after another from position `index` on, each of which sees those before; with `row_context` it takes that
            as a fourth argument. Only `speculative_decode` needs it.
        listed_tokens: `ListedTokens`, of which `step` then returns the logits (B, K, U); or None for all tokens. Probabilities
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
    listed_tokens: ListedTokens | None = None
    limit: Any = None


class Search:
    """Base of the searches, which `decode` runs step by step. It holds the data of the rows of a batch.

    A subclass has `start_state()`, `is_done(state)`, `next_state(index, state, cache)`, which calls `step` and chooses tokens,
    and `answers(state, num_steps)`.

    Args:
        inputs: `SearchInputs`.
        num_hypotheses: Integer K, the hypotheses of each row.
        options: `DecodingOptions`, or None.
        length_penalty: Float, a scalar tensor, or floats (B,).

    Raises:
        ValueError: if K or `max_length` is not positive, or K is greater than `MAX_HYPOTHESES`.
    """

    count_name = "num_beams"  # the name of K in messages

    def __init__(self, inputs, num_hypotheses=1, options=None, length_penalty=1.0):
        self.inputs = inputs
        self.num_hypotheses = check_num_hypotheses(self.count_name, num_hypotheses)
        self.max_length = check_positive("max_length", inputs.max_length)
        self.limit = inputs.limit
        self.compiler = inputs.compiler
        self.shape = (inputs.batch_size, self.num_hypotheses)
        self.pad_token_id = inputs.pad_token_id
        options = DecodingOptions() if options is None else options
        self.options = options.per_row(inputs.batch_size)
        self.length_penalty = length_penalty
        if not isinstance(length_penalty, (int, float)):
            self.length_penalty = ops.convert_to_tensor(length_penalty)
        self.prompt = inputs.prompt
        self.row_context = inputs.row_context
        # The largest logits of the tokens of a shortlist, made once for all steps: in each row (B, U), and of tokens that
        # may be written (U,).
        self.row_limits = ()
        self.writable_limits = None
        if inputs.listed_tokens is not None:
            self.row_limits = ops.where(inputs.listed_tokens.is_listed, float("inf"), IMPOSSIBLE)
            limits = ops.full((inputs.listed_tokens.vocabulary_size,), float("inf"))
            limits = without_tokens(limits, self.never_chosen())
            self.writable_limits = ops.take(limits, inputs.listed_tokens.token_ids)

    def begin(self):
        """State and cache before the first step, and the values of rows, see `for_rows`.

        The cache has room for the first of `cache_lengths`.
        """
        state = self.start_state()
        num_steps = room_for(self, cache_lengths(self.max_length)[0], state)
        cache = self.inputs.make_cache(num_steps * self.num_hypotheses)
        row_values = None if self.row_context is None else self._row_values()
        return state, cache, row_values

    def for_rows(self, row_values):
        """The same search for the rows that are left in the batch; itself, if no row can leave.

        Args:
            row_values: All tensors of a search that have a value for each row, as `begin` returns them; or None.
        """
        if row_values is None:
            return self
        search = copy.copy(self)
        search.options = dataclasses.replace(self.options, **row_values["options"])
        search.row_limits = row_values["row_limits"]
        search.row_context = row_values["row_context"]
        if self.prompt is not None:
            search.prompt = row_values["prompt"]
        if has_row_values(self.length_penalty):
            search.length_penalty = row_values["length_penalty"]
        return search

    def _row_values(self):
        row_values = {
            "options": self.options.given(),
            "row_limits": self.row_limits,
            "row_context": self.row_context,
            "prompt": (),
            "length_penalty": (),
        }
        if self.prompt is not None:
            row_values["prompt"] = self.prompt
        if has_row_values(self.length_penalty):
            row_values["length_penalty"] = self.length_penalty
        return row_values

    def step(self, token_ids, index, cache, attention_mask):
        """Calls the model: what the `step` of `SearchInputs` returns."""
        row_context = () if self.row_context is None else (self.row_context,)
        with clamping_scope():  # The ids are the search's own: the graph of a loop has no checks of them.
            return self.inputs.step(token_ids, index, cache, attention_mask, *row_context)

    # The start of answers: after a prompt, or after START.

    @property
    def first_slot(self):
        """The number of slots that the prompt has filled."""
        return 0 if self.prompt is None else ops.shape(self.prompt.token_ids)[1] - 1

    def first_token_ids(self):
        """The tokens (B, K) that the first step reads."""
        start = self.inputs.start_token_id
        if self.prompt is None and isinstance(start, int):
            return ops.full(self.shape, start, dtype="int32")
        start = start if self.prompt is None else self.prompt.token_ids[:, -1]
        return ops.repeat(ops.expand_dims(start, -1), self.num_hypotheses, axis=1)

    def num_slots(self, cache):
        """The number of slots of a cache that are for the answers."""
        return ops.shape(cache[0][0])[-2] - self.first_slot

    def _history(self, sequences, index):
        """`History` of the prompt and then the first `index` tokens of sequences (B, K, L)."""
        if self.prompt is None:
            return History(sequences, ops.zeros((1,), "int32"), index)
        prompt = ops.repeat(ops.expand_dims(self.prompt.token_ids, 1), self.num_hypotheses, axis=1)
        token_ids = ops.concatenate([prompt, sequences], axis=-1)
        return History(token_ids, self.prompt.start, self.first_slot + 1 + index)

    # The end of answers.

    @property
    def longest(self):
        """The most tokens of an answer, an integer or an int32 scalar."""
        return self.max_length if self.limit is None else self.limit

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

    # The tokens that may be chosen.

    def never_chosen(self):
        """The tokens that no search chooses: a tuple of integers."""
        return self._without_end((self.pad_token_id, *self.inputs.unwritable_token_ids))

    def _without_end(self, token_ids):
        """`token_ids` without END, which is the pad too in some models."""
        return tuple(token_id for token_id in token_ids if token_id != self.inputs.end_token_id)

    def chooses_listed(self, count=1):
        """Whether the `count` best tokens of a step are looked for among those of a shortlist alone.

        Processors of options know all tokens.
        """
        listed_tokens = self.inputs.listed_tokens
        if listed_tokens is None or self.options.changes_log_probs or self.options.is_sampling:
            return False
        return count <= min(FEWEST_LISTED, listed_tokens.vocabulary_size)

    def row_logits(self, logits, is_listed):
        """The logits of a step, float32, with the tokens impossible that a row may not have.

        Args:
            logits: Floats (B, K, V), or (B, K, U) of a shortlist.
            is_listed: Boolean, whether logits of a shortlist stay (B, K, U).
        """
        logits = ops.cast(logits, "float32")
        if self.inputs.listed_tokens is None:
            return logits
        logits = ops.minimum(logits, ops.expand_dims(self.row_limits, 1))
        return logits if is_listed else _in_vocabulary(logits, self.inputs.listed_tokens)

    def writable_logits(self, logits, is_listed):
        """`row_logits` to find the best tokens in if no option changes them, and the tokens to exclude there.

        Together they keep out the pad and unwritable tokens. A pad in the middle of an answer would look like its end.
        """
        if is_listed:
            return ops.minimum(logits, self.writable_limits), ()
        never = self.never_chosen()
        if len(never) <= _MANY_UNWRITABLE:
            return logits, never
        return without_tokens(logits, never), ()

    def token_ids_at(self, columns, is_listed):
        """The tokens at columns of the last axis of `row_logits`."""
        return ops.take(self.inputs.listed_tokens.token_ids, columns) if is_listed else columns

    def processed(self, log_probs, sequences, index):
        """Log-probabilities (B, K, V) after all processors of the options, with the pad made impossible."""
        processed = process(
            self.options,
            log_probs,
            self._history(sequences, index),
            index,
            self.end_token_ids,
            self.inputs.unwritable_token_ids,
            self.longest,
        )
        return without_tokens(processed, self._without_end((self.pad_token_id,)))


def _in_vocabulary(logits, listed_tokens):
    """Logits (B, K, U) of listed tokens -> (B, K, V), in which the other tokens are impossible."""
    count = ops.shape(listed_tokens.token_ids)[0]
    columns = ops.scatter_update(
        ops.zeros((listed_tokens.vocabulary_size,), "int32") + count,
        ops.expand_dims(listed_tokens.token_ids, -1),
        ops.arange(count, dtype="int32"),
    )
    nothing = ops.full_like(logits[:, :, :1], IMPOSSIBLE)
    return ops.take(ops.concatenate([logits, nothing], axis=-1), columns, axis=-1)


def has_row_values(value):
    """Whether a number or a tensor has a value for each row."""
    return not isinstance(value, (int, float)) and len(value.shape) > 0


def column(value):
    """A number and a scalar unchanged, a tensor (B,) as (B, 1)."""
    return ops.expand_dims(value, -1) if has_row_values(value) else value


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
