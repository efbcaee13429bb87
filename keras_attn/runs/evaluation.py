import dataclasses

from keras_attn.training import corpus_bleu, corpus_chrf, exact_match
from keras_attn.training.metrics import check_bleu_tokenizer

# A share of the references; a text of people has few such lines.
_MOST_TOKENISED = 0.1


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Scores of a translator on one set of pairs, in percent, with what is needed to reproduce them."""

    name: str
    num_pairs: int
    num_beams: int
    length_penalty: float
    bleu: float
    bleu_signature: str
    chrf: float
    chrf_signature: str
    exact_match: float
    note: str = ""

    def report(self):
        """A report of four lines, and one more if there is a note."""
        decoding = (
            "greedy"
            if self.num_beams == 1
            else f"beam {self.num_beams}, length penalty {self.length_penalty:g}"
        )
        # sacrebleu's BLEU is 0 where not even a right translation has a run of 4 words.
        is_short = self.bleu == 0 and self.exact_match > 0
        return (
            f"{self.name}: {self.num_pairs:,} pairs, {decoding}\n"
            f"  BLEU {self.bleu:.2f}  {self.bleu_signature}{' (no text has the 4 words that it needs)' * is_short}\n"
            f"  chrF {self.chrf:.2f}  {self.chrf_signature}\n"
            f"  exact match {self.exact_match:.2f} %"
            f"{self.note and f'{chr(10)}  Note: {self.note}'}"
        )


def evaluate(translator, pairs, num_beams=None, length_penalty=None, bleu_tokenize="13a"):
    """Translates the sources of `pairs` and compares with the targets, detokenised, as sacrebleu does.

    Args:
        translator: A `Translator`.
        pairs: `TextPairs`.
        num_beams, length_penalty: Replace the translator's own.
        bleu_tokenize: sacreBLEU's tokenizer; `"none"` for text that is tokenised already.

    Returns:
        An `Evaluation`.

    Example:

    ```python
    translator = keras_attn.Translator.load("runs/dates/translator")
    few = keras_attn.data.TextPairs(["4 July 2016"], ["2016-07-04"], "one date")
    print(evaluate(translator, few).report())
    ```
    """
    check_bleu_tokenizer(bleu_tokenize)  # before minutes of translating
    num_beams = translator.num_beams if num_beams is None else num_beams
    length_penalty = translator.length_penalty if length_penalty is None else length_penalty
    translations = translator(pairs.sources, num_beams=num_beams, length_penalty=length_penalty)
    return evaluation_of(translations, pairs, num_beams, length_penalty, bleu_tokenize)


def evaluation_of(translations, pairs, num_beams, length_penalty, bleu_tokenize="13a"):
    """The `Evaluation` of translations of the sources of `pairs`; the other arguments as in `evaluate`."""
    bleu, chrf = (
        corpus_bleu(translations, pairs.targets, tokenize=bleu_tokenize),
        corpus_chrf(translations, pairs.targets),
    )
    return Evaluation(
        name=pairs.name,
        num_pairs=len(pairs),
        num_beams=num_beams,
        length_penalty=length_penalty,
        bleu=bleu.score,
        bleu_signature=bleu.signature,
        chrf=chrf.score,
        chrf_signature=chrf.signature,
        exact_match=exact_match(translations, pairs.targets),
        note="" if bleu_tokenize == "none" else _note_on_tokenised(pairs.targets),
    )


def _note_on_tokenised(references):
    """What to say of references that look tokenised, whose tokens 13a would tokenise again; else an empty text."""
    count = sum(text.rstrip().endswith(" .") for text in references)
    if count <= _MOST_TOKENISED * len(references):
        return ""
    return (
        f"{count:,} of {len(references):,} references end with a full stop that stands apart, as in tokenised text. "
        'For its BLEU: --bleu-tokenize none, or `bleu_tokenize = "none"` in a recipe.'
    )
