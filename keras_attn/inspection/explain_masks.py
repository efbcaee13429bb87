import collections.abc

import numpy as np
from keras import ops

from keras_attn.inspection.capture import layers_to_watch
from keras_attn.inspection.perturbed_model import call_with
from keras_attn.inspection.watching import Watcher, watching


class LayerMasks(collections.abc.Mapping):
    """The masks that attention layers used, by layer path: booleans (B, T, S), or (B, N, T, S) if heads differ.

    `explain_masks` makes it. A second call of a layer has the key `path#2`, and so on.
    """

    def __init__(self, masks):
        self._masks = masks

    def __getitem__(self, key):
        return self._masks[key]

    def __iter__(self):
        return iter(self._masks)

    def __len__(self):
        return len(self._masks)

    def __str__(self):
        return self.table()

    def table(self):
        """A line for each layer: its shape, the share of pairs that may attend, and what the mask does."""
        rows = [("layer", "queries x keys", "allowed", "mask")]
        for key, mask in self.items():
            rows.append(
                (key, " x ".join(map(str, mask.shape[-2:])), f"{mask.mean():.0%}", ", ".join(_words(mask)))
            )
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows
        )


def explain_masks(model, inputs):
    """The mask that each attention layer really used in one eager call of any Keras model.

    What counts is what reaches the softmax: all masks of a layer's call joined, implicit ones included. Of layers that only return
    their scores (`call` takes `return_attention_scores`), a key is masked if its score is exactly 0.

    Args:
        model: Built `keras.Model` or layer.
        inputs: What it is called with.

    Returns:
        `LayerMasks`: booleans (B, T, S) by layer path, True where a query may attend to a key; (B, N, T, S) if the heads differ.
        `print` shows it as a table.

    Raises:
        ValueError: if the model is not built or has no attention layers.

    Example:

    ```python
    model = keras_attn.models.DecoderTransformer.from_sizes(100, 2, hidden_dim=16, num_heads=2, intermediate_dim=32)
    masks = explain_masks(model, np.array([[5, 6, 7, 8], [9, 5, 0, 0]]))
    print(masks)
    ```
    """
    masks, counts = {}, {}

    def see(path, call):
        counts[path] = counts.get(path, 0) + 1
        key = path if counts[path] == 1 else f"{path}#{counts[path]}"
        shape = tuple(call.scores.shape)
        mask = True if call.mask is None else np.asarray(ops.convert_to_numpy(call.mask))
        masks[key] = _without_equal_heads(np.array(np.broadcast_to(mask, shape)))

    with watching(Watcher(layers_to_watch(model), see), model):
        call_with(model, inputs)
    return LayerMasks(masks)


def _without_equal_heads(mask):
    return mask[..., 0, :, :] if (mask == mask[..., :1, :, :]).all() else mask


def _words(mask):
    """What a mask does, in words."""
    words = []
    num_queries, num_keys = mask.shape[-2:]
    if mask.all():
        return ["all"]
    joined = mask.reshape(-1, num_queries, num_keys)
    reads, is_read = joined.any(axis=-1), joined.any(axis=-2)
    lower = np.tri(num_queries, num_keys, dtype=bool)
    if num_queries == num_keys and num_queries > 1 and not (joined & ~lower).any():
        words.append("causal")
    hidden = (~is_read).sum()
    if hidden:
        words.append(f"{hidden} of {is_read.size} keys hidden")
    # What is neither the order nor whole keys or queries.
    allowed = reads[:, :, None] & is_read[:, None] & (lower if "causal" in words else True)
    if (allowed & ~joined).any():
        words.append("between pairs")
    silent = (~reads).sum()
    if silent:
        words.append(f"{silent} of {reads.size} queries without a key")
    if mask.ndim > 3:
        words.append("heads differ")
    return words
