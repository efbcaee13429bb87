import keras
from keras import ops

from keras_attn.checks import check_positive
from keras_attn.layers.activations import get_activation, serialize_activation
from keras_attn.layers.clean_padding import clean_padding
from keras_attn.layers.lora_and_quantization import Adaptable
from keras_attn.layers.projection import Dense
from keras_attn.ops import implicit_mask, is_step_scope


@keras.saving.register_keras_serializable(package="keras_attn")
class FeedForward(Adaptable, keras.layers.Layer):
    """The position-wise feed-forward network: two projections with an activation between them.

    With `gated=True` the activation of one projection multiplies another (`activation="silu"` is SwiGLU, "gelu" is
    GEGLU, "sigmoid" is GLU).

    Args:
        intermediate_dim: Integer, the width between the projections.
        activation: Activation name or function; besides Keras' names, `"gelu_tanh"`.
        gated: Boolean.
        use_bias: Boolean.
        kernel_initializer, bias_initializer: Initializers of the projections.

    Call arguments:
        inputs: Floats (B, T, D).

    Returns:
        Floats (B, T, D).

    Example:

    ```python
    feed_forward = keras_attn.layers.FeedForward(intermediate_dim=64, activation="silu", gated=True)
    y = feed_forward(keras.random.normal((2, 5, 16)))
    ```

    References: [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 3.3;
    [Shazeer, 2020](https://arxiv.org/abs/2002.05202).
    """

    _LORA_TARGETS = ("intermediate", "output")

    def __init__(
        self,
        intermediate_dim,
        activation="relu",
        gated=False,
        use_bias=True,
        kernel_initializer="glorot_uniform",
        bias_initializer="zeros",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.intermediate_dim = check_positive("intermediate_dim", intermediate_dim)
        self.activation = get_activation(activation)
        self.gated = gated
        self.use_bias = use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.supports_masking = True

    def build(self, input_shape):
        activated = "gate" if self.gated else "intermediate"
        self.intermediate_dense = self._dense("intermediate", self.intermediate_dim, activated, input_shape)
        if self.gated:
            self.gate_dense = self._dense("gate", self.intermediate_dim, activated, input_shape)
        self.output_dense = self._dense(
            "output", input_shape[-1], activated, (*input_shape[:-1], self.intermediate_dim)
        )

    def call(self, inputs):
        inputs = clean_padding(inputs, implicit_mask(inputs))
        if is_step_scope() and inputs.shape[1:-1] == (1,):
            # Each product of a sequence is a product of rows between two reshapes.
            outputs = self._outputs(ops.reshape(inputs, (-1, inputs.shape[-1])))
            return ops.reshape(outputs, (-1, 1, outputs.shape[-1]))
        return self._outputs(inputs)

    def _outputs(self, inputs):
        x = self.intermediate_dense(inputs)
        if self.gated:
            x = x * self.gate_dense(inputs)
        return ops.cast(self.output_dense(x), self.compute_dtype)

    def _dense(self, name, units, activated, input_shape):
        activation = self.activation if name == activated else None
        layer = Dense(
            units,
            activation=activation,
            use_bias=self.use_bias,
            **self._sublayer_options(name),
        )
        layer.build(input_shape)
        return layer

    def _parts(self):
        parts = [self.intermediate_dense, self.output_dense]
        if self.gated:
            parts.insert(1, self.gate_dense)
        return parts

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {
            **super().get_config(),
            "intermediate_dim": self.intermediate_dim,
            "activation": serialize_activation(self.activation),
            "gated": self.gated,
            "use_bias": self.use_bias,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
        }
