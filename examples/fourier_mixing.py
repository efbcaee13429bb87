"""FNet: a Fourier transform replaces attention in an encoder block, in four lines.

    python examples/fourier_mixing.py

The task is to predict, from the first position alone, which of two tokens a row has more of. A position that
is not mixed with the others knows only one token.

Reference: Lee-Thorp et al., 2022, "FNet: Mixing Tokens with Fourier Transforms" (arXiv:2105.03824), section
3.2.
"""

import argparse

import keras
import numpy as np

from keras_attn.layers import EncoderBlock, PositionEmbedding, TokenEmbedding

LENGTH = 17
HIDDEN_DIM = 32


@keras.saving.register_keras_serializable(package="fourier_mixing")
class FourierMixing(keras.layers.Layer):
    """The real part of the Fourier transform over time and features. It has no weights.

    It has no argument `padding_mask` either, because every output depends on every input: a block that
    contains it rejects padding instead of ignoring it.
    """

    def call(self, inputs):
        real, _ = keras.ops.fft2((inputs, keras.ops.zeros_like(inputs)))
        return real


def make_model(mixing):
    token_ids = keras.Input((LENGTH,), dtype="int32")
    x = TokenEmbedding(2, HIDDEN_DIM)(token_ids)
    x = x + PositionEmbedding(LENGTH)(x)
    x = EncoderBlock(intermediate_dim=64, self_attention=mixing)(x)
    return keras.Model(token_ids, keras.layers.Dense(2)(x[:, 0]))


def make_data(num_rows, seed):
    token_ids = np.random.default_rng(seed).integers(0, 2, (num_rows, LENGTH))
    return token_ids, token_ids.sum(axis=1) > LENGTH // 2


def train(model, epochs):
    model.compile(
        optimizer=keras.optimizers.Adam(0.003),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(*make_data(4096, seed=1), batch_size=64, epochs=epochs, verbose=0)
    return model.evaluate(*make_data(1024, seed=2), verbose=0, return_dict=True)["accuracy"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=5)
    arguments = parser.parse_args()
    if arguments.epochs < 1:
        parser.error("--epochs must be at least 1")
    keras.utils.set_random_seed(1)
    for name, mixing in (("Fourier mixing", FourierMixing()), ("no mixing", keras.layers.Identity())):
        print(f"Accuracy on new rows with {name}: {train(make_model(mixing), arguments.epochs):.1%}")


if __name__ == "__main__":
    main()
