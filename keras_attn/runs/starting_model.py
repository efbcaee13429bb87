"""The translator that a run begins with: loaded, checked against the data, and the settings fitted to its training."""

import dataclasses
import math

import keras
import numpy as np

from keras_attn.files import restored_folder
from keras_attn.models.model_copies import copy_with_policies
from keras_attn.runs.data import as_corpora
from keras_attn.runs.pair_settings import Choices, FittedRecipe, PairFacts
from keras_attn.tasks import Translator, checkpoint_folder, load_task
from keras_attn.tasks.loading import holds_checkpoint
from keras_attn.terminal import counted

# Texts of a side that are read to see whether a tokenizer knows them, at even distances.
_TEXTS_READ = 2000
# Of the tokens of a side: what makes a translation impossible, and what is worth a note.
_MOST_UNKNOWN = 0.1
_SOME_UNKNOWN = 0.01
# The rate is this over the model's width: 5e-5 for the 512 of Marian and T5's small models, as transformers' examples have it,
# 2.4e-5 for 1024 (mBART was fine-tuned with 3e-5: Liu et al., 2020, arXiv:2001.08210, section 3.1).
_RATE_TIMES_WIDTH = 0.025
_MOST_WARMUP_STEPS = 500
_PATIENCE = 5
# Few pairs are read more often.
_FEWEST_UPDATES = 300
_VALIDATIONS = 15
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
    choices = _StartChoices(recipe, given)
    choices.model(start)
    choices.training(facts, start.model.hidden_dim)
    choices.metric(facts)
    return FittedRecipe(choices.recipe, choices.reasons, _note(unknown), start)


def _note(shares):
    notes = []
    for side, share in zip(("sources", "targets"), shares):
        if share > _SOME_UNKNOWN:
            notes.append(f"{share:.1%} of the tokens of the {side} are unknown to the tokenizer of {side}.")
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
        self.set(num_beams=start.num_beams, length_penalty=start.length_penalty, max_length=start.max_length)

    def training(self, facts, width):
        _, max_tokens, passes = next(scale for scale in _SCALES if facts.num_pairs <= scale[0])
        self.set(max_tokens=max_tokens)
        batches = facts.num_pairs * facts.tokens_a_pair / self.recipe.max_tokens
        a_pass = max(1, math.ceil(batches / self.recipe.gradient_accumulation_steps))
        self.explain("batches", f"{self.recipe.max_tokens:,} tokens, about {a_pass:,} a pass", "max_tokens")
        micro_batches = self.recipe.gradient_accumulation_steps
        steps = None
        if passes * a_pass < _FEWEST_UPDATES and "steps_per_epoch" not in self.given:
            passes = _VALIDATIONS
            steps = math.ceil(_FEWEST_UPDATES / _VALIDATIONS) * micro_batches
        # The recipe of built-in data may end early, and has epochs of another size.
        self.set_also_none(stop_at=None, steps_per_epoch=steps)
        steps = self.recipe.steps_per_epoch
        an_epoch = a_pass if steps is None else steps // micro_batches
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
                "training", f"what fits in {counted(self.recipe.minutes, 'minute')}, see below", "minutes"
            )
        return self.explain(
            "training",
            f"{counted(self.recipe.epochs, 'epoch')} of {an_epoch:,} updates, fewer if {self.recipe.patience} bring nothing; "
            f"{total / a_pass:.0f} times through the data",
            "epochs",
            "patience",
        )


