"""Constructor arguments that several layers take: activations by name, initializers that are copied."""

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


def get_activation(identifier):
    """The activation function for a name, a function or a config: those of Keras, and `"gelu_tanh"`."""
    return gelu_tanh if identifier == "gelu_tanh" else keras.activations.get(identifier)


def serialize_activation(activation):
    """The activation in a form that `get_activation` accepts, for a config."""
    return "gelu_tanh" if activation is gelu_tanh else keras.activations.serialize(activation)


def copy_initializer(initializer):
    """A new copy, because one unseeded instance would give all of its weights the same values."""
    return initializer.__class__.from_config(initializer.get_config())


def of_sublayer(layer, name, dtype=None):
    """The arguments that a layer passes to a sub-layer: copied initializers, a dtype policy and a name.

    By default, the policy is that of the layer for this name. A sub-layer that has sub-layers takes the
    policy of the layer itself, which may be a map with their policies.
    """
    return {
        "kernel_initializer": copy_initializer(layer.kernel_initializer),
        "bias_initializer": copy_initializer(layer.bias_initializer),
        "dtype": layer._policy_of(name) if dtype is None else dtype,
        "name": name,
    }
