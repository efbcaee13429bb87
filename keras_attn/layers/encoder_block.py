import collections

import keras

from keras_attn.layers.block import Block, output_and_rest
from keras_attn.layers.layer_slots import call_layer, is_attention
from keras_attn.layers.masks import TokenInfo, check_attention_mask_rank, combined_padding_mask

# What a call is given besides its sequence; `tokens` is a `TokenInfo`.
EncoderCall = collections.namedtuple(
    "EncoderCall", ["tokens", "attention_mask", "training", "return_attention_scores"]
)


@keras.saving.register_keras_serializable(package="keras_attn")
class EncoderBlock(Block):
    """Self-attention (or another sequence mixer) and a feed-forward network, with residual connections.

    Arguments have the names of KerasHub's `TransformerEncoder`. They set the sizes of the default parts. For
    other parts, pass a configured layer to a slot: `self_attention`, `feed_forward`, `norm`. An implicit
    Keras mask on the inputs is joined with `padding_mask`.

    Args:
        intermediate_dim: Integer, the width of the feed-forward network. Not needed with a `feed_forward`.
        num_heads: Integer; must divide the last axis of the inputs. Not needed with a `self_attention`.
        dropout: Float, the dropout of each residual branch.
        activation: Activation of the feed-forward network; besides Keras' names, `"gelu_tanh"`.
        kernel_initializer, bias_initializer: Initializers of the projections.
        normalize_first: Boolean, pre-norm rather than post-norm (the paper's).
        attention_dropout: Float, the dropout of the attention scores.
        gated: Boolean, whether the feed-forward network is gated: SwiGLU with `activation="silu"`, GEGLU with "gelu".
        sandwich_norm, layer_scale, stochastic_depth: As in `Residual`, for each branch.
        parallel: Boolean, whether both sub-layers read the same norm of the inputs and are added as one branch,
            `x + self_attention(Norm(x)) + feed_forward(Norm(x))` (GPT-J, PaLM). Needs `normalize_first`.
        remat: Boolean, whether the activations of the block are computed again in the gradient instead of
            kept. This saves memory; the results are the same, with dropout too.
        self_attention: A layer in place of the `MultiHeadAttention` that the block would build: attention, whose `call`
            begins with the arguments `query` and `value`, or any layer from (B, T, D) to (B, T, D). The latter is called
            with those of `padding_mask`, `attention_mask`, `positions` and `segment_ids` that were given; if
            its `call` lacks one of them, that is an error.
        feed_forward: A layer from (B, T, D) to (B, T, D) in place of `FeedForward`, for instance without
            biases, or a mixture of experts.
        norm: A norm layer that describes the norms of the block; each residual connection has a copy of it. Defaults to
            layer norm with an epsilon of 1e-5.
        self_attention_norm: The same for the norm of self-attention alone, where it is another one:
            `keras.layers.Identity()` for none, as in ModernBERT's first block.

    Call arguments:
        inputs: Floats (B, T, D).
        padding_mask: Boolean (B, T), True at real tokens. What stands at the others, be it NaN, reaches no real token and no
            weight: they enter as zeros, and what comes out there means nothing.
        mask: The padding mask as Keras hands it on, within `TimeDistributed` for instance; both hold.
        attention_mask: Boolean (B, T, T), True where a query may attend to a key.
        training: Boolean.
        return_attention_scores: Boolean.
        positions: Integers (B, T) or (T,). By default 0, 1, 2, ...
        segment_ids: Integers (B, T), which of several sequences packed into a row a token belongs to. It
            attends only to that sequence. 0 is padding.

    Returns:
        Floats (B, T, D); then the attention scores (B, N, T, T) if `return_attention_scores`.

    Raises:
        ValueError: for an argument out of range, for arguments that contradict each other, for a mask of the wrong
            shape, for inputs of other axes (unless a given `self_attention` takes them, such as a `WindowAttention`, or a
            `MultiHeadAttention` with `attention_axes`), and for a call argument that a given layer does not have.

    Example:

    ```python
    block = keras_attn.layers.EncoderBlock(intermediate_dim=64, num_heads=4, dropout=0.1)
    padding_mask = keras.ops.convert_to_tensor([[True, True, True, False, False]])
    y = block(keras.random.normal((1, 5, 16)), padding_mask=padding_mask)

    local = keras_attn.layers.MultiHeadAttention(num_heads=2, key_dim=8, sliding_window=3)
    norm = keras.layers.RMSNormalization(epsilon=1e-6)
    y = keras_attn.layers.EncoderBlock(64, self_attention=local, norm=norm, normalize_first=True)(y)
    ```

    References: [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 3.1 and figure 1;
    [Chowdhery et al., 2022](https://arxiv.org/abs/2204.02311), section 2, parallel sub-layers;
    [Chen et al., 2016](https://arxiv.org/abs/1604.06174), recomputation; those of `Residual` and
    `FeedForward`.
    """

    _MASK_ARGUMENTS = (("inputs", "padding_mask", "attention_mask", "segment_ids"),)

    def build(self, input_shape):
        self._check_axes("self_attention", "inputs", input_shape)
        self.self_attention_layer = self._attention_layer("self_attention", input_shape, input_shape)
        self._self_attention_residual = self._residual("self_attention", input_shape)
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
        self._check_axes("self_attention", "inputs", inputs.shape)
        check_attention_mask_rank(attention_mask, inputs, "attention_mask", "padding_mask")
        padding_mask = combined_padding_mask(padding_mask, inputs, "padding_mask")
        tokens = TokenInfo(padding_mask, positions, segment_ids)
        call = EncoderCall(tokens, attention_mask, training, return_attention_scores)
        x, scores = self._run(call, [inputs], [tokens], recomputes=self.remat)
        return (x, *scores) if scores else x

    def _forward(self, call, x):
        if self.parallel:
            return self._forward_parallel(call, x)
        x, scores = self._forward_self_attention(call, x)
        return self._forward_feed_forward(call, x), scores

    def _self_attend(self, call, x):
        tokens = call.tokens
        inputs = [x]
        masks = {"padding_mask": tokens.padding_mask}
        if is_attention(self.self_attention_layer):
            inputs = [x, x]
            masks = {"query_mask": tokens.padding_mask, "value_mask": tokens.padding_mask}
        result = call_layer(
            self.self_attention_layer,
            inputs,
            call.training,
            attention_mask=call.attention_mask,
            positions=tokens.positions,
            segment_ids=tokens.segment_ids,
            return_attention_scores=call.return_attention_scores,
            **masks,
        )
        return output_and_rest(result)

    def _advice(self, name):
        if name != "use_causal_mask":
            return None
        return "Take a `DecoderBlock`, which is causal and needs no encoder, or pass an `attention_mask` to a call."

    def compute_output_shape(self, input_shape):
        return input_shape
