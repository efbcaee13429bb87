"""The encoder and decoder blocks: attention and a feed-forward network, each in a `Residual`."""

import collections

import keras
from keras import ops

from keras_attn.checks import check_positive, check_rate
from keras_attn.layers.adaptation import Adaptable
from keras_attn.layers.arguments import copy_initializer, with_layers
from keras_attn.layers.feed_forward import FeedForward
from keras_attn.layers.given_layers import build_given, call_given, has_argument, is_attention
from keras_attn.layers.initializers import ScaledInitializer
from keras_attn.layers.multi_head_attention import MultiHeadAttention
from keras_attn.layers.recomputation import recompute_in_gradient
from keras_attn.layers.residual import RESIDUAL_ARGUMENTS, Residual, check_residual
from keras_attn.ops import check_mask_shape, combine_masks, implicit_mask, successive_positions


class _Block(Adaptable, keras.layers.Layer):
    """The arguments that encoder and decoder blocks share, and the sub-layers made from them."""

    def __init__(
        self,
        intermediate_dim,
        num_heads,
        dropout,
        activation,
        layer_norm_epsilon,
        kernel_initializer,
        bias_initializer,
        normalize_first,
        attention_dropout,
        normalization,
        gated,
        sandwich_norm,
        layer_scale,
        stochastic_depth,
        residual_scale,
        initializer_gain,
        parallel,
        remat,
        **kwargs,
    ):
        super().__init__(**kwargs)
        # The sub-layers.
        self.intermediate_dim = intermediate_dim
        self.num_heads = num_heads
        self.attention_dropout = attention_dropout
        self.activation = keras.activations.get(activation)
        self.gated = gated
        # Their initial values.
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.initializer_gain = initializer_gain
        # What stands around them.
        self.dropout = dropout
        self.normalize_first = normalize_first
        self.normalization = normalization
        self.layer_norm_epsilon = layer_norm_epsilon
        self.sandwich_norm = sandwich_norm
        self.layer_scale = layer_scale
        self.stochastic_depth = stochastic_depth
        self.residual_scale = residual_scale
        self.parallel = parallel
        self.remat = remat
        self.supports_masking = True
        self._check_arguments()

    def _check_arguments(self):
        check_positive("intermediate_dim", self.intermediate_dim)
        check_positive("num_heads", self.num_heads, optional=True)
        check_rate("attention_dropout", self.attention_dropout)
        check_residual(self)
        if not isinstance(self.initializer_gain, (int, float)) or self.initializer_gain <= 0:
            raise ValueError(
                "`initializer_gain` must be a positive number. "
                f"Received: initializer_gain={self.initializer_gain}."
            )
        if self.parallel and not self.normalize_first:
            raise ValueError(
                "`parallel` needs `normalize_first=True`: the sub-layers share the norm before them. "
                f"Received: parallel={self.parallel}, normalize_first={self.normalize_first}."
            )

    def _take_layers(self, **layers):
        for name, layer in layers.items():
            if layer is not None and not isinstance(layer, keras.layers.Layer):
                raise ValueError(f"`{name}` must be a layer or None. Received: {name}={layer!r}.")
            setattr(self, name, layer)
        first = self._SLOTS[0]  # Whether there is cross-attention too, `build` tells.
        if layers[first] is None:
            self._check_num_heads(first)
        if None not in layers.values() and self.attention_dropout:
            raise ValueError(
                "`attention_dropout` is for attention layers that the block builds; give it to the layer. "
                f"Received: attention_dropout={self.attention_dropout}."
            )

    def _check_num_heads(self, slot):
        if self.num_heads is None:
            raise ValueError(f"`num_heads` or `{slot}` must be given. Received: num_heads=None.")

    def _attention(self, given, name, query_shape, value_shape):
        if given is not None:
            build_given(given, query_shape, value_shape, dtype=self.compute_dtype)
            return given
        hidden_dim = query_shape[-1]
        self._check_num_heads(name)
        if hidden_dim % self.num_heads:
            raise ValueError(
                "The last axis of the inputs must be divisible by `num_heads`. "
                f"Received: {hidden_dim} features, num_heads={self.num_heads}."
            )
        plain = self.initializer_gain == 1
        layer = (MultiHeadAttention if plain else _AttentionWithGain)(
            num_heads=self.num_heads,
            key_dim=hidden_dim // self.num_heads,
            dropout=self.attention_dropout,
            kernel_initializer=copy_initializer(self.kernel_initializer),
            bias_initializer=copy_initializer(self.bias_initializer),
            dtype=self.dtype_policy,
            name=name,
        )
        if not plain:
            layer.initializer_gain = self.initializer_gain
        layer.build(query_shape, value_shape)
        return layer

    def _feed_forward(self, input_shape):
        layer = FeedForward(
            self.intermediate_dim,
            activation=self.activation,
            gated=self.gated,
            kernel_initializer=_with_gain(self.kernel_initializer, self.initializer_gain),
            bias_initializer=copy_initializer(self.bias_initializer),
            dtype=self.dtype_policy,
            name="feed_forward",
        )
        layer.build(input_shape)
        return layer

    def _residual(self, name, input_shape):
        arguments = {argument: getattr(self, argument) for argument in RESIDUAL_ARGUMENTS}
        layer = Residual(**arguments, dtype=self.dtype_policy, name=name)
        layer.build(input_shape)
        return layer

    def _build_feed_forward(self, input_shape):
        self._feed_forward_layer = self._feed_forward(input_shape)
        if not self.parallel:
            self._feed_forward_residual = self._residual("feed_forward_residual", input_shape)

    def _attention_then_feed_forward(self, x, training, self_attention, cross_attention=None):
        """The block as the paper's figure draws it: x, and a list of what else the attention layers returned."""
        if self.parallel:
            both = _sum_of(self_attention, self._feed_forward_layer)
            return _first_and_rest(self._self_attention_residual(x, sublayer=both, training=training))
        x, extras = _first_and_rest(
            self._self_attention_residual(x, sublayer=self_attention, training=training)
        )
        if cross_attention is not None:
            x, more = _first_and_rest(
                self._cross_attention_residual(x, sublayer=cross_attention, training=training)
            )
            extras += more
        x = self._feed_forward_residual(x, sublayer=self._feed_forward_layer, training=training)
        return x, extras

    def _parts(self):
        return [self._self_attention, self._feed_forward_layer]

    @classmethod
    def from_config(cls, config):
        """The layer that a config describes, with layers of its own in its slots."""
        return cls(**with_layers(config, *cls._SLOTS))

    def get_config(self):
        return {
            **super().get_config(),
            "intermediate_dim": self.intermediate_dim,
            "num_heads": self.num_heads,
            "activation": keras.activations.serialize(self.activation),
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
            "attention_dropout": self.attention_dropout,
            "gated": self.gated,
            **{name: getattr(self, name) for name in RESIDUAL_ARGUMENTS},
            "initializer_gain": self.initializer_gain,
            "parallel": self.parallel,
            "remat": self.remat,
            **{name: getattr(self, name) for name in self._SLOTS},
        }


