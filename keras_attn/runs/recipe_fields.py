"""The settings of a training run, each declared once: its values, its sentence, and who may set it.

Checks, recipe files, the docstring of `Recipe`, the table in docs/training.md and the options of the command line follow from
these declarations. The command reads this file before Keras is imported.
"""

import argparse
import dataclasses
import math
import numbers
import os
import types
import typing
from collections.abc import Callable

from keras_attn.checks import check_positive, check_rate


@dataclasses.dataclass(frozen=True)
class Kind:
    """The values that a setting takes.

    Args:
        words: String, the values in words.
        check: Function of the setting's name and a value. Returns the value as a recipe keeps it, or raises ValueError.
        option: Dict, what `argparse` needs to read such a value.
    """

    words: str
    check: Callable
    option: dict = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Setting:
    """What is declared of a recipe's field.

    Args:
        kind: `Kind`.
        help: String, what it is: a sentence for the docstring, the docs and `--help`.
        commands: Names of the commands that have an option for it.
        flag: String, the option, if it is not the field's name.
        purposes: Dict from the names of commands to what is said in the place of the help's part before its colon.
        new_model_only: Boolean, whether it is about a model and tokenizers that the run makes, so that it means nothing where
            the run begins with others.
        fitted: Boolean, whether it is fitted to the data where nobody sets it.
        planned: Boolean, whether it follows from `minutes`.
        may_change: Boolean, whether a run may go on with another value.
        names_data: Boolean, whether it only names data: a run may go on under other names of the same data.
    """

    kind: Kind
    help: str
    commands: tuple = ()
    flag: str | None = None
    purposes: dict = dataclasses.field(default_factory=dict)
    new_model_only: bool = False
    fitted: bool = False
    planned: bool = False
    may_change: bool = False
    names_data: bool = False


