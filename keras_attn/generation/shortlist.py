"""Searches among few tokens of the vocabulary, other ones for each batch."""

import collections

from keras import ops

from keras_attn.generation.processors import IMPOSSIBLE, without_tokens

# A list of a batch has at least so many tokens, so that a search finds as many candidates as it looks for.
FEWEST_LISTED = 256

ListedTokens = collections.namedtuple("ListedTokens", ["token_ids", "is_listed", "vocabulary_size"])
ListedTokens.__doc__ = """The tokens that the answers of a batch may have.

token_ids: int32 (U,), rising: those of all rows, and others if that makes fewer than `FEWEST_LISTED`.
is_listed: Boolean (B, U), True at the tokens of a row: what batch-mates may write changes nothing.
vocabulary_size: Integer V.
"""


def limits_of(listed):
    """The largest logits that the tokens of a list may have in each row, float32 (B, U): impossible if not of the row."""
    return ops.where(listed.is_listed, float("inf"), IMPOSSIBLE)


def in_vocabulary(logits, listed):
    """Logits (B, K, U) of listed tokens -> (B, K, V), in which the other tokens are impossible."""
    count = ops.shape(listed.token_ids)[0]
    places = ops.scatter_update(
        ops.zeros((listed.vocabulary_size,), "int32") + count,
        ops.expand_dims(listed.token_ids, -1),
        ops.arange(count, dtype="int32"),
    )
    nothing = ops.full_like(logits[:, :, :1], IMPOSSIBLE)
    return ops.take(ops.concatenate([logits, nothing], axis=-1), places, axis=-1)


def limits_without(listed, token_ids):
    """The same for all rows, float32 (U,): impossible for `token_ids`, a tuple of integers."""
    whole = without_tokens(ops.full((listed.vocabulary_size,), float("inf")), token_ids)
    return ops.take(whole, listed.token_ids)
