"""What the signatures of all tasks share: how they are described, and the status of a row.

Every input and output is batch-major, and every option is a vector with a value for each text, because TF
Serving merges the requests of its clients into one batch. A value out of range is clamped and reported in the
`status` of its text; no client's input makes another client's request fail.
"""

import collections

import tensorflow as tf

# Texts of several lengths, used if no typical texts are given.
EXAMPLES = (
    "4th of July 2016",
    "Good morning.",
    "The weather is fine today, so we shall walk along the river before we go home.",
)

Input = collections.namedtuple("Input", ["meaning", "dtype", "neutral", "size"], defaults=[None, None])
Input.__doc__ = """An input of a signature, with one value for each text.

meaning: String.
dtype: tf.DType.
neutral: The value that does not change the answer, or None.
size: Integer, the size of a second axis, or None if there is none.
"""

Signature = collections.namedtuple("Signature", ["meaning", "inputs", "outputs"])
Signature.__doc__ = """A signature of an exported task.

meaning: String.
inputs: List of names in `INPUTS`.
outputs: Dict from the names of outputs to their meanings.
"""


class TaskSignatures:
    """The graph functions of a task, one method for each signature.

    A subclass sets `table`, {name: `Signature`}, whose first is the default; `input_table`, {name: `Input`}; and, for the
    README, `description`, one sentence, `shown`, {name of a signature: number of texts}, and `limits()`. Those that XLA
    compiles have `buckets`, the `Buckets` of their shapes, and `num_tokens(text)`, which the model reads of a text.
    `takes` is what the README calls what is asked about. `attention_signature` is the `Signature` of `attention`, which
    stands in the table of those that have it.

    Args:
        task: The task, whose options are the defaults.
        names: Names in `table`, or None for all that the model can answer. `serving_default` is always there.
        attention: Boolean, whether there is a signature `attention` too; it may also be among the names.

    Raises:
        ValueError: for a name that is unknown, or that the model cannot answer.
    """

    table = input_table = description = shown = buckets = attention_signature = None
    takes = "texts"

    def __init__(self, task, names=None, attention=False):
        self.task = task
        if attention and names is not None:
            names = [*names, "attention"]
        if attention or "attention" in (names or ()):
            self.table = {**self.table, "attention": self.attention_signature}
        known = self.known()
        if names is not None and not set(names) <= set(known):
            raise ValueError(f"`signatures` must be names among {known}. Received: signatures={list(names)}.")
        self.names = [name for name in known if names is None or name in ("serving_default", *names)]

    def known(self):
        """The names of the signatures that the model can answer."""
        return list(self.table)

    def all(self):
        """{name: (function, specs of its inputs)}; the first is the default."""
        return {
            name: (getattr(self, name), [self._spec(of_input) for of_input in self.table[name].inputs])
            for name in self.names
        }

    def neutral_values(self):
        """{input: value for one text} of every option of every signature."""
        return {name: given.neutral for name, given in self.input_table.items() if given.neutral is not None}

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

    def example_inputs(self, signature_name, texts, ask):
        """The string inputs of a request, {name: list of strings}; options have their neutral values.

        Args:
            signature_name: Name in `table`.
            texts: List of strings, the examples.
            ask: Function of the name of another signature and its inputs to its outputs.
        """
        return {"inputs": texts}

    def limits_of_options(self):
        """Lines about what else a request may ask for."""
        return []

    def _token_strings(self, tokenizer, token_ids):
        with tf.init_scope():  # the vocabulary is looked up once, not in every request
            names = tokenizer.token_strings(range(tokenizer.vocabulary_size))
        return tf.gather(tf.constant([*names, ""]), tf.where(token_ids < 0, len(names), token_ids))

    def _spec(self, name):
        given = self.input_table[name]
        return tf.TensorSpec([None] if given.size is None else [None, given.size], given.dtype, name=name)


class Status:
    """The status of each row: "ok", or names of deviations from the request, joined by commas."""

    def __init__(self):
        self._notes = []

    def note(self, name, rows):
        """Adds `name` to the status of the rows where `rows`, boolean (B,), is true."""
        self._notes.append(tf.where(rows, f",{name}", ""))

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
    """Which strings (B,) hold bytes that are no UTF-8, and are read with U+FFFD in their place; booleans (B,)."""
    return texts != tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8")


def vocabulary(tokenizer):
    """A tokenizer in words."""
    return f"{type(tokenizer).__name__} with {tokenizer.vocabulary_size} ids"
