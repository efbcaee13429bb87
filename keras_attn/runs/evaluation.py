"""How good a translator or a language model is, and what to say of a low score."""

import collections
import dataclasses
import math

import keras
import numpy as np
import tensorflow as tf

from keras_attn.data import consecutive_windows
from keras_attn.tasks.other_backends import function_of_arrays
from keras_attn.terminal import counted
from keras_attn.training import corpus_bleu, corpus_chrf, exact_match, token_negative_log_likelihood
from keras_attn.training.metrics import check_bleu_tokenizer

# References look tokenised if more than this share of them ends with a full stop that stands apart.
_MOST_TOKENISED = 0.1
_WINDOWS_PER_BATCH = 128
# More than any token has.
_CHARACTERS_OF_A_TOKEN = 1000
# Scores of translations that are hardly related to the references: chrF of unrelated short texts of one language is up to 35.
_LOW = {"bleu": 10.0, "chrf": 40.0, "exact_match": 5.0}
FEW_PAIRS = 1000
FEW_UPDATES = 1000
_LOW_CORRELATION = 0.2
_ENOUGH_FOR_CORRELATION = 50


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
        decoding = "greedy"
        if self.num_beams > 1:
            decoding = f"beam {self.num_beams}, length penalty {self.length_penalty:g}"
        bleu = f"  BLEU {self.bleu:.2f}  {self.bleu_signature}"
        # sacrebleu's BLEU is 0 where not even a right translation has a run of 4 words.
        if self.bleu == 0 and self.exact_match > 0:
            bleu += " (no text has the 4 words that it needs)"
        lines = [
            f"{self.name}: {counted(self.num_pairs, 'pair')}, {decoding}",
            bleu,
            f"  chrF {self.chrf:.2f}  {self.chrf_signature}",
            f"  exact match {self.exact_match:.2f} %",
        ]
        if self.note:
            lines.append(f"  Note: {self.note}")
        return "\n".join(lines)


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
    if num_beams is None:
        num_beams = translator.num_beams
    if length_penalty is None:
        length_penalty = translator.length_penalty
    translations = translator(pairs.sources, num_beams=num_beams, length_penalty=length_penalty)
    return evaluation_of(translations, pairs, num_beams, length_penalty, bleu_tokenize)


def evaluation_of(translations, pairs, num_beams, length_penalty, bleu_tokenize="13a"):
    """The `Evaluation` of translations of the sources of `pairs`; the other arguments as in `evaluate`."""
    bleu = corpus_bleu(translations, pairs.targets, tokenize=bleu_tokenize)
    chrf = corpus_chrf(translations, pairs.targets)
    note = ""
    if bleu_tokenize != "none":
        note = _note_on_tokenised(pairs.targets)
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
        note=note,
    )


def _note_on_tokenised(references):
    """A note on references that look tokenised, which 13a would tokenise again; an empty text on others."""
    count = sum(text.rstrip().endswith(" .") for text in references)
    if count <= _MOST_TOKENISED * len(references):
        return ""
    return (
        f"{count:,} of {len(references):,} references end with a full stop that stands apart, as in tokenised text. "
        'For its BLEU: --bleu-tokenize none, or `bleu_tokenize = "none"` in a recipe.'
    )


Advice = collections.namedtuple("Advice", ["text", "rows"])
Advice.__doc__ = """What to say of a low score: a text, and the rows of the page "When a run is bad" that are about its causes."""


def advice_on_a_low_score(evaluation, pairs, scores, num_updates):
    """The likely causes of a low score, as an `Advice`; None if the score is not low.

    Args:
        evaluation: `Evaluation` on the validation data.
        pairs: List of `TextPairs` that the model was trained on.
        scores: List of floats, the metric of validation after each epoch, higher being better.
        num_updates: Integer, the updates of the training.
    """
    if any(getattr(evaluation, name) >= low for name, low in _LOW.items()):
        return None
    causes = []
    rows = []
    num_pairs = sum(map(len, pairs))
    if num_pairs < FEW_PAIRS:
        training_pairs = counted(num_pairs, "training pair")
        verb = "is" if num_pairs == 1 else "are"
        causes.append(f"{training_pairs} {verb} few: a translator learns from thousands.")
        rows.append("few pairs")
    if not _lengths_agree(pairs):
        causes.append(
            "The lengths of sources and targets do not go together. Check that line i of one file is the translation "
            "of line i of the other."
        )
        rows.append("wrong pairs, shifted files")
    if num_updates < FEW_UPDATES:
        causes.append(f"{num_updates:,} updates are few. Give more epochs (--epochs) or time (--minutes).")
        rows.append("few updates")
    elif len(scores) > 1 and max(scores) == scores[-1]:
        causes.append("The score was still rising when training ended. Give more epochs (--epochs).")
    if not causes:
        causes.append(
            "The model may have learned its pairs by heart: compare `loss` and the scores in history.csv. More pairs "
            "help, and so may a smaller model or vocabulary."
        )
    title = f"These translations are hardly related to the references (BLEU {evaluation.bleu:.1f}). Likely causes:"
    return Advice("\n".join([title] + [f"  - {cause}" for cause in causes]), rows)


