"""What all layers and models of this library do alike when Keras calls them."""

import functools
import inspect
import warnings
import weakref

import keras

from keras_attn.layers.call_masks import joined
from keras_attn.layers.lost_masks import operation_that_lost_the_mask
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

    # For each argument of `call` that is a sequence its name, and those of the arguments that say what is real in it, of
    # which the first is its padding mask.
    _MASK_ARGUMENTS = ()
    # Whether outputs are described by tracing the call, because their shapes follow from more than those of the inputs.
    _IS_TRACED = False

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        if "call" in vars(cls) and cls._MASK_ARGUMENTS:
            cls.call = _with_mask_argument(cls.call, *cls._MASK_ARGUMENTS[0][:2])

    def symbolic_call(self, *args, **kwargs):
        """As in Keras. Warns of lost masks."""
        if self._MASK_ARGUMENTS and self not in _WARNED:
            self._warn_of_lost_masks(inspect.signature(self.call).bind(*args, **kwargs).arguments)
        return super().symbolic_call(*args, **kwargs)

    def _warn_of_lost_masks(self, arguments):
        for number, (name, *masks) in enumerate(self._MASK_ARGUMENTS):
            given = masks if number else ["mask", *masks]
            if any(arguments.get(mask) is not None for mask in given):
                continue
            operation = operation_that_lost_the_mask(arguments.get(name), stop_at=_WARNED)
            if operation is None:
                continue
            _WARNED.add(self)
            warnings.warn(
                f"The layer {self.name!r} ({type(self).__name__}) sees padding: its `{name}` had a mask, which Keras dropped at "
                f"the operation {operation.name!r} ({type(operation).__name__}). Pass the mask, as `{masks[0]}=`; or add with "
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
    needed = [p for p in parameters[2:] if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    if needed or "mask" in names or padding_mask not in names:
        return call

    @functools.wraps(call)
    def call_with_mask(self, *args, mask=None, **kwargs):
        if mask is None:
            return call(self, *args, **kwargs)
        bound = signature.bind(self, *args, **kwargs)
        if mask is not implicit_mask(bound.arguments[sequence]):  # which the layer reads from the sequence
            bound.arguments[padding_mask] = joined(mask, bound.arguments.get(padding_mask))
        return call(*bound.args, **bound.kwargs)

    after = [p for p in parameters if p.kind is p.VAR_KEYWORD]
    before = [p for p in parameters if p.kind is not p.VAR_KEYWORD]
    mask = inspect.Parameter("mask", inspect.Parameter.KEYWORD_ONLY, default=None)
    call_with_mask.__signature__ = signature.replace(parameters=[*before, mask, *after])
    return call_with_mask


def dense_spec(x):
    """A symbolic tensor without the mark of a sparse one; anything else as it is."""
    is_sparse = isinstance(x, keras.KerasTensor) and x.sparse
    return keras.KerasTensor(x.shape, dtype=x.dtype) if is_sparse else x
