"""Sentences a second of decoding, against CTranslate2, transformers and KerasHub, each doing the same work.

The weights are random and the same for all (but KerasHub's, whose BART of the same size has its own), the sentences have
17 tokens, the last END, and every answer has exactly 16: END has no chance. Every peer has two threads, in the better arrangement;
with `--cores 1`, one thread on one processor. "As served" is a SavedModel in a session, which is how TF Serving runs it; `--before CHECKOUT`
adds those that another checkout of this library saves, of the same weights. The ratios are to CTranslate2 in float32 and, if it is among the peers, in
int8; the candidates of a setting take turns of `--least-seconds`, and medians are given.
"""

from helpers_benchmarks import median_seconds, parser, print_table  # isort: skip -- quietens TensorFlow

import dataclasses
import os
import pathlib
import subprocess
import sys
import tempfile

import ctranslate2
import keras_hub
import numpy as np
import tensorflow as tf
import torch
from helpers_decoding import (
    END,
    START,
    TARGET_LENGTH,
    VOCABULARY_SIZE,
    make_model,
    make_source,
    of_transformers,
)

from keras_attn.export import export_ctranslate2
from keras_attn.models import quantized_copy
from keras_attn.ops import inference_scope

PEERS = ("ctranslate2", "ctranslate2_int8", "transformers", "keras_hub")


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


def with_xla(model, source, num_beams):
    from keras_attn.tasks.batches import compiled_with_xla  # the checkout of `--before` may not have it

    generate = compiled_with_xla(_generate(model, num_beams), frozen=model)
    source = tf.constant(source, tf.int32)
    generate = generate.get_concrete_function(source)  # a server has no Python that looks for the graph
    return lambda: generate(source).numpy()


def _generate(model, num_beams):
    def generate(ids):
        with inference_scope():
            return model.generate(ids, START, END, num_beams=num_beams, max_length=TARGET_LENGTH)

    return generate


def save(folder, model, num_beams):
    """Saves a model's answers as a SavedModel with one signature."""
    signature = [tf.TensorSpec([None, None], tf.int32, name="ids")]
    generate = tf.function(_generate(model, num_beams), signature, autograph=False)
    module = tf.Module()
    module.weights = [weight.value for weight in model.weights]
    named = tf.function(lambda ids: {"answers": generate(ids)}, signature, autograph=False)
    tf.saved_model.save(module, str(folder), signatures={"serving_default": named})


def as_served(folder, source, cores):
    """A SavedModel in a session, as TF Serving runs it."""
    with tf.Graph().as_default() as graph:
        session = tf.compat.v1.Session(
            config=tf.compat.v1.ConfigProto(
                intra_op_parallelism_threads=cores, inter_op_parallelism_threads=cores
            )
        )
        loaded = tf.compat.v1.saved_model.load(session, ["serve"], str(folder))
        signature = loaded.signature_def["serving_default"]
        inputs = graph.get_tensor_by_name(signature.inputs["ids"].name)
        answers = graph.get_tensor_by_name(signature.outputs["answers"].name)
    generate = session.make_callable(answers, [inputs])
    return lambda: generate(source)


def models_of(size, quantizations):
    models = {"": make_model(size)}
    return models | {f", {mode}": quantized_copy(models[""], mode) for mode in quantizations}


def save_all(folder, size, options):
    """Saves what is measured as served; each folder's name has the number of beams and that of the quantisation."""
    for name, model in models_of(size, options.quantizations).items():
        for num_beams in options.beams:
            save(folder / f"{num_beams}{name}", model, num_beams)


def save_by_checkout(folder, size, options):
    """The same, by the library of `--before`, in another process."""
    command = [
        sys.executable,
        __file__,
        "--save",
        folder,
        "--sizes",
        size,
        "--beams",
        *map(str, options.beams),
    ]
    checkout = str(pathlib.Path(options.before).resolve())
    environment = {**os.environ, "PYTHONPATH": checkout}
    subprocess.run(
        [*command, "--quantizations", *options.quantizations], env=environment, cwd=checkout, check=True
    )


