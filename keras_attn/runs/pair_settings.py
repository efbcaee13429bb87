"""Settings fitted to text pairs: the recipe of a run for which its user gives two files and nothing else.

The rules come from runs on data made by rules (200 to 20,000 pairs) and on Multi30k (29,000 pairs), each chosen on
validation data; docs/training.md has the table. Small vocabularies for little data are those of Sennrich and Zhang, 2019
(arXiv:1905.11901).
"""

import dataclasses
import math
import re

import numpy as np

from keras_attn.runs.data import as_corpora
from keras_attn.runs.evaluation import FEW_PAIRS
from keras_attn.runs.recipe import Recipe
from keras_attn.terminal import counted
from keras_attn.text import SentencePieceTokenizer

# The most lines that are read to learn what the data are like, evenly spaced.
_LINES_READ = 20_000
# Special ids and bytes, which every vocabulary with byte fallback holds.
_BASE_VOCABULARY = 4 + 256
_VALIDATIONS = 15
_MOST_WARMUP_STEPS = 1000
# BLEU is the geometric mean of the shares of runs of 1 to 4 words: 0 where no text has a run of 4.
_WORDS_FOR_BLEU = 4


@dataclasses.dataclass(frozen=True)
class _Scale:
    """What suits data of at most `pairs` training pairs.

    With `updates` training takes so many, and the learning rate falls to 0; with `passes` it goes so many times through
    the data.
    """

    pairs: float
    vocabulary_size: int
    max_tokens: int
    sizes: tuple  # layers of each side, model width, feed-forward width, heads, dropout
    learning_rate: float
    updates: int | None = None
    passes: int | None = None


_SCALES = (
    _Scale(1_000, 400, 512, (2, 96, 384, 4, 0.1), 0.003, updates=1_500),
    _Scale(5_000, 600, 512, (2, 96, 384, 4, 0.1), 0.003, updates=2_000),
    _Scale(25_000, 2_000, 1024, (2, 128, 512, 4, 0.1), 0.002, updates=4_000),
    _Scale(200_000, 8_000, 2048, (4, 128, 256, 4, 0.3), 0.002, passes=36),
    _Scale(1_000_000, 16_000, 4096, (6, 256, 1024, 4, 0.2), 0.001, passes=15),
    _Scale(math.inf, 32_000, 8192, (6, 512, 2048, 8, 0.1), 0.0007, passes=8),
)


@dataclasses.dataclass(frozen=True)
class FittedRecipe:
    """A recipe and why it is as it is.

    Args:
        recipe: `Recipe`.
        reasons: Dict from what was chosen to the reason, in the order in which they are shown.
        note: What the user should know before the training begins, or an empty text.
        start: The `Translator` that the run begins with, or None for fresh weights.
    """

    recipe: object
    reasons: dict
    note: str = ""
    start: object = None

    def report(self):
        """A block to read: a line for each choice, with its reason."""
        width = max(map(len, self.reasons))
        lines = ["Settings fitted to the data (options and --recipe replace them):"]
        lines += [f"  {name:{width}}  {reason}" for name, reason in self.reasons.items()]
        if self.note:
            lines.append(f"Note: {self.note}")
        return "\n".join(lines)


def fit_recipe(data, recipe=None, given=()):
    """Chooses the settings of a run from its data.

    Args:
        data: `DataSplits` of text pairs.
        recipe: `Recipe` that holds what is known already: the files, and the values of `given`. Defaults to the built-in
            `text_pairs`.
        given: Names of the fields of `recipe` that stay as they are.

    Returns:
        A `FittedRecipe`.

    Raises:
        ValueError: if the data cannot be learned from with what is given.

    Example:

    ```python
    words = ["one", "two", "three", "four", "five"]
    texts = [f"{a} {b}" for a in words for b in words]
    pairs = keras_attn.data.TextPairs(texts, [text.upper() for text in texts], "words")
    fitted = fit_recipe(DataSplits(pairs, pairs, None))
    print(fitted.report())
    ```
    """
    facts = PairFacts.of(data.train)
    scale = next(scale for scale in _SCALES if facts.num_pairs <= scale.pairs)
    choices = _PairChoices(recipe or Recipe.load("text_pairs"), given)
    choices.tokenizer(facts, scale, data.train)
    choices.model(facts, scale)
    choices.batches(facts, scale)
    choices.training(facts, scale)
    choices.metric(facts)
    note = ""
    if facts.num_pairs < FEW_PAIRS:
        note = f"{facts.num_pairs:,} training pairs are few. A translator learns from thousands."
    return FittedRecipe(choices.recipe, choices.reasons, note)


