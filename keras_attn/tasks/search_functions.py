"""The graph functions of the exports of tasks that write texts: what they share, those of text generators, and of translators."""

import collections
import dataclasses
import functools

import numpy as np
import tensorflow as tf

from keras_attn.generation import OPTIONS, DecodingOptions
from keras_attn.tasks.attention_maps import (
    ATTENTION_LENGTH,
    AttentionFunction,
    attention_limit,
    by_kind,
    step_outputs,
)
from keras_attn.tasks.batches import NO_TOKEN, filled, for_model, to_texts
from keras_attn.tasks.given_translations import token_log_probs, token_log_probs_and_alignment
from keras_attn.tasks.signatures import Input, SignatureFunctions, Status, is_repaired, vocabulary
from keras_attn.tasks.text_forms import SourceForm

# The limits of a request. XLA and the server's batching need shapes that do not depend on the request.
NUM_STOP_TOKENS = 8
PREFIX_LENGTH = 64
# The score of a hypothesis that the search did not find: JSON has no infinity.
NO_SCORE = -1e30

_SERVED = {name: option for name, option in OPTIONS.items() if option.request_range is not None}
# The options of a beam search and of sampling, the same for all tasks.
BEAM_OPTIONS = [name for name, option in _SERVED.items() if option.acts_on != "draws"]
BEAM_OPTIONS.insert(BEAM_OPTIONS.index("num_beams") + 1, "length_penalty")
SAMPLING_OPTIONS = ["max_length"]
SAMPLING_OPTIONS += [name for name, option in _SERVED.items() if option.acts_on == "draws"]
# The outputs of signatures that search and that draw.
N_BEST = {
    "outputs": 'the answers, best first; "" if the search found fewer',
    "scores": "log-probability / length ^ length_penalty; -1e30 if the search found fewer",
}
DRAWN_SCORES = {"scores": "log-probability / length ^ length_penalty, before any sharpening"}
# The page shows an answer growing by quick searches for its first tokens.
SEARCHED_BEGINNINGS = {"length": "max_length", "options": {"num_beams": 1}}
DRAWN_BEGINNINGS = {"length": "max_length", "options": {}}
STATUSES = {"unfinished": "The answer reached the most tokens it may have before it came to an end."}

ReadTexts = collections.namedtuple("ReadTexts", ["token_ids", "has_text", "cache"], defaults=[True, None])
ReadTexts.__doc__ = """What a search reads of texts.

token_ids: int32 (B, S), filled with `NO_TOKEN`.
has_text: Booleans (B,), which texts are not empty; True where empty texts are answered as others are.
cache: Function that returns the model's cache for them, or None.
"""


def _option_input(name, option):
    if option.is_list:
        return Input(option.help, tf.int32, [option.neutral] * NUM_STOP_TOKENS, NUM_STOP_TOKENS)
    return Input(option.help, tf.as_dtype(option.dtype), option.neutral, widget=_option_widget(name, option))


def _option_widget(name, option):
    words = name.replace("_", " ")
    widget = {"label": option.label or words.capitalize()}
    if option.hint is not None:
        widget["hint"] = option.hint
    if name == "seed":
        return {"kind": "seed", **widget}
    if option.slider is None:
        widget |= {"kind": "number", "least": option.least}
        if option.neutral == 0:
            widget["least"] = 0
    else:
        widget |= {"kind": "slider", "range": list(option.slider)}
    if option.neutral == 0 and option.neutral_means is not None:
        widget["zero"] = option.neutral_means
    return widget


OPTION_INPUTS = {name: _option_input(name, option) for name, option in _SERVED.items()}
OPTION_INPUTS["length_penalty"] = Input(
    "the power of its length that a log-probability is divided by",
    tf.float32,
    widget={
        "kind": "slider",
        "label": "Longer answers",
        "hint": "0 = none: short answers win, 1 = all lengths alike, 2 = long answers win.",
        "range": [0, 2, 0.1],
    },
)


