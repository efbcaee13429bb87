"""Activations that Keras does not have, or not by name, and how configs name them."""

import keras


@keras.saving.register_keras_serializable(package="keras_attn", name="gelu_tanh")
def gelu_tanh(x):
    """The tanh approximation of GELU, used by GPT-2, T5 v1.1 and Gemma.

    Example:

    ```python
    y = gelu_tanh(keras.ops.convert_to_tensor([-1.0, 0.0, 1.0]))  # [-0.1588, 0.0, 0.8412]
    ```

    Reference: [Hendrycks and Gimpel, 2016](https://arxiv.org/abs/1606.08415), section 2.
    """
    return keras.activations.gelu(x, approximate=True)


@keras.saving.register_keras_serializable(package="keras_attn", name="quick_gelu")
def quick_gelu(x):
    """The sigmoid approximation of GELU, x sigmoid(1.702 x), used by CLIP.

    Example:

    ```python
    y = quick_gelu(keras.ops.convert_to_tensor([-1.0, 0.0, 1.0]))  # [-0.1542, 0.0, 0.8458]
    ```

    Reference: [Hendrycks and Gimpel, 2016](https://arxiv.org/abs/1606.08415), section 2.
    """
    return x * keras.ops.sigmoid(1.702 * x)


@keras.saving.register_keras_serializable(package="keras_attn", name="gelu_10")
def gelu_10(x):
    """GELU, cut at -10 and 10 for quantisation.

    Example:

    ```python
    y = gelu_10(keras.ops.convert_to_tensor([0.0, 1.0, 11.0]))  # [0.0, 0.8413, 10.0]
    ```

    Reference: [Wu et al., 2020](https://arxiv.org/abs/2004.09602), section 5.
    """
    return keras.ops.clip(keras.activations.gelu(x, approximate=False), -10.0, 10.0)


@keras.saving.register_keras_serializable(package="keras_attn", name="relu_squared")
def relu_squared(x):
    """ReLU, squared.

    Example:

    ```python
    y = relu_squared(keras.ops.convert_to_tensor([-1.0, 0.0, 3.0]))  # [0.0, 0.0, 9.0]
    ```

    Reference: [So et al., 2021](https://arxiv.org/abs/2109.08668), section 4.
    """
    return keras.ops.square(keras.ops.relu(x))


@keras.saving.register_keras_serializable(package="keras_attn", name="leaky_relu_001")
def leaky_relu_001(x):
    """Leaky ReLU with the slope 0.01 of the paper and of torch; Keras' has 0.2.

    Example:

    ```python
    y = leaky_relu_001(keras.ops.convert_to_tensor([-1.0, 0.0, 1.0]))  # [-0.01, 0.0, 1.0]
    ```

    Reference: [Maas et al., 2013](https://ai.stanford.edu/~amaas/papers/relu_hybrid_icml2013_final.pdf), section 2.
    """
    return keras.ops.leaky_relu(x, negative_slope=0.01)


@keras.saving.register_keras_serializable(package="keras_attn", name="laplace")
def laplace(x):
    """The distribution function that approximates a squared ReLU in MEGA.

    Example:

    ```python
    y = laplace(keras.ops.convert_to_tensor([0.0, 0.707107]))  # [0.0061, 0.5]
    ```

    Reference: [Ma et al., 2022](https://arxiv.org/abs/2209.10655), section 3.3.
    """
    return 0.5 * (1.0 + keras.ops.erf((x - 0.707107) / (0.282095 * 2**0.5)))


@keras.saving.register_keras_serializable(package="keras_attn", name="sqrt_softplus")
def sqrt_softplus(x):
    """The square root of a softplus.

    Example:

    ```python
    y = sqrt_softplus(keras.ops.convert_to_tensor([0.0]))  # [0.8326]
    ```
    """
    return keras.ops.sqrt(keras.ops.softplus(x))


_OWN = (gelu_tanh, quick_gelu, gelu_10, relu_squared, leaky_relu_001, laplace, sqrt_softplus)
_BY_NAME = {function.__name__: function for function in _OWN}


def get_activation(identifier):
    """The activation function for a name, a function or a config: Keras', and those of this file, `"gelu_tanh"` for example."""
    if isinstance(identifier, str) and identifier in _BY_NAME:
        return _BY_NAME[identifier]
    return keras.activations.get(identifier)


def serialize_activation(activation):
    """The activation in a form that `get_activation` accepts, for a config."""
    if activation in _OWN:
        return activation.__name__
    return keras.activations.serialize(activation)
