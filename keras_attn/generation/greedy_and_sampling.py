"""Searches whose answers grow by one token per step, independently of each other: greedy search, and sampling."""

import collections

from keras import ops

from keras_attn.generation.decoding_loop import decode
from keras_attn.generation.processors import IMPOSSIBLE, is_possible, sharpen
from keras_attn.generation.search import Hypotheses, Search, column
from keras_attn.ops import hashed_uniform, log_normalizer, top_k

_State = collections.namedtuple("_State", ["token_ids", "carried", "sequences", "done"])


def greedy_search(inputs, options=None):
    """The most probable token at every step: the answer of `beam_search` with `num_beams=1`, without its score.

    It compares no hypotheses, so it needs no log-probabilities, and no hypothesis uses the slots of another.

    Args:
        inputs: `SearchInputs`.
        options: `DecodingOptions`; those of beams and of scores are ignored.

    Returns:
        int32 (B, max_length), END included, then pads.

    Raises:
        ValueError: if `max_length` is not positive.

    Example: `greedy_search(inputs)`, with the `inputs` of the example of `beam_search`.
    """
    search = GreedySearch(inputs, options=options)
    return search.answers(*decode(search)).token_ids[:, 0]


def sample(inputs, num_samples=1, length_penalty=1.0, options=None):
    """Answers drawn at random, each token from the model's distribution, sharpened by `options`.

    The same seed draws the same answers for a row, whatever the other rows are: each token is looked up in
    the cumulative distribution by one uniform number, a hash of the row's seed, the sample and the step.
    KerasHub's samplers draw from one generator for the whole batch. A temperature of 0 takes the best token.

    Args:
        inputs: `SearchInputs`.
        num_samples: Integer n, the number of answers for each row, at most `MAX_HYPOTHESES`.
        length_penalty: Float, or floats (B,), as in `beam_search`.
        options: `DecodingOptions`; those of beams are ignored.

    Returns:
        `Hypotheses` in the order in which they were drawn: token ids int32 (B, n, max_length) and scores float32
        (B, n), the model's own log-probability / length ** length_penalty, before any sharpening; -inf, with
        pads, where the options forbid every token.

    Raises:
        ValueError: if `num_samples` or `max_length` is not positive, or there are too many samples.

    Example: `sample(inputs, num_samples=3, options=DecodingOptions(temperature=0.7, top_p=0.9, seed=5))`,
    with the `inputs` of the example of `beam_search`.

    Reference: [Holtzman et al., 2020](https://arxiv.org/abs/1904.09751), section 3.
    """
    search = Sampling(inputs, num_samples, options, length_penalty)
    return search.answers(*decode(search))


