"""The projections of an attention layer: from its inputs to heads, and from the heads to its output."""

import collections
import math
import operator

import keras
from keras import ops

from keras_attn.layers.normalization import NORMALIZATIONS
from keras_attn.layers.projection import Projection, product
from keras_attn.ops import Int8Matrix, axis_size, computed_once, loop_form, split_by_sizes, step_form


class HeadProjections:
    """Mixin that makes and calls the projections of an attention layer, see `MultiHeadAttention`."""

    query_dense = property(
        operator.attrgetter("_query_dense"), doc="The projection of `query`, an `EinsumDense`."
    )
    key_dense = property(operator.attrgetter("_key_dense"), doc="The projection of `key`.")
    value_dense = property(operator.attrgetter("_value_dense"), doc="The projection of `value`.")
    output_dense = property(operator.attrgetter("_output_dense"), doc="The projection of the joined heads.")

    def step_projections(self, *, projects_keys=True):
        """This layer's projections as matrices, for a loop of cached calls: made once for all of its steps.

        Args:
            projects_keys: Boolean, whether the calls project keys and values too, from the sequence of the queries.

        Returns:
            `StepProjections`; or None if the layer is gated, adapted, quantised, or for inputs with more axes. Then a
            call projects as usual.
        """
        if self.use_gate or self._layout.attended != (1,) or self._layout.lead or self._output_shape:
            return None
        projections = [self._query_dense]
        if projects_keys:
            projections += [self._key_dense, self._value_dense]
        return step_projections(projections, self._output_dense)

    # Variants with other numbers of heads override these.

    @property
    def _num_query_heads(self):
        return self.num_heads

    @property
    def _num_key_heads(self):
        return self.num_key_value_heads

    def _build_projections(self, query_shape, value_shape, key_shape):
        self._query_dense = self._head_projection("query", query_shape, self._num_query_heads, self.key_dim)
        self._key_dense = self._head_projection("key", key_shape, self._num_key_heads, self.key_dim)
        if self.use_gate:
            self._gate_dense = self._head_projection(
                "gate", query_shape, self.num_heads, self.value_dim, activation="sigmoid"
            )
        self._value_dense = self._head_projection(
            "value", value_shape, self.num_key_value_heads, self.value_dim
        )
        self._output_dense = self._output_projection(query_shape)
        if self.query_key_norm:
            self._query_norm = self._head_norm("query_norm")
            self._key_norm = self._head_norm("key_norm")

    def _heads(self, query, key, value, step_projections=None):
        """Projected heads (B, <lead>, N, T, H) of queries, keys and values; None for an input that is None."""
        if step_projections is None:
            return (
                self._head(self._query_dense, query),
                self._head(self._key_dense, key),
                self._head(self._value_dense, value),
            )
        sizes = [(self._num_query_heads, self.key_dim)]
        if key is None:
            (query_heads,) = projected_heads(step_projections, query, sizes)
            return query_heads, None, None
        sizes += [(self._num_key_heads, self.key_dim), (self.num_key_value_heads, self.value_dim)]
        return projected_heads(step_projections, query, sizes)

    def _head(self, dense, x):
        """(B, <axes>, D) -> (B, <lead>, N, T, H). Projections may be stored, and computed, in another dtype than attention."""
        if x is None:
            return None
        return ops.cast(self._layout.heads_first(dense(x)), self.compute_dtype)

    def _output(self, heads, query, step_projections=None):
        """Heads (B, <lead>, N, T, H) -> the output (B, <axes>, D)."""
        if step_projections is not None:
            return projected_output(step_projections, heads)
        output = self._layout.heads_last(heads, query)
        if self.use_gate:
            output = output * ops.cast(self._gate_dense(query), output.dtype)
        return ops.cast(self._output_dense(output), output.dtype)

    def _parts(self):
        parts = [self._query_dense, self._key_dense, self._value_dense, self._output_dense]
        if self.use_gate:
            parts.insert(2, self._gate_dense)
        return parts

    def _head_projection(self, name, input_shape, num_heads, size, activation=None):
        """D -> (N, size) on the last axis: a kernel (D, N, size) and a bias (N, size)."""
        axes = _LETTERS[: len(input_shape) - 1]
        bias_axes = "yz" if self.use_bias else None
        return self._projection(
            name,
            f"{axes}x,xyz->{axes}yz",
            input_shape,
            output_shape=(*input_shape[1:-1], num_heads, size),
            bias_axes=bias_axes,
            activation=activation,
        )

    def _head_norm(self, name):
        options = {"dtype": self.dtype_policy, "name": name}
        if self.query_key_norm_epsilon is not None:
            options["epsilon"] = self.query_key_norm_epsilon
        layer = NORMALIZATIONS[self.query_key_norm](**options)
        layer.build((None, None, None, self.key_dim))
        return layer

    def _output_projection(self, query_shape):
        """(N, Hv) -> the output's trailing shape: a kernel (N, Hv, *trailing) and a bias of the trailing shape."""
        trailing = self._output_shape or (query_shape[-1],)
        rank = len(query_shape)
        axes = _LETTERS[: rank - 1]
        output_axes = _LETTERS[rank : rank + len(trailing)]
        has_bias = self.use_bias if self.use_output_bias is None else self.use_output_bias
        bias_axes = output_axes if has_bias else None
        return self._projection(
            "attention_output",
            f"{axes}xy,xy{output_axes}->{axes}{output_axes}",
            (*query_shape[:-1], self.num_heads, self.value_dim),
            output_shape=tuple(query_shape[1:-1]) + trailing,
            bias_axes=bias_axes,
        )

    def _projection(self, name, equation, input_shape, output_shape, bias_axes, activation=None):
        layer = Projection(
            equation,
            output_shape=output_shape,
            activation=activation,
            bias_axes=bias_axes,
            kernel_regularizer=self.kernel_regularizer,
            bias_regularizer=self.bias_regularizer,
            activity_regularizer=self._activity_regularizer,
            kernel_constraint=self.kernel_constraint,
            bias_constraint=self.bias_constraint,
            **self._sublayer_options(name),
        )
        # EinsumDense would warn that it drops an implicit mask, which the attention layer reads itself.
        layer.supports_masking = True
        layer.build(input_shape)
        return layer