def setting(default, kind, help, **more):
    """A field of a dataclass that is declared by a `Setting`."""
    metadata = {"setting": Setting(kind, help, **more)}
    if isinstance(default, dict):
        return dataclasses.field(default_factory=dict, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def positive_integer(text):
    """An integer of the command line, 1 or more."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be a positive integer, not {text}")
    return number


positive_integer.__name__ = "integer"  # what argparse calls it in "invalid integer value"


def _real(is_allowed, what):
    """A check of numbers, which become floats."""

    def check(name, value):
        if not isinstance(value, numbers.Real) or isinstance(value, bool) or not is_allowed(value):
            raise ValueError(f"`{name}` must be {what}. Received: {name}={value!r}.")
        return float(value)

    return check


def _instance(type, what):
    """A check of values of a type."""

    def check(name, value):
        if not isinstance(value, type):
            raise ValueError(f"`{name}` must be {what}. Received: {name}={value!r}.")
        return value

    return check


_check_number = _real(math.isfinite, "a number")
_check_positive_number = _real(lambda x: 0 < x < math.inf, "a positive number")
_check_not_negative = _real(lambda x: 0 <= x < math.inf, "a number, 0 or more")
_check_flag = _instance(bool, "true or false")
_check_table = _instance(dict, "a table")


def _check_share(name, value):
    return float(check_rate(name, value))


def _check_seed(name, value):
    if not isinstance(value, numbers.Integral) or isinstance(value, bool) or not 0 <= value < 2**32:
        raise ValueError(f"`{name}` must be an integer from 0 to 2**32 - 1. Received: {name}={value!r}.")
    return int(value)


def _check_text(name, value):
    if not isinstance(value, str | os.PathLike) or not os.fspath(value):
        raise ValueError(f"`{name}` must be a text or a path. Received: {name}={value!r}.")
    return os.fspath(value)


def _check_files(name, value):
    if isinstance(value, str | os.PathLike):
        return (os.fspath(value),)
    if not isinstance(value, list | tuple) or not all(isinstance(file, str | os.PathLike) for file in value):
        raise ValueError(f"`{name}` must be names of files. Received: {name}={value!r}.")
    return tuple(map(os.fspath, value))


def _check_corpora(name, value):
    if isinstance(value, list | tuple) and value and isinstance(value[0], list | tuple):
        return tuple(_check_files(name, corpus) for corpus in value)
    return _check_files(name, value)


def _check_numbers(name, value):
    if not isinstance(value, list | tuple):
        raise ValueError(f"`{name}` must be positive numbers. Received: {name}={value!r}.")
    for number in value:
        _check_positive_number(name, number)
    return tuple(value)


def _check_boundaries(name, value):
    is_list = isinstance(value, list | tuple) and len(value) > 0
    if (
        not is_list
        or not all(isinstance(x, int) and x > 0 for x in value)
        or list(value) != sorted(set(value))
    ):
        raise ValueError(f"`{name}` must be ascending positive integers. Received: {name}={value!r}.")
    return tuple(value)


def _check_distill(name, value):
    known = {"teachers", "references", "num_beams", "length_penalty"}
    if not isinstance(value, dict) or not set(value) <= known:
        raise ValueError(f"`{name}` may have {', '.join(sorted(known))}. Received: {name}={value!r}.")
    teachers = value.get("teachers", [])
    if not isinstance(teachers, list) or not all(isinstance(teacher, str) for teacher in teachers):
        raise ValueError(f"`teachers` must be a list of folders. Received: teachers={teachers!r}.")
    _check_flag("references", value.get("references", True))
    if value.get("num_beams") is not None:
        check_positive("num_beams", value["num_beams"])
    if value.get("length_penalty") is not None:
        _check_number("length_penalty", value["length_penalty"])
    return value


_START_OPTIONS = ("source_language", "target_language", "text_prefix", "purpose", "ignored_fields")


def _check_start_options(name, value):
    is_table = isinstance(value, dict) and set(value) <= set(_START_OPTIONS)
    expected = {"ignored_fields": list}
    if not is_table or not all(isinstance(value[key], expected.get(key, str)) for key in value):
        raise ValueError(
            f"`{name}` may set {', '.join(_START_OPTIONS)}, each a string, the last a list of strings. "
            f"Received: {name}={value}."
        )
    return value


def _check_dtype(name, value):
    if value == "auto":
        return value
    import keras  # the command line needs no Keras to show its options

    try:
        policy = keras.dtype_policies.get(value)
        is_float = "float" in policy.compute_dtype
    except (ValueError, TypeError):
        is_float = False
    if not is_float:
        raise ValueError(
            f'`{name}` must be "auto" or a Keras dtype policy of floats, such as "float32" or "mixed_bfloat16". '
            f"Received: {name}={value!r}."
        )
    return value


def one_of(*choices):
    """The `Kind` of a setting that is one of some strings."""
    names = ", ".join(repr(choice) for choice in choices)

    def check(name, value):
        if value not in choices:
            raise ValueError(f"`{name}` must be one of {names}. Received: {name}={value!r}.")
        return value

    return Kind(", ".join(f'`"{choice}"`' for choice in choices), check, {"choices": choices})


INTEGER = Kind("integer from 1", check_positive, {"type": positive_integer, "metavar": "N"})
NUMBER = Kind("number", _check_number, {"type": float, "metavar": "X"})
POSITIVE = Kind("number above 0", _check_positive_number, {"type": float, "metavar": "X"})
NOT_NEGATIVE = Kind("number from 0", _check_not_negative, {"type": float, "metavar": "X"})
SHARE = Kind("number from 0, below 1", _check_share, {"type": float, "metavar": "X"})
SEED = Kind("integer from 0", _check_seed, {"type": int, "metavar": "N"})
FLAG = Kind("true or false", _check_flag, {"action": "store_true"})
TEXT = Kind("text", _check_text, {"metavar": "NAME"})
FOLDER = Kind("folder", _check_text, {"metavar": "FOLDER"})
FILES = Kind("one or two files", _check_files, {"nargs": "+", "metavar": "FILE"})
CORPORA = Kind("a name, or files, or several of these", _check_corpora, {"nargs": "+", "metavar": "DATA"})
NUMBERS = Kind("numbers above 0", _check_numbers)
BOUNDARIES = Kind("ascending integers", _check_boundaries)
POLICY = Kind('a Keras dtype policy, or `"auto"`', _check_dtype, {"metavar": "POLICY"})
TABLE = Kind("table", _check_table)
DISTILL = Kind("table", _check_distill)
START_OPTIONS = Kind("table", _check_start_options)

# Commands that have an option for a setting.
TRAIN = ("train",)
TRAINING = ("train", "distill")
WITH_DATA = ("train", "distill", "evaluate", "shortlist")


@dataclasses.dataclass(frozen=True)
class RecipeFields:
    """The fields of `Recipe`, each checked by itself."""

    data: tuple = setting(
        (),
        CORPORA,
        "what to train on: `dates`, `reverse`, `multi30k`, `multi30k-tokenized`, `shakespeare`, a source and a target file, "
        "one TSV file, or plain text files for a language model; in a recipe also a list of several of these",
        commands=WITH_DATA,
        names_data=True,
        purposes={"evaluate": "what to evaluate on", "shortlist": "what to count words in"},
    )
    data_weights: tuple | None = setting(
        None, NUMBERS, "how often each pair of each of several corpora occurs in an epoch (default: once)"
    )
    validation: tuple | None = setting(
        None,
        FILES,
        "validation files, in the form of the data (default: a part of the data is held out)",
        commands=TRAINING,
        names_data=True,
    )
    test: tuple | None = setting(
        None, FILES, "test files, for the final scores", commands=TRAINING, names_data=True
    )
    data_dir: str | None = setting(
        None, FOLDER, "where Multi30k lies (default: it is downloaded)", commands=WITH_DATA, names_data=True
    )
    source_language: str = setting(
        "en",
        TEXT,
        "the language of the sources: `en`, `de` or `fr` for Multi30k, or a name that a multilingual model has",
        commands=WITH_DATA,
    )
    target_language: str = setting(
        "de",
        TEXT,
        "the language of the targets: `en`, `de` or `fr` for Multi30k, or a name that a multilingual model has",
        commands=WITH_DATA,
    )
    documents: bool = setting(
        False,
        FLAG,
        "whether each line of a plain text is a document, which END ends (default: running text)",
        commands=TRAIN,
        new_model_only=True,
    )
    start_from: str | None = setting(
        None,
        FOLDER,
        "begin with the weights and the tokenizers of a trained translator: a saved one, the run that made it, or a "
        "checkpoint's folder",
        commands=TRAIN,
        flag="--from",
    )
    start_options: dict = setting(
        {},
        START_OPTIONS,
        "what the files of `start_from` leave open: `source_language` and `target_language` of a multilingual model, "
        "`text_prefix`, `purpose` and `ignored_fields` of a checkpoint",
    )
    model: dict = setting(
        {},
        TABLE,
        "arguments of `Seq2SeqTransformer.from_sizes`, where `size` is a named size (`tiny`, `base`, "
        '`big`); of `RNNSeq2Seq` with `kind = "rnn"`; or of `DecoderTransformer.from_sizes` with `kind = "decoder"`, a '
        "language model; empty with `start_from`",
        new_model_only=True,
        fitted=True,
    )
    tokenizer: str = setting(
        "bpe",
        one_of("bpe", "unigram", "wordpiece", "bytes"),
        "what a token is: a byte, or a piece of a vocabulary that both languages share; a language model has no wordpiece",
        commands=TRAIN,
        new_model_only=True,
        fitted=True,
    )
    vocabulary_size: int = setting(
        8000,
        INTEGER,
        "the size of the vocabulary that is trained",
        commands=TRAIN,
        new_model_only=True,
        fitted=True,
    )
    split_digits: bool = setting(
        False,
        FLAG,
        "whether each digit is a token of its own (`bpe` and `unigram`)",
        new_model_only=True,
        fitted=True,
    )
    subword_sampling: float = setting(
        0.0,
        SHARE,
        "segment the training texts anew for each epoch, with this share of BPE's merges left out at random (BPE-dropout: "
        "0.1); for translators with `bpe`",
        commands=TRAINING,
    )
    minutes: float | None = setting(
        None,
        POSITIVE,
        "the run ends, evaluation included, within so many minutes of this machine: its first updates are timed, and the "
        "length of the training follows from that",
        commands=TRAIN,
        may_change=True,
    )
    epochs: int = setting(
        30,
        INTEGER,
        "how often the model is validated; without `steps_per_epoch`, the passes over the data",
        commands=TRAINING,
        fitted=True,
        planned=True,
        may_change=True,
    )
    steps_per_epoch: int | None = setting(
        None,
        INTEGER,
        "the batches after which translations are scored and the best weights saved (default: one pass over the data)",
        fitted=True,
        planned=True,
    )
    max_tokens: int = setting(
        2048,
        INTEGER,
        "the positions of one side of a batch, pads included; a language model reads as many windows of "
        "`max_sequence_length` as fit",
        commands=TRAINING,
        fitted=True,
    )
    gradient_accumulation_steps: int = setting(
        1,
        INTEGER,
        "the batches of one update, which equals one batch with that many times `max_tokens`",
        commands=TRAINING,
    )
    padding: str | None = setting(
        None,
        one_of("longest", "buckets", "packed"),
        "each batch to its longest sentence (the default without a compiler), to `bucket_boundaries` (the default where XLA "
        "compiles), or several pairs in each row, whose length is the last of `bucket_boundaries`",
    )
    bucket_boundaries: tuple = setting(
        (8, 12, 16, 20, 24, 32, 48, 64, 96, 128), BOUNDARIES, "the lengths of padded rows, see `padding`"
    )
    optimizer: str = setting("adam", one_of("adam", "adamw"), "the optimizer; AdamW has `weight_decay`")
    beta_1: float = setting(0.9, SHARE, "the decay of the mean of gradients")
    beta_2: float = setting(0.98, SHARE, "the decay of the mean of squared gradients")
    epsilon: float = setting(1e-9, POSITIVE, "what the optimizer adds to the root of squared gradients")
    weight_decay: float = setting(0.0, NOT_NEGATIVE, "AdamW's weight decay; biases and norms do not decay")
    learning_rate: float = setting(
        0.002, POSITIVE, "the highest rate, reached after the warm-up", commands=TRAINING, fitted=True
    )
    warmup_steps: int = setting(
        1000, INTEGER, "the optimizer updates of the warm-up", commands=TRAINING, fitted=True, planned=True
    )
    schedule: str = setting(
        "inverse_square_root",
        one_of("inverse_square_root", "noam", "cosine", "linear", "constant"),
        "how the learning rate falls after the warm-up; `cosine` and `linear` end at 0 with the last epoch, and the peak of "
        "`noam` is the paper's",
        fitted=True,
        planned=True,
    )
    label_smoothing: float = setting(0.1, SHARE, "the share of the probability that other tokens get")
    global_clipnorm: float = setting(25.0, POSITIVE, "the largest norm of the gradient of one update")
    ema_momentum: float | None = setting(
        None, SHARE, "if set, an exponential moving average of the weights is scored and kept"
    )
    dtype: str = setting(
        "auto",
        POLICY,
        "the policy of the model; `auto` is mixed_bfloat16 where the processor multiplies bfloat16 matrices in hardware, "
        "else float32",
        commands=TRAINING,
    )
    metric: str = setting(
        "bleu",
        one_of("bleu", "chrf", "exact_match", "loss"),
        "the score of validation by which the best weights are chosen; of a language model `loss`, its cross-entropy in nats",
        fitted=True,
    )
    bleu_tokenize: str = setting(
        "13a", TEXT, "sacreBLEU's tokenizer; `none` for text that is tokenised already"
    )
    stop_at: float | None = setting(
        None, NUMBER, "training ends early once the metric is this good", fitted=True, may_change=True
    )
    patience: int | None = setting(
        None,
        INTEGER,
        "training ends early after this many epochs without a better score",
        commands=TRAINING,
        fitted=True,
        may_change=True,
    )
    num_averaged: int = setting(
        10,
        INTEGER,
        "the weights of this many epochs are averaged at the end, and kept unless a paired test on validation says that the "
        "best single epoch is better (p < 0.05); 1 for no average",
        fitted=True,
    )
    averaged: str = setting("last", one_of("last", "best"), "which epochs are averaged")
    save_updates: int | None = setting(
        None,
        INTEGER,
        "the state to resume from is saved after this many updates, and after each epoch",
        may_change=True,
    )
    save_minutes: float | None = setting(
        10.0, POSITIVE, "the state to resume from is saved after this many minutes", may_change=True
    )
    distill: dict | None = setting(
        None,
        DISTILL,
        "if set, the model is a student, which learns from the translations that `teachers` (folders; several as an ensemble) "
        "make of the training sources, with their tokenizers; with `references` (default: true) from the given targets too; "
        "`num_beams` and `length_penalty` set the teachers' search (default: their own)",
    )
    num_beams: int = setting(
        5, INTEGER, "beams of the finished translator; validation after each epoch is greedy", fitted=True
    )
    length_penalty: float = setting(1.0, NUMBER, "length penalty of the finished translator", fitted=True)
    max_length: int | None = setting(
        None, INTEGER, "longest answer of the finished translator, in tokens", fitted=True
    )
    seed: int = setting(0, SEED, "the seed of weights, dropout and the order of the data", commands=TRAINING)

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is None and is_optional(field):
                continue
            checked = field.metadata["setting"].kind.check(field.name, value)
            object.__setattr__(self, field.name, checked)


def is_optional(field):
    """Whether a field may be None."""
    return isinstance(field.type, types.UnionType) and type(None) in typing.get_args(field.type)


def fields_where(attribute):
    """The names of the fields whose `Setting` has a true `attribute`: a tuple."""
    fields = dataclasses.fields(RecipeFields)
    return tuple(field.name for field in fields if getattr(field.metadata["setting"], attribute))


PLANNED = fields_where("planned")


def options_of(command):
    """The options of a command: a list of (flag, arguments of `argparse`'s `add_argument`)."""
    options = []
    for field in dataclasses.fields(RecipeFields):
        declared = field.metadata["setting"]
        if command in declared.commands:
            flag = declared.flag or f"--{field.name.replace('_', '-')}"
            help = declared.help
            if command in declared.purposes:
                help = f"{declared.purposes[command]}:{help.partition(':')[2]}"
            arguments = {"dest": field.name, "default": None, "help": help.replace("%", "%%")}
            options.append((flag, arguments | declared.kind.option))
    return options


def docstring_lines():
    """A line for each field, as the section `Args` of a docstring has it."""
    lines = []
    for field in dataclasses.fields(RecipeFields):
        declared = field.metadata["setting"]
        lines.append(f"{field.name}: {values_in_words(field)}: {declared.help}.")
    return lines


def values_in_words(field):
    """What a field may be, in words."""
    words = field.metadata["setting"].kind.words
    return f"{words}, or None" if is_optional(field) else words