@keras.saving.register_keras_serializable(package="keras_attn")
class EncoderBlock(_Block):
    """Self-attention, or another layer that mixes a sequence, and a feed-forward network, in residual connections.

    Takes the arguments of KerasHub's `TransformerEncoder`, in its order, and those that build its descendants. An
    implicit Keras mask on the inputs is joined with `padding_mask`.

    Args:
        intermediate_dim: Integer, the width of the feed-forward network.
        num_heads: Integer; must divide the last axis of the inputs. Only a block that is given its attention can do
            without.
        dropout: Float, the dropout of each residual branch.
        activation: Activation of the feed-forward network.
        layer_norm_epsilon: Float.
        kernel_initializer, bias_initializer: Initializers of the projections.
        normalize_first: Boolean, pre-norm rather than post-norm (the paper's).
        attention_dropout: Float, the dropout of the attention scores.
        normalization: `"layer_norm"` or `"rms_norm"`.
        gated: Boolean, whether the feed-forward network is gated: SwiGLU with `activation="silu"`, GEGLU with "gelu".
        sandwich_norm, layer_scale, stochastic_depth, residual_scale: As in `Residual`, for each branch.
        initializer_gain: Float that multiplies the initial values of the projections of values, attention outputs
            and the feed-forward network, not of queries and keys: DeepNorm's beta, see
            `keras_attn.ops.deep_norm_scales`. A layer that is given keeps its own.
        parallel: Boolean, whether both sub-layers read the same norm of the inputs and are added as one branch,
            `x + attention(Norm(x)) + feed_forward(Norm(x))` (GPT-J, PaLM). Needs `normalize_first`.
        remat: Boolean, whether what the block computes is computed once more in the gradient rather than kept:
            less memory, the same numbers, dropout included.
        attention: A layer that takes the place of the `MultiHeadAttention` that the block would build: attention,
            whose `call` has the arguments `query` and `value`, or any layer from (B, T, D) to (B, T, D). The latter
            is called with those of `padding_mask`, `attention_mask`, `positions` and `segment_ids` that were given.
            One that a layer's `call` does not have is refused. A layer belongs to one block.

    Call arguments:
        inputs: Floats (B, T, D).
        padding_mask: Boolean (B, T), True at real tokens.
        attention_mask: Boolean (B, T, T), True where a query may attend to a key.
        training: Boolean.
        return_attention_scores: Boolean.
        positions: Integers (B, T) or (T,). By default 0 and on.
        segment_ids: Integers (B, T), which of several sequences packed into a row a token belongs to; it attends to
            no other. 0 is padding.

    Returns:
        Floats (B, T, D); then the attention scores (B, N, T, T) if `return_attention_scores`.

    Raises:
        ValueError: for an argument out of range, for arguments that mean nothing together, for a mask of the wrong
            shape and for a call argument that the given `attention` cannot obey.

    Example:

    ```python
    block = keras_attn.layers.EncoderBlock(intermediate_dim=64, num_heads=4, dropout=0.1)
    padding_mask = keras.ops.convert_to_tensor([[True, True, True, False, False]])
    y = block(keras.random.normal((1, 5, 16)), padding_mask=padding_mask)

    one_key_a_query = keras_attn.layers.MultiHeadAttention(num_heads=2, key_dim=8, sliding_window=1)
    y = keras_attn.layers.EncoderBlock(64, attention=one_key_a_query, normalize_first=True, remat=True)(y)
    ```

    References: [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 3.1 and figure 1;
    [Chowdhery et al., 2022](https://arxiv.org/abs/2204.02311), section 2, parallel sub-layers;
    [Chen et al., 2016](https://arxiv.org/abs/1604.06174), recomputation. Those of `Residual` and `FeedForward`.
    """

    _SLOTS = ("attention",)

    def __init__(
        self,
        intermediate_dim,
        num_heads=None,
        dropout=0.0,
        activation="relu",
        layer_norm_epsilon=1e-5,
        kernel_initializer="glorot_uniform",
        bias_initializer="zeros",
        normalize_first=False,
        attention_dropout=0.0,
        normalization="layer_norm",
        gated=False,
        sandwich_norm=False,
        layer_scale=None,
        stochastic_depth=0.0,
        residual_scale=1.0,
        initializer_gain=1.0,
        parallel=False,
        remat=False,
        attention=None,
        **kwargs,
    ):
        super().__init__(
            intermediate_dim,
            num_heads,
            dropout=dropout,
            activation=activation,
            layer_norm_epsilon=layer_norm_epsilon,
            kernel_initializer=kernel_initializer,
            bias_initializer=bias_initializer,
            normalize_first=normalize_first,
            attention_dropout=attention_dropout,
            normalization=normalization,
            gated=gated,
            sandwich_norm=sandwich_norm,
            layer_scale=layer_scale,
            stochastic_depth=stochastic_depth,
            residual_scale=residual_scale,
            initializer_gain=initializer_gain,
            parallel=parallel,
            remat=remat,
            **kwargs,
        )
        self._take_layers(attention=attention)

    def build(self, input_shape):
        self._self_attention = self._attention(self.attention, "self_attention", input_shape, input_shape)
        self._self_attention_residual = self._residual("self_attention_residual", input_shape)
        self._build_feed_forward(input_shape)

    def call(
        self,
        inputs,
        padding_mask=None,
        attention_mask=None,
        training=None,
        return_attention_scores=False,
        positions=None,
        segment_ids=None,
    ):
        padding_mask = _joined("padding_mask", padding_mask, inputs)
        attention_arguments = {
            "attention_mask": attention_mask,
            "positions": positions,
            "segment_ids": segment_ids,
            "return_attention_scores": return_attention_scores,
        }

        def self_attention(x):
            if is_attention(self._self_attention):
                masks = {"query_mask": padding_mask, "value_mask": padding_mask}
                return call_given(self._self_attention, (x, x), training, **masks, **attention_arguments)
            return call_given(
                self._self_attention, (x,), training, padding_mask=padding_mask, **attention_arguments
            )

        def forward(x):
            x, scores = self._attention_then_feed_forward(x, training, self_attention)
            return (x, *scores) if scores else x

        return recompute_in_gradient(self, forward, inputs) if self.remat else forward(inputs)


