"""The layers that blocks call in their slots: built or given, each with the call arguments that it has."""

import inspect

import keras


def is_attention(layer):
    """Whether `call` begins with `query` and `value`; any other layer mixes one sequence."""
    return list(inspect.signature(layer.call).parameters)[:2] == ["query", "value"]


def has_argument(layer, name):
    """Whether `call` has the argument. What `**kwargs` would take is nobody's promise to obey it."""
    return name in inspect.signature(layer.call).parameters


def build_given(layer, query_shape, value_shape, dtype):
    """Makes the weights of a layer that a user gave, if it has none yet."""
    if layer.built:
        return
    query, value = (keras.KerasTensor(shape, dtype=dtype) for shape in (query_shape, value_shape))
    inputs = (query, value) if is_attention(layer) else (query,)
    layer(*inputs)


def call_given(layer, inputs, training, query_mask=None, **arguments):
    """`layer(*inputs)`, with those of `arguments` that are given: neither None nor False.

    A mask must be obeyed or refused, so an argument that the layer's `call` does not have is an error. Only
    `training` and `query_mask` are left out then: nobody reads what a padded query finds.
    """
    given = {name: value for name, value in arguments.items() if value is not None and value is not False}
    for name in given:
        if not has_argument(layer, name):
            raise ValueError(
                f"`{name}` cannot be obeyed by a layer whose `call` has no such argument. "
                f"Received: layer {layer.name!r} of class {type(layer).__name__}."
            )
    given |= {
        name: value
        for name, value in (("training", training), ("query_mask", query_mask))
        if has_argument(layer, name) and value is not None
    }
    return layer(*inputs, **given)
