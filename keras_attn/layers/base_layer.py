"""What all layers and models of this library do alike when Keras calls them."""

import functools
import inspect
import warnings
import weakref

import keras

from keras_attn.compat.keras import calls_of, symbolic_history
from keras_attn.layers.masks import combine_with_carried_mask
from keras_attn.ops import implicit_mask

# The layers that warned of a lost mask: each does it once.
_WARNED = weakref.WeakSet()


class BaseLayer:
    """Mixin of every layer and model, before the class of Keras that it extends. It mends three habits of Keras:

    - Keras hands masks on in the argument `mask`, and within `TimeDistributed` nowhere else. The `call` of a layer that reads
      one sequence gets this argument, which is joined with the layer's own padding mask.
    - Keras drops masks at `x + y`, `x * 4.0` and `keras.ops`, and says nothing. A layer that would then attend to padding
      warns once, and names the operation. It can do so for the symbolic tensors of functional models alone: others have no
      history.
    - Keras calls the product of a symbolic tensor and a number sparse. It is not, and is described as dense.
    """

    # For each argument of `call` that is a sequence: its name, then the names of the arguments that say which of its tokens
    # are real, its padding mask first.
    _MASK_ARGUMENTS = ()
    # Whether outputs are described by tracing the call, because their shapes depend on more than the shapes of the inputs.
    _IS_TRACED = False

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        if "call" in vars(cls) and cls._MASK_ARGUMENTS:
            sequence, padding_mask = cls._MASK_ARGUMENTS[0][:2]
            cls.call = _with_mask_argument(cls.call, sequence, padding_mask)

    def symbolic_call(self, *args, **kwargs):
        """As in Keras. Warns of lost masks."""
        if self._MASK_ARGUMENTS and self not in _WARNED:
            self._warn_of_lost_masks(inspect.signature(self.call).bind(*args, **kwargs).arguments)
        return super().symbolic_call(*args, **kwargs)

    def _warn_of_lost_masks(self, arguments):
        is_first_masked = arguments.get("mask") is not None
        for names in self._MASK_ARGUMENTS[is_first_masked:]:
            name = names[0]
            mask_names = names[1:]
            if any(arguments.get(mask_name) is not None for mask_name in mask_names):
                continue
            operation = operation_that_lost_the_mask(arguments.get(name), stop_at=_WARNED)
            if operation is None:
                continue
            _WARNED.add(self)
            warnings.warn(
                f"The layer {self.name!r} ({type(self).__name__}) sees padding: its `{name}` had a mask, which Keras dropped at "
                f"the operation {operation.name!r} ({type(operation).__name__}). Pass the mask, as `{mask_names[0]}=`; or add with "
                "`keras.layers.Add`, which keeps the mask if all its inputs carry one; or embed tokens and positions with "
                "`keras_attn.layers.SequenceEmbedding`.",
                stacklevel=3,
            )
            return

    def compute_output_spec(self, *args, **kwargs):
        """As in Keras, for dense tensors."""
        args, kwargs = keras.tree.map_structure(dense_spec, (args, kwargs))
        if self._IS_TRACED:
            return keras.Operation.compute_output_spec(self, *args, **kwargs)
        return super().compute_output_spec(*args, **kwargs)


def _with_mask_argument(call, sequence, padding_mask):
    """The method `call` with an argument `mask` for its `sequence`, if it can be called with that alone."""
    signature = inspect.signature(call)
    parameters = list(signature.parameters.values())
    names = [parameter.name for parameter in parameters]
    others = parameters[2:]
    needs_others = any(p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD for p in others)
    if needs_others or "mask" in names or padding_mask not in names:
        return call

    @functools.wraps(call)
    def call_with_mask(self, *args, mask=None, **kwargs):
        if mask is None:
            return call(self, *args, **kwargs)
        bound = signature.bind(self, *args, **kwargs)
        if mask is not implicit_mask(bound.arguments[sequence]):  # which the layer reads from the sequence
            bound.arguments[padding_mask] = combine_with_carried_mask(mask, bound.arguments.get(padding_mask))
        return call(*bound.args, **bound.kwargs)

    index = len(parameters)
    if parameters[-1].kind is inspect.Parameter.VAR_KEYWORD:
        index -= 1
    parameters.insert(index, inspect.Parameter("mask", inspect.Parameter.KEYWORD_ONLY, default=None))
    call_with_mask.__signature__ = signature.replace(parameters=parameters)
    return call_with_mask


