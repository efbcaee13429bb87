"""What the signatures of all tasks share: their options, the status of a row, and how a search's answers are told.

Every input and output is batch-major, and every option is a vector with a value for each text, because TF
Serving merges the requests of its clients into one batch. A value out of range is clamped and reported in the
`status` of its text; no client's input makes another client's request fail.
"""

import collections

import tensorflow as tf

from keras_attn.generation import DecodingOptions

# The limits of a request. XLA and the server's batching need shapes that do not depend on the request.
NUM_STOP_TOKENS = 8
PREFIX_LENGTH = 64

Input = collections.namedtuple("Input", ["meaning", "dtype", "neutral", "size"], defaults=[None, None])
Input.__doc__ = """An input of a signature, with one value for each text.

meaning: String.
dtype: tf.DType.
neutral: The value that does not change the answer, or None. `length_penalty` has the task's value.
size: Integer, the size of a second axis, or None if there is none.
"""

Signature = collections.namedtuple("Signature", ["meaning", "inputs", "outputs"])
Signature.__doc__ = """A signature of an exported task.

meaning: String.
inputs: List of names in `INPUTS`.
outputs: Dict from the names of outputs to their meanings.
"""

OPTIONS = {
    "num_beams": Input("0 for the default, which is the most there can be", tf.int32, 0),
    "length_penalty": Input("the power of its length that a log-probability is divided by", tf.float32),
    "min_length": Input("the fewest tokens, END included; 0 for no limit", tf.int32, 0),
    "max_length": Input("the most tokens; 0 for the default, which is the most there can be", tf.int32, 0),
    "no_repeat_ngram_size": Input("n-grams of this size appear once; 0 for no limit", tf.int32, 0),
    "repetition_penalty": Input(
        "multiplies log-probabilities of tokens that are there already; 1 for none", tf.float32, 1.0
    ),
    "stop_token_ids": Input(
        "ids that end an answer as END does; -1 for none",
        tf.int32,
        [-1] * NUM_STOP_TOKENS,
        NUM_STOP_TOKENS,
    ),
    "suppressed_token_ids": Input(
        "ids that are never chosen; -1 for none", tf.int32, [-1] * NUM_STOP_TOKENS, NUM_STOP_TOKENS
    ),
    "temperature": Input("0 for the best token", tf.float32, 1.0),
    "top_k": Input("how many of the likeliest tokens are drawn from; 0 for all", tf.int32, 0),
    "top_p": Input("the probability that the tokens drawn from have together; 1 for all", tf.float32, 1.0),
    "min_p": Input(
        "the least probability of a token, as a share of the likeliest's; 0 for all", tf.float32, 0.0
    ),
    "seed": Input("the same seed draws the same answer", tf.int32, 0),
}

# The score of a hypothesis that the search did not find: JSON has no infinity.
NO_SCORE = -1e30
# Options whose neutral value is the task's own, if it has one.
_OWN_VALUES = ("min_length", "no_repeat_ngram_size", "repetition_penalty")
# Options of a beam search and of sampling that are the same for all tasks.
BEAM_OPTIONS = [
    "num_beams",
    "length_penalty",
    "min_length",
    "max_length",
    "no_repeat_ngram_size",
    "repetition_penalty",
    "stop_token_ids",
    "suppressed_token_ids",
]
SAMPLING_OPTIONS = ["max_length", "temperature", "top_k", "top_p", "min_p", "seed"]
N_BEST = {
    "outputs": 'the answers, best first; "" if the search found fewer',
    "scores": "log-probability / length ^ length_penalty; -1e30 if the search found fewer",
}


