"""Settings fitted to a plain text: the recipe of a language model for which its user gives files and nothing else."""

import dataclasses
import math

from keras_attn.runs.pair_settings import Choices, FittedRecipe, possible_vocabulary_size
from keras_attn.runs.recipe import Recipe
from keras_attn.terminal import counted

_VALIDATIONS = 12
_MOST_WARMUP_STEPS = 500
# Less text than this is learned by heart before anything else is learned.
_LITTLE_TEXT = 50_000
# A token of a vocabulary of pieces stands for about so many bytes.
_BYTES_A_TOKEN = {"bytes": 1, "bpe": 3, "unigram": 3}


@dataclasses.dataclass(frozen=True)
class _Scale:
    """What suits a text of at most `size` bytes."""

    size: float
    vocabulary_size: int
    max_tokens: int
    window: int
    sizes: tuple  # layers, model width, feed-forward width, heads, dropout
    learning_rate: float
    updates: int | None = None
    passes: int | None = None


_SCALES = (
    _Scale(300_000, 1_000, 1024, 128, (3, 96, 384, 4, 0.2), 0.004, updates=2_000),
    _Scale(5_000_000, 2_000, 1024, 256, (4, 128, 512, 4, 0.0), 0.004, updates=3_000),
    _Scale(50_000_000, 8_000, 4096, 256, (6, 256, 1024, 4, 0.0), 0.002, passes=3),
    _Scale(math.inf, 16_000, 16384, 512, (8, 512, 2048, 8, 0.0), 0.001, passes=1),
)


def fit_text_recipe(data, recipe=None, given=()):
    """Chooses the settings of a language model's run from its text.

    Args:
        data: `DataSplits` of `PlainText`.
        recipe: `Recipe` that holds what is known already: the files, and the values of `given`. Defaults to the built-in
            `plain_text`.
        given: Names of the fields of `recipe` that stay as they are.

    Returns:
        A `FittedRecipe`.

    Raises:
        ValueError: if the text cannot be learned from with what is given.

    Example:

    ```python
    text = keras_attn.data.PlainText("To be, or not to be.\\n" * 500, "a play")
    print(fit_text_recipe(DataSplits(*text.split(), None)).report())
    ```
    """
    text = data.train.text
    size = len(text.encode("utf-8", "surrogatepass"))
    scale = next(scale for scale in _SCALES if size <= scale.size)
    choices = _TextChoices(recipe or Recipe.load("plain_text"), given)
    choices.text(data, size)
    choices.tokenizer(text, scale)
    choices.model(size, scale)
    choices.batches(size, scale)
    choices.training(scale)
    note = ""
    if size < _LITTLE_TEXT:
        note = f"{size:,} bytes of text are little. A language model learns from a million and more."
    return FittedRecipe(choices.recipe, choices.reasons, note)


class _TextChoices(Choices):
    """The choices for a plain text."""

    def text(self, data, size):
        kind = "one document a line, each ended by END" if self.recipe.documents else "running text"
        self.explain("text", f"{size:,} bytes, {kind}", "documents")
        if not self.recipe.validation:
            self.explain(
                "held out", f"the last {len(data.validation.text):,} characters, a tenth, for validation"
            )

    def tokenizer(self, text, scale):
        self.set(tokenizer="bytes")
        if self.recipe.tokenizer == "bytes":
            self.explain("tokens", "bytes: nothing to train, and every text can be written", "tokenizer")
            return
        self.set(split_digits=True)
        size = scale.vocabulary_size
        if "vocabulary_size" not in self.given:
            size = possible_vocabulary_size(text.splitlines(), size, self.recipe, keep_white_space=True)
        self.set(vocabulary_size=size)
        self.explain(
            "vocabulary",
            f"{self.recipe.vocabulary_size:,} {self.recipe.tokenizer}",
            "vocabulary_size",
            "tokenizer",
        )

    def model(self, size, scale):
        layers, hidden_dim, intermediate_dim, num_heads, dropout = scale.sizes
        self.set(
            model={
                "kind": "decoder",
                "num_layers": layers,
                "hidden_dim": hidden_dim,
                "intermediate_dim": intermediate_dim,
                "num_heads": num_heads,
                "dropout": dropout,
                "attention_dropout": 0.0,
                "position_encoding": "rotary",
                "max_sequence_length": scale.window,
            }
        )
        sizes = self.recipe.model_arguments
        self.explain(
            "model",
            f"{sizes['num_layers']} layers of width {sizes['hidden_dim']}, dropout {sizes.get('dropout', 0.1)}: "
            f"{size:,} bytes",
            "model",
        )
        self.window = sizes.get("max_sequence_length", 1024)
        self.explain(
            "window", f"{self.window} tokens: what a token can depend on, and the longest text", "model"
        )

    def batches(self, size, scale):
        windows = size / _BYTES_A_TOKEN[self.recipe.tokenizer] / self.window
        # A text of few windows has few in a batch, so that there are batches.
        fitting = max(1, min(scale.max_tokens // self.window, int(windows // 4)))
        self.set(max_tokens=fitting * self.window)
        an_update = max(1, self.recipe.max_tokens // self.window) * self.recipe.gradient_accumulation_steps
        self.updates_a_pass = max(1, int(windows // an_update))
        self.explain(
            "batches",
            f"{self.recipe.max_tokens:,} tokens, about {self.updates_a_pass:,} a pass",
            "max_tokens",
        )

    def training(self, scale):
        total = scale.updates or scale.passes * self.updates_a_pass
        epochs = self.recipe.epochs if "epochs" in self.given else _VALIDATIONS
        an_epoch = math.ceil(total / _VALIDATIONS)
        self.set(
            epochs=epochs,
            steps_per_epoch=an_epoch * self.recipe.gradient_accumulation_steps,
            schedule="cosine",
            num_averaged=1,
        )
        total = epochs * an_epoch
        self.set(learning_rate=scale.learning_rate, warmup_steps=max(1, min(_MOST_WARMUP_STEPS, total // 20)))
        self.check_warmup(total)
        if self.recipe.minutes:
            self.explain(
                "training", f"what fits in {counted(self.recipe.minutes, 'minute')}, see below", "minutes"
            )
            return
        self.explain(
            "training",
            f"{counted(epochs, 'epoch')} of {an_epoch:,} updates, {total / self.updates_a_pass:.1f} times through the text",
            "epochs",
        )
        self.explain(
            "rate",
            f"{self.recipe.learning_rate:g} after {self.recipe.warmup_steps:,} updates, then {self.recipe.schedule} to 0",
            "learning_rate",
            "warmup_steps",
        )
