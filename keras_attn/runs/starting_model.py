"""The translator that a run begins with: loaded, in the run's dtype policy, with its languages, and checked against the data."""

import dataclasses
import math

import keras
import numpy as np

from keras_attn.data import TextPairs
from keras_attn.files import restored_folder
from keras_attn.models.copies import copy_in_policies
from keras_attn.tasks import Translator, checkpoint_folder, load_task
from keras_attn.tasks.loading import holds_checkpoint

# Texts of a side that are read to see whether a tokenizer knows them, at even distances.
_TEXTS_READ = 2000
# Of the tokens of a side: what makes a translation impossible, and what is worth a note.
MOST_UNKNOWN, SOME_UNKNOWN = 0.1, 0.01


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
    corpora = [pairs] if isinstance(pairs, TextPairs) else list(pairs)
    step = math.ceil(sum(map(len, corpora)) / _TEXTS_READ)
    shares = []
    for side in ("source", "target"):
        tokenizer = getattr(translator, f"{side}_tokenizer")
        texts = [text for corpus in corpora for text in getattr(corpus, f"{side}s")[::step]]
        shares.append(_unknown_share(tokenizer, texts))
        if shares[-1] > MOST_UNKNOWN:
            raise ValueError(
                f"The tokenizer of the {side}s cannot spell these texts: {shares[-1]:.0%} of their tokens are unknown. "
                f'The first text is "{texts[0][:60]}". Are the languages right, and in this order? Else train '
                "without --from: the vocabulary is then made from the texts."
            )
    return tuple(shares)


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
    old = model.dtype_policy.name
    return translator.replaced(model=copy_in_policies(model, lambda name: policy if name == old else name))


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
    first = {} if languages.target_is_start else {"first_token_id": languages.ids[chosen["target"]]}
    start = languages.ids[chosen["target"]] if languages.target_is_start else translator.start_token_id
    return translator.replaced(
        languages=languages._replace(**chosen),
        options=dataclasses.replace(translator.options, **first),
        start_token_id=start,
    )
