import numpy as np

from keras_attn.inspection.backends import as_array
from keras_attn.inspection.capture import AttentionMaps, layers_to_watch
from keras_attn.inspection.perturbed_model import call_with
from keras_attn.inspection.watching import Watcher, watching


class LayerMasks(AttentionMaps):
    """The masks that attention layers used, by layer path: booleans (B, T, S), or (B, N, T, S) if heads differ.

    `explain_masks` makes it. A second call of a layer has the key `path#2`, and so on.
    """

    def __str__(self):
        return self.table()

    def table(self):
        """A line for each layer: its shape, the share of pairs that may attend, and what the mask does."""
        rows = [("layer", "queries x keys", "allowed", "mask")]
        for key, mask in self.items():
            num_queries, num_keys = mask.shape[-2:]
            description = ", ".join(_words(mask))
            rows.append((key, f"{num_queries} x {num_keys}", f"{mask.mean():.0%}", description))
        widths = [max(map(len, column)) for column in zip(*rows)]
        lines = []
        for row in rows:
            cells = [cell.ljust(width) for cell, width in zip(row, widths)]
            lines.append("  ".join(cells).rstrip())
        return "\n".join(lines)


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
    masks = LayerMasks()

    def see(path, call):
        mask = True if call.mask is None else as_array(call.mask)
        mask = np.array(np.broadcast_to(mask, call.scores.shape))
        first_head = mask[..., 0, :, :]
        heads_differ = (mask != mask[..., :1, :, :]).any()
        masks.add(path, mask if heads_differ else first_head)

    with watching(Watcher(layers_to_watch(model), see), model):
        call_with(model, inputs)
    return masks


def _words(mask):
    """What a mask does, in words."""
    if mask.all():
        return ["all"]
    words = []
    num_queries, num_keys = mask.shape[-2:]
    maps = mask.reshape(-1, num_queries, num_keys)
    has_key = maps.any(axis=-1)
    is_read = maps.any(axis=-2)
    explained = (
        has_key[:, :, None] & is_read[:, None]
    )  # what may attend if only whole queries and keys are masked
    not_later = np.tri(num_queries, num_keys, dtype=bool)
    if num_queries == num_keys and num_queries > 1 and not (maps & ~not_later).any():
        words.append("causal")
        explained = explained & not_later
    num_hidden = (~is_read).sum()
    if num_hidden:
        words.append(f"{num_hidden} of {is_read.size} keys hidden")
    if (explained & ~maps).any():
        words.append("between pairs")
    num_without_key = (~has_key).sum()
    if num_without_key:
        words.append(f"{num_without_key} of {has_key.size} queries without a key")
    if mask.ndim > 3:
        words.append("heads differ")
    return words