class SearchFunctions(SignatureFunctions):
    """The graph functions of a `GenerativeTask`, whose options are the defaults, and whose `num_beams` is the most of a request.

    With buckets, the search is compiled with XLA for few shapes. XLA has no strings, so the tokenizers stay outside. The inputs
    of the compiled part are ids padded to one of few lengths, in chunks of one of few batch sizes; a larger batch is split into
    chunks of the largest size. Whatever clients send, at most `len(batch_sizes) * len(lengths)` shapes are compiled.

    A subclass implements `_read(texts, status)`, the `ReadTexts` of strings (B,), and `_texts(source, token_ids)`, the strings
    (B, n) of ids (B, n, L).
    """

    def serving_default(self, inputs):
        """The best answer to each text, with the task's own options and no logits processors."""
        source = self._read(inputs, Status())
        best = self._best(source)
        return {"outputs": self._texts(source, best[:, tf.newaxis])[:, 0]}

    def decoding_options(self, status, request):
        """`DecodingOptions` with the values of a request, {name: tensor}, in their ranges."""
        limits = {
            "num_beams": self.task.num_beams,
            "max_length": self.task.max_length,
            "top_k": self.task.output_tokenizer.vocabulary_size,
        }
        names = [name for name in request if name in _SERVED]
        options = {}
        for name in sorted(
            names, key=lambda name: name != "max_length"
        ):  # which is the limit of `min_length`
            option = _SERVED[name]
            if option.is_list:
                options[name] = self._token_ids(name, request[name], status)
                continue
            values = request[name]
            least, greatest = option.request_range
            if greatest is None:
                greatest = options["max_length"] if name == "min_length" else limits[name]
            if option.least is not None and option.neutral < option.least:
                values = tf.where(values == option.neutral, greatest, values)
            nan = option.neutral if option.dtype == "float32" else None
            options[name] = status.clamped(name, values, least, greatest, nan=nan)
        return DecodingOptions(**options)

    def note_unfinished(self, status, token_ids, options, among=True):
        """Notes the rows of ids (B, L) without END or another stop token, of those where `among` is true."""
        ends = token_ids == self.task.output_tokenizer.end_token_id
        options = self.task.with_defaults(options)
        if options.stop_token_ids is not None:
            stops = tf.convert_to_tensor(options.stop_token_ids)
            stops = token_ids[:, :, tf.newaxis] == tf.reshape(stops, [-1, 1, stops.shape[-1]])
            ends |= tf.reduce_any(stops, axis=-1) & (token_ids >= 0)  # -1 fills rows, and means no token
        status.note("unfinished", among & ~tf.reduce_any(ends, axis=-1))

    def search_limits(self):
        """A line about the search of `serving_default`."""
        task = self.task
        beams = "1 beam" if task.num_beams == 1 else f"{task.num_beams} beams"
        return f"`serving_default` searches with {beams} and length penalty {task.length_penalty}."

    def option_limits(self):
        """A line about what else a request may ask for."""
        if self.buckets is not None:
            return []
        beams = "1 beam" if self.task.num_beams == 1 else f"{self.task.num_beams} beams"
        return [f"A request has at most {beams}{self._other_limits()} ids of stop and of suppressed tokens."]

    def _other_limits(self):
        return f", and {NUM_STOP_TOKENS}"

    def _request(self, signature_name, values):
        """{name: tensor} of the inputs of a signature."""
        return dict(zip(self.table[signature_name].inputs, values, strict=True))

    def _best(self, source):
        """The ids (B, L) of the best answers."""
        if self.buckets is None:
            # No scores are asked for, so a single beam is a greedy search.
            return self._search(source, num_return_sequences=None).token_ids[:, 0]
        search = self.task.search_options(num_return_sequences=None)
        end = self.task.output_tokenizer.end_token_id

        def best(token_ids):
            return self.task.generate(token_ids, search).token_ids[:, 0]

        return self.buckets.decoded(best, source.token_ids, end, self.task.max_length)

    def _search(self, source, num_return_sequences, length_penalty=None, options=None, max_length=None):
        search = self.task.search_options(max_length=max_length, num_return_sequences=num_return_sequences)
        if length_penalty is not None:
            search["length_penalty"] = length_penalty
        search["options"] = options
        if source.cache is not None:
            search["cache"] = source.cache()
        return self.task.generate(source.token_ids, search)

    def _searched(self, source, status, request, options):
        """The `Hypotheses` of a beam search with the options of a request."""
        nan = self.task.length_penalty
        penalty = status.clamped("length_penalty", request["length_penalty"], -10.0, 10.0, nan=nan)
        return self._search(source, self.task.num_beams, penalty, options)

    def _drawn(self, source, status, options):
        """The outputs of `sample`."""
        hypotheses = self._search(source, 1, options=options)
        answers = self._answers(source, hypotheses, status, options)
        return {
            "outputs": answers["outputs"][:, 0],
            "scores": answers["scores"][:, 0],
            "status": answers["status"],
        }

    def _answers(self, source, hypotheses, status, options=None):
        """The outputs of a search. An empty text may have one answer, "", whatever the search found."""
        scores = tf.maximum(hypotheses.scores, NO_SCORE)
        if source.has_text is not True:
            only_answer = tf.where(tf.range(tf.shape(scores)[1]) == 0, 0.0, NO_SCORE)
            scores = tf.where(source.has_text[:, tf.newaxis], scores, only_answer)
        self.note_unfinished(status, hypotheses.token_ids[:, 0], options, among=source.has_text)
        return {
            "outputs": self._texts(source, hypotheses.token_ids),
            "scores": scores,
            "status": status.text(),
        }

    def _token_ids(self, name, values, status):
        is_token = (values >= 0) & (values < self.task.output_tokenizer.vocabulary_size)
        status.note(f"{name}_clamped", tf.reduce_any(~is_token & (values != NO_TOKEN), axis=1))
        return tf.where(is_token, values, NO_TOKEN)


