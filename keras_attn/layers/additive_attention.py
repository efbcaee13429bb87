import keras
from keras import ops

from keras_attn.checks import check_positive, check_rate
from keras_attn.layers.clean_padding import clean_padding, real_queries_and_keys
from keras_attn.layers.dropout import score_dropout
from keras_attn.layers.head_projections import HeadLayout
from keras_attn.layers.lora_and_quantization import Adaptable, copy_initializer
from keras_attn.layers.masks import (
    ATTENTION_MASK_ARGUMENTS,
    PAIRS_HINT,
    CallMasks,
    combined_padding_mask,
    real_token_mask,
)
from keras_attn.ops import (
    additive_attention,
    axis_size,
    check_mask_shape,
    poisoned,
    successive_positions,
)


@keras.saving.register_keras_serializable(package="keras_attn")
class BahdanauAttention(Adaptable, keras.layers.Layer):
    """Additive attention: a small network of query and key, v^T tanh(W query + U key), gives each logit.

    The attention of the recurrent translators before the Transformer. `keras.layers.AdditiveAttention` sums
    query and key without projections. Here W and U are learned, so that queries and keys may differ in size;
    there is an `attention_mask`; masks apply as in `MultiHeadAttention`, so that the output of a query with
    no key to attend to is 0, not the mean of all values including padding, and NaN in masked keys does not
    spread; the softmax is computed in at least float32.

    The formula needs a tensor (B, T, S, units) in the compute dtype, which is kept for the gradient: units times the
    memory of dot-product attention with one head. This is small for a decoder that takes one step at a time
    (T = 1).

    Args:
        units: Integer, the width of the network.
        use_bias: Boolean, whether a bias is added inside the tanh.
        dropout: Float, the share of attention scores dropped in training.
        kernel_initializer, bias_initializer: Initializers of W, U and v, and of the bias.
        seed: Integer seed of the dropout.

    Call arguments:
        query: Float tensor (B, T, Dq).
        value: Float tensor (B, S, Dv), the vectors that are averaged.
        key: Float tensor (B, S, Dk). Defaults to `value`.
        query_mask: Boolean (B, T), True at real queries; the others attend to nothing.
        value_mask, key_mask: Boolean (B, S), True at keys that may be attended.
        attention_mask: Boolean, or 0 and 1 of any dtype: (T, S) or (B, T, S), True where a query may attend to a key.
            All masks given, Keras' implicit ones included, are joined with "and". Of two axes it is (T, S), also where it
            could be (B, S): a padding mask is the `value_mask`.
        return_attention_scores: Boolean.
        training: Boolean, whether dropout is applied.
        use_causal_mask: Boolean, whether a query sees only keys at its own position and before.
        projected_key: Float tensor (B, S, units) from `project_keys`, in place of U `key`. Then only the
            masks of `key` are used; `value` is averaged as usual.

    Returns:
        The output, float (B, T, Dv); then the attention scores (B, T, S) if `return_attention_scores`.

    Raises:
        ValueError: if an argument is out of range, a mask cannot broadcast or holds values other than 0 and 1.

    Example:

    ```python
    attention = keras_attn.layers.BahdanauAttention(units=16)
    encoder_sequence = keras.random.normal((2, 7, 24))
    encoder_padding_mask = keras.ops.convert_to_tensor([[True] * 7, [True] * 3 + [False] * 4])
    projected_key = attention.project_keys(encoder_sequence, encoder_padding_mask)  # once for all steps of the decoder
    decoder_state = keras.random.normal((2, 1, 32))
    context, scores = attention(
        decoder_state,
        encoder_sequence,
        value_mask=encoder_padding_mask,
        projected_key=projected_key,
        return_attention_scores=True,
    )
    ```

    Reference: [Bahdanau et al., 2014](https://arxiv.org/abs/1409.0473), section 3.1 and appendix A.1.2.
    """

    _LORA_TARGETS = ("query", "key")  # values are not projected
    _MASK_ARGUMENTS = ATTENTION_MASK_ARGUMENTS
    _IS_TRACED = True  # `compute_output_shape` does not describe the scores

    def __init__(
        self,
        units,
        use_bias=True,
        dropout=0.0,
        kernel_initializer="glorot_uniform",
        bias_initializer="zeros",
        seed=None,
        **kwargs,
    ):
        check_positive("units", units)
        check_rate("dropout", dropout)
        super().__init__(**kwargs)
        self.supports_masking = True
        self.units = units
        self.use_bias = use_bias
        self.dropout = dropout
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.seed = seed
        # One bias is enough for the sum of two projections.
        self.query_dense = self._projection("query", use_bias)
        self.key_dense = self._projection("key", use_bias=False)
        if dropout:
            self._seed_generator = keras.random.SeedGenerator(seed)

    def build(self, query_shape, value_shape, key_shape=None):
        key_shape = value_shape if key_shape is None else key_shape
        _check_ranks(query_shape, value_shape, key_shape)
        if value_shape[1] != key_shape[1]:
            raise ValueError(
                "The shapes of `key` and `value` must be equal but for the last axis. Received: "
                f"value_shape={tuple(value_shape)}, key_shape={tuple(key_shape)}."
            )
        for dense, shape in ((self.query_dense, query_shape), (self.key_dense, key_shape)):
            if not dense.built:  # `project_keys` may have come first
                dense.build(shape)
        self.logit_kernel = self.add_weight(
            name="logit_kernel", shape=(self.units,), initializer=copy_initializer(self.kernel_initializer)
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
        projected_key=None,
    ):
        key = value if key is None else key
        _check_ranks(query.shape, value.shape, key.shape)
        masks = CallMasks(query, value, key, query_mask, value_mask, key_mask, attention_mask)
        real_queries, real_keys = real_queries_and_keys(masks, query.shape, value.shape)
        if projected_key is None:
            projected_key = self.key_dense(clean_padding(key, real_keys))
        else:
            projected_key = self._checked_projection(projected_key, value)
        output, scores = additive_attention(
            self.query_dense(clean_padding(query, real_queries)),
            projected_key,
            value,
            ops.convert_to_tensor(self.logit_kernel),
            mask=_joint_mask(query, value, masks, use_causal_mask),
            dropout=score_dropout(self, training),
        )
        output = poisoned(output, masks.poison)
        if not return_attention_scores:
            return output
        return output, poisoned(scores, masks.poison)

    def project_keys(self, key, key_mask=None):
        """U `key` (B, S, units), to be passed as `projected_key` to every later call with the same keys.

        Use it in the `call` of a layer or model that loops over steps; a functional model would need a
        separate layer.

        Args:
            key: Float tensor (B, S, Dk), the `key` (or `value`) of those calls.
            key_mask: Boolean (B, S), as in those calls, which need it too. Nothing is read at masked keys.
        """
        key_mask = combined_padding_mask(key_mask, key, "key_mask")
        return self.key_dense(clean_padding(key, real_token_mask(key_mask)))

    def _checked_projection(self, projected_key, value):
        shape = (*value.shape[:-1], self.units)
        received = tuple(projected_key.shape)
        sizes = zip(received, shape)
        if len(received) != 3 or any(None not in pair and pair[0] != pair[1] for pair in sizes):
            raise ValueError(
                f"`projected_key` must have shape {shape}. Received: projected_key of shape {received}."
            )
        return ops.cast(projected_key, self.compute_dtype)

    def _projection(self, name, use_bias):
        return keras.layers.Dense(self.units, use_bias=use_bias, **self._sublayer_options(name))

    def _parts(self):
        return [self.query_dense, self.key_dense]

    def compute_output_shape(self, query_shape, value_shape, key_shape=None):
        return (*query_shape[:-1], value_shape[-1])

    def get_config(self):
        return {
            **super().get_config(),
            "units": self.units,
            "use_bias": self.use_bias,
            "dropout": self.dropout,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
            "seed": self.seed,
        }


