"""Checks and copies of constructor arguments that several layers need."""


def check_positive(name, value, optional=False):
    """Raises ValueError unless `value` is a positive integer (or None where that is allowed)."""
    if value is None and optional:
        return
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise ValueError(f"`{name}` must be a positive integer. Received: {name}={value}.")


def check_rate(name, value):
    """Raises ValueError unless `value` is a probability below 1."""
    if not isinstance(value, (int, float)) or not 0 <= value < 1:
        raise ValueError(f"`{name}` must be in [0, 1). Received: {name}={value}.")


def choose(name, value, choices):
    """`choices[value]`, or a ValueError that lists what may be chosen."""
    if value not in choices:
        raise ValueError(f"`{name}` must be one of {sorted(choices)}. Received: {name}={value!r}.")
    return choices[value]


def copy_initializer(initializer):
    """A fresh copy: one unseeded instance gives every weight it starts the same values."""
    return initializer.__class__.from_config(initializer.get_config())
