"""A shortlist from training data, and what it changes on other data."""

import dataclasses

import numpy as np

from keras_attn.tasks import make_shortlist, read_links
from keras_attn.training import corpus_bleu

_PAIRS_A_PIECE = 2000


def shortlist_of(translator, pairs, alignments=None, num_anywhere=100, num_of_source=50):
    """The `Shortlist` of training pairs.

    Args:
        translator: `Translator`.
        pairs: `TextPairs`.
        alignments: File of the pairs' word alignments in the Pharaoh format, by fast_align or eflomal for instance; or None
            for those by the translator's own attention, `Translator.align`.
        num_anywhere, num_of_source: As in `keras_attn.tasks.make_shortlist`.

    Raises:
        ValueError: if the file is not one of these pairs.

    Example:

    ```python
    translator = keras_attn.Translator.load("runs/dates/translator")
    few = keras_attn.data.TextPairs(["4 July 2016"], ["2016-07-04"], "one date")
    shortlist = shortlist_of(translator, few)
    print(evaluate_shortlist(translator, few, shortlist).report())
    ```
    """
    if alignments is None:
        links = _own_links(translator, pairs)
    else:
        links = read_links(alignments)
        if len(links) != len(pairs):
            raise ValueError(
                f"{alignments} must have a line for each pair: align the same files again. Received: {len(links):,} lines "
                f"for {len(pairs):,} pairs of {pairs.name}."
            )
    return make_shortlist(translator, links, pairs.sources, pairs.targets, num_anywhere, num_of_source)


def _own_links(translator, pairs):
    for first in range(0, len(pairs), _PAIRS_A_PIECE):
        rows = slice(first, first + _PAIRS_A_PIECE)
        for alignment in translator.align(pairs.sources[rows], pairs.targets[rows]):
            yield alignment.links


@dataclasses.dataclass(frozen=True)
class ShortlistReport:
    """What a shortlist changes on one set of pairs.

    Args:
        name: String, of the pairs.
        num_pairs, num_beams, num_equal: Integers; the last, how many translations are equal to those of all tokens.
        bleu, bleu_of_all: Floats, with the shortlist and with all tokens.
        listed_share: Float, the share of the tokens of the translations with all tokens that are on the list of their source.
        mean_listed: Float, the tokens on a source's list.
        vocabulary_size: Integer.
    """

    name: str
    num_pairs: int
    num_beams: int
    num_equal: int
    bleu: float
    bleu_of_all: float
    listed_share: float
    mean_listed: float
    vocabulary_size: int

    def report(self):
        """A report of four lines."""
        return (
            f"{self.name}: {self.num_pairs:,} pairs, shortlist against all tokens, {self.num_beams} beams\n"
            f"  equal translations {self.num_equal:,} ({self.num_equal / self.num_pairs:.2%})\n"
            f"  BLEU {self.bleu:.2f} against {self.bleu_of_all:.2f} ({self.bleu - self.bleu_of_all:+.2f})\n"
            f"  {self.mean_listed:.0f} of {self.vocabulary_size:,} tokens are listed for a source; of the tokens chosen among "
            f"all, {self.listed_share:.2%} are listed"
        )


def evaluate_shortlist(
    translator, pairs, shortlist, num_beams=None, length_penalty=None, bleu_tokenize="13a"
):
    """The `ShortlistReport` of a translator on pairs.

    Args:
        translator: `Translator`.
        pairs: `TextPairs`.
        shortlist: `Shortlist`, or its file.
        num_beams, length_penalty, bleu_tokenize: As in `evaluate`.
    """
    search = {"num_beams": num_beams or translator.num_beams, "length_penalty": length_penalty}
    limited = translator.replaced(shortlist=shortlist)
    unlimited = translator.replaced(shortlist=None)
    translations = limited(pairs.sources, **search)
    expected = unlimited(pairs.sources, **search)
    tokenizer = translator.target_tokenizer
    lists = []
    for ids in translator.source_tokenizer.encode(pairs.sources):
        by_token = [limited.shortlist.by_source.get(token, ()) for token in ids]
        lists.append(set(limited.shortlist.anywhere).union(*by_token))
    is_listed = []
    for ids, listed_ids in zip(tokenizer.encode(expected), lists):
        is_listed += [token in listed_ids for token in ids]
    return ShortlistReport(
        name=pairs.name,
        num_pairs=len(pairs),
        num_beams=search["num_beams"],
        num_equal=sum(one == other for one, other in zip(translations, expected)),
        bleu=corpus_bleu(translations, pairs.targets, tokenize=bleu_tokenize).score,
        bleu_of_all=corpus_bleu(expected, pairs.targets, tokenize=bleu_tokenize).score,
        listed_share=float(np.mean(is_listed)) if is_listed else 1.0,
        mean_listed=float(np.mean(list(map(len, lists)))),
        vocabulary_size=tokenizer.vocabulary_size,
    )
