"""One epoch of training from text files: our batches and model against those of three peers, in target tokens a second.

All train the same model (post-norm, one tied embedding, V = 10,000) with Adam and label smoothing on the same pairs and
the same vocabulary; each is fed as its own guide feeds it. Only real target tokens count: a peer that computes pads
gets nothing for them. The vocabulary is trained before the clock starts; reading and tokenizing the files is timed.
"""

from helpers_benchmarks import median_seconds, parser, print_table  # isort: skip -- quietens TensorFlow

import math

import keras
import numpy as np
import tensorflow as tf
import torch
from helpers_keras_hub import KerasHubTransformer
from helpers_peers import KerasTransformer, TorchTransformer

from keras_attn.data import read_text_pairs, translation_batches
from keras_attn.models import PRESETS, Seq2SeqTransformer
from keras_attn.text import SentencePieceTokenizer
from keras_attn.training import InverseSquareRootSchedule, LabelSmoothedCrossentropy

MAX_TOKENS = 2048
TUTORIAL_BATCH, TUTORIAL_LONGEST = 64, 128  # tensorflow.org/text/tutorials/transformer
KERAS_HUB_BATCH, KERAS_HUB_LENGTH = 64, 40  # keras.io/keras_hub/guides, English-to-Spanish translation


class Files:
    """The text files, their vocabulary, and the special ids of the sequences."""

    def __init__(self, source, target, vocabulary_size):
        self.paths = source, target
        pairs = read_text_pairs(source, target)
        self.tokenizer = SentencePieceTokenizer.train(
            [*pairs.sources, *pairs.targets], vocabulary_size=vocabulary_size
        )
        self.start, self.end = self.tokenizer.start_token_id, self.tokenizer.end_token_id

    def read(self):
        return read_text_pairs(*self.paths)

    def texts(self):
        """A `tf.data.Dataset` of pairs of strings, in a random order."""
        pairs = self.read()
        dataset = tf.data.Dataset.from_tensor_slices((pairs.sources[:], pairs.targets[:]))
        return dataset.shuffle(20000, seed=1)

    def token_batches(self):
        """The pairs as batches of `MAX_TOKENS`, padded to their longest."""
        return translation_batches(
            self.read(),
            self.tokenizer,
            self.tokenizer,
            max_tokens=MAX_TOKENS,
            max_sequence_length=TUTORIAL_LONGEST,
            bucket_boundaries=None,
        )

    def prepare(self, longest, length=None):
        """Function of a batch of strings -> inputs and labels, padded to the longest, or to one length."""

        def ids(texts, before, after):
            token_ids = self.tokenizer.tokenize(texts)[:, : longest - 1]
            rows = token_ids.nrows()
            parts = [tf.fill([rows, len(part)], np.int32(part[0])) for part in (before, after) if part]
            whole = tf.concat([*parts[: len(before)], token_ids, *parts[len(before) :]], axis=1)
            return whole.to_tensor() if length is None else whole.to_tensor(shape=[None, length])

        def batch(sources, targets):
            inputs = {
                "encoder_token_ids": ids(sources, [], [self.end]),
                "decoder_token_ids": ids(targets, [self.start], []),
            }
            return inputs, ids(targets, [], [self.end])

        return batch


def compiled(model, loss=None):
    model.compile(
        optimizer=keras.optimizers.Adam(
            InverseSquareRootSchedule(0.002, 1000), 0.9, 0.98, 1e-9, global_clipnorm=25.0
        ),
        loss=loss or LabelSmoothedCrossentropy(0.1),
    )
    return model


def config(vocabulary_size):
    return {
        **PRESETS["tiny"],
        "vocabulary_size": vocabulary_size,
        "max_sequence_length": TUTORIAL_LONGEST,
        "layer_norm_epsilon": 1e-5,
    }


def our_epoch(files, policy, limit):
    model = compiled(Seq2SeqTransformer.from_sizes(**config(files.tokenizer.vocabulary_size), dtype=policy))

    def run():
        batches = files.token_batches()
        steps = min(limit or math.inf, len(batches))
        model.fit(batches.dataset(), steps_per_epoch=steps, shuffle=False, verbose=0)
        return sum(update.num_tokens for update in batches.plan(0)[:steps])

    return run


