"""BPE-dropout: other segmentations of texts that a BPE model has segmented."""

import itertools

import numpy as np

_SPACE = "\u2581"  # sentencepiece's sign for a space
_NONE = np.iinfo(np.int32).max  # the rank of a pair that is no merge


class BpeDropout:
    """Draws segmentations as Provilkov et al., 2020 (arXiv:1910.13267), Algorithm 1.

    Each text is split into characters and merged again: each step leaves out possible merges at random, and applies the
    best of the others, until none is left. Without dropout the segmentation is that of the model.

    sentencepiece samples too, but its seed means something else in each process, and it never returns to a merge that it
    left out. Here NumPy merges the words of many texts at once, from ids alone.

    Args:
        pieces: List of strings, the text of each id; None where an id is not merged, as control tokens and bytes are not.
        scores: Floats, one for each id; the piece with the highest is merged first.

    Example:

    ```python
    import numpy as np

    from keras_attn.text.bpe_dropout import BpeDropout

    dropout = BpeDropout(["a", "b", "ab"], [-1, -1, 0])
    ids, row_splits = dropout(np.array([2, 2]), np.array([0, 2]), 0.99, np.random.default_rng(0))
    assert ids.tolist() == [0, 1, 0, 1]
    ```
    """

    def __init__(self, pieces, scores):
        self._size = len(pieces)
        ids = {piece: number for number, piece in enumerate(pieces) if piece}
        characters = [_characters(number, piece, ids) for number, piece in enumerate(pieces)]
        self._characters = np.array(list(itertools.chain.from_iterable(characters)))
        self._counts = np.array(list(map(len, characters)))
        self._firsts = np.cumsum(self._counts) - self._counts
        by_rank = np.argsort(-np.asarray(scores, float), kind="stable")
        ranks = np.empty(self._size, np.int32)
        ranks[by_rank] = np.arange(self._size)
        self._ids_by_rank = by_rank
        merge_ranks = {}
        for piece, number in ids.items():
            for place in range(1, len(piece)):
                left, right = piece[:place], piece[place:]
                if left in ids and right in ids:
                    merge_ranks[ids[left] * self._size + ids[right]] = ranks[number]
        keys = sorted(merge_ranks)
        self._keys = np.array(keys + [np.iinfo(np.int64).max], np.int64)
        self._ranks = np.array([merge_ranks[key] for key in keys] + [_NONE], np.int32)
        # Whether each piece begins a word, which none does in models whose pieces run over spaces.
        is_inside = any(_SPACE in piece[1:] for piece in ids)
        self._begins = np.array([bool(piece) and piece[0] == _SPACE and not is_inside for piece in pieces])

    def __call__(self, values, row_splits, dropout, generator):
        """Rows of ids in other segmentations.

        Args:
            values, row_splits: Integer arrays; row i is `values[row_splits[i] : row_splits[i + 1]]`.
            dropout: Float in [0, 1), the probability that a merge is left out in a step.
            generator: `numpy.random.Generator`.

        Returns:
            Two arrays like the first two.
        """
        values = np.asarray(values)
        counts = self._counts[values]
        ends = np.cumsum(counts)
        begins = ends - counts
        places = np.arange(counts.sum()) + np.repeat(self._firsts[values] - begins, counts)
        symbols = self._characters[places]
        row_ends = np.concatenate([[0], ends])[row_splits]
        row_starts = row_ends[:-1]
        is_first = self._begins[symbols]
        is_first[row_starts[row_starts < len(symbols)]] = True
        starts = np.flatnonzero(is_first)
        lengths = np.diff(np.append(starts, len(symbols)))
        is_kept = np.ones(len(symbols), bool)
        for length in np.unique(lengths[lengths > 1]):
            places = starts[lengths == length, np.newaxis] + np.arange(length)
            words, sizes = self._merged(symbols[places], dropout, generator)
            symbols[places] = words
            is_kept[places] = np.arange(length) < sizes[:, np.newaxis]
        kept_before = np.concatenate([[0], np.cumsum(is_kept)])
        return symbols[is_kept].astype(np.int32), kept_before[row_ends]

    def _merged(self, words, dropout, generator):
        """Words of equally many characters (W, L) merged: ids (W, L), of which the first `sizes` (W,) count."""
        merged = words.copy()
        sizes = np.ones(len(words), int)
        rows = np.arange(len(words))
        ranks = self._pair_ranks(words[:, :-1], words[:, 1:])
        # Each step applies one merge to each unfinished word, so all unfinished words have equally many tokens.
        while ranks.shape[1] and len(rows):
            drawn = np.where(generator.random(ranks.shape, np.float32) < dropout, _NONE, ranks)
            place = drawn.argmin(axis=1)  # of equal ranks the first, as sentencepiece has it
            best = drawn[np.arange(len(rows)), place]
            is_done = best == _NONE
            merged[rows[is_done], : words.shape[1]] = words[is_done]
            sizes[rows[is_done]] = words.shape[1]
            rows, words, ranks, place, best = (x[~is_done] for x in (rows, words, ranks, place, best))
            words, ranks = self._after_merge(words, ranks, place, self._ids_by_rank[best])
        merged[rows, : words.shape[1]] = words
        return merged, sizes

    def _after_merge(self, words, ranks, place, merged):
        """Words (W, L - 1) and the ranks of their pairs (W, L - 2) after the pair at `place` (W,) became `merged` (W,)."""
        row = np.arange(len(words))
        column = np.arange(words.shape[1] - 1)
        words = np.where(column <= place[:, np.newaxis], words[:, :-1], words[:, 1:])
        words[row, place] = merged
        column = column[:-1]
        ranks = np.where(column < place[:, np.newaxis], ranks[:, :-1], ranks[:, 1:])
        for left in (place - 1, place):
            some = np.flatnonzero((left >= 0) & (left < len(column)))
            left = left[some]
            ranks[some, left] = self._pair_ranks(words[some, left], words[some, left + 1])
        return words, ranks

    def _pair_ranks(self, left, right):
        keys = left.astype(np.int64) * self._size + right
        places = np.searchsorted(self._keys, keys)
        return np.where(self._keys[places] == keys, self._ranks[places], _NONE).astype(np.int32)


def _characters(number, piece, ids):
    """The ids of the characters of a piece; its own if they have none."""
    if piece and all(character in ids for character in piece):
        return [ids[character] for character in piece]
    return [number]