def trimmed_columns(token_ids):
    """Ids (B, L), filled, with as many columns as the longest row has tokens, and one at least."""
    longest = tf.reduce_max(tf.reduce_sum(tf.cast(token_ids != NO_TOKEN, tf.int32), axis=1))
    return token_ids[:, : tf.maximum(longest, 1)]


class GeneratorFunctions(SearchFunctions):
    """The graph functions of a `TextGenerator`."""

    def generate(self, *values):
        """The n best continuations of each prompt by beam search, and their scores."""
        request = self._request("generate", values)
        status = Status()
        options = self.decoding_options(status, request)
        prompts = self._read(request["inputs"], status, options.max_length)
        hypotheses = self._searched(prompts, status, request, options)
        tokens = self._token_strings(self.task.tokenizer, trimmed_columns(hypotheses.token_ids[:, 0]))
        return {**self._answers(prompts, hypotheses, status, options), "tokens": tokens}

    def sample(self, *values):
        """One continuation of each prompt, drawn at random; a seed gives the same draw in any batch."""
        request = self._request("sample", values)
        status = Status()
        options = self.decoding_options(status, request)
        prompts = self._read(request["inputs"], status, options.max_length)
        return self._drawn(prompts, status, options)

    def score(self, inputs):
        """The model's log-probabilities of given texts, as a whole and token by token."""
        status = Status()
        longest = self.task.model.max_sequence_length
        whole = self.task.tokenizer.tokenize(inputs)
        status.note("text_repaired", is_repaired(inputs))
        status.note("text_truncated", whole.row_lengths() > longest)
        status.note_unknown_characters(self.task.tokenizer, inputs)
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
        status = Status()
        longest, num_new = attention_lengths(self.task)
        prompts, is_cut = self.task.prompts(inputs, num_new)
        status.note("prompt_repaired", is_repaired(inputs))
        status.note("prompt_truncated", is_cut | (prompts.row_lengths() > longest - num_new))
        status.note_unknown_characters(self.task.tokenizer, inputs)
        source = ReadTexts(filled(prompts[:, num_new - longest :]))
        found = self._search(source, None, max_length=num_new).token_ids[:, 0]
        self.note_unfinished(status, found, None)
        whole = tf.concat([source.token_ids, found], axis=1)
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
        logits, scores = self._attention_function(tf.maximum(decoder_ids, 0))
        tokenizer = self.task.tokenizer

        def strings(token_ids):
            return self._token_strings(tokenizer, token_ids)

        return {
            "outputs": self._texts(source, found[:, tf.newaxis])[:, 0],
            "decoder_tokens": strings(decoder_ids),
            **self._attention_function.outputs(scores, {"decoder": (is_read, is_read)}),
            **step_outputs(logits, is_read, target_ids, tokenizer.vocabulary_size, strings),
            "status": status.text(),
        }

    @functools.cached_property
    def _attention_function(self):
        length = min(5, self.task.model.max_sequence_length)
        return AttentionFunction(
            self.task.model,
            self.task.model.teacher_forced,
            [tf.TensorSpec([None, None], tf.int32)],
            (np.full((1, length), self.task.tokenizer.end_token_id, "int32"),),
            lambda maps: by_kind(maps, {"decoder": (length, length)}),
        )

    def num_tokens(self, text):
        prompts, _ = self.task.prompts(tf.constant([text]), self.task.max_length)
        return int(prompts.row_lengths()[0])

    def limits(self):
        generator = self.task
        longest = generator.model.max_sequence_length
        before = ""
        if generator.start_token_id != NO_TOKEN:
            [start] = generator.tokenizer.token_strings([generator.start_token_id])
            before = f", the one before every text ({start}) counted"
        lines = [
            f"A prompt and its continuation have at most {longest} tokens together{before}; of a prompt that has {longest} or "
            f"more, the end is kept, so that there is room for `max_length` new tokens, at most {longest // 2}.",
            f"A continuation has at most {generator.max_length} tokens, END counted.",
            self.search_limits(),
            f"Vocabulary: {vocabulary(generator.tokenizer)}.",
        ]
        if "attention" in self.names:
            lines.append(attention_limit(attention_lengths(generator)[0]))
        return lines

    def _read(self, texts, status, max_length=None):
        if max_length is None:
            max_length = self.task.max_length
        token_ids, is_cut = self.task.prompts(texts, max_length)
        status.note("prompt_repaired", is_repaired(texts))
        status.note("prompt_truncated", is_cut)
        status.note_unknown_characters(self.task.tokenizer, texts)
        return ReadTexts(filled(token_ids))

    def _texts(self, source, token_ids):
        return self.task.continuations(source.token_ids, token_ids)


