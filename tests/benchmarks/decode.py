"""Sentences a second of decoding, against CTranslate2, transformers and KerasHub, each doing the same work.

The weights are random and the same for all (but KerasHub's, whose BART of the same size has its own), the sentences have
17 tokens, the last END, and every answer has exactly 16: END has no chance. Every peer has two threads, in the better arrangement.
The ratio is to CTranslate2 in float32; the candidates of a setting take turns, and medians are given.
"""

from helpers_benchmarks import median_seconds, parser, print_table  # isort: skip -- quietens TensorFlow

import dataclasses
import pathlib
import sys
import tempfile

import ctranslate2
import keras
import keras_hub
import numpy as np
import tensorflow as tf
import torch

from keras_attn.export import export_ctranslate2
from keras_attn.models import Seq2SeqTransformer

sys.path.append(str(pathlib.Path(__file__).parents[1]))
from helpers_marian import marian  # isort: skip -- found now

VOCABULARY_SIZE, SOURCE_LENGTH, TARGET_LENGTH = 8000, 17, 16
START, END = 2, 3
PEERS = ("ctranslate2", "transformers", "keras_hub")


@dataclasses.dataclass
class Vocabulary:
    """As much of a tokenizer as an export asks for."""

    vocabulary_size: int = VOCABULARY_SIZE
    pad_token_id: int = 0
    unknown_token_id: int = 1
    start_token_id: int = START
    end_token_id: int = END

    def token_strings(self, token_ids):
        return [f"t{token_id}" for token_id in token_ids]

    def save(self, folder):
        folder.mkdir()


def make_model(size, dtype="float32"):
    """A model of the preset whose weights are always the same, and to which END never seems likely."""
    keras.utils.set_random_seed(1)
    model = Seq2SeqTransformer.from_preset(size, VOCABULARY_SIZE, max_sequence_length=64, dtype=dtype)
    embeddings = model.target_embedding.token.embeddings
    embeddings.assign(keras.ops.concatenate([embeddings[:END], 0 * embeddings[:1], embeddings[END + 1 :]]))
    return model


def ours(model, source, num_beams, jit_compile):
    generate = tf.function(
        lambda ids: model.generate(ids, START, END, num_beams=num_beams, max_length=TARGET_LENGTH),
        input_signature=None if jit_compile else [tf.TensorSpec([None, None], tf.int32)],
        jit_compile=jit_compile,
        autograph=False,
    )
    source = tf.constant(source, tf.int32)
    return lambda: generate(source).numpy()


