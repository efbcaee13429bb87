import collections
import math

import keras
from keras import ops

from keras_attn.layers.projection import Projection, product

_Matrix = collections.namedtuple("_Matrix", ["kernel", "bias"])


class StepProjections:
    """The projections of an attention layer as matrices, made once for a loop that calls the layer at every step.

    Queries, keys and values come from one product instead of three. Calls that get it give the answers that they give
    without, in the dtype that the layer computes in.

    Args:
        inputs: The layer's `Projection`s from (B, T, D) to heads, D -> (N, H), of one sequence.
        output: The `Projection` from heads, (N, H) -> D.
        dtype: The dtype to compute in.

    Example:

    ```python
    attention = keras_attn.layers.MultiHeadAttention(num_heads=2, key_dim=4)
    attention.build((None, None, 8), (None, None, 8))
    projections = attention.step_projections()
    x = keras.random.normal((1, 1, 8))
    y, cache = attention(x, x, cache=attention.empty_cache(1, 3), cache_update_index=0, projections=projections)
    ```
    """

    def __init__(self, inputs, output, dtype):
        self._sizes = [tuple(layer.kernel.shape[-2:]) for layer in inputs]
        self._inputs = _joined([_as_matrix(layer, 1, dtype) for layer in inputs])
        self._output = _as_matrix(output, 2, dtype)

    def heads(self, x):
        """(B, T, D) -> a list of heads (B, N, T, H), one for each input projection."""
        ends = [0]
        for num_heads, size in self._sizes:
            ends.append(ends[-1] + num_heads * size)
        x = product(x, *self._inputs)
        parts = ops.split(x, ends[1:-1], axis=-1) if len(self._sizes) > 1 else [x]
        return [_heads_first(part, *sizes) for part, sizes in zip(parts, self._sizes)]

    def output(self, heads):
        """(B, N, T, H) -> (B, T, D)."""
        num_heads, length, size = heads.shape[1:]
        if length != 1:
            heads = ops.transpose(heads, (0, 2, 1, 3))
        return product(ops.reshape(heads, (-1, length, num_heads * size)), *self._output)


def step_projections(inputs, output, dtype):
    """`StepProjections` of layers, or None if one of them is adapted, quantised, or more than a product and a sum."""
    if not all(map(_is_plain, [*inputs, output])):
        return None
    return StepProjections(inputs, output, dtype)


def _is_plain(layer):
    return (
        isinstance(layer, Projection)
        and layer.activation in (None, keras.activations.linear)
        and layer.activity_regularizer is None
        and not layer.lora_enabled
        and layer.quantization_mode is None
    )


def _as_matrix(layer, num_summed_axes, dtype):
    kernel = ops.cast(ops.convert_to_tensor(layer.kernel), dtype)
    size = math.prod(kernel.shape[:num_summed_axes])
    bias = None if layer.bias is None else ops.cast(ops.reshape(layer.bias, (-1,)), dtype)
    return _Matrix(ops.reshape(kernel, (size, -1)), bias)


def _joined(matrices):
    if len(matrices) == 1:
        return matrices[0]
    has_bias = matrices[0].bias is not None
    return _Matrix(
        ops.concatenate([matrix.kernel for matrix in matrices], axis=1),
        ops.concatenate([matrix.bias for matrix in matrices], axis=0) if has_bias else None,
    )


def _heads_first(x, num_heads, size):
    """(B, T, N * H) -> (B, N, T, H)."""
    length = x.shape[1]
    if length == 1:  # the same order of numbers, without an op that moves them
        return ops.reshape(x, (-1, num_heads, 1, size))
    return ops.transpose(ops.reshape(x, (-1, length, num_heads, size)), (0, 2, 1, 3))
