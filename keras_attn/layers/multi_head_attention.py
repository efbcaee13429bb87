import keras
from keras import ops

from keras_attn.layers.arguments import check_positive, check_rate, copy_initializer
from keras_attn.layers.head_layout import HeadLayout
from keras_attn.ops import (
    as_boolean_mask,
    causal_mask,
    check_mask_shape,
    combine_masks,
    dot_product_attention,
    empty_cache,
    implicit_mask,
    sliding_window_mask,
    write_cache,
)


@keras.saving.register_keras_serializable(package="keras_attn")
class MultiHeadAttention(keras.layers.Layer):
    """Multi-head attention that takes what `keras.layers.MultiHeadAttention` takes, and keeps every mask.

    A drop-in superset of Keras' layer: the same constructor and call arguments in the same order, the same defaults
    and weight shapes. It differs where Keras' layer is wrong: the masks that Keras carries on the callers' tensors
    stay there, so that every one of several cross-attention layers on one encoder output sees them; an explicit
    `query_mask` is obeyed; a query with no key to attend to answers 0 (before the output projection) whether scores
    are asked for or not; NaN in masked keys reaches nobody; a mask that cannot broadcast, or an additive one, raises.

    Args:
        num_heads: Integer N, the number of attention heads.
        key_dim: Integer H, the size of each head for query and key.
        value_dim: Integer, the size of each head for value. Defaults to `key_dim`.
        dropout: Float, the share of attention scores dropped in training.
        use_bias: Boolean, whether the projections have biases.
        output_shape: Integer or tuple, the trailing shape of the output. Defaults to the last axis of `query`.
        attention_axes: Integer or tuple, the axes of the inputs to attend over. Defaults to all but the batch and
            the features.
        sliding_window: Integer; keys more than `sliding_window - 1` positions away on either side are masked.
        flash_attention: `None` or `False`. `True` demands a fused kernel and raises: none so far keeps what this
            layer promises of masks and scores.
        kernel_initializer, bias_initializer: Initializers of the projections.
        kernel_regularizer, bias_regularizer, activity_regularizer: Regularizers of the projections.
        kernel_constraint, bias_constraint: Constraints of the projections.
        use_gate: Boolean, whether a sigmoid of a projection of `query` gates each head's output
            ([Qiu et al., 2025](https://arxiv.org/abs/2505.06708)).
        seed: Integer seed of the dropout.

    Call arguments:
        query: Float tensor (B, T, D).
        value: Float tensor (B, S, D).
        key: Float tensor (B, S, D). Defaults to `value`.
        query_mask: Boolean (B, T), True at real queries; the others attend to nothing.
        value_mask, key_mask: Boolean (B, S), True at keys that may be attended; with a growing cache, over its
            slots.
        attention_mask: Boolean, or 0 and 1 of any dtype: (T, S), (B, T, S) or (B, N, T, S), True where a query may
            attend to a key. All masks given, Keras' implicit ones included, are joined with "and".
        return_attention_scores: Boolean.
        training: Boolean, whether dropout is applied.
        use_causal_mask: Boolean, whether a query sees only keys at its own position and before.
        cache: Pair of tensors (B, N, S, H) and (B, N, S, Hv), see `empty_cache` and `project_to_cache`. With
            `cache_update_index`, the keys and values of this call are written to slots `cache_update_index` and
            on, and the queries attend to the whole cache at those positions. Without, the cache is attended to as
            it stands and `value` and `key` only pass their masks (cross-attention while decoding). Padding in a
            growing cache belongs into `value_mask`, which alone keeps a NaN there from the queries.
        cache_update_index: Integer scalar.

    Returns:
        The output, float (B, T, D) or (B, T, *output_shape); then the attention scores (B, N, T, S) if
        `return_attention_scores`; then the new cache if `cache` was given.

    Raises:
        ValueError: if an argument is out of range, a mask cannot broadcast or holds values other than 0 and 1.

    Example:

    ```python
    attention = keras_attn.layers.MultiHeadAttention(num_heads=4, key_dim=16)
    encoder_sequence = keras.random.normal((2, 7, 64))
    decoder_sequence = keras.random.normal((2, 5, 64))
    encoder_padding_mask = keras.ops.convert_to_tensor([[True] * 7, [True] * 3 + [False] * 4])
    output, scores = attention(
        decoder_sequence, encoder_sequence, value_mask=encoder_padding_mask, return_attention_scores=True
    )
    ```

    Reference: [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 3.2.2.
    """

    def __init__(
        self,
        num_heads,
        key_dim,
        value_dim=None,
        dropout=0.0,
        use_bias=True,
        output_shape=None,
        attention_axes=None,
        sliding_window=None,
        flash_attention=None,
        kernel_initializer="glorot_uniform",
        bias_initializer="zeros",
        kernel_regularizer=None,
        bias_regularizer=None,
        activity_regularizer=None,
        kernel_constraint=None,
        bias_constraint=None,
        use_gate=False,
        seed=None,
        **kwargs,
    ):
        check_positive("num_heads", num_heads)
        check_positive("key_dim", key_dim)
        check_positive("value_dim", value_dim, optional=True)
        check_positive("sliding_window", sliding_window, optional=True)
        check_rate("dropout", dropout)
        if flash_attention:
            raise ValueError(
                "`flash_attention` must be None or False: no fused kernel keeps this layer's promises on masks and "
                f"scores. Received: flash_attention={flash_attention}."
            )
        super().__init__(**kwargs)
        self.supports_masking = True
        self.num_heads = num_heads
        self.key_dim = key_dim
        self.value_dim = value_dim or key_dim
        self.dropout = dropout
        self.use_bias = use_bias
        # `output_shape` as an attribute would hide the one Keras reads in `summary()`.
        self._output_shape = _as_tuple(output_shape)
        self.attention_axes = _as_tuple(attention_axes)
        self.sliding_window = sliding_window
        self.flash_attention = flash_attention
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.bias_regularizer = keras.regularizers.get(bias_regularizer)
        # Keras' layer regularises the activity of its projections, not its own once more.
        self._activity_regularizer = keras.regularizers.get(activity_regularizer)
        self.kernel_constraint = keras.constraints.get(kernel_constraint)
        self.bias_constraint = keras.constraints.get(bias_constraint)
        self.use_gate = use_gate
        self.seed = seed

    def build(self, query_shape, value_shape, key_shape=None):
        key_shape = value_shape if key_shape is None else key_shape
        self._check_input_shapes(query_shape, value_shape, key_shape)
        self._layout = HeadLayout(len(query_shape), self.attention_axes)
        self._query_dense = self._head_projection("query", query_shape, self.key_dim)
        self._key_dense = self._head_projection("key", key_shape, self.key_dim)
        if self.use_gate:
            self._gate_dense = self._head_projection(
                "gate", query_shape, self.value_dim, activation="sigmoid"
            )
        self._value_dense = self._head_projection("value", value_shape, self.value_dim)
        self._output_dense = self._output_projection(query_shape)
        self._dropout_layer = keras.layers.Dropout(self.dropout, seed=self.seed, dtype=self.dtype_policy)

    def call(
        self,
        query,
        value,
        key=None,
        query_mask=None,
        value_mask=None,
        key_mask=None,
        attention_mask=None,
        return_attention_scores=False,
        training=None,
        use_causal_mask=False,
        cache=None,
        cache_update_index=None,
    ):
        self._check_call(cache, use_causal_mask)
        key = value if key is None else key
        query_mask = combine_masks(as_boolean_mask(query_mask, "query_mask"), implicit_mask(query))
        key_mask = _key_mask(value, key, value_mask, key_mask)
        query_heads = self._layout.heads_first(self._query_dense(query))
        if cache is None:
            heads = self._project_keys_and_values(key, value)
        elif cache_update_index is None:
            heads = cache
        else:
            heads = cache = write_cache(cache, *self._project_keys_and_values(key, value), cache_update_index)
        output, scores = dot_product_attention(
            query_heads,
            *heads,
            mask=self._joint_mask(
                query,
                query_heads,
                heads[0],
                query_mask,
                key_mask,
                attention_mask,
                use_causal_mask,
                cache_update_index,
            ),
            dropout=self._score_dropout(training),
            # `project_to_cache` leaves zeros at padded keys; a growing cache is guarded when it has padding.
            masked_keys_are_finite=cache is not None and (cache_update_index is None or key_mask is None),
        )
        output = self._layout.heads_last(output, query)
        if self.use_gate:
            output = output * self._gate_dense(query)
        results = [self._output_dense(output)]
        if return_attention_scores:
            results.append(self._layout.scores(scores, query, value))
        if cache is not None:
            results.append(cache)
        return results[0] if len(results) == 1 else tuple(results)

    def project_to_cache(self, value, key=None, value_mask=None, key_mask=None):
        """The keys and values of `value` (B, S, D) as a cache that later calls attend to, computed once.

        Args:
            value, key: As in the call.
            value_mask, key_mask: As in the call, and to be passed to the later calls too. Masked keys become 0.

        Returns:
            A pair of tensors (B, N, S, H) and (B, N, S, Hv).
        """
        key = value if key is None else key
        heads = self._project_keys_and_values(key, value)
        mask = _key_mask(value, key, value_mask, key_mask)
        if mask is None:
            return heads
        check_mask_shape(mask, value.shape[:-1], "value_mask", exact_axes=1)
        attended = ops.expand_dims(ops.expand_dims(mask, 1), -1)
        return tuple(ops.where(attended, x, ops.zeros((), dtype=x.dtype)) for x in heads)

    def empty_cache(self, batch_size, length):
        """A cache of `length` empty slots for self-attention: zeros (B, N, length, H) and (B, N, length, Hv)."""
        return empty_cache(
            batch_size, self.num_heads, length, self.key_dim, self.value_dim, dtype=self.compute_dtype
        )

    def _project_keys_and_values(self, key, value):
        return self._layout.heads_first(self._key_dense(key)), self._layout.heads_first(
            self._value_dense(value)
        )

    def _score_dropout(self, training):
        if not self.dropout:
            return None
        return lambda scores: self._dropout_layer(scores, training=training)

    def _joint_mask(
        self,
        query,
        query_heads,
        key_heads,
        query_mask,
        key_mask,
        attention_mask,
        use_causal_mask,
        cache_update_index,
    ):
        """Every mask that holds, as one that broadcasts to (B, <lead>, N, T, S), or None."""
        shape = (*query_heads.shape[:-1], key_heads.shape[-2])
        masks = []
        if query_mask is not None:
            check_mask_shape(query_mask, query.shape[:-1], "query_mask", exact_axes=1)
            masks.append(self._layout.padding(query_mask)[..., None, :, None])
        if key_mask is not None:
            key_mask = self._layout.padding(key_mask)
            check_mask_shape(key_mask, (*shape[:-3], shape[-1]), "value_mask", exact_axes=1)
            masks.append(key_mask[..., None, None, :])
        if attention_mask is not None:
            attention_mask = as_boolean_mask(attention_mask, "attention_mask")
            pairs = self._layout.pairs(attention_mask, len(shape))
            check_mask_shape(pairs, shape, "attention_mask", received=attention_mask.shape)
            masks.append(pairs)
        if use_causal_mask or self.sliding_window:
            first = 0 if cache_update_index is None else ops.cast(cache_update_index, "int32")
            query_positions = ops.arange(ops.shape(query_heads)[-2], dtype="int32") + first
            key_positions = ops.arange(ops.shape(key_heads)[-2], dtype="int32")
            if use_causal_mask:
                masks.append(causal_mask(query_positions, key_positions))
            if self.sliding_window:
                masks.append(sliding_window_mask(query_positions, key_positions, self.sliding_window))
        return combine_masks(*masks)

    def _check_call(self, cache, use_causal_mask):
        several = len(self._layout.attended) > 1
        if cache is not None and (several or self._layout.lead):
            raise ValueError("`cache` needs inputs of shape (B, T, D), with one axis to attend over.")
        if several and (use_causal_mask or self.sliding_window):
            raise ValueError(
                "`use_causal_mask` and `sliding_window` need one axis to attend over. "
                f"Received: attention_axes={self._layout.attended}."
            )

    def _check_input_shapes(self, query_shape, value_shape, key_shape):
        if tuple(value_shape[1:-1]) != tuple(key_shape[1:-1]):
            raise ValueError(
                "`key` and `value` must have the same shape but for the last axis. Received: "
                f"value_shape={tuple(value_shape)}, key_shape={tuple(key_shape)}."
            )
        if len(query_shape) < 3 or len(query_shape) != len(value_shape):
            raise ValueError(
                "`query` and `value` must both have the shape (B, T, D), or the same number of axes in between. "
                f"Received: query_shape={tuple(query_shape)}, value_shape={tuple(value_shape)}."
            )

    def _head_projection(self, name, input_shape, size, activation=None):
        """D -> (N, size) on the last axis: a kernel (D, N, size) and a bias (N, size)."""
        axes = _LETTERS[: len(input_shape) - 1]
        return self._projection(
            name,
            f"{axes}x,xyz->{axes}yz",
            input_shape,
            output_shape=(*input_shape[1:-1], self.num_heads, size),
            bias_axes="yz",
            activation=activation,
        )

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
        )

    def _projection(self, name, equation, input_shape, output_shape, bias_axes, activation=None):
        layer = keras.layers.EinsumDense(
            equation,
            output_shape=output_shape,
            activation=activation,
            bias_axes=bias_axes if self.use_bias else None,
            # A fresh copy of each initializer: one instance would give every projection the same values.
            kernel_initializer=copy_initializer(self.kernel_initializer),
            bias_initializer=copy_initializer(self.bias_initializer),
            kernel_regularizer=self.kernel_regularizer,
            bias_regularizer=self.bias_regularizer,
            activity_regularizer=self._activity_regularizer,
            kernel_constraint=self.kernel_constraint,
            bias_constraint=self.bias_constraint,
            dtype=self.dtype_policy,
            name=name,
        )
        layer.supports_masking = (
            True  # EinsumDense would warn that it drops an implicit mask; we read it ourselves
        )
        layer.build(input_shape)
        return layer

    def compute_output_shape(self, query_shape, value_shape, key_shape=None):
        return (*query_shape[:-1], *(self._output_shape or query_shape[-1:]))

    def compute_output_spec(
        self,
        query,
        value,
        key=None,
        query_mask=None,
        value_mask=None,
        key_mask=None,
        attention_mask=None,
        return_attention_scores=False,
        training=None,
        use_causal_mask=False,
        cache=None,
        cache_update_index=None,
    ):
        shape = self.compute_output_shape(query.shape, None)
        results = [keras.KerasTensor(shape, dtype=self.compute_dtype)]
        if return_attention_scores:
            layout = HeadLayout(len(query.shape), self.attention_axes)
            lead = [query.shape[axis] for axis in (0, *layout.lead)]
            targets = [query.shape[axis] for axis in layout.attended]
            keys = [value.shape[axis] for axis in layout.attended] if cache is None else [cache[0].shape[-2]]
            results.append(
                keras.KerasTensor((*lead, self.num_heads, *targets, *keys), dtype=self.compute_dtype)
            )
        if cache is not None:
            results.append(tuple(keras.KerasTensor(x.shape, dtype=x.dtype) for x in cache))
        return results[0] if len(results) == 1 else tuple(results)

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "key_dim": self.key_dim,
            "value_dim": self.value_dim,
            "dropout": self.dropout,
            "use_bias": self.use_bias,
            "output_shape": self._output_shape,
            "attention_axes": self.attention_axes,
            "sliding_window": self.sliding_window,
            "flash_attention": self.flash_attention,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
            "kernel_regularizer": keras.regularizers.serialize(self.kernel_regularizer),
            "bias_regularizer": keras.regularizers.serialize(self.bias_regularizer),
            "activity_regularizer": keras.regularizers.serialize(self._activity_regularizer),
            "kernel_constraint": keras.constraints.serialize(self.kernel_constraint),
            "bias_constraint": keras.constraints.serialize(self.bias_constraint),
            "use_gate": self.use_gate,
            "seed": self.seed,
        }

    @property
    def query_dense(self):
        """The projection of `query`, a `keras.layers.EinsumDense`; likewise the three that follow."""
        return self._query_dense

    @property
    def key_dense(self):
        return self._key_dense

    @property
    def value_dense(self):
        return self._value_dense

    @property
    def output_dense(self):
        return self._output_dense


_LETTERS = "abcdefghijklmnopqrstuvw"


def _key_mask(value, key, value_mask, key_mask):
    masks = [as_boolean_mask(value_mask, "value_mask"), as_boolean_mask(key_mask, "key_mask")]
    masks += [implicit_mask(value), implicit_mask(key) if key is not value else None]
    return combine_masks(*_distinct(masks))


def _distinct(masks):
    """Keras passes an implicit mask as the argument too: the same tensor need not be joined with itself."""
    return list({id(mask): mask for mask in masks}.values())


def _as_tuple(value):
    return value if value is None else (value,) if isinstance(value, int) else tuple(value)
