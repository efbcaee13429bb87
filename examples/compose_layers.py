"""Compose a Transformer from the layers, functional and subclassed, and teach it to write words backwards.

python examples/compose_layers.py
"""

import argparse
import importlib.util
import pathlib

import keras
import numpy as np

import keras_attn
from keras_attn.layers import DecoderBlock, EncoderBlock, SinusoidalPositionEncoding, TokenEmbedding
from keras_attn.plots import plot_attention
from keras_attn.training import Adam, LabelSmoothedCrossentropy, MaskedAccuracy, NoamSchedule

PAD = 0
START = 1
END = 2
LETTERS = "abcdefghijklmnopqrstuvwxyz"
VOCABULARY_SIZE = 3 + len(LETTERS)
MAX_LETTERS = 9
HIDDEN_DIM = 64
BLOCK = {"intermediate_dim": 128, "num_heads": 4, "dropout": 0.0}


def make_functional_model():
    encoder_token_ids = keras.Input((None,), dtype="int32", name="encoder_token_ids")
    decoder_token_ids = keras.Input((None,), dtype="int32", name="decoder_token_ids")
    encoder_padding_mask = keras.ops.not_equal(encoder_token_ids, PAD)
    decoder_padding_mask = keras.ops.not_equal(decoder_token_ids, PAD)
    embedding = TokenEmbedding(VOCABULARY_SIZE, HIDDEN_DIM)

    x = embedding(encoder_token_ids)
    x = x + SinusoidalPositionEncoding()(x, padding_mask=encoder_padding_mask)
    for _ in range(2):
        x = EncoderBlock(**BLOCK)(x, padding_mask=encoder_padding_mask)

    y = embedding(decoder_token_ids)
    y = y + SinusoidalPositionEncoding()(y, padding_mask=decoder_padding_mask)
    for _ in range(2):
        y = DecoderBlock(**BLOCK)(
            y, x, decoder_padding_mask=decoder_padding_mask, encoder_padding_mask=encoder_padding_mask
        )
    logits = embedding(y, reverse=True)
    inputs = {"encoder_token_ids": encoder_token_ids, "decoder_token_ids": decoder_token_ids}
    return keras.Model(inputs, logits, name="functional")


@keras.saving.register_keras_serializable(package="compose_layers")
class Reverser(keras.Model):
    """The same model as a class: layers are made in `__init__`, and masks are passed explicitly in `call`."""

    def __init__(self, num_layers=2, **kwargs):
        super().__init__(**kwargs)
        self.num_layers = num_layers
        self.embedding = TokenEmbedding(VOCABULARY_SIZE, HIDDEN_DIM)
        self.position_encoding = SinusoidalPositionEncoding()
        self.encoder_blocks = [EncoderBlock(**BLOCK) for _ in range(num_layers)]
        self.decoder_blocks = [DecoderBlock(**BLOCK) for _ in range(num_layers)]

    def call(self, inputs, training=None):
        encoder_padding_mask = keras.ops.not_equal(inputs["encoder_token_ids"], PAD)
        decoder_padding_mask = keras.ops.not_equal(inputs["decoder_token_ids"], PAD)
        x = self.embedding(inputs["encoder_token_ids"])
        x = x + self.position_encoding(x, padding_mask=encoder_padding_mask)
        for block in self.encoder_blocks:
            x = block(x, padding_mask=encoder_padding_mask, training=training)
        y = self.embedding(inputs["decoder_token_ids"])
        y = y + self.position_encoding(y, padding_mask=decoder_padding_mask)
        for block in self.decoder_blocks:
            y = block(
                y,
                x,
                decoder_padding_mask=decoder_padding_mask,
                encoder_padding_mask=encoder_padding_mask,
                training=training,
            )
        return self.embedding(y, reverse=True)

    def get_config(self):
        return {**super().get_config(), "num_layers": self.num_layers}


