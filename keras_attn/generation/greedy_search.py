from keras import ops

from keras_attn.generation.options import DecodingOptions
from keras_attn.generation.processors import is_possible, without_token
from keras_attn.generation.walk import Walk
from keras_attn.ops import top_k


def greedy_search(
    step,
    make_cache,
    batch_size,
    max_length,
    start_token_id,
    end_token_id,
    pad_token_id=0,
    options=None,
    prompt=None,
    row_context=None,
    compiler=None,
):
    """The most probable token at every step: the answer of `beam_search` with `num_beams=1`, without its score.

    With nothing to compare, logits need not become log-probabilities, and nothing changes places.

    Args:
        step, make_cache, batch_size, max_length, start_token_id, end_token_id, pad_token_id, options, prompt,
        row_context, compiler: As in `beam_search`; options of beams and of scores alone have no meaning here.

    Returns:
        int32 (B, max_length), END included, then pads.

    Raises:
        ValueError: if `max_length` is not positive.

    Example:

    ```python
    from keras_attn.ops import empty_cache

    def step(token_ids, index, cache, attention_mask):
        likes = keras.ops.convert_to_tensor([0.0, 0.0, 0.0, 1.0, 2.0])
        return keras.ops.zeros((*token_ids.shape, 5)) + likes, cache

    token_ids = greedy_search(
        step,
        make_cache=lambda slots: (empty_cache(1, 1, slots, 1),),
        batch_size=1,
        max_length=8,
        start_token_id=2,
        end_token_id=3,
    )
    ```
    """
    options = (DecodingOptions() if options is None else options).for_rows(batch_size)
    search = _Greedy(
        step,
        (batch_size, 1),
        max_length,
        start_token_id,
        end_token_id,
        pad_token_id,
        options,
        prompt,
        row_context=row_context,
        compiler=compiler,
    )
    sequences, has_failed = search.walk(make_cache)
    if options.changes_log_probs:
        sequences = ops.where(ops.expand_dims(has_failed, -1), pad_token_id, sequences)
    return sequences[:, 0]


class _Greedy(Walk):
    """What it carries is which rows came to where no token was possible, if some may be forbidden."""

    def start_carried(self):
        return ops.zeros(self.shape, dtype="bool") if self.options.changes_log_probs else ()

    def choose(self, logits, state, index):
        if self.options.changes_log_probs:
            _, logits = self.processed(logits, state, index)
        best, token_ids = top_k(without_token(logits, self.pad_token_id), k=1)
        best, token_ids = ops.squeeze(best, -1), ops.squeeze(token_ids, -1)
        if not self.options.changes_log_probs:
            return token_ids, ()
        fails = ops.logical_not(ops.logical_or(is_possible(best), state.done))
        return ops.where(fails, self.end_token_ids[:, :1], token_ids), ops.logical_or(state.carried, fails)
