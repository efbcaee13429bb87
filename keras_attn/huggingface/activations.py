"""Activations: their names in transformers, and the functions of this library with the same values."""

from keras_attn.layers.activations import serialize_activation

# Where several names mean one function, the first one is written.
_OURS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "gelu_10": "gelu_10",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    "relu2": "relu_squared",
    "relu6": "relu6",
    "leaky_relu": "leaky_relu_001",
    "silu": "silu",
    "swish": "silu",
    "hardswish": "hard_silu",
    "mish": "mish",
    "laplace": "laplace",
    "sqrtsoftplus": "sqrt_softplus",
    "tanh": "tanh",
    "sigmoid": "sigmoid",
    "linear": "linear",
}
_WITH_WEIGHTS = ("prelu", "xielu")


def our_activation(name):
    """The name in this library of an activation of transformers.

    Raises:
        ValueError: if no activation of this library has the same values.

    Example:

    ```python
    our_activation("gelu_new")  # "gelu_tanh"
    ```
    """
    if name in _WITH_WEIGHTS:
        raise ValueError(f"{name!r} has weights of its own, for which there is no place")
    if not isinstance(name, str) or name not in _OURS:
        raise ValueError(f"it must be one of {sorted(_OURS)}")
    return _OURS[name]


def their_activation(activation):
    """The name in transformers of an activation function of this library; its own name if transformers lacks it."""
    ours = serialize_activation(activation)
    return next((name for name, other in _OURS.items() if other == ours), ours)
