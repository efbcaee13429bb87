"""What a head does: scores from 0 to 1 of the kinds of heads that the literature names."""

import numpy as np

_CLEAR = 0.5
_MOSTLY = 0.8
_LOCAL = 2  # tokens at most so far away are local
_NEAR = 0.1  # places of two texts that differ by at most so much of their lengths are the same


def head_kinds(scores, is_self, token_ids=None, special_keys=None, tokens=None):
    """How much each head is of a kind: the mean, over the queries that can, of the attention that goes where the kind says.

    - `first`: to the first token;
    - `previous`, `next`, `own`: to the token before, after, or to the token itself (self-attention);
    - `local`: to tokens at most two away, on either side (self-attention);
    - `diagonal`: to keys at the query's place in the text, give or take a tenth of its length (cross-attention);
    - `special`: to the special tokens (START, END, [SEP]);
    - `induction`: to the token after an earlier occurrence of the same token (Olsson et al., 2022);
    - `broad`: the entropy of a row relative to that of an even one over the keys with attention.

    Queries without a choice count for no kind: rows of zeros (pads), and the first row under a causal mask. Pads, before or
    after the tokens, are no keys of a kind.

    Args:
        scores: Array (B, N, T, S).
        is_self: Boolean, whether queries and keys are the same tokens.
        token_ids: Integers (B, T), for `induction` in self-attention.
        special_keys: Booleans (B, S), for `special`.
        tokens: Pair of booleans (B, T) and (B, S), True at queries and keys that are tokens; by default `real_tokens`.

    Returns:
        Dict from kinds to float32 (N,); NaN where no row can tell.

    References: [Clark et al., 2019](https://arxiv.org/abs/1906.04341), section 3;
    [Voita et al., 2019](https://arxiv.org/abs/1905.09418), section 5;
    [Olsson et al., 2022](https://arxiv.org/abs/2209.11895).
    """
    scores = np.asarray(scores).astype("float32", copy=False)
    num_queries, num_keys = scores.shape[-2:]
    if tokens is None:
        tokens = real_tokens(scores, is_self)
    is_query, is_key = tokens
    chooses = _chooses(scores, is_self, is_key)
    kinds = {}

    def add(kind, keys, asked=True):
        keys = keys & is_key[:, None]
        # Without such a key a query has nothing to say.
        asked = chooses & keys.any(axis=-1) & asked
        kinds[kind] = _mean_where((scores * np.expand_dims(keys, -3)).sum(axis=-1), asked)

    first = is_key.argmax(axis=1)[:, None]
    is_first = np.arange(num_keys) == first
    is_first = np.broadcast_to(is_first[:, None], (len(scores), num_queries, num_keys))
    if is_self:
        add("first", is_first, np.arange(num_queries) > first)  # the first token itself has no choice
        distance = np.arange(num_queries)[:, None] - np.arange(num_keys)
        add("previous", distance == 1)
        if not _is_causal(scores):
            add("next", distance == -1)
        add("own", distance == 0)
        add("local", np.abs(distance) <= _LOCAL)
    else:
        add("first", is_first)
        away = np.abs(_places(is_query)[:, :, None] - _places(is_key)[:, None])
        a_key = 1 / np.maximum(is_key.sum(axis=1), 1)
        add("diagonal", away <= np.maximum(_NEAR, a_key)[:, None, None])
    if special_keys is not None:
        add("special", np.broadcast_to(special_keys[:, None], (len(scores), num_queries, num_keys)))
    if is_self and token_ids is not None:
        add("induction", _after_equal_tokens(np.asarray(token_ids), is_key, special_keys))
    kinds["broad"] = _mean_where(_evenness(scores), chooses)
    return kinds


def name_of_kind(kinds):
    """The kind of a head whose scores are `kinds`: the clearest one, or else "local", "broad" or "mixed"."""
    clear = {kind: score for kind, score in kinds.items() if kind not in ("local", "broad")}
    best = max(clear, key=clear.get, default=None)
    # The first token is often a special one: the narrower name says more.
    if best == "special" and clear.get("first", 0) > 0.9 * clear[best]:
        best = "first"
    if best and clear[best] >= _CLEAR:
        return best
    for kind in ("local", "broad"):
        if kinds.get(kind, 0) >= _MOSTLY:
            return kind
    return "mixed"


def real_tokens(scores, is_self):
    """Which queries and keys are tokens: a pad attends to nothing, and nothing attends to it.

    A sharp head may round all scores of a key to 0, so the heads of a layer tell more together.

    Args:
        scores: Array (B, N, T, S).
        is_self: Boolean, whether queries and keys are the same tokens.

    Returns:
        Booleans (B, T) and (B, S).
    """
    has_attention = scores > 0
    attends = has_attention.any(axis=(1, 3))
    attended = has_attention.any(axis=(1, 2))
    if is_self:
        is_token = attends | attended
        return is_token, is_token
    # Pads stand before or after the tokens; a key between tokens is one too.
    after_first = np.logical_or.accumulate(attended, axis=1)
    before_last = np.logical_or.accumulate(attended[:, ::-1], axis=1)[:, ::-1]
    return attends, after_first & before_last


def _chooses(scores, is_self, is_key):
    """Booleans (B, T): whether the query attends to anything, and has more than one key to choose from."""
    attends = (scores > 0).any(axis=(1, 3))
    # A sharp head may round all scores of a row but one to 0: what a query could see is told by the whole map.
    visible = np.broadcast_to(is_key[:, None], (len(scores), *scores.shape[-2:]))
    if is_self and _is_causal(scores):
        visible = np.tril(visible)
    return attends & (visible.sum(axis=-1) > 1)


def _is_causal(scores):
    return not np.triu(scores, 1).any()


def _mean_where(shares, asked):
    """The mean of (B, N, T) by head, over the queries that are `asked`: (T,) or (B, T)."""
    asked = np.broadcast_to(np.expand_dims(asked, -2), shares.shape)
    counts = asked.sum(axis=(0, 2))
    sums = np.where(asked, shares, 0).sum(axis=(0, 2), dtype="float64")
    return np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0).astype("float32")


def _places(is_token):
    """The places of tokens in their texts, from 0 to 1: (B, T) from booleans."""
    counts = is_token.sum(axis=1, keepdims=True)
    return (is_token.cumsum(axis=1) - 0.5) / np.maximum(counts, 1)


def _after_equal_tokens(token_ids, is_token, special):
    """Booleans (B, T, T): whether the key follows an earlier occurrence of the query's token; special tokens are not asked."""
    earlier = np.tri(token_ids.shape[1], k=-1, dtype=bool)
    equal = (token_ids[:, :, None] == token_ids[:, None]) & earlier & is_token[:, None]
    if special is not None:
        equal &= ~special[:, :, None]
    after = np.zeros_like(equal)
    # The token after the one just before is the query itself, which says nothing.
    after[:, :, 1:] = equal[:, :, :-1] & earlier[:, 1:]
    return after


def _evenness(scores):
    """The entropy of each row, (B, N, T), relative to that of an even row over the keys that have attention."""
    counts = (scores > 0).sum(axis=-1)
    entropy = -(scores * np.log(np.where(scores > 0, scores, 1))).sum(axis=-1)
    return np.where(counts > 1, entropy / np.log(np.maximum(counts, 2)), 0)
