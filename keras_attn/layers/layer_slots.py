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

# What a description has beside Keras' entries.
_OF_DESCRIPTIONS = ("shared_layer", "made_under")
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


@contextlib.contextmanager
def global_policy(name):
    """Layers that are made without a `dtype` in this block get this policy; None changes nothing.

    A class may make layers in its constructor without passing them a policy. Keras then gives them the global policy of
    the moment, which need not be that of the moment when the class was first made.
    """
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(before if name is None else name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def plain_policy(policy):
    """The name of a policy, of the default one in a map, without what quantises it."""
    if isinstance(policy, keras.dtype_policies.DTypePolicyMap):
        policy = policy.default_policy
    return policy.name.rpartition("_from_")[2]


def plain_policies(layer):
    """The plain policies of a layer and of all layers in it, a list."""
    return [plain_policy(part.dtype_policy) for part in all_layers(layer)]


def construction_policy(layer):
    """The global policy under which a layer's config gives a layer with the same policies, if one does: a name."""
    own, wanted = plain_policy(layer.dtype_policy), plain_policies(layer)
    if set(wanted) == {own}:
        return own

    def gives_them(name):
        with global_policy(name):
            policies = plain_policies(type(layer).from_config(layer.get_config()))
        return policies == wanted[: len(policies)]

    names = dict.fromkeys([own, keras.config.dtype_policy().name, *wanted])
    # Another thread remembers no layers that are being described or made here.
    return next((name for name in names if run_without_values(functools.partial(gives_them, name))), own)


def run_without_values(function):
    """What a function gives that makes models; their variables have shapes and no values, and so take no memory."""

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
    return _scope(_DESCRIBED)


def is_described():
    """Whether the config that is asked for is a part of that of a model around."""
    return _DESCRIBED.get() is not None


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
    return {**with_construction_policy(config, layer), "shared_layer": number}


def with_construction_policy(config, layer):
    """Keras' description of a layer, and under which global policy it is to be made, if not under its own."""
    policy = construction_policy(layer)
    return config if policy == config_policy(config["config"]) else {**config, "made_under": policy}


def layer_from_description(description):
    """The layer of a description, with the policies that it had."""
    keras_entries = {name: part for name, part in description.items() if name not in _OF_DESCRIPTIONS}
    with global_policy(description.get("made_under") or config_policy(description["config"])):
        # In safe mode, Keras creates only objects of its own and of registered classes, and runs no code from a file.
        return keras.saving.deserialize_keras_object(keras_entries, safe_mode=True)


def layer_from_config(value):
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
            with global_policy(construction_policy(value)):
                layer = type(value).from_config(value.get_config())
        elif "class_name" in value:
            layer = layer_from_description(value)
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
    return (
        [layer_from_config(item) for item in value]
        if isinstance(value, (list, tuple))
        else layer_from_config(value)
    )


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


def check_norm(name, value):
    """As `check_layer`, for a norm, which keeps the mask of its inputs whatever Keras says: of `RMSNormalization`, that it does not."""
    if check_layer(name, value) is not None:
        value.supports_masking = True
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


def position_arguments(layer, positions, padding_mask):
    """The call arguments that tell a layer which adds positions what it needs to know of them.

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
