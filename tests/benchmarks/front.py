"""What a trained translator costs and gives: BLEU against sentences a second, as a table and a picture.

python tests/benchmarks/front.py SOURCES REFERENCES --translators NAME=FOLDER ... [--shortlists NAME=FILE ...] --picture FILE

Every candidate translates the whole file from strings to strings, sorted by length, in batches of 64 or of the best of
`--batch-sizes`, on one thread of one core: our translator as a graph that runs op by op, as TF Serving runs it, and
compiled with XLA, in each quantisation; CTranslate2 with the same weights, unless they are those of an ensemble, which it
does not run. With `--cores 2`, ours translates two batches at a time, and CTranslate2 has the better of two translators
with a thread each and one with two threads. Candidates take turns; the first pass, in which XLA compiles, is not counted.
"""

from helpers_benchmarks import median_seconds, parser, print_table  # isort: skip -- quietens TensorFlow

import functools
import itertools
import json
import os
import pathlib
import sys
import tempfile

import ctranslate2
import sacrebleu
import tensorflow as tf

from keras_attn import Translator
from keras_attn.models import Ensemble
from keras_attn.text import as_utf8

MARKERS = {"as served": "o", "XLA": "s", "CTranslate2": "^"}


def with_policy(config, dtype):
    """A config in which every layer has this dtype policy."""
    if isinstance(config, (list, tuple)):
        return [with_policy(part, dtype) for part in config]
    if not isinstance(config, dict):
        return config
    if config.get("class_name") == "DTypePolicy":
        return {**config, "config": {"name": dtype}}
    return {name: with_policy(part, dtype) for name, part in config.items()}


def with_dtype(translator, dtype, jit_compile):
    """The translator with its model under another dtype policy."""
    model = type(translator.model).from_config(with_policy(translator.model.get_config(), dtype))
    model.set_weights(translator.model.get_weights())
    return Translator(
        model,
        translator.source_tokenizer,
        translator.target_tokenizer,
        max_length=translator.max_length,
        jit_compile=jit_compile,
    )


class Engine:
    """CTranslate2 with the weights of a translator, from strings to strings by the tokenizers of that translator."""

    def __init__(self, folder, translator, compute_type, num_beams, batch_size, use_vmap, threads):
        inter_threads, intra_threads = threads
        self.engine = ctranslate2.Translator(
            str(folder), inter_threads=inter_threads, intra_threads=intra_threads, compute_type=compute_type
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
            "max_batch_size": batch_size,
            "use_vmap": use_vmap,
        }

    def __call__(self, texts):
        tokens = [[self.strings[number] for number in ids] for ids in self.source.encode(as_utf8(texts))]
        found = self.engine.translate_batch(tokens, **self.options)
        return self.target.decode([[self.ids[token] for token in result.hypotheses[0]] for result in found])


def candidates(translator, shortlist, num_beams, batch_sizes, cores, folder):
    """{(engine, quantisation, batch size, threads of a translator): function of texts}."""
    found = {}

    def add(engine, quantization, given):
        for batch_size in batch_sizes:
            found[engine, quantization, batch_size, 1] = functools.partial(
                given, num_beams=num_beams, batch_size=batch_size, num_workers=cores
            )

    for engine, xla in (("as served", False), ("XLA", True)):
        whole = with_dtype(translator, "float32", xla).replaced(length_penalty=translator.length_penalty)
        of_modes = {
            "float32": whole,
            **{mode: whole.quantized(mode, xla=xla) for mode in ("bfloat16", "int8")},
        }
        for mode, of_mode in of_modes.items():
            add(engine, mode, of_mode)
            if shortlist:
                add(engine, f"{mode}, shortlist", of_mode.replaced(shortlist=shortlist))
    if isinstance(translator.model, Ensemble):
        return found  # CTranslate2 has no ensembles
    listing = with_dtype(translator, "float32", False).replaced(shortlist=shortlist)
    listing = listing.replaced(length_penalty=translator.length_penalty)
    exported = listing.export_model(folder, "ctranslate2")
    for use_vmap in (False, True) if shortlist else (False,):
        for kind in ("float32", "int8"):
            name = f"{kind}, shortlist" if use_vmap else kind
            for threads, batch_size in itertools.product(sorted({(cores, 1), (1, cores)}), batch_sizes):
                engine = Engine(exported, listing, kind, num_beams, batch_size, use_vmap, threads)
                found["CTranslate2", name, batch_size, threads[1]] = engine
    return found


