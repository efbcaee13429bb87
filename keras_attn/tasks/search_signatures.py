"""What the signatures of the tasks that write texts share: their options, and how a search's answers are told."""

import tensorflow as tf

from keras_attn.generation import DecodingOptions
from keras_attn.tasks.signature_parts import Input, TaskSignatures

# The limits of a request. XLA and the server's batching need shapes that do not depend on the request.
NUM_STOP_TOKENS = 8
PREFIX_LENGTH = 64

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


class SearchSignatures(TaskSignatures):
    """The signatures of a `GenerativeTask`, whose `num_beams` is the maximum of a request."""

    def neutral_values(self):
        neutral = super().neutral_values()
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
            no_repeat_ngram_size=status.clamped(
                "no_repeat_ngram_size", no_repeat_ngram_size, 0, tf.int32.max
            ),
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
            ends |= tf.reduce_any(stops, axis=-1) & (token_ids >= 0)  # -1 fills rows, and means no token
        status.note("unfinished", among & ~tf.reduce_any(ends, axis=-1))

    def _token_ids(self, name, values, status):
        is_token = (values >= 0) & (values < self.task.output_tokenizer.vocabulary_size)
        status.note(f"{name}_clamped", tf.reduce_any(~is_token & (values != -1), axis=1))
        return tf.where(is_token, values, -1)


def or_default(values, default):
    """Replaces 0 by the default."""
    return tf.where(values == 0, default, values)