def of_ctranslate2(folder, source, num_beams, inter_threads, threads=2, compute_type="float32"):
    translator = ctranslate2.Translator(
        str(folder),
        inter_threads=inter_threads,
        intra_threads=threads // inter_threads,
        compute_type=compute_type,
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


def candidates(models, folder, source, num_beams, options):
    found, peers, threads = {}, options.peers, options.cores
    for name, model in models.items():
        if f"ours, XLA{name}" not in options.without:
            found[f"ours, XLA{name}"] = with_xla(model, source, num_beams)
        found[f"ours, as served{name}"] = as_served(folder / "now" / f"{num_beams}{name}", source, threads)
        if options.before is not None:
            found[f"before, as served{name}"] = as_served(
                folder / "before" / f"{num_beams}{name}", source, threads
            )
    for kind in ("float32", *(["int8"] if "ctranslate2_int8" in peers else [])):
        for parts in (1, 2) if len(source) > 1 and threads > 1 else (1,):
            name = f"CTranslate2 {kind}, {parts} x {threads // parts} threads"
            found[name] = of_ctranslate2(folder / "ctranslate2", source, num_beams, parts, threads, kind)
    if "transformers" in peers:
        found["transformers"] = of_transformers(models[""], source, num_beams)
    if "keras_hub" in peers:
        found["KerasHub"] = of_keras_hub(models[""], source, num_beams)
    return {name: value for name, value in found.items() if name not in options.without}


def check(found):
    """Everybody writes as many tokens; those with our weights write ours, but for ties and rounding."""
    answers = {name: generate() for name, generate in found.items()}
    expected = answers["ours, as served"]
    for name, token_ids in answers.items():
        assert token_ids.shape == expected.shape, (name, token_ids.shape)
        assert END not in token_ids, name
        agreement = (token_ids == expected).all(axis=1).mean()
        if name == "KerasHub":
            continue
        if "bfloat16" in name or "int8" in name:
            print(f"{name}: {agreement:.0%} of the answers are those of float32", file=sys.stderr)
        else:
            assert agreement > 0.9, (name, agreement)


def main():
    options = parser(__doc__.splitlines()[0], rounds=7)
    options.add_argument("--sizes", nargs="+", choices=["tiny", "base"], default=["tiny", "base"])
    options.add_argument("--batches", type=int, nargs="+", default=[1, 64])
    options.add_argument("--beams", type=int, nargs="+", default=[1, 4])
    options.add_argument("--peers", nargs="+", choices=PEERS, default=PEERS)
    options.add_argument("--cores", type=int, choices=[1, 2], default=2)
    options.add_argument("--least-seconds", type=float, default=0.2, help="of a turn; 0 for one call a turn")
    options.add_argument("--quantizations", nargs="*", default=["bfloat16", "int8"])
    options.add_argument("--without", nargs="*", default=[], help="candidates to leave out, by name")
    options.add_argument("--before", help="the folder of another checkout of this library")
    options.add_argument(
        "--save", help="only save the SavedModels of the first size to this folder, as `--before` does"
    )
    options = options.parse_args()
    if options.save is not None:
        save_all(pathlib.Path(options.save), options.sizes[0], options)
        return
    torch.set_num_threads(options.cores)
    if options.cores == 1:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)
    rows = []
    for size in options.sizes:
        models = models_of(size, options.quantizations)
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            export_ctranslate2(folder / "ctranslate2", models[""], Vocabulary(), Vocabulary())
            save_all(folder / "now", size, options)
            if options.before is not None:
                save_by_checkout(folder / "before", size, options)
            for batch_size in options.batches:
                source = make_source(batch_size)
                for num_beams in options.beams:
                    found = candidates(models, folder, source, num_beams, options)
                    check(found)
                    seconds = median_seconds(found, options.rounds, least_seconds=options.least_seconds)
                    best = [
                        min((value for name, value in seconds.items() if name.startswith(peer)), default=None)
                        for peer in ("CTranslate2 float32", "CTranslate2 int8")
                    ]
                    rows += [
                        [
                            size,
                            batch_size,
                            num_beams,
                            name,
                            f"{batch_size / value:.1f}",
                            *("-" if of_best is None else f"{of_best / value:.2f}" for of_best in best),
                        ]
                        for name, value in seconds.items()
                    ]
                    print(*rows[-len(seconds) :], sep="\n", file=sys.stderr, flush=True)
    versions = ", ".join(f"{x.__name__} {x.__version__}" for x in (ctranslate2, torch, keras_hub))
    print_table(
        f"Decoding of {TARGET_LENGTH} tokens, V = {VOCABULARY_SIZE}: sentences a second, medians of {options.rounds}. "
        f"{versions}",
        ["size", "batch", "beams", "engine", "sentences/s", "x CTranslate2", "x its int8"],
        rows,
    )


if __name__ == "__main__":
    main()
