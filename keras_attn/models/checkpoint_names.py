"""Where the variables of a model are in a checkpoint: one table of names for each architecture, read in both directions.

A table maps our path of a layer, "block_{i}/self_attention/query", to theirs, "encoder.layer.{i}.attention.self.query".
`{...}` stands for one name on a path. The kind of the variable says the rest: a kernel is their `.weight`, transposed and
with heads apart, a norm's gamma or scale is `.weight`. Where their layout is another one, the table holds an `At`. A
table may also map a whole variable, "embedding/token/reverse_embeddings", to a whole tensor, "lm_head.weight".
"""

import collections
import dataclasses
import math
import re

import numpy as np

from keras_attn.layers.layer_slots import run_without_values
from keras_attn.models.weight_names import named_weights

_SUFFIXES = {"bias": "bias", "beta": "bias", "output_bias": "bias"}  # all others are a "weight"
_KERNELS = ("kernel", "reverse_embeddings")

ReportRow = collections.namedtuple("ReportRow", "tensor variable shape note")
ReportRow.__doc__ = """What became of one tensor of a checkpoint.

tensor: its name in the files.
variable: the name of the variable, or None if the model does not need the tensor.
shape: its shape in the files.
note: "", "transposed", "same as NAME", or why it is not needed.
"""

MeasuredModel = collections.namedtuple("MeasuredModel", "shapes config")
MeasuredModel.__doc__ = (
    """What is known of a model that took no memory: {name: shape} of its variables, and its config."""
)


@dataclasses.dataclass(frozen=True)
class At:
    """The place of a layer's tensors in a checkpoint, where its layout is not that of torch's layers.

    Args:
        name: Their name of the layer, or of a whole tensor.
        transposed: Boolean, whether their matrices are (outputs, inputs), which GPT-2's are not.
        part: Pair (k, n): the tensor holds n such variables one after another, and this is number k.
        first_row: Integer, the number of rows before those of the variable, which no token uses.
        last_rows: Integer, the number of such rows after those of the variable.
        added: Float, added to their values (Gemma's norms multiply by 1 + weight).
        leading_axis: Boolean, whether the tensor has an axis of size 1 before the variable's.
        patch: Pair of integers p and q: the kernel (p q C, D) of patches is theirs of a convolution, (D, C, p, q).
    """

    name: str
    transposed: bool = True
    part: tuple = (0, 1)
    first_row: int = 0
    last_rows: int = 0
    added: float = 0.0
    leading_axis: bool = False
    patch: tuple | None = None


