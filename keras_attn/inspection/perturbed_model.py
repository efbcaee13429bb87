"""A model whose inputs' vectors can be changed: at float inputs, and at the outputs of what embeds integer inputs."""

import contextlib
import functools
import inspect
import itertools
from typing import NamedTuple

import keras
import numpy as np
from keras import ops

from keras_attn.compat.keras import (
    all_layers,
    called_method,
    implicit_mask,
    replaced_method,
    set_implicit_mask,
)
from keras_attn.inspection.attention_layers import sublayers_by_path
from keras_attn.inspection.backends import as_array


class Point(NamedTuple):
    """Where the vectors of an input can be changed.

    name: the input.
    call_number: the number of the call among those of the embedding layers, or None for the input itself.
    shape: of the vectors, (B, T, ...).
    scale: their standard deviation.
    """

    name: str
    call_number: int | None
    shape: tuple
    scale: float


class NamedTensors:
    """The inputs or outputs of a model by name, whatever their structure.

    Args:
        structure: A tensor, or a dict, list or tuple of them.
        names: Names in place of numbers, if the structure is a list; or of a single tensor.
        default: String, the name of a single tensor without one.
    """

    def __init__(self, structure, names, default):
        self._structure = structure
        if isinstance(structure, dict):
            self.tensors = dict(structure)
            return
        values = list(structure) if isinstance(structure, (list, tuple)) else [structure]
        if len(values) != len(names or ()):
            names = [default]
            if len(values) > 1:
                names = [f"{default}_{number}" for number in range(len(values))]
        self.tensors = dict(zip(names, values))

    def structured(self, tensors):
        """Tensors by name in the structure."""
        if isinstance(self._structure, dict):
            return tensors
        if isinstance(self._structure, (list, tuple)):
            return type(self._structure)(tensors.values())
        return next(iter(tensors.values()))


class PerturbedModel:
    """A model, its inputs, and the points at which they can be changed.

    Args:
        model: Built `keras.Model` or layer.
        inputs: What it is called with.

    Attributes:
        inputs: Dict from names to NumPy arrays.
        points: List of `Point`.
        implicit_masks: Dict from names of inputs to NumPy booleans (B, T), what Keras layers say of their padding.
    """

    def __init__(self, model, inputs):
        self.model = model
        names = None
        if getattr(model, "inputs", None):
            names = [x.name for x in model.inputs]
        self._named = NamedTensors(inputs, names, "inputs")
        self.inputs = {name: as_array(x) for name, x in self._named.tensors.items() if x is not None}
        self.layers = sublayers_by_path(model)
        self._training = None
        self.points = []
        self.implicit_masks = {}
        self.state = [
            (variable, np.array(as_array(variable.value))) for variable in _changing_variables(model)
        ]
        self._find_points()

    # What one call shows.

    def _find_points(self):
        called_layers = []  # in the order in which the calls end
        embedding_calls = []  # (number of the call, name of the input, output)

        def note(layer, original):
            @functools.wraps(original)
            def call(*args, **kwargs):
                num_before = len(embedding_calls)
                output = original(*args, **kwargs)
                first = next((x for x in keras.tree.flatten((args, kwargs)) if ops.is_tensor(x)), None)
                names = self._inputs_equal_to(first)
                if names and ops.is_tensor(output):
                    self._note_mask(layer, first, names)
                    is_innermost = len(embedding_calls) == num_before
                    if is_innermost and _gives_vectors(layer, first, output):
                        # Inputs of equal values are taken in turn.
                        taken = [name for _, name, _ in embedding_calls]
                        name = min(names, key=taken.count)
                        embedding_calls.append((len(called_layers), name, output))
                called_layers.append(layer)
                return output

            return call

        with _replaced_calls(self.layers.values(), note):
            self._outputs = self._call(self._tensors(self.inputs))
        embedding_layers = [called_layers[number] for number, _, _ in embedding_calls]
        self._embedding_layers = list({id(layer): layer for layer in embedding_layers}.values())
        # The calls of these layers are counted, since they may also be called on something else.
        ids = {id(layer) for layer in embedding_layers}
        counted = [number for number, layer in enumerate(called_layers) if id(layer) in ids]
        for number, name, output in embedding_calls:
            self.points.append(Point(name, counted.index(number), tuple(output.shape), _deviation(output)))
        embedded = {point.name for point in self.points}
        for name, array in self.inputs.items():
            if name not in embedded and array.dtype.kind == "f" and array.ndim > 1 and not is_mask(array):
                self.points.append(Point(name, None, array.shape, _deviation(array)))

    def _inputs_equal_to(self, tensor):
        """The names of the inputs that hold these values."""
        if tensor is None or len(tensor.shape) < 2:
            return []
        shape = tuple(tensor.shape)
        names = [name for name, array in self.inputs.items() if array.shape == shape]
        if not names:
            return []
        values = as_array(tensor)
        return [name for name in names if np.array_equal(values, self.inputs[name].astype(values.dtype))]

    def _note_mask(self, layer, tensor, names):
        if not isinstance(layer, keras.layers.Masking) and len(tensor.shape) != 2:
            return
        try:
            mask = layer.compute_mask(tensor, None)
        except Exception:  # a layer whose masks need more arguments than a tensor
            return
        if ops.is_tensor(mask) and tuple(mask.shape) == tuple(tensor.shape[:2]):
            for name in names:
                self.implicit_masks.setdefault(name, as_array(mask).astype(bool))

    # Calls with changes.

    def forward(self, inputs, changes):
        """The model's float outputs, a list, for input tensors by name and a change for each point."""
        inputs = dict(inputs)
        call_changes = {}
        for point, change in zip(self.points, changes, strict=True):
            if point.call_number is None:
                inputs[point.name] = _changed(inputs[point.name], change)
            else:
                call_changes[point.call_number] = change
        numbers = itertools.count()

        def change_output(layer, original):
            @functools.wraps(original)
            def call(*args, **kwargs):
                output = original(*args, **kwargs)
                change = call_changes.get(next(numbers))
                if change is None:
                    return output
                changed = _changed(output, change)
                mask = implicit_mask(output)
                if mask is not None:
                    set_implicit_mask(changed, mask)
                return changed

            return call

        with _replaced_calls(self._embedding_layers, change_output):
            outputs = self._call(inputs)
        return list(self.named_outputs(outputs).values())

    def named_outputs(self, outputs=None):
        """The float outputs by name."""
        if outputs is None:
            outputs = self._outputs
        names = getattr(self.model, "output_names", None)
        tensors = NamedTensors(outputs, names, "output").tensors
        return {name: x for name, x in _flat(tensors).items() if _is_float(x)}

    def no_changes(self):
        """Zeros for each point."""
        return [np.zeros(point.shape, "float32") for point in self.points]

    def restore(self):
        """Puts back what calls change, as it was before the first."""
        for variable, value in self.state:
            variable.assign(value)

    def _tensors(self, arrays):
        return {name: ops.convert_to_tensor(array) for name, array in arrays.items()}

    def _call(self, tensors):
        arguments = {}
        if self._training is not None:
            arguments["training"] = self._training
        all_inputs = {name: tensors.get(name) for name in self._named.tensors}  # None is an optional input
        return call_with(self.model, self._named.structured(all_inputs), **arguments)

    @contextlib.contextmanager
    def training(self, training):
        """Calls inside get this argument, if the model takes it."""
        if "training" in inspect.signature(self.model.call).parameters:
            self._training = training
        try:
            yield
        finally:
            self._training = None

    def recorded(self, inputs, changes):
        """The tensors that go into and come out of every layer's calls, in the order in which the calls end."""
        records = []
        paths = {id(layer): path for path, layer in self.layers.items()}

        def record(layer, original):
            @functools.wraps(original)
            def call(*args, **kwargs):
                inputs = _float_arrays((args, kwargs))
                output = original(*args, **kwargs)
                records.append((paths[id(layer)], inputs, _float_arrays(output)))
                return output

            return call

        embedding = {id(layer) for layer in self._embedding_layers}
        others = [layer for layer in self.layers.values() if id(layer) not in embedding]
        with _replaced_calls(others, record):
            self.forward(self._tensors(inputs), [ops.convert_to_tensor(change) for change in changes])
        return records


