"""Recomputing the activations of a layer in the gradient, with the state that the layer keeps."""

import keras
from keras import ops


def recompute_in_gradient(layer, function, training, *tensors):
    """`function(*tensors)`, whose intermediate results are not kept for the gradient but computed again.

    `keras.remat` alone draws different dropout in the second pass on TensorFlow and torch, and cannot change
    a variable on JAX. Here every seed of `layer` has the same value at the start of both passes; variables
    that `function` assigns (seeds, moving statistics) change once; losses added inside it count once.

    Args:
        layer: The layer whose `call` this is; it holds all layers that `function` calls.
        function: Function of `tensors` that returns a tensor, or a structure of tensors that starts with a float.
            Any other float with a gradient that it uses must be a weight.
        training: Boolean or None, of the call. Layers in `function` that do not get it as an argument take it
            from Keras, in both passes.
        tensors: Float tensors.

    Returns:
        The result of `function(*tensors)`.
    """
    weights = {id(weight) for weight in layer.weights}
    # Not the weights: they do not change between the two passes, and under autocast their values are rounded.
    seeds = [variable for variable in layer.variables if id(variable) not in weights]
    start = [(seed, ops.copy(seed.value)) for seed in seeds]
    first = {}
    in_call = _InCall(function, dtype=layer.dtype_policy, autocast=False, name="in_call")

    def from_the_start(*tensors):
        with _Overlay(start, collect_losses=True, initialize_variables=False) as scope:
            outputs = in_call(*tensors, training=training)
        first.setdefault("structure", keras.tree.map_structure(lambda _: 0, outputs))
        changed = first.setdefault("changed", [v for v in layer.variables if id(v) in scope.state_mapping])
        values = [scope.state_mapping[id(variable)] for variable in changed]
        return (*keras.tree.flatten(outputs), *scope.losses, *values)

    results = list(keras.remat(from_the_start)(*tensors))
    structure, changed = first["structure"], first["changed"]
    outputs = [results.pop(0) for _ in keras.tree.flatten(structure)]
    for variable in reversed(changed):
        variable.assign(results.pop())
    layer.add_loss(results)
    return keras.tree.pack_sequence_as(structure, outputs)


class _InCall(keras.layers.Layer):
    """A function as a layer, because the second pass runs when the call of the outer layer has ended."""

    def __init__(self, function, **kwargs):
        super().__init__(**kwargs)
        self._function = function

    def call(self, *tensors, training=None):
        return self._function(*tensors)


class _Overlay(keras.StatelessScope):
    """A stateless scope that reads values it does not have from an outer stateless scope, if there is one."""

    def get_current_value(self, variable):
        value = super().get_current_value(variable)
        if value is None and self.original_scope is not None:
            value = self.original_scope.get_current_value(variable)
        return value