@keras.saving.register_keras_serializable(package="keras_attn")
class DecoderBlock(_Block):
    """Causal self-attention, cross-attention over an encoder's output, and a feed-forward network.

    Takes the arguments of KerasHub's `TransformerDecoder`, in its order, and those that build its descendants. Every
    cross-attention of a stack sees the encoder's padding mask: it is an argument, and an implicit mask on either
    sequence is joined with it and left where it was. Built without an encoder sequence, it is the block of a
    decoder-only model.

    Args:
        intermediate_dim, num_heads, dropout, activation, layer_norm_epsilon, kernel_initializer, bias_initializer,
        normalize_first, attention_dropout, normalization, gated, sandwich_norm, layer_scale, stochastic_depth,
        residual_scale, initializer_gain: As in `EncoderBlock`.
        parallel: As in `EncoderBlock`; for a block without cross-attention.
        remat: As in `EncoderBlock`. Calls with a cache keep nothing for a gradient to begin with and are left alone.
        self_attention, cross_attention: Layers that take the place of those that the block would build: a
            `MultiHeadAttention`, or another layer whose `call` begins with the arguments `query` and `value` and has
            those of the others that are given. A layer belongs to one block.

    Call arguments:
        decoder_sequence: Floats (B, T, D).
        encoder_sequence: Floats (B, S, D). May be None on calls with a `cross_attention_cache`.
        decoder_padding_mask: Boolean (B, T), True at real tokens; with a `self_attention_cache` of C slots, (B, C).
        decoder_attention_mask: Boolean (B, T, T), or (B, T, C) with a cache.
        encoder_padding_mask: Boolean (B, S).
        encoder_attention_mask: Boolean (B, T, S).
        self_attention_cache: Pair of (B, N, C, H) tensors, see `empty_cache`.
        self_attention_cache_update_index: Integer scalar, the slot of this call's first token.
        cross_attention_cache: Pair of (B, N, S, H) tensors, see `project_to_cache`.
        use_causal_mask: Boolean, whether a token sees only itself and what is before it.
        training: Boolean.
        return_attention_scores: Boolean.
        decoder_positions: Integers (B, T) or (T,). By default 0 and on, or the slots of the cache.
        decoder_segment_ids: Integers (B, T), which of several sequences packed into a row a token belongs to; it
            attends to no other. 0 is padding. With an encoder, `encoder_segment_ids` tell which tokens there belong
            to the same.
        encoder_positions: Integers (B, S) or (S,).
        encoder_segment_ids: Integers (B, S).
        self_attention_cache_positions: Integers (C,) or (B, C), the positions of what stands in the slots of a cache,
            where those do not follow each other, as for several beams. Negative ones are padding.
        projections: What `step_projections` made of this block, for calls with a cache.

    Returns:
        Floats (B, T, D); then, if `return_attention_scores`, the scores of self-attention (B, N, T, T) and, with an
        encoder, of cross-attention (B, N, T, S); then, if `self_attention_cache` was given, the new one.

    Raises:
        ValueError: for an argument out of range, for arguments that mean nothing together, for a mask of the wrong
            shape, for a call argument that a given layer cannot obey, and for a call with an encoder sequence of a
            block built without one, or the reverse.

    Example:

    ```python
    block = keras_attn.layers.DecoderBlock(intermediate_dim=64, num_heads=4, dropout=0.1)
    encoder_padding_mask = keras.ops.convert_to_tensor([[True, True, True, False, False, False, False]])
    y = block(
        keras.random.normal((1, 5, 16)), keras.random.normal((1, 7, 16)), encoder_padding_mask=encoder_padding_mask
    )
    ```

    Reference: [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 3.1 and figure 1; those of
    `EncoderBlock`.
    """

    _SLOTS = ("self_attention", "cross_attention")

    def __init__(
        self,
        intermediate_dim,
        num_heads=None,
        dropout=0.0,
        activation="relu",
        layer_norm_epsilon=1e-5,
        kernel_initializer="glorot_uniform",
        bias_initializer="zeros",
        normalize_first=False,
        attention_dropout=0.0,
        normalization="layer_norm",
        gated=False,
        sandwich_norm=False,
        layer_scale=None,
        stochastic_depth=0.0,
        residual_scale=1.0,
        initializer_gain=1.0,
        parallel=False,
        remat=False,
        self_attention=None,
        cross_attention=None,
        **kwargs,
    ):
        super().__init__(
            intermediate_dim,
            num_heads,
            dropout=dropout,
            activation=activation,
            layer_norm_epsilon=layer_norm_epsilon,
            kernel_initializer=kernel_initializer,
            bias_initializer=bias_initializer,
            normalize_first=normalize_first,
            attention_dropout=attention_dropout,
            normalization=normalization,
            gated=gated,
            sandwich_norm=sandwich_norm,
            layer_scale=layer_scale,
            stochastic_depth=stochastic_depth,
            residual_scale=residual_scale,
            initializer_gain=initializer_gain,
            parallel=parallel,
            remat=remat,
            **kwargs,
        )
        self._take_layers(self_attention=self_attention, cross_attention=cross_attention)

    def build(self, decoder_sequence_shape, encoder_sequence_shape=None):
        self._check_cross_attention(encoder_sequence_shape)
        self._self_attention = self._attention(
            self.self_attention, "self_attention", decoder_sequence_shape, decoder_sequence_shape
        )
        self._self_attention_residual = self._residual("self_attention_residual", decoder_sequence_shape)
        self._cross_attention = None
        if encoder_sequence_shape is not None:
            self._cross_attention = self._attention(
                self.cross_attention, "cross_attention", decoder_sequence_shape, encoder_sequence_shape
            )
            self._cross_attention_residual = self._residual(
                "cross_attention_residual", decoder_sequence_shape
            )
        self._build_feed_forward(decoder_sequence_shape)

    def call(
        self,
        decoder_sequence,
        encoder_sequence=None,
        decoder_padding_mask=None,
        decoder_attention_mask=None,
        encoder_padding_mask=None,
        encoder_attention_mask=None,
        self_attention_cache=None,
        self_attention_cache_update_index=None,
        cross_attention_cache=None,
        use_causal_mask=True,
        training=None,
        return_attention_scores=False,
        decoder_positions=None,
        decoder_segment_ids=None,
        encoder_positions=None,
        encoder_segment_ids=None,
        self_attention_cache_positions=None,
        projections=None,
    ):
        self._check_encoder(encoder_sequence, cross_attention_cache)
        self._check_segments(decoder_segment_ids, encoder_segment_ids)
        encoder_padding_mask = _joined("encoder_padding_mask", encoder_padding_mask, encoder_sequence)
        query_mask = None
        if self_attention_cache is None:
            query_mask = decoder_padding_mask = _joined(
                "decoder_padding_mask", decoder_padding_mask, decoder_sequence
            )
        self_attention_arguments = {
            "query_mask": query_mask,
            "value_mask": decoder_padding_mask,
            "attention_mask": decoder_attention_mask,
            "positions": decoder_positions,
            "segment_ids": decoder_segment_ids,
            "use_causal_mask": use_causal_mask,
            "key_positions": self_attention_cache_positions,
            "cache": self_attention_cache,
            "cache_update_index": self_attention_cache_update_index,
            "return_attention_scores": return_attention_scores,
            "projections": None if projections is None else projections.self_attention,
        }
        cross_attention_arguments = {
            "query_mask": query_mask,
            "value_mask": encoder_padding_mask,
            "attention_mask": encoder_attention_mask,
            "segment_ids": decoder_segment_ids,
            "key_segment_ids": encoder_segment_ids,
            "cache": cross_attention_cache,
            "return_attention_scores": return_attention_scores,
            "projections": None if projections is None else projections.cross_attention,
        }

        if self.cross_attention is not None:
            cross_attention_arguments |= self._cross_attention_positions(
                decoder_positions,
                encoder_positions,
                first=self_attention_cache_update_index,
                query_length=ops.shape(decoder_sequence)[1],
                key_length=_key_length(encoder_sequence, cross_attention_cache),
            )

        def forward(decoder_sequence, encoder_sequence=None):
            def self_attention(x):
                return call_given(self._self_attention, (x, x), training, **self_attention_arguments)

            def cross_attention(x):
                results = call_given(
                    self._cross_attention, (x, encoder_sequence), training, **cross_attention_arguments
                )
                # The cache of the encoder's keys and values comes back as it went in.
                return results if cross_attention_cache is None else results[:-1]

            return self._attention_then_feed_forward(
                decoder_sequence,
                training,
                self_attention,
                None if self._cross_attention is None else cross_attention,
            )

        sequences = [x for x in (decoder_sequence, encoder_sequence) if x is not None]
        cached = self_attention_cache is not None or cross_attention_cache is not None
        if self.remat and not cached:
            x, results = recompute_in_gradient(self, forward, *sequences)
        else:
            x, results = forward(*sequences)
        if self_attention_cache is not None:
            results.append(results.pop(1 if return_attention_scores else 0))
        return (x, *results) if results else x

    def _parts(self):
        return [*super()._parts(), *([] if self._cross_attention is None else [self._cross_attention])]

    def empty_cache(self, batch_size, length):
        """A self-attention cache of `length` empty slots: zeros (B, N, length, H), twice."""
        return self._self_attention.empty_cache(batch_size, length)

    def project_to_cache(self, encoder_sequence, encoder_padding_mask=None, encoder_positions=None):
        """The cross-attention cache of `encoder_sequence` (B, S, D), computed once for all decoding steps."""
        positions = {} if encoder_positions is None else {"key_positions": encoder_positions}
        return self._cross_attention.project_to_cache(
            encoder_sequence, value_mask=encoder_padding_mask, **positions
        )

    def step_projections(self):
        """The projections of both attention layers for the call argument `projections`, made once for a loop of steps.

        See `MultiHeadAttention.step_projections`; of a given layer that has none, and of no layer, it is None.
        """

        def of(layer, of_keys):
            return layer.step_projections(of_keys) if hasattr(layer, "step_projections") else None

        return BlockProjections(of(self._self_attention, True), of(self._cross_attention, False))

    def _cross_attention_positions(
        self, decoder_positions, encoder_positions, first, query_length, key_length
    ):
        """Call arguments of a cross-attention layer that was given (those built here have no use for positions).

        Left to itself, a layer would count the queries of a cached step from 0, and take the queries' positions for
        those of the keys.
        """
        given = (decoder_positions, encoder_positions, first)
        if not has_argument(self.cross_attention, "positions") or given == (None, None, None):
            return {"key_positions": encoder_positions}
        if decoder_positions is None:
            decoder_positions = successive_positions(query_length, 0 if first is None else first)
        if encoder_positions is None:
            encoder_positions = successive_positions(key_length)
        return {"positions": decoder_positions, "key_positions": encoder_positions}

    def _check_cross_attention(self, encoder_sequence_shape):
        if encoder_sequence_shape is None and self.cross_attention is not None:
            raise ValueError(
                "`cross_attention` needs an encoder sequence to attend to. Received: encoder_sequence=None."
            )
        if encoder_sequence_shape is not None and self.parallel:
            raise ValueError(
                "`parallel` is for a block without cross-attention, which reads what self-attention has found. "
                f"Received: an encoder sequence of shape {tuple(encoder_sequence_shape)}."
            )

    def _check_encoder(self, encoder_sequence, cross_attention_cache):
        given = encoder_sequence is not None or cross_attention_cache is not None
        if given and self._cross_attention is None:
            raise ValueError("This block was built without an encoder sequence, so it cannot attend to one.")
        if not given and self._cross_attention is not None:
            raise ValueError(
                "`encoder_sequence` (or `cross_attention_cache`) must be given: the block was built with one."
            )

    def _check_segments(self, decoder_segment_ids, encoder_segment_ids):
        if self._cross_attention is None and encoder_segment_ids is not None:
            raise ValueError(
                "`encoder_segment_ids` must be None: the block was built without an encoder sequence."
            )
        if self._cross_attention is not None and (decoder_segment_ids is None) != (
            encoder_segment_ids is None
        ):
            raise ValueError(
                "`decoder_segment_ids` and `encoder_segment_ids` must be given together: cross-attention compares "
                "them. Received one of them."
            )