def call_with(model, inputs, **arguments):
    """Calls a model with its inputs; if its `call` needs several arguments, with the items of a dict or list as these.

    Args:
        model: Layer.
        inputs: A tensor, or a structure of them.
        **arguments: Further arguments of the call.
    """
    needed = []
    for parameter in inspect.signature(model.call).parameters.values():
        if parameter.default is parameter.empty and parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
            needed.append(parameter.name)
    if len(needed) > 1 and isinstance(inputs, dict) and set(needed) <= set(inputs):
        others = {name: x for name, x in inputs.items() if name not in needed}
        return model(*(inputs[name] for name in needed), **others, **arguments)
    if len(needed) > 1 and isinstance(inputs, (list, tuple)) and len(inputs) >= len(needed):
        return model(*inputs, **arguments)
    return model(inputs, **arguments)


def _changing_variables(model):
    """The variables that a call changes: random states, moving means, and the last states of recurrent layers."""
    variables = list(model.non_trainable_variables)
    for layer in all_layers(model):
        variables += getattr(layer, "states", None) or []
    return {id(variable): variable for variable in variables if isinstance(variable, keras.Variable)}.values()


@contextlib.contextmanager
def _replaced_calls(layers, wrap):
    """In the block, Keras calls `wrap(layer, call)` in place of the `call` or `quantized_call` of each of the layers."""
    with contextlib.ExitStack() as stack:
        for layer in layers:
            name = called_method(layer)
            stack.enter_context(replaced_method(layer, name, wrap(layer, getattr(layer, name))))
        yield


def _gives_vectors(layer, tensor, output):
    """Whether a layer embeds ids, or is `Masking`, whose mask would change with its input."""
    if isinstance(layer, keras.layers.Masking):
        return True
    shape = tuple(tensor.shape)
    output_shape = tuple(output.shape)
    is_embedding = len(shape) == 2 and len(output_shape) == 3 and output_shape[:2] == shape
    return is_embedding and _is_float(output)


def is_mask(array):
    """Whether an input holds only 0 and 1, as a mask does."""
    return array.dtype.kind == "b" or bool(np.isin(array, (0, 1)).all())


def _flat(tensors):
    """A dict of structures as a dict of tensors."""
    flat = {}
    for name, value in tensors.items():
        leaves = keras.tree.flatten(value)
        if len(leaves) == 1:
            flat[name] = leaves[0]
            continue
        for number, leaf in enumerate(leaves):
            flat[f"{name}_{number}"] = leaf
    return flat


def _changed(tensor, change):
    return ops.add(tensor, ops.cast(change, tensor.dtype))


def _float_arrays(structure):
    return [as_array(x) for x in keras.tree.flatten(structure) if _is_float(x)]


def _is_float(x):
    return ops.is_tensor(x) and keras.backend.is_float_dtype(keras.backend.standardize_dtype(x.dtype))


def _deviation(x):
    """The standard deviation of a tensor's values, or 1 if they are all equal."""
    deviation = float(np.std(as_array(x).astype("float32")))
    return deviation if deviation > 0 else 1.0
