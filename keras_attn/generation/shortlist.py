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


def logits_among(logits, is_listed):
    """Logits (B, K, U) of listed tokens, with those impossible that are not of a row, by booleans (B, U)."""
    return ops.minimum(logits, ops.expand_dims(ops.where(is_listed, float("inf"), IMPOSSIBLE), 1))


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


def but(listed, token_ids):
    """Floats (U,), impossible at listed tokens that are among `token_ids`, a tuple of integers, else infinite."""
    whole = without_tokens(ops.full((listed.vocabulary_size,), float("inf")), token_ids)
    return ops.take(whole, listed.token_ids)
