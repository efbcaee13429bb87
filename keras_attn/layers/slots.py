"""Layers in the slots of other layers: how they are saved in configs, made from configs, built and called.

A slot is a constructor argument that takes a configured layer. One layer may be in several slots (T5's blocks
share one position bias, ALBERT has one block). A layer or model made from a config shares it in the same way.
"""

import contextlib
import contextvars
import functools
import inspect

import keras

from keras_attn.layers.lora_and_quantization import Adaptable

# In `get_config` of a model: the number of each layer that was described, by its id.
_DESCRIBED = contextvars.ContextVar("described", default=None)
# In `from_config`: the layers that were made, by their number, or by the id of the layer that was copied.
_MADE = contextvars.ContextVar("made", default=None)


@contextlib.contextmanager
def _scope(variable):
    """Remembers layers until the outermost such `with` block ends."""
    if variable.get() is not None:
        yield
        return
    token = variable.set({})
    try:
        yield
    finally:
        variable.reset(token)


def describe_shared_layers():
    """Context of a model's `get_config`: the config records which layers are shared, without help from Keras.

    Keras itself remembers shared layers only while it writes a `.keras` file.
    """
    return _scope(_DESCRIBED)


def make_shared_layers():
    """Context of a `from_config`: a layer that is in several slots is made once."""
    return _scope(_MADE)


def description(layer):
    """The config entry of a slot: the layer itself or None, or in a model's config a description."""
    numbers = _DESCRIBED.get()
    if layer is None or numbers is None:
        return layer
    if id(layer) in numbers:
        return {"shared_layer": numbers[id(layer)]}
    numbers[id(layer)] = len(numbers)
    number = numbers[id(layer)]
    config = keras.saving.serialize_keras_object(layer)
    config.pop("build_config", None)  # The model builds its parts,
    config.pop("compile_config", None)  # and compiles none.
    return {**config, "shared_layer": number}


def made_from(value):
    """The layer for a config entry: made from its description, or a copy of the layer. None stays None.

    A layer in a config is copied. Otherwise a copy of a model would share weights with the original.
    """
    if value is None:
        return None
    with make_shared_layers():
        made = _MADE.get()
        is_layer = isinstance(value, keras.layers.Layer)
        key = id(value) if is_layer else value.get("shared_layer")
        if key is not None and key in made:
            return made[key]
        if is_layer:
            layer = type(value).from_config(value.get_config())
        elif "class_name" in value:
            layer = keras.saving.deserialize_keras_object(
                {name: part for name, part in value.items() if name != "shared_layer"}
            )
        else:
            raise ValueError(f"The config of a layer in a slot is incomplete. Received: {value}.")
        if key is not None:
            made[key] = layer
        return layer


def with_layers(config, slots):
    """A config in which the named slots, or lists of slots, hold new layers."""
    with make_shared_layers():
        return {**config, **{name: _made(config[name]) for name in slots if name in config}}


def _made(value):
    return [made_from(item) for item in value] if isinstance(value, (list, tuple)) else made_from(value)


class Slotted(Adaptable):
    """Mixin of a layer with slots, the names in `_SLOTS`: its config describes the layers in them."""

    @classmethod
    def from_config(cls, config):
        """The layer that a config describes, with new layers in its slots."""
        return cls(**with_layers(config, cls._SLOTS))

    def get_config(self):
        return {**super().get_config(), **{slot: description(getattr(self, slot)) for slot in self._SLOTS}}


def check_layer(name, value):
    """Returns the `value` of a slot if it is valid.

    Raises:
        ValueError: unless it is a layer, or None.
    """
    if value is not None and not isinstance(value, keras.layers.Layer):
        raise ValueError(f"`{name}` must be a layer or None. Received: {name}={value!r}.")
    return value


def copied(layer, name):
    """A layer of the same configuration under another name: a slot may describe several layers of a block."""
    return type(layer).from_config({**layer.get_config(), "name": name})


def is_attention(layer):
    """Whether `call` begins with `query` and `value`; any other layer mixes one sequence."""
    return _arguments(layer.call)[:2] == ["query", "value"]


def has_argument(layer, name):
    """Whether `call` names the argument. `**kwargs` does not count: the layer may ignore the argument."""
    return name in _arguments(layer.call)


def _arguments(method):
    """The names of the arguments of a method, or of a function in its place."""
    if inspect.ismethod(method):
        return _parameters(method.__func__)[1:]
    return list(inspect.signature(method).parameters)


# A backend without graphs asks in every call. The functions are those of classes, so that no layer is kept.
@functools.lru_cache(maxsize=256)
def _parameters(function):
    return list(inspect.signature(function).parameters)


def build_layer(layer, *shapes, dtype):
    """Makes the weights of a layer in a slot, if it has none yet, from the shapes of the sequences that it is called on.

    Layers of this library make all of them in `build`. Other layers may make some in `call`, so they are
    traced.
    """
    if layer.built:
        return
    if isinstance(layer, Adaptable):
        layer.build(*map(tuple, shapes))
    else:
        layer(*(keras.KerasTensor(shape, dtype=dtype) for shape in shapes))


def call_layer(layer, inputs, training, query_mask=None, **arguments):
    """`layer(*inputs)`, with those of `arguments` that are given: neither None nor False.

    A mask must be obeyed or refused, so an argument that the layer's `call` does not have is an error. Only
    `training` and `query_mask` are left out then: the outputs of padded queries are not used.
    """
    given = {name: value for name, value in arguments.items() if value is not None and value is not False}
    for name in given:
        if not has_argument(layer, name):
            raise ValueError(
                f"`{name}` is not an argument of this layer's `call`. "
                f"Received: layer {layer.name!r} of class {type(layer).__name__}."
            )
    optional = {"training": training, "query_mask": query_mask}
    given |= {
        name: value for name, value in optional.items() if value is not None and has_argument(layer, name)
    }
    return layer(*inputs, **given)
