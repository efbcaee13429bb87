import math

from keras import ops


class HeadLayout:
    """Converts tensors between Keras' layout (B, <axes>, N, H) and that of the ops, (B, <lead>, N, T, H).

    T is the attended axes, flattened in order; <lead> are the axes that are not attended over. For the usual
    (B, T, D) inputs there is one attended axis and no lead.

    Args:
        rank: Integer, the rank of the layer's inputs (B, <axes>, D).
        attention_axes: Tuple of integers, the attended axes of those inputs, or None for all of <axes>.
    """

    def __init__(self, rank, attention_axes=None):
        axes = range(1, rank - 1)
        attended = axes if attention_axes is None else [axis % rank for axis in attention_axes]
        if not attended or not set(attended) <= set(axes) or len(set(attended)) < len(attended):
            raise ValueError(
                "`attention_axes` must name axes between the batch and the features, each once. Received: "
                f"attention_axes={attention_axes} for inputs of rank {rank}."
            )
        self.attended = tuple(attended)
        self.lead = tuple(axis for axis in axes if axis not in self.attended)

    def heads_first(self, x):
        """(B, <axes>, N, H) -> (B, <lead>, N, T, H)."""
        heads, features = len(x.shape) - 2, len(x.shape) - 1
        x = ops.transpose(x, (0, *self.lead, heads, *self.attended, features))
        return self._flatten(x, len(self.lead) + 2)

    def heads_last(self, x, query):
        """(B, <lead>, N, T, H) -> (B, <axes>, N, H), with the sizes of the axes of `query` (B, <axes>, D)."""
        x = self._unflatten(x, len(self.lead) + 2, query)
        now = (0, *self.lead, None, *self.attended, None)
        order = [now.index(axis) for axis in range(len(now) - 2)]
        return ops.transpose(x, (*order, len(self.lead) + 1, len(now) - 1))

    def padding(self, mask):
        """(B, <axes>) or (<axes>) -> (B, <lead>, T) or (1, <lead>, T).

        Masks of other ranks are not changed; a later check refuses them.
        """
        rank = 1 + len(self.lead) + len(self.attended)
        if len(mask.shape) == rank - 1:
            mask = ops.expand_dims(mask, 0)
        if len(mask.shape) != rank:
            return mask
        mask = ops.transpose(mask, (0, *self.lead, *self.attended))
        return self._flatten(mask, len(self.lead) + 1)

    def pairs(self, mask, rank):
        """A mask ending in the attended axes of queries, then of keys -> one that broadcasts to (..., N, T, S).

        Missing axes are added before the attended ones, as in Keras: (B, T, S) becomes (B, 1, T, S).
        """
        count = len(self.attended)
        if count > 1 and len(mask.shape) >= 2 * count:
            mask = self._flatten(mask, len(mask.shape) - count)
            mask = self._flatten(mask, len(mask.shape) - 1 - count)
        while len(mask.shape) < rank:
            mask = ops.expand_dims(mask, -3 if len(mask.shape) > 1 else 0)
        return mask

    def scores(self, scores, query, value):
        """(B, <lead>, N, T, S) -> (B, <lead>, N, <attended axes of query>, <attended axes of value>)."""
        scores = self._unflatten(scores, len(self.lead) + 3, value)
        return self._unflatten(scores, len(self.lead) + 2, query)

    def _flatten(self, x, axis):
        """Joins the attended axes, which start at `axis`, into one."""
        if len(self.attended) == 1:
            return x
        shape = ops.shape(x)
        end = axis + len(self.attended)
        return ops.reshape(x, (*shape[:axis], math.prod(shape[axis:end]), *shape[end:]))

    def _unflatten(self, x, axis, like):
        if len(self.attended) == 1:
            return x
        shape = ops.shape(x)
        sizes = [ops.shape(like)[attended] for attended in self.attended]
        return ops.reshape(x, (*shape[:axis], *sizes, *shape[axis + 1 :]))
