"""The signatures of an exported translator: graph functions from strings and options to named outputs.

Every input and output is batch-major, and every option is a vector with a value for each text, because TF
Serving merges the requests of its clients into one batch. A value out of range is clamped and reported in the
`status` of its text; no client's input makes another client's request fail.
"""

import collections
import dataclasses
import functools

import numpy as np
import tensorflow as tf

from keras_attn.generation import DecodingOptions
from keras_attn.tasks.attention_signature import (
    ATTENTION_LENGTH,
    CROSS_OUTPUTS,
    DECODER_OUTPUTS,
    ENCODER_OUTPUTS,
    STEP_OUTPUTS,
    SeenAttention,
    attention_limit,
    steps,
)
from keras_attn.tasks.buckets import BATCH_SIZES, Buckets, powers_of_two
from keras_attn.tasks.search_signatures import (
    BEAM_OPTIONS,
    N_BEST,
    NO_SCORE,
    NUM_STOP_TOKENS,
    OPTIONS,
    PREFIX_LENGTH,
    SAMPLING_OPTIONS,
    SearchSignatures,
)
from keras_attn.tasks.showing import by_kind
from keras_attn.tasks.signature_parts import Input, Signature, Status, is_repaired, vocabulary
from keras_attn.tasks.source_form import SourceForm
from keras_attn.tasks.teacher_forcing import token_log_probs, token_log_probs_and_alignment
from keras_attn.tasks.token_ids import NO_TOKEN, filled, for_model, to_texts

INPUTS = {
    "inputs": Input("the texts to translate", tf.string),
    "targets": Input("their translations", tf.string),
    "given_targets": Input('the translations to look at; "" for the best that are found', tf.string, ""),
    "target_prefix": Input('the text that a translation begins with; "" for none', tf.string, ""),
    "source_language": Input('the language of the text; "" for the default', tf.string, ""),
    "target_language": Input('the language of the translation; "" for the default', tf.string, ""),
    **OPTIONS,
}

_STATUS = {
    "status": '"ok", or the deviations from the request, joined by commas: `source_repaired` (invalid UTF-8), `source_truncated`, '
    "`unfinished` (no END within `max_length`), `top_p_clamped` and the like"
}
# Further inputs of multilingual translators.
_LANGUAGES = ["source_language", "target_language"]
# The only description of the signatures of an export; the first is the default.
SIGNATURES = {
    "serving_default": Signature(
        "the best translation of each text", ["inputs"], {"outputs": "the translation"}
    ),
    "translate_n_best": Signature("the best translations of each text", ["inputs"], N_BEST),
    "translate": Signature(
        "beam search with options for each text",
        [
            "inputs",
            "target_prefix",
            *BEAM_OPTIONS,
        ],
        {
            **N_BEST,
            **_STATUS,
            "source_tokens": "the tokens of the text",
            "target_tokens": "those of the best translation",
            "alignment": "the number of the source token that each of them attended to most; -1 past the end",
        },
    ),
    "sample": Signature(
        "one translation drawn for each text; the same seed draws the same, whatever the batch",
        ["inputs", "target_prefix", *SAMPLING_OPTIONS],
        {
            "outputs": "the translation",
            "scores": "log-probability / length ^ length_penalty, before any sharpening",
            **_STATUS,
        },
    ),
    "score": Signature(
        "how probable the model finds given translations",
        ["inputs", "targets"],
        {
            "scores": "log-probability / length ^ length_penalty",
            "token_scores": "the log-probability of each token",
            "tokens": "the tokens, END included",
            **_STATUS,
        },
    ),
    "encode": Signature(
        "a vector for each text",
        ["inputs"],
        {"outputs": "the mean of the encoder's output over the tokens, END aside", **_STATUS},
    ),
}

# That of exports which are asked for it.
ATTENTION_SIGNATURE = Signature(
    "what every head looks at while a text is translated",
    ["inputs", "given_targets"],
    {
        "outputs": "the translation",
        **ENCODER_OUTPUTS,
        **DECODER_OUTPUTS,
        **CROSS_OUTPUTS,
        **STEP_OUTPUTS,
        **_STATUS,
    },
)

