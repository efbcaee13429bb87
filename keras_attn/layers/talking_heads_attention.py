import keras
from keras import ops

from keras_attn.layers.multi_head_attention import MultiHeadAttention
from keras_attn.ops import talking_heads_attention


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
        kernels = (ops.convert_to_tensor(weight) for weight in (self.logits_kernel, self.scores_kernel))
        return talking_heads_attention(query, key, value, *kernels, **arguments)

    def _mixing_weight(self, name):
        shape = (self.num_heads, self.num_heads)
        return self.add_weight(name=name, shape=shape, initializer="identity", autocast=False)
