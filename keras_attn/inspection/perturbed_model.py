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


class Point(NamedTuple):
    """Where the vectors of an input can be changed.

    name: the input. order: the number of the call among those of the embedding layers, or None for the input itself.
    shape: of the vectors, (B, T, ...). scale: their standard deviation.
    """

    name: str
    order: int | None
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
        else:
            values = list(structure) if isinstance(structure, (list, tuple)) else [structure]
            if len(values) != len(names or ()):
                names = [f"{default}_{i}" for i in range(len(values))] if len(values) > 1 else [default]
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
        names = [x.name for x in model.inputs] if getattr(model, "inputs", None) else None
        self._named = NamedTensors(inputs, names, "inputs")
        self.inputs = {
            name: np.asarray(ops.convert_to_numpy(x))
            for name, x in self._named.tensors.items()
            if x is not None
        }
        self.layers = sublayers_by_path(model)
        self._training = None
        self.points, self.implicit_masks = [], {}
        # What calls change: random numbers, moving means, and what recurrent layers keep of the last call.
        kept = [state for layer in all_layers(model) for state in getattr(layer, "states", None) or []]
        variables = {
            id(v): v for v in [*model.non_trainable_variables, *kept] if isinstance(v, keras.Variable)
        }
        self.state = [(v, np.array(ops.convert_to_numpy(v.value))) for v in variables.values()]
        self._find_points()

    # What is found out by one call.

    def _find_points(self):
        called, found = [], []

        def note(layer, original):
            @functools.wraps(original)
            def call(*args, **kwargs):
                before = len(found)
                output = original(*args, **kwargs)
                first = next((x for x in keras.tree.flatten((args, kwargs)) if ops.is_tensor(x)), None)
                names = self._names_of(first)
                if names and ops.is_tensor(output):
                    self._note_mask(layer, first, names)
                    if len(found) == before and _gives_vectors(layer, first, output):
                        taken = [name for _, name, _ in found]
                        # Inputs of equal values are taken in turn.
                        found.append((len(called), min(names, key=taken.count), output))
                called.append(layer)
                return output

            return call

        with _replaced(self.layers.values(), note):
            self._outputs = self._call(self._tensors(self.inputs))
        self._embedding_layers = list({id(called[index]): called[index] for index, *_ in found}.values())
        # The calls of these layers are counted, since they may also be called on something else.
        counted = [
            i for i, layer in enumerate(called) if any(layer is other for other in self._embedding_layers)
        ]
        for index, name, output in found:
            self.points.append(Point(name, counted.index(index), tuple(output.shape), _deviation(output)))
        embedded = {point.name for point in self.points}
        for name, array in self.inputs.items():
            if name not in embedded and array.dtype.kind == "f" and array.ndim > 1 and not is_mask(array):
                self.points.append(Point(name, None, array.shape, _deviation(array)))

    def _names_of(self, tensor):
        """The inputs of these values."""
        if tensor is None or len(tensor.shape) < 2:
            return []
        shape = tuple(tensor.shape)
        named = [name for name, array in self.inputs.items() if array.shape == shape]
        if not named:
            return []
        values = np.asarray(ops.convert_to_numpy(tensor))
        return [name for name in named if np.array_equal(values, self.inputs[name].astype(values.dtype))]

    def _note_mask(self, layer, tensor, names):
        if not isinstance(layer, keras.layers.Masking) and len(tensor.shape) != 2:
            return
        try:
            mask = layer.compute_mask(tensor, None)
        except Exception:  # a layer whose masks need more arguments than a tensor
            return
        if ops.is_tensor(mask) and tuple(mask.shape) == tuple(tensor.shape[:2]):
            for name in names:
                self.implicit_masks.setdefault(name, np.asarray(ops.convert_to_numpy(mask)).astype(bool))

    # Calls with changes.

    def forward(self, inputs, changes):
        """The model's float outputs, a list, for input tensors by name and a change for each point."""
        inputs = dict(inputs)
        of_calls = {}
        for point, change in zip(self.points, changes, strict=True):
            if point.order is None:
                inputs[point.name] = ops.add(inputs[point.name], ops.cast(change, inputs[point.name].dtype))
            else:
                of_calls[point.order] = change
        number = itertools.count()

        def changed(layer, original):
            @functools.wraps(original)
            def call(*args, **kwargs):
                output = original(*args, **kwargs)
                change = of_calls.get(next(number))
                if change is None:
                    return output
                moved = ops.add(output, ops.cast(change, output.dtype))
                mask = implicit_mask(output)
                if mask is not None:
                    set_implicit_mask(moved, mask)
                return moved

            return call

        with _replaced(self._embedding_layers, changed):
            outputs = self._call(inputs)
        return list(self.named_outputs(outputs).values())

    def named_outputs(self, outputs=None):
        """The float outputs by name."""
        outputs = self._outputs if outputs is None else outputs
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
        arguments = {} if self._training is None else {"training": self._training}
        full = {name: tensors.get(name) for name in self._named.tensors}
        return call_with(self.model, self._named.structured(full), **arguments)

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
                into = [
                    np.asarray(ops.convert_to_numpy(x))
                    for x in keras.tree.flatten((args, kwargs))
                    if _is_float(x)
                ]
                output = original(*args, **kwargs)
                out = [
                    np.asarray(ops.convert_to_numpy(x)) for x in keras.tree.flatten(output) if _is_float(x)
                ]
                records.append((paths[id(layer)], into, out))
                return output

            return call

        embedding = {id(layer) for layer in self._embedding_layers}
        others = [layer for layer in self.layers.values() if id(layer) not in embedding]
        with _replaced(others, record):
            self.forward(self._tensors(inputs), [ops.convert_to_tensor(change) for change in changes])
        return records