@dataclasses.dataclass(frozen=True)
class PairFacts:
    """What training pairs are like."""

    num_pairs: int
    tokens_a_pair: float  # of the longer side, an estimate
    longest: int  # characters of a line that hardly any line exceeds
    num_characters: int  # different ones
    words_a_target: float  # the median; a text without spaces is one word

    @classmethod
    def of(cls, pairs):
        corpora = as_corpora(pairs)
        num_pairs = sum(map(len, corpora))
        step = math.ceil(num_pairs / _LINES_READ)
        sources = [text for part in corpora for text in part.sources[::step]]
        targets = [text for part in corpora for text in part.targets[::step]]
        lengths = np.maximum(list(map(len, sources)), list(map(len, targets)))
        tokens = np.maximum(list(map(_num_tokens, sources)), list(map(_num_tokens, targets)))
        return cls(
            num_pairs=num_pairs,
            tokens_a_pair=float(tokens.mean()),
            longest=int(np.quantile(lengths, 0.999)),
            num_characters=len(set().union(*sources, *targets)),
            words_a_target=float(np.median([len(text.split()) for text in targets])),
        )


class Choices:
    """A recipe that grows, field by field, with the reasons."""

    def __init__(self, recipe, given):
        self.recipe = recipe
        self.given = set(given)
        self.reasons = {}

    def set(self, **fields):
        """Sets those fields that are not given."""
        self.recipe = self.recipe.replace(**self._open(fields))

    def set_also_none(self, **fields):
        """As `set`, which leaves a field as it is for None; here None is a value."""
        self.recipe = dataclasses.replace(self.recipe, **self._open(fields))

    def _open(self, fields):
        return {name: value for name, value in fields.items() if name not in self.given}

    def explain(self, name, text, *fields):
        """Notes the reason for a choice, and which of its `fields` the user has given."""
        given = [field for field in fields if field in self.given]
        if given:
            text = f"{text} ({','.join(given)} given)"
        self.reasons[name] = text

    def metric(self, facts):
        """Takes another metric than BLEU where targets have too few words for it."""
        is_open = "metric" not in self.given and self.recipe.metric == "bleu"
        if is_open and facts.words_a_target < _WORDS_FOR_BLEU:
            self.set(metric="chrf")
            self.explain(
                "score", f"chrF: most targets have fewer than {_WORDS_FOR_BLEU} words, too few for BLEU"
            )

    def check_warmup(self, total):
        """Raises ValueError if the warm-up is as long as the training of `total` updates."""
        if self.recipe.warmup_steps >= total:
            raise ValueError(
                f"The warm-up must be shorter than the training. Received: warmup_steps={self.recipe.warmup_steps}, and "
                f"{total:,} updates in {counted(self.recipe.epochs, 'epoch')}. Give fewer warm-up steps or more epochs."
            )


