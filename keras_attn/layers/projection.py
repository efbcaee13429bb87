"""Products with the matrices of layers, which a loop of steps makes once."""

import collections
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
    is_interpreted_graph,
    loop_form,
    runs_bfloat16_products,
    runs_op_by_op,
    shape_to_keep,
    split_by_sizes,
    step_form,
    step_scope,
)

# Elementwise activations, and the functions that compute them.
_ELEMENTWISE = {
    keras.activations.gelu: gelu,
    gelu_tanh: gelu_tanh,
    keras.activations.relu: keras.activations.relu,
    keras.activations.sigmoid: keras.activations.sigmoid,
    keras.activations.silu: keras.activations.silu,
    keras.activations.tanh: keras.activations.tanh,
}

# What a decoding loop made once for its steps, see `step_matrices`; None outside of a loop. It saves time and changes no
# result. It is not an argument, because Keras casts every float tensor that a layer is called with to the layer's compute
# dtype, and so would cast, in each step, matrices that are stored in another dtype.
_STEP_MATRICES = contextvars.ContextVar("step_matrices", default=None)


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
        kept = tuple(shape_to_keep(inputs)[:-summed])
        rows = ops.reshape(inputs, (*kept, math.prod(inputs.shape[-summed:])))
        bias = self.bias
        if bias is not None:
            bias = ops.reshape(bias, (-1,))
        x = product(rows, step_matrix(self), bias)
        x = ops.reshape(x, kept + tuple(self.kernel.shape[summed:]))
        return _activated(x, self.activation)

    def int8_matrix(self):
        """The quantised kernel, an `Int8Matrix`."""
        values = stored_matrix(self)
        size = math.prod(values.shape[: _num_summed_axes(self.equation)])
        return int8_matrix(ops.reshape(values, (size, -1)), self.kernel_scale)

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
        return _activated(x, self.activation)

    def step_matrix(self):
        """The quantised kernel as it is multiplied: an `Int8Matrix`, or floats if it is small."""
        return step_form(int8_matrix(ops.convert_to_tensor(stored_matrix(self)), self.kernel_scale))


def int8_matrix(values, divisors, is_transposed=False):
    """The `Int8Matrix` of Keras' int8 values and of their divisors, one for each column."""
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
        if bias is not None:
            x = ops.add(x, bias)
        return _activated(x, activation)
    if bias is not None and len(bias.shape) > 1:
        bias = ops.reshape(bias, (-1,))
    num_kept_axes = len(inputs.shape) - num_summed_axes
    shape = tuple(shape_to_keep(inputs)[:num_kept_axes]) + tuple(kernel.shape[num_summed_axes:])
    size = math.prod(kernel.shape[:num_summed_axes])
    if runs_bfloat16_products(inputs, kernel):
        x = _bfloat16_product(_rows(inputs, size), ops.reshape(kernel, (size, -1)), bias)
        return _activated(ops.reshape(x, shape), activation)
    if _are_few(inputs.shape[1:num_kept_axes]) or (not training and runs_op_by_op(inputs)):
        rows = _rows(inputs, size)
        if len(kernel.shape) > 2:
            kernel = ops.reshape(kernel, (size, -1))
    else:
        rows = ops.reshape(inputs, (1, -1, size))
        kernel = ops.reshape(kernel, (1, size, -1))
    x = ops.matmul(rows, kernel)
    if bias is not None:
        x = ops.add(x, bias)
    if activation in _ELEMENTWISE:
        x = _ELEMENTWISE[activation](x)
        activation = None
    if len(x.shape) != 2 or len(shape) != 2:
        x = ops.reshape(x, shape)
    return _activated(x, activation)


def _rows(x, size):
    """`x` as a matrix with rows of `size` numbers."""
    return x if len(x.shape) == 2 else ops.reshape(x, (-1, size))


def _activated(x, activation):
    return x if activation is None else activation(x)


def _int8_product(inputs, matrix, bias):
    x = int8_product(_rows(ops.cast(inputs, "float32"), inputs.shape[-1]), matrix)
    if bias is not None:
        x = ops.add(x, bias)
    if len(inputs.shape) != 2:
        x = ops.reshape(x, (*shape_to_keep(inputs)[:-1], x.shape[-1]))
    return ops.cast(x, inputs.dtype)


