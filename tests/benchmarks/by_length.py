"""How translators do as sentences grow: BLEU and target tokens a second by the length of the source."""

from helpers_benchmarks import median_seconds, parser, print_table  # isort: skip -- quietens TensorFlow

import functools
import pathlib

import sacrebleu

from keras_attn import Translator
from keras_attn.data import read_text_pairs

LONGEST = (8, 11, 14, 18, 10**6)  # words of the source, of each group


def groups(pairs):
    """{what the group is called: (sources, targets)}"""
    lengths, found, shortest = [len(source.split()) for source in pairs.sources], {}, 1
    for longest in LONGEST:
        rows = [row for row, length in enumerate(lengths) if shortest <= length <= longest]
        name = f"{shortest} to {longest}" if longest < LONGEST[-1] else f"{shortest} and more"
        found[name] = [pairs.sources[row] for row in rows], [pairs.targets[row] for row in rows]
        shortest = longest + 1
    return {"all": (pairs.sources[:], pairs.targets[:]), **found}


def main():
    options = parser(__doc__.splitlines()[0], rounds=3)
    options.add_argument("files", nargs=2, metavar="FILE", help="sources and references, one sentence a line")
    options.add_argument("--translators", nargs="+", required=True, metavar="FOLDER")
    options.add_argument("--bleu-tokenize", default="13a", help="none for text that is tokenised already")
    options.add_argument("--num-beams", type=int, default=5)
    options = options.parse_args()
    translators = {folder: Translator.load(folder) for folder in options.translators}
    rows = []
    for name, (sources, targets) in groups(read_text_pairs(*options.files)).items():
        candidates = {
            folder: functools.partial(translator, sources, num_beams=options.num_beams)
            for folder, translator in translators.items()
        }
        seconds = median_seconds(candidates, options.rounds)
        for folder, translator in translators.items():
            answers = candidates[folder]()
            score = sacrebleu.corpus_bleu(
                answers, [targets], tokenize=options.bleu_tokenize, force=True
            ).score
            tokens = sum(map(len, translator.target_tokenizer.encode(answers)))
            label = pathlib.Path(folder).parent.name
            rows.append([name, len(sources), label, f"{score:.2f}", f"{tokens / seconds[folder]:,.0f}"])
    print_table(
        f"{options.files[0]}, {options.num_beams} beams; medians of {options.rounds} rounds.",
        ["words", "sentences", "translator", "BLEU", "tokens/s"],
        rows,
    )


if __name__ == "__main__":
    main()
