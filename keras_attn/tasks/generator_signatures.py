"""The signatures of an exported text generator."""

import functools

import numpy as np
import tensorflow as tf

from keras_attn.generation import Hypotheses
from keras_attn.tasks.attention_signature import (
    ATTENTION_LENGTH,
    DECODER_OUTPUTS,
    STEP_OUTPUTS,
    SeenAttention,
    attention_limit,
    steps,
)
from keras_attn.tasks.buckets import BATCH_SIZES, Buckets
from keras_attn.tasks.search_signatures import (
    BEAM_OPTIONS,
    N_BEST,
    NO_SCORE,
    NUM_STOP_TOKENS,
    OPTIONS,
    SAMPLING_OPTIONS,
    SearchSignatures,
)
from keras_attn.tasks.showing import by_kind
from keras_attn.tasks.signature_parts import Input, Signature, Status, is_repaired, vocabulary
from keras_attn.tasks.token_ids import NO_TOKEN, filled

INPUTS = {
    "inputs": Input("the texts: prompts to continue, or texts to score", tf.string),
    **OPTIONS,
    "max_length": Input(
        "the most new tokens; 0 for the default, which is the most there can be", tf.int32, 0
    ),
}

_STATUS = {
    "status": '"ok", or the deviations from the request, joined by commas: `prompt_repaired` (invalid UTF-8), '
    "`prompt_truncated` (its beginning is left out), `unfinished` (no END within `max_length` or the model's longest "
    "sequence), `top_p_clamped` and the like"
}

# The only description of the signatures of a generator's export; the first is the default.
GENERATOR_SIGNATURES = {
    "serving_default": Signature(
        "the best continuation of each prompt",
        ["inputs"],
        {"outputs": "the continuation, without the prompt"},
    ),
    "generate": Signature(
        "beam search with options for each prompt",
        ["inputs", *BEAM_OPTIONS],
        {**N_BEST, **_STATUS, "tokens": "the tokens of the best continuation"},
    ),
    "sample": Signature(
        "one continuation drawn for each prompt; the same seed draws the same, whatever the batch",
        ["inputs", *SAMPLING_OPTIONS],
        {
            "outputs": "the continuation, without the prompt",
            "scores": "log-probability / length ^ length_penalty, before any sharpening",
            **_STATUS,
        },
    ),
    "score": Signature(
        "how probable the model finds given texts",
        ["inputs"],
        {
            "scores": "the log-probability of the text, in nats, without END",
            "token_scores": "the log-probability of each token",
            "tokens": "the tokens",
            "status": '"ok", `text_repaired` (invalid UTF-8), or `text_truncated` (only its beginning is scored)',
        },
    ),
}
# That of exports which are asked for it.
_ATTENTION_SIGNATURE = Signature(
    "what every head looks at in a prompt and its best continuation",
    ["inputs"],
    {"outputs": "the continuation, without the prompt", **DECODER_OUTPUTS, **STEP_OUTPUTS, **_STATUS},
)
# The signatures that the README shows with a request, and the number of texts in it.
_SHOWN = {"serving_default": 2, "generate": 1, "score": 1}