def of_ctranslate2(folder, source, num_beams, inter_threads):
    translator = ctranslate2.Translator(
        str(folder), inter_threads=inter_threads, intra_threads=2 // inter_threads
    )
    tokens = [Vocabulary().token_strings(row[:-1]) for row in source]  # it adds END itself
    rows = -(-len(source) // inter_threads)

    def translate():
        results = translator.translate_batch(
            tokens,
            beam_size=num_beams,
            max_batch_size=rows,
            max_decoding_length=TARGET_LENGTH,
            min_decoding_length=TARGET_LENGTH,
        )
        return np.array([[int(token[1:]) for token in result.hypotheses[0]] for result in results])

    return translate


def of_transformers(model, source, num_beams):
    twin = marian(model, START, END)
    twin.generation_config.update(bad_words_ids=None)
    source = torch.tensor(source)

    def generate():
        with torch.inference_mode():
            return twin.generate(
                source,
                attention_mask=torch.ones_like(source),
                num_beams=num_beams,
                do_sample=False,
                min_new_tokens=TARGET_LENGTH,
                max_new_tokens=TARGET_LENGTH,
            ).numpy()[:, 1:]

    return generate


def of_keras_hub(model, source, num_beams):
    block = model.encoder_blocks[0]
    backbone = keras_hub.models.BartBackbone(
        vocabulary_size=VOCABULARY_SIZE,
        num_layers=len(model.encoder_blocks),
        num_heads=block.self_attention_layer.num_heads,
        hidden_dim=model.hidden_dim,
        intermediate_dim=block.feed_forward_layer.intermediate_dim,
        max_sequence_length=64,
    )
    bart = keras_hub.models.BartSeq2SeqLM(backbone, preprocessor=None)
    sampler = "greedy" if num_beams == 1 else keras_hub.samplers.BeamSampler(num_beams=num_beams)
    bart.compile(sampler=sampler)
    prompt = np.zeros((len(source), TARGET_LENGTH + 1), "int32")
    prompt[:, 0] = START
    inputs = {
        "encoder_token_ids": source,
        "encoder_padding_mask": np.ones_like(source, dtype=bool),
        "decoder_token_ids": prompt,
        "decoder_padding_mask": prompt != 0,
    }
    return lambda: np.asarray(bart.generate(inputs, stop_token_ids=None)["decoder_token_ids"])[:, 1:]


def candidates(models, folder, source, num_beams, peers):
    model, half = models
    found = {
        "ours, XLA": ours(model, source, num_beams, jit_compile=True),
        "ours, XLA, bfloat16": ours(half, source, num_beams, jit_compile=True),
        "ours, as served": ours(model, source, num_beams, jit_compile=False),
        "ours, as served, bfloat16": ours(half, source, num_beams, jit_compile=False),
        "CTranslate2, 1 x 2 threads": of_ctranslate2(folder, source, num_beams, 1),
    }
    if len(source) > 1:
        found["CTranslate2, 2 x 1 threads"] = of_ctranslate2(folder, source, num_beams, 2)
    if "transformers" in peers:
        found["transformers"] = of_transformers(model, source, num_beams)
    if "keras_hub" in peers:
        found["KerasHub"] = of_keras_hub(model, source, num_beams)
    return found


def check(found):
    """Everybody writes as many tokens; those with our weights write ours, but for ties and rounding."""
    answers = {name: generate() for name, generate in found.items()}
    expected = answers["ours, as served"]
    for name, token_ids in answers.items():
        assert token_ids.shape == expected.shape, (name, token_ids.shape)
        assert END not in token_ids, name
        if name != "KerasHub" and "bfloat16" not in name:
            agreement = (token_ids == expected).all(axis=1).mean()
            assert agreement > 0.9, (name, agreement)


def main():
    options = parser(__doc__.splitlines()[0], rounds=7)
    options.add_argument("--sizes", nargs="+", choices=["tiny", "base"], default=["tiny", "base"])
    options.add_argument("--batches", type=int, nargs="+", default=[1, 64])
    options.add_argument("--beams", type=int, nargs="+", default=[1, 4])
    options.add_argument("--peers", nargs="+", choices=PEERS, default=PEERS)
    options = options.parse_args()
    torch.set_num_threads(2)
    rows = []
    for size in options.sizes:
        models = make_model(size), make_model(size, "mixed_bfloat16")
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder, "ctranslate2")
            export_ctranslate2(folder, models[0], Vocabulary(), Vocabulary())
            for batch_size in options.batches:
                source = np.random.default_rng(1).integers(4, VOCABULARY_SIZE, (batch_size, SOURCE_LENGTH))
                source[:, -1] = END
                for num_beams in options.beams:
                    found = candidates(models, folder, source, num_beams, options.peers)
                    check(found)
                    seconds = median_seconds(found, options.rounds)
                    best = min(value for name, value in seconds.items() if name.startswith("CTranslate2"))
                    rows += [
                        [
                            size,
                            batch_size,
                            num_beams,
                            name,
                            f"{batch_size / value:.1f}",
                            f"{best / value:.2f}",
                        ]
                        for name, value in seconds.items()
                    ]
                    print(*rows[-len(seconds) :], sep="\n", file=sys.stderr, flush=True)
    versions = ", ".join(f"{x.__name__} {x.__version__}" for x in (ctranslate2, torch, keras_hub))
    print_table(
        f"Decoding of {TARGET_LENGTH} tokens, V = {VOCABULARY_SIZE}: sentences a second, medians of {options.rounds}. "
        f"{versions}",
        ["size", "batch", "beams", "engine", "sentences/s", "x CTranslate2"],
        rows,
    )


if __name__ == "__main__":
    main()
