"""What a head does: scores from 0 to 1 of the kinds of heads that the literature names."""

import numpy as np

_CLEAR = 0.5
_BROAD = 0.8
_NEAR = 0.1


def head_kinds(scores, query_tokens, key_tokens, special=()):
    """How much each of some heads is of a kind.

    A score is the mean, over the queries that can, of the attention that goes where the kind says:

    - `previous`, `next`: to the token before, or after;
    - `own`: to the token itself (self-attention only);
    - `diagonal`: to keys at the query's place in the text, give or take a tenth of its length (cross-attention only);
    - `first`: to the first key;
    - `special`: to the special tokens (START, END, [SEP]);
    - `induction`: to the token after an earlier occurrence of the same token (Olsson et al., 2022);
    - `broad`: the entropy of a row relative to that of an even one over the keys with attention.

    Under a causal mask the first query has no choice, and counts for no kind.

    Args:
        scores: Floats (N, T, S).
        query_tokens, key_tokens: Lists of T and S strings. Equal lists mean self-attention.
        special: Indices of keys that are special tokens.

    Returns:
        Dict from a kind to a list of N floats. Kinds that cannot be are left out: `induction` where no token occurs twice,
        `next` under a causal mask.

    References: [Clark et al., 2019](https://arxiv.org/abs/1906.04341), section 3;
    [Olsson et al., 2022](https://arxiv.org/abs/2209.11895).
    """
    scores = np.asarray(scores, "float32")
    _, length, width = scores.shape
    kinds = {}
    is_self = list(query_tokens) == list(key_tokens)
    start = int(is_self and length > 1 and not np.triu(scores, 1).any())
    if is_self:
        if length > 1:
            kinds["previous"] = _mean(scores[:, np.arange(1, length), np.arange(length - 1)])
            if not start:
                kinds["next"] = _mean(scores[:, np.arange(length - 1), np.arange(1, length)])
        kinds["own"] = _mean(scores[:, np.arange(start, length), np.arange(start, length)])
        if (after := _after_earlier(list(query_tokens), special)).any():
            rows = after.any(axis=1)
            kinds["induction"] = _mean((scores[:, rows] * after[rows]).sum(axis=-1))
    else:
        near = _places(length)[:, np.newaxis] - _places(width)
        kinds["diagonal"] = _mean((scores * (np.abs(near) <= max(_NEAR, 1 / width))).sum(axis=-1))
    if length > 1 and width > 1:
        kinds["first"] = _mean(scores[:, 1:, 0])
    if 0 < len(special) < width:
        kinds["special"] = _mean(scores[:, start:, list(special)].sum(axis=-1))
    if width > 1:
        kinds["broad"] = _mean(_evenness(scores[:, start:]))
    return {kind: [round(float(score), 4) for score in values] for kind, values in kinds.items()}


def name_of_kind(kinds):
    """The kind of a head whose scores are `kinds`: the clearest one, or "broad", or "mixed"."""
    clear = {kind: score for kind, score in kinds.items() if kind != "broad"}
    best = max(clear, key=clear.get, default=None)
    # The first token is often a special one: the narrower name says more.
    if best == "special" and clear.get("first", 0) > 0.9 * clear[best]:
        best = "first"
    if best and clear[best] >= _CLEAR:
        return best
    return "broad" if kinds.get("broad", 0) >= _BROAD else "mixed"


def _mean(values):
    return values.astype("float64").mean(axis=-1)


def _places(length):
    """The places of tokens in a text, from 0 to 1."""
    return (np.arange(length) + 0.5) / length


def _after_earlier(tokens, special):
    """Booleans (T, T): whether the key follows an earlier occurrence of the query's token, and is not later than the query."""
    length = len(tokens)
    after = np.zeros((length, length), bool)
    earlier = {}
    for query, token in enumerate(tokens):
        if query in special:
            continue
        after[query, earlier.get(token, [])] = True
        if query + 1 < length:
            earlier.setdefault(token, []).append(query + 1)
    # The token after the one just before is the query itself, which says nothing.
    np.fill_diagonal(after, False)
    return after


def _evenness(scores):
    """The entropy of each row, (N, T), relative to that of an even row over the keys that have attention."""
    counts = (scores > 0).sum(axis=-1)
    entropy = -(scores * np.log(np.where(scores > 0, scores, 1))).sum(axis=-1)
    return np.where(counts > 1, entropy / np.log(np.maximum(counts, 2)), 0)