def attention_lengths(generator):
    """The most tokens of a prompt and its continuation in an answer of `attention`, and the most new ones among them."""
    longest = min(ATTENTION_LENGTH, generator.model.max_sequence_length)
    num_new = max(min(generator.max_length, longest // 2), 1)
    return longest, num_new


class TranslatorFunctions(SearchFunctions):
    """The graph functions of a `Translator`; the arguments are those of `SignatureFunctions`."""

    def __init__(self, translator, names=None, *, attention=False, buckets=None):
        super().__init__(translator, names, attention=attention, buckets=buckets)
        self.source_tokenizer = translator.source_tokenizer
        self.target_tokenizer = translator.target_tokenizer
        self.longest_source = translator.model.max_sequence_length
        if buckets is not None:
            self.longest_source = buckets.lengths[-1]
        # Parts of several signatures. Each is traced once, and its graph is a function that they all call.
        strings = tf.TensorSpec([None], tf.string)
        languages = tf.TensorSpec([None], tf.int32)
        token_ids = tf.TensorSpec([None, None], tf.int32)
        hypotheses = tf.TensorSpec([None, None, None], tf.int32)
        self._source_ids = tf.function(self._tokenize_source, [strings, languages], autograph=False)
        self._detokenized = tf.function(self._detokenize, [hypotheses], autograph=False)
        self._encoded = tf.function(self._encode, [token_ids], autograph=False)
        self._n_best = tf.function(self._search_n_best, [token_ids], autograph=False)
        self._log_probs_and_alignment = tf.function(self._forward, [token_ids] * 2, autograph=False)

    def example_inputs(self, signature_name, examples, ask):
        if signature_name != "score":
            return {"inputs": examples}
        translations = ask("serving_default", {"inputs": examples})["outputs"]
        return {"inputs": examples, "targets": translations.tolist()}

    def translate_n_best(self, inputs):
        """The n best translations of each text, with the translator's own options."""
        status = Status()
        source = self._read(inputs, status)
        answers = self._answers(source, self._n_best(source.token_ids), status)
        return {name: answers[name] for name in ("outputs", "scores")}

    def translate(self, *values):
        """The n best translations of each text by beam search, their scores, and the best one's alignment."""
        request = self._request("translate", values)
        status = Status()
        source, options = self._read_request(request, status)
        hypotheses = self._searched(source, status, request, options)
        return {
            **self._answers(source, hypotheses, status, options),
            **self._alignment(source, hypotheses.token_ids[:, 0]),
        }

    def sample(self, *values):
        """One translation of each text, drawn at random; a seed gives the same draw in any batch."""
        request = self._request("sample", values)
        status = Status()
        source, options = self._read_request(request, status)
        return self._drawn(source, status, options)

    def score(self, inputs, targets):
        """The model's scores of given translations, as a whole and token by token."""
        status = Status()
        source = self._read(inputs, status)
        target_ids, is_cut = self._target_ids(targets)
        status.note("target_repaired", is_repaired(targets))
        status.note("target_truncated", is_cut)
        log_probs, *_ = self._log_probs_and_alignment(source.token_ids, target_ids)
        length = tf.reduce_sum(tf.cast(target_ids != NO_TOKEN, tf.float32), axis=1)
        scores = tf.reduce_sum(log_probs, axis=1) / length**self.task.length_penalty
        return {
            "scores": scores,
            "token_scores": log_probs,
            "tokens": self._token_strings(self.target_tokenizer, target_ids),
            "status": status.text(),
        }

    def encode(self, inputs):
        """A vector for each text: the mean of the encoder's output over its tokens, without END."""
        status = Status()
        source = self._read(inputs, status)
        token_ids, mask = for_model(source.token_ids)
        is_text = mask & (token_ids != self.source_tokenizer.end_token_id)
        weights = tf.cast(is_text, tf.float32)[:, :, tf.newaxis]
        sequence = tf.cast(self.task.model.encode(token_ids, mask), tf.float32) * weights
        return {
            "outputs": tf.reduce_sum(sequence, axis=1) / tf.maximum(tf.reduce_sum(weights, axis=1), 1.0),
            "status": status.text(),
        }

    def attention(self, *values):
        """The attention scores of each text and its translation: that which is given, or the best that is found."""
        request = self._request("attention", values)
        status = Status()
        length = self._attention_length()
        source_ids, target_options = self._languages(status, request)
        source = self._read(request["inputs"], status, source_ids, length)
        start, first = self._start_and_first(request["inputs"], target_options)
        given_targets = request["given_targets"]
        given, is_cut = self._given_ids(given_targets, first, length)
        is_given = given_targets != ""
        status.note("target_repaired", is_given & is_repaired(given_targets))
        status.note("target_truncated", is_given & is_cut)
        is_wanted = source.has_text & ~is_given
        # Nothing is searched for where all are given.
        found = tf.cond(
            tf.reduce_any(is_wanted),
            lambda: self._found_ids(source, target_options, length),
            lambda: tf.fill([tf.shape(given_targets)[0], length], NO_TOKEN),
        )
        found = tf.where(is_wanted[:, tf.newaxis], found, NO_TOKEN)
        self.note_unfinished(status, found, None, among=is_wanted)
        target_ids = trimmed_columns(tf.where(is_given[:, tf.newaxis], given, found))
        before = tf.concat([start[:, tf.newaxis], target_ids[:, :-1]], axis=1)
        decoder_ids = tf.where(target_ids == NO_TOKEN, NO_TOKEN, before)
        logits, scores = self._attention_function(source.token_ids, tf.maximum(decoder_ids, 0))
        is_source = source.token_ids != NO_TOKEN
        is_target = target_ids != NO_TOKEN
        are_tokens = {
            "encoder": (is_source, is_source),
            "decoder": (is_target, is_target),
            "cross": (is_target, is_source),
        }
        tokenizer = self.target_tokenizer

        def strings(token_ids):
            return self._token_strings(tokenizer, token_ids)

        return {
            "outputs": self._detokenized(target_ids[:, tf.newaxis])[:, 0],
            "encoder_tokens": self._token_strings(self.source_tokenizer, source.token_ids),
            "decoder_tokens": strings(decoder_ids),
            **self._attention_function.outputs(scores, are_tokens),
            **step_outputs(logits, is_target, target_ids, tokenizer.vocabulary_size, strings),
            "status": status.text(),
        }

    @functools.cached_property
    def _attention_function(self):
        model = self.task.model
        longest = self._attention_length()
        num_source = min(5, longest)
        num_target = min(3, longest)
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

        return AttentionFunction(
            model,
            logits,
            [tf.TensorSpec([None, None], tf.int32)] * 2,
            (row(self.source_tokenizer, num_source), row(self.target_tokenizer, num_target)),
            lambda maps: by_kind(maps, lengths),
        )

    def _attention_length(self):
        return min(ATTENTION_LENGTH, self.task.model.max_sequence_length)

    def _start_and_first(self, texts, target_options):
        """The ids before each translation, and with which each begins at no cost, int32 (B,); -1 for none."""
        translator = self.task
        shape = tf.shape(texts)
        start = tf.fill(shape, translator.start_token_id)
        first = target_options.get("first_token_id", translator.options.first_token_id)
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

    def _found_ids(self, source, target_options, length):
        """Ids (B, length) of the best translations."""
        options = DecodingOptions(**target_options) if target_options else None
        longest = min(self.task.max_length, length)
        token_ids = self._search(source, None, options=options, max_length=longest).token_ids[:, 0]
        return tf.pad(token_ids, [[0, 0], [0, length - longest]], constant_values=NO_TOKEN)

    def _read_request(self, request, status):
        """The `ReadTexts` and the `DecodingOptions` of a request to `translate` or `sample`."""
        source_ids, target_options = self._languages(status, request)
        source = self._read(request["inputs"], status, source_ids)
        options = self.decoding_options(status, request)
        prefix = self._prefix(request["target_prefix"], status)
        return source, dataclasses.replace(options, prefix_token_ids=prefix, **target_options)

    def _read(self, texts, status, language_ids=None, longest=None):
        if language_ids is None:
            languages = self.task.languages
            language = NO_TOKEN if languages is None else languages.default("source")
            language_ids = tf.fill(tf.shape(texts), language)
        if longest is None:
            token_ids, is_cut, repaired = self._source_ids(texts, language_ids)
        else:
            token_ids, is_cut, repaired = self._tokenize_source(texts, language_ids, longest)
        status.note("source_repaired", repaired)
        status.note("source_truncated", is_cut)
        status.note_unknown_characters(self.source_tokenizer, texts)
        num_tokens = tf.reduce_sum(tf.cast(token_ids != NO_TOKEN, tf.int32), axis=1)
        has_text = num_tokens > self.task.num_added_tokens
        return ReadTexts(token_ids, has_text, lambda: self._encoded(token_ids))

    def _languages(self, status, request):
        """The ids of the sources' languages, and the options of the targets'."""
        languages = self.task.languages
        if languages is None:
            return None, {}
        source_ids, is_unknown = languages.ids_of("source", request["source_language"])
        status.note("source_language_unknown", is_unknown)
        target_ids, is_unknown = languages.ids_of("target", request["target_language"])
        status.note("target_language_unknown", is_unknown)
        return source_ids, {"first_token_id": target_ids}

    def _tokenize_source(self, texts, language_ids, longest=None):
        longest = longest or self.longest_source
        token_ids, is_cut = self.task.source_token_ids(texts, language_ids, longest)
        return filled(token_ids), is_cut, is_repaired(texts)

    def _texts(self, source, token_ids):
        texts = self._detokenized(token_ids)
        return tf.where(source.has_text[:, tf.newaxis], texts, "")

    def _detokenize(self, token_ids):
        return to_texts(self.target_tokenizer, token_ids)

    def _target_ids(self, texts):
        """Ids (B, T) as a search finds them, cut to `max_sequence_length`, and which rows were cut."""
        first = self.task.options.first_token_id
        before = () if first is None else (first,)
        form = SourceForm(before, (self.target_tokenizer.end_token_id,))
        longest = self.task.model.max_sequence_length
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
        return self.task.model.init_cache(token_ids, 0, mask)

    def _forward(self, source_ids, target_ids):
        """The log-probabilities of the target ids, and their alignment if the model can give it."""
        cache = self._encoded(source_ids)
        if self.task.model.returns_attention_scores:
            return token_log_probs_and_alignment(self.task, source_ids, target_ids, cache)
        return (token_log_probs(self.task, source_ids, target_ids, cache),)

    def _best(self, source):
        if self.buckets is None and self.task.num_beams > 1:
            # The search of `translate_n_best`: the graph holds it once.
            return self._n_best(source.token_ids).token_ids[:, 0]
        return super()._best(source)

    def _search_n_best(self, token_ids):
        source = ReadTexts(token_ids, cache=lambda: self._encoded(token_ids))
        return self._search(source, num_return_sequences=self.task.num_beams)

    def _alignment(self, source, target_ids):
        """For each token of the best translation, the source token with the most attention, if known."""
        if not self.task.model.returns_attention_scores:
            return {}
        target_ids = trimmed_columns(tf.where(source.has_text[:, tf.newaxis], target_ids, NO_TOKEN))
        _, aligned = self._log_probs_and_alignment(source.token_ids, target_ids)
        return {
            "source_tokens": self._token_strings(self.source_tokenizer, source.token_ids),
            "target_tokens": self._token_strings(self.target_tokenizer, target_ids),
            "alignment": tf.where(target_ids == NO_TOKEN, -1, aligned),
        }

    def num_tokens(self, text):
        return len(self.source_tokenizer.encode([text])[0]) + self.task.num_added_tokens

    def limits(self):
        translator = self.task
        lines = [
            f"A source has at most {self.longest_source} tokens, END counted; what is longer is cut.",
            f"A translation has at most {translator.max_length} tokens, END counted.",
            self.search_limits(),
            f"Vocabularies: {vocabulary(translator.source_tokenizer)} (source), "
            f"{vocabulary(translator.target_tokenizer)} (target).",
        ]
        if translator.shortlist is not None:
            lines.append(
                "Translations have the tokens alone that its shortlist has for their source; `score` knows all."
            )
        if "attention" in self.names:
            lines.append(attention_limit(self._attention_length()))
        return lines

    def _other_limits(self):
        return f", {PREFIX_LENGTH} tokens of target prefix, and {NUM_STOP_TOKENS}"
