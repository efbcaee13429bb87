from keras import ops

from keras_attn.generation.independent_answers import IndependentAnswers
from keras_attn.generation.processors import is_possible
from keras_attn.ops import log_normalizer, top_k


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
    sequences, has_failed = search.sequences_and_carried()
    if search.options.changes_log_probs:
        sequences = ops.where(ops.expand_dims(has_failed, -1), inputs.pad_token_id, sequences)
    return sequences[:, 0]


class GreedySearch(IndependentAnswers):
    """Greedy search as a strategy, which a stream runs one step at a time.

    If options may forbid tokens, it carries a flag: True if no token was possible at some step.
    """

    def start_carried(self):
        return ops.zeros(self.shape, dtype="bool") if self.options.changes_log_probs else ()

    def choose(self, logits, state, index):
        uses_list = self.uses_list()
        logits, excluded = self.allowed(logits, uses_list), ()
        if self.options.changes_log_probs:
            log_probs = logits - log_normalizer(logits)
            logits = self.processed(log_probs, state.sequences, index)
        else:
            logits, excluded = self.searched(logits, uses_list)
        best, token_ids = top_k(logits, k=1, excluded=excluded)
        best, token_ids = ops.squeeze(best, -1), self.token_ids_at(ops.squeeze(token_ids, -1), uses_list)
        if not self.options.changes_log_probs:
            return token_ids, ()
        fails = ops.logical_not(ops.logical_or(is_possible(best), state.done))
        return ops.where(fails, self.end_token_ids[:, :1], token_ids), ops.logical_or(state.carried, fails)