def _lengths_agree(pairs):
    """Whether longer sources have longer targets, or there are too few pairs to tell."""
    lengths = [
        (len(source), len(target))
        for part in pairs
        for source, target in zip(part.sources[:1000], part.targets[:1000])
    ]
    if len(lengths) < _ENOUGH_FOR_CORRELATION or np.ptp(lengths, axis=0).min() == 0:
        return True
    return np.corrcoef(np.array(lengths).T)[0, 1] >= _LOW_CORRELATION


@dataclasses.dataclass(frozen=True)
class TextEvaluation:
    """The mean cross-entropy of a text, by token and by byte.

    Args:
        name: String.
        num_tokens: Integer, the tokens that were predicted: all but the first.
        num_bytes: Integer, the bytes that were predicted.
        loss: Float, nats a token.
    """

    name: str
    num_tokens: int
    num_bytes: int
    loss: float

    @property
    def perplexity(self):
        """Of the tokens."""
        return math.exp(min(self.loss, 700.0))

    @property
    def nats_a_byte(self):
        """The loss of all tokens by the bytes of the text."""
        return self.loss * self.num_tokens / self.num_bytes

    @property
    def bits_a_byte(self):
        """The same in bits."""
        return self.nats_a_byte / math.log(2)

    def report(self):
        """A report of two lines."""
        per = "byte" if self.num_tokens == self.num_bytes else "token"
        return (
            f"{self.name}: loss {self.loss:.4f} nats a {per}, perplexity {self.perplexity:.3f}\n"
            f"  {self.nats_a_byte:.4f} nats a byte, {self.bits_a_byte:.4f} bits a byte; {self.num_tokens:,} tokens, "
            f"{self.num_bytes:,} bytes"
        )


def evaluate_text(generator, text):
    """Predicts each token of a text but the first from those before it in its window, and compares.

    A generator whose texts begin after END was trained on documents, one a line; the text is then taken as documents.

    Args:
        generator: A `TextGenerator`.
        text: `PlainText`.

    Returns:
        A `TextEvaluation`.

    Raises:
        ValueError: if the text has fewer than two tokens.

    Example:

    ```python
    generator = keras_attn.TextGenerator.load("runs/play")
    print(evaluate_text(generator, keras_attn.data.PlainText("To be, or not to be", "Hamlet")).report())
    ```
    """
    tokenizer = generator.tokenizer
    documents = generator.start_token_id == tokenizer.end_token_id
    token_ids = text_token_ids(tokenizer, text.text, documents=documents)
    check_predictable(token_ids, text.name)
    losses_of_batch = generator.cached("window_losses", lambda: window_losses(generator.model))
    losses = losses_of_windows(token_ids, generator.model, losses_of_batch)
    return text_evaluation(text, token_ids, tokenizer, losses)


def losses_of_windows(token_ids, model, losses_of_batch):
    """The summed loss of each window of a text, float64 (N,); `losses_of_batch` is the result of `window_losses`."""
    batches = consecutive_windows(token_ids, model.max_sequence_length, _WINDOWS_PER_BATCH)
    losses = [np.asarray(losses_of_batch(ids, labels), "float64") for ids, labels in batches]
    return np.concatenate(losses)


def text_evaluation(text, token_ids, tokenizer, losses):
    """The `TextEvaluation` of a text with these token ids, and with these losses of its windows."""
    count = len(token_ids) - 1
    _, _, stops = tokenizer.tokenize_with_offsets([text.text[:_CHARACTERS_OF_A_TOKEN]])
    num_bytes = len(text.text.encode("utf-8", "surrogatepass")) - stops.to_list()[0][0]
    return TextEvaluation(text.name, count, max(1, num_bytes), float(losses.sum()) / count)


def text_token_ids(tokenizer, text, *, documents):
    """The token ids of a text: a list.

    Args:
        tokenizer: A tokenizer.
        text: String.
        documents: Whether each line that is not blank is a document, with END after it.
    """
    if documents:
        # Only line feeds end lines: `str.splitlines` would cut a document at U+2028 or a form feed, too.
        lines = [line.removesuffix("\r") for line in text.split("\n") if line.strip()]
        token_ids = []
        for ids in tokenizer.encode(lines):
            token_ids += ids
            token_ids.append(tokenizer.end_token_id)
        return token_ids
    # Line by line, because a vocabulary of pieces takes long for one long text. No piece crosses a line break.
    return [token for ids in tokenizer.encode(text.splitlines(keepends=True)) for token in ids]


def check_predictable(token_ids, name):
    """Raises ValueError if there is nothing to predict."""
    if len(token_ids) < 2:
        raise ValueError(
            f"{name} must have two bytes or more, one of them to be predicted. Give a longer text. Received: {len(token_ids)}."
        )


def window_losses(model):
    """A function of windows (B, T) and their labels that returns the sums of the cross-entropies of their tokens, (B,)."""

    def losses(token_ids, labels):
        return keras.ops.sum(token_negative_log_likelihood(labels, model({"token_ids": token_ids})), axis=-1)

    if keras.backend.backend() != "tensorflow":
        return function_of_arrays(model, losses)
    return tf.function(losses, input_signature=[tf.TensorSpec([None, None], tf.int32)] * 2)
