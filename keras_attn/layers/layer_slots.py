"""Layers in the slots of other layers: how they are saved in configs, made from configs, built and called.

A slot is a constructor argument that takes a configured layer. One layer may be in several slots (T5's blocks
share one position bias, ALBERT has one block). A layer or model made from a config shares it in the same way.
"""

import concurrent.futures
import contextlib
import contextvars
import functools
import inspect

import keras

from keras_attn.compat.keras import all_layers
from keras_attn.layers.lora_and_quantization import Adaptable
from keras_attn.ops import token_positions

# What a description has besides Keras' entries.
_OWN_ENTRIES = ("shared_layer", "made_under")
# Keras calls `get_config` and `from_config` of nested layers without arguments, so what they share stands here.
# In `get_config` of a model: the number of each layer that was described, by its id.
_DESCRIBED_LAYERS = contextvars.ContextVar("described_layers", default=None)
# In `from_config`: the layers that were made, by their number, or by the id of the layer that was copied.
_MADE_LAYERS = contextvars.ContextVar("made_layers", default=None)


@contextlib.contextmanager
def _memory_scope(variable):
    """Remembers layers until the outermost such `with` block ends."""
    if variable.get() is not None:
        yield
        return
    token = variable.set({})
    try:
        yield
    finally:
        variable.reset(token)


@contextlib.contextmanager
def global_policy(name):
    """Layers that are made without a `dtype` in this block get this policy; None changes nothing.

    A class may make layers in its constructor without passing them a policy. Keras then gives them the global policy of
    the moment, which need not be that of the moment when the class was first made.
    """
    before = keras.config.dtype_policy()
    if name is not None:
        keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def plain_policy(policy):
    """The name of a policy (the default one of a map) without its quantisation."""
    if isinstance(policy, keras.dtype_policies.DTypePolicyMap):
        policy = policy.default_policy
    return policy.name.rpartition("_from_")[2]


def plain_policies(layer):
    """List of the plain policies of a layer and of all layers inside it."""
    return [plain_policy(part.dtype_policy) for part in all_layers(layer)]


def construction_policy(layer):
    """The name of the global policy under which a layer's config makes a layer with the same policies, if there is one."""
    own_policy = plain_policy(layer.dtype_policy)
    layer_policies = plain_policies(layer)
    if set(layer_policies) == {own_policy}:
        return own_policy

    def restores_policies(name):
        with global_policy(name):
            policies = plain_policies(type(layer).from_config(layer.get_config()))
        return policies == layer_policies[: len(policies)]

    # Without repetitions, in order.
    candidates = dict.fromkeys([own_policy, keras.config.dtype_policy().name, *layer_policies])
    for name in candidates:
        # Another thread remembers no layers that are being described or made here.
        if run_without_values(functools.partial(restores_policies, name)):
            return name
    return own_policy


def run_without_values(function):
    """Calls a function that makes models. Their variables have shapes but no values, so they take no memory."""

    def run():
        with keras.StatelessScope(initialize_variables=False):
            return function()

    # Keras keeps the variables that a scope did not initialise per thread: they are dropped with this thread.
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        return thread.submit(run).result()


def config_policy(config):
    """The global policy under which a layer with this config is made: its own, or None if it has none."""
    policy = config.get("dtype")
    return None if policy is None else plain_policy(keras.dtype_policies.get(policy))


def describe_shared_layers():
    """Context of a model's `get_config`: the config records which layers are shared, without help from Keras.

    Keras itself remembers shared layers only while it writes a `.keras` file.
    """
    return _memory_scope(_DESCRIBED_LAYERS)


def is_described():
    """Whether the config being made is part of the config of an outer model."""
    return _DESCRIBED_LAYERS.get() is not None


def make_shared_layers():
    """Context of a `from_config`: a layer that is in several slots is made once."""
    return _memory_scope(_MADE_LAYERS)


def description(layer):
    """The config entry of a slot: the layer itself or None, or in a model's config a description."""
    numbers = _DESCRIBED_LAYERS.get()
    if layer is None or numbers is None:
        return layer
    if id(layer) in numbers:
        return {"shared_layer": numbers[id(layer)]}
    number = len(numbers)
    numbers[id(layer)] = number
    config = keras.saving.serialize_keras_object(layer)
    config.pop("build_config", None)  # The model builds its parts,
    config.pop("compile_config", None)  # and compiles none.
    return {**with_construction_policy(config, layer), "shared_layer": number}


