import inspect

import numpy as np
from keras import ops

from keras_attn.inspection.attention_layers import select_layers
from keras_attn.inspection.backends import as_array, gradients
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
    watched = select_layers(layers_to_watch(model), layers)
    arguments = {}
    if "training" in inspect.signature(model.call).parameters:
        arguments["training"] = False
    paths = []
    scores = []

    def record_scores(path, call):
        call.output_change(ops.zeros_like(call.scores))  # an error now rather than in a gradient
        paths.append(path)
        scores.append(as_array(ops.cast(call.scores, "float32")))

    with watching(Watcher(watched, record_scores), model):
        call_with(model, inputs, **arguments)

    def target_sum(*score_changes):
        next_changes = iter(score_changes)

        def change_output(path, call):
            change = call.output_change(next(next_changes))
            call.output = call.output + ops.cast(change, call.output.dtype)

        with watching(Watcher(watched, change_output, takes_traced=True), model):
            outputs = call_with(model, inputs, **arguments)
        # Rows do not depend on each other, so the sum has the gradient of each row.
        return ops.sum(ops.cast(_target_output(outputs, target), "float32")), None

    zeros = [ops.zeros(array.shape, "float32") for array in scores]
    score_gradients, _ = gradients(target_sum, zeros)
    arrays = [as_array(gradient) for gradient in score_gradients]
    return AttentionMaps(zip(paths, scores)), AttentionMaps(zip(paths, arrays))


def _target_output(outputs, target):
    """The number (B,) whose gradient is taken."""
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
    indices = as_array(target)
    are_integers = indices.dtype.kind in "iu" and indices.shape in ((), (num_rows,))
    if not are_integers or not ((indices >= -num_classes) & (indices < num_classes)).all():
        raise ValueError(
            "`target` must be the index of a class or an index for each row, since the outputs (B, classes) have the shape "
            f"{(num_rows, num_classes)}. Received: target={target!r}."
        )
    indices = np.broadcast_to(indices, (num_rows,)).astype("int32")
    return ops.take_along_axis(outputs, ops.convert_to_tensor(indices)[:, None], axis=-1)