class _IndependentAnswers(Search):
    """A subclass chooses the next token in `choose`, and carries a value from step to step."""

    def start_carried(self):
        """The first value that `choose` carries: a tensor, or () for nothing."""
        return ()

    def choose(self, logits, state, index):
        """The next tokens, int32 (B, n), for a step's logits (B, n, V), and the value to carry."""
        raise NotImplementedError

    def start_state(self):
        return _State(
            token_ids=self.first_token_ids(),
            carried=self.start_carried(),
            sequences=ops.full((*self.shape, self.max_length), self.pad_token_id, dtype="int32"),
            done=ops.zeros(self.shape, dtype="bool"),
        )

    def is_done(self, state):
        return ops.all(state.done, axis=1)

    def next_state(self, index, state, cache):
        token_ids = state.token_ids
        if self.pad_token_id < 0:  # a model without a pad, which cannot read one after an answer
            token_ids = ops.maximum(token_ids, 0)
        logits, cache, *_ = self.step(token_ids, index, cache, self._slot_mask(token_ids, index, cache))
        token_ids, carried = self.choose(logits, state, index)
        token_ids = ops.where(state.done, self.pad_token_id, token_ids)
        ends = self.are_ends(token_ids)
        if self.options.max_length is not None:
            ends = ops.logical_or(ends, ops.expand_dims(index + 1 >= self.options.max_length, -1))
        here = ops.arange(self.max_length) == index
        state = _State(
            token_ids=token_ids,
            carried=carried,
            sequences=ops.where(here, ops.expand_dims(token_ids, -1), state.sequences),
            done=ops.logical_or(state.done, ends),
        )
        return state, cache

    def _slot_mask(self, token_ids, index, cache):
        """(B, n, slots): True at the slots that an answer's own tokens fill."""
        num_answers = self.num_hypotheses
        num_slots = self.num_slots(cache)
        slot = ops.arange(num_slots, dtype="int32")
        own = slot % num_answers == ops.expand_dims(ops.arange(num_answers, dtype="int32"), -1)
        mask = ops.logical_and(own, slot // num_answers <= index)
        return ops.broadcast_to(mask, (*ops.shape(token_ids), num_slots))


class GreedySearch(_IndependentAnswers):
    """Greedy search, which a stream runs one step at a time.

    If options may forbid tokens, it carries a flag: True if no token was possible at some step.
    """

    def start_carried(self):
        return ops.zeros(self.shape, dtype="bool") if self.options.changes_log_probs else ()

    def choose(self, logits, state, index):
        is_listed = self.chooses_listed()
        logits = self.row_logits(logits, is_listed)
        if not self.options.changes_log_probs:
            logits, excluded = self.writable_logits(logits, is_listed)
            _, columns = top_k(logits, k=1, excluded=excluded)
            return self.token_ids_at(ops.squeeze(columns, -1), is_listed), ()
        log_probs = self.processed(logits - log_normalizer(logits), state.sequences, index)
        best, token_ids = top_k(log_probs, k=1)
        is_found = is_possible(ops.squeeze(best, -1))
        fails = ops.logical_not(ops.logical_or(is_found, state.done))
        token_ids = ops.where(fails, self.end_token_ids[:, :1], ops.squeeze(token_ids, -1))
        return token_ids, ops.logical_or(state.carried, fails)

    def answers(self, state, num_steps):
        """The tokens of the answers; there are no scores."""
        sequences = state.sequences
        if self.options.changes_log_probs:
            sequences = ops.where(ops.expand_dims(state.carried, -1), self.pad_token_id, sequences)
        return Hypotheses(sequences, None)


class Sampling(_IndependentAnswers):
    """Sampling, which carries the log-probabilities of the answers so far."""

    count_name = "num_samples"

    def start_carried(self):
        return ops.zeros(self.shape, dtype="float32")

    def choose(self, logits, state, index):
        logits = self.row_logits(logits, is_listed=False)
        log_probs = logits - log_normalizer(logits)
        allowed = sharpen(self.options, self.processed(log_probs, state.sequences, index))
        token_ids = _draw(allowed, self._uniform(index))
        chosen = ops.squeeze(ops.take_along_axis(log_probs, ops.expand_dims(token_ids, -1), axis=-1), -1)
        possible = is_possible(ops.max(allowed, axis=-1))
        token_ids = ops.where(possible, token_ids, self.end_token_ids[:, :1])
        chosen = ops.where(possible, chosen, IMPOSSIBLE)
        return token_ids, ops.where(state.done, state.carried, state.carried + chosen)

    def answers(self, state, num_steps):
        """The answers and their scores; there is no answer where the options forbid every token."""
        possible = is_possible(state.carried)
        lengths = ops.sum(ops.cast(state.sequences != self.pad_token_id, "float32"), axis=-1)
        scores = state.carried / ops.maximum(lengths, 1.0) ** column(self.length_penalty)
        return Hypotheses(
            ops.where(ops.expand_dims(possible, -1), state.sequences, self.pad_token_id),
            ops.where(possible, scores, -float("inf")),
        )

    def _uniform(self, index):
        seed = ops.zeros((1,), "int32") if self.options.seed is None else self.options.seed
        drawn = ops.expand_dims(ops.arange(self.num_hypotheses, dtype="int32"), 0)
        return hashed_uniform(ops.expand_dims(seed, -1), drawn, index)


def _draw(log_probs, uniform):
    """The tokens (B, n) at which the cumulative distribution of log-probabilities (B, n, V) passes numbers (B, n)."""
    weights = ops.exp(log_probs - ops.max(log_probs, axis=-1, keepdims=True))
    cumulative = ops.cumsum(weights, axis=-1)
    passed = cumulative <= ops.expand_dims(uniform, -1) * cumulative[..., -1:]
    return ops.sum(ops.cast(passed, "int32"), axis=-1)