def _check_ranks(query_shape, value_shape, key_shape):
    if not len(query_shape) == len(value_shape) == len(key_shape) == 3:
        raise ValueError(
            "`query`, `value` and `key` must have the shapes (B, T, Dq), (B, S, Dv) and (B, S, Dk). Received: "
            f"query_shape={tuple(query_shape)}, value_shape={tuple(value_shape)}, key_shape={tuple(key_shape)}."
        )


def _joint_mask(query, value, masks, use_causal_mask):
    """All masks joined into one that broadcasts to (B, T, S), or None."""
    scores_shape = (query.shape[0], query.shape[1], value.shape[1])
    if masks.attention_mask is not None:
        hint = PAIRS_HINT if len(masks.attention_mask.shape) == 2 else ""
        check_mask_shape(masks.attention_mask, scores_shape, "attention_mask", hint=hint)
    order = {}
    if use_causal_mask:
        order["query_positions"] = successive_positions(ops.shape(query)[1])
        order["key_positions"] = successive_positions(axis_size(value, 1))
    one_head_shape = (scores_shape[0], 1, scores_shape[1], scores_shape[2])
    rule = masks.as_rule(HeadLayout(3), query, one_head_shape, value, causal=use_causal_mask, **order)
    mask = rule.block()
    # There are no heads. The causal mask alone has no batch axis.
    return None if mask is None else ops.squeeze(mask, axis=-3)
