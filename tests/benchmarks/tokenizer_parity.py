"""Tokenizers of every published kind in the graph, side by side with `tokenizers`, sentencepiece and transformers.

A row is a kind: a small tokenizer with the normalizer, pre-tokenizer, template and decoder of the real file. Its columns:
how many of the lines of the files, of 500 hard strings and of fuzzed strings have other ids (special tokens among them);
how many ids are decoded to another text; and how many streams of tokens, joined, are another text than the whole.

    python tests/benchmarks/tokenizer_parity.py --lines train.en train.de train.fr
    python tests/benchmarks/tokenizer_parity.py --kinds T5 Gemma --fuzzed 500

Differences of a class that docs/checkpoints.md describes are in brackets, with its name below the table. The command
fails if there are others. Files may be gzipped; without any, sentences are made.
"""

from helpers_benchmarks import print_table  # isort: skip -- it stands beside this file

import argparse
import collections
import gzip
import pathlib
import sys

import tensorflow as tf

sys.path.append(str(pathlib.Path(__file__).parents[1]))

from helpers_texts import fuzzed_texts, sentences
from helpers_tokenizer_parity import KINDS, before_end, hard_strings, named_difference, streamed

HEADER = ["kind", "pieces", "lines", "hard", "fuzzed", "decoded", "streamed"]
ROWS = 1000
# The texts of streams, and the most tokens of one.
STREAMS, LONGEST = 100, 50


class Row:
    """The cells of a kind, and what was found."""

    def __init__(self, name, pair):
        self.pair, self.cells = pair, [name, f"{pair.ours.vocabulary_size:,}"]
        self.named, self.others = collections.Counter(), []
        self._preprocess = tf.function(
            lambda texts: pair.ours.preprocess(texts)[0],
            input_signature=[tf.TensorSpec([None], tf.string)],
            autograph=False,
        )
        self.decoded_wrong = 0

    def add_texts(self, texts):
        """A cell for these texts."""
        wrong, named = 0, 0
        for start in range(0, len(texts), ROWS):
            batch = texts[start : start + ROWS]
            expected = self.pair.encode(batch)
            found = self._preprocess(tf.constant(batch)).to_list()
            for text, ids, ours in zip(batch, expected, found, strict=True):
                if ids == ours:
                    continue
                name = named_difference(self.pair, text, ids, ours)
                if name is None:
                    self.others.append((text, ids, ours))
                    wrong += 1
                else:
                    self.named[name] += 1
                    named += 1
            self._compare_decoded(expected)
        self.cells.append(_cell(wrong, named))

    def _compare_decoded(self, rows):
        rows = [before_end(self.pair.ours, ids) for ids in rows]
        theirs = self.pair.decode(rows)
        for ids, text, ours in zip(rows, theirs, self.pair.ours.decode(rows), strict=True):
            if text == ours:
                continue
            self.decoded_wrong += 1
            self.others.append((ids, text, ours))

    def add_streams(self, texts):
        rows = [ids[:LONGEST] for ids in self._preprocess(tf.constant(texts)).to_list()]
        wholes = self.pair.ours.decode(rows)
        pieces = [streamed(self.pair.ours, ids) for ids in rows]
        wrong = [
            (ids, whole, parts) for ids, whole, parts in zip(rows, wholes, pieces) if "".join(parts) != whole
        ]
        self.others += wrong
        self.cells += [str(self.decoded_wrong), str(len(wrong))]


def _cell(wrong, named):
    return f"{wrong} [{named}]" if named else str(wrong)


def lines_of(path):
    opener = gzip.open if path.endswith(".gz") else open
    with opener(path, "rt", encoding="utf-8", newline="\n") as file:
        return [line.removesuffix("\n") for line in file]


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--lines", nargs="+", default=[], metavar="FILE", help="a sentence a line")
    options.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), metavar="KIND")
    options.add_argument("--fuzzed", type=int, default=20000, help="how many fuzzed strings")
    options.add_argument(
        "--show", type=int, default=3, help="how many unnamed differences of a kind are shown"
    )
    options = options.parse_args()
    lines = [line for path in options.lines for line in lines_of(path)] or sentences(3000)
    trained_on = lines[:: max(1, len(lines) // 7000)] + sentences(1000)
    hard, fuzzed = hard_strings(), fuzzed_texts(options.fuzzed, seed=1)
    rows = []
    for kind in options.kinds:
        row = Row(kind, KINDS[kind](trained_on))
        for texts in (lines, hard, fuzzed):
            row.add_texts(texts)
        row.add_streams([*hard[: STREAMS // 2], *fuzzed[: STREAMS // 2]])
        print("  ".join(row.cells), dict(row.named) or "", file=sys.stderr, flush=True)
        for found in row.others[: options.show]:
            print("   ", *(repr(value)[:200] for value in found), sep="\n    ", file=sys.stderr, flush=True)
        rows.append(row)
    title = f"{len(lines):,} lines, {len(hard)} hard and {len(fuzzed):,} fuzzed strings: how many differ."
    print_table(title, HEADER, [row.cells for row in rows])
    named = sum((row.named for row in rows), collections.Counter())
    print("\nIn brackets: " + ("; ".join(f"{name} {count}" for name, count in named.items()) or "none") + ".")
    others = sum(len(row.others) for row in rows)
    print(f"{len(rows)} kinds, {others} differences of no named class.")
    return 1 if others else 0


if __name__ == "__main__":
    sys.exit(main())
