"""A Transformer learns to sort, and draws the attention that does it.

    python examples/sort_numbers.py

The model reads numbers in any order and writes them in order. Nobody tells it how: to write the next number, it must find the
smallest one that it has not written yet. The picture of its attention shows that it looks exactly there.
"""

import argparse
import importlib.util
import pathlib

import keras
import numpy as np

from keras_attn.models import Seq2SeqTransformer
from keras_attn.plots import explore, plot_attention
from keras_attn.training import Adam, LabelSmoothedCrossentropy, MaskedAccuracy, WarmupCosineSchedule

START = 1
END = 2
FIRST = 3
LARGEST = 50
LENGTH = 10


def make_rows(num_rows, seed):
    """Rows of different numbers, and the same numbers in order."""
    rng = np.random.default_rng(seed)
    rows = np.argsort(rng.random((num_rows, LARGEST)), axis=1)[:, :LENGTH]
    return rows + FIRST, np.sort(rows, axis=1) + FIRST


def with_column(rows, token_id, first):
    column = np.full((len(rows), 1), token_id)
    return np.concatenate([column, rows] if first else [rows, column], axis=1)


def train(model, updates, batch_size=64):
    rows, in_order = make_rows(updates * batch_size, seed=1)
    model.compile(
        Adam(WarmupCosineSchedule(0.003, warmup_steps=max(1, updates // 10), total_steps=updates + 1)),
        loss=LabelSmoothedCrossentropy(label_smoothing=0.0),
        metrics=[MaskedAccuracy()],
    )
    inputs = {"encoder_token_ids": rows, "decoder_token_ids": with_column(in_order, START, first=True)}
    model.fit(inputs, with_column(in_order, END, first=False), batch_size=batch_size, epochs=1, verbose=2)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--updates", type=int, default=1500)
    parser.add_argument("--output", default="runs/sort_numbers", help="folder of the pictures")
    arguments = parser.parse_args()
    if arguments.updates < 1:
        parser.error("--updates must be at least 1")
    folder = pathlib.Path(arguments.output)

    keras.utils.set_random_seed(1)
    model = Seq2SeqTransformer.from_sizes(
        FIRST + LARGEST,
        1,
        1,
        hidden_dim=64,
        num_heads=2,
        intermediate_dim=128,
        dropout=0.0,
        max_sequence_length=16,
    )
    train(model, arguments.updates)

    rows, in_order = make_rows(500, seed=2)  # of 50! / 40! that there are
    answers = np.array(model.generate(rows, start_token_id=START, end_token_id=END, max_length=LENGTH + 1))
    right = (answers[:, :LENGTH] == in_order).all(axis=1)
    print(f"Sorted without a mistake: {right.mean():.1%} of 500 new rows of {LENGTH} numbers")

    scores = attention(model, rows, in_order)
    looked = rows[np.arange(len(rows))[:, None], scores.argmax(axis=-1)]
    print(f"Where it looks most is the number that it writes: {(looked == in_order).mean():.1%}")
    draw(folder, rows[0], in_order[0], scores[0])


def attention(model, rows, in_order):
    """The cross-attention while each number is written, mean of the heads: (B, T, S)."""
    decoder_token_ids = with_column(in_order, START, first=True)[:, :LENGTH]
    _, scores = model.decode(decoder_token_ids, model.encode(rows), rows > 0, return_attention_scores=True)
    return np.array(scores[-1]).mean(axis=1)


def draw(folder, row, in_order, scores):
    labels = [[str(number - FIRST) for number in numbers] for numbers in (row, in_order)]
    title = "Read (above) and written (left)"
    explore({"last layer": scores[None]}, labels[::-1], title=title, path=folder / "attention.html")
    if importlib.util.find_spec("matplotlib"):
        plot_attention(scores, *labels, title=title, path=folder / "attention.png")
    print(f"The attention on one row lies in {folder}")


if __name__ == "__main__":
    main()