def _bfloat16_product(rows, kernel, bias):
    x = bfloat16_product(rows, kernel)
    if bias is not None:
        return ops.add(x, ops.cast(bias, x.dtype))
    if is_compiled_scope():
        # XLA ends the process if nothing is between such a product and its only use, a sum or maximum of its rows.
        return ops.minimum(x, float("inf"))
    return x


def _are_few(sizes):
    """Whether it is known that these axes hold few rows, as in a decoding step."""
    return all(isinstance(size, int) for size in sizes) and math.prod(sizes) < 32


def _num_summed_axes(equation):
    inputs, rest = equation.split(",")
    kernel, _ = rest.split("->")
    return len(set(inputs) & set(kernel))


StepMatrices = collections.namedtuple("StepMatrices", ["matrices", "weights", "joined"])
StepMatrices.__doc__ = """What a loop over steps made once, see `step_matrices`.

matrices: Dict from the id of a layer to its matrix; and from the id of an attention layer, and whether it projects keys and
    values in a step, to its `StepProjections`.
weights: List of pairs: a variable, and its value as a tensor.
joined: List of pairs: a list of variables that are short vectors, and their values as one vector. TensorFlow's executor passes
    each value that a loop reads through three operations in every step; a single operation splits all of these.
"""

# So many short vectors are one value of a loop. A step copies them, so a long one stays a value of its own.
_JOINED_VECTORS = 32
_LONGEST_JOINED_VECTOR = 8192


def step_matrices(model):
    """What the layers of a model would make, or read, again in every step of a loop, for `step_matrices_scope`.

    Args:
        model: A model, or any object; one without layers has no matrices.

    Returns:
        `StepMatrices`.
    """
    if not isinstance(model, keras.Model):
        return StepMatrices({}, [], [])
    matrices = {}
    for layer in all_layers(model):
        if hasattr(layer, "makes_step_matrix") and layer.makes_step_matrix():
            matrices[id(layer)] = loop_form(layer.step_matrix())
        if hasattr(layer, "step_attention_layers"):
            for attention, projects_keys in layer.step_attention_layers():
                projections = attention.step_projections(projects_keys=projects_keys)
                matrices[id(attention), projects_keys] = projections
    if not is_interpreted_graph() or not all(map(_only_reads_weights, all_layers(model))):
        return StepMatrices(matrices, [], [])
    short = [weight for weight in model.weights if _is_short_vector(weight)]
    weights = [(weight, ops.copy(weight)) for weight in model.weights if not _is_short_vector(weight)]
    # Weights have the order of the layers. A graph leaves out the vectors of layers that no step calls, as those of an encoder.
    groups = [short[first : first + _JOINED_VECTORS] for first in range(0, len(short), _JOINED_VECTORS)]
    joined = [(group, ops.concatenate(group)) for group in groups]
    return StepMatrices(matrices, weights, joined)


def _is_short_vector(weight):
    if len(weight.shape) != 1 or keras.backend.standardize_dtype(weight.dtype) != "float32":
        return False
    return weight.shape[0] <= _LONGEST_JOINED_VECTOR


def _only_reads_weights(layer):
    """Whether a layer, where nothing is trained, is known to assign no variable: a layer of a user may count its calls."""
    return type(layer).__module__.partition(".")[0] in ("keras", "keras_attn")


@contextlib.contextmanager
def step_matrices_scope(prepared):
    """Layers that are called inside use these `StepMatrices`: one step of a search."""
    values = [*prepared.weights]
    for variables, joined in prepared.joined:
        sizes = [variable.shape[0] for variable in variables]
        values += zip(variables, split_by_sizes(joined, sizes, axis=0), strict=True)
    weights = keras.StatelessScope(values, initialize_variables=False) if values else contextlib.nullcontext()
    token = _STEP_MATRICES.set(prepared.matrices)
    try:
        with step_scope(), weights:
            yield
    finally:
        _STEP_MATRICES.reset(token)


def step_matrix(layer):
    """A layer's matrix: the one made before the loop, or else a new one."""
    matrix = _prepared_for_steps(id(layer))
    return layer.step_matrix() if matrix is None else matrix


def current_step_projections(layer, *, projects_keys):
    """The `StepProjections` of an attention layer that were made before the loop, or None."""
    return _prepared_for_steps((id(layer), projects_keys))


def _prepared_for_steps(key):
    matrices = _STEP_MATRICES.get()
    return None if matrices is None else matrices.get(key)
