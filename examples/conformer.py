"""The Conformer: its convolution module instead of attention, and its block built from this library's layers.

    python examples/conformer.py

The task is to predict at each position of a row whether its number is greater than the one before, or, in
rows that contain a mark, whether it is not. Convolution sees the number before, attention sees the mark.

Reference: Gulati et al., 2020, "Conformer: Convolution-augmented Transformer for Speech Recognition"
(arXiv:2005.08100), sections 2.1 to 2.4.
"""

import argparse

import keras
import numpy as np

from keras_attn.layers import EncoderBlock, FeedForward, MultiHeadAttention, Residual, TokenEmbedding
from keras_attn.ops import padding_mask

PAD = 0
MARK = 1
FIRST_NUMBER = 2
VOCABULARY_SIZE = 9
HIDDEN_DIM = 32


@keras.saving.register_keras_serializable(package="conformer")
class ConvolutionModule(keras.layers.Layer):
    """Gate, depthwise convolution, batch norm, swish, and a projection on either side (figure 2).

    Padding is set to 0 before the convolution, like the positions beyond the ends, and is left out of the
    statistics of the batch norm.
    """

    def __init__(self, kernel_size, **kwargs):
        super().__init__(**kwargs)
        self.kernel_size = kernel_size
        self.supports_masking = True

    def build(self, input_shape):
        hidden_dim = input_shape[-1]
        self.expand = keras.layers.Dense(2 * hidden_dim)
        self.depthwise = keras.layers.DepthwiseConv1D(self.kernel_size, padding="same")
        self.norm = keras.layers.BatchNormalization()
        self.project = keras.layers.Dense(hidden_dim)
        self.expand.build(input_shape)
        for layer in (self.depthwise, self.norm, self.project):
            layer.build(input_shape)

    def call(self, inputs, padding_mask=None, training=None):
        x = keras.ops.glu(self.expand(inputs))
        if padding_mask is not None:
            x = keras.ops.where(padding_mask[..., None], x, 0.0)
        x = self.norm(self.depthwise(x), training=training, mask=padding_mask)
        return self.project(keras.ops.silu(x))

    def get_config(self):
        return {**super().get_config(), "kernel_size": self.kernel_size}


@keras.saving.register_keras_serializable(package="conformer")
class ConformerBlock(keras.layers.Layer):
    """Attention, then convolution, between two feed-forward networks with weight one half (figure 1)."""

    def __init__(self, intermediate_dim, num_heads, kernel_size, **kwargs):
        super().__init__(**kwargs)
        self.intermediate_dim = intermediate_dim
        self.num_heads = num_heads
        self.kernel_size = kernel_size
        self.supports_masking = True

    def build(self, input_shape):
        self.first_feed_forward = FeedForward(self.intermediate_dim, activation="silu")
        self.attention = MultiHeadAttention(self.num_heads, input_shape[-1] // self.num_heads)
        self.convolution = ConvolutionModule(self.kernel_size)
        self.last_feed_forward = FeedForward(self.intermediate_dim, activation="silu")
        self.norm = keras.layers.LayerNormalization()
        self.residuals = [Residual(normalize_first=True) for _ in range(4)]
        self.attention.build(input_shape, input_shape)
        for layer in (self.first_feed_forward, self.convolution, self.last_feed_forward, self.norm):
            layer.build(input_shape)
        for residual in self.residuals:
            residual.build(input_shape)

    def call(self, inputs, padding_mask=None, training=None):
        sublayers = (
            lambda x: 0.5 * self.first_feed_forward(x),
            lambda x: self.attention(x, x, query_mask=padding_mask, value_mask=padding_mask),
            lambda x: self.convolution(x, padding_mask=padding_mask, training=training),
            lambda x: 0.5 * self.last_feed_forward(x),
        )
        x = inputs
        for residual, sublayer in zip(self.residuals, sublayers):
            x = residual(x, sublayer=sublayer, training=training)
        return self.norm(x)

    def get_config(self):
        return {
            **super().get_config(),
            "intermediate_dim": self.intermediate_dim,
            "num_heads": self.num_heads,
            "kernel_size": self.kernel_size,
        }


def make_model(block):
    token_ids = keras.Input((None,), dtype="int32")
    x = TokenEmbedding(VOCABULARY_SIZE, HIDDEN_DIM)(token_ids)
    x = block(x, padding_mask=padding_mask(token_ids, PAD))
    return keras.Model(token_ids, keras.layers.Dense(2)(x))


def make_data(num_rows, seed, length=16):
    """Padded rows of 8 to 16 numbers, half of them with a mark; labels; weights, 1 at real positions."""
    rng = np.random.default_rng(seed)
    token_ids = rng.integers(FIRST_NUMBER, VOCABULARY_SIZE, (num_rows, length))
    lengths = rng.integers(8, length + 1, num_rows)
    marked = rng.random(num_rows) < 0.5
    token_ids[marked, rng.integers(0, lengths[marked])] = MARK
    greater = token_ids > np.pad(token_ids, [(0, 0), (1, 0)])[:, :-1]
    is_real = np.arange(length) < lengths[:, None]
    return np.where(is_real, token_ids, PAD), greater != marked[:, None], is_real.astype("float32")


def train(model, epochs):
    model.compile(
        optimizer=keras.optimizers.Adam(0.003),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        weighted_metrics=["accuracy"],
    )
    token_ids, labels, weights = make_data(4096, seed=1)
    model.fit(token_ids, labels, sample_weight=weights, batch_size=64, epochs=epochs, verbose=0)
    token_ids, labels, weights = make_data(1024, seed=2)
    results = model.evaluate(token_ids, labels, sample_weight=weights, verbose=0, return_dict=True)
    return results["accuracy"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=8)
    arguments = parser.parse_args()
    if arguments.epochs < 1:
        parser.error("--epochs must be at least 1")
    keras.utils.set_random_seed(1)
    for name, block in (
        (
            "an encoder block that holds the convolution module",
            EncoderBlock(64, self_attention=ConvolutionModule(3)),
        ),
        ("a Conformer block", ConformerBlock(64, num_heads=4, kernel_size=3)),
    ):
        print(f"Accuracy on new rows with {name}: {train(make_model(block), arguments.epochs):.1%}")


if __name__ == "__main__":
    main()
