"""Where Keras dropped the mask of a symbolic tensor."""

import keras

from keras_attn.ops import implicit_mask

_CARRIED = object()  # the fate of a mask that a tensor has, or will have when the model runs


def operation_that_lost_the_mask(tensor, stop_at=()):
    """The operation that had a sequence with a mask as its input, and from whose result, without one, `tensor` was made.

    Layers that say themselves what becomes of a mask are not meant: those for which Keras warns that they destroy it,
    and those that take away the axis of time. Layers that merge several inputs are: they drop all masks where one input
    has none.

    Args:
        tensor: The symbolic tensor (B, T, D) that a layer is called on, or anything else.
        stop_at: Layers whose inputs are not looked at, because they warned.

    Returns:
        A `keras.Operation`, or None: the tensor has a mask, no mask was dropped on its way, or it is not symbolic.
    """
    fates, pending = {}, [tensor]
    while pending:  # no recursion: a model may be deeper than Python's stack
        result = pending[-1]
        sources = _sources(result, stop_at)
        unknown = [source for source in sources if id(source) not in fates]
        if unknown:
            pending += unknown
            continue
        fates[id(result)] = _fate(result, sources, [fates[id(source)] for source in sources])
        pending.pop()
    fate = fates[id(tensor)]
    return None if fate is _CARRIED else fate


def _fate(result, sources, fates):
    """What became of the masks of an operation's sources: `_CARRIED`, the operation that lost them, or None."""
    if implicit_mask(_inside(result)) is not None:
        return _CARRIED
    lost = next((fate for fate in fates if fate not in (None, _CARRIED)), None)
    if _CARRIED not in fates:
        return lost
    operation = _history(_inside(result)).operation
    if not isinstance(operation, keras.layers.Layer):
        return operation
    if _merges(operation):
        return _CARRIED if all(fate is _CARRIED for fate in fates) else operation
    # A layer that had a mask and gave none did so on purpose, or Keras warned. A mask within a nested model has no symbol.
    has_symbol = any(implicit_mask(source) is not None for source in sources)
    return _CARRIED if operation.supports_masking and not has_symbol else None


def _history(tensor):
    history = getattr(tensor, "_keras_history", None)
    return None if history is None or history.operation is None else history


def _inside(tensor):
    """The tensor that a nested functional model returns as `tensor`, which has the mask that the inner layers gave it."""
    while True:
        history = _history(tensor)
        is_model = history is not None and isinstance(history.operation, keras.Model)
        outputs = getattr(history.operation, "outputs", None) if is_model else None
        if not outputs:
            return tensor
        tensor = outputs[history.tensor_index]


def _sources(result, stop_at):
    """The inputs, of the operation that made `result` (B, T, D), whose axis of time may be that of `result`."""
    result = _inside(result)
    history = _history(result)
    if history is None or implicit_mask(result) is not None or history.operation in stop_at:
        return []
    if len(result.shape) < 3 or result.shape[1] == 1:  # a vector of the whole sequence, or of one token
        return []
    operation, node = history.operation, history.operation._inbound_nodes[history.node_index]
    if type(operation).__name__ == "GetItem" and _takes_first_token(*node.arguments.args[1:]):
        return []
    inputs = node.input_tensors
    if isinstance(operation, keras.layers.Layer):
        # Keras carries the mask of the first argument.
        args, kwargs = node.arguments.args, node.arguments.kwargs
        inputs = keras.tree.flatten(args[0] if args else next(iter(kwargs.values()), None))
    inputs = [x for x in inputs if isinstance(x, keras.KerasTensor) and len(x.shape) >= 3]
    if len(inputs) < 2 or type(operation).__name__ == "Concatenate":
        return inputs
    return [x for x in inputs if None in (x.shape[1], result.shape[1]) or x.shape[1] == result.shape[1]]


def _takes_first_token(key=None):
    """Whether it is `x[:, :1]`, of which the size is not known if that of `x` is not."""
    return isinstance(key, tuple) and len(key) > 1 and isinstance(key[1], slice) and key[1] == slice(None, 1)


def _merges(layer):
    """Whether it is one of Keras' layers that merge inputs, all of which must carry a mask if the output is to have one."""
    return type(layer).__module__.startswith("keras.src.layers.merging.")
