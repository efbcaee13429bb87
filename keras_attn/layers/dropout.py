"""Dropout: of the outputs of sub-layers and embeddings, and of attention scores."""

import keras

from keras_attn.layers.base_layer import BaseLayer
from keras_attn.ops import ScoreDropout


@keras.saving.register_keras_serializable(package="keras_attn")
class Dropout(BaseLayer, keras.layers.Dropout):
    """`keras.layers.Dropout` that draws a quarter of the random bits on TensorFlow.

    On a CPU most of the time of dropout goes into random numbers. Keras draws 32 bits for each input and makes a float
    of them; here an input is dropped where its byte is below a threshold, which all inputs with the same place in the last axis
    share. The threshold is 256 times the rate, rounded up or down at random in each call, so that each input is dropped with
    the rate as its probability (to 2^-16). Other backends, a `noise_shape` and a rate above 255/256 use Keras' own dropout.

    Example:

    ```python
    layer = Dropout(0.1)
    outputs = layer(keras.ops.ones((2, 3, 5)), training=True)
    ```

    Reference: [Srivastava et al., 2014](https://jmlr.org/papers/v15/srivastava14a.html).
    """

    def call(self, inputs, training=False):
        draws_bytes = (
            keras.backend.backend() == "tensorflow" and self.noise_shape is None and self.rate <= 255 / 256
        )
        if not (training and self.rate and draws_bytes):
            return super().call(inputs, training=training)
        import tensorflow as tf

        num_dropped = round(self.rate * 2**16)  # of 2^16
        input_bytes, column_bytes = _random_bytes(tf.shape(inputs), self.seed_generator.next())
        thresholds = tf.cast((num_dropped + tf.cast(column_bytes, "int32")) // 2**8, "uint8")
        return tf.where(input_bytes >= thresholds, inputs * (1 / (1 - num_dropped / 2**16)), 0)


def _random_bytes(shape, seed):
    """Uniform uint8 of the shape, and of its last axis alone."""
    import tensorflow as tf

    size = tf.reduce_prod(shape)
    num_words = (size + shape[-1] + 3) // 4
    words = tf.random.stateless_uniform([num_words], seed, minval=None, maxval=None, dtype=tf.uint32)
    random_bytes = tf.reshape(tf.bitcast(words, tf.uint8), [-1])
    return tf.reshape(random_bytes[:size], shape), random_bytes[size : size + shape[-1]]


def score_dropout(layer, training):
    """The `ScoreDropout` of one call of an attention layer, or None."""
    if not layer.dropout or not training:
        return None
    return ScoreDropout(layer.dropout, layer._seed_generator.next())
