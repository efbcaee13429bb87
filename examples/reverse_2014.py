"""Numbers in reverse, by a Transformer and by the attention of 2014: what each has learnt after as many updates, by length.

    python examples/reverse_2014.py

Rows of up to 12 numbers are written backwards. The baseline is a recurrent network with additive attention (Bahdanau et al.), as
wide as the Transformer. Both get the same rows and updates. The test has rows of up to 16 numbers: longer ones than any in
training. There the recurrent network, which takes one step after the other, is the better one.

References: Bahdanau et al., 2014, "Neural Machine Translation by Jointly Learning to Align and Translate" (arXiv:1409.0473),
section 3; Vaswani et al., 2017, "Attention Is All You Need" (arXiv:1706.03762).
"""

import argparse
import importlib.util
import pathlib
import time

import keras
import numpy as np

from keras_attn.models import RNNSeq2Seq, Seq2SeqTransformer
from keras_attn.training import Adam, LabelSmoothedCrossentropy, WarmupCosineSchedule

PAD = 0
START = 1
END = 2
FIRST = 3
NUM_SYMBOLS = 20
LONGEST = 12
LONGEST_OF_TEST = 16
LENGTHS = range(1, LONGEST_OF_TEST + 1)
BATCH_SIZE = 64


def make_transformer():
    return Seq2SeqTransformer.from_sizes(
        FIRST + NUM_SYMBOLS,
        2,
        2,
        hidden_dim=64,
        num_heads=4,
        intermediate_dim=128,
        dropout=0.0,
        normalize_first=True,
        max_sequence_length=32,
    )


def make_rnn():
    return RNNSeq2Seq(FIRST + NUM_SYMBOLS, hidden_dim=64, dropout=0.0, max_sequence_length=32)


MODELS = {"Transformer": (make_transformer, 0.002), "RNN with attention": (make_rnn, 0.005)}


def make_rows(num_rows, lengths, seed):
    """Rows of numbers of lengths from a range, padded; and the same in reverse, padded."""
    rng = np.random.default_rng(seed)
    rows = rng.integers(FIRST, FIRST + NUM_SYMBOLS, (num_rows, LONGEST_OF_TEST))
    num_symbols = rng.integers(*lengths, num_rows)[:, None]
    places = np.arange(LONGEST_OF_TEST)
    reverse = np.take_along_axis(rows, (num_symbols - 1 - places) % LONGEST_OF_TEST, axis=1)
    return np.where(places < num_symbols, rows, PAD), np.where(places < num_symbols, reverse, PAD)


def with_start_and_end(reverse):
    """What the decoder reads, and its labels."""
    column = np.full((len(reverse), 1), PAD)
    labels = np.concatenate([reverse, column], axis=1)
    labels[np.arange(len(labels)), (reverse != PAD).sum(axis=1)] = END
    return np.concatenate([column + START, reverse], axis=1), labels


def train(model, learning_rate, updates):
    rows, reverse = make_rows(updates * BATCH_SIZE, (1, LONGEST + 1), seed=1)
    decoder_token_ids, labels = (ids[:, : LONGEST + 1] for ids in with_start_and_end(reverse))
    schedule = WarmupCosineSchedule(
        learning_rate, warmup_steps=max(1, updates // 10), total_steps=updates + 1
    )
    model.compile(Adam(schedule, global_clipnorm=1.0), loss=LabelSmoothedCrossentropy(label_smoothing=0.0))
    inputs = {"encoder_token_ids": rows[:, :LONGEST], "decoder_token_ids": decoder_token_ids}
    model.fit(inputs, labels, batch_size=BATCH_SIZE, shuffle=False, verbose=0)


def accuracy_by_length(model, rows_of_a_length):
    """The share of new rows that are reversed without a mistake, of each length."""
    by_length = [make_rows(rows_of_a_length, (length, length + 1), seed=1 + length) for length in LENGTHS]
    rows, reverse = (np.concatenate(part) for part in zip(*by_length))
    answers = model.generate(rows, start_token_id=START, end_token_id=END, max_length=LONGEST_OF_TEST + 1)
    _, labels = with_start_and_end(reverse)
    right = (np.array(answers) == labels).all(axis=1)
    return right.reshape(len(LENGTHS), rows_of_a_length).mean(axis=1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--updates", type=int, default=1000)
    parser.add_argument("--output", default="runs/reverse_2014", help="folder of the picture")
    arguments = parser.parse_args()
    if arguments.updates < 1:
        parser.error("--updates must be at least 1")
    accuracies = {}
    for name, (make_model, learning_rate) in MODELS.items():
        keras.utils.set_random_seed(1)
        model = make_model()
        start = time.monotonic()
        train(model, learning_rate, arguments.updates)
        seconds = time.monotonic() - start
        accuracies[name] = accuracy_by_length(model, 100)
        print(
            f"{name}: {model.count_params():,} parameters, {arguments.updates} updates in {seconds:.0f} s; reversed without "
            f"a mistake: {np.mean(accuracies[name][:LONGEST]):.1%} of rows up to {LONGEST} long, "
            f"{np.mean(accuracies[name][LONGEST:]):.1%} of longer ones",
            flush=True,
        )
    if importlib.util.find_spec("matplotlib"):
        file = pathlib.Path(arguments.output) / "accuracy.png"
        draw(accuracies, file)
        print(f"The accuracy by length lies in {file}")


def draw(accuracies, file):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.5), layout="constrained")
    panel = figure.subplots()
    for name, by_length in accuracies.items():
        panel.plot(LENGTHS, by_length, marker="o", label=name)
    panel.axvline(LONGEST + 0.5, color="grey", linestyle="--")
    panel.annotate("longer than in training →", (LONGEST + 0.6, 0.5), fontsize=8)
    panel.set(xlabel="numbers in the row", ylabel="reversed without a mistake", ylim=(-0.03, 1.03))
    panel.legend()
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=100)


if __name__ == "__main__":
    main()
