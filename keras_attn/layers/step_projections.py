"""The projections of an attention layer as matrices, made once for a loop that calls the layer at every step.

Queries, keys and values come from one product instead of three. Outputs are the same with
and without them, in the compute dtype of the layer.
"""

import collections
import math

import keras
from keras import ops

from keras_attn.layers.projection import Projection, product
from keras_attn.ops import Int8Matrix, loop_form, step_form

StepProjections = collections.namedtuple(
    "StepProjections", ["input_kernel", "input_bias", "output_kernel", "output_bias"]
)
StepProjections.__doc__ = """Matrices of the projections of one attention layer.

input_kernel: floats (D, X), or an `Int8Matrix`. The axis X holds the heads of queries, then of keys, then of values.
input_bias: floats (X,), or None.
output_kernel: floats (N * Hv, D), or an `Int8Matrix`.
output_bias: floats (D,), or None.
"""

_Matrix = collections.namedtuple("_Matrix", ["kernel", "bias"])


def step_projections(inputs, output):
    """The `StepProjections` of layers; None if one is adapted, or not just a product and a sum.

    Layers quantised to int8 have matrices of integers, where the graph is only run, and None elsewhere.

    Args:
        inputs: The `Projection`s of one sequence (B, T, D) to heads, D -> (N, H).
        output: The `Projection` from heads, (N, Hv) -> D.
    """
    if not all(map(_is_plain, [*inputs, output])):
        return None
    if len({layer.quantization_mode for layer in inputs}) > 1:
        return None
    of_inputs, of_output = _joined([_as_matrix(layer, 1) for layer in inputs]), _as_matrix(output, 2)
    return StepProjections(*_in_step_form(of_inputs), *_in_step_form(of_output))


def projected_heads(projections, x, sizes):
    """(B, T, D) -> a list of heads (B, N, T, H), one for each of `sizes`, pairs (N, H)."""
    ends = [0]
    for num_heads, size in sizes:
        ends.append(ends[-1] + num_heads * size)
    x = _product(x, projections.input_kernel, projections.input_bias)
    parts = ops.split(x, ends[1:-1], axis=-1) if len(sizes) > 1 else [x]
    return [_heads_first(part, *of_part) for part, of_part in zip(parts, sizes)]


def output_of(projections, heads):
    """(B, N, T, Hv) -> (B, T, D)."""
    _, num_heads, length, size = ops.shape(heads)
    if heads.shape[2] != 1:
        heads = ops.transpose(heads, (0, 2, 1, 3))
    rows = ops.reshape(heads, (-1, length, num_heads * size))
    return _product(rows, projections.output_kernel, projections.output_bias)


def _product(x, kernel, bias):
    """The product in the dtype of the matrix, as the dtype of `x`."""
    if isinstance(kernel, Int8Matrix):
        return product(x, kernel, bias)
    return ops.cast(product(ops.cast(x, kernel.dtype), kernel, bias), x.dtype)


def _is_plain(layer):
    return (
        isinstance(layer, Projection)
        and layer.activation in (None, keras.activations.linear)
        and layer.activity_regularizer is None
        and not layer.lora_enabled
        and (layer.quantization_mode is None or layer.has_int8_product())
    )


def _as_matrix(layer, num_summed_axes):
    dtype = layer.compute_dtype
    if layer.quantization_mode is not None:
        bias = None if layer.bias is None else ops.reshape(layer.bias, (-1,))
        return _Matrix(layer.int8_matrix(), bias)
    kernel = ops.cast(ops.convert_to_tensor(layer.kernel), dtype)
    size = math.prod(kernel.shape[:num_summed_axes])
    bias = None if layer.bias is None else ops.cast(ops.reshape(layer.bias, (-1,)), dtype)
    return _Matrix(ops.reshape(kernel, (size, -1)), bias)


def _in_step_form(matrix):
    kernel = matrix.kernel
    return matrix._replace(kernel=loop_form(step_form(kernel))) if isinstance(kernel, Int8Matrix) else matrix


def _joined(matrices):
    if len(matrices) == 1:
        return matrices[0]
    has_bias = matrices[0].bias is not None
    kernels = [matrix.kernel for matrix in matrices]
    if isinstance(kernels[0], Int8Matrix):
        kernel = Int8Matrix(
            ops.concatenate([kernel.values for kernel in kernels], axis=1),
            ops.concatenate([kernel.scale for kernel in kernels], axis=1),
        )
    else:
        kernel = ops.concatenate(kernels, axis=1)
    return _Matrix(
        kernel,
        ops.concatenate([matrix.bias for matrix in matrices], axis=0) if has_bias else None,
    )


def _heads_first(x, num_heads, size):
    """(B, T, N * H) -> (B, N, T, H)."""
    if x.shape[1] == 1:  # the order of values in memory is the same, so nothing has to be moved
        return ops.reshape(x, (-1, num_heads, 1, size))
    return ops.transpose(ops.reshape(x, (-1, ops.shape(x)[1], num_heads, size)), (0, 2, 1, 3))
