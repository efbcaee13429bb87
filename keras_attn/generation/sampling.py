from keras import ops

from keras_attn.generation.beam_search import Hypotheses
from keras_attn.generation.independent_answers import IndependentAnswers
from keras_attn.generation.processors import IMPOSSIBLE, is_possible, sharpen
from keras_attn.generation.search import column
from keras_attn.ops import hashed_uniform, log_normalizer


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
    sequences, log_probs = _Samples(inputs, num_samples, options).sequences_and_carried()
    pad_token_id = inputs.pad_token_id
    lengths = ops.sum(ops.cast(sequences != pad_token_id, "float32"), axis=-1)
    # There is no answer where the options forbid every token.
    possible = is_possible(log_probs)
    scores = log_probs / ops.maximum(lengths, 1.0) ** column(length_penalty)
    return Hypotheses(
        ops.where(ops.expand_dims(possible, -1), sequences, pad_token_id),
        ops.where(possible, scores, -float("inf")),
    )


class _Samples(IndependentAnswers):
    """Sampling as a strategy. It carries the log-probabilities of the answers so far."""

    count_name = "num_samples"

    def start_carried(self):
        return ops.zeros(self.shape, dtype="float32")

    def choose(self, logits, state, index):
        logits = self.allowed(logits, uses_list=False)
        log_probs = logits - log_normalizer(logits)
        allowed = sharpen(self.options, self.processed(log_probs, state.sequences, index))
        token_ids = _draw(allowed, self._uniform(index))
        chosen = ops.squeeze(ops.take_along_axis(log_probs, ops.expand_dims(token_ids, -1), axis=-1), -1)
        possible = is_possible(ops.max(allowed, axis=-1))
        token_ids = ops.where(possible, token_ids, self.end_token_ids[:, :1])
        chosen = ops.where(possible, chosen, IMPOSSIBLE)
        return token_ids, ops.where(state.done, state.carried, state.carried + chosen)

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
