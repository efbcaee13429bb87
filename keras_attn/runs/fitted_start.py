"""Settings fitted to a run that begins with the weights of a trained translator: a small rate, and few passes."""

import dataclasses
import math

from keras_attn.runs.fitted import Choices, FittedRecipe, PairFacts
from keras_attn.runs.starting_model import SOME_UNKNOWN, check_tokenizers, load_start

# The rate is this over the model's width: 5e-5 for the 512 of Marian and T5's small models, as transformers' examples have it,
# 2.4e-5 for 1024 (mBART was fine-tuned with 3e-5: Liu et al., 2020, arXiv:2001.08210, section 3.1).
_RATE_TIMES_WIDTH = 0.025
_MOST_WARMUP_STEPS = 500
_PATIENCE = 5
# Few pairs are read more often.
_FEWEST_UPDATES, _VALIDATIONS = 300, 15
# (training pairs up to, tokens a batch, passes)
_SCALES = ((1_000, 512, 20), (5_000, 1024, 15), (25_000, 2048, 10), (200_000, 4096, 5), (math.inf, 8192, 3))


def fit_start(data, recipe, given=()):
    """Chooses the settings of a run that begins with a trained translator, and loads it.

    Args:
        data: `DataSplits` of text pairs.
        recipe: `Recipe` with `start_from`, and the values of `given`.
        given: Names of the fields of `recipe` that stay as they are.

    Returns:
        A `FittedRecipe`, whose `start` is the `Translator`.

    Raises:
        FileNotFoundError, ValueError: if the translator cannot be loaded, or its tokenizers cannot spell the data.
    """
    start = load_start(recipe)
    unknown = check_tokenizers(start, data.train)
    facts = PairFacts.of(data.train)
    choices = _StartChoices(recipe, set(given))
    choices.model(start)
    choices.training(facts, start.model.hidden_dim)
    choices.metric(facts)
    return FittedRecipe(choices.recipe, choices.reasons, _note(unknown), start)


def _note(shares):
    notes = [
        f"{share:.1%} of the tokens of the {side}s are unknown to the tokenizer of {recipe_side}."
        for share, side, recipe_side in zip(shares, ("source", "target"), ("sources", "targets"))
        if share > SOME_UNKNOWN
    ]
    return " ".join(notes)


class _StartChoices(Choices):
    """The choices for a run that begins with a trained translator."""

    def model(self, start):
        options = self.recipe.start_options
        self.explain("model", f"{start.model.count_params():,} weights from {self.recipe.start_from}")
        tokenizers = (start.source_tokenizer, start.target_tokenizer)
        sizes = " and ".join(f"{tokenizer.vocabulary_size:,}" for tokenizer in dict.fromkeys(tokenizers))
        self.explain("vocabulary", f"{sizes}, that of the model")
        if start.languages is not None:
            self.explain("languages", f"{start.languages.source} to {start.languages.target}")
        if start.source_form.text_prefix:
            self.explain("prefix", repr(start.source_form.text_prefix), *options)
        # What the translator does by itself. The run's own defaults are for models that it makes.
        found = {"num_beams": start.num_beams, "length_penalty": start.length_penalty}
        self.set(**found, max_length=start.max_length)

    def training(self, facts, width):
        _, max_tokens, passes = next(scale for scale in _SCALES if facts.num_pairs <= scale[0])
        self.set(max_tokens=max_tokens)
        batches = facts.num_pairs * facts.tokens_a_pair / self.recipe.max_tokens
        a_pass = max(1, math.ceil(batches / self.recipe.gradient_accumulation_steps))
        self.explain("batches", f"{self.recipe.max_tokens:,} tokens, about {a_pass:,} a pass", "max_tokens")
        accumulated = self.recipe.gradient_accumulation_steps
        steps = self.recipe.steps_per_epoch if "steps_per_epoch" in self.given else None
        if steps is None and passes * a_pass < _FEWEST_UPDATES:
            passes, steps = _VALIDATIONS, math.ceil(_FEWEST_UPDATES / _VALIDATIONS) * accumulated
        an_epoch = a_pass if steps is None else steps // accumulated
        # The recipe of built-in data may end early, and has epochs of another size.
        self.recipe = dataclasses.replace(self.recipe, stop_at=None, steps_per_epoch=steps)
        self.set(epochs=passes, schedule="linear", num_averaged=1, patience=_PATIENCE)
        total = self.recipe.epochs * an_epoch
        rate = float(f"{_RATE_TIMES_WIDTH / width:.2g}")
        self.set(learning_rate=rate, warmup_steps=max(1, min(_MOST_WARMUP_STEPS, total // 20)))
        self.check_warmup(total)
        self.explain(
            "rate",
            f"{self.recipe.learning_rate:g} after {self.recipe.warmup_steps:,} updates, then {self.recipe.schedule}: "
            f"{_RATE_TIMES_WIDTH:g} over the model's width",
            "learning_rate",
            "warmup_steps",
        )
        if self.recipe.minutes:
            return self.explain(
                "training", f"what fits in {self.recipe.minutes:g} minutes, see below", "minutes"
            )
        return self.explain(
            "training",
            f"{self.recipe.epochs} epochs of {an_epoch:,} updates, fewer if {self.recipe.patience} bring nothing; "
            f"{total / a_pass:.0f} times through the data",
            "epochs",
            "patience",
        )