class TaskSignatures:
    """The graph functions of a task, one method for each signature.

    A subclass sets `table`, {name: `Signature`}, whose first is the default; `input_table`, {name: `Input`}; and, for the
    README, `description`, one sentence, `shown`, {name of a signature: number of texts}, and `limits()`.

    Args:
        task: The task, whose options are the defaults, and whose `num_beams` is the maximum of a request.
        names: Names in `table`, or None for all that the model can answer. `serving_default` is always there.

    Raises:
        ValueError: for a name that is unknown, or that the model cannot answer.
    """

    table = input_table = description = shown = None

    def __init__(self, task, names=None):
        self.task = task
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
        neutral = {
            name: given.neutral for name, given in self.input_table.items() if given.neutral is not None
        }
        own = {name: self.task.options.given().get(name) for name in _OWN_VALUES}
        own["length_penalty"] = self.task.length_penalty
        own = {name: type(neutral.get(name, 1.0))(value) for name, value in own.items() if value is not None}
        return {**neutral, **own}

    def beam_options(
        self,
        status,
        num_beams,
        min_length,
        max_length,
        no_repeat_ngram_size,
        repetition_penalty,
        stop_token_ids,
        suppressed_token_ids,
    ):
        """`DecodingOptions` with the values of a request in their ranges."""
        most, longest = self.task.num_beams, self.task.max_length
        max_length = status.clamped("max_length", or_default(max_length, longest), 1, longest)
        return DecodingOptions(
            num_beams=status.clamped("num_beams", or_default(num_beams, most), 1, most),
            min_length=status.clamped("min_length", min_length, 0, max_length),
            max_length=max_length,
            no_repeat_ngram_size=status.clamped("no_repeat_ngram_size", no_repeat_ngram_size, 0, 4),
            repetition_penalty=status.clamped("repetition_penalty", repetition_penalty, 0.01, 100.0, nan=1.0),
            stop_token_ids=self._token_ids("stop_token_ids", stop_token_ids, status),
            suppressed_token_ids=self._token_ids("suppressed_token_ids", suppressed_token_ids, status),
        )

    def sampling_options(self, status, max_length, temperature, top_k, top_p, min_p, seed):
        """`DecodingOptions` with the values of a request in their ranges."""
        longest = self.task.max_length
        return DecodingOptions(
            max_length=status.clamped("max_length", or_default(max_length, longest), 1, longest),
            temperature=status.clamped("temperature", temperature, 0.0, 100.0, nan=1.0),
            top_k=status.clamped("top_k", top_k, 0, self.task.output_tokenizer.vocabulary_size),
            top_p=status.clamped("top_p", top_p, 0.0, 1.0, nan=1.0),
            min_p=status.clamped("min_p", min_p, 0.0, 1.0, nan=0.0),
            seed=seed,
        )

    def length_penalty(self, status, values):
        """The length penalties of a request in their range."""
        return status.clamped("length_penalty", values, -10.0, 10.0, nan=self.task.length_penalty)

    def note_unfinished(self, status, token_ids, options, among=True):
        """Notes the rows of ids (B, L) without END or another stop token, of those where `among` is true."""
        ends = token_ids == self.task.output_tokenizer.end_token_id
        options = self.task.with_defaults(options)
        if options.stop_token_ids is not None:
            stops = tf.convert_to_tensor(options.stop_token_ids)
            stops = token_ids[:, :, tf.newaxis] == tf.reshape(stops, [-1, 1, stops.shape[-1]])
            ends |= tf.reduce_any(stops, axis=-1)
        status.note("unfinished", among & ~tf.reduce_any(ends, axis=-1))

    def _token_ids(self, name, values, status):
        is_token = (values >= 0) & (values < self.task.output_tokenizer.vocabulary_size)
        status.note(f"{name}_clamped", tf.reduce_any(~is_token & (values != -1), axis=1))
        return tf.where(is_token, values, -1)

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


def or_default(values, default):
    """Replaces 0 by the default."""
    return tf.where(values == 0, default, values)


def is_repaired(texts):
    """Which strings (B,) hold bytes that are no UTF-8, and are read with U+FFFD in their place; booleans (B,)."""
    return texts != tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8")


def vocabulary(tokenizer):
    """A tokenizer in words."""
    return f"{type(tokenizer).__name__} with {tokenizer.vocabulary_size} ids"
