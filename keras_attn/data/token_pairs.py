"""Text pairs as token ids: flat arrays, from which batches are cut."""

import collections

import numpy as np
import tensorflow as tf

_TEXTS_PER_TOKENIZER_CALL = 4096

RaggedIds = collections.namedtuple("RaggedIds", ["values", "row_splits"])
RaggedIds.__doc__ = """Rows of token ids of any length.

values: int32 array, one row after the other.
row_splits: int64 array; row i is `values[row_splits[i] : row_splits[i + 1]]`.
"""

TokenPairs = collections.namedtuple("TokenPairs", ["sources", "targets", "over_long"])
TokenPairs.__doc__ = """What the encoder reads and the decoder is to write.

sources: `RaggedIds`, each row a source and END.
targets: `RaggedIds`, each row START, a target and END.
over_long: tuple of integers, the 1-based lines of the pairs that were left out.
"""


def tokenize_pairs(pairs, source_tokenizer, target_tokenizer, max_sequence_length):
    """The token ids of the pairs of which no side, with END, has more than `max_sequence_length` tokens.

    Args:
        pairs: `TextPairs`.
        source_tokenizer, target_tokenizer: Tokenizers of `keras_attn.text`.
        max_sequence_length: Integer.

    Returns:
        `TokenPairs`.

    Raises:
        ValueError: if a tokenizer returns an id outside its vocabulary or the id of the padding.
    """
    parts, over_long = [], []
    for start in range(0, len(pairs), _TEXTS_PER_TOKENIZER_CALL):
        rows = slice(start, start + _TEXTS_PER_TOKENIZER_CALL)
        sources = _token_ids(pairs.sources[rows], source_tokenizer, "source", start)
        targets = _token_ids(pairs.targets[rows], target_tokenizer, "target", start)
        lengths = np.maximum(np.diff(sources.row_splits), np.diff(targets.row_splits)) + 1
        fits = lengths <= max_sequence_length
        over_long += (start + np.flatnonzero(~fits) + 1).tolist()
        parts.append(
            (
                _with_special_ids(sources, fits, [], [source_tokenizer.end_token_id]),
                _with_special_ids(
                    targets, fits, [target_tokenizer.start_token_id], [target_tokenizer.end_token_id]
                ),
            )
        )
    sources, targets = (_joined(side) for side in zip(*parts)) if parts else (_joined([]), _joined([]))
    return TokenPairs(sources, targets, tuple(over_long))


def lengths_of(ragged):
    """The number of ids in each row, an int64 array."""
    return np.diff(ragged.row_splits)


def _token_ids(texts, tokenizer, side, start):
    token_ids = tokenizer.tokenize(tf.constant(texts, tf.string))
    ragged = RaggedIds(token_ids.values.numpy(), token_ids.row_splits.numpy())
    wrong = np.flatnonzero((ragged.values < 1) | (ragged.values >= tokenizer.vocabulary_size))
    if wrong.size:
        line = start + np.searchsorted(ragged.row_splits, wrong[0], side="right")
        raise ValueError(
            f"The {side} tokenizer's ids must be from 1, 0 being the padding, to `vocabulary_size` - 1. "
            f"Received: id {ragged.values[wrong[0]]} in line {line}, vocabulary_size={tokenizer.vocabulary_size}."
        )
    return ragged


def _with_special_ids(ragged, keep, before, after):
    """The rows that are kept, each with some ids before and after it."""
    lengths = lengths_of(ragged)
    row_splits = _row_splits(lengths[keep] + len(before) + len(after))
    values = np.empty(row_splits[-1], np.int32)
    own = np.ones(len(values), bool)
    for place, token_id in enumerate(before):
        own[row_splits[:-1] + place] = False
        values[row_splits[:-1] + place] = token_id
    for place, token_id in enumerate(reversed(after), start=1):
        own[row_splits[1:] - place] = False
        values[row_splits[1:] - place] = token_id
    values[own] = ragged.values[np.repeat(keep, lengths)]
    return RaggedIds(values, row_splits)


def _joined(parts):
    values = np.concatenate([np.empty(0, np.int32), *(part.values for part in parts)])
    return RaggedIds(values, _row_splits(np.concatenate([np.empty(0, int), *map(lengths_of, parts)])))


def _row_splits(lengths):
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