BlockProjections = collections.namedtuple("BlockProjections", ["self_attention", "cross_attention"])


def _key_length(encoder_sequence, cross_attention_cache):
    if cross_attention_cache is None:
        return ops.shape(encoder_sequence)[1]
    return ops.shape(cross_attention_cache[0])[2]


class _AttentionWithGain(MultiHeadAttention):
    """Attention whose projections of values and outputs start `initializer_gain` times as large (DeepNorm)."""

    def _projection(self, name, *arguments, **options):
        initializer = self.kernel_initializer
        if name in ("value", "attention_output"):
            self.kernel_initializer = _with_gain(initializer, self.initializer_gain)
        layer = super()._projection(name, *arguments, **options)
        self.kernel_initializer = initializer
        return layer


def _with_gain(initializer, gain):
    initializer = copy_initializer(initializer)
    return initializer if gain == 1 else ScaledInitializer(initializer, gain)


def _sum_of(attention, feed_forward):
    """A sub-layer of two: what each makes of the same inputs is added."""

    def both(x):
        update, extras = _first_and_rest(attention(x))
        return (update + feed_forward(x), *extras)

    return both


def _first_and_rest(result):
    return (result[0], list(result[1:])) if isinstance(result, tuple) else (result, [])


def _joined(name, padding_mask, sequence):
    """`padding_mask` and the sequence's implicit mask; the message of a wrong shape names the block's argument."""
    if padding_mask is not None and sequence is not None:
        padding_mask = ops.convert_to_tensor(padding_mask)
        check_mask_shape(padding_mask, sequence.shape[:-1], name, exact_axes=1)
    return combine_masks(padding_mask, implicit_mask(sequence))