_LETTERS = "abcdefghijklmnopqrstuvw"


class HeadLayout:
    """Converts tensors between Keras' layout (B, <axes>, N, H) and that of the ops, (B, <lead>, N, T, H).

    T is the attended axes, flattened in order; <lead> are the axes that are not attended over. For the usual
    (B, T, D) inputs there is one attended axis and no lead.

    Args:
        rank: Integer, the rank of the layer's inputs (B, <axes>, D).
        attention_axes: Tuple of integers, the attended axes of those inputs, or None for all of <axes>.
    """

    def __init__(self, rank, attention_axes=None):
        axes = range(1, rank - 1)
        attended = axes
        if attention_axes is not None:
            attended = [axis % rank for axis in attention_axes]
        if not attended or not set(attended) <= set(axes) or len(set(attended)) < len(attended):
            raise ValueError(
                "`attention_axes` must name axes between the batch and the features, each once. Received: "
                f"attention_axes={attention_axes} for inputs of rank {rank}."
            )
        self.attended = tuple(attended)
        self.lead = tuple(axis for axis in axes if axis not in self.attended)

    def heads_first(self, x):
        """(B, <axes>, N, H) -> (B, <lead>, N, T, H)."""
        rank = len(x.shape)
        x = ops.transpose(x, (0, *self.lead, rank - 2, *self.attended, rank - 1))
        return self._flatten(x, len(self.lead) + 2)

    def heads_last(self, x, query):
        """(B, <lead>, N, T, H) -> (B, <axes>, N, H), with the sizes of the axes of `query` (B, <axes>, D)."""
        x = self._unflatten(x, len(self.lead) + 2, query)
        current_axes = (0, *self.lead, None, *self.attended, None)
        num_axes = len(current_axes)
        order = [current_axes.index(axis) for axis in range(num_axes - 2)]
        return ops.transpose(x, [*order, len(self.lead) + 1, num_axes - 1])

    def padding(self, mask):
        """(B, <axes>) or (<axes>) -> (B, <lead>, T) or (1, <lead>, T).

        Masks of other ranks are not changed; a later check refuses them.
        """
        rank = 1 + len(self.lead) + len(self.attended)
        if len(mask.shape) == rank - 1:
            mask = ops.expand_dims(mask, 0)
        if len(mask.shape) != rank:
            return mask
        order = (0, *self.lead, *self.attended)
        if order != tuple(sorted(order)):
            mask = ops.transpose(mask, order)
        return self._flatten(mask, len(self.lead) + 1)

    def pairs(self, mask, rank):
        """A mask ending in the attended axes of queries, then of keys -> one that broadcasts to (..., N, T, S).

        Missing axes are added before the attended ones, as in Keras: (B, T, S) becomes (B, 1, T, S).
        """
        count = len(self.attended)
        if count > 1 and len(mask.shape) >= 2 * count:
            mask = self._flatten(mask, len(mask.shape) - count)
            mask = self._flatten(mask, len(mask.shape) - 1 - count)
        if len(mask.shape) == 1:
            mask = ops.expand_dims(mask, 0)
        return computed_once(_with_axes_before_pairs, mask, rank)

    def scores(self, scores, query, value):
        """(B, <lead>, N, T, S) -> (B, <lead>, N, <attended axes of query>, <attended axes of value>)."""
        scores = self._unflatten(scores, len(self.lead) + 3, value)
        return self._unflatten(scores, len(self.lead) + 2, query)

    def _flatten(self, x, axis):
        """Joins the attended axes, which start at `axis`, into one."""
        if len(self.attended) == 1:
            return x
        shape = list(ops.shape(x))
        end = axis + len(self.attended)
        shape[axis:end] = [math.prod(shape[axis:end])]
        return ops.reshape(x, shape)

    def _unflatten(self, x, axis, like):
        if len(self.attended) == 1:
            return x
        shape = list(ops.shape(x))
        like_shape = ops.shape(like)
        shape[axis : axis + 1] = [like_shape[attended_axis] for attended_axis in self.attended]
        return ops.reshape(x, shape)


