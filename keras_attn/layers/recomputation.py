"""Recomputing the activations of a layer in the gradient, with the state that the layer keeps."""

import keras
from keras import ops


def recompute_in_gradient(layer, function, training, *tensors):
    """`function(*tensors)`, whose intermediate results are not kept for the gradient but computed once more.

    `keras.remat` alone draws other dropout in the second pass on TensorFlow and torch, and cannot change a variable
    on JAX. Here every seed of `layer` starts the second pass where it started the first; variables that `function`
    assigns (seeds, moving statistics) change once; losses added within count once.

    Args:
        layer: The layer whose `call` this is; it holds all layers that `function` calls.
        function: Function of `tensors` that returns a tensor, or a structure of tensors that starts with a float.
            Whatever else it needs of floats with a gradient must be a weight.
        training: Boolean or None, of the call. Layers in `function` that are not told it ask Keras, in both passes.
        tensors: Float tensors.

    Returns:
        What `function(*tensors)` returns.
    """
    weights = {id(weight) for weight in layer.weights}
    # Not the weights: they stay the same between the two passes, and under autocast their values are rounded ones.
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
    """A function within a call of a layer: the second pass comes when that of the layer around it is over."""

    def __init__(self, function, **kwargs):
        super().__init__(**kwargs)
        self._function = function

    def call(self, *tensors, training=None):
        return self._function(*tensors)


class _Overlay(keras.StatelessScope):
    """A stateless scope over the one that may be in force already, whose values are seen through it."""

    def get_current_value(self, variable):
        value = super().get_current_value(variable)
        if value is None and self.original_scope is not None:
            value = self.original_scope.get_current_value(variable)
        return value
