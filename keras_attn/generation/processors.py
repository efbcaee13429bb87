"""Pure functions that change log-probabilities before a token is chosen, with one parameter value per row.

Each takes and returns the log-probabilities, float32 (B, K, V), of the next token of K hypotheses in each
row. A neutral value does not change its row, to the bit, so that every row of a batch may have other values.
A token that may not be chosen gets `IMPOSSIBLE`; the others keep their log-probability, so that scores stay
those of the model.
"""

import collections

from keras import ops

from keras_attn.ops import log_normalizer

# The log-probability of a token that cannot be chosen; finite, so that sums of it stay comparable.
IMPOSSIBLE = -1e30

History = collections.namedtuple("History", ["token_ids", "start", "stop"])
History.__doc__ = """The tokens of hypotheses so far, in columns `start` up to `stop` of a tensor with room for more.

token_ids: int32 (B, K, L).
start: int32 (B,), the column of each row's first token; the columns before it are padding.
stop: int32 scalar, the column after the latest token.
"""


def is_possible(log_probs):
    """False where a log-probability, or a sum of them, belongs to something that cannot be chosen."""
    return log_probs > IMPOSSIBLE / 2


def process(options, log_probs, history, index, end_token_ids, unwritable_token_ids, max_length):
    """Log-probabilities (B, K, V) of the tokens at step `index`, after every processor that the options ask for.

    A prefix may hold tokens that are otherwise suppressed or unwritable.

    Args:
        options: `DecodingOptions`, with one value per row.
        log_probs: Float32 (B, K, V).
        history: `History`.
        index: Integer scalar.
        end_token_ids: int32 (B or 1, Q).
        unwritable_token_ids: Tuple of integers.
        max_length: Integer, or int32 scalar, that of the search.
    """
    processed = log_probs
    if options.repetition_penalty is not None:
        processed = penalize_repetition(processed, history, options.repetition_penalty)
    if options.no_repeat_ngram_size is not None:
        processed = forbid_repeated_ngrams(processed, history, options.no_repeat_ngram_size)
    processed = without_tokens(processed, unwritable_token_ids)
    if options.suppressed_token_ids is not None:
        processed = suppress_tokens(processed, options.suppressed_token_ids)
    # The tokens of an answer that come before its prefix: 0, or integers (B,).
    num_first = 0
    if options.first_token_id is not None:
        num_first = ops.cast(options.first_token_id >= 0, "int32")
    if options.suppressed_first_token_ids is not None:
        is_first = ops.reshape(index == num_first, (-1, 1))
        processed = suppress_tokens(processed, ops.where(is_first, options.suppressed_first_token_ids, -1))
    if options.min_length is not None:
        processed = require_min_length(processed, index + 1, options.min_length, end_token_ids)
    if options.prefix_token_ids is not None:
        processed = force_prefix(processed, log_probs, index - num_first, options.prefix_token_ids)
    if options.first_token_id is not None:
        processed = force_token(processed, index == 0, options.first_token_id)
    if options.last_token_id is not None:
        if options.max_length is not None:
            max_length = ops.minimum(options.max_length, max_length)
        processed = force_token(processed, index + 1 >= max_length, options.last_token_id)
    if options.renormalize is not None:
        processed = renormalize(processed, options.renormalize)
    return processed


def sharpen(options, log_probs):
    """Log-probabilities to draw from: unlikely tokens are impossible, the others are not normalised."""
    if options.temperature is not None:
        log_probs = divide_by_temperature(log_probs, options.temperature)
    if options.top_k is not None:
        log_probs = keep_top_k(log_probs, options.top_k)
    if options.top_p is not None:
        log_probs = keep_top_p(log_probs, options.top_p)
    if options.min_p is not None:
        log_probs = keep_min_p(log_probs, options.min_p)
    return log_probs


def without_tokens(log_probs, token_ids):
    """Makes the same tokens, a tuple of integers, impossible in every row.

    It computes a minimum, because TensorFlow is slow to select from tensors that it must broadcast, and
    because for a sum XLA copies the weights that the logits are computed from.
    """
    runs = _runs({token_id for token_id in token_ids if token_id >= 0})
    if not runs:
        return log_probs
    vocabulary = ops.arange(log_probs.shape[-1], dtype="int32")
    is_token = False
    for first, last in runs:
        is_in_run = vocabulary == first
        if last > first:
            is_in_run = ops.logical_and(vocabulary >= first, vocabulary <= last)
        is_token = ops.logical_or(is_token, is_in_run)
    return ops.minimum(log_probs, ops.where(is_token, IMPOSSIBLE, float("inf")))


def _runs(token_ids):
    """Pairs of integers, the first and the last id of each run of successive ids in a set."""
    firsts = [token_id for token_id in sorted(token_ids) if token_id - 1 not in token_ids]
    lasts = [token_id for token_id in sorted(token_ids) if token_id + 1 not in token_ids]
    return list(zip(firsts, lasts))


