"""What the signatures of all tasks share: how they are declared, their graph functions, and the status of a row.

Every input and output is batch-major, and every option is a vector with a value for each text, because TF
Serving merges the requests of its clients into one batch. A value out of range is clamped and reported in the
`status` of its text; no client's input makes another client's request fail.
"""

import dataclasses
from typing import Any

import tensorflow as tf

from keras_attn.text.characters import are_many

# Texts of several lengths, used if no typical texts are given.
EXAMPLES = (
    "4th of July 2016",
    "Good morning.",
    "The weather is fine today, so we shall walk along the river before we go home.",
)
# How the page of `keras-attn serve` asks for an input, see "What an export declares" in docs/local_server.md.
TEXT = {"kind": "text"}
# The page puts the numbers of `unknown_characters_9_of_12` in.
UNKNOWN_CHARACTERS = {"unknown_characters": "{} of {} characters are not in this model's training data."}
IMAGE = {"kind": "image"}


def second_text(label, hint):
    """The widget of the second text of a task that reads two."""
    return {"kind": "second_text", "label": label, "hint": hint}


def text_box(label, hint):
    """The widget of an option that is a line of text."""
    return {"kind": "box", "label": label, "hint": hint}


@dataclasses.dataclass(frozen=True)
class Input:
    """An input of a signature, with one value for each text.

    Args:
        meaning: String.
        dtype: `tf.DType`.
        neutral: The value that does not change the answer, or None.
        size: Integer, the size of a second axis, or None if there is none.
        widget: Dict, how a page asks for it; None if it does not, and sends the neutral value.
    """

    meaning: str
    dtype: tf.DType = tf.string
    neutral: Any = None
    size: int | None = None
    widget: dict | None = None


@dataclasses.dataclass(frozen=True)
class Signature:
    """A signature of an exported task.

    Args:
        meaning: String.
        inputs: List of names in the `signature_inputs` of the task.
        outputs: Dict from the names of outputs to their meanings.
        view: String, how a page shows the answer: a line of the table of views in docs/local_server.md, "text" for instance; None if
            the page does not ask this signature.
        shown: Integer, the number of examples in the request that the README shows; 0 for no such request.
        beginnings: Dict with `length`, the name of the option that limits an answer, and `options` that make it quick, with which
            a page shows an answer growing; or None.
    """

    meaning: str
    inputs: list
    outputs: dict
    view: str | None = None
    shown: int = 0
    beginnings: dict | None = None


class SignatureFunctions:
    """The graph functions of a task's export, one method for each signature.

    A subclass implements the methods and `limits()`, lines about the sizes of requests and answers.

    Args:
        task: The task, whose options are the defaults.
        names: Names of signatures, or None for all that the model can answer. `serving_default` is always there.
        attention: Boolean, whether there is a signature `attention` too; it may also be among the names.
        buckets: The `Buckets` of an export that XLA compiles, which has `serving_default` alone; or None.

    Raises:
        ValueError: for a name that is unknown, or that the model cannot answer.
    """

    def __init__(self, task, names=None, *, attention=False, buckets=None):
        self.task = task
        self.buckets = buckets
        if buckets is not None:
            names = ["serving_default"]
        if attention and names is not None:
            names = [*names, "attention"]
        self.table = task.available_signatures()
        if attention or "attention" in (names or ()):
            self.table["attention"] = task.attention_signature()
        known = list(self.table)
        if names is not None and not set(names) <= set(known):
            raise ValueError(f"`signatures` must be names among {known}. Received: signatures={list(names)}.")
        self.names = [name for name in known if names is None or name in ("serving_default", *names)]

    def all(self):
        """{name: (function, specs of its inputs)}; the first is the default."""
        return {
            name: (getattr(self, name), [self._spec(input_name) for input_name in self.table[name].inputs])
            for name in self.names
        }

    def examples(self, given=None):
        """The typical texts of an export, a list: those that are given, or some of several lengths.

        Raises:
            ValueError: if there is none, or one is not a text or is blank.
        """
        examples = [] if isinstance(given, str) else list(EXAMPLES if given is None else given)
        if not examples or not all(isinstance(text, str) and text.strip() for text in examples):
            raise ValueError(
                f"`examples` must be a list of texts, one or more. Received: examples={given!r}."
            )
        return examples

    def example_inputs(self, signature_name, examples, ask):
        """The string inputs of a request, {name: list of strings}; options have their neutral values.

        Args:
            signature_name: String.
            examples: List of texts, or of images.
            ask: Function of the name of another signature and its inputs to its outputs.
        """
        return {"inputs": examples}

    def num_tokens(self, text):
        """How many tokens the model reads of a text: for exports with buckets."""
        raise NotImplementedError(f"{type(self).__name__} has no `num_tokens`.")

    def limits(self):
        """Lines about the sizes of requests and answers."""
        return []

    def option_limits(self):
        """Lines about what else a request may ask for."""
        return []

    def _token_strings(self, tokenizer, token_ids):
        with tf.init_scope():  # the vocabulary is looked up once, not in every request
            names = tokenizer.token_strings(range(tokenizer.vocabulary_size))
        indices = tf.where(token_ids < 0, len(names), token_ids)
        return tf.gather(tf.constant([*names, ""]), indices)

    def _spec(self, name):
        declared = self.task.signature_inputs[name]
        shape = [None] if declared.size is None else [None, declared.size]
        return tf.TensorSpec(shape, declared.dtype, name=name)


class Status:
    """The status of each row: "ok", or names of deviations from the request, joined by commas."""

    def __init__(self):
        self._notes = []

    def note(self, name, rows):
        """Adds `name` to the status of the rows where `rows`, boolean (B,), is true."""
        self._notes.append(tf.where(rows, f",{name}", ""))

    def note_unknown_characters(self, tokenizer, *columns):
        """Adds `unknown_characters_9_of_12` where many characters of a text, or of several, are not in the training data.

        Args:
            tokenizer: The tokenizer, which may not know.
            *columns: Strings (B,).
        """
        counts = [tokenizer.count_unknown_characters(texts) for texts in columns]
        if None in counts:
            return
        num_unknown = tf.add_n([unknown for unknown, _ in counts])
        num_characters = tf.add_n([characters for _, characters in counts])
        numbers = [tf.strings.as_string(number) for number in (num_unknown, num_characters)]
        note = tf.strings.join([",unknown_characters_", numbers[0], "_of_", numbers[1]])
        self._notes.append(tf.where(are_many(num_unknown, num_characters), note, ""))

    def clamped(self, name, values, least, most, nan=None):
        """`values` (B,) clipped to their range; of floats, NaN becomes `nan`."""
        if nan is not None:
            is_nan = tf.math.is_nan(values)
            values = tf.where(is_nan, tf.cast(nan, values.dtype), values)
            self.note(f"{name}_is_nan", is_nan)
        clamped = tf.clip_by_value(values, least, most)
        self.note(f"{name}_clamped", clamped != values)
        return clamped

    def text(self):
        notes = tf.strings.join(self._notes)
        return tf.where(notes == "", "ok", tf.strings.regex_replace(notes, "^,", ""))


def is_repaired(texts):
    """Which strings (B,) hold bytes that are not UTF-8, and are read with U+FFFD in their place; booleans (B,)."""
    return texts != tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8")


def vocabulary(tokenizer):
    """A tokenizer in words."""
    return f"{type(tokenizer).__name__} with {tokenizer.vocabulary_size} ids"
