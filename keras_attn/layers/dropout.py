"""Dropout of the outputs of sub-layers and embeddings."""

import keras

_NUM_BITS = 16


@keras.saving.register_keras_serializable(package="keras_attn")
class Dropout(keras.layers.Dropout):
    """`keras.layers.Dropout` that draws half of the random bits on TensorFlow.

    On a CPU most of the time of dropout goes into random numbers. Keras draws 32 bits for each input and makes a float
    of them; here 16 bits decide. So the rate is rounded to a multiple of 2^-16, and the inputs that are kept are
    scaled by the rounded rate. Other backends, and a `noise_shape`, use Keras' own dropout.

    Example:

    ```python
    layer = Dropout(0.1)
    outputs = layer(keras.ops.ones((2, 3, 5)), training=True)
    ```

    Reference: [Srivastava et al., 2014](https://jmlr.org/papers/v15/srivastava14a.html).
    """

    def call(self, inputs, training=False):
        draws_bits = keras.backend.backend() == "tensorflow" and self.noise_shape is None
        if not (training and self.rate and draws_bits):
            return super().call(inputs, training=training)
        import tensorflow as tf

        num_dropped = min(round(self.rate * 2**_NUM_BITS), 2**_NUM_BITS - 1)  # of 2^16
        is_kept = _random_bits(tf.shape(inputs), self.seed_generator.next()) >= num_dropped
        return tf.where(is_kept, inputs * (1 / (1 - num_dropped / 2**_NUM_BITS)), 0)


def _random_bits(shape, seed):
    """Uniform uint16 of the shape."""
    import tensorflow as tf

    size = tf.reduce_prod(shape)
    words = tf.random.stateless_uniform([(size + 1) // 2], seed, minval=None, maxval=None, dtype=tf.uint32)
    return tf.reshape(tf.reshape(tf.bitcast(words, tf.uint16), [-1])[:size], shape)
