"""The encoder and decoder blocks; residual connections, norm order and dropout live in `Residual` alone."""

import keras
from keras import ops

from keras_attn.layers.arguments import check_positive, check_rate, choose, copy_initializer
from keras_attn.layers.feed_forward import FeedForward
from keras_attn.layers.multi_head_attention import MultiHeadAttention
from keras_attn.ops import check_mask_shape, combine_masks, implicit_mask

NORMALIZATIONS = {
    "layer_norm": keras.layers.LayerNormalization,
    "rms_norm": keras.layers.RMSNormalization,
}


@keras.saving.register_keras_serializable(package="keras_attn")
class Residual(keras.layers.Layer):
    """What stands around every sub-layer of a Transformer: a norm, dropout and the residual connection.

    Post-norm (the paper's): `Norm(x + Dropout(sublayer(x)))`. Pre-norm (`normalize_first=True`):
    `x + Dropout(sublayer(Norm(x)))`.

    Args:
        dropout: Float, the share of the sub-layer's output that is dropped in training.
        normalize_first: Boolean, pre-norm rather than post-norm.
        normalization: `"layer_norm"` or `"rms_norm"`.
        layer_norm_epsilon: Float added to the variance.

    Call arguments:
        inputs: Floats (B, T, D), what goes into the residual branch.
        sublayer: Function from floats (B, T, D) to floats (B, T, D), or to a tuple that starts with them.
        training: Boolean.

    Returns:
        Floats (B, T, D), followed by what else `sublayer` returned, as a tuple if it did.

    Example:

    ```python
    residual = keras_attn.layers.Residual(dropout=0.1, normalize_first=True)
    y = residual(keras.random.normal((2, 5, 16)), sublayer=keras.layers.Dense(16))
    ```

    References: [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 5.4;
    [Xiong et al., 2020](https://arxiv.org/abs/2002.04745).
    """

    def __init__(
        self,
        dropout=0.0,
        normalize_first=False,
        normalization="layer_norm",
        layer_norm_epsilon=1e-5,
        **kwargs,
    ):
        super().__init__(**kwargs)
        check_rate("dropout", dropout)
        self.dropout = dropout
        self.normalize_first = normalize_first
        self.normalization = normalization
        self.layer_norm_epsilon = layer_norm_epsilon
        self.norm = choose("normalization", normalization, NORMALIZATIONS)(
            epsilon=layer_norm_epsilon, dtype=self.dtype_policy, name="norm"
        )
        self.norm.supports_masking = True  # RMSNormalization would warn that it drops an implicit mask
        self._dropout_layer = keras.layers.Dropout(dropout, dtype=self.dtype_policy)
        self.supports_masking = True

    def build(self, input_shape):
        self.norm.build(input_shape)

    def call(self, inputs, sublayer, training=None):
        result = sublayer(self.norm(inputs) if self.normalize_first else inputs)
        update, *extras = result if isinstance(result, tuple) else (result,)
        output = inputs + self._dropout_layer(update, training=training)
        output = output if self.normalize_first else self.norm(output)
        return (output, *extras) if extras else output

    def get_config(self):
        return {
            **super().get_config(),
            "dropout": self.dropout,
            "normalize_first": self.normalize_first,
            "normalization": self.normalization,
            "layer_norm_epsilon": self.layer_norm_epsilon,
        }


