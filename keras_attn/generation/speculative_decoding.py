import numpy as np
from keras import ops

from keras_attn.checks import check_positive


def speculative_decode(inputs, draft_inputs, num_draft_tokens=4, seed=None):
    """One answer of a model. A smaller model drafts several tokens, which the model checks in one call.

    The answer is that of the model, whatever the draft is. Without a seed, it is the answer of greedy search.
    With a seed, it is a draw from the model's distribution: a drafted token is kept with probability
    min(1, p / q) and otherwise replaced by one drawn from the positive part of p - q. A good draft saves
    calls of the model. Several tokens at once and one at a time may round differently: in bfloat16, two
    almost equally probable tokens can swap ranks.

    Args:
        inputs, draft_inputs: `SearchInputs` of the model and of the draft, with a `read`, for one row; the models'
            `search_inputs` makes them. Both must have the same vocabulary. `read` must not look at later
            positions of the cache, which hold drafted tokens that were not kept.
        num_draft_tokens: Integer, the number of tokens that are drafted before each check.
        seed: Integer, or None for greedy search.

    Returns:
        A list of at most `inputs.max_length` integers, END included, and the number of calls of the model.

    Raises:
        ValueError: if `max_length` or `num_draft_tokens` is not positive.

    Example:

    ```python
    from keras_attn.models import Seq2SeqTransformer

    model = Seq2SeqTransformer.from_sizes(11, 2, 2, hidden_dim=12, num_heads=2, intermediate_dim=16)
    draft = Seq2SeqTransformer.from_sizes(11, 1, 1, hidden_dim=6, num_heads=1, intermediate_dim=8)
    source = np.array([[5, 6, 7, 3]])
    options = {"start_token_id": 2, "end_token_id": 3, "max_length": 8}
    inputs = model.search_inputs(source, **options)
    token_ids, num_calls = speculative_decode(inputs, draft.search_inputs(source, **options))
    ```

    Reference: [Leviathan et al., 2023](https://arxiv.org/abs/2211.17192), algorithm 1.
    """
    max_length = check_positive("max_length", inputs.max_length)
    num_draft_tokens = check_positive("num_draft_tokens", num_draft_tokens)
    rng = None if seed is None else np.random.default_rng(seed)
    model = _Reader(inputs, max_length, rng)
    draft = _Reader(draft_inputs, max_length, rng)
    tokens = [_first_token(inputs)]
    num_drafted = 0  # the tokens that the draft has read
    num_calls = 0
    while len(tokens) <= max_length and tokens[-1] != inputs.end_token_id:
        drafted = []
        guesses = []
        while len(drafted) < min(num_draft_tokens, max_length - len(tokens)):
            unread = (tokens + drafted)[num_drafted:]
            guesses.append(draft.probabilities_after(unread, num_drafted)[-1])
            num_drafted += len(unread)
            drafted.append(_pick(guesses[-1], rng))
        probabilities = model.probabilities_after(tokens[-1:] + drafted, len(tokens) - 1)
        num_calls += 1
        chosen = _keep(drafted, guesses, probabilities, rng)
        # The draft's cache stays valid for the tokens it read before, and for those that were kept.
        num_drafted = min(num_drafted, len(tokens) + len(chosen) - 1)
        if inputs.end_token_id in chosen:
            chosen = chosen[: chosen.index(inputs.end_token_id) + 1]
        tokens += chosen
    return tokens[1:], num_calls


class _Reader:
    """A model that reads tokens one after another, and its cache."""

    def __init__(self, inputs, max_length, rng):
        self.inputs = inputs
        self.cache = inputs.make_cache(max_length)
        self.row_context = () if inputs.row_context is None else (inputs.row_context,)
        never = (inputs.pad_token_id, *inputs.unwritable_token_ids)
        self.never = [token for token in never if token != inputs.end_token_id]
        self.rng = rng

    def probabilities_after(self, token_ids, index):
        """float64 (T, V) after each token from position `index` on; without a seed, 1 at the best token."""
        row = ops.convert_to_tensor([token_ids], dtype="int32")
        logits, self.cache = self.inputs.read(row, index, self.cache, *self.row_context)
        logits = np.array(ops.convert_to_numpy(logits)[0], "float64")
        logits[:, [token for token in self.never if 0 <= token < logits.shape[-1]]] = -np.inf
        if self.rng is None:
            return np.eye(logits.shape[-1])[logits.argmax(-1)]
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        return weights / weights.sum(-1, keepdims=True)


def _first_token(inputs):
    """START, or the last token of a prompt."""
    if inputs.prompt is None:
        return inputs.start_token_id
    return int(ops.convert_to_numpy(inputs.prompt.token_ids)[0, -1])


def _keep(drafted, guesses, probabilities, rng):
    """The drafted tokens that are kept, and one more."""
    chosen = []
    for token, q, p in zip(drafted, guesses, probabilities):
        uniform = 1.0 if rng is None else rng.random()
        is_kept = uniform * q[token] <= p[token]
        chosen.append(token if is_kept else _pick(np.maximum(p - q, 0), rng))
        if not is_kept:
            return chosen
    chosen.append(_pick(probabilities[-1], rng))
    return chosen


def _pick(weights, rng):
    if rng is None:
        return int(weights.argmax())
    return int(rng.choice(len(weights), p=weights / weights.sum()))