def suppress_tokens(log_probs, token_ids):
    """Makes tokens impossible: int32 (B, P), where -1 means no token."""
    vocabulary = ops.arange(log_probs.shape[-1], dtype="int32")
    is_suppressed = ops.any(ops.expand_dims(token_ids, -1) == vocabulary, axis=1)
    return ops.where(ops.expand_dims(is_suppressed, 1), IMPOSSIBLE, log_probs)


def require_min_length(log_probs, length, min_length, end_token_ids):
    """Makes END tokens impossible while an answer would be too short.

    Args:
        log_probs: Float32 (B, K, V).
        length: Integer scalar, the number of tokens of an answer that ends at this step, END included.
        min_length: int32 (B,), the fewest tokens of an answer; 1 is neutral.
        end_token_ids: int32 (B or 1, Q), where -1 means no token.
    """
    too_short = ops.expand_dims(length < min_length, -1)
    return suppress_tokens(log_probs, ops.where(too_short, end_token_ids, -1))


def penalize_repetition(log_probs, history, penalty):
    """Multiplies the log-probability of every token that is already in a hypothesis.

    This is like transformers' beam search. On raw logits, as in CTRL and in transformers' greedy search, the
    effect would depend on a constant that the softmax ignores.

    Args:
        log_probs: Float32 (B, K, V).
        history: `History`.
        penalty: Float32 (B,); 1 is neutral.

    Reference: [Keskar et al., 2019](https://arxiv.org/abs/1909.05858), section 4.1.
    """
    column = ops.arange(ops.shape(history.token_ids)[-1], dtype="int32")
    is_token = ops.logical_and(column >= history.start[:, None, None], column < history.stop)
    seen = _tokens_at(history.token_ids, is_token, log_probs.shape[-1])
    return ops.where(seen, log_probs * penalty[:, None, None], log_probs)


def forbid_repeated_ngrams(log_probs, history, size):
    """Makes a token impossible that would repeat an n-gram of its hypothesis.

    Args:
        log_probs: Float32 (B, K, V).
        history: `History`.
        size: int32 (B,), the n of each row; 0 is neutral.

    Reference: [Paulus et al., 2017](https://arxiv.org/abs/1705.04304), section 2.5.
    """
    repeated = _tokens_at(history.token_ids, _ngram_ends(history, size), log_probs.shape[-1])
    return ops.where(repeated, IMPOSSIBLE, log_probs)


def force_prefix(log_probs, original, index, prefix_token_ids):
    """Makes all tokens impossible except those of a prefix, which keep the model's log-probability.

    Args:
        log_probs: Float32 (B, K, V).
        original: Float32 (B, K, V), the log-probabilities before other processors: a prefix overrides what
            they forbid.
        index: Integer scalar, or integers (B,): the column of the prefix that is due.
        prefix_token_ids: int32 (B, P), -1 after the end of a row's prefix.
    """
    if prefix_token_ids.shape[-1] == 0:
        return log_probs
    column = ops.arange(ops.shape(prefix_token_ids)[-1], dtype="int32")
    is_here = column == ops.reshape(ops.convert_to_tensor(index, dtype="int32"), (-1, 1))
    wanted = ops.max(ops.where(is_here, prefix_token_ids, -1), axis=-1)[:, None, None]
    is_wanted = ops.arange(log_probs.shape[-1], dtype="int32") == wanted
    return ops.where(wanted < 0, log_probs, ops.where(is_wanted, original, IMPOSSIBLE))


def force_token(log_probs, is_now, token_id):
    """Makes all tokens impossible except one, which costs nothing: its log-probability is 0.

    Args:
        log_probs: Float32 (B, K, V).
        is_now: Boolean scalar, or booleans (B,): whether this is the step of that token.
        token_id: int32 (B,); -1 is neutral.
    """
    forced = ops.logical_and(is_now, token_id >= 0)[:, None, None]
    is_token = ops.arange(log_probs.shape[-1], dtype="int32") == token_id[:, None, None]
    return ops.where(forced, ops.where(is_token, 0.0, IMPOSSIBLE), log_probs)


def renormalize(log_probs, rows):
    """Makes the probabilities of the tokens that can be chosen sum to 1, in some `rows`, booleans (B,)."""
    total = log_normalizer(log_probs)
    is_scaled = ops.logical_and(rows[:, None, None], is_possible(total))
    return ops.where(ops.logical_and(is_scaled, is_possible(log_probs)), log_probs - total, log_probs)


def divide_by_temperature(log_probs, temperature):
    """Divides by a temperature (B,): flatter above 1, sharper below, only the best at 0; 1 is neutral."""
    temperature = temperature[:, None, None]
    best = log_probs >= ops.max(log_probs, axis=-1, keepdims=True)
    # A smaller divisor would overflow, or make a possible token look impossible. A large one could make an
    # impossible token look possible, so `stays` is computed from the undivided values.
    divided = log_probs / ops.where(temperature > 0, ops.maximum(temperature, 1e-20), 1.0)
    stays = ops.logical_and(is_possible(log_probs), ops.logical_or(temperature > 0, best))
    return ops.where(stays, divided, IMPOSSIBLE)