def dense_spec(x):
    """A symbolic tensor that is not marked as sparse; anything else unchanged."""
    is_sparse = isinstance(x, keras.KerasTensor) and x.sparse
    return keras.KerasTensor(x.shape, dtype=x.dtype) if is_sparse else x


# Keras' layers that merge inputs, all of which must carry a mask if the output is to have one.
_MERGING = (
    keras.layers.Add,
    keras.layers.Average,
    keras.layers.Concatenate,
    keras.layers.Dot,
    keras.layers.Maximum,
    keras.layers.Minimum,
    keras.layers.Multiply,
    keras.layers.Subtract,
)
_CARRIED = object()  # the fate of a mask that a tensor has, or will have when the model runs


def operation_that_lost_the_mask(tensor, stop_at=()):
    """The operation that dropped the mask of a sequence from which `tensor` was made.

    Layers that say themselves what becomes of a mask do not count: those for which Keras warns that they destroy it,
    and those that remove the time axis. Layers that merge several inputs do: they drop all masks if one input has none.

    Args:
        tensor: The symbolic tensor (B, T, D) that a layer is called on, or anything else.
        stop_at: Layers whose inputs are not looked at, because they warned.

    Returns:
        A `keras.Operation`, or None: the tensor has a mask, no mask was dropped on its way, or it is not symbolic.
    """
    fates = {}
    pending = [tensor]
    while pending:  # no recursion: a model may be deeper than Python's stack
        result = pending[-1]
        sources = _sources(result, stop_at)
        unknown_sources = [source for source in sources if id(source) not in fates]
        if unknown_sources:
            pending += unknown_sources
            continue
        fates[id(result)] = _fate(result, sources, [fates[id(source)] for source in sources])
        pending.pop()
    fate = fates[id(tensor)]
    return None if fate is _CARRIED else fate


def _fate(result, sources, fates):
    """What became of the masks of an operation's sources: `_CARRIED`, the operation that lost them, or None."""
    if implicit_mask(_inside(result)) is not None:
        return _CARRIED
    if _CARRIED not in fates:
        return next((fate for fate in fates if fate is not None), None)
    operation = symbolic_history(_inside(result)).operation
    if not isinstance(operation, keras.layers.Layer):
        return operation
    if type(operation) in _MERGING:
        return _CARRIED if all(fate is _CARRIED for fate in fates) else operation
    # A layer that had a mask and gave none did so on purpose, or Keras warned. A mask within a nested model has no symbol.
    has_symbol = any(implicit_mask(source) is not None for source in sources)
    return _CARRIED if operation.supports_masking and not has_symbol else None


def _inside(tensor):
    """The tensor that a nested functional model returns as `tensor`, which has the mask that the inner layers gave it."""
    while True:
        history = symbolic_history(tensor)
        is_model = history is not None and isinstance(history.operation, keras.Model)
        outputs = getattr(history.operation, "outputs", None) if is_model else None
        if not outputs:
            return tensor
        tensor = outputs[history.tensor_index]


def _sources(result, stop_at):
    """The inputs, of the operation that made `result` (B, T, D), whose time axis may be that of `result`."""
    result = _inside(result)
    history = symbolic_history(result)
    if history is None or implicit_mask(result) is not None or history.operation in stop_at:
        return []
    if len(result.shape) < 3 or result.shape[1] == 1:  # a vector of the whole sequence, or of one token
        return []
    operation = history.operation
    node = calls_of(operation)[history.node_index]
    if type(operation).__name__ == "GetItem" and _takes_first_token(*node.arguments.args[1:]):
        return []
    inputs = node.input_tensors
    if isinstance(operation, keras.layers.Layer):
        # Keras carries the mask of the first argument.
        arguments = list(node.arguments.args) + list(node.arguments.kwargs.values())
        inputs = keras.tree.flatten(arguments[0]) if arguments else []
    inputs = [x for x in inputs if isinstance(x, keras.KerasTensor) and len(x.shape) >= 3]
    if len(inputs) < 2 or type(operation).__name__ == "Concatenate":
        return inputs
    return [x for x in inputs if None in (x.shape[1], result.shape[1]) or x.shape[1] == result.shape[1]]


def _takes_first_token(key=None):
    """Whether it is `x[:, :1]`, whose size is unknown if that of `x` is."""
    return isinstance(key, tuple) and len(key) > 1 and isinstance(key[1], slice) and key[1] == slice(None, 1)