def with_construction_policy(config, layer):
    """Keras' description of a layer, with the global policy under which it must be made if that is not its own."""
    policy = construction_policy(layer)
    if policy == config_policy(config["config"]):
        return config
    return {**config, "made_under": policy}


def layer_from_description(description):
    """The layer of a description, with the policies that it had."""
    keras_entries = {name: part for name, part in description.items() if name not in _OWN_ENTRIES}
    with global_policy(description.get("made_under") or config_policy(description["config"])):
        # In safe mode, Keras creates only objects of its own and of registered classes, and runs no code from a file.
        return keras.saving.deserialize_keras_object(keras_entries, safe_mode=True)


def layer_from_config(value):
    """The layer for a config entry: made from its description, or a copy of the layer. None stays None.

    A layer in a config is copied. Otherwise a copy of a model would share weights with the original.
    """
    if value is None:
        return None
    is_layer = isinstance(value, keras.layers.Layer)
    key = id(value) if is_layer else value.get("shared_layer")
    with make_shared_layers():
        made_layers = _MADE_LAYERS.get()
        if key is not None and key in made_layers:
            return made_layers[key]
        if is_layer:
            with global_policy(construction_policy(value)):
                layer = type(value).from_config(value.get_config())
        elif "class_name" in value:
            layer = layer_from_description(value)
        else:
            raise ValueError(f"The config of a layer in a slot is incomplete. Received: {value}.")
        if key is not None:
            made_layers[key] = layer
        return layer


def with_layers(config, slots):
    """A config in which the named slots, or lists of slots, hold new layers."""
    config = dict(config)
    with make_shared_layers():
        for name in slots:
            if name not in config:
                continue
            value = config[name]
            if isinstance(value, (list, tuple)):
                config[name] = [layer_from_config(item) for item in value]
            else:
                config[name] = layer_from_config(value)
    return config


class Slotted(Adaptable):
    """Mixin of a layer with slots, the names in `_SLOTS`: its config describes the layers in them."""

    @classmethod
    def from_config(cls, config):
        """The layer that a config describes, with new layers in its slots."""
        return cls(**with_layers(config, cls._SLOTS))

    def get_config(self):
        config = super().get_config()
        for slot in self._SLOTS:
            config[slot] = description(getattr(self, slot))
        return config


def check_layer(name, value):
    """Returns the `value` of a slot if it is valid.

    Raises:
        ValueError: unless it is a layer, or None.
    """
    if value is not None and not isinstance(value, keras.layers.Layer):
        raise ValueError(f"`{name}` must be a layer or None. Received: {name}={value!r}.")
    return value


def check_norm(name, value):
    """As `check_layer`, for a norm. It keeps the mask of its inputs, although Keras says that `RMSNormalization` does not."""
    if check_layer(name, value) is not None:
        value.supports_masking = True
    return value


def copied(layer, name):
    """A new layer of the same configuration under another name: a slot may describe several layers of a block."""
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
        layer.build(*[tuple(shape) for shape in shapes])
    else:
        layer(*[keras.KerasTensor(shape, dtype=dtype) for shape in shapes])


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
    if training is not None and has_argument(layer, "training"):
        given["training"] = training
    if query_mask is not None and has_argument(layer, "query_mask"):
        given["query_mask"] = query_mask
    return layer(*inputs, **given)


def position_arguments(layer, positions, padding_mask):
    """The call arguments from which a layer that adds positions knows them.

    Args:
        layer: A layer whose `call` has the argument `positions`, and may have `padding_mask`.
        positions: Integers, or None for those that follow from the padding mask, see `keras_attn.ops.token_positions`.
        padding_mask: Boolean (B, T), or None.

    Returns:
        Dict with one of the two arguments.
    """
    if positions is not None or padding_mask is None:
        return {"positions": positions}
    if has_argument(layer, "padding_mask"):
        return {"padding_mask": padding_mask}
    return {"positions": token_positions(padding_mask)}