@dataclasses.dataclass(frozen=True)
class Place:
    """One variable's place in a checkpoint.

    Args:
        variable: String, the variable's name in `named_weights`.
        shape: Tuple, the variable's shape.
        tensor: String, the tensor's name.
        at: `At`.
    """

    variable: str
    shape: tuple
    tensor: str
    at: At

    @property
    def is_transposed(self):
        return self._is_kernel and self.at.transposed

    @property
    def _convolution_shape(self):
        """(p, q, C, D), of the kernel of a convolution in our order; None for any other variable."""
        if self.at.patch is None or not self._is_kernel:
            return None
        size, outputs = self.shape
        return (*self.at.patch, size // math.prod(self.at.patch), outputs)

    @property
    def is_plain(self):
        """Whether the tensor is the variable as it is."""
        is_usual = dataclasses.replace(self.at, name="") == At("")
        return is_usual and not self._is_kernel and bool(self.shape) and self.shape == self.tensor_shape

    @property
    def tensor_shape(self):
        """The shape that the tensor must have."""
        _, num_parts = self.at.part
        if self._convolution_shape is not None:
            down, across, channels, outputs = self._convolution_shape
            return outputs, channels, down, across
        if self._is_kernel:
            inputs, outputs = self._matrix_shape
            shape = (inputs, outputs * num_parts)
            return shape[::-1] if self.at.transposed else shape
        first, *others = self._joined_shape
        shape = (first * num_parts + self.at.first_row + self.at.last_rows, *others)
        return (1, *shape) if self.at.leading_axis else shape

    def to_variable(self, array):
        """The tensor's values in the shape of the variable."""
        if self._convolution_shape is not None:
            return array.transpose(2, 3, 1, 0).reshape(self.shape)
        if self._is_kernel and self.at.transposed:
            array = array.T
        elif self.at.leading_axis:
            array = array[0]
        part, num_parts = self.at.part
        if num_parts > 1:
            array = np.split(array, num_parts, axis=-1)[part]
        if self.at.first_row or self.at.last_rows:
            array = array[self.at.first_row : len(array) - self.at.last_rows]
        array = array.reshape(self.shape)
        if self.at.added:
            array = array + np.asarray(self.at.added, array.dtype)
        return array

    def to_tensor(self, array):
        """The variable's values in the layout of the tensor; the inverse of `to_variable`.

        If the tensor holds several variables, these values are joined along the last axis, and the whole is then transposed.
        """
        if self._convolution_shape is not None:
            return array.reshape(self._convolution_shape).transpose(3, 2, 0, 1)
        if self.at.added:
            array = array - np.asarray(self.at.added, array.dtype)
        if self._is_kernel:
            array = array.reshape(self._matrix_shape)
            _, num_parts = self.at.part
            return array.T if self.at.transposed and num_parts == 1 else array
        array = array.reshape(self._joined_shape)
        if self.at.first_row or self.at.last_rows:
            rows = [(self.at.first_row, self.at.last_rows)]
            array = np.pad(array, rows + [(0, 0)] * (array.ndim - 1))
        return array[None] if self.at.leading_axis else array

    @property
    def _kind(self):
        return self.variable.rpartition("/")[2]

    @property
    def _is_kernel(self):
        return self._kind in _KERNELS

    @property
    def _joined_shape(self):
        """The variable's shape, for a bias without an axis for heads."""
        return (math.prod(self.shape),) if self._kind == "bias" else self.shape

    @property
    def _matrix_shape(self):
        """(inputs, outputs): a kernel (N, H, D) joins heads, any other (D, N, H) makes them."""
        joins_heads = self.variable.endswith("attention_output/kernel")
        split = len(self.shape) - 1 if joins_heads else 1
        return math.prod(self.shape[:split]), math.prod(self.shape[split:])


def torch_name(layer, kind):
    """torch's name of a layer's tensor, from the last part of the variable's name."""
    return f"{layer}.{_SUFFIXES.get(kind, 'weight')}"


def places(shapes, table, tensor_name=torch_name):
    """The `Place` of every variable.

    Args:
        shapes: Dict from names of variables to shapes.
        table: Dict, see the top of this file.
        tensor_name: Function from their name of a layer and the last part of the variable's name to their tensor's name.

    Raises:
        ValueError: for a variable that the table does not name.

    Example:

    ```python
    table = {"block_{i}/{layer}": "layers.{i}.{layer}_proj"}
    (place,) = places({"block_3/query/kernel": (20, 5, 4)}, table)
    place.tensor, place.tensor_shape, place.is_transposed  # ("layers.3.query_proj.weight", (20, 20), True)
    ```
    """
    rules = [(_pattern(ours), at if isinstance(at, At) else At(at)) for ours, at in table.items()]
    return [_place(variable, tuple(shape), rules, tensor_name) for variable, shape in shapes.items()]


def _place(variable, shape, rules, tensor_name):
    layer, _, kind = variable.rpartition("/")
    for pattern, at in rules:
        if match := pattern.fullmatch(variable):
            return Place(variable, shape, at.name.format(**match.groupdict()), at)
        if match := pattern.fullmatch(layer):
            return Place(variable, shape, tensor_name(at.name.format(**match.groupdict()), kind), at)
    raise ValueError(f"The table of names has no entry for {variable}.")


def _pattern(path):
    """The regular expression of a path in a table."""
    return re.compile(re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]+)", re.escape(path)))


def measured_model(make):
    """The `MeasuredModel` of what a function makes: the model is made without memory for its variables, and dropped."""

    def measure():
        model = make()
        shapes = {name: tuple(variable.shape) for name, variable in named_weights(model).items()}
        return MeasuredModel(shapes, model.get_config())

    return run_without_values(measure)


def check_whole(path, missing, unknown):
    """Refuses a checkpoint that lacks tensors of its model, or holds tensors that nobody understands."""
    if missing or unknown:
        raise ValueError(
            f"{path} does not hold exactly the weights of its model. "
            f"Missing: {_first_names(missing)}. Not understood: {_first_names(unknown)}."
        )


def _first_names(names, most=20):
    text = ", ".join(sorted(names)[:most]) or "none"
    if len(names) > most:
        text += f" and {len(names) - most} more"
    return text


def report_line(row):
    """A `ReportRow` as a line of text."""
    if row.variable is None:
        return f"{row.tensor} (not used) {row.shape} {row.note}"
    return f"{row.tensor} -> {row.variable} {row.shape} {row.note}".rstrip()
