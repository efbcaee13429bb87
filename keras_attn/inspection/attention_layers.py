"""The attention layers of any Keras model, by their paths."""

import collections.abc
import inspect
import itertools
import re

import keras

from keras_attn.compat.keras import direct_sublayers
from keras_attn.inspection.attention_calls import KerasAttentionCall, OtherAttentionCall, OwnAttentionCall
from keras_attn.layers import MultiHeadAttention

_KERAS_ATTENTION = (keras.layers.MultiHeadAttention, keras.layers.GroupQueryAttention)


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
    attention, _ = _all_layers(model)
    return attention


def sublayers_by_path(model):
    """The attention layers below a model and all that are not part of one, blocks included: a dict from paths to layers."""
    attention, others = _all_layers(model)
    return {path: layer for path, layer in {**attention, **others}.items() if layer is not model}


def call_kind(layer):
    """The class that describes a call of this layer, or None if it is not attention that can be watched."""
    if isinstance(layer, MultiHeadAttention):
        return OwnAttentionCall
    if isinstance(layer, _KERAS_ATTENTION):
        return KerasAttentionCall
    if isinstance(layer, keras.layers.Layer) and "return_attention_scores" in _parameters(layer.call):
        return OtherAttentionCall
    return None


def select_layers(layers, patterns):
    """Those of `layers`, a dict by path, that the argument `layers` of `capture_attention` names.

    Raises:
        ValueError: if one of them names no layer, or there is none.
    """
    if patterns is None:
        return dict(layers)
    if isinstance(patterns, str) or not isinstance(patterns, collections.abc.Iterable):
        patterns = [patterns]
    patterns = list(patterns)
    selected = set()
    for pattern in patterns:
        paths = [path for path, layer in layers.items() if _matches(pattern, path, layer)]
        if not paths:
            raise ValueError(_selection_message(pattern, layers))
        selected.update(paths)
    if not patterns:
        raise ValueError(_selection_message(patterns, layers))
    return {path: layer for path, layer in layers.items() if path in selected}


def _selection_message(received, layers):
    return (
        "`layers` must name attention layers of the model, by path, by a regular expression that is found in "
        f"a path, or by the layer itself; or be a list of these. Received: {received!r}. The attention layers are {list(layers)}."
    )


def _matches(pattern, path, layer):
    if isinstance(pattern, keras.layers.Layer):
        return pattern is layer
    if not isinstance(pattern, (str, re.Pattern)):
        return False
    try:
        return pattern == path or re.search(pattern, path) is not None
    except re.error:  # not a regular expression; it may be another layer's path
        return False


def _all_layers(model):
    """Two dicts by path: the attention layers, and all other layers that are not part of one, blocks included."""
    attention = {}
    others = {}
    seen = {id(model)}

    def visit(layer, path):
        """Adds what is below a layer, and returns whether there is attention in it."""
        has_attention = False
        for sublayer in sublayers(layer):
            if id(sublayer) in seen:
                continue
            seen.add(id(sublayer))
            own_path = f"{path}/{sublayer.name}" if path else sublayer.name
            own_path = _unused_path(own_path, attention.keys() | others.keys())
            kind = call_kind(sublayer)
            if kind in (OwnAttentionCall, KerasAttentionCall):
                attention[own_path] = sublayer
                has_attention = True
                continue
            others[own_path] = sublayer
            # A block that can return the scores of the attention in it is not attention itself.
            contains_attention = visit(sublayer, own_path)
            if kind is OtherAttentionCall and not contains_attention:
                attention[own_path] = sublayer
                contains_attention = True
            has_attention = has_attention or contains_attention
        return has_attention

    kind = call_kind(model)
    if kind in (OwnAttentionCall, KerasAttentionCall) or (
        not visit(model, "") and kind is OtherAttentionCall
    ):
        attention[model.name] = model
    return attention, others


def sublayers(layer):
    """The layers right below a layer."""
    layers = direct_sublayers(layer)
    if isinstance(layer, keras.Sequential):
        layers = [other for other in layers if not isinstance(other, keras.Model)]
    if isinstance(layer, keras.Model) and hasattr(layer, "layers"):
        # Layers in attributes that are not in the graph of a functional model may still be called.
        layers = list(layer.layers) + layers
    return layers


def _unused_path(path, used):
    """The path itself, or with the first number that makes it unused."""
    unused = path
    numbers = itertools.count(2)
    while unused in used:
        unused = f"{path}_{next(numbers)}"
    return unused


def _parameters(function):
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):  # a function without a signature
        return {}
