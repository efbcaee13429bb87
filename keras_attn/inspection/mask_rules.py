"""What an output must not depend on, by what is declared of the inputs."""

import collections.abc

import numpy as np

from keras_attn.inspection.backends import as_array


class Declarations:
    """What is declared of a model's inputs, checked.

    Args:
        inputs: Dict from names to arrays.
        padding, causal, segments: As in `check_masks`.
        implicit_masks: Dict from names to booleans (B, T), which hold where nothing else is declared.
    """

    def __init__(self, inputs, padding, causal, segments, implicit_masks):
        self.padding = dict(implicit_masks)
        for name, mask in _by_input_name("padding", padding, inputs).items():
            self.padding[name] = _mask(name, mask, inputs)
        self.causal = list(_by_input_name("causal", _as_keys(causal, inputs), inputs))
        self.segments = {}
        for name, ids in _by_input_name("segments", segments, inputs).items():
            self.segments[name] = _positional("segments", name, ids, inputs)
        self.lengths = {name: array.shape[1] for name, array in inputs.items() if array.ndim > 1}
        self.batch_size = next(iter(inputs.values())).shape[0]

    @property
    def names(self):
        """The inputs of which anything is declared."""
        names = list(self.padding) + self.causal + list(self.segments)
        return list(dict.fromkeys(names))

    def aligned_inputs(self, length):
        """The inputs whose positions are those of a tensor of this length.

        Of several inputs of the same length, these are the causal ones, or else all of which anything is declared.
        """
        causal = [name for name in self.causal if self.lengths[name] == length]
        return causal or [name for name in self.names if self.lengths[name] == length]

    def real(self, length):
        """Which positions are judged: boolean (B, length), or (B, 1) for a tensor without positions (None)."""
        if length is None:
            real = np.ones((self.batch_size, 1), bool)
            for mask in self.padding.values():
                real &= mask.any(axis=1, keepdims=True)  # a row of pads has no right output
            return real
        real = np.ones((self.batch_size, length), bool)
        for name in self.aligned_inputs(length):
            if name in self.padding:
                real &= self.padding[name]
            if name in self.segments:
                real &= self.segments[name] != 0
        return real

    def forbidden(self, length, name):
        """What an output of this length (None: without positions) must not see of an input.

        Returns:
            Dict from kinds to booleans (B, T, S).
        """
        size = self.lengths[name]
        real = self.real(length)[:, :, None]
        forbidden = {}
        present = np.ones((self.batch_size, size), bool)
        if name in self.padding:
            present = self.padding[name]
            forbidden["padding"] = real & ~present[:, None]
        if name in self.causal and size == length:
            later = np.arange(size) > np.arange(size)[:, None]
            forbidden["causal"] = real & later & present[:, None]
        output_segments = self.segments_of(length)
        if name in self.segments and output_segments is not None:
            forbidden["segments"] = real & (output_segments[:, :, None] != self.segments[name][:, None])
        return forbidden

    def clean(self, kind, name, row, source, length):
        """Which positions of a row must not change where the position `source` of an input changes in that row.

        Args:
            length: The number of the tensor's positions, or None for a tensor without positions.

        Returns:
            Booleans (length,), or None if it is not known.
        """
        if kind == "padding":
            return self.real(length)[row]
        if length is None:
            return None
        if kind == "causal":
            return np.arange(length) < source if length == self.lengths[name] else None
        segments = self.segments_of(length)
        if segments is None:
            return None
        return segments[row] != self.segments[name][row, source]

    def segments_of(self, length):
        """The segments (B, length) of a tensor's positions, or None."""
        if length is None:
            return None
        for name in self.aligned_inputs(length):
            if name in self.segments:
                return self.segments[name]
        return None


def check_inputs(inputs):
    """Refuses inputs in which there is no position to change.

    Raises:
        ValueError: unless they are an array, or a flat dict or list of arrays, none of which is empty.
    """
    if isinstance(inputs, dict):
        named = {repr(name): x for name, x in inputs.items()}
    elif isinstance(inputs, (list, tuple)):
        named = {f"inputs[{i}]": x for i, x in enumerate(inputs)}
    else:
        named = {"inputs": inputs}
    for name, x in named.items():
        if x is None:  # an optional input
            continue
        array = as_array(x)
        if array.dtype == object and not all(isinstance(item, (str, bytes)) for item in array.flat):
            raise ValueError(
                "`inputs` must be an array, or a flat dict or list of arrays. "
                f"Received: {name} is of the type {type(x).__name__}."
            )
        if not array.size:
            raise ValueError(
                f"`inputs` must have rows and positions to change. Received: {name} of shape {array.shape}."
            )


def _as_keys(causal, inputs):
    if isinstance(causal, str):
        causal = [causal]
    if not isinstance(causal, (collections.abc.Iterable, type(None))):
        raise ValueError(
            f"`causal` must be a list of names of the model's inputs, {list(inputs)}. Received: causal={causal!r}."
        )
    return dict.fromkeys(causal or ())


def _by_input_name(argument, values, inputs):
    """An argument that is a dict by names of inputs, checked."""
    if not isinstance(values, (collections.abc.Mapping, type(None))):
        raise ValueError(
            f"`{argument}` must be a dict from names of the model's inputs, {list(inputs)}, to arrays. "
            f"Received: {argument}={values!r}."
        )
    values = dict(values or {})
    if len(inputs) == 1 and "inputs" in values:  # a single input may be called so, whatever its name
        (name,) = inputs
        values[name] = values.pop("inputs")
    unknown = [name for name in values if name not in inputs]
    if unknown:
        raise ValueError(f"`{argument}` must name inputs of the model, {list(inputs)}. Received: {unknown}.")
    return values


def _mask(name, mask, inputs):
    mask = _positional("padding", name, mask, inputs)
    if not np.isin(mask, (0, 1)).all():
        raise ValueError(
            f"`padding` must hold booleans, True at real positions. Received other values for {name!r}."
        )
    return mask.astype(bool)


def _positional(argument, name, values, inputs):
    values = np.asarray(values)
    shape = inputs[name].shape[:2]
    if values.shape != shape:
        raise ValueError(
            f"`{argument}` of {name!r} must have the shape {shape} of its rows and positions. Received: shape {values.shape}."
        )
    return values