class _Block(keras.layers.Layer):
    """The arguments that encoder and decoder blocks share, and the sub-layers made from them."""

    def __init__(
        self,
        intermediate_dim,
        num_heads,
        dropout=0.0,
        activation="relu",
        layer_norm_epsilon=1e-5,
        kernel_initializer="glorot_uniform",
        bias_initializer="zeros",
        normalize_first=False,
        attention_dropout=0.0,
        normalization="layer_norm",
        gated=False,
        **kwargs,
    ):
        super().__init__(**kwargs)
        check_positive("intermediate_dim", intermediate_dim)
        check_positive("num_heads", num_heads)
        check_rate("dropout", dropout)
        check_rate("attention_dropout", attention_dropout)
        choose("normalization", normalization, NORMALIZATIONS)
        self.intermediate_dim = intermediate_dim
        self.num_heads = num_heads
        self.dropout = dropout
        self.activation = keras.activations.get(activation)
        self.layer_norm_epsilon = layer_norm_epsilon
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.normalize_first = normalize_first
        self.attention_dropout = attention_dropout
        self.normalization = normalization
        self.gated = gated
        self.supports_masking = True

    def _attention(self, name, query_shape, value_shape):
        hidden_dim = query_shape[-1]
        if hidden_dim % self.num_heads:
            raise ValueError(
                "The last axis of the inputs must be divisible by `num_heads`. "
                f"Received: {hidden_dim} features, num_heads={self.num_heads}."
            )
        layer = MultiHeadAttention(
            num_heads=self.num_heads,
            key_dim=hidden_dim // self.num_heads,
            dropout=self.attention_dropout,
            kernel_initializer=copy_initializer(self.kernel_initializer),
            bias_initializer=copy_initializer(self.bias_initializer),
            dtype=self.dtype_policy,
            name=name,
        )
        layer.build(query_shape, value_shape)
        return layer

    def _feed_forward(self, input_shape):
        layer = FeedForward(
            self.intermediate_dim,
            activation=self.activation,
            gated=self.gated,
            kernel_initializer=copy_initializer(self.kernel_initializer),
            bias_initializer=copy_initializer(self.bias_initializer),
            dtype=self.dtype_policy,
            name="feed_forward",
        )
        layer.build(input_shape)
        return layer

    def _residual(self, name, input_shape):
        layer = Residual(
            self.dropout,
            self.normalize_first,
            self.normalization,
            self.layer_norm_epsilon,
            dtype=self.dtype_policy,
            name=name,
        )
        layer.build(input_shape)
        return layer

    def get_config(self):
        return {
            **super().get_config(),
            "intermediate_dim": self.intermediate_dim,
            "num_heads": self.num_heads,
            "dropout": self.dropout,
            "activation": keras.activations.serialize(self.activation),
            "layer_norm_epsilon": self.layer_norm_epsilon,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
            "normalize_first": self.normalize_first,
            "attention_dropout": self.attention_dropout,
            "normalization": self.normalization,
            "gated": self.gated,
        }


@keras.saving.register_keras_serializable(package="keras_attn")
class EncoderBlock(_Block):
    """Self-attention and a feed-forward network, each in a residual connection.

    Takes the arguments of KerasHub's `TransformerEncoder`, in its order, and a few more. An implicit Keras mask on
    the inputs is joined with `padding_mask`.

    Args:
        intermediate_dim: Integer, the width of the feed-forward network.
        num_heads: Integer; must divide the last axis of the inputs.
        dropout: Float, the dropout of each residual branch.
        activation: Activation of the feed-forward network.
        layer_norm_epsilon: Float.
        kernel_initializer, bias_initializer: Initializers of the projections.
        normalize_first: Boolean, pre-norm rather than post-norm (the paper's).
        attention_dropout: Float, the dropout of the attention scores.
        normalization: `"layer_norm"` or `"rms_norm"`.
        gated: Boolean, whether the feed-forward network is gated (SwiGLU and its like).

    Call arguments:
        inputs: Floats (B, T, D).
        padding_mask: Boolean (B, T), True at real tokens.
        attention_mask: Boolean (B, T, T), True where a query may attend to a key.
        training: Boolean.
        return_attention_scores: Boolean.

    Returns:
        Floats (B, T, D); then the attention scores (B, N, T, T) if `return_attention_scores`.

    Example:

    ```python
    block = keras_attn.layers.EncoderBlock(intermediate_dim=64, num_heads=4, dropout=0.1)
    padding_mask = keras.ops.convert_to_tensor([[True, True, True, False, False]])
    y = block(keras.random.normal((1, 5, 16)), padding_mask=padding_mask)
    ```

    Reference: [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 3.1 and figure 1.
    """

    def build(self, input_shape):
        self._self_attention = self._attention("self_attention", input_shape, input_shape)
        self._self_attention_residual = self._residual("self_attention_residual", input_shape)
        self._feed_forward_layer = self._feed_forward(input_shape)
        self._feed_forward_residual = self._residual("feed_forward_residual", input_shape)

    def call(
        self, inputs, padding_mask=None, attention_mask=None, training=None, return_attention_scores=False
    ):
        padding_mask = _joined("padding_mask", padding_mask, inputs)

        def self_attention(x):
            return self._self_attention(
                x,
                x,
                query_mask=padding_mask,
                value_mask=padding_mask,
                attention_mask=attention_mask,
                return_attention_scores=True,
                training=training,
            )

        x, scores = self._self_attention_residual(inputs, sublayer=self_attention, training=training)
        x = self._feed_forward_residual(x, sublayer=self._feed_forward_layer, training=training)
        return (x, scores) if return_attention_scores else x


