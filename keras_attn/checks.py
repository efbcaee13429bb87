"""Argument checks. Each raises a ValueError that names the argument and the value received."""

import numbers


def check_positive(name, value, optional=False):
    """Returns `value` (a NumPy integer, for instance) as an `int`, or None if that is allowed.

    Raises:
        ValueError: unless it is a positive integer.
    """
    if value is None and optional:
        return None
    if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value <= 0:
        raise ValueError(f"The argument `{name}` must be a positive integer. Received: {name}={value!r}.")
    return int(value)


def check_max_length(max_length, max_sequence_length):
    """The most tokens of an answer: `max_length`, or if that is None, the most that the model can take.

    Raises:
        ValueError: if `max_length` is not a positive integer, or is greater than `max_sequence_length`.
    """
    if max_length is None:
        return max_sequence_length
    max_length = check_positive("max_length", max_length)
    if max_length > max_sequence_length:
        raise ValueError(
            "`max_length` must be at most `max_sequence_length`. "
            f"Received: max_length={max_length}, max_sequence_length={max_sequence_length}."
        )
    return max_length


def check_count(name, value):
    """Returns `value` (a NumPy integer, for instance) as an `int`.

    Raises:
        ValueError: unless it is an integer of at least 0.
    """
    if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < 0:
        raise ValueError(f"`{name}` must be an integer of at least 0. Received: {name}={value!r}.")
    return int(value)


def check_rank(name, shape, axes, hint=""):
    """Checks how many axes a tensor has.

    Args:
        name: String, the argument's name.
        shape: The shape of the tensor.
        axes: String, the axes that it must have: "(B, T, D)".
        hint: String, which ends the message.

    Raises:
        ValueError: unless the shape has as many axes as `axes` names.
    """
    if len(shape) != axes.count(",") + 1:
        raise ValueError(
            f"`{name}` must have the shape {axes}. Received: {name} of shape {tuple(shape)}.{hint}"
        )


def check_pair(name, value, lowest=1):
    """Returns a pair of integers, made from one integer or from two.

    Raises:
        ValueError: if they are not integers of at least `lowest`.
    """
    pair = (value, value)
    if isinstance(value, (list, tuple)):
        pair = tuple(value)
    integers = [size for size in pair if isinstance(size, int) and not isinstance(size, bool)]
    if len(pair) != 2 or len(integers) != 2 or min(integers) < lowest:
        raise ValueError(
            f"`{name}` must be an integer of at least {lowest}, or a pair of them. Received: {name}={value}."
        )
    return pair


def check_rate(name, value):
    """Returns `value` unchanged.

    Raises:
        ValueError: unless it is a probability below 1.
    """
    if not isinstance(value, numbers.Real) or isinstance(value, bool) or not 0 <= value < 1:
        raise ValueError(f"`{name}` must be a number in [0, 1). Received: {name}={value!r}.")
    return value


def choose(name, value, choices):
    """`choices[value]`.

    Raises:
        ValueError: if `value` is not a key; the message lists the keys.
    """
    if value not in list(choices):  # a list, since the value may not be hashable
        raise ValueError(f"`{name}` must be one of {sorted(choices)}. Received: {name}={value!r}.")
    return choices[value]


def concrete_values(tensor):
    """The tensor's values as a NumPy array in eager mode, None while a graph is traced."""
    import keras  # a command that only parses its arguments needs no Keras
    import numpy as np

    try:
        return np.asarray(keras.ops.convert_to_numpy(tensor))
    except Exception:  # each backend raises its own exception for a traced value
        return None
