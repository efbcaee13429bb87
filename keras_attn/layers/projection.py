"""Products with the matrices of layers, which a loop of steps makes once."""

import contextlib
import contextvars
import math

import keras
from keras import ops

from keras_attn.compat.keras import all_layers, stored_matrix
from keras_attn.layers.activations import gelu_tanh
from keras_attn.layers.lora_and_quantization import QuantizableSubclass
from keras_attn.ops import (
    Int8Matrix,
    bfloat16_product,
    gelu,
    int8_product,
    is_compiled_scope,
    loop_form,
    runs_bfloat16_products,
    runs_op_by_op,
    shape_to_keep,
    step_form,
)

# Activations of each number for itself, and the functions that compute them.
_ELEMENTWISE = {
    keras.activations.gelu: gelu,
    **{
        activation: activation
        for activation in (
            gelu_tanh,
            keras.activations.relu,
            keras.activations.sigmoid,
            keras.activations.silu,
            keras.activations.tanh,
        )
    },
}


@keras.saving.register_keras_serializable(package="keras_attn")
class Projection(QuantizableSubclass, keras.layers.EinsumDense):
    """Keras' `EinsumDense` over the last axes of its inputs, computed as one product of two matrices.

    The weights, LoRA and quantisation are those of `EinsumDense`. TensorFlow has a fast kernel that adds a
    vector to a matrix, and one for the gradient of that. It adds the bias (N, H) of an `EinsumDense` more
    slowly. For long inputs the product is a batched product with a batch of 1: on CPUs TensorFlow computes
    its gradient faster than that of a plain product. A plain product costs less per call, so it is used when
    there is no gradient.

    Args:
        *args, **kwargs: As in `EinsumDense`. The axes that the equation sums come first in the kernel and
            last in the inputs.

    Call arguments:
        inputs: Floats (..., *summed), of the rank in the equation.

    Returns:
        Floats (..., *new), the kernel being (*summed, *new).

    Example:

    ```python
    projection = Projection("abx,xyz->abyz", output_shape=(None, 3, 4), bias_axes="yz")
    heads = projection(keras.random.normal((2, 5, 12)))  # (2, 5, 3, 4)
    ```
    """

    def call(self, inputs, training=None):
        summed = _num_summed_axes(self.equation)
        kernel = ops.convert_to_tensor(self.kernel)
        return product(inputs, kernel, self.bias, summed, training, self.activation)

    def quantized_call(self, inputs, **kwargs):
        if not self.has_int8_product():
            return super().quantized_call(inputs, **kwargs)
        summed = _num_summed_axes(self.equation)
        kept, size = shape_to_keep(inputs)[:-summed], math.prod(inputs.shape[-summed:])
        bias = None if self.bias is None else ops.reshape(self.bias, (-1,))
        x = product(ops.reshape(inputs, (*kept, size)), step_matrix(self), bias)
        x = ops.reshape(x, (*kept, *self.kernel.shape[summed:]))
        return x if self.activation is None else self.activation(x)

    def int8_matrix(self):
        """The quantised kernel, an `Int8Matrix`."""
        size = math.prod(stored_matrix(self).shape[: _num_summed_axes(self.equation)])
        return int8_matrix(ops.reshape(stored_matrix(self), (size, -1)), self.kernel_scale)

    def step_matrix(self):
        """The quantised kernel as it is multiplied: an `Int8Matrix`, or floats if it is small."""
        return step_form(self.int8_matrix())


@keras.saving.register_keras_serializable(package="keras_attn")
class Dense(QuantizableSubclass, keras.layers.Dense):
    """Keras' `Dense`, computed in the same way as `Projection`.

    Args:
        *args, **kwargs: As in `keras.layers.Dense`.

    Call arguments:
        inputs: Floats (..., D).

    Returns:
        Floats (..., units).

    Example:

    ```python
    y = Dense(3)(keras.random.normal((2, 5, 12)))  # (2, 5, 3)
    ```
    """

    def call(self, inputs, training=None):
        kernel = ops.convert_to_tensor(self.kernel)
        return product(inputs, kernel, self.bias, training=training, activation=self.activation)

    def quantized_call(self, inputs, **kwargs):
        if not self.has_int8_product():
            return super().quantized_call(inputs, **kwargs)
        x = product(inputs, step_matrix(self), self.bias)
        return x if self.activation is None else self.activation(x)

    def step_matrix(self):
        """The quantised kernel as it is multiplied: an `Int8Matrix`, or floats if it is small."""
        return step_form(int8_matrix(ops.convert_to_tensor(stored_matrix(self)), self.kernel_scale))


def int8_matrix(values, divisors, is_transposed=False):
    """The `Int8Matrix` of Keras' int8 values and of what they are to be divided by, one for each column."""
    shape = (-1, 1) if is_transposed else (1, -1)
    # TensorFlow's `reciprocal` rounds in another way than a division, which XLA makes of it.
    return Int8Matrix(values, 1.0 / ops.reshape(ops.cast(divisors, "float32"), shape))


