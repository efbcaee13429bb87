import math

import keras
from keras import ops

from keras_attn.layers.adaptation import QuantizableSubclass


@keras.saving.register_keras_serializable(package="keras_attn")
class Projection(QuantizableSubclass, keras.layers.EinsumDense):
    """Keras' `EinsumDense` over the last axes of its inputs, computed as one product of two matrices.

    The weights, LoRA and quantisation are those of `EinsumDense`. TensorFlow has a kernel of its own for adding a
    vector to a matrix, and for the gradient of that; the bias (N, H) of an `EinsumDense` it adds, and sums, the slow
    way. For long inputs the product is one of batches, of which there is one: on processors TensorFlow computes its
    gradient faster than that of a plain product, which costs less a call.

    Args:
        *args, **kwargs: As in `EinsumDense`. The axes of the kernel that the equation sums come first in it, and
            last in the inputs.

    Example:

    ```python
    projection = Projection("abx,xyz->abyz", output_shape=(None, 3, 4), bias_axes="yz")
    heads = projection(keras.random.normal((2, 5, 12)))  # (2, 5, 3, 4)
    ```
    """

    def call(self, inputs, training=None):
        kernel = ops.convert_to_tensor(self.kernel)
        summed = _num_summed_axes(self.equation)
        size = math.prod(kernel.shape[:summed])
        shape = (*ops.shape(inputs)[: len(inputs.shape) - summed], *kernel.shape[summed:])
        one = () if _are_few(inputs.shape[1 : len(inputs.shape) - summed]) else (1,)
        x = ops.matmul(ops.reshape(inputs, (*one, -1, size)), ops.reshape(kernel, (*one, size, -1)))
        if self.bias is not None:
            x = ops.add(x, ops.reshape(self.bias, (-1,)))
        x = ops.reshape(x, shape)
        return x if self.activation is None else self.activation(x)


def _are_few(sizes):
    """Whether it is known that these axes hold few rows, as in a step of decoding."""
    return all(isinstance(size, int) for size in sizes) and math.prod(sizes) < 32


def _num_summed_axes(equation):
    inputs, rest = equation.split(",")
    kernel, _ = rest.split("->")
    return len(set(inputs) & set(kernel))