def _with_axes_before_pairs(mask, rank):
    """(..., T, S) -> a mask of `rank` axes."""
    while len(mask.shape) < rank:
        mask = ops.expand_dims(mask, -3)
    return mask


StepProjections = collections.namedtuple(
    "StepProjections", ["input_kernel", "input_bias", "output_kernel", "output_bias"]
)
StepProjections.__doc__ = """The projections of one attention layer as two matrices, for a loop that calls it at every step.

Queries, keys and values come from one product instead of three. The output of the layer is the same, in its compute dtype.

input_kernel: floats (D, X), or an `Int8Matrix`. The axis X holds the heads of queries, then of keys, then of values.
input_bias: floats (X,), or None.
output_kernel: floats (N * Hv, D), or an `Int8Matrix`.
output_bias: floats (D,), or None.
"""

_Matrix = collections.namedtuple("_Matrix", ["kernel", "bias"])


def step_projections(inputs, output):
    """The `StepProjections` of layers; None if one is adapted, or not just a product and a sum.

    Layers quantised to int8 have matrices of integers, where the graph is only run, and None elsewhere.

    Args:
        inputs: The `Projection`s of one sequence (B, T, D) to heads, D -> (N, H).
        output: The `Projection` from heads, (N, Hv) -> D.
    """
    if not all(_is_plain(layer) for layer in inputs) or not _is_plain(output):
        return None
    if len({layer.quantization_mode for layer in inputs}) > 1:
        return None
    input_matrix = _in_step_form(_joined([_as_matrix(layer, 1) for layer in inputs]))
    output_matrix = _in_step_form(_as_matrix(output, 2))
    return StepProjections(input_matrix.kernel, input_matrix.bias, output_matrix.kernel, output_matrix.bias)