def load_start(recipe):
    """The `Translator` that a recipe's `start_from` names, in the recipe's dtype policy.

    Raises:
        FileNotFoundError: if there is no such folder, or a file is missing.
        ValueError: if it holds another task or is damaged, a language is unknown or missing, or an option is for another
            kind of folder.
    """
    options = dict(recipe.start_options)
    languages = [options.pop(f"{side}_language", None) for side in ("source", "target")]
    folder = checkpoint_folder(recipe.start_from)
    if holds_checkpoint(folder):
        options["dtype"] = recipe.dtype_policy
    elif options:
        raise ValueError(f"{', '.join(options)} is for checkpoints. {folder} is none.")
    task = load_task(folder, **options)
    if not isinstance(task, Translator):
        raise ValueError(
            f"Training starts from a translator. {folder} holds a {task.name}, which has other data."
        )
    return _with_languages(_with_policy(task, recipe.dtype_policy), *languages)


def start_of_run(folder, recipe):
    """The `Translator` that the run in a folder began with, or has made; `recipe.start_from` is not needed any more."""
    for name in ("start", "translator"):
        if (restored_folder(folder / name) / "translator.json").is_file():
            return Translator.load(folder / name)
    return load_start(recipe)


def check_tokenizers(translator, pairs):
    """The shares of unknown tokens among those of sources and of targets, as a tuple.

    Raises:
        ValueError: if there are so many that nothing can be learned.
    """
    corpora = as_corpora(pairs)
    step = math.ceil(sum(map(len, corpora)) / _TEXTS_READ)
    sources = [text for part in corpora for text in part.sources[::step]]
    targets = [text for part in corpora for text in part.targets[::step]]
    return (
        _checked_unknown_share("sources", translator.source_tokenizer, sources),
        _checked_unknown_share("targets", translator.target_tokenizer, targets),
    )


def _checked_unknown_share(side, tokenizer, texts):
    share = _unknown_share(tokenizer, texts)
    if share > _MOST_UNKNOWN:
        raise ValueError(
            f"The tokenizer of the {side} cannot spell these texts: {share:.0%} of their tokens are unknown. "
            f'The first text is "{texts[0][:60]}". Are the languages right, and in this order? Else train '
            "without --from: the vocabulary is then made from the texts."
        )
    return share


def seed_dropout(model, seed):
    """Sets the states of a model's random generators by a seed: loading a model gives them seeds by chance."""
    generator = np.random.default_rng(seed)
    for variable in model.variables:
        if variable.name == "seed_generator_state":
            variable.assign(generator.integers(0, 2**31, variable.shape))


def _unknown_share(tokenizer, texts):
    if tokenizer.unknown_token_id is None:
        return 0.0
    ids = [i for row in tokenizer.encode(texts) for i in row]
    return ids.count(tokenizer.unknown_token_id) / max(len(ids), 1)


def _with_policy(translator, policy):
    """The translator with its model in a dtype policy."""
    model = translator.model
    if model.dtype_policy.name == policy:
        return translator
    if not isinstance(model, keras.Model):
        raise ValueError(f"Only a keras.Model can be trained. Received: {type(model).__name__}.")
    policies = {model.dtype_policy.name: policy}
    return translator.replaced(model=copy_with_policies(model, lambda name: policies.get(name, name)))


def _with_languages(translator, source, target):
    """A multilingual translator with these languages, or its own, as the defaults."""
    languages = translator.languages
    if languages is None:
        if source or target:
            raise ValueError(
                "A source and a target language are for multilingual models, which this one is not. "
                f"Received: source_language={source!r}, target_language={target!r}."
            )
        return translator
    chosen = {"source": source or languages.source, "target": target or languages.target}
    for side, name in chosen.items():
        if name is None:
            raise ValueError(
                f"This model translates between many languages: give the {side}'s (--{side}-language), one of "
                f"{', '.join(sorted(languages.ids))}."
            )
        languages.rows(side, name, 1)  # which refuses unknown names
    target_id = languages.ids[chosen["target"]]
    options = translator.options
    start_token_id = translator.start_token_id
    if languages.target_is_start:
        start_token_id = target_id
    else:
        options = dataclasses.replace(options, first_token_id=target_id)
    return translator.replaced(
        languages=languages._replace(**chosen), options=options, start_token_id=start_token_id
    )