def call_with(model, inputs, **arguments):
    """Calls a model with its inputs; with those of a dict or a list in turn, if its `call` needs several of them.

    Args:
        model: Layer.
        inputs: A tensor, or a structure of them.
        **arguments: Further arguments of the call.
    """
    parameters = inspect.signature(model.call).parameters.values()
    needed = [
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    ]
    if len(needed) > 1 and isinstance(inputs, dict) and set(needed) <= set(inputs):
        others = {name: x for name, x in inputs.items() if name not in needed}
        return model(*(inputs[name] for name in needed), **others, **arguments)
    if len(needed) > 1 and isinstance(inputs, (list, tuple)) and len(inputs) >= len(needed):
        return model(*inputs, **arguments)
    return model(inputs, **arguments)


@contextlib.contextmanager
def _replaced(layers, wrap):
    """Puts `wrap(layer, layer.call)` in the place of `call` of some layers, or of `quantized_call`, which Keras then calls."""
    with contextlib.ExitStack() as stack:
        for layer in layers:
            name = called_method(layer)
            stack.enter_context(replaced_method(layer, name, wrap(layer, getattr(layer, name))))
        yield


def _gives_vectors(layer, tensor, output):
    """Whether a layer embeds ids, or is `Masking`, whose mask would change with its input."""
    if isinstance(layer, keras.layers.Masking):
        return True
    shapes = tuple(tensor.shape), tuple(output.shape)
    return len(shapes[0]) == 2 and len(shapes[1]) == 3 and shapes[0] == shapes[1][:2] and _is_float(output)


def is_mask(array):
    """Whether an input holds 0 and 1 alone, as a mask does."""
    return array.dtype.kind == "b" or bool(np.isin(array, (0, 1)).all())


def _flat(tensors):
    """A dict of structures as a dict of tensors."""
    flat = {}
    for name, value in tensors.items():
        leaves = keras.tree.flatten(value)
        flat |= (
            {name: leaves[0]} if len(leaves) == 1 else {f"{name}_{i}": leaf for i, leaf in enumerate(leaves)}
        )
    return flat


def _is_float(x):
    return ops.is_tensor(x) and keras.backend.is_float_dtype(keras.backend.standardize_dtype(x.dtype))


def _deviation(x):
    deviation = float(np.std(np.asarray(ops.convert_to_numpy(x)).astype("float32")))
    return deviation if deviation > 0 else 1.0
