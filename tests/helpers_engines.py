"""A small model that has learned a little, so that its answers vary, are unsure, and end at different places."""

import functools
import tempfile

import keras
import numpy as np

from keras_attn import huggingface
from keras_attn.models import Seq2SeqTransformer
from keras_attn.text.tokenizer import Tokenizer
from keras_attn.training import LabelSmoothedCrossentropy

PAD, UNKNOWN, START, END = 0, 1, 2, 3
VOCABULARY_SIZE = 31
MAX_LENGTH = 17
NUM_SENTENCES = 200


def sources(count=NUM_SENTENCES, seed=3):
    """Lists of 1 to 11 ids, without END."""
    rng = np.random.default_rng(seed)
    return [rng.integers(4, VOCABULARY_SIZE, rng.integers(1, 12)).tolist() for _ in range(count)]


def padded(rows):
    """Lists of ids -> int32 (B, S)."""
    ids = np.zeros((len(rows), max(map(len, rows))), "int32")
    for i, row in enumerate(rows):
        ids[i, : len(row)] = row
    return ids


def with_end(rows):
    return padded([[*row, END] for row in rows])


@functools.cache
def briefly_trained_model(seed=4, **options):
    """2 + 2 layers that have seen a few hundred batches of sequences to reverse, in which even ids are doubled."""
    keras.utils.set_random_seed(seed)
    model = Seq2SeqTransformer.from_sizes(
        VOCABULARY_SIZE,
        2,
        2,
        **{
            "hidden_dim": 28,
            "num_heads": 2,
            "intermediate_dim": 57,
            "dropout": 0.0,
            "max_sequence_length": 23,
            **options,
        },
    )
    rows = sources(64 * 50, seed=5)
    targets = [[id for id in reversed(row) for _ in range(2 - id % 2)][: MAX_LENGTH + 3] for row in rows]
    decoder_ids = padded([[START, *row, END] for row in targets])
    model.compile(keras.optimizers.Adam(0.006), LabelSmoothedCrossentropy(label_smoothing=0.1))
    model.fit(
        {"encoder_token_ids": with_end(rows), "decoder_token_ids": decoder_ids[:, :-1]},
        decoder_ids[:, 1:],
        batch_size=64,
        epochs=1,
        verbose=0,
    )
    return model


def answer(row):
    """The tokens of a padded row, END included."""
    return [int(token) for token in row if token != PAD]


class IdTokenizer(Tokenizer):
    """Names the ids of the model: "t5" is 5."""

    def __init__(self, vocabulary_size=VOCABULARY_SIZE, end="</s>"):
        super().__init__(vocabulary_size, START, END, UNKNOWN, (PAD, START, END))
        self.special_names = ["<pad>", "<unk>", "<s>", end]

    def get_config(self):
        return {"vocabulary_size": self.vocabulary_size}

    def _token_string(self, token_id):
        return f"t{token_id}" if token_id >= len(self.special_names) else self.special_names[token_id]


def marian(model, start_token_id=START, end_token_id=END):
    """transformers' MarianMTModel that is read from the checkpoint of a model."""
    import transformers

    ids = {"decoder_start_token_id": start_token_id, "eos_token_id": end_token_id}
    with tempfile.TemporaryDirectory() as folder:
        huggingface.save_model(model, folder, "marian", **ids)
        twin = transformers.MarianMTModel.from_pretrained(folder).eval()
    twin.generation_config.update(forced_eos_token_id=None, bad_words_ids=None)
    return twin
