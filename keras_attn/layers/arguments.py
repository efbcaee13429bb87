"""Checks and copies of constructor arguments that several layers need."""

import keras


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


def with_layers(config, *names):
    """A config in which the named slots hold layers of its own.

    `get_config` gives the layers themselves: Keras writes them into a `.keras` file so that one layer in the slots of
    several stays one. What comes back is the description of a layer in a file, or the layer where a config is used
    at once, as `clone_model` does; that one is copied, or the copy of the model would share its weights.
    """
    slots = {name: config[name] for name in names if config.get(name) is not None}
    return {**config, **{name: _own_layer(slot) for name, slot in slots.items()}}


def _own_layer(slot):
    if isinstance(slot, keras.layers.Layer):
        return type(slot).from_config(slot.get_config())
    return keras.saving.deserialize_keras_object(slot)
