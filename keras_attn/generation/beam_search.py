"""Beam search. A step masks the slots, calls the model, chooses candidates, finishes those that end, and keeps the rest live."""

import collections

import keras
from keras import ops

from keras_attn.generation.decoding_loop import decode
from keras_attn.generation.processors import IMPOSSIBLE, is_possible
from keras_attn.generation.search import Hypotheses, Search, column
from keras_attn.ops import entries_at, log_normalizer, top_k, top_k_and_normalizer

_Beams = collections.namedtuple("_Beams", ["token_ids", "log_probs", "sequences", "ancestors", "coverage"])
_Candidates = collections.namedtuple(
    "_Candidates", ["token_ids", "log_probs", "sequences", "parents", "coverage"]
)
_Finished = collections.namedtuple("_Finished", ["sequences", "scores"])
_State = collections.namedtuple("_State", ["beams", "finished", "done"])


def beam_search(inputs, num_beams=1, length_penalty=1.0, options=None):
    """Beam search in which a finished hypothesis keeps its score. With `num_beams=1` it finds what `greedy_search` finds, with its score.

    A hypothesis is finished when END is among the `num_beams` best continuations of its row; it leaves the beam with
    its score, log-probability / length ** length_penalty with END counted, and nothing changes that score
    afterwards. A row is done when it has `num_beams` finished hypotheses and none of its live ones scores better
    (at its current length, or, with `exact_stopping`, at any length that it can still reach; with `early_stopping`,
    whatever their scores); it then does not change, whatever the other rows do. At `max_length` the live hypotheses of rows that are not done
    count as finished, without END. Differs from KerasHub's `BeamSampler`, which goes on extending finished
    beams.

    No keys and values are moved when a beam continues another: a mask holds the slots of each beam's
    ancestors.

    Args:
        inputs: `SearchInputs`; its hypotheses are the beams.
        num_beams: Integer K, at most `MAX_HYPOTHESES`.
        length_penalty: Float, a scalar tensor, or floats (B,); 0 compares plain log-probabilities, 1 their mean per token.
        options: `DecodingOptions`; those of sampling are ignored.

    Returns:
        `Hypotheses`: token ids int32 (B, K, max_length) and scores float32 (B, K), best first.

    Raises:
        ValueError: if `num_beams` or `max_length` is not positive, or there are too many beams.

    Example:

    A "model" for which 4 is always most likely, then END (3), and which needs no cache:

    ```python
    from keras_attn.generation import SearchInputs
    from keras_attn.ops import empty_cache

    def step(token_ids, index, cache, attention_mask):
        likes = keras.ops.convert_to_tensor([0.0, 0.0, 0.0, 1.0, 2.0])
        return keras.ops.zeros((*token_ids.shape, 5)) + likes, cache

    inputs = SearchInputs(
        step,
        make_cache=lambda slots: (empty_cache(1, 1, slots, 1),),
        batch_size=1,
        max_length=8,
        start_token_id=2,
        end_token_id=3,
    )
    hypotheses = beam_search(inputs, num_beams=2)
    ```

    Reference: [Wu et al., 2016](https://arxiv.org/abs/1609.08144), section 7, with fairseq's length normalisation unless
    `options` set the paper's.
    """
    search = BeamSearch(inputs, num_beams, options, length_penalty)
    return search.answers(*decode(search))


