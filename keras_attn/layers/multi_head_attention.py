import operator
from collections.abc import Iterable

import keras
from keras import ops

from keras_attn.checks import check_positive, check_rate, choose
from keras_attn.layers.call_positions import CallPositions
from keras_attn.layers.clean_padding import clean_attention_inputs
from keras_attn.layers.dropout import score_dropout
from keras_attn.layers.head_projections import HeadLayout, HeadProjections
from keras_attn.layers.key_value_caching import DYNAMIC_NTK_ADVICE, AttendedKeys, KeyValueCaching
from keras_attn.layers.layer_slots import Slotted
from keras_attn.layers.masks import ATTENTION_MASK_ARGUMENTS, CallMasks
from keras_attn.layers.normalization import NORMALIZATIONS
from keras_attn.layers.position_biases import PositionBias
from keras_attn.layers.projection import current_step_projections
from keras_attn.ops import KeyValueCache, attend, poisoned


@keras.saving.register_keras_serializable(package="keras_attn")
class MultiHeadAttention(KeyValueCaching, HeadProjections, Slotted, keras.layers.Layer):
    """Multi-head attention with all arguments of `keras.layers.MultiHeadAttention`, which applies every mask.

    A drop-in superset of Keras' layer: the same constructor and call arguments in the same order, the same defaults
    and weight shapes. It differs where Keras' layer is wrong: Keras masks stay on the caller's tensors, so
    that all cross-attention layers on one encoder output see them; an explicit `query_mask` is applied; the
    output of a query with no key to attend to is 0 (before the output projection), whether scores are
    returned or not; NaN in masked keys does not spread; a mask that cannot broadcast, or an additive mask,
    raises.

    The formula is `keras_attn.ops.dot_product_attention`, and every path gives its answer. On TensorFlow, calls that return
    scores or use `use_sink_logits` take it as it stands; long sequences are attended block by block
    (`keras_attn.ops.memory_efficient_attention`); all others take ops/tensorflow_attention.py, the same steps with a
    shorter gradient. `keras_attn.ops.attend` chooses.

    Further variants are arguments and slots. They combine freely, except for the pairs that the documentation
    lists, which raise. The logits of head n are `cap(q k / sqrt(H)) + bias`, where q and k may be normalised
    and rotated.

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
        flash_attention: Boolean, whether the backend's fused kernel computes the attention. By default it does on
            PyTorch, and on JAX with a GPU, whenever its output is the same: no mask except the causal one of
            a whole sequence, no bias, no scores. `True` raises if it cannot be used.
        kernel_initializer, bias_initializer: Initializers of the projections.
        kernel_regularizer, bias_regularizer, activity_regularizer: Regularizers of the projections.
        kernel_constraint, bias_constraint: Constraints of the projections.
        use_gate: Boolean, whether a sigmoid of a projection of `query` gates each head's output
            ([Qiu et al., 2025](https://arxiv.org/abs/2505.06708)).
        seed: Integer seed of the dropout.
        num_key_value_heads: Integer K that divides N: the number of heads of keys and values, each shared by
            N / K successive query heads; 1 is multi-query attention
            ([Ainslie et al., 2023](https://arxiv.org/abs/2305.13245)). Defaults to N.
        rotary_embedding: `RotaryEmbedding` that turns queries and keys by their positions.
        position_bias: `PositionBias` that is added to the logits: `AlibiBias`, `RelativePositionBias`,
            `RelativePositionKeys`, or one of your own. Several layers may be given one instance; they then share its
            weights.
        query_key_norm: `"rms_norm"` or `"layer_norm"` of each head's queries and keys, before their rotation
            ([Henry et al., 2020](https://arxiv.org/abs/2010.04245)). Defaults to none.
        logit_soft_cap: Float c; products of queries and keys become c tanh(x / c)
            ([Gemma Team, 2024](https://arxiv.org/abs/2408.00118), section 2).
        use_sink_logits: Boolean, whether each head has a learned logit that takes its share of the softmax and has
            no value ([Agarwal et al., 2025](https://arxiv.org/abs/2508.10925), section 2.2).
        num_sink_tokens: Integer, how many of the first positions, those of real tokens, are seen in spite of
            `sliding_window` ([Xiao et al., 2024](https://arxiv.org/abs/2309.17453)).
        memory_efficient: Boolean, whether to attend block by block, without any tensor of T x S numbers,
            forward or backward. By default, long sequences do, unless the scores are returned.
        scale: Float that multiplies the products of queries and keys. Defaults to `key_dim ** -0.5`; 1.0 in T5
            ([Raffel et al., 2020](https://arxiv.org/abs/1910.10683)).
        query_key_norm_epsilon: Float, the epsilon of `query_key_norm`. Defaults to the norm's own.
        use_output_bias: Boolean, whether the output projection has a bias. Defaults to `use_bias`; the
            others have one and this has none in Qwen 2 ([Yang et al., 2024](https://arxiv.org/abs/2407.10671)).

    Call arguments:
        query: Float tensor (B, T, D).
        value: Float tensor (B, S, D).
        key: Float tensor (B, S, D). Defaults to `value`.
        query_mask: Boolean (B, T), True at real queries; the others attend to nothing.
        value_mask, key_mask: Boolean (B, S), True at keys that may be attended; with a growing cache, over its
            slots.
        attention_mask: Boolean, or 0 and 1 of any dtype: (T, S), (B, T, S) or (B, N, T, S), True where a query may
            attend to a key. All masks given, Keras' implicit ones included, are joined with "and". Of two axes it is
            (T, S), as in Keras, also where it could be (B, S): a padding mask is the `value_mask`. It is
            refused where a graph shows that it is of the batch.
        return_attention_scores: Boolean.
        training: Boolean, whether dropout is applied.
        use_causal_mask: Boolean, whether a query sees only keys at its own position and before.
        cache: Pair of tensors (B, K, S, H) and (B, K, S, Hv), see `empty_cache` and `project_to_cache`, or a
            `keras_attn.ops.KeyValueCache` of them with the positions of its slots. With
            `cache_update_index`, the keys and values of this call are written to the slots from
            `cache_update_index` on, and the queries attend to the whole cache. Without it, the queries attend
            to the cache without changes, and only the masks of `value` and `key` are used (cross-attention
            while decoding). Mark padding in a growing cache with `value_mask` or negative `positions`, so
            that a NaN there does not reach the queries. A causal layer with a `sliding_window` uses a cache
            with fewer slots than the whole sequence needs as a ring: the newest keys replace the oldest.
        cache_update_index: Integer scalar.
        positions: Integers (T,) or (B, T), the positions of the queries. Defaults to 0, 1, 2, ..., or with a
            cache to positions from `cache_update_index` on. With a cache they must be successive, and
            negative ones are padding. Self-attention of sequences (B, T, D) with `num_sink_tokens`, or with a rotation
            that depends on the length, finds them by the key masks and `segment_ids`: see
            `keras_attn.ops.token_positions`.
        key_positions: Integers (S,) or (B, S). Defaults to `positions`; with a growing cache they continue
            `positions`.
        segment_ids: Integers (B, T): each of the sequences packed into a row attends only to itself. 0 is
            padding.
        key_segment_ids: Integers (B, S). Defaults to `segment_ids`.
        prefix_mask: Boolean (B, S), True at keys that every query sees in spite of `use_causal_mask` (prefix LM).

    Returns:
        The output, float (B, T, D) or (B, T, *output_shape); then the attention scores (B, N, T, S) if
        `return_attention_scores`; then the new cache, of the same type as `cache`, if that was given.

    Raises:
        ValueError: if an argument is out of range, arguments contradict each other, a mask cannot broadcast
            or holds values other than 0 and 1.

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

    _SLOTS = ("rotary_embedding", "position_bias")
    _MASK_ARGUMENTS = ATTENTION_MASK_ARGUMENTS
    _IS_TRACED = True  # `compute_output_shape` does not describe the scores and the cache

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
        num_key_value_heads=None,
        rotary_embedding=None,
        position_bias=None,
        query_key_norm=None,
        logit_soft_cap=None,
        use_sink_logits=False,
        num_sink_tokens=0,
        memory_efficient=None,
        scale=None,
        query_key_norm_epsilon=None,
        use_output_bias=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.num_heads = check_positive("num_heads", num_heads)
        self.key_dim = check_positive("key_dim", key_dim)
        if value_dim is None:
            value_dim = key_dim
        self.value_dim = check_positive("value_dim", value_dim)
        self.dropout = dropout
        self.use_bias = use_bias
        # An attribute `output_shape` would hide the one that Keras reads in `summary()`.
        self._output_shape = _as_tuple("output_shape", output_shape)
        self.attention_axes = _as_tuple("attention_axes", attention_axes)
        self.sliding_window = check_positive("sliding_window", sliding_window, optional=True)
        self.flash_attention = flash_attention
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.bias_regularizer = keras.regularizers.get(bias_regularizer)
        # Keras' layer regularises the activity of its projections, but not its own.
        self._activity_regularizer = keras.regularizers.get(activity_regularizer)
        self.kernel_constraint = keras.constraints.get(kernel_constraint)
        self.bias_constraint = keras.constraints.get(bias_constraint)
        self.use_gate = use_gate
        self.seed = seed
        if num_key_value_heads is None:
            num_key_value_heads = num_heads
        self.num_key_value_heads = check_positive("num_key_value_heads", num_key_value_heads)
        self.rotary_embedding = rotary_embedding
        self.position_bias = position_bias
        self.query_key_norm = query_key_norm
        self.logit_soft_cap = logit_soft_cap
        self.use_sink_logits = use_sink_logits
        self.num_sink_tokens = num_sink_tokens
        self.memory_efficient = memory_efficient
        self.scale = scale
        self.query_key_norm_epsilon = query_key_norm_epsilon
        self.use_output_bias = use_output_bias
        self._check_arguments()
        self._seed_generator = keras.random.SeedGenerator(seed) if dropout else None

    def _check_arguments(self):
        check_positive("num_sink_tokens", self.num_sink_tokens or None, optional=True)
        check_rate("dropout", self.dropout)
        for size in self._output_shape or ():
            check_positive("output_shape", size)
        if self.flash_attention and keras.backend.backend() == "tensorflow":
            raise ValueError(
                "`flash_attention` must be None or False: TensorFlow has no fused kernel. "
                f"Received: flash_attention={self.flash_attention}."
            )
        if self.num_heads % self.num_key_value_heads:
            raise ValueError(
                "`num_heads` must be divisible by `num_key_value_heads`. "
                f"Received: num_heads={self.num_heads}, num_key_value_heads={self.num_key_value_heads}."
            )
        if self.scale is not None and not self.scale > 0:
            raise ValueError(f"`scale` must be positive. Received: scale={self.scale}.")
        if self.rotary_embedding is not None and not hasattr(self.rotary_embedding, "depends_on_length"):
            raise ValueError(
                "`rotary_embedding` must be a RotaryEmbedding layer or None. "
                f"Received: rotary_embedding={self.rotary_embedding!r}."
            )
        if self.position_bias is not None and not isinstance(self.position_bias, PositionBias):
            raise ValueError(
                "`position_bias` must be a PositionBias layer, such as AlibiBias, or None. "
                f"Received: position_bias={self.position_bias!r}."
            )
        if self.query_key_norm is not None:
            choose("query_key_norm", self.query_key_norm, NORMALIZATIONS)
        if self.query_key_norm_epsilon is not None and not (
            self.query_key_norm and self.query_key_norm_epsilon > 0
        ):
            raise ValueError(
                "`query_key_norm_epsilon` must be positive, and needs a `query_key_norm`. Received: "
                f"query_key_norm_epsilon={self.query_key_norm_epsilon}, query_key_norm={self.query_key_norm!r}."
            )
        if self.logit_soft_cap is not None and not self.logit_soft_cap > 0:
            raise ValueError(
                f"`logit_soft_cap` must be positive. Received: logit_soft_cap={self.logit_soft_cap}."
            )
        if self.num_sink_tokens and not self.sliding_window:
            raise ValueError(
                "`num_sink_tokens` needs a `sliding_window`, in spite of which those tokens are seen. "
                f"Received: num_sink_tokens={self.num_sink_tokens}, sliding_window={self.sliding_window}."
            )

    def build(self, query_shape, value_shape, key_shape=None):
        key_shape = value_shape if key_shape is None else key_shape
        self._check_input_shapes(query_shape, value_shape, key_shape)
        self._layout = HeadLayout(len(query_shape), self.attention_axes)
        self._build_projections(query_shape, value_shape, key_shape)
        for slot in (self.rotary_embedding, self.position_bias):
            if slot is not None:
                slot.build((query_shape[0], self._num_query_heads, None, self.key_dim))
        if self.use_sink_logits:
            self.sink_logits = self.add_weight(
                name="sink_logits", shape=(self._num_query_heads,), initializer="zeros", autocast=False
            )

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
        positions=None,
        key_positions=None,
        segment_ids=None,
        key_segment_ids=None,
        prefix_mask=None,
    ):
        key = value if key is None else key
        masks = CallMasks(
            query,
            value,
            key,
            query_mask=query_mask,
            value_mask=value_mask,
            key_mask=key_mask,
            attention_mask=attention_mask,
            prefix_mask=prefix_mask,
            segment_ids=segment_ids,
            key_segment_ids=key_segment_ids,
        )
        positions = self._call_positions(positions, key_positions, cache, cache_update_index, use_causal_mask)
        self._check_call(masks, positions, cache)
        step_projections = None
        if cache is None:
            query, query_heads, keys = self._project(query, value, key, masks, positions)
        else:
            step_projections = current_step_projections(self, projects_keys=cache_update_index is not None)
            query_heads, keys, cache = self._project_with_cache(
                query, value, key, masks, positions, cache, step_projections
            )
        output, scores = self._attend(
            query_heads,
            keys.key,
            keys.value,
            mask=self._mask_rule(query, query_heads, keys, masks, positions),
            bias=self._bias(query_heads, keys, positions),
            dropout=score_dropout(self, training),
            return_attention_scores=return_attention_scores,
            **self._formula_options(),
        )
        results = [poisoned(self._output(output, query, step_projections), masks.poison)]
        if return_attention_scores:
            results.append(poisoned(self._layout.scores(scores, query, value), masks.poison))
        if cache is not None:
            results.append(cache)
        return results[0] if len(results) == 1 else tuple(results)

    def _attend(self, query, key, value, return_attention_scores, **arguments):
        """The attention formula, which variants override: heads first in and out, and the scores, or None."""
        return attend(
            query,
            key,
            value,
            return_attention_scores=return_attention_scores,
            memory_efficient=self.memory_efficient,
            flash_attention=self.flash_attention,
            **arguments,
        )

    def _formula_options(self):
        """What the formula takes from the layer alone. Queries are scaled already."""
        sink_logits = self.sink_logits if self.use_sink_logits else None
        return {"scale": 1.0, "soft_cap": self.logit_soft_cap, "sink_logits": sink_logits}

    def _project(self, query, value, key, masks, positions):
        """The queries with zeros at padding, their heads, and the `AttendedKeys` of a call without a cache."""
        self._count_tokens(query, value, masks, positions)
        query, value, key, are_finite = clean_attention_inputs(
            masks,
            query,
            value,
            key,
            positions_hide_keys=bool(positions.is_causal or self.sliding_window),
            own_key_is_seen=positions.key_positions is None,
        )
        query_heads, key_heads, value_heads = self._heads(query, key, value)
        query_heads = self._query_heads(query_heads, positions)
        key_heads = self._key_heads(key_heads, positions)
        key_positions = positions.new_key_positions(key_heads)
        keys = AttendedKeys(
            key_heads,
            value_heads,
            key_positions,
            are_finite=are_finite,
            queries_are_finite=are_finite,
        )
        return query, query_heads, keys

    def _query_heads(self, heads, positions):
        if self.query_key_norm:
            heads = self._query_norm(heads)
        heads = self._rotated(heads, positions.query_positions(heads), positions)
        scale = self.key_dim**-0.5 if self.scale is None else self.scale
        if scale == 1:
            return heads
        return heads * ops.convert_to_tensor(scale, heads.dtype)

    def _key_heads(self, heads, positions):
        if self.query_key_norm:
            heads = self._key_norm(heads)
        return self._rotated(heads, positions.new_key_positions(heads), positions)

    def _rotated(self, heads, head_positions, positions):
        if self.rotary_embedding is None:
            return heads
        # Not `__call__`, which would cast to the dtype policy of the slot instead of that of this layer.
        if positions.sequence_length is None:
            return self.rotary_embedding.call(heads, positions=head_positions)
        return self.rotary_embedding.call(heads, positions=head_positions, length=positions.sequence_length)

    def _call_positions(self, positions, key_positions, cache, cache_update_index, use_causal_mask):
        if cache is not None:
            slot_positions = KeyValueCache(*cache).positions
            if slot_positions is not None:
                key_positions = slot_positions
        are_used = self.uses_positions or bool(use_causal_mask)
        return CallPositions(positions, key_positions, cache_update_index, use_causal_mask, are_used)

    @property
    def uses_positions(self):
        """Whether the answer depends on positions also in calls without `use_causal_mask`."""
        has_slots = self.rotary_embedding is not None or self.position_bias is not None
        return has_slots or bool(self.sliding_window)

    def _count_tokens(self, query, value, masks, positions):
        """Looks at the padding where it matters which token of a row is the first, or how many there are."""
        is_self_attention = tuple(query.shape[1:-1]) == tuple(value.shape[1:-1])
        depends_on_length = self._depends_on_length()
        if not is_self_attention or not (self.num_sink_tokens or depends_on_length):
            return
        key_mask = masks.key_mask
        if key_mask is not None:
            key_mask = self._layout.padding(key_mask)
        if len(query.shape) == 3:
            positions.count_tokens(key_mask, masks.key_segment_ids)
        if depends_on_length:
            positions.measure(query, key_mask, masks.key_segment_ids)

    def _depends_on_length(self):
        return self.rotary_embedding is not None and self.rotary_embedding.depends_on_length

    def _mask_rule(self, query, query_heads, keys, masks, positions):
        """All masks as one rule, for heads (B, <lead>, N, T, H)."""
        offset = positions.offset if keys.mask is None else None
        return masks.as_rule(
            self._layout,
            query,
            (*query_heads.shape[:-1], keys.key.shape[-2]),
            keys=keys.key,
            slot_mask=keys.mask,
            query_positions=positions.query_positions(query_heads),
            key_positions=keys.positions,
            causal=positions.is_causal,
            sliding_window=self.sliding_window,
            num_sink_tokens=self.num_sink_tokens,
            offset=offset,
            queries_are_finite=keys.queries_are_finite,
            keys_are_finite=keys.are_finite,
        )

    def _bias(self, query_heads, keys, positions):
        if self.position_bias is None:
            return None
        query_positions = positions.query_positions(query_heads)
        return self.position_bias.checked_pair_bias(query_heads, query_positions, keys.positions)

    def _check_call(self, masks, positions, cache):
        if cache is not None:
            self._check_cache(cache, masks, positions)
        elif positions.cache_update_index is not None:
            raise ValueError(
                "`cache_update_index` needs `cache`. Make one with `layer.empty_cache`. Received: cache=None."
            )
        if len(self._layout.attended) > 1 and positions.are_used:
            raise ValueError(
                "`use_causal_mask`, `sliding_window`, `rotary_embedding` and `position_bias` need one axis to attend "
                f"over. Received: attention_axes={self._layout.attended}."
            )
        if self._layout.lead:
            _check_one_axis("positions", positions.positions)
            _check_one_axis("key_positions", positions.key_positions)
        if masks.prefix_mask is not None and not positions.is_causal:
            raise ValueError(
                "`prefix_mask` says what is seen in spite of `use_causal_mask`, which must be True."
            )
        if positions.key_positions is not None and self._depends_on_length():
            raise ValueError(DYNAMIC_NTK_ADVICE)

    def _check_input_shapes(self, query_shape, value_shape, key_shape):
        if tuple(value_shape[1:-1]) != tuple(key_shape[1:-1]):
            raise ValueError(
                "The shapes of `key` and `value` must be equal but for the last axis. Received: "
                f"value_shape={tuple(value_shape)}, key_shape={tuple(key_shape)}."
            )
        if len(query_shape) < 3 or len(query_shape) != len(value_shape):
            raise ValueError(
                "`query` and `value` must both have the shape (B, T, D), or the same number of axes in between. "
                f"Received: query_shape={tuple(query_shape)}, value_shape={tuple(value_shape)}."
            )

    def compute_output_shape(self, query_shape, value_shape, key_shape=None):
        key_shape = value_shape if key_shape is None else key_shape
        self._check_input_shapes(query_shape, value_shape, key_shape)
        return (*query_shape[:-1], *(self._output_shape or query_shape[-1:]))

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
            "num_key_value_heads": self.num_key_value_heads,
            "query_key_norm": self.query_key_norm,
            "logit_soft_cap": self.logit_soft_cap,
            "use_sink_logits": self.use_sink_logits,
            "num_sink_tokens": self.num_sink_tokens,
            "memory_efficient": self.memory_efficient,
            "scale": self.scale,
            "query_key_norm_epsilon": self.query_key_norm_epsilon,
            "use_output_bias": self.use_output_bias,
        }


def _check_one_axis(name, positions):
    if positions is not None and len(positions.shape) > 1:
        raise ValueError(
            f"`{name}` must have one axis for inputs that are not of shape (B, T, D). "
            f"Received: {name} of shape {tuple(positions.shape)}."
        )


def _as_tuple(name, value):
    """One or several integers as a tuple. None stays None."""
    if value is None:
        return None
    values = value if isinstance(value, Iterable) else (value,)
    try:
        return tuple(operator.index(item) for item in values)
    except TypeError:
        message = f"Invalid `{name}`. `{name}` must be an integer or a tuple of integers. Received: {name}={value!r}."
        raise ValueError(message) from None
