"""Constructor arguments that several layers take: activations by name, initializers that are copied."""

import keras


@keras.saving.register_keras_serializable(package="keras_attn", name="gelu_tanh")
def gelu_tanh(x):
    """The tanh form of GELU, with which GPT-2, T5 v1.1 and Gemma were trained.

    Example:

    ```python
    y = gelu_tanh(keras.ops.convert_to_tensor([-1.0, 0.0, 1.0]))  # [-0.1588, 0.0, 0.8412]
    ```

    Reference: [Hendrycks and Gimpel, 2016](https://arxiv.org/abs/1606.08415), section 2.
    """
    return keras.activations.gelu(x, approximate=True)


def get_activation(identifier):
    """The activation function of a name, a function or a config: what Keras knows, and `"gelu_tanh"`."""
    return gelu_tanh if identifier == "gelu_tanh" else keras.activations.get(identifier)


def serialize_activation(activation):
    """What `get_activation` takes, for a config."""
    return "gelu_tanh" if activation is gelu_tanh else keras.activations.serialize(activation)


def copy_initializer(initializer):
    """A fresh copy: one unseeded instance gives every weight it starts the same values."""
    return initializer.__class__.from_config(initializer.get_config())


def of_sublayer(layer, name, dtype=None):
    """The arguments that a layer hands on to a sub-layer: copies of its initializers, a dtype policy and a name.

    The policy is by default what the layer's own says of that name. A sub-layer that is made of others takes the
    layer's own policy, which may be a map of theirs.
    """
    return {
        "kernel_initializer": copy_initializer(layer.kernel_initializer),
        "bias_initializer": copy_initializer(layer.bias_initializer),
        "dtype": layer._policy_of(name) if dtype is None else dtype,
        "name": name,
    }