class BeamSearch(Search):
    """Beam search as `beam_search` documents it. A step first chooses among twice as many candidates as there are beams."""

    @property
    def num_beams(self):
        return self.num_hypotheses

    def start_state(self):
        rows, beams = self.shape
        sequences = ops.full((rows, beams, self.max_length), self.pad_token_id, dtype="int32")
        # All beams start equal. Only the first may be continued, or the row would hold copies of one
        # hypothesis.
        first = ops.where(ops.arange(beams) == 0, 0.0, IMPOSSIBLE)
        # () instead of a tensor of size 0: XLA treats a tensor that a loop does not change as a constant, and then finds
        # no body for the loops after the first.
        coverage = ()
        if self.inputs.coverage is not None:
            coverage = ops.cast(self.inputs.coverage, "float32")
            coverage = ops.repeat(ops.expand_dims(coverage, 1), beams, axis=1)
        live = _Beams(
            token_ids=self.first_token_ids(),
            log_probs=ops.zeros((rows, beams), dtype="float32") + first,
            sequences=sequences,
            ancestors=ops.zeros((rows, beams, self.max_length), dtype="int32"),
            coverage=coverage,
        )
        finished = _Finished(sequences, scores=ops.full((rows, beams), IMPOSSIBLE, dtype="float32"))
        return _State(live, finished, done=ops.zeros((rows,), dtype="bool"))

    def is_done(self, state):
        return state.done

    def next_state(self, index, state, cache):
        beams, finished, done = state
        ancestors = self._put(beams.ancestors, index, ops.arange(self.num_beams, dtype="int32"))
        beams = beams._replace(ancestors=ancestors)
        mask = self._slot_mask(ancestors, index, cache)
        logits, cache, *attention_scores = self.step(beams.token_ids, index, cache, mask)
        if attention_scores:  # for the coverage penalty
            beams = beams._replace(coverage=beams.coverage + ops.cast(attention_scores[0], "float32"))
        log_probs, parents, token_ids = self._candidates(logits, beams, index)
        candidates = _Candidates(
            token_ids,
            log_probs,
            sequences=self._put(_gather(beams.sequences, parents), index, token_ids),
            parents=parents,
            coverage=_gather(beams.coverage, parents),
        )
        ends = self.are_ends(token_ids)
        finished = self._finish_ended(finished, candidates, ends, done, index)
        beams = self._live(beams, candidates, ends)
        done = self._is_done(beams, finished, done, index)
        if self.options.max_length is not None:
            ran_out = ops.logical_and(index + 1 >= self.options.max_length, ops.logical_not(done))
            finished = self._finish_live(finished, beams, ran_out, index + 1)
            done = ops.logical_or(done, ran_out)
        return _State(beams, finished, done), cache

    def answers(self, state, num_steps):
        """The finished hypotheses, and the live ones of rows that reached `max_length`."""
        beams, finished, done = state
        finished = self._finish_live(finished, beams, ops.logical_not(done), num_steps)
        possible = is_possible(finished.scores)
        return Hypotheses(
            ops.where(ops.expand_dims(possible, -1), finished.sequences, self.pad_token_id),
            ops.where(possible, finished.scores, -float("inf")),
        )

    def _candidates(self, logits, beams, index):
        """The best continuations of each row, best first: log-probability, parent beam and token, each (B, n).

        Twice as many as beams, so that enough are left when some of them end.
        """
        count = 1
        if self.num_beams > 1:
            count = self.num_beams * (1 + self.end_token_ids.shape[-1])
        is_listed = self.chooses_listed(count)
        logits = self.row_logits(logits, is_listed)
        per_beam = count if is_listed else min(count, logits.shape[-1])
        if self.options.changes_log_probs:
            log_probs = self.processed(logits - log_normalizer(logits), beams.sequences, index)
            best, columns = top_k(log_probs, per_beam)
            normalizer = 0.0
        else:
            writable, excluded = self.writable_logits(logits, is_listed)
            if writable is logits:
                best, columns, normalizer = top_k_and_normalizer(logits, per_beam, excluded)
            else:
                best, columns = top_k(writable, per_beam)
                normalizer = log_normalizer(logits)
        totals = ops.expand_dims(beams.log_probs, -1) + best - normalizer
        all_beams = (-1, self.num_beams * per_beam)
        totals, chosen = top_k(ops.reshape(totals, all_beams), min(count, all_beams[1]))
        totals = ops.where(is_possible(totals), totals, IMPOSSIBLE)
        columns = entries_at(ops.reshape(columns, all_beams), chosen)
        return totals, chosen // per_beam, self.token_ids_at(columns, is_listed)

    def _live(self, beams, candidates, ends):
        """The best candidates that do not end, as many as the row has beams."""
        log_probs, live = top_k(ops.where(ends, IMPOSSIBLE, candidates.log_probs), self.num_beams)
        parents = entries_at(candidates.parents, live)
        return _Beams(
            token_ids=entries_at(candidates.token_ids, live),
            log_probs=self._within_beams(log_probs),
            sequences=_gather(candidates.sequences, live),
            ancestors=_gather(beams.ancestors, parents),
            coverage=_gather(candidates.coverage, live),
        )

    def _finish_ended(self, finished, candidates, ends, done, index):
        """Candidates that end, and are among the `num_beams` best, join the finished hypotheses."""
        if candidates.log_probs.shape[1] != self.num_beams:
            ends = ends[:, : self.num_beams]
            candidates = keras.tree.map_structure(lambda x: x[:, : self.num_beams], candidates)
        joins = ops.logical_and(ends, ops.logical_not(ops.expand_dims(done, -1)))
        scores = self._score(candidates.log_probs, index + 1, candidates.coverage)
        return self._merge(
            finished, candidates.sequences, ops.where(joins, self._within_beams(scores), IMPOSSIBLE)
        )

    def _finish_live(self, finished, beams, rows, length):
        """The live hypotheses of some `rows` (B,) join the finished ones, without END."""
        scores = self._score(beams.log_probs, length, beams.coverage)
        return self._merge(
            finished, beams.sequences, ops.where(ops.expand_dims(rows, -1), scores, IMPOSSIBLE)
        )

    def _merge(self, finished, sequences, scores):
        scores, kept = top_k(ops.concatenate([finished.scores, scores], axis=1), self.num_beams)
        sequences = _gather(ops.concatenate([finished.sequences, sequences], axis=1), kept)
        return _Finished(sequences, self._within_beams(scores))

    def _is_done(self, beams, finished, done, index):
        best_live = beams.log_probs[:, :1]
        coverage = keras.tree.map_structure(lambda x: x[:, :1], beams.coverage)
        best_score = self._score(best_live, index + 1, coverage)
        if self.options.exact_stopping is not None:
            is_exact = ops.expand_dims(self.options.exact_stopping, -1)
            best_score = ops.where(is_exact, self._highest_score(best_live, index, coverage), best_score)
        worst_finished = self._worst(finished)
        is_full = is_possible(worst_finished)
        beaten = ops.logical_and(is_full, best_score <= worst_finished)
        if self.options.num_beams is not None:
            # A single beam ends with its first END, whatever the second best token would lead to.
            is_greedy = ops.expand_dims(self.options.num_beams == 1, -1)
            beaten = ops.logical_or(beaten, ops.logical_and(is_greedy, is_full))
        if self.options.early_stopping is not None:
            is_early = ops.expand_dims(self.options.early_stopping, -1)
            beaten = ops.logical_or(beaten, ops.logical_and(is_early, is_full))
        beaten = ops.logical_or(beaten, ops.logical_not(is_possible(best_live)))
        return ops.logical_or(done, ops.squeeze(beaten, -1))

    def _highest_score(self, best_live, index, coverage):
        """The highest score (B, 1) that the best live hypothesis can still reach.

        Its log-probability can only fall, its length can only grow, and all source tokens can still be covered.
        """
        longest = self.longest
        if self.options.max_length is not None:
            longest = ops.minimum(longest, ops.expand_dims(self.options.max_length, -1))
        covered = keras.tree.map_structure(ops.ones_like, coverage)
        return ops.maximum(
            self._score(best_live, longest, covered), self._score(best_live, index + 1, covered)
        )

    def _worst(self, finished):
        """The score (B, 1) of the last of as many finished hypotheses as a row has beams."""
        if self.options.num_beams is None:
            return finished.scores[:, -1:]
        last = ops.clip(self.options.num_beams, 1, self.num_beams) - 1
        return entries_at(finished.scores, ops.expand_dims(last, -1))

    def _within_beams(self, scores):
        """Scores (B, K), made impossible beyond the number of beams of each row."""
        if self.options.num_beams is None:
            return scores
        is_beam = ops.arange(self.num_beams) < ops.expand_dims(self.options.num_beams, -1)
        return ops.where(is_beam, scores, IMPOSSIBLE)

    def _score(self, log_probs, length, coverage):
        """The score of hypotheses (B, n) of a `length`, a scalar or (B, 1)."""
        length = ops.cast(length, "float32")
        score = log_probs / length ** column(self.length_penalty)
        if self.options.wu_length_penalty is not None:
            score = score / ((5 + length) / 6) ** column(self.options.wu_length_penalty)
        if self.options.coverage_penalty is not None:
            covered = ops.log(ops.clip(coverage, 1e-30, 1.0))
            score = score + column(self.options.coverage_penalty) * ops.sum(covered, axis=-1)
        # The score of a possible hypothesis, however low, is above that of an impossible one.
        return ops.where(is_possible(log_probs), ops.maximum(score, IMPOSSIBLE / 4), IMPOSSIBLE)

    def _slot_mask(self, ancestors, index, cache):
        """(B, K, slots): True at the slots that a beam's own history fills."""
        slots = self.num_slots(cache)
        num_steps = slots // self.num_beams
        written = ops.expand_dims(ops.arange(num_steps) <= index, -1)
        own = ops.expand_dims(ancestors[:, :, :num_steps], -1) == ops.arange(self.num_beams)
        return ops.reshape(ops.logical_and(own, written), (-1, self.num_beams, slots))

    def _put(self, sequences, index, values):
        """`sequences` (B, n, L) with `values` (B, n) or (n,) in column `index`."""
        return ops.where(ops.arange(self.max_length) == index, ops.expand_dims(values, -1), sequences)


def _gather(x, beams):
    """The entries `beams` (B, m) of axis 1 of `x` (B, n, ...). () stays ()."""
    if isinstance(x, tuple) or x.shape[1] == beams.shape[1] == 1:
        return x
    return entries_at(x, beams)