def measured(found, sources, rounds):
    """{(engine, quantisation): (seconds, answers, batch size)}: those of the fastest of its candidates."""
    answers = {}

    def timed(key):
        def translate():
            answers[key] = found[key](sources)
            print(".", end="", file=sys.stderr, flush=True)

        return translate

    seconds = median_seconds({key: timed(key) for key in found}, rounds)
    best = {}
    for key in sorted(seconds, key=seconds.get):
        best.setdefault(key[:2], (seconds[key], answers[key], key[2]))
    return {key[:2]: best[key[:2]] for key in found}


def draw(points, cores, path):
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
                beams = f", {p['num_beams']} beams" if p["num_beams"] > 1 else ""
                axes.annotate(
                    p["quantization"] + beams,
                    (p["speed"], p["bleu"]),
                    xytext=(4, 3),
                    textcoords="offset points",
                    fontsize=7,
                )
    axes.set_xscale("log")
    axes.set_xlabel(f"sentences a second, strings to strings, cores: {cores}")
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
    options.add_argument("--batch-sizes", type=int, nargs="+", default=[64])
    options.add_argument("--cores", type=int, choices=[1, 2], default=1)
    options.add_argument("--bleu-tokenize", default="13a")
    options.add_argument("--limit", type=int, help="translate so many sentences of the file")
    options.add_argument("--quantizations", nargs="+", help="ours in these only, with or without a shortlist")
    options.add_argument(
        "--engines", nargs="+", default=["as served", "XLA", "CTranslate2"], help="of these engines only"
    )
    options.add_argument("--picture", metavar="FILE")
    options.add_argument("--points", metavar="FILE", help="JSON, which a further run adds to")
    options = options.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores])
    tf.config.threading.set_intra_op_parallelism_threads(options.cores)
    tf.config.threading.set_inter_op_parallelism_threads(options.cores)
    sources, references = (
        pathlib.Path(path).read_text(encoding="utf-8").splitlines()[: options.limit]
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
                options.batch_sizes,
                options.cores,
                pathlib.Path(engine, "engine"),
            )
            found = {
                key: value
                for key, value in found.items()
                if key[0] in options.engines
                and (
                    key[0] == "CTranslate2"
                    or options.quantizations is None
                    or key[1].split(",")[0] in options.quantizations
                )
            }
            results = measured(found, sources, options.rounds)
        of_peers = {key: found[0] for key, found in results.items() if key[0] == "CTranslate2"}
        for (engine, quantization), (seconds, answers, batch_size) in results.items():
            bleu = sacrebleu.corpus_bleu(answers, [references], tokenize=options.bleu_tokenize, force=True)
            ratios = {
                title: round(of_peers["CTranslate2", kind] / seconds, 2) if of_peers else None
                for title, kind in (("x CTranslate2", "float32"), ("x its int8", "int8"))
            }
            points.append(
                {
                    "model": name,
                    "engine": engine,
                    "quantization": quantization,
                    "num_beams": options.num_beams,
                    "batch_size": batch_size,
                    "speed": round(len(sources) / seconds, 1),
                    **ratios,
                    "bleu": round(bleu.score, 2),
                }
            )
            print(points[-1], file=sys.stderr, flush=True)
        if options.points:
            pathlib.Path(options.points).write_text(json.dumps(points, indent=1), encoding="utf-8")
    print_table(
        f"{len(sources)} sentences of {options.sources}, cores: {options.cores}, medians of {options.rounds}. "
        f"ctranslate2 {ctranslate2.__version__}",
        [
            "model",
            "engine",
            "quantization",
            "beams",
            "batch",
            "sentences/s",
            "x CTranslate2",
            "x its int8",
            "BLEU",
        ],
        [list(point.values()) for point in points],
    )
    if options.picture:
        draw(points, options.cores, options.picture)


if __name__ == "__main__":
    main()