# The signatures that the README shows with a request, and the number of texts in it.
_SHOWN = {"serving_default": 2, "translate": 1, "score": 1}

_Source = collections.namedtuple("_Source", ["token_ids", "has_text", "cache"])


def _with_languages(table):
    """The signatures of a multilingual translator: those with options take the languages too."""
    more = {"translate": _LANGUAGES, "sample": _LANGUAGES, "attention": _LANGUAGES}
    return {
        name: of_name._replace(inputs=[*of_name.inputs, *more.get(name, ())])
        for name, of_name in table.items()
    }


class Signatures(SearchSignatures):
    """The graph functions of a `Translator`.

    Args:
        translator: `Translator`, whose options are the defaults, and whose `num_beams` is the maximum of a
            request.
        names: Names in `SIGNATURES`, or None for all that the model can answer. `serving_default` is always there.
        attention: Boolean, whether there is a signature `attention` too.

    Raises:
        ValueError: for an unknown name, or `encode` for a model that has no encoder to call.
    """

    table, input_table = SIGNATURES, INPUTS
    description = (
        "A translator that takes strings and returns strings, for TF Serving: the tokenizers are inside."
    )
    shown = _SHOWN
    attention_signature = ATTENTION_SIGNATURE

    def __init__(self, translator, names=None, attention=False):
        if translator.languages is not None:
            self.table = _with_languages(SIGNATURES)
            self.attention_signature = _with_languages({"attention": ATTENTION_SIGNATURE})["attention"]
        super().__init__(translator, names, attention)
        self.translator = translator
        self.source_tokenizer = translator.source_tokenizer
        self.target_tokenizer = translator.target_tokenizer
        self.longest_source = translator.model.max_sequence_length
        # Parts of several signatures. Each is traced once, and its graph is a function that they all call.
        texts, token_ids = [tf.TensorSpec([None], tf.string)], [tf.TensorSpec([None, None], tf.int32)]
        hypotheses = [tf.TensorSpec([None, None, None], tf.int32)]
        languages = [tf.TensorSpec([None], tf.int32)]
        self._source_ids = tf.function(self._tokenize_source, texts + languages, autograph=False)
        self._texts = tf.function(self._detokenize, hypotheses, autograph=False)
        self._encoded = tf.function(self._encode, token_ids, autograph=False)
        self._n_best = tf.function(self._search_n_best, token_ids, autograph=False)
        self._log_probs_and_alignment = tf.function(self._forward, token_ids * 2, autograph=False)

    def known(self):
        return [name for name in self.table if name != "encode" or hasattr(self.task.model, "encode")]

    def example_inputs(self, signature_name, texts, ask):
        if signature_name != "score":
            return {"inputs": texts}
        return {"inputs": texts, "targets": ask("serving_default", {"inputs": texts})["outputs"].tolist()}

    def serving_default(self, inputs):
        """The best translation of each text, with the translator's own options and no logits processors."""
        source = self._source(inputs, Status())
        texts = self._texts(self._best(source)[:, tf.newaxis])[:, 0]
        return {"outputs": tf.where(source.has_text, texts, "")}

    def translate_n_best(self, inputs):
        """The n best translations of each text, with the translator's own options."""
        status = Status()
        source = self._source(inputs, status)
        hypotheses = self._n_best(source.token_ids)
        answers = self._answers(hypotheses, source, status)
        return {name: answers[name] for name in ("outputs", "scores")}

    def translate(self, inputs, target_prefix, num_beams, length_penalty, *more):
        """The n best translations of each text by beam search, their scores, and the best one's alignment."""
        status = Status()
        more, source_ids, of_target = self._languages(status, more)
        source = self._source(inputs, status, source_ids)
        options = self.beam_options(status, num_beams, *more)
        prefix = self._prefix(target_prefix, status)
        options = dataclasses.replace(options, prefix_token_ids=prefix, **of_target)
        hypotheses = self._search(
            source,
            num_return_sequences=self.translator.num_beams,
            length_penalty=self.length_penalty(status, length_penalty),
            options=options,
        )
        best = hypotheses.token_ids[:, 0]
        return {
            **self._answers(hypotheses, source, status, options),
            **self._alignment(source, best),
        }

    def sample(self, inputs, target_prefix, *more):
        """One translation of each text, drawn at random; a seed gives the same draw in any batch."""
        status = Status()
        more, source_ids, of_target = self._languages(status, more)
        source = self._source(inputs, status, source_ids)
        options = self.sampling_options(status, *more)
        prefix = self._prefix(target_prefix, status)
        options = dataclasses.replace(options, prefix_token_ids=prefix, **of_target)
        hypotheses = self._search(source, num_return_sequences=1, options=options)
        answers = self._answers(hypotheses, source, status)
        return {
            "outputs": answers["outputs"][:, 0],
            "scores": answers["scores"][:, 0],
            "status": answers["status"],
        }

    def score(self, inputs, targets):
        """The model's scores of given translations, as a whole and token by token."""
        status = Status()
        source = self._source(inputs, status)
        target_ids, is_cut = self._target_ids(targets)
        status.note("target_repaired", is_repaired(targets))
        status.note("target_truncated", is_cut)
        log_probs, *_ = self._log_probs_and_alignment(source.token_ids, target_ids)
        length = tf.reduce_sum(tf.cast(target_ids != NO_TOKEN, tf.float32), axis=1)
        scores = tf.reduce_sum(log_probs, axis=1) / length**self.translator.length_penalty
        return {
            "scores": scores,
            "token_scores": log_probs,
            "tokens": self._token_strings(self.target_tokenizer, target_ids),
            "status": status.text(),
        }

    def encode(self, inputs):
        """A vector for each text: the mean of the encoder's output over its tokens, without END."""
        status = Status()
        source = self._source(inputs, status)
        model = self.translator.model
        token_ids, mask = for_model(source.token_ids)
        is_text = mask & (token_ids != self.source_tokenizer.end_token_id)
        weights = tf.cast(is_text, tf.float32)[:, :, tf.newaxis]
        sequence = tf.cast(model.encode(token_ids, mask), tf.float32) * weights
        return {
            "outputs": tf.reduce_sum(sequence, axis=1) / tf.maximum(tf.reduce_sum(weights, axis=1), 1.0),
            "status": status.text(),
        }

    def attention(self, inputs, given_targets, *more):
        """The attention scores of each text and its translation: that which is given, or the best that is found."""
        status, length = Status(), self._attention_length()
        _, source_ids, of_target = self._languages(status, more)
        source = self._source(inputs, status, source_ids, length)
        start, first = self._start_and_first(inputs, of_target)
        given, is_cut = self._given_ids(given_targets, first, length)
        is_given = given_targets != ""
        status.note("target_repaired", is_given & is_repaired(given_targets))
        status.note("target_truncated", is_given & is_cut)
        is_wanted = source.has_text & ~is_given
        # Nothing is searched for where all are given.
        found = tf.cond(
            tf.reduce_any(is_wanted),
            lambda: self._found_ids(source, of_target, length),
            lambda: tf.fill([tf.shape(inputs)[0], length], NO_TOKEN),
        )
        found = tf.where(is_wanted[:, tf.newaxis], found, NO_TOKEN)
        self.note_unfinished(status, found, None, among=is_wanted)
        target_ids = self._trimmed(tf.where(is_given[:, tf.newaxis], given, found))
        before = tf.concat([start[:, tf.newaxis], target_ids[:, :-1]], axis=1)
        decoder_ids = tf.where(target_ids == NO_TOKEN, NO_TOKEN, before)
        logits, scores = self._seen_attention(source.token_ids, tf.maximum(decoder_ids, 0))
        is_source, is_target = source.token_ids != NO_TOKEN, target_ids != NO_TOKEN
        are_tokens = {
            "encoder": (is_source, is_source),
            "decoder": (is_target, is_target),
            "cross": (is_target, is_source),
        }
        tokenizer = self.target_tokenizer

        def strings(token_ids):
            return self._token_strings(tokenizer, token_ids)

        return {
            "outputs": self._texts(target_ids[:, tf.newaxis])[:, 0],
            "encoder_tokens": self._token_strings(self.source_tokenizer, source.token_ids),
            "decoder_tokens": strings(decoder_ids),
            **self._seen_attention.outputs(scores, are_tokens),
            **steps(logits, is_target, target_ids, tokenizer.vocabulary_size, strings),
            "status": status.text(),
        }

    @functools.cached_property
    def _seen_attention(self):
        model, longest = self.translator.model, self._attention_length()
        num_source, num_target = min(5, longest), min(3, longest)
        lengths = {
            "encoder": (num_source, num_source),
            "decoder": (num_target, num_target),
            "cross": (num_target, num_source),
        }
        wanted = {"return_attention_scores": True} if model.returns_attention_scores else {}

        def logits(source_ids, decoder_ids):
            source_ids, mask = for_model(source_ids)
            result = model.teacher_forced(source_ids, decoder_ids, mask, **wanted)
            return result[0] if wanted else result

        def row(tokenizer, length):
            return np.full((1, length), tokenizer.end_token_id, "int32")

        return SeenAttention(
            model,
            logits,
            [tf.TensorSpec([None, None], tf.int32)] * 2,
            (row(self.source_tokenizer, num_source), row(self.target_tokenizer, num_target)),
            lambda maps: by_kind(maps, lengths),
        )

    def _attention_length(self):
        return min(ATTENTION_LENGTH, self.translator.model.max_sequence_length)

    def _start_and_first(self, texts, of_target):
        """The ids before each translation, and with which each begins at no cost, int32 (B,); -1 for none."""
        translator, shape = self.translator, tf.shape(texts)
        start = tf.fill(shape, translator.start_token_id)
        first = of_target.get("first_token_id", translator.options.first_token_id)
        first = tf.broadcast_to(tf.cast(NO_TOKEN if first is None else first, tf.int32), shape)
        if translator.languages is not None and translator.languages.target_is_start:
            return tf.where(first < 0, start, first), tf.fill(shape, NO_TOKEN)
        return start, first

    def _given_ids(self, texts, first, length):
        """Ids (B, length) of translations that are given, as a search finds them, and which were cut."""
        whole = tf.cast(self.target_tokenizer.tokenize(texts), tf.int32)
        room = length - 1 - tf.cast(first >= 0, tf.int64)
        kept = tf.ragged.boolean_mask(whole, tf.ragged.range(whole.row_lengths()) < room[:, tf.newaxis])
        before = tf.ragged.boolean_mask(first[:, tf.newaxis], first[:, tf.newaxis] >= 0)
        end = tf.fill([tf.shape(texts)[0], 1], tf.constant(self.target_tokenizer.end_token_id, tf.int32))
        token_ids = tf.concat([before, kept, end], axis=1)
        return token_ids.to_tensor(NO_TOKEN, shape=[None, length]), whole.row_lengths() > room

    def _found_ids(self, source, of_target, length):
        """Ids (B, length) of the best translations."""
        num_answers = 1 if self.translator.num_beams > 1 else None  # greedy search needs no scores
        options = DecodingOptions(**of_target) if of_target else None
        longest = min(self.translator.max_length, length)
        token_ids = self._search(source, num_answers, options=options, max_length=longest).token_ids[:, 0]
        return tf.pad(token_ids, [[0, 0], [0, length - longest]], constant_values=NO_TOKEN)

    def _source(self, texts, status, language_ids=None, longest=None):
        if language_ids is None:
            languages = self.translator.languages
            language_ids = tf.fill(tf.shape(texts), languages.default("source") if languages else NO_TOKEN)
        if longest is None:
            token_ids, is_cut, repaired = self._source_ids(texts, language_ids)
        else:
            token_ids, is_cut, repaired = self._tokenize_source(texts, language_ids, longest)
        status.note("source_repaired", repaired)
        status.note("source_truncated", is_cut)
        num_tokens = tf.reduce_sum(tf.cast(token_ids != NO_TOKEN, tf.int32), axis=1)
        has_text = num_tokens > self.translator.num_added_tokens
        return _Source(token_ids, has_text, lambda: self._encoded(token_ids))

    def _languages(self, status, inputs):
        """The inputs without languages; the ids of the sources' languages; and the options of the targets'."""
        languages = self.translator.languages
        if languages is None:
            return inputs, None, {}
        *inputs, source, target = inputs
        source_ids, is_unknown = languages.ids_of("source", source)
        status.note("source_language_unknown", is_unknown)
        target_ids, is_unknown = languages.ids_of("target", target)
        status.note("target_language_unknown", is_unknown)
        return inputs, source_ids, {"first_token_id": target_ids}

    def _tokenize_source(self, texts, language_ids, longest=None):
        longest = longest or self.longest_source
        token_ids, is_cut = self.translator.source_token_ids(texts, language_ids, longest)
        return filled(token_ids), is_cut, is_repaired(texts)

    def _detokenize(self, token_ids):
        return to_texts(self.target_tokenizer, token_ids)

    def _target_ids(self, texts):
        """Ids (B, T) as a search finds them, cut to `max_sequence_length`, and which rows were cut."""
        first = self.translator.options.first_token_id
        form = SourceForm(() if first is None else (first,), (self.target_tokenizer.end_token_id,))
        longest = self.translator.model.max_sequence_length
        token_ids, is_cut = form.token_ids(self.target_tokenizer, texts, longest)
        return filled(token_ids), is_cut

    def _prefix(self, texts, status):
        """Ids (B, PREFIX_LENGTH), -1 after the end of each."""
        whole = self.target_tokenizer.tokenize(texts)
        status.note("prefix_repaired", is_repaired(texts))
        status.note("prefix_truncated", whole.row_lengths() > PREFIX_LENGTH)
        return whole.to_tensor(-1, shape=[None, PREFIX_LENGTH])

    def _encode(self, token_ids):
        token_ids, mask = for_model(token_ids)
        return self.translator.model.init_cache(token_ids, 0, mask)

    def _forward(self, source_ids, target_ids):
        """The log-probabilities of the target ids, and their alignment if the model can give it."""
        pair = source_ids, target_ids, self._encoded(source_ids)
        if self.translator.model.returns_attention_scores:
            return token_log_probs_and_alignment(self.translator, *pair)
        return (token_log_probs(self.translator, *pair),)

    def _best(self, source):
        """The ids (B, L) of the best translation of each text."""
        if self.translator.num_beams > 1:
            return self._n_best(source.token_ids).token_ids[:, 0]
        # Greedy search needs no scores.
        return self._search(source, num_return_sequences=None).token_ids[:, 0]

    def _search_n_best(self, token_ids):
        source = _Source(token_ids, None, lambda: self._encoded(token_ids))
        return self._search(source, num_return_sequences=self.translator.num_beams)

    def _search(self, source, num_return_sequences, length_penalty=None, options=None, max_length=None):
        search = self.translator.search_options(
            max_length=max_length, num_return_sequences=num_return_sequences
        )
        if length_penalty is not None:
            search["length_penalty"] = length_penalty
        search |= {"options": options, "cache": source.cache()}
        return self.translator.generate(source.token_ids, search)

    def _answers(self, hypotheses, source, status, options=None):
        """The outputs of a search. An empty text has one answer, "", whatever the search found."""
        token_ids, scores = hypotheses
        has_text = source.has_text[:, tf.newaxis]
        self.note_unfinished(status, token_ids[:, 0], options, among=source.has_text)
        only_answer = tf.where(tf.range(tf.shape(scores)[1]) == 0, 0.0, NO_SCORE)
        return {
            "outputs": tf.where(has_text, self._texts(hypotheses.token_ids), ""),
            "scores": tf.where(has_text, tf.maximum(scores, NO_SCORE), only_answer),
            "status": status.text(),
        }

    def _alignment(self, source, target_ids):
        """For each token of the best translation, the source token with the most attention, if known."""
        if not self.translator.model.returns_attention_scores:
            return {}
        target_ids = self._trimmed(tf.where(source.has_text[:, tf.newaxis], target_ids, NO_TOKEN))
        _, aligned = self._log_probs_and_alignment(source.token_ids, target_ids)
        return {
            "source_tokens": self._token_strings(self.source_tokenizer, source.token_ids),
            "target_tokens": self._token_strings(self.target_tokenizer, target_ids),
            "alignment": tf.where(target_ids == NO_TOKEN, -1, aligned),
        }

    def _trimmed(self, token_ids):
        """Ids (B, L), filled, with as many columns as the longest row has tokens, and one at least."""
        longest = tf.reduce_max(tf.reduce_sum(tf.cast(token_ids != NO_TOKEN, tf.int32), axis=1))
        return token_ids[:, : tf.maximum(longest, 1)]

    def limits(self):
        """Lines about the sizes of requests and answers."""
        translator = self.translator
        return [
            f"A source has at most {self.longest_source} tokens, END counted; what is longer is cut.",
            f"A translation has at most {translator.max_length} tokens, END counted.",
            f"`serving_default` searches with {translator.num_beams} beams and length penalty {translator.length_penalty}.",
            f"Vocabularies: {vocabulary(translator.source_tokenizer)} (source), "
            f"{vocabulary(translator.target_tokenizer)} (target).",
            *(
                [
                    "Translations have the tokens alone that its shortlist has for their source; `score` knows all."
                ]
                if translator.shortlist is not None
                else []
            ),
            *([attention_limit(self._attention_length())] if "attention" in self.names else []),
        ]

    def limits_of_options(self):
        """A line about what else a request may ask for."""
        return [
            f"A request has at most {self.translator.num_beams} beams, {PREFIX_LENGTH} tokens of target prefix, and "
            f"{NUM_STOP_TOKENS} ids of stop and of suppressed tokens."
        ]


