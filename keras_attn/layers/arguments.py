"""Copies of constructor arguments that several layers need."""

import keras


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
