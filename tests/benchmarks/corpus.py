"""A whole file through a trained translator, as it comes: sentences of all lengths, each ending where it ends.

python tests/benchmarks/corpus.py TRANSLATOR SOURCES [--references FILE]

Ours takes strings and returns strings, tokenization included; CTranslate2 is given the tokens of our tokenizer and returns
tokens. Both sort by length and decode batches of 64. A first pass, in which XLA compiles, is not counted.
"""

from helpers_benchmarks import median_seconds, parser, print_table  # isort: skip -- quietens TensorFlow

import functools
import pathlib
import tempfile

import ctranslate2
import keras

from keras_attn import Translator
from keras_attn.models import Seq2SeqTransformer
from keras_attn.text import as_utf8

BATCH_SIZE = 64


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
    model = Seq2SeqTransformer.from_config(with_policy(translator.model.get_config(), dtype))
    model.set_weights(translator.model.get_weights())
    return Translator(
        model,
        translator.source_tokenizer,
        translator.target_tokenizer,
        max_length=translator.max_length,
        jit_compile=jit_compile,
    )


def of_ctranslate2(folder, tokens, num_beams, max_length, inter_threads, compute_type):
    """A function without arguments that translates lists of tokens."""
    engine = ctranslate2.Translator(
        str(folder),
        inter_threads=inter_threads,
        intra_threads=2 // inter_threads,
        compute_type=compute_type,
    )
    return functools.partial(
        engine.translate_batch,
        tokens,
        beam_size=num_beams,
        max_batch_size=BATCH_SIZE,
        max_decoding_length=max_length,
    )


def bleu(translator, texts, references, num_beams):
    import sacrebleu

    return f"{sacrebleu.corpus_bleu(translator(texts, num_beams=num_beams), [references]).score:.2f}"


def main():
    options = parser(__doc__.splitlines()[0], rounds=1)
    options.add_argument("translator")
    options.add_argument("sources", help="a text file, one sentence a line")
    options.add_argument("--references", nargs=2, metavar=("SOURCES", "FILE"), help="for BLEU of ours")
    options.add_argument("--limit", type=int, help="translate so many sentences of the file")
    options.add_argument("--beams", type=int, nargs="+", default=[1, 4])
    options = options.parse_args()
    given = Translator.load(options.translator)
    texts = pathlib.Path(options.sources).read_text(encoding="utf-8").splitlines()[: options.limit]
    ours = {}
    for engine, xla in (("XLA", True), ("as served", False)):
        whole = with_dtype(given, "float32", xla)
        ours[f"ours, {engine}"] = whole
        for mode in ("bfloat16", "int8"):
            ours[f"ours, {engine}, {mode}"] = whole.quantized(mode, xla=xla)
    tokens = [
        given.source_tokenizer.token_strings(ids) for ids in given.source_tokenizer.encode(as_utf8(texts))
    ]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        engine = with_dtype(given, "float32", False).export_model(
            pathlib.Path(folder, "engine"), "ctranslate2"
        )
        for num_beams in options.beams:
            found = {
                name: functools.partial(translator, texts, num_beams=num_beams, batch_size=BATCH_SIZE)
                for name, translator in ours.items()
            }
            peers = {kind: [] for kind in ("float32", "int8")}
            for kind, names in peers.items():
                for threads in (1, 2):
                    names.append(f"CTranslate2 {kind}, {threads} x {2 // threads} threads")
                    found[names[-1]] = of_ctranslate2(
                        engine, tokens, num_beams, given.max_length, threads, kind
                    )
            seconds = median_seconds(found, options.rounds)
            best = [min(seconds[name] for name in names) for names in peers.values()]
            for name, value in seconds.items():
                score = ""
                if options.references and name in ours:
                    sources, references = (
                        pathlib.Path(path).read_text(encoding="utf-8").splitlines()
                        for path in options.references
                    )
                    score = bleu(ours[name], sources, references, num_beams)
                ratios = [f"{of_best / value:.2f}" for of_best in best]
                rows.append([num_beams, name, f"{len(texts) / value:.0f}", *ratios, score])
    print_table(
        f"{len(texts)} sentences of {options.sources}, keras {keras.__version__}, "
        f"ctranslate2 {ctranslate2.__version__}, rounds: {options.rounds}",
        ["beams", "engine", "sentences/s", "x CTranslate2", "x its int8", "BLEU"],
        rows,
    )


if __name__ == "__main__":
    main()