class GeneratorSignatures(SearchSignatures):
    """The graph functions of a `TextGenerator`.

    Args:
        generator: `TextGenerator`, whose options are the defaults, and whose `num_beams` is the maximum of a
            request.
    """

    table, input_table = GENERATOR_SIGNATURES, INPUTS
    description = "A language model that takes prompts and returns their continuations, for TF Serving: the tokenizer is inside."
    shown = _SHOWN
    attention_signature = _ATTENTION_SIGNATURE

    def serving_default(self, inputs):
        """The best continuation of each prompt, with the generator's own options and no logits processors."""
        prompts = self._prompts(inputs, self.task.max_length, Status())
        num_answers = 1 if self.task.num_beams > 1 else None  # greedy search needs no scores
        token_ids = self._search(prompts, num_answers).token_ids
        return {"outputs": self.task.continuations(prompts, token_ids)[:, 0]}

    def generate(self, inputs, num_beams, length_penalty, *more):
        """The n best continuations of each prompt by beam search, and their scores."""
        status = Status()
        options = self.beam_options(status, num_beams, *more)
        prompts = self._prompts(inputs, options.max_length, status)
        hypotheses = self._search(
            prompts, self.task.num_beams, self.length_penalty(status, length_penalty), options
        )
        best = hypotheses.token_ids[:, 0]
        used = tf.reduce_max(tf.reduce_sum(tf.cast(best != NO_TOKEN, tf.int32), axis=1))
        tokens = self._token_strings(self.task.tokenizer, best[:, : tf.maximum(used, 1)])
        return {**self._answers(hypotheses, prompts, status, options), "tokens": tokens}

    def sample(self, inputs, *more):
        """One continuation of each prompt, drawn at random; a seed gives the same draw in any batch."""
        status = Status()
        options = self.sampling_options(status, *more)
        prompts = self._prompts(inputs, options.max_length, status)
        hypotheses = self._search(prompts, 1, options=options)
        answers = self._answers(hypotheses, prompts, status, options)
        return {
            "outputs": answers["outputs"][:, 0],
            "scores": answers["scores"][:, 0],
            "status": answers["status"],
        }

    def score(self, inputs):
        """The model's log-probabilities of given texts, as a whole and token by token."""
        status, longest = Status(), self.task.model.max_sequence_length
        whole = self.task.tokenizer.tokenize(inputs)
        status.note("text_repaired", is_repaired(inputs))
        status.note("text_truncated", whole.row_lengths() > longest)
        token_ids = filled(whole[:, :longest])
        log_probs = self.task.log_probs(token_ids)
        return {
            "scores": tf.reduce_sum(log_probs, axis=1),
            "token_scores": log_probs,
            "tokens": self._token_strings(self.task.tokenizer, token_ids),
            "status": status.text(),
        }

    def attention(self, inputs):
        """The attention scores of each prompt and its best continuation."""
        status, (longest, num_new) = Status(), attention_lengths(self.task)
        prompts, is_cut = self.task.prompts(inputs, num_new)
        status.note("prompt_repaired", is_repaired(inputs))
        status.note("prompt_truncated", is_cut | (prompts.row_lengths() > longest - num_new))
        prompts = filled(prompts[:, num_new - longest :])
        num_answers = 1 if self.task.num_beams > 1 else None
        found = self._search(prompts, num_answers, max_length=num_new).token_ids[:, 0]
        self.note_unfinished(status, found, None)
        whole = tf.concat([prompts, found], axis=1)
        whole = tf.RaggedTensor.from_row_lengths(
            tf.boolean_mask(whole, whole != NO_TOKEN),
            tf.reduce_sum(tf.cast(whole != NO_TOKEN, tf.int64), axis=1),
        )
        # The last token is written, and not read. A lone one is read.
        token_ids = filled(whole[:, : longest + 1])
        num_read = tf.maximum(whole.row_lengths() - 1, 1)
        is_read = tf.sequence_mask(num_read, tf.maximum(tf.shape(token_ids)[1] - 1, 1))
        token_ids = tf.pad(token_ids, [[0, 0], [0, 1]], constant_values=NO_TOKEN)
        width = tf.shape(is_read)[1]
        decoder_ids = tf.where(is_read, token_ids[:, :width], NO_TOKEN)
        target_ids = token_ids[:, 1 : width + 1]
        logits, scores = self._seen_attention(tf.maximum(decoder_ids, 0))
        tokenizer = self.task.tokenizer

        def strings(token_ids):
            return self._token_strings(tokenizer, token_ids)

        return {
            "outputs": self.task.continuations(prompts, found[:, tf.newaxis])[:, 0],
            "decoder_tokens": strings(decoder_ids),
            **self._seen_attention.outputs(scores, {"decoder": (is_read, is_read)}),
            **steps(logits, is_read, target_ids, tokenizer.vocabulary_size, strings),
            "status": status.text(),
        }

    @functools.cached_property
    def _seen_attention(self):
        length = min(5, self.task.model.max_sequence_length)
        return SeenAttention(
            self.task.model,
            self.task.model.teacher_forced,
            [tf.TensorSpec([None, None], tf.int32)],
            (np.full((1, length), self.task.tokenizer.end_token_id, "int32"),),
            lambda maps: by_kind(maps, {"decoder": (length, length)}),
        )

    def limits(self):
        """Lines about the sizes of requests and answers."""
        generator, longest = self.task, self.task.model.max_sequence_length
        before = ""
        if generator.start_token_id != NO_TOKEN:
            [start] = generator.tokenizer.token_strings([generator.start_token_id])
            before = f", the one before every text ({start}) counted"
        return [
            f"A prompt and its continuation have at most {longest} tokens together{before}; of a prompt that has {longest} or more, the end is kept, so that there is room for `max_length` "
            f"new tokens, at most {longest // 2}.",
            f"A continuation has at most {generator.max_length} tokens, END counted.",
            f"`serving_default` searches with {generator.num_beams} beam{'s' * (generator.num_beams > 1)} and length penalty "
            f"{generator.length_penalty}.",
            f"Vocabulary: {vocabulary(generator.tokenizer)}.",
            *([attention_limit(attention_lengths(generator)[0])] if "attention" in self.names else []),
        ]

    def limits_of_options(self):
        """A line about what else a request may ask for."""
        return [
            f"A request has at most {self.task.num_beams} beam{'s' * (self.task.num_beams > 1)}, and {NUM_STOP_TOKENS} ids "
            "of stop and of suppressed tokens."
        ]

    def _prompts(self, texts, max_length, status):
        token_ids, is_cut = self.task.prompts(texts, max_length)
        status.note("prompt_repaired", is_repaired(texts))
        status.note("prompt_truncated", is_cut)
        return filled(token_ids)

    def _search(self, prompts, num_return_sequences, length_penalty=None, options=None, max_length=None):
        search = self.task.search_options(max_length=max_length, num_return_sequences=num_return_sequences)
        if length_penalty is not None:
            search["length_penalty"] = length_penalty
        return self.task.generate(prompts, {**search, "options": options})

    def _answers(self, hypotheses, prompts, status, options):
        """The outputs of a search."""
        self.note_unfinished(status, hypotheses.token_ids[:, 0], options)
        return {
            "outputs": self.task.continuations(prompts, hypotheses.token_ids),
            "scores": tf.maximum(hypotheses.scores, NO_SCORE),
            "status": status.text(),
        }