def keras_epoch(files, model, dataset, limit):
    """`fit` over a data set that is made anew for each epoch; returns the real label tokens it held."""
    compiled(model)

    def run():
        batches = dataset()
        if limit:
            batches = batches.take(limit)
        count = tf.Variable(0, dtype=tf.int64)

        def counted(inputs, labels):
            count.assign_add(tf.math.count_nonzero(labels))
            return inputs, labels

        # Counting costs nothing beside a step.
        model.fit(batches.map(counted), verbose=0, shuffle=False)
        return int(count)

    return run


def tutorial_epoch(files, policy, limit):
    prepare = files.prepare(TUTORIAL_LONGEST)

    def dataset():
        batches = files.texts().batch(TUTORIAL_BATCH).map(prepare, tf.data.AUTOTUNE)
        return batches.prefetch(tf.data.AUTOTUNE)

    model = KerasTransformer(config(files.tokenizer.vocabulary_size), dtype=policy)
    return keras_epoch(files, model, dataset, limit)


def keras_hub_epoch(files, limit):
    prepare = files.prepare(KERAS_HUB_LENGTH, KERAS_HUB_LENGTH)

    def dataset():
        batches = files.texts().batch(KERAS_HUB_BATCH).map(prepare, tf.data.AUTOTUNE)
        return batches.shuffle(2048).prefetch(16)

    model = KerasHubTransformer(config(files.tokenizer.vocabulary_size))
    return keras_epoch(files, model, dataset, limit)


def torch_epoch(files, limit):
    """torch's own model, fed with our token batches: its guides leave batching to the user."""
    torch.manual_seed(1)
    model = TorchTransformer(config(files.tokenizer.vocabulary_size))
    optimizer = torch.optim.Adam(model.parameters(), 1e-4, (0.9, 0.98), 1e-9)
    loss_function = torch.nn.CrossEntropyLoss(ignore_index=0, label_smoothing=0.1)

    def run():
        batches = files.token_batches()
        steps = min(limit or math.inf, len(batches))
        for inputs, labels in batches.dataset().take(steps).as_numpy_iterator():
            source, target = (
                torch.from_numpy(inputs[f"{side}_token_ids"].astype("int64"))
                for side in ("encoder", "decoder")
            )
            labels = torch.from_numpy(labels.astype("int64"))
            optimizer.zero_grad()
            loss = loss_function(model(source, target).flatten(0, 1), labels.flatten())
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 25.0)
            optimizer.step()
        assert math.isfinite(loss.item())
        return sum(update.num_tokens for update in batches.plan(0)[:steps])

    return run


def main():
    options = parser(__doc__.splitlines()[0], rounds=3)
    options.add_argument("files", nargs=2, metavar="FILE", help="source and target, one sentence a line")
    options.add_argument("--vocabulary-size", type=int, default=10000)
    options.add_argument("--batches", type=int, help="only so many batches of each, for a quick look")
    options = options.parse_args()
    torch.set_num_threads(2)
    files, limit = Files(*options.files, options.vocabulary_size), options.batches
    epochs = {
        "keras_attn, float32": our_epoch(files, "float32", limit),
        "keras_attn, mixed_bfloat16": our_epoch(files, "mixed_bfloat16", limit),
        "TF tutorial, float32": tutorial_epoch(files, "float32", limit),
        "KerasHub, float32": keras_hub_epoch(files, limit),
        "torch nn.Transformer, float32": torch_epoch(files, limit),
    }
    tokens = {}

    def counted(name):
        def run():
            tokens[name] = epochs[name]()

        return run

    seconds = median_seconds({name: counted(name) for name in epochs}, options.rounds)
    rates = {name: tokens[name] / seconds[name] for name in epochs}
    rows = [
        [name, f"{seconds[name]:.1f}", f"{tokens[name]:,}", f"{rate:,.0f}"]
        + [f"{rates[ours] / rate:.2f}" for ours in list(epochs)[:2]]
        for name, rate in rates.items()
    ]
    print_table(
        f"One epoch of `tiny` from text files, V = {options.vocabulary_size}; medians of {options.rounds} epochs.",
        ["", "seconds", "target tokens", "tokens/s", "ours float32 is x", "ours bfloat16 is x"],
        rows,
    )


if __name__ == "__main__":
    main()