def make_data(num_words, seed):
    """Random words, and the words backwards: the decoder sees START + word, its labels are word + END."""
    rng = np.random.default_rng(seed)
    words = ["".join(rng.choice(list(LETTERS), rng.integers(2, MAX_LETTERS + 1))) for _ in range(num_words)]
    backwards = [to_token_ids(word[::-1]) for word in words]
    encoder_token_ids = pad([to_token_ids(word) for word in words])
    decoder_token_ids = pad([[START, *token_ids] for token_ids in backwards])
    labels = pad([[*token_ids, END] for token_ids in backwards])
    return {"encoder_token_ids": encoder_token_ids, "decoder_token_ids": decoder_token_ids}, labels


def to_token_ids(word):
    return [3 + LETTERS.index(letter) for letter in word]


def pad(rows):
    return keras.utils.pad_sequences(rows, padding="post", value=PAD)


def write_backwards(model, word):
    """Greedy decoding at its simplest: the whole model once for each letter."""
    encoder_token_ids = np.array([to_token_ids(word)])
    answer = [START]
    while answer[-1] != END and len(answer) <= MAX_LETTERS:
        logits = model({"encoder_token_ids": encoder_token_ids, "decoder_token_ids": np.array([answer])})
        answer.append(int(keras.ops.argmax(logits[0, -1])))
    return "".join(LETTERS[token_id - 3] for token_id in answer if token_id > END)


def train(model, epochs):
    model.compile(
        optimizer=Adam(NoamSchedule(HIDDEN_DIM, warmup_steps=400), beta_2=0.98, epsilon=1e-9),
        loss=LabelSmoothedCrossentropy(label_smoothing=0.1),
        metrics=[MaskedAccuracy()],
    )
    model.fit(*make_data(8192, seed=1), batch_size=64, epochs=epochs, verbose=2)
    results = model.evaluate(*make_data(512, seed=2), verbose=0, return_dict=True)
    print(f"Token accuracy on new words: {results['accuracy']:.1%}")
    for word in ("attention", "layers", "keras"):
        print(f"  {word} -> {write_backwards(model, word)}")


def draw(model, word, file):
    """Where each letter that is written looks: the cross-attention of the last layer, mean of the heads."""
    answer = write_backwards(model, word)
    with keras_attn.capture_attention(model, layers="cross_attention") as maps:
        model(
            {
                "encoder_token_ids": np.array([to_token_ids(word)]),
                "decoder_token_ids": np.array([[START, *to_token_ids(answer)]]),
            }
        )
    scores = list(maps.values())[-1][0].mean(axis=0)
    plot_attention(scores, list(word), [*answer, "END"], title="Read (above) and written (left)", path=file)
    print(f"Where it looks lies in {file}")


def save_and_reload(model, folder):
    file = folder / f"{model.name}.keras"
    model.save(file)
    reloaded = keras.saving.load_model(file)
    inputs, _ = make_data(7, seed=3)
    np.testing.assert_array_equal(reloaded(inputs), model(inputs))
    print(f"Saved to {file}; reloaded, it gives the same outputs.")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument(
        "--output", default="runs/compose_layers", help="folder of the models and the picture"
    )
    arguments = parser.parse_args()
    if arguments.epochs < 1:
        parser.error("--epochs must be at least 1")
    folder = pathlib.Path(arguments.output)
    folder.mkdir(parents=True, exist_ok=True)
    keras.utils.set_random_seed(1)

    functional = make_functional_model()
    train(functional, arguments.epochs)
    if importlib.util.find_spec("matplotlib"):
        draw(functional, "attention", folder / "attention.png")

    inputs, _ = make_data(7, seed=3)
    subclassed = Reverser(name="subclassed")
    subclassed(inputs)  # creates the weights
    subclassed.set_weights(functional.get_weights())
    np.testing.assert_allclose(subclassed(inputs), functional(inputs), rtol=1e-5, atol=1e-5)
    print("The subclassed model with the weights of the functional one gives the same outputs.")

    save_and_reload(functional, folder)
    save_and_reload(subclassed, folder)


if __name__ == "__main__":
    main()
