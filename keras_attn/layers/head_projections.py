"""The projections of an attention layer: from its inputs to heads, and from the heads to its output."""

import operator

from keras import ops

from keras_attn.layers.arguments import of_sublayer
from keras_attn.layers.normalization import NORMALIZATIONS
from keras_attn.layers.projection import Projection
from keras_attn.layers.step_projections import output_of, projected_heads, step_projections


class HeadProjections:
    """Mixin that makes and calls the projections of an attention layer, see `MultiHeadAttention`."""

    query_dense = property(
        operator.attrgetter("_query_dense"), doc="The projection of `query`, an `EinsumDense`."
    )
    key_dense = property(operator.attrgetter("_key_dense"), doc="The projection of `key`.")
    value_dense = property(operator.attrgetter("_value_dense"), doc="The projection of `value`.")
    output_dense = property(operator.attrgetter("_output_dense"), doc="The projection of the joined heads.")

    def step_projections(self, of_keys=True):
        """This layer's projections as matrices, for a loop of cached calls: made once for all of its steps.

        Args:
            of_keys: Boolean, whether the calls project keys and values too, from the sequence of the queries.

        Returns:
            `StepProjections`; or None if the layer is gated, adapted, quantised, or for inputs with more axes. Then a
            call projects as usual.
        """
        inputs = [self._query_dense, *([self._key_dense, self._value_dense] if of_keys else [])]
        if self.use_gate or self._layout.attended != (1,) or self._layout.lead or self._output_shape:
            return None
        return step_projections(inputs, self._output_dense)

    # Variants with other numbers of heads override these.

    @property
    def _num_query_heads(self):
        return self.num_heads

    @property
    def _num_key_heads(self):
        return self.num_key_value_heads

    def _build_projections(self, query_shape, value_shape, key_shape):
        num_key_heads, num_value_heads = self._num_key_heads, self.num_key_value_heads
        self._query_dense = self._head_projection("query", query_shape, self._num_query_heads, self.key_dim)
        self._key_dense = self._head_projection("key", key_shape, num_key_heads, self.key_dim)
        if self.use_gate:
            self._gate_dense = self._head_projection(
                "gate", query_shape, self.num_heads, self.value_dim, activation="sigmoid"
            )
        self._value_dense = self._head_projection("value", value_shape, num_value_heads, self.value_dim)
        self._output_dense = self._output_projection(query_shape)
        if self.query_key_norm:
            self._query_norm, self._key_norm = self._head_norm("query_norm"), self._head_norm("key_norm")

    def _heads(self, query, key, value, reads_keys=True, projections=None):
        """Projected heads (B, <lead>, N, T, H) of given inputs; no keys and values unless `reads_keys`."""
        if projections is not None:
            sizes = [(self._num_query_heads, self.key_dim)]
            if reads_keys:
                sizes += [(self._num_key_heads, self.key_dim), (self.num_key_value_heads, self.value_dim)]
            return projected_heads(projections, query, sizes)
        pairs = [(self._query_dense, query)]
        if reads_keys:
            pairs += [(self._key_dense, key), (self._value_dense, value)]
        # Projections may be stored, and computed, in another dtype than the attention.
        return [
            ops.cast(self._layout.heads_first(dense(x)), self.compute_dtype)
            for dense, x in pairs
            if x is not None
        ]

    def _output(self, heads, query, projections=None):
        """Heads (B, <lead>, N, T, H) -> the output (B, <axes>, D)."""
        if projections is not None:
            return output_of(projections, heads)
        output = self._layout.heads_last(heads, query)
        if self.use_gate:
            output = output * ops.cast(self._gate_dense(query), output.dtype)
        return ops.cast(self._output_dense(output), output.dtype)

    def _parts(self):
        gate = [self._gate_dense] if self.use_gate else []
        return [self._query_dense, self._key_dense, *gate, self._value_dense, self._output_dense]

    def _head_projection(self, name, input_shape, num_heads, size, activation=None):
        """D -> (N, size) on the last axis: a kernel (D, N, size) and a bias (N, size)."""
        axes = _LETTERS[: len(input_shape) - 1]
        return self._projection(
            name,
            f"{axes}x,xyz->{axes}yz",
            input_shape,
            output_shape=(*input_shape[1:-1], num_heads, size),
            bias_axes="yz",
            activation=activation,
        )

    def _head_norm(self, name):
        epsilon = self.query_key_norm_epsilon
        options = {} if epsilon is None else {"epsilon": epsilon}
        layer = NORMALIZATIONS[self.query_key_norm](dtype=self.dtype_policy, name=name, **options)
        layer.build((None, None, None, self.key_dim))
        return layer

    def _output_projection(self, query_shape):
        """(N, Hv) -> the output's trailing shape: a kernel (N, Hv, *trailing) and a bias of the trailing shape."""
        trailing = self._output_shape or (query_shape[-1],)
        axes, out = (
            _LETTERS[: len(query_shape) - 1],
            _LETTERS[len(query_shape) : len(query_shape) + len(trailing)],
        )
        return self._projection(
            "attention_output",
            f"{axes}xy,xy{out}->{axes}{out}",
            (*query_shape[:-1], self.num_heads, self.value_dim),
            output_shape=(*query_shape[1:-1], *trailing),
            bias_axes=out,
            use_bias=self.use_output_bias,
        )

    def _projection(
        self, name, equation, input_shape, output_shape, bias_axes, activation=None, use_bias=None
    ):
        layer = Projection(
            equation,
            output_shape=output_shape,
            activation=activation,
            bias_axes=bias_axes if (self.use_bias if use_bias is None else use_bias) else None,
            kernel_regularizer=self.kernel_regularizer,
            bias_regularizer=self.bias_regularizer,
            activity_regularizer=self._activity_regularizer,
            kernel_constraint=self.kernel_constraint,
            bias_constraint=self.bias_constraint,
            **of_sublayer(self, name),
        )
        layer.supports_masking = (
            True  # EinsumDense would warn that it drops an implicit mask; we read it ourselves
        )
        layer.build(input_shape)
        return layer


_LETTERS = "abcdefghijklmnopqrstuvw"
