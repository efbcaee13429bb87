"""What a trained translator costs and gives on one core: BLEU against sentences a second, as a table and a picture.

python tests/benchmarks/front.py SOURCES REFERENCES --translators NAME=FOLDER ... [--shortlists NAME=FILE ...] --picture FILE

Every candidate translates the whole file from strings to strings, sorted by length, in batches of 64, on one thread of one
core: our translator as a graph that runs op by op, as TF Serving runs it, and compiled with XLA, in each quantisation;
CTranslate2 with the same weights. Candidates take turns; the first pass, in which XLA compiles, is not counted.
"""

from helpers_benchmarks import median_seconds, parser, print_table  # isort: skip -- quietens TensorFlow

import functools
import json
import os
import pathlib
import sys
import tempfile

import ctranslate2
import sacrebleu
import tensorflow as tf
from corpus import BATCH_SIZE, with_dtype

from keras_attn import Translator
from keras_attn.text import as_utf8

MARKERS = {"as served": "o", "XLA": "s", "CTranslate2": "^"}


class Engine:
    """CTranslate2 with the weights of a translator, from strings to strings by the tokenizers of that translator."""

    def __init__(self, folder, translator, compute_type, num_beams, use_vmap):
        self.engine = ctranslate2.Translator(
            str(folder), inter_threads=1, intra_threads=1, compute_type=compute_type
        )
        self.source, self.target = translator.source_tokenizer, translator.target_tokenizer
        # Tables: asking the tokenizers for the strings of each sentence takes as long as translating it.
        self.strings = self.source.token_strings(range(self.source.vocabulary_size))
        strings = self.target.token_strings(range(self.target.vocabulary_size))
        self.ids = {string: number for number, string in enumerate(strings)}
        self.options = {
            "beam_size": num_beams,
            "length_penalty": translator.length_penalty,
            "max_decoding_length": translator.max_length,
            "max_batch_size": BATCH_SIZE,
            "use_vmap": use_vmap,
        }

    def __call__(self, texts):
        tokens = [[self.strings[number] for number in ids] for ids in self.source.encode(as_utf8(texts))]
        found = self.engine.translate_batch(tokens, **self.options)
        return self.target.decode([[self.ids[token] for token in result.hypotheses[0]] for result in found])


def candidates(translator, shortlist, num_beams, folder):
    """{(engine, quantisation): function of texts}."""

    def ours(given):
        return functools.partial(given, num_beams=num_beams, batch_size=BATCH_SIZE, num_workers=1)

    found = {}
    for engine, xla in (("as served", False), ("XLA", True)):
        whole = with_dtype(translator, "float32", xla).replaced(length_penalty=translator.length_penalty)
        found[engine, "float32"] = ours(whole)
        for mode in ("bfloat16", "int8"):
            found[engine, mode] = ours(whole.quantized(mode, xla=xla))
        if shortlist and not xla:
            found[engine, "float32, shortlist"] = ours(whole.replaced(shortlist=shortlist))
    listing = with_dtype(translator, "float32", False).replaced(shortlist=shortlist)
    listing = listing.replaced(length_penalty=translator.length_penalty)
    exported = listing.export_model(folder, "ctranslate2")
    for kind in ("float32", "int8"):
        found["CTranslate2", kind] = Engine(exported, listing, kind, num_beams, use_vmap=False)
    if shortlist:
        for kind in ("float32", "int8"):
            found["CTranslate2", f"{kind}, shortlist"] = Engine(exported, listing, kind, num_beams, True)
    return found


def draw(points, path):
    """A picture of points: dicts with model, engine, quantization, speed and bleu."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 5.5), layout="constrained")
    models = list(dict.fromkeys(point["model"] for point in points))
    front = [
        point
        for point in points
        if not any(
            (other["speed"] > point["speed"] and other["bleu"] >= point["bleu"])
            or (other["speed"] >= point["speed"] and other["bleu"] > point["bleu"])
            for other in points
        )
    ]
    front.sort(key=lambda point: point["speed"])
    axes.plot(
        *zip(*[(point["speed"], point["bleu"]) for point in front]),
        "-",
        color="0.8",
        lw=3,
        zorder=0,
        label="front",
    )
    for number, model in enumerate(models):
        for engine, marker in MARKERS.items():
            of_model = [p for p in points if (p["model"], p["engine"]) == (model, engine)]
            if not of_model:
                continue
            axes.scatter(
                *zip(*[(p["speed"], p["bleu"]) for p in of_model]),
                marker=marker,
                color=f"C{number}",
                facecolors="none" if engine == "CTranslate2" else None,
                label=f"{model}, {engine}",
            )
            for p in of_model:
                axes.annotate(
                    p["quantization"],
                    (p["speed"], p["bleu"]),
                    xytext=(4, 3),
                    textcoords="offset points",
                    fontsize=7,
                )
    axes.set_xscale("log")
    axes.set_xlabel("sentences a second on one core, strings to strings")
    axes.set_ylabel("BLEU")
    axes.grid(alpha=0.3, which="both")
    axes.legend(fontsize=7)
    figure.savefig(path, dpi=110)


def main():
    options = parser(__doc__.splitlines()[0], rounds=2)
    options.add_argument("sources")
    options.add_argument("references")
    options.add_argument("--translators", nargs="+", required=True, metavar="NAME=FOLDER")
    options.add_argument("--shortlists", nargs="*", default=[], metavar="NAME=FILE")
    options.add_argument("--num-beams", type=int, default=1)
    options.add_argument("--bleu-tokenize", default="13a")
    options.add_argument("--limit", type=int, help="sentences of the file that are timed; BLEU is of all")
    options.add_argument("--picture", metavar="FILE")
    options.add_argument("--points", metavar="FILE", help="JSON, which a further run adds to")
    options = options.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    sources, references = (
        pathlib.Path(path).read_text(encoding="utf-8").splitlines()
        for path in (options.sources, options.references)
    )
    shortlists = dict(pair.split("=", 1) for pair in options.shortlists)
    points = []
    if options.points and pathlib.Path(options.points).exists():
        points = json.loads(pathlib.Path(options.points).read_text(encoding="utf-8"))
    for name, folder in (pair.split("=", 1) for pair in options.translators):
        with tempfile.TemporaryDirectory() as engine:
            found = candidates(
                Translator.load(folder),
                shortlists.get(name),
                options.num_beams,
                pathlib.Path(engine, "engine"),
            )
            bleus = {
                key: sacrebleu.corpus_bleu(
                    translate(sources), [references], tokenize=options.bleu_tokenize, force=True
                ).score
                for key, translate in found.items()
            }
            timed = sources[: options.limit]
            seconds = median_seconds(
                {key: functools.partial(translate, timed) for key, translate in found.items()}, options.rounds
            )
        for (engine, quantization), value in seconds.items():
            points.append(
                {
                    "model": name,
                    "engine": engine,
                    "quantization": quantization,
                    "num_beams": options.num_beams,
                    "speed": round(len(timed) / value, 1),
                    "bleu": round(bleus[engine, quantization], 2),
                }
            )
            print(points[-1], file=sys.stderr, flush=True)
        if options.points:
            pathlib.Path(options.points).write_text(json.dumps(points, indent=1), encoding="utf-8")
    print_table(
        f"{len(sources)} sentences of {options.sources}, one core, medians of {options.rounds}. "
        f"ctranslate2 {ctranslate2.__version__}",
        ["model", "engine", "quantization", "beams", "sentences/s", "BLEU"],
        [list(point.values()) for point in points],
    )
    if options.picture:
        draw(points, options.picture)


if __name__ == "__main__":
    main()
