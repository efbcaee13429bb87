"""The work that decoding is timed on: sentences of 17 tokens, the last END, and answers of exactly 16."""

import pathlib
import sys

import keras
import numpy as np
import torch

from keras_attn.models import Seq2SeqTransformer

sys.path.append(str(pathlib.Path(__file__).parents[1]))
from helpers_engines import marian  # isort: skip -- found now

VOCABULARY_SIZE, SOURCE_LENGTH, TARGET_LENGTH = 8000, 17, 16
START, END = 2, 3


def make_model(size, dtype="float32"):
    """A model of the preset whose weights are always the same, and to which END never seems likely."""
    keras.utils.set_random_seed(1)
    model = Seq2SeqTransformer.from_preset(size, VOCABULARY_SIZE, max_sequence_length=64, dtype=dtype)
    embeddings = model.target_embedding.token.embeddings
    embeddings.assign(keras.ops.concatenate([embeddings[:END], 0 * embeddings[:1], embeddings[END + 1 :]]))
    return model


def make_source(batch_size):
    """Token ids (B, 17)."""
    source = np.random.default_rng(1).integers(4, VOCABULARY_SIZE, (batch_size, SOURCE_LENGTH))
    source[:, -1] = END
    return source


def of_transformers(model, source, num_beams, device="cpu", dtype="float32"):
    """Function without arguments: what `generate` of a MarianMTModel with the weights of `model` answers, (B, 16)."""
    twin = marian(model, START, END).to(device, getattr(torch, dtype))
    source = torch.tensor(source, device=device)

    def generate():
        with torch.inference_mode():
            return (
                twin.generate(
                    source,
                    attention_mask=torch.ones_like(source),
                    num_beams=num_beams,
                    do_sample=False,
                    min_new_tokens=TARGET_LENGTH,
                    max_new_tokens=TARGET_LENGTH,
                )
                .cpu()
                .numpy()[:, 1:]
            )

    return generate
