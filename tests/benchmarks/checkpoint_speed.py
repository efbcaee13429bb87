"""Speed of models read from checkpoints' folders, against transformers, ONNX Runtime and CTranslate2.

`--model minilm`: the real all-MiniLM-L6-v2, from token ids to vectors of length 1. `--model gpt2` and `--model llama`: random
weights of GPT-2 small, and of a LLaMA of its size, 64 new tokens after prompts of 16, greedy; END has no chance. With
`--int8` our exports in int8 too, and CTranslate2 in int8.

Everybody else computes in float32, on one core with one thread, and the processor's time counts, not that of waiting for what else
the machine does. The candidates of a setting take turns, and medians are given. Of ONNX Runtime, and of transformers'
caches, the best arrangement counts.
"""

from helpers_benchmarks import median_seconds, parser, print_table  # isort: skip -- quietens TensorFlow

import itertools
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy as np
import tensorflow as tf
import torch
from helpers_checkpoint_peers import LanguageModelPeers, MiniLMPeers, minilm_folder, write_language_model

import keras_attn
from keras_attn.models import quantized_copy
from keras_attn.ops import compiled_scope, inference_scope
from keras_attn.tasks.batches import compiled_with_xla

OURS, OURS_XLA = "ours", "ours, XLA"


class MiniLM:
    """Sentences a second of all-MiniLM-L6-v2."""

    unit, batches, lengths = "sentences/s", [1, 32], [16, 128]

    def __init__(self, name, folder, int8):
        if int8:
            raise ValueError("`--int8` is for --model gpt2 and llama.")
        self.checkpoint = minilm_folder()
        self.peers = MiniLMPeers(self.checkpoint, folder)
        embedder = keras_attn.load(self.checkpoint)

        def vectors(token_ids, padding_mask):
            types = tf.zeros_like(token_ids)
            inputs = {"token_ids": token_ids, "padding_mask": padding_mask, "token_type_ids": types}
            return embedder.vectors(inputs)

        def compiled(*inputs):
            with compiled_scope():
                return vectors(*inputs)

        specs = [tf.TensorSpec([None, None], dtype) for dtype in (tf.int32, tf.bool)]
        self.graph = tf.function(vectors, specs, autograph=False)
        self.compiled = tf.function(compiled, jit_compile=True, autograph=False)

    def candidates(self, batch_size, length):
        token_ids = np.random.default_rng(1).integers(1000, 30_000, (batch_size, length))
        inputs = tf.constant(token_ids, tf.int32), tf.ones([batch_size, length], tf.bool)
        return {
            OURS: lambda: self.graph(*inputs).numpy(),
            OURS_XLA: lambda: self.compiled(*inputs).numpy(),
            **self.peers.candidates(token_ids),
        }

    def check(self, answers):
        for answer in answers.values():
            np.testing.assert_allclose(answer, answers[OURS], atol=2e-6)

    def work(self, batch_size):
        return batch_size


class LanguageModel:
    """New tokens a second of a decoder-only model."""

    unit, batches, lengths, new_tokens = "tokens/s", [1, 8], [16], 64

    def __init__(self, name, folder, int8):
        self.checkpoint = folder / name
        self.end_token_id = write_language_model(name, self.checkpoint)
        self.peers = LanguageModelPeers(self.checkpoint, folder, self.new_tokens, int8)
        model = keras_attn.huggingface.load_model(self.checkpoint)
        self.models = {"": model, **({", int8": quantized_copy(model, "int8")} if int8 else {})}

    def candidates(self, batch_size, length):
        prompts = np.random.default_rng(1).integers(1000, 30_000, (batch_size, length))
        found = {}
        for kind, model in self.models.items():
            found[OURS + kind], found[OURS_XLA + kind] = self._graphs(model, tf.constant(prompts, tf.int32))
        return {**found, **self.peers.candidates(prompts)}

    def _graphs(self, model, token_ids):
        """As the exports have them, without XLA and with it."""

        def generate(token_ids):
            mask = tf.ones_like(token_ids, tf.bool)
            with inference_scope():
                return model.generate(
                    token_ids, self.end_token_id, max_length=self.new_tokens, padding_mask=mask
                )

        graph = tf.function(generate, [tf.TensorSpec([None, token_ids.shape[1]], tf.int32)], autograph=False)
        compiled = compiled_with_xla(generate, frozen=model)
        return lambda: graph(token_ids).numpy(), lambda: compiled(token_ids).numpy()

    def check(self, answers):
        """Everybody writes as many tokens, and the same but for ties and rounding."""
        for name, answer in answers.items():
            assert answer.shape == answers[OURS].shape, name
            if "int8" in name:
                continue  # one other token, of weights at random, and all that follow are others
            agreement = (answer == answers[OURS]).mean()
            assert agreement > 0.9, (name, agreement)

    def work(self, batch_size):
        return batch_size * self.new_tokens


MODELS = {"minilm": MiniLM, "gpt2": LanguageModel, "llama": LanguageModel}


def rows_of(model, batch_size, length, rounds):
    """A row of the table for our candidates and the best one of each peer."""
    found = model.candidates(batch_size, length)
    model.check({name: candidate() for name, candidate in found.items()})
    seconds = median_seconds(found, rounds, time.process_time)
    peers = {}
    ours = [name for name in seconds if name.startswith(OURS)]
    for name in sorted(set(seconds) - set(ours), key=seconds.get):
        peers.setdefault(name.split(",")[0], name)
    for name, value in seconds.items():
        print(batch_size, length, name, f"{1000 * value:.2f} ms", file=sys.stderr, flush=True)
    speed = {name: f"{model.work(batch_size) / value:.1f}" for name, value in seconds.items()}
    names = [peers[peer] for peer in model.peers.names]
    return [
        [batch_size, length, name, speed[name], *(f"{seconds[peer] / seconds[name]:.2f}" for peer in names)]
        for name in (*ours, *names)
    ]


def print_commands(checkpoint):
    """Seconds from a folder to a verified SavedModel, and of `keras-attn info`, as the commands take them."""
    with tempfile.TemporaryDirectory() as folder:
        for command in (["info", checkpoint], ["export", checkpoint, f"{folder}/model", "--verify"]):
            start = time.perf_counter()
            program = "import sys, keras_attn_cli; sys.exit(keras_attn_cli.main())"
            subprocess.run(
                [sys.executable, "-c", program, *map(str, command)], check=True, capture_output=True
            )
            print(f"keras-attn {command[0]}: {time.perf_counter() - start:.1f} s")


def main():
    options = parser(__doc__.splitlines()[0], rounds=11)
    options.add_argument("--model", choices=list(MODELS), required=True)
    options.add_argument("--batches", type=int, nargs="+", help="default: 1 32 of minilm, 1 8 of the others")
    options.add_argument("--lengths", type=int, nargs="+", help="default: 16 128 of minilm, 16 of the others")
    options.add_argument("--int8", action="store_true")
    options = options.parse_args()
    torch.set_num_threads(1)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        model = MODELS[options.model](options.model, pathlib.Path(folder), options.int8)
        settings = itertools.product(options.batches or model.batches, options.lengths or model.lengths)
        rows = [row for setting in settings for row in rows_of(model, *setting, options.rounds)]
        print_table(
            f"{options.model}: {model.unit}, one thread, medians of {options.rounds}. {model.peers.versions}",
            ["batch", "tokens", "engine", model.unit, *(f"x {name}" for name in model.peers.names)],
            rows,
        )
        if options.model == "minilm":
            print_commands(model.checkpoint)


if __name__ == "__main__":
    main()
