import collections

from keras import ops

from keras_attn.generation.beam_search import Hypotheses
from keras_attn.generation.decode import cache_length, decode
from keras_attn.generation.options import DecodingOptions
from keras_attn.generation.processors import IMPOSSIBLE
from keras_attn.generation.prompt import Place
from keras_attn.ops import hashed_uniform

_State = collections.namedtuple("_State", ["token_ids", "log_probs", "lengths", "sequences", "done"])


def sample(
    step,
    make_cache,
    batch_size,
    max_length,
    start_token_id,
    end_token_id,
    num_samples=1,
    length_penalty=1.0,
    pad_token_id=0,
    options=None,
    prompt=None,
):
    """Answers drawn at random, each token from the model's distribution as `options` sharpen it.

    The same seed draws the same answers for a row whatever its batch-mates: each token takes one uniform number,
    a hash of the row's seed, the sample and the step, and goes with it into the cumulative distribution. KerasHub's
    samplers draw from one generator for the whole batch. A temperature of 0 takes the best token.

    Args:
        step, make_cache, batch_size, max_length, start_token_id, end_token_id, length_penalty, pad_token_id,
        prompt: As in `beam_search`, the samples of a row being its beams.
        num_samples: Integer n, the answers to each row.
        options: `DecodingOptions`; those of beams alone have no meaning here.

    Returns:
        `Hypotheses` in the order in which they were drawn: token ids int32 (B, n, max_length) and scores float32
        (B, n), the model's own log-probability / length ** length_penalty, before any sharpening.

    Raises:
        ValueError: if `num_samples` or `max_length` is not positive.

    Example:

    ```python
    from keras_attn.ops import empty_cache

    def step(token_ids, index, cache, attention_mask):
        likes = keras.ops.convert_to_tensor([0.0, 0.0, 0.0, 1.0, 2.0])
        return keras.ops.zeros((*token_ids.shape, 5)) + likes, cache

    hypotheses = sample(
        step,
        make_cache=lambda slots: (empty_cache(1, 1, slots, 1),),
        batch_size=1,
        max_length=8,
        start_token_id=2,
        end_token_id=3,
        num_samples=3,
        options=DecodingOptions(temperature=0.7, top_p=0.9, seed=5),
    )
    ```

    Reference: [Holtzman et al., 2020](https://arxiv.org/abs/1904.09751), section 3.
    """
    for name, value in (("num_samples", num_samples), ("max_length", max_length)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"`{name}` must be a positive integer. Received: {name}={value}.")
    options = (DecodingOptions() if options is None else options).for_rows(batch_size)
    place = Place(prompt, start_token_id, (batch_size, num_samples))
    draws = _Sampling(step, max_length, end_token_id, pad_token_id, options, place)
    state, _ = decode(
        draws.advance,
        lambda state: ops.all(state.done),
        draws.start(),
        make_cache(cache_length(max_length) * num_samples),
        max_length,
        slots_per_step=num_samples,
        first_slot=place.first_slot,
    )
    lengths = ops.cast(state.lengths, "float32")
    penalty = (
        length_penalty if isinstance(length_penalty, (int, float)) else ops.expand_dims(length_penalty, -1)
    )
    return Hypotheses(state.sequences, state.log_probs / lengths**penalty)


class _Sampling:
    def __init__(self, step, max_length, end_token_id, pad_token_id, options, place):
        self.step = step
        self.place = place
        self.shape = place.shape
        self.max_length = max_length
        self.end_token_ids = options.end_token_ids(end_token_id)
        self.pad_token_id = pad_token_id
        self.options = options

    def start(self):
        return _State(
            token_ids=self.place.first_token_ids,
            log_probs=ops.zeros(self.shape, dtype="float32"),
            lengths=ops.zeros(self.shape, dtype="int32"),
            sequences=ops.full((*self.shape, self.max_length), self.pad_token_id, dtype="int32"),
            done=ops.zeros(self.shape, dtype="bool"),
        )

    def advance(self, index, state, cache):
        logits, cache, *_ = self.step(state.token_ids, index, cache, self._slot_mask(index, cache))
        logits = ops.cast(logits, "float32")
        log_probs = logits - ops.logsumexp(logits, axis=-1, keepdims=True)
        history = self.place.history(state.sequences, index)
        is_pad = ops.arange(logits.shape[-1], dtype="int32") == self.pad_token_id
        allowed = ops.where(
            is_pad, IMPOSSIBLE, self.options.process(log_probs, history, index, self.end_token_ids)
        )
        token_ids = _draw(self.options.sharpen(allowed), self._uniform(index))
        chosen = ops.squeeze(ops.take_along_axis(log_probs, ops.expand_dims(token_ids, -1), axis=-1), -1)
        token_ids = ops.where(state.done, self.pad_token_id, token_ids)
        here = ops.arange(self.max_length) == index
        ends = self.options.are_ends(token_ids, self.end_token_ids)
        if self.options.max_length is not None:
            ends = ops.logical_or(ends, ops.expand_dims(index + 1 >= self.options.max_length, -1))
        state = _State(
            token_ids=token_ids,
            log_probs=ops.where(state.done, state.log_probs, state.log_probs + chosen),
            lengths=state.lengths + ops.cast(ops.logical_not(state.done), "int32"),
            sequences=ops.where(here, ops.expand_dims(token_ids, -1), state.sequences),
            done=ops.logical_or(state.done, ends),
        )
        return state, cache

    def _uniform(self, index):
        seed = ops.zeros((1,), "int32") if self.options.seed is None else self.options.seed
        drawn = ops.expand_dims(ops.arange(self.shape[1], dtype="int32"), 0)
        return hashed_uniform(ops.expand_dims(seed, -1), drawn, index)

    def _slot_mask(self, index, cache):
        """(B, n, slots): True at the slots that a sample's own tokens fill."""
        num_samples = self.shape[1]
        num_slots = self.place.num_slots(cache)
        slot = ops.arange(num_slots, dtype="int32")
        own = slot % num_samples == ops.expand_dims(ops.arange(num_samples, dtype="int32"), -1)
        mask = ops.logical_and(own, slot // num_samples <= index)
        return ops.broadcast_to(mask, (*self.shape, num_slots))


def _draw(log_probs, uniform):
    """The tokens (B, n) at which the cumulative distribution of log-probabilities (B, n, V) passes numbers (B, n)."""
    weights = ops.exp(log_probs - ops.max(log_probs, axis=-1, keepdims=True))
    cumulative = ops.cumsum(weights, axis=-1)
    passed = cumulative <= ops.expand_dims(uniform, -1) * cumulative[..., -1:]
    return ops.sum(ops.cast(passed, "int32"), axis=-1)
