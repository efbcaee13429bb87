import numpy as np
from keras import ops


def speculative_decode(
    step,
    cache,
    draft_step,
    draft_cache,
    max_length,
    start_token_id,
    end_token_id,
    num_draft_tokens=4,
    pad_token_id=0,
    seed=None,
):
    """One answer of a model, of which a smaller model drafts several tokens at a time, and the model checks them at once.

    The answer is the model's own whatever the draft is: without a seed, token for token that of greedy search; with one,
    a draw from the model's distribution, since a drafted token is kept with probability min(1, p / q) and otherwise
    replaced by one drawn from what p has more than q. A good draft saves calls of the model.

    Args:
        step, draft_step: Functions (token_ids, cache, index) -> (logits, cache): int32 (1, T) tokens, the first of which
            is at position `index`; float (1, T, V) logits of what follows each. What the cache holds at later positions,
            of drafted tokens that were not kept, is not to be looked at. `call_with_cache` of the models is such.
        cache, draft_cache: With room for `max_length` tokens.
        max_length: Integer, the most tokens of the answer, END included.
        start_token_id, end_token_id, pad_token_id: Integers; the pad is never chosen.
        num_draft_tokens: Integer, the tokens that are drafted before each check.
        seed: Integer, or None for greedy search.

    Returns:
        A list of at most `max_length` integers, END included, and the number of calls of `step`.

    Raises:
        ValueError: if `max_length` or `num_draft_tokens` is not positive.

    Example:

    ```python
    from keras_attn.models import Seq2SeqTransformer

    model = Seq2SeqTransformer.from_sizes(11, 2, 2, hidden_dim=12, num_heads=2, intermediate_dim=16)
    draft = Seq2SeqTransformer.from_sizes(11, 1, 1, hidden_dim=6, num_heads=1, intermediate_dim=8)
    source = np.array([[5, 6, 7, 3]])
    token_ids, num_calls = speculative_decode(
        model.call_with_cache,
        model.init_cache(source, length=8),
        draft.call_with_cache,
        draft.init_cache(source, length=8),
        max_length=8,
        start_token_id=2,
        end_token_id=3,
    )
    ```

    Reference: [Leviathan et al., 2023](https://arxiv.org/abs/2211.17192), algorithm 1.
    """
    for name, value in (("max_length", max_length), ("num_draft_tokens", num_draft_tokens)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"`{name}` must be a positive integer. Received: {name}={value}.")
    rng = None if seed is None else np.random.default_rng(seed)
    tokens, num_drafted, num_calls = [start_token_id], 0, 0
    while len(tokens) <= max_length and tokens[-1] != end_token_id:
        drafted, guesses = [], []
        while len(drafted) < min(num_draft_tokens, max_length - len(tokens)):
            unread = [*tokens, *drafted][num_drafted:]
            logits, draft_cache = draft_step(_row(unread), draft_cache, num_drafted)
            num_drafted += len(unread)
            guesses.append(_probabilities(logits, pad_token_id, rng)[-1])
            drafted.append(_pick(guesses[-1], rng))
        logits, cache = step(_row([tokens[-1], *drafted]), cache, len(tokens) - 1)
        num_calls += 1
        chosen = _checked(drafted, guesses, _probabilities(logits, pad_token_id, rng), rng)
        # Of the draft's cache that is good which was read before, and for what was kept.
        num_drafted = min(num_drafted, len(tokens) + len(chosen) - 1)
        tokens += chosen[: chosen.index(end_token_id) + 1] if end_token_id in chosen else chosen
    return tokens[1:], num_calls


def _checked(drafted, guesses, probabilities, rng):
    """The drafted tokens that are kept, and one more."""
    kept = []
    for token, q, p in zip(drafted, guesses, probabilities):
        if (1.0 if rng is None else rng.random()) * q[token] <= p[token]:
            kept.append(token)
        else:
            return [*kept, _pick(np.maximum(p - q, 0), rng)]
    return [*kept, _pick(probabilities[-1], rng)]


def _row(token_ids):
    return ops.convert_to_tensor([token_ids], dtype="int32")


def _probabilities(logits, pad_token_id, rng):
    """float64 (T, V): softmax without the pad, or all of it on the best token."""
    logits = np.array(ops.convert_to_numpy(logits)[0], "float64")
    if 0 <= pad_token_id < logits.shape[-1]:
        logits[:, pad_token_id] = -np.inf
    if rng is None:
        return np.eye(logits.shape[-1])[logits.argmax(-1)]
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def _pick(weights, rng):
    return int(weights.argmax() if rng is None else rng.choice(len(weights), p=weights / weights.sum()))
