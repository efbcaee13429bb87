"""Keras' Adam and AdamW, with TensorFlow's fused kernel for the update of a variable."""

import keras
from keras import ops

from keras_attn.compat.keras import adam_moments, backend_optimizer_class


class _FusedUpdate:
    """`update_step` of Keras' Adam as one TensorFlow operation.

    Keras writes the update as ten operations, each of which reads or writes whole tensors. `ResourceApplyAdam` computes
    the same formula and reads and writes each number once.
    """

    def update_step(self, gradient, variable, learning_rate):
        if keras.backend.backend() != "tensorflow" or self.amsgrad:
            return super().update_step(gradient, variable, learning_rate)
        import tensorflow as tf

        momentum, velocity = adam_moments(self, variable)
        dtype = variable.dtype
        step = ops.cast(self.iterations + 1, dtype)
        beta_1 = ops.cast(self.beta_1, dtype)
        beta_2 = ops.cast(self.beta_2, dtype)
        tf.raw_ops.ResourceApplyAdam(
            var=_handle(variable),
            m=_handle(momentum),
            v=_handle(velocity),
            beta1_power=ops.power(beta_1, step),
            beta2_power=ops.power(beta_2, step),
            lr=ops.cast(learning_rate, dtype),
            beta1=beta_1,
            beta2=beta_2,
            epsilon=ops.cast(self.epsilon, dtype),
            # The gradient of an embedding may be a list of rows.
            grad=ops.cast(tf.convert_to_tensor(gradient), dtype),
        )


def _handle(variable):
    """The resource of a variable of Keras or TensorFlow."""
    if isinstance(variable, keras.Variable):
        variable = variable.value
    return variable.handle


@keras.saving.register_keras_serializable(package="keras_attn")
class Adam(_FusedUpdate, backend_optimizer_class(keras.optimizers.Adam)):
    """`keras.optimizers.Adam` with a faster update on TensorFlow.

    Arguments, variables and results are those of Keras' optimizer, but for one case: where a batch reads a row of an
    untied embedding more than once, the gradients of the row are added before they are squared, as on other backends.
    Keras on TensorFlow squares each of them. Other backends, and `amsgrad=True`, use Keras' own update.

    Example:

    ```python
    optimizer = Adam(NoamSchedule(hidden_dim=512), beta_2=0.98, epsilon=1e-9)
    ```

    Reference: [Kingma and Ba, 2014](https://arxiv.org/abs/1412.6980), section 2: the order of computation at its end.
    """


@keras.saving.register_keras_serializable(package="keras_attn")
class AdamW(_FusedUpdate, backend_optimizer_class(keras.optimizers.AdamW)):
    """`keras.optimizers.AdamW` with a faster update on TensorFlow, see `Adam`.

    Example:

    ```python
    optimizer = AdamW(WarmupCosineSchedule(1e-3, 100, total_steps=1000), weight_decay=0.01)
    ```

    References: [Loshchilov and Hutter, 2017](https://arxiv.org/abs/1711.05101); [Kingma and Ba,
    2014](https://arxiv.org/abs/1412.6980).
    """
