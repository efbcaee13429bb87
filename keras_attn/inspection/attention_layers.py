"""The attention layers of any Keras model, by their paths."""

import collections.abc
import inspect
import re

import keras

from keras_attn.compat.keras import direct_sublayers
from keras_attn.inspection.attention_calls import CallOfAny, CallOfKeras, CallOfOurs
from keras_attn.layers import MultiHeadAttention

_OF_KERAS = (keras.layers.MultiHeadAttention, keras.layers.GroupQueryAttention)


def attention_layers(model):
    """The attention layers of a model that `capture_attention` can see: a dict from paths to layers, in the order of the model.

    A path is the names of the layers on the way down, joined by "/". A second layer of the same path ends in "_2".
    A layer in several places is listed once, under its first path.

    Args:
        model: Built `keras.Model` or layer.

    Example:

    ```python
    model = keras_attn.models.EncoderTransformer.from_sizes(100, 2, hidden_dim=16, num_heads=2, intermediate_dim=32)
    paths = list(attention_layers(model))  # ["encoder_block_0/self_attention", "encoder_block_1/self_attention"]
    ```
    """
    found, _ = _walk(model)
    return found


def sublayers_by_path(model):
    """The attention layers below a model and all that are not part of one, blocks included: a dict from paths to layers."""
    attention, others = _walk(model)
    return {path: layer for path, layer in {**attention, **others}.items() if layer is not model}


def call_kind(layer):
    """The class that describes a call of this layer, or None if it is not attention that can be watched."""
    if isinstance(layer, MultiHeadAttention):
        return CallOfOurs
    if isinstance(layer, _OF_KERAS):
        return CallOfKeras
    if isinstance(layer, keras.layers.Layer) and "return_attention_scores" in _parameters(layer.call):
        return CallOfAny
    return None


def chosen(layers, patterns):
    """Those of `layers`, a dict by path, that the argument `layers` of `capture_attention` names.

    Raises:
        ValueError: if one of them names no layer, or there is none.
    """
    if patterns is None:
        return dict(layers)
    if isinstance(patterns, str) or not isinstance(patterns, collections.abc.Iterable):
        patterns = [patterns]
    patterns = list(patterns)
    named = [
        [path for path, layer in layers.items() if _matches(pattern, path, layer)] for pattern in patterns
    ]
    if not named or [] in named:
        received = patterns[named.index([])] if named else patterns
        raise ValueError(
            "`layers` must name attention layers of the model, by path, by a regular expression that is found in "
            f"a path, or by the layer itself; or be a list of these. Received: {received!r}. The attention layers are {list(layers)}."
        )
    return {path: layer for path, layer in layers.items() if any(path in paths for paths in named)}


def _matches(pattern, path, layer):
    if isinstance(pattern, keras.layers.Layer):
        return pattern is layer
    if not isinstance(pattern, (str, re.Pattern)):
        return False
    try:
        return pattern == path or re.search(pattern, path) is not None
    except re.error:  # no regular expression, but it may be another layer's path
        return False


def _walk(model):
    attention, others, seen = {}, {}, {id(model)}

    def visit(layer, path):
        """Lists what is below a layer, and whether there is attention in it."""
        below = False
        for sublayer in children(layer):
            if id(sublayer) in seen:
                continue
            seen.add(id(sublayer))
            own = _unused(f"{path}/{sublayer.name}" if path else sublayer.name, attention, others)
            kind = call_kind(sublayer)
            if kind in (CallOfOurs, CallOfKeras):
                attention[own] = sublayer
                below = True
                continue
            others[own] = sublayer
            # A block that can return the scores of the attention in it is not attention itself.
            inside = visit(sublayer, own)
            if kind is CallOfAny and not inside:
                attention[own] = sublayer
            below = below or inside or own in attention
        return below

    kind = call_kind(model)
    if kind in (CallOfOurs, CallOfKeras) or (not visit(model, "") and kind is CallOfAny):
        attention[model.name] = model
    return attention, others


def children(layer):
    """The layers right below a layer."""
    if isinstance(layer, keras.Model) and hasattr(layer, "layers"):
        layers = list(layer.layers)
        # Layers in attributes that are not in the graph of a functional model may still be called.
        return layers + [
            other
            for other in direct_sublayers(layer)
            if not isinstance(other, keras.Model) or not isinstance(layer, keras.Sequential)
        ]
    return direct_sublayers(layer)


def _unused(path, *used):
    number, free = 1, path
    while any(free in paths for paths in used):
        number += 1
        free = f"{path}_{number}"
    return free


def _parameters(function):
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):  # a function without a signature
        return {}
