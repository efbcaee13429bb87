import inspect

import numpy as np
from keras import ops

from keras_attn.inspection.attention_layers import chosen
from keras_attn.inspection.backends import gradients
from keras_attn.inspection.capture import AttentionMaps, layers_to_watch
from keras_attn.inspection.perturbed_model import call_with
from keras_attn.inspection.watching import Watcher, watching


def attention_gradients(model, inputs, target=None, layers=None):
    """The attention scores of one call of a model, and the gradient of an output with respect to them.

    `relevance` joins both. The gradient is that of the product of scores and values in each layer, after the softmax and before any
    dropout; the model is called without training.

    Args:
        model: Built `keras.Model` or layer.
        inputs: What the model is called with.
        target: Which output: a function from the model's outputs to one number for each row (B,); an integer or integers
            (B,), the index of a class in outputs (B, classes). By default the class with the largest output.
        layers: As in `capture_attention`. Layers other than `MultiHeadAttention` (of keras_attn and of Keras) and
            `GroupQueryAttention` must be left out.

    Returns:
        Two `AttentionMaps`, in float32: the scores and their gradients, arrays (B, N, T, S) by path.

    Raises:
        ValueError: if the model's outputs need a function as target, `target` is not an index of their classes for each row, or a
            layer's gradient is not known.

    Example:

    ```python
    model = keras_attn.models.EncoderTransformer.from_sizes(100, 2, hidden_dim=16, num_heads=2, intermediate_dim=32)
    maps, gradients = attention_gradients(model, np.array([[5, 6, 7, 3]]), target=lambda y: y[:, 0, 7])
    ```

    Reference: [Chefer et al., 2021](https://arxiv.org/abs/2103.15679), section 3.
    """
    watched = chosen(layers_to_watch(model), layers)
    maps = AttentionMaps()
    training = {"training": False} if "training" in inspect.signature(model.call).parameters else {}

    def call():
        return call_with(model, inputs, **training)

    def keep(path, seen):
        seen.output_change(ops.zeros_like(seen.scores))  # an error now rather than in a gradient
        maps._add(path, np.asarray(ops.convert_to_numpy(ops.cast(seen.scores, "float32"))))

    with watching(Watcher(watched, keep), model):
        call()

    def output_of(*changes):
        rest = iter(changes)

        def change(path, seen):
            seen.output = seen.output + ops.cast(seen.output_change(next(rest)), seen.output.dtype)

        with watching(Watcher(watched, change, takes_traced=True), model):
            outputs = call()
        # Rows do not depend on each other, so the sum has the gradient of each row.
        return ops.sum(ops.cast(_chosen_output(outputs, target), "float32")), None

    of_maps = AttentionMaps()
    zeros = [ops.zeros(scores.shape, "float32") for scores in maps.values()]
    found, _ = gradients(output_of, zeros)
    for key, gradient in zip(maps, found):
        of_maps._add(maps._path_of[key], np.asarray(ops.convert_to_numpy(gradient)))
    return maps, of_maps


def _chosen_output(outputs, target):
    if callable(target):
        return target(outputs)
    if not ops.is_tensor(outputs) or len(outputs.shape) != 2:
        raise ValueError(
            "`target` must be a function from the outputs to one number for each row, since the outputs are not "
            f"(B, classes). Received: target={target!r}."
        )
    if target is None:
        return ops.max(outputs, axis=-1)
    num_rows, num_classes = outputs.shape
    indices = np.asarray(ops.convert_to_numpy(target))
    if (
        indices.dtype.kind not in "iu"
        or indices.shape not in ((), (num_rows,))
        or not ((indices >= -num_classes) & (indices < num_classes)).all()
    ):
        raise ValueError(
            "`target` must be the index of a class or an index for each row, since the outputs (B, classes) have the shape "
            f"{(num_rows, num_classes)}. Received: target={target!r}."
        )
    indices = np.broadcast_to(indices, (num_rows,)).astype("int32")
    return ops.take_along_axis(outputs, ops.convert_to_tensor(indices)[:, None], axis=-1)
