"""Fine-tune a classifier of texts on a checkpoint: a new head, all weights or LoRA, saves to go on from, and a task to serve.

    python examples/fine_tune_classifier.py
    python examples/fine_tune_classifier.py --checkpoint bert-base-uncased --train train.tsv --validation dev.tsv --lora-rank 8

A line of the files is a text, a tab and its label, or two texts and a label. Without files, the texts are made: orders of a
shop, which are to be cancelled or not. "do not cancel" and "cancel, do not send" have the same words. Without a checkpoint, a
small encoder is made with a vocabulary of its own; it knows nothing. The same command goes on after a kill.
"""

import argparse
import pathlib
import random

import keras
import numpy as np

import keras_attn
from keras_attn import layers
from keras_attn.data import LabelledBatches, LabelledTexts, read_labelled_texts
from keras_attn.huggingface import save_model
from keras_attn.models import EncoderTransformer, merge_lora
from keras_attn.runs import resumable_fit
from keras_attn.text import WordPieceTokenizer
from keras_attn.training import WarmupLinearSchedule

ITEMS = ("lamp", "red chair", "table", "old clock", "carpet", "blue vase", "mirror")
OPENINGS = ("please", "hello ,", "as I said ,", "dear shop ,", "today")


def made_texts(count, seed):
    """Orders, the label of which depends on what "not" belongs to."""
    generator = random.Random(seed)
    texts = []
    labels = []
    for _ in range(count):
        verbs = ["cancel", "send"]
        generator.shuffle(verbs)
        negated = generator.randrange(2)
        first, second = (f"do not {verb}" if i == negated else verb for i, verb in enumerate(verbs))
        items = generator.sample(ITEMS, 2)
        texts.append(f"{generator.choice(OPENINGS)} {first} the {items[0]} and {second} the {items[1]}")
        labels.append("keep" if verbs[negated] == "cancel" else "cancel")
    return LabelledTexts(texts, labels, name="made texts")


def made_checkpoint(folder, texts):
    """A small BERT of fresh weights and its WordPiece tokenizer, as the hub would hold it."""
    if (folder / "config.json").is_file():
        return folder
    tokenizer = WordPieceTokenizer.train(texts, 200, lowercase=True)
    embedding = layers.SequenceEmbedding(
        layers.TokenEmbedding(tokenizer.vocabulary_size, 48, scale=False),
        position=layers.PositionEmbedding(64),
        token_type=keras.layers.Embedding(2, 48),
        norm=keras.layers.LayerNormalization(epsilon=1e-12),
    )
    blocks = [
        layers.EncoderBlock(
            96,
            self_attention=layers.MultiHeadAttention(num_heads=4, key_dim=12),
            norm=keras.layers.LayerNormalization(epsilon=1e-12),
            activation="gelu",
            dropout=0.0,
        )
        for _ in range(2)
    ]
    save_model(EncoderTransformer(embedding, blocks), folder, "bert", tokenizer)
    return folder


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--checkpoint", help="folder of an encoder from the hub (default: a small one is made)"
    )
    parser.add_argument("--train", help="tab-separated texts and labels (default: texts are made)")
    parser.add_argument("--validation", help="the same, to choose the best epoch by")
    parser.add_argument("--lora-rank", type=int, default=0, help="0 trains all weights")
    parser.add_argument("--mixed-precision", choices=("mixed_bfloat16", "mixed_float16"), default="float32")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, help="default: 2e-5 for a checkpoint, 1e-4 with LoRA")
    parser.add_argument(
        "--output", default="runs/fine_tuned", help="folder of the saves and of the classifier"
    )
    arguments = parser.parse_args()
    if (arguments.train is None) != (arguments.validation is None):
        parser.error("give --train and --validation, or neither")
    if min(arguments.epochs, arguments.batch_size) < 1 or arguments.lora_rank < 0:
        parser.error("--epochs and --batch-size must be at least 1, --lora-rank at least 0")
    if arguments.learning_rate is not None and arguments.learning_rate <= 0:
        parser.error("--learning-rate must be above 0")
    return arguments


def main():
    arguments = parse_arguments()
    output = pathlib.Path(arguments.output)
    keras.utils.set_random_seed(1)
    if arguments.train:
        train = read_labelled_texts(arguments.train)
        held_out = read_labelled_texts(arguments.validation)
    else:
        train = made_texts(1000, seed=1)
        held_out = made_texts(200, seed=2)
    checkpoint = arguments.checkpoint or made_checkpoint(output / "checkpoint", train.texts)
    classifier = keras_attn.TextClassifier.from_checkpoint(
        checkpoint, train.label_names, dtype=arguments.mixed_precision
    )
    fine_tune(classifier, train, held_out, output / "checkpoints", arguments)
    folder = output / "classifier"
    classifier.save(folder)
    print(f"keras-attn export {folder} saved_models/{output.name}")
    for text in held_out.texts[:3]:
        print(f"  {text} -> {keras_attn.load(folder)(text)}")


def fine_tune(classifier, train, held_out, folder, arguments):
    """Trains the classifier's model, and leaves it with the weights of its best epoch."""
    model = classifier.model
    if arguments.lora_rank:
        model.encoder.enable_lora(arguments.lora_rank)  # the encoder is frozen; the new head is not
    trained = sum(map(np.size, model.trainable_weights))
    total = sum(map(np.size, model.weights))
    print(f"{trained:,} of {total:,} weights are trained ({trained / total:.1%}).")
    batches = LabelledBatches(
        train,
        classifier.tokenizer,
        classifier.labels,
        arguments.batch_size,
        classifier.max_length,
        token_types=getattr(model.encoder.embedding, "token_type", None) is not None,
    )
    print(batches.report())
    updates = arguments.epochs * len(batches)
    schedule = WarmupLinearSchedule(
        learning_rate(arguments), warmup_steps=max(1, updates // 10), total_steps=updates + 1
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(schedule), loss)

    def accuracy():
        return np.mean(np.array(classifier(held_out.texts, held_out.pairs)) == np.array(held_out.labels))

    resumable_fit(model, batches, folder, arguments.epochs, accuracy)
    majority = max(held_out.labels.count(label) for label in set(held_out.labels)) / len(held_out)
    print(f"Accuracy on held-out texts: {accuracy():.1%}; of the commonest label: {majority:.1%}")
    if arguments.lora_rank:
        classifier.model = merge_lora(model)


def learning_rate(arguments):
    if arguments.learning_rate:
        return arguments.learning_rate
    if not arguments.checkpoint:  # the encoder knows nothing
        return 2e-3
    return 1e-4 if arguments.lora_rank else 2e-5


if __name__ == "__main__":
    main()