# The longest source that XLA compiles unless more is asked for: attention takes memory with its square, and batches are large.
MOST_COMPILED = 1024


class XlaSignatures(Signatures):
    """Only the default signature, with its model part compiled with XLA for few shapes.

    XLA has no strings, so the tokenizers stay outside the compiled part. Its inputs are ids padded to one of
    few lengths, in chunks of one of few batch sizes. A larger batch is split into chunks of the largest size.
    Whatever clients send, at most `len(batch_sizes) * len(lengths)` shapes are compiled.

    Args:
        translator: As in `Signatures`.
        batch_sizes: Increasing integers.
        lengths: Increasing integers, the number of tokens of a source with END. The last is the model's
            `max_sequence_length`, or if that is more, at least `MOST_COMPILED`: a longer source is then cut to it.
            Defaults to the powers of two from 16, up to `MOST_COMPILED`.
    """

    def __init__(self, translator, batch_sizes=BATCH_SIZES, lengths=None):
        super().__init__(translator, ["serving_default"])
        longest = translator.model.max_sequence_length
        if longest > MOST_COMPILED:
            lengths = powers_of_two(16, MOST_COMPILED) if lengths is None else list(lengths)
            is_within = bool(lengths) and MOST_COMPILED <= lengths[-1] <= longest
            longest = lengths[-1] if is_within else longest
        meaning = "model's max_sequence_length"
        self.buckets = Buckets(batch_sizes, lengths, longest, meaning, frozen=translator.model)
        self.longest_source = longest

    def limits_of_options(self):
        return []

    def num_tokens(self, text):
        """How many tokens the model reads of a text."""
        return len(self.source_tokenizer.encode([text])[0]) + self.task.num_added_tokens

    def _best(self, source):
        search = self.translator.search_options(num_return_sequences=None)

        def best(token_ids):
            return self.translator.generate(token_ids, search).token_ids[:, 0]

        return self.buckets.decoded(
            best, source.token_ids, self.source_tokenizer.end_token_id, self.translator.max_length
        )
