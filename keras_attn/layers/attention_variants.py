"""Attention with another formula in the middle."""

import keras
from keras import ops

from keras_attn.layers.multi_head_attention import MultiHeadAttention
from keras_attn.ops import talking_heads_attention


@keras.saving.register_keras_serializable(package="keras_attn")
class DifferentialAttention(MultiHeadAttention):
    """Attention by the difference of two softmaxes, which cancels the noise that both attend to.

    Each head has two queries and two keys: `(softmax(q1 k1) - lambda softmax(q2 k2)) v`, normalised for each head
    and multiplied by `1 - lambda_init`. All arguments, masks, position schemes and caches of
    `MultiHeadAttention` and its memory-efficient form work here, since both softmaxes use its formula.
    Position biases and sink logits have 2 N heads.

    Args:
        num_heads: Integer N, the number of pairs of attention heads.
        key_dim: Integer H, the size of each of the two queries and keys of a head.
        value_dim: Integer, the size of each head for value. Defaults to 2 H, as in the paper.
        lambda_init: Float, the approximate initial value of lambda; the paper uses 0.8 - 0.6 exp(-0.3 l) in
            layer l = 0, 1, ...
        lambda_initializer: Initializer of the four learned vectors (H,) that define lambda.
        norm_epsilon: Float added to the mean square in the norm of the heads.
        **kwargs: As in `MultiHeadAttention`. `num_key_value_heads` also counts pairs.

    Call arguments:
        query, value, ...: As in `MultiHeadAttention`.

    Returns:
        As `MultiHeadAttention`. The attention scores (B, N, T, S) are the differences.

    Raises:
        ValueError: as `MultiHeadAttention`.

    Example:

    ```python
    attention = keras_attn.layers.DifferentialAttention(num_heads=2, key_dim=16)
    x = keras.random.normal((2, 7, 64))
    output = attention(x, x, use_causal_mask=True)
    ```

    Reference: [Ye et al., 2024](https://arxiv.org/abs/2410.05258), section 2.1.
    """

    def __init__(
        self,
        num_heads,
        key_dim,
        value_dim=None,
        lambda_init=0.8,
        lambda_initializer=None,
        norm_epsilon=1e-5,
        **kwargs,
    ):
        value_dim = 2 * key_dim if value_dim is None else value_dim
        super().__init__(num_heads, key_dim, value_dim, **kwargs)
        if not 0 <= lambda_init < 1:
            raise ValueError(f"`lambda_init` must be in [0, 1). Received: lambda_init={lambda_init}.")
        self.lambda_init = lambda_init
        if lambda_initializer is None:
            lambda_initializer = keras.initializers.RandomNormal(stddev=0.1)
        self.lambda_initializer = keras.initializers.get(lambda_initializer)
        self.norm_epsilon = norm_epsilon

    @property
    def _num_query_heads(self):
        return 2 * self.num_heads

    @property
    def _num_key_heads(self):
        return 2 * self.num_key_value_heads

    def build(self, query_shape, value_shape, key_shape=None):
        super().build(query_shape, value_shape, key_shape)
        self.lambda_vectors = self.add_weight(
            name="lambda_vectors",
            shape=(2, 2, self.key_dim),
            initializer=self.lambda_initializer,
            autocast=False,
        )
        self._heads_norm = keras.layers.RMSNormalization(
            epsilon=self.norm_epsilon, dtype=self.dtype_policy, name="heads_norm"
        )
        self._heads_norm.build((None, None, None, self.value_dim))

    def _attend(self, query, key, value, return_attention_scores, **arguments):
        # Both keys of a pair share its value. For each pair come the queries of the first key, then those of
        # the second, so that the query heads of a key head are successive.
        value = ops.repeat(value, 2, axis=-3)
        output, scores = super()._attend(query, key, value, return_attention_scores, **arguments)
        output = self._heads_norm(self._difference(output)) * (1 - self.lambda_init)
        if scores is not None:
            scores = self._difference(scores)
        return output, scores

    def _difference(self, x):
        """The first of each pair minus lambda times the second: (..., 2N, T, X) in, (..., N, T, X) out."""
        shape = ops.shape(x)
        lead = tuple(shape[:-3])
        size = tuple(shape[-2:])
        group = self.num_heads // self.num_key_value_heads
        pairs = ops.reshape(x, (*lead, self.num_key_value_heads, 2, group, *size))
        first, second = ops.split(pairs, 2, axis=-4)
        difference = first - ops.cast(self._lambda(), x.dtype) * second
        return ops.reshape(difference, (*lead, self.num_heads, *size))

    def _lambda(self):
        """exp(lambda_q1 lambda_k1) - exp(lambda_q2 lambda_k2) + lambda_init (Ye et al., equation 2)."""
        query_vectors, key_vectors = ops.unstack(ops.convert_to_tensor(self.lambda_vectors), 2)
        first, second = ops.unstack(ops.exp(ops.sum(query_vectors * key_vectors, axis=-1)), 2)
        return first - second + self.lambda_init

    def get_config(self):
        return {
            **super().get_config(),
            "lambda_init": self.lambda_init,
            "lambda_initializer": keras.initializers.serialize(self.lambda_initializer),
            "norm_epsilon": self.norm_epsilon,
        }


@keras.saving.register_keras_serializable(package="keras_attn")
class TalkingHeadsAttention(MultiHeadAttention):
    """Multi-head attention whose heads exchange logits before the softmax and attention scores after it.

    Two learned matrices (N, N) mix the heads; at first they are the identity, which is `MultiHeadAttention`. All of
    its arguments, masks, positions and caches work here, except `memory_efficient=True`: the mixing needs the
    logits of all heads at once, and the gradient keeps them.

    Args:
        num_heads, key_dim, ...: As in `MultiHeadAttention`.

    Call arguments:
        query, value, ...: As in `MultiHeadAttention`.

    Returns:
        As `MultiHeadAttention`. The attention scores are the mixed ones; their rows need not sum to 1.

    Raises:
        ValueError: as `MultiHeadAttention`, and for `memory_efficient=True`.

    Example:

    ```python
    attention = keras_attn.layers.TalkingHeadsAttention(num_heads=4, key_dim=16)
    x = keras.random.normal((2, 7, 64))
    output, scores = attention(x, x, use_causal_mask=True, return_attention_scores=True)
    ```

    Reference: [Shazeer et al., 2020](https://arxiv.org/abs/2003.02436), section 4.
    """

    def __init__(self, num_heads, key_dim, memory_efficient=None, **kwargs):
        if memory_efficient:
            raise ValueError(
                "`memory_efficient` must be None or False: mixing heads needs the logits of all heads at once. "
                f"Received: memory_efficient={memory_efficient}."
            )
        super().__init__(num_heads, key_dim, memory_efficient=memory_efficient, **kwargs)

    def build(self, query_shape, value_shape, key_shape=None):
        super().build(query_shape, value_shape, key_shape)
        self.logits_kernel = self._mixing_weight("logits_kernel")
        self.scores_kernel = self._mixing_weight("scores_kernel")

    def _attend(self, query, key, value, return_attention_scores, **arguments):
        logits_kernel = ops.convert_to_tensor(self.logits_kernel)
        scores_kernel = ops.convert_to_tensor(self.scores_kernel)
        return talking_heads_attention(query, key, value, logits_kernel, scores_kernel, **arguments)

    def _mixing_weight(self, name):
        shape = (self.num_heads, self.num_heads)
        return self.add_weight(name=name, shape=shape, initializer="identity", autocast=False)
