"""Layer normalisation with a gradient that reads its inputs fewer times than the gradient TensorFlow derives."""

from keras import ops

from keras_attn.ops.graph_purpose import custom_gradient, is_compiled_scope
from keras_attn.ops.precision import at_least_float32


def layer_normalization(inputs, gamma, beta, epsilon):
    """gamma (x - mean) / sqrt(variance + epsilon) + beta, over the last axis.

    `keras.ops.layer_normalization` with its gradient written out: it takes two means of each row, where automatic
    differentiation goes through the variance and the mean separately, over all inputs several times.

    Args:
        inputs: Floats (..., D).
        gamma, beta: Floats (D,).
        epsilon: Float added to the variance.

    Returns:
        Floats (..., D), in the dtype of `inputs`, computed in at least float32.

    Example:

    ```python
    y = layer_normalization(keras.random.normal((2, 3, 5)), keras.ops.ones(5), keras.ops.zeros(5), epsilon=1e-5)
    ```

    Reference: [Ba et al., 2016](https://arxiv.org/abs/1607.06450), section 3.
    """
    inputs = ops.convert_to_tensor(inputs)
    x = at_least_float32(inputs)

    @custom_gradient
    def normalize(x, gamma, beta):
        centred = x - ops.mean(x, axis=-1, keepdims=True)
        inverse_deviation = ops.rsqrt(ops.mean(ops.square(centred), axis=-1, keepdims=True) + epsilon)
        normalized = centred * inverse_deviation

        def gradient(upstream):
            rows = tuple(range(len(x.shape) - 1))
            by_normalized = upstream * gamma
            by_mean = ops.mean(by_normalized, axis=-1, keepdims=True)
            by_deviation = ops.mean(by_normalized * normalized, axis=-1, keepdims=True)
            by_x = inverse_deviation * (by_normalized - by_mean - normalized * by_deviation)
            return by_x, ops.sum(upstream * normalized, axis=rows), ops.sum(upstream, axis=rows)

        if is_compiled_scope():
            # In an export gamma is a constant, which TensorFlow multiplies first; here it is so in Python too.
            return centred * (inverse_deviation * gamma) + beta, gradient
        return normalized * gamma + beta, gradient

    # Weights are copied because TensorFlow allows tensors here, but no variables.
    gamma, beta = (ops.copy(ops.cast(weight, x.dtype)) for weight in (gamma, beta))
    return ops.cast(normalize(x, gamma, beta), inputs.dtype)