@keras.saving.register_keras_serializable(package="keras_attn")
class DecoderBlock(_Block):
    """Causal self-attention, cross-attention over an encoder's output, and a feed-forward network.

    Takes the arguments of KerasHub's `TransformerDecoder`, in its order, and a few more. Every cross-attention of a
    stack sees the encoder's padding mask: it is an argument, and an implicit mask on either sequence is joined with
    it and left where it was. Built without an encoder sequence, it is the block of a decoder-only model.

    Args:
        intermediate_dim, num_heads, dropout, activation, layer_norm_epsilon, kernel_initializer, bias_initializer,
        normalize_first, attention_dropout, normalization, gated: As in `EncoderBlock`.

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

    Returns:
        Floats (B, T, D); then, if `return_attention_scores`, the scores of self-attention (B, N, T, T) and, with an
        encoder, of cross-attention (B, N, T, S); then, if `self_attention_cache` was given, the new one.

    Example:

    ```python
    block = keras_attn.layers.DecoderBlock(intermediate_dim=64, num_heads=4, dropout=0.1)
    encoder_padding_mask = keras.ops.convert_to_tensor([[True, True, True, False, False, False, False]])
    y = block(
        keras.random.normal((1, 5, 16)), keras.random.normal((1, 7, 16)), encoder_padding_mask=encoder_padding_mask
    )
    ```

    Reference: [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 3.1 and figure 1.
    """

    def build(self, decoder_sequence_shape, encoder_sequence_shape=None):
        self._self_attention = self._attention(
            "self_attention", decoder_sequence_shape, decoder_sequence_shape
        )
        self._self_attention_residual = self._residual("self_attention_residual", decoder_sequence_shape)
        self._cross_attention = None
        if encoder_sequence_shape is not None:
            self._cross_attention = self._attention(
                "cross_attention", decoder_sequence_shape, encoder_sequence_shape
            )
            self._cross_attention_residual = self._residual(
                "cross_attention_residual", decoder_sequence_shape
            )
        self._feed_forward_layer = self._feed_forward(decoder_sequence_shape)
        self._feed_forward_residual = self._residual("feed_forward_residual", decoder_sequence_shape)

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
    ):
        self._check_encoder(encoder_sequence, cross_attention_cache)
        encoder_padding_mask = _joined("encoder_padding_mask", encoder_padding_mask, encoder_sequence)
        query_mask = None
        if self_attention_cache is None:
            query_mask = decoder_padding_mask = _joined(
                "decoder_padding_mask", decoder_padding_mask, decoder_sequence
            )

        def self_attention(x):
            return self._self_attention(
                x,
                x,
                query_mask=query_mask,
                value_mask=decoder_padding_mask,
                attention_mask=decoder_attention_mask,
                return_attention_scores=True,
                training=training,
                use_causal_mask=use_causal_mask,
                cache=self_attention_cache,
                cache_update_index=self_attention_cache_update_index,
            )

        def cross_attention(x):
            return self._cross_attention(
                x,
                encoder_sequence,
                query_mask=query_mask,
                value_mask=encoder_padding_mask,
                attention_mask=encoder_attention_mask,
                return_attention_scores=True,
                training=training,
                cache=cross_attention_cache,
            )[:2]

        x, *results = self._self_attention_residual(
            decoder_sequence, sublayer=self_attention, training=training
        )
        if self._cross_attention is not None:
            x, cross_attention_scores = self._cross_attention_residual(
                x, sublayer=cross_attention, training=training
            )
            results.insert(1, cross_attention_scores)
        x = self._feed_forward_residual(x, sublayer=self._feed_forward_layer, training=training)
        if not return_attention_scores:
            results = results[1 if self._cross_attention is None else 2 :]
        return (x, *results) if results else x

    def empty_cache(self, batch_size, length):
        """A self-attention cache of `length` empty slots: zeros (B, N, length, H), twice."""
        return self._self_attention.empty_cache(batch_size, length)

    def project_to_cache(self, encoder_sequence, encoder_padding_mask=None):
        """The cross-attention cache of `encoder_sequence` (B, S, D), computed once for all decoding steps."""
        return self._cross_attention.project_to_cache(encoder_sequence, value_mask=encoder_padding_mask)

    def _check_encoder(self, encoder_sequence, cross_attention_cache):
        given = encoder_sequence is not None or cross_attention_cache is not None
        if given and self._cross_attention is None:
            raise ValueError("This block was built without an encoder sequence, so it cannot attend to one.")
        if not given and self._cross_attention is not None:
            raise ValueError(
                "`encoder_sequence` (or `cross_attention_cache`) must be given: the block was built with one."
            )


def _joined(name, padding_mask, sequence):
    """`padding_mask` and the sequence's implicit mask; the message of a wrong shape names the block's argument."""
    if padding_mask is not None and sequence is not None:
        padding_mask = ops.convert_to_tensor(padding_mask)
        check_mask_shape(padding_mask, sequence.shape[:-1], name, exact_axes=1)
    return combine_masks(padding_mask, implicit_mask(sequence))
