"""How the explorer's page holds attention scores: a byte for each, compressed, all of them or the largest of each row."""

import base64
import zlib

import numpy as np

MAX_TOKENS = 2048
# More scores than these are not tried as a whole.
_MOST_SCORES = 1 << 26
# The page shades in 64 steps: with fewer levels, a person would see the difference.
_LEVELS = (255, 170, 128, 96, 80, 64)
_KEPT_PER_ROW = (256, 192, 128, 96, 64, 48, 32, 24, 16, 12, 8)
_THUMBNAIL = 32


def codes_of(scores, levels=_LEVELS[0]):
    """Scores -> bytes, the square root in `levels` steps: a score a is decoded to within sqrt(a) / levels + 1 / (2 levels)**2."""
    scores = np.asarray(scores, "float32")
    return np.rint(np.sqrt(np.clip(scores, 0, 1)) * levels).astype("uint8")


def packed(array):
    """The bytes of an array, compressed (zlib), as base64."""
    return base64.b64encode(zlib.compress(np.ascontiguousarray(array).tobytes(), 6)).decode("ascii")


def thumbnail(head):
    """Scores (T, S) -> codes (t, s), at most `_THUMBNAIL` wide and high, each the largest of those in its place."""
    codes = codes_of(head)
    for axis in (0, 1):
        length = codes.shape[axis]
        if length > _THUMBNAIL:
            starts = np.arange(_THUMBNAIL) * length // _THUMBNAIL
            codes = np.maximum.reduceat(codes, starts, axis=axis)
    return codes


class Encoded:
    """All heads of an explorer as base64, in at most `max_bytes` characters.

    What does not fit with 255 levels of a score's square root has fewer, down to 64; then only the largest scores of each row.

    Args:
        layers: List of arrays (N, T, S).
        max_bytes: Integer.

    Attributes:
        heads: For each layer, a list of N strings.
        levels: Integer, see `codes_of`.
        kept: The number of keys that are kept of each row, or None for all.
        least_share, mean_share: The share of a row's attention that is kept, at worst and on average.

    Raises:
        ValueError: if even the fewest keys of each row do not fit.
    """

    def __init__(self, layers, max_bytes):
        self.kept = None
        self.least_share = 1.0
        self.mean_share = 1.0
        if sum(layer.size for layer in layers) <= _MOST_SCORES and self._fits_whole(layers, max_bytes):
            return
        self.levels = _LEVELS[0]
        widest = max(layer.shape[-1] for layer in layers)
        num_rows = sum(layer.shape[0] * layer.shape[1] for layer in layers)
        # A kept key takes more than a character.
        most = min(_KEPT_PER_ROW[0], widest, max(int(max_bytes / num_rows), 1))
        largest = [[_largest(head, most) for head in layer] for layer in layers]
        for kept in _KEPT_PER_ROW:
            if kept >= widest or kept > most:
                continue
            self.kept = kept
            self.heads = [[_sparse(*head, kept) for head in layer] for layer in largest]
            if self.num_bytes() <= max_bytes:
                self._measure(largest, [layer.sum(axis=-1, dtype="float32") for layer in layers])
                return
        raise ValueError(
            f"The maps do not fit into {max_bytes / 1e6:.0f} MB, not even with {_KEPT_PER_ROW[-1]} keys for each query. "
            "Give fewer layers or fewer tokens, or a larger `max_megabytes`."
        )

    def _fits_whole(self, layers, max_bytes):
        """Whether all scores fit; they are encoded with the most levels that do."""
        heads = [head for layer in layers for head in layer]
        sample = heads[:: max(len(heads) // 12, 1)]
        for levels in _LEVELS:
            mean_size = sum(len(packed(codes_of(head, levels))) for head in sample) / len(sample)
            if mean_size * len(heads) > 1.1 * max_bytes:  # the other heads may be a little smaller
                continue
            self.levels = levels
            self.heads = [[packed(codes_of(head, levels)) for head in layer] for layer in layers]
            if self.num_bytes() <= max_bytes:
                return True
        return False

    def num_bytes(self):
        return sum(len(head) for layer in self.heads for head in layer)

    def _measure(self, largest, sums):
        shares = []
        for layer, row_sums in zip(largest, sums):
            for (_, scores), total in zip(layer, row_sums):
                kept = scores[:, : self.kept].sum(axis=-1, dtype="float32")
                shares.append(np.where(total > 0, kept / np.maximum(total, 1e-9), 1))
        self.least_share = float(min(share.min() for share in shares))
        self.mean_share = float(np.mean([share.mean() for share in shares]))


def _largest(head, count):
    """The `count` largest keys of each row of (T, S) and their scores, largest first, (T, count)."""
    count = min(count, head.shape[-1])
    keys = np.argpartition(head, -count, axis=-1)[:, -count:]
    scores = np.take_along_axis(head, keys, axis=-1).astype("float32")
    order = np.argsort(-scores, axis=-1, kind="stable")
    keys = np.take_along_axis(keys, order, axis=-1).astype("uint16")
    return keys, np.take_along_axis(scores, order, axis=-1)


def _sparse(keys, scores, kept):
    """Three planes of bytes (T, kept) in one string: codes, and the low and the high byte of the steps from key to key."""
    codes = codes_of(scores[:, :kept])
    order = np.argsort(keys[:, :kept], axis=-1)
    keys = np.take_along_axis(keys, order, axis=-1)
    codes = np.take_along_axis(codes, order, axis=-1)
    # A key without attention is not stepped to.
    keys = np.maximum.accumulate(np.where(codes > 0, keys, 0), axis=-1)
    steps = np.diff(keys, axis=-1, prepend=0).astype("uint16")
    width = scores.shape[-1]
    if kept > width:  # a narrower layer of the same page
        padding = [(0, 0), (0, kept - width)]
        codes = np.pad(codes, padding)
        steps = np.pad(steps, padding)
    planes = [codes, (steps & 255).astype("uint8"), (steps >> 8).astype("uint8")]
    return packed(np.stack(planes))