def keep_top_k(log_probs, count):
    """Keeps the `count` (B,) most probable tokens, and those as probable as the last of them; 0 is neutral.

    Reference: [Fan et al., 2018](https://arxiv.org/abs/1805.04833), section 5.4.
    """
    vocabulary_size = log_probs.shape[-1]
    ordered = ops.flip(ops.sort(log_probs, axis=-1), axis=-1)
    last = ops.clip(count - 1, 0, vocabulary_size - 1)[:, None, None]
    last = ops.broadcast_to(last, (*ops.shape(log_probs)[:-1], 1))
    kept = log_probs >= ops.take_along_axis(ordered, last, axis=-1)
    return ops.where(ops.logical_or(kept, (count <= 0)[:, None, None]), log_probs, IMPOSSIBLE)


def keep_top_p(log_probs, probability):
    """Keeps the fewest tokens that have at least `probability` (B,) together, always the best; 1 is neutral.

    Tokens as probable as the last of them are kept too.

    Reference: [Holtzman et al., 2020](https://arxiv.org/abs/1904.09751), section 3.1.
    """
    ordered = ops.flip(ops.sort(log_probs, axis=-1), axis=-1)
    shares = ops.softmax(ordered, axis=-1)
    before = ops.cumsum(shares, axis=-1) - shares
    probability = probability[:, None, None]
    # The first token is kept even if `probability` is 0.
    is_kept = ops.logical_or(before < probability, ops.arange(log_probs.shape[-1]) == 0)
    lowest = ops.min(ops.where(is_kept, ordered, float("inf")), axis=-1, keepdims=True)
    return ops.where(ops.logical_or(log_probs >= lowest, probability >= 1), log_probs, IMPOSSIBLE)


def keep_min_p(log_probs, share):
    """Keeps the tokens with at least `share` (B,) of the probability of the best; 0 is neutral.

    Reference: [Nguyen et al., 2024](https://arxiv.org/abs/2407.01082), section 3.
    """
    share = share[:, None, None]
    least = ops.max(log_probs, axis=-1, keepdims=True) + ops.log(ops.maximum(share, 1e-30))
    return ops.where(ops.logical_or(log_probs >= least, share <= 0), log_probs, IMPOSSIBLE)


def _ngram_ends(history, size):
    """True, (B, K, L), at the tokens of a history that follow an earlier occurrence of its last n - 1 tokens.

    The loop compares one token before the last, and before every other, at a time; it is as long as the largest n, or
    shorter, if nothing is left that repeats.
    """
    token_ids, start, stop = history
    length = ops.shape(token_ids)[-1]
    column = ops.arange(length, dtype="int32")
    # A larger n, with which nothing can repeat, might overflow below.
    size = ops.minimum(size, length + 1)[:, None, None]
    is_whole = ops.logical_and(column >= start[:, None, None] + size - 1, column < stop)
    repeats = ops.logical_and(ops.broadcast_to(is_whole, ops.shape(token_ids)), size > 0)

    def is_open(offset, repeats):
        return ops.logical_and(offset < ops.max(size, initial=0), ops.any(repeats))

    def compare(offset, repeats):
        before = ops.take(token_ids, ops.maximum(column - offset, 0), axis=-1)
        latest = ops.take(token_ids, ops.clip(stop - offset, 0, length - 1), axis=-1)
        is_same = ops.logical_or(before == ops.expand_dims(latest, -1), offset >= size)
        return offset + 1, ops.logical_and(repeats, is_same)

    return ops.while_loop(is_open, compare, (ops.ones((), dtype="int32"), repeats))[1]


def _tokens_at(token_ids, where, vocabulary_size):
    """True, (B, K, V), at the tokens that occur in `token_ids` (B, K, L) where `where` is True."""
    shape = ops.shape(token_ids)
    rows = shape[0] * shape[1]
    # All other entries, including a pad outside the vocabulary, are counted in an extra column.
    where = ops.logical_and(where, ops.logical_and(token_ids >= 0, token_ids < vocabulary_size))
    columns = ops.reshape(ops.where(where, token_ids, vocabulary_size), (rows, shape[2]))
    flat = ops.expand_dims(ops.arange(rows, dtype="int32") * (vocabulary_size + 1), -1) + columns
    counts = ops.scatter(
        ops.reshape(flat, (-1, 1)), ops.ones((rows * shape[2],), "int32"), (rows * (vocabulary_size + 1),)
    )
    return ops.reshape(counts, (*shape[:2], vocabulary_size + 1))[..., :vocabulary_size] > 0
