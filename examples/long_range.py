"""Retrieval over a long distance: what full attention, a window, and a window with sinks can see.

    python examples/long_range.py

Each row begins with a word that must be said again at its end, 100 tokens later; what lies between does not matter. A causal
window of 8 tokens cannot see the beginning. Two sinks, the first two tokens of each row, stay in view of every query,
and cost two more keys.

Reference: Xiao et al., 2024, "Efficient Streaming Language Models with Attention Sinks" (arXiv:2309.17453), section 3.2.
"""

import argparse
import importlib.util
import pathlib

import keras
import numpy as np

from keras_attn.layers import DecoderBlock, MultiHeadAttention, PositionEmbedding, TokenEmbedding

ASK = 0
FIRST = 1
NUM_WORDS = 20
LENGTH = 100
WINDOW = 8
NUM_SINKS = 2
VARIANTS = {
    "full": {},
    f"window of {WINDOW}": {"sliding_window": WINDOW},
    f"window of {WINDOW} and {NUM_SINKS} sinks": {"sliding_window": WINDOW, "num_sink_tokens": NUM_SINKS},
}


def make_rows(num_rows, seed):
    """Random words, and at the end the question; the answer is the first word."""
    rows = np.random.default_rng(seed).integers(FIRST, FIRST + NUM_WORDS, (num_rows, LENGTH))
    rows[:, -1] = ASK
    return rows, rows[:, 0]


class Reader(keras.Model):
    """One block of causal attention, and the word that it would say after the last token."""

    def __init__(self, **variant):
        super().__init__()
        self.token = TokenEmbedding(FIRST + NUM_WORDS, 32)
        self.position = PositionEmbedding(LENGTH)
        attention = MultiHeadAttention(num_heads=2, key_dim=16, **variant)
        self.block = DecoderBlock(64, self_attention=attention, normalize_first=True)
        self.say = keras.layers.Dense(FIRST + NUM_WORDS)

    def call(self, token_ids, training=None):
        return self.say(self.block(self.embed(token_ids), training=training)[:, -1])

    def embed(self, token_ids):
        x = self.token(token_ids)
        return x + self.position(x)

    def last_scores(self, token_ids):
        """Where the question looks: (B, S), the mean of the heads."""
        x = self.embed(token_ids)
        _, scores = self.block(x, return_attention_scores=True)
        return np.array(scores)[:, :, -1].mean(axis=1)


def train(model, epochs):
    model.compile(
        keras.optimizers.Adam(0.003),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(*make_rows(4096, seed=1), batch_size=64, epochs=epochs, verbose=0)
    return model.evaluate(*make_rows(1024, seed=2), verbose=0, return_dict=True)["accuracy"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--output", default="runs/long_range", help="folder of the picture")
    arguments = parser.parse_args()
    if arguments.epochs < 1:
        parser.error("--epochs must be at least 1")

    rows, _ = make_rows(64, seed=3)
    scores = {}
    for name, variant in VARIANTS.items():
        keras.utils.set_random_seed(1)
        model = Reader(**variant)
        print(f"Accuracy on new rows, {name}: {train(model, arguments.epochs):.1%}")
        scores[name] = model.last_scores(rows).mean(axis=0)
        print(f"  of its attention on the first word: {scores[name][0]:.1%}")
    print(f"Guessing: {1 / NUM_WORDS:.1%}")
    if importlib.util.find_spec("matplotlib"):
        file = pathlib.Path(arguments.output) / "attention.png"
        draw(scores, file)
        print(f"Where the question looks lies in {file}")


def draw(scores, file):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    panels = figure.subplots(len(scores), sharex=True, sharey=True)
    for panel, (name, shares) in zip(panels, scores.items()):
        panel.bar(range(LENGTH), shares, width=1.5)
        panel.set(title=name, ylim=(0, 1))
    panels[-1].set_xlabel("position; the question stands at the end")
    figure.supylabel("attention of the question")
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=100)


if __name__ == "__main__":
    main()