class _PairChoices(Choices):
    """The choices for text pairs."""

    def tokenizer(self, facts, scale, pairs):
        self.set(tokenizer="bpe", split_digits=True)
        if self.recipe.tokenizer == "bytes":
            self.explain("tokens", "bytes", "tokenizer")
            return
        wanted = max(scale.vocabulary_size, _BASE_VOCABULARY + facts.num_characters + 100)
        size = wanted
        why = f"{counted(facts.num_pairs, 'pair')}"
        if self.recipe.tokenizer in ("bpe", "unigram") and facts.num_pairs <= _LINES_READ:
            size = possible_vocabulary_size(_all_texts(pairs), wanted, self.recipe)
            if size < wanted:
                why += ", all that they can fill"
        self.set(vocabulary_size=size)
        self.explain(
            "vocabulary",
            f"{self.recipe.vocabulary_size:,} {self.recipe.tokenizer}: {why}",
            "vocabulary_size",
            "tokenizer",
        )

    def model(self, facts, scale):
        layers, hidden_dim, intermediate_dim, num_heads, dropout = scale.sizes
        longest = min(1024, max(64, 2 ** math.ceil(math.log2(max(facts.longest, 1)))))
        self.set(
            model={
                "num_encoder_layers": layers,
                "num_decoder_layers": layers,
                "hidden_dim": hidden_dim,
                "intermediate_dim": intermediate_dim,
                "num_heads": num_heads,
                "dropout": dropout,
                "normalize_first": True,
                "max_sequence_length": longest,
            }
        )
        arguments = self.recipe.model_arguments
        self.explain(
            "model",
            f"{arguments['num_encoder_layers']} + {arguments['num_decoder_layers']} layers of width "
            f"{arguments['hidden_dim']}, dropout {arguments.get('dropout', 0.1)}: {counted(facts.num_pairs, 'pair')}",
            "model",
        )
        self.explain(
            "lengths",
            f"up to {arguments.get('max_sequence_length', 512)} tokens: lines of {facts.longest} characters",
        )

    def batches(self, facts, scale):
        self.set(max_tokens=scale.max_tokens)
        pairs_a_batch = max(1, self.recipe.max_tokens / facts.tokens_a_pair)
        updates = facts.num_pairs / pairs_a_batch / self.recipe.gradient_accumulation_steps
        self.updates_a_pass = max(1, math.ceil(updates))
        self.explain(
            "batches",
            f"{self.recipe.max_tokens:,} tokens, about {self.updates_a_pass:,} a pass",
            "max_tokens",
        )

    def training(self, facts, scale):
        micro_batches = self.recipe.gradient_accumulation_steps
        if scale.updates is None:
            averaged = min(10, scale.passes // 3)
            self.set(epochs=scale.passes, schedule="inverse_square_root", num_averaged=averaged)
        else:
            self.set(
                epochs=_VALIDATIONS,
                steps_per_epoch=math.ceil(scale.updates / _VALIDATIONS) * micro_batches,
                schedule="cosine",
                num_averaged=1,
                stop_at=99.95,
            )
        updates_an_epoch = self.updates_a_pass
        if self.recipe.steps_per_epoch:
            updates_an_epoch = self.recipe.steps_per_epoch // micro_batches
        total = self.recipe.epochs * updates_an_epoch
        self.set(learning_rate=scale.learning_rate, warmup_steps=max(1, min(_MOST_WARMUP_STEPS, total // 10)))
        self.check_warmup(total)
        if self.recipe.minutes:
            self.explain(
                "training", f"what fits in {counted(self.recipe.minutes, 'minute')}, see below", "minutes"
            )
            return
        self.explain(
            "training",
            f"{counted(self.recipe.epochs, 'epoch')} of {updates_an_epoch:,} updates, "
            f"{total / self.updates_a_pass:.0f} times through the data",
            "epochs",
        )
        self.explain(
            "rate",
            f"{self.recipe.learning_rate:g} after {self.recipe.warmup_steps:,} updates, then {self.recipe.schedule}",
            "learning_rate",
            "warmup_steps",
        )
        if self.recipe.num_averaged > 1:
            self.explain(
                "weights",
                f"the mean of the last {self.recipe.num_averaged} epochs, or the best one if it is better",
            )


def _num_tokens(text):
    """An estimate of the tokens of a text: its words, or a share of its characters where no spaces part them."""
    return max(text.count(" ") + 1, len(text) / 4) + 1


def _all_texts(pairs):
    texts = []
    for part in as_corpora(pairs):
        texts += part.sources
        texts += part.targets
    return texts


def possible_vocabulary_size(texts, wanted, recipe, **options):
    """`wanted`, or the nearest size that sentencepiece can train on texts."""
    try:
        SentencePieceTokenizer.train(
            texts, wanted, model_type=recipe.tokenizer, split_digits=recipe.split_digits, **options
        )
    except ValueError as error:
        limit = re.search(r"must be at (?:most|least) (\d+)", str(error))
        if not limit:
            raise
        return int(limit[1])
    return wanted