class XlaGeneratorSignatures(GeneratorSignatures):
    """Only the default signature, with its model part compiled with XLA for few shapes, as in `XlaSignatures`.

    Args:
        generator: As in `GeneratorSignatures`.
        batch_sizes: Increasing integers.
        lengths: Increasing integers, the number of tokens of a prompt, with the one before every text. The last is the
            model's `max_sequence_length` - 1, which leaves room for a new one. Defaults to the powers of two from 16.
    """

    def __init__(self, generator, batch_sizes=BATCH_SIZES, lengths=None):
        super().__init__(generator, ["serving_default"])
        longest, meaning = generator.model.max_sequence_length - 1, "model's max_sequence_length - 1"
        self.buckets = Buckets(batch_sizes, lengths, longest, meaning, frozen=generator.model)

    def limits_of_options(self):
        return []

    def num_tokens(self, text):
        """How many tokens the model reads of a text."""
        prompts, _ = self.task.prompts(tf.constant([text]), self.task.max_length)
        return int(prompts.row_lengths()[0])

    def _search(self, prompts, num_return_sequences):
        search = self.task.search_options(num_return_sequences=num_return_sequences)

        def best(token_ids):
            return self.task.generate(token_ids, search).token_ids[:, 0]

        found = self.buckets.decoded(best, prompts, self.task.tokenizer.end_token_id, self.task.max_length)
        return Hypotheses(found[:, tf.newaxis], None)


def attention_lengths(generator):
    """The most tokens of a prompt and its continuation in an answer of `attention`, and the most new ones among them."""
    longest = min(ATTENTION_LENGTH, generator.model.max_sequence_length)
    return longest, max(min(generator.max_length, longest // 2), 1)