def product(inputs, kernel, bias=None, num_summed_axes=1, training=None, activation=None):
    """The sum over the last axes of `inputs` and the first of `kernel`, plus a bias, as a product of two matrices.

    TensorFlow fuses the product, the bias and an activation if no other operation is between them.

    Args:
        inputs: Floats (..., *summed).
        kernel: Floats (*summed, *new), or an `Int8Matrix`, for one summed axis and one new.
        bias: Floats (*new), or None.
        num_summed_axes: Integer.
        training: Boolean, whether there will be a gradient.
        activation: Function that is applied to the sum, or None.

    Returns:
        Floats (..., *new); float32 where `bfloat16_product` is used.

    Example:

    ```python
    y = product(keras.random.normal((2, 5, 12)), keras.random.normal((12, 3)), keras.random.normal((3,)))  # (2, 5, 3)
    ```
    """
    if isinstance(kernel, Int8Matrix):
        return _int8_product(inputs, kernel, bias)
    if keras.backend.backend() == "torch":  # where each operation costs as much as a small product
        x = ops.tensordot(inputs, kernel, axes=num_summed_axes)
        x = x if bias is None else ops.add(x, bias)
        return x if activation is None else activation(x)
    size = math.prod(kernel.shape[:num_summed_axes])
    kept = len(inputs.shape) - num_summed_axes
    shape = (*shape_to_keep(inputs)[:kept], *kernel.shape[num_summed_axes:])
    if runs_bfloat16_products(inputs, kernel):
        x = bfloat16_product(ops.reshape(inputs, (-1, size)), ops.reshape(kernel, (size, -1)))
        if bias is not None:
            x = ops.add(x, ops.cast(ops.reshape(bias, (-1,)), x.dtype))
        elif is_compiled_scope():
            # XLA ends the process if nothing is between such a product and its only use, a sum or maximum of its rows.
            x = ops.minimum(x, float("inf"))
        x = ops.reshape(x, shape)
        return x if activation is None else activation(x)
    is_plain = _are_few(inputs.shape[1:kept]) or (not training and runs_op_by_op(inputs))
    one = () if is_plain else (1,)
    is_matrix = not one and len(kernel.shape) == 2
    kernel = kernel if is_matrix else ops.reshape(kernel, (*one, size, -1))
    x = ops.matmul(ops.reshape(inputs, (*one, -1, size)), kernel)
    if bias is not None:
        x = ops.add(x, bias if len(bias.shape) == 1 else ops.reshape(bias, (-1,)))
    if activation in _ELEMENTWISE:
        return ops.reshape(_ELEMENTWISE[activation](x), shape)
    x = ops.reshape(x, shape)
    return x if activation is None else activation(x)


def _int8_product(inputs, matrix, bias):
    x = int8_product(ops.reshape(ops.cast(inputs, "float32"), (-1, inputs.shape[-1])), matrix)
    if bias is not None:
        x = ops.add(x, bias)
    return ops.cast(ops.reshape(x, (*shape_to_keep(inputs)[:-1], x.shape[-1])), inputs.dtype)


def _are_few(sizes):
    """Whether it is known that these axes hold few rows, as in a decoding step."""
    return all(isinstance(size, int) for size in sizes) and math.prod(sizes) < 32


def _num_summed_axes(equation):
    inputs, rest = equation.split(",")
    kernel, _ = rest.split("->")
    return len(set(inputs) & set(kernel))


_MADE = contextvars.ContextVar("made", default=None)


def step_matrices(model):
    """What the layers of a model would make again in every step of a loop, for `step_matrices_scope`.

    Args:
        model: A model, or any object; one without layers has no matrices.

    Returns:
        Dict from the id of a layer to its matrix; and from the id of an attention layer, and whether it projects keys and
        values in a step, to its `StepProjections`.
    """
    if not isinstance(model, keras.Model):
        return {}
    made = {}
    for layer in all_layers(model):
        if hasattr(layer, "makes_step_matrix") and layer.makes_step_matrix():
            made[id(layer)] = loop_form(layer.step_matrix())
        if hasattr(layer, "step_attention_layers"):
            for attention, of_keys in layer.step_attention_layers():
                made[id(attention), of_keys] = attention.step_projections(of_keys)
    return made


@contextlib.contextmanager
def step_matrices_scope(made):
    """Layers that are called inside use these matrices, which `step_matrices` has made."""
    token = _MADE.set(made)
    try:
        yield
    finally:
        _MADE.reset(token)


def step_matrix(layer):
    """A layer's matrix: the one made before the loop, or else a new one."""
    made = (_MADE.get() or {}).get(id(layer))
    return layer.step_matrix() if made is None else made


def current_step_projections(layer, of_keys):
    """The `StepProjections` of an attention layer that were made before the loop, or None."""
    return (_MADE.get() or {}).get((id(layer), of_keys))