def projected_heads(projections, x, sizes):
    """(B, T, D) -> a list of heads (B, N, T, H), one for each of `sizes`, pairs (N, H)."""
    if x.shape[1] == 1:  # rows (B, D): every reshape is an operation of each step
        x = ops.reshape(x, (-1, x.shape[-1]))
    x = _product(x, projections.input_kernel, projections.input_bias)
    counts = [num_heads for num_heads, _ in sizes]
    widths = [size for _, size in sizes]
    if len(set(widths)) == 1:
        heads = _heads_first(x, sum(counts), widths[0])
        return split_by_sizes(heads, counts, axis=1)
    parts = split_by_sizes(x, [num_heads * size for num_heads, size in sizes], axis=-1)
    return [_heads_first(part, num_heads, size) for part, (num_heads, size) in zip(parts, sizes)]


def projected_output(projections, heads):
    """(B, N, T, Hv) -> (B, T, D)."""
    _, num_heads, length, size = heads.shape
    if length == 1:
        rows = ops.reshape(heads, (-1, num_heads * size))
        output = _product(rows, projections.output_kernel, projections.output_bias)
        return ops.reshape(output, (-1, 1, output.shape[-1]))
    heads = ops.transpose(heads, (0, 2, 1, 3))
    sequence = ops.reshape(heads, (-1, axis_size(heads, 1), num_heads * size))
    return _product(sequence, projections.output_kernel, projections.output_bias)


def _product(x, kernel, bias):
    """The product in the dtype of the matrix, as the dtype of `x`."""
    if isinstance(kernel, Int8Matrix):
        return product(x, kernel, bias)
    return ops.cast(product(ops.cast(x, kernel.dtype), kernel, bias), x.dtype)


def _is_plain(layer):
    return (
        isinstance(layer, Projection)
        and layer.activation in (None, keras.activations.linear)
        and layer.activity_regularizer is None
        and not layer.lora_enabled
        and (layer.quantization_mode is None or layer.has_int8_product())
    )


def _as_matrix(layer, num_summed_axes):
    bias = layer.bias
    if bias is not None:
        bias = ops.reshape(bias, (-1,))
    if layer.quantization_mode is not None:
        return _Matrix(layer.int8_matrix(), bias)
    kernel = ops.cast(ops.convert_to_tensor(layer.kernel), layer.compute_dtype)
    size = math.prod(kernel.shape[:num_summed_axes])
    if bias is not None:
        bias = ops.cast(bias, layer.compute_dtype)
    return _Matrix(ops.reshape(kernel, (size, -1)), bias)


def _in_step_form(matrix):
    if not isinstance(matrix.kernel, Int8Matrix):
        return matrix
    return matrix._replace(kernel=loop_form(step_form(matrix.kernel)))


def _joined(matrices):
    """One matrix with the columns of all, and one bias."""
    if len(matrices) == 1:
        return matrices[0]
    kernels = [matrix.kernel for matrix in matrices]
    if isinstance(kernels[0], Int8Matrix):
        kernel = Int8Matrix(
            ops.concatenate([kernel.values for kernel in kernels], axis=1),
            ops.concatenate([kernel.scale for kernel in kernels], axis=1),
        )
    else:
        kernel = ops.concatenate(kernels, axis=1)
    bias = None
    if matrices[0].bias is not None:
        bias = ops.concatenate([matrix.bias for matrix in matrices], axis=0)
    return _Matrix(kernel, bias)


def _heads_first(x, num_heads, size):
    """(B, T, N * H) -> (B, N, T, H); (B, N * H) -> (B, N, 1, H)."""
    if len(x.shape) == 2:  # the order of values in memory is the same, so nothing has to be moved
        return ops.reshape(x, (-1, num_heads, 1, size))
    x = ops.reshape(x, (-1, axis_size(x, 1), num_heads, size))
    return ops.transpose(x, (0, 2, 1, 3))
