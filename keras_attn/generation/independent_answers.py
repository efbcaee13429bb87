import collections

from keras import ops

from keras_attn.generation.search import Search

_State = collections.namedtuple("_State", ["token_ids", "carried", "sequences", "done"])


class IndependentAnswers(Search):
    """Answers that grow by one token per step, independently of each other: samples, and greedy search.

    A subclass chooses the next token in `choose`.

    Args:
        As in `Search`.

    Raises:
        ValueError: if `max_length` is not positive.
    """

    def sequences_and_carried(self):
        """The tokens, int32 (B, n, max_length), END included, then pads; and what `choose` carried."""
        state, _ = self.run()
        return state.sequences, state.carried

    def start_carried(self):
        """The first value that `choose` carries from step to step: a tensor, or () for nothing."""
        return ()

    def choose(self, logits, state, index):
        """The next tokens, int32 (B, n), for a step's logits (B, n, V), and the value to carry."""
        raise NotImplementedError

    def start_state(self):
        return _State(
            token_ids=self.answer_start.first_token_ids,
            carried=self.start_carried(),
            sequences=ops.full((*self.shape, self.max_length), self.pad_token_id, dtype="int32"),
            done=ops.zeros(self.shape, dtype="bool"),
        )

    def is_done(self, state):
        return ops.all(state.done, axis=1)

    def next_state(self, index, state, cache, step):
        token_ids = state.token_ids
        if self.pad_token_id < 0:  # a model without a pad, which cannot read one after an answer
            token_ids = ops.maximum(token_ids, 0)
        logits, cache, *_ = step(token_ids, index, cache, self._slot_mask(token_ids, index, cache))
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
        num_slots = self.answer_start.num_slots(cache)
        slot = ops.arange(num_slots, dtype="int32")
        own = slot % num_answers == ops.expand_dims(ops.arange(num_answers, dtype="int32"), -1)
        mask = ops.logical_and(own, slot // num_answers <= index)
        return ops.broadcast_to(mask, (*ops.shape(token_ids), num_slots))
