"""The signatures of an exported translator: graph functions from strings and options to named outputs.

Every input and output is batch-major, and every option is a vector with a value for each text, because TF
Serving merges the requests of its clients into one batch. A value out of range is clamped and reported in the
`status` of its text; no client's input makes another client's request fail.
"""

import collections

import tensorflow as tf

from keras_attn.generation import DecodingOptions
from keras_attn.tasks.buckets import compiled_with_xla, in_buckets, powers_of_two
from keras_attn.tasks.teacher_forcing import token_log_probs, token_log_probs_and_alignment
from keras_attn.tasks.token_ids import to_texts, with_end

# The limits of a request. XLA and the server's batching need shapes that do not depend on the request.
NUM_STOP_TOKENS = 8
PREFIX_LENGTH = 64

Input = collections.namedtuple("Input", ["meaning", "dtype", "neutral", "size"], defaults=[None, None])
Input.__doc__ = """An input of a signature, with one value for each text.

meaning: String.
dtype: tf.DType.
neutral: The value that does not change the answer, or None. `length_penalty` has the translator's value.
size: Integer, the size of a second axis, or None if there is none.
"""

Signature = collections.namedtuple("Signature", ["meaning", "inputs", "outputs"])
Signature.__doc__ = """A signature of an exported translator.

meaning: String.
inputs: List of names in `INPUTS`.
outputs: Dict from the names of outputs to their meanings.
"""

INPUTS = {
    "inputs": Input("the texts to translate", tf.string),
    "targets": Input("their translations", tf.string),
    "target_prefix": Input('the text that a translation begins with; "" for none', tf.string, ""),
    "num_beams": Input("0 for the default, which is the most there can be", tf.int32, 0),
    "length_penalty": Input("the power of its length that a log-probability is divided by", tf.float32),
    "min_length": Input("the fewest tokens, END included; 0 for no limit", tf.int32, 0),
    "max_length": Input("the most tokens; 0 for the default, which is the most there can be", tf.int32, 0),
    "no_repeat_ngram_size": Input("n-grams of this size appear once; 0 for no limit", tf.int32, 0),
    "repetition_penalty": Input(
        "multiplies log-probabilities of tokens that are there already; 1 for none", tf.float32, 1.0
    ),
    "stop_token_ids": Input(
        "ids that end a translation as END does; -1 for none",
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
    "seed": Input("the same seed draws the same translation", tf.int32, 0),
}

_STATUS = {
    "status": '"ok", or the deviations from the request, joined by commas: `source_repaired` (invalid UTF-8), `source_truncated`, '
    "`unfinished` (no END within `max_length`), `top_p_clamped` and the like"
}
_N_BEST = {
    "outputs": 'the translations, best first; "" if the search found fewer',
    "scores": "log-probability / length ^ length_penalty; -1e30 if the search found fewer",
}

# The only description of the signatures of an export; the first is the default.
SIGNATURES = {
    "serving_default": Signature(
        "the best translation of each text", ["inputs"], {"outputs": "the translation"}
    ),
    "translate_n_best": Signature("the best translations of each text", ["inputs"], _N_BEST),
    "translate": Signature(
        "beam search with options for each text",
        [
            "inputs",
            "target_prefix",
            "num_beams",
            "length_penalty",
            "min_length",
            "max_length",
            "no_repeat_ngram_size",
            "repetition_penalty",
            "stop_token_ids",
            "suppressed_token_ids",
        ],
        {
            **_N_BEST,
            **_STATUS,
            "source_tokens": "the tokens of the text",
            "target_tokens": "those of the best translation",
            "alignment": "the number of the source token that each of them attended to most; -1 past the end",
        },
    ),
    "sample": Signature(
        "one translation drawn for each text; the same seed draws the same, whatever the batch",
        ["inputs", "target_prefix", "max_length", "temperature", "top_k", "top_p", "min_p", "seed"],
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

# The score of a hypothesis that the search did not find: JSON has no infinity.
NO_SCORE = -1e30


_Source = collections.namedtuple("_Source", ["token_ids", "has_text", "cache"])


class Signatures:
    """The graph functions of a `Translator`.

    Args:
        translator: `Translator`, whose options are the defaults, and whose `num_beams` is the maximum of a
            request.
        names: Names in `SIGNATURES`, or None for all that the model can answer. `serving_default` is always there.

    Raises:
        ValueError: for an unknown name, or `encode` for a model that has no encoder to call.
    """

    def __init__(self, translator, names=None):
        self.translator = translator
        known = [name for name in SIGNATURES if name != "encode" or hasattr(translator.model, "encode")]
        if names is not None and not set(names) <= set(known):
            raise ValueError(f"`signatures` must be names among {known}. Received: signatures={list(names)}.")
        self.names = [name for name in known if names is None or name in ("serving_default", *names)]
        self.source_tokenizer = translator.source_tokenizer
        self.target_tokenizer = translator.target_tokenizer
        # Parts of several signatures. Each is traced once, and its graph is a function that they all call.
        texts, token_ids = [tf.TensorSpec([None], tf.string)], [tf.TensorSpec([None, None], tf.int32)]
        hypotheses = [tf.TensorSpec([None, None, None], tf.int32)]
        self._source_ids = tf.function(self._tokenize_source, texts, autograph=False)
        self._texts = tf.function(self._detokenize, hypotheses, autograph=False)
        self._encoded = tf.function(self._encode, token_ids, autograph=False)
        self._n_best = tf.function(self._search_n_best, token_ids, autograph=False)
        self._log_probs_and_alignment = tf.function(self._forward, token_ids * 2, autograph=False)

    def all(self):
        """{name: (function, specs of its inputs)}; the first is the default."""
        return {
            name: (getattr(self, name), [_spec(name_of_input) for name_of_input in SIGNATURES[name].inputs])
            for name in self.names
        }

    def neutral_values(self):
        """{input: value for one text} of every option of every signature."""
        neutral = {name: given.neutral for name, given in INPUTS.items() if given.neutral is not None}
        return {**neutral, "length_penalty": float(self.translator.length_penalty)}

    def serving_default(self, inputs):
        """The best translation of each text, with the translator's own options and no logits processors."""
        source = self._source(inputs, _Status())
        texts = self._texts(self._best(source)[:, tf.newaxis])[:, 0]
        return {"outputs": tf.where(source.has_text, texts, "")}

    def translate_n_best(self, inputs):
        """The n best translations of each text, with the translator's own options."""
        status = _Status()
        source = self._source(inputs, status)
        hypotheses = self._n_best(source.token_ids)
        answers = self._answers(hypotheses, source, status)
        return {name: answers[name] for name in ("outputs", "scores")}

    def translate(
        self,
        inputs,
        target_prefix,
        num_beams,
        length_penalty,
        min_length,
        max_length,
        no_repeat_ngram_size,
        repetition_penalty,
        stop_token_ids,
        suppressed_token_ids,
    ):
        """The n best translations of each text by beam search, their scores, and the best one's alignment."""
        most, longest = self.translator.num_beams, self.translator.max_length
        status = _Status()
        source = self._source(inputs, status)
        max_length = status.clamped("max_length", _or_default(max_length, longest), 1, longest)
        options = DecodingOptions(
            num_beams=status.clamped("num_beams", _or_default(num_beams, most), 1, most),
            min_length=status.clamped("min_length", min_length, 0, max_length),
            max_length=max_length,
            no_repeat_ngram_size=status.clamped("no_repeat_ngram_size", no_repeat_ngram_size, 0, 4),
            repetition_penalty=status.clamped("repetition_penalty", repetition_penalty, 0.01, 100.0, nan=1.0),
            stop_token_ids=self._token_ids("stop_token_ids", stop_token_ids, status),
            suppressed_token_ids=self._token_ids("suppressed_token_ids", suppressed_token_ids, status),
            prefix_token_ids=self._prefix(target_prefix, status),
        )
        hypotheses = self._search(
            source,
            num_return_sequences=most,
            length_penalty=status.clamped(
                "length_penalty", length_penalty, -10.0, 10.0, nan=self.translator.length_penalty
            ),
            options=options,
        )
        best = hypotheses.token_ids[:, 0]
        return {
            **self._answers(hypotheses, source, status, options.stop_token_ids),
            **self._alignment(source, best),
        }

    def sample(self, inputs, target_prefix, max_length, temperature, top_k, top_p, min_p, seed):
        """One translation of each text, drawn at random; a seed gives the same draw in any batch."""
        longest = self.translator.max_length
        status = _Status()
        source = self._source(inputs, status)
        options = DecodingOptions(
            max_length=status.clamped("max_length", _or_default(max_length, longest), 1, longest),
            temperature=status.clamped("temperature", temperature, 0.0, 100.0, nan=1.0),
            top_k=status.clamped("top_k", top_k, 0, self.target_tokenizer.vocabulary_size),
            top_p=status.clamped("top_p", top_p, 0.0, 1.0, nan=1.0),
            min_p=status.clamped("min_p", min_p, 0.0, 1.0, nan=0.0),
            seed=seed,
            prefix_token_ids=self._prefix(target_prefix, status),
        )
        hypotheses = self._search(source, num_return_sequences=1, options=options)
        answers = self._answers(hypotheses, source, status)
        return {
            "outputs": answers["outputs"][:, 0],
            "scores": answers["scores"][:, 0],
            "status": answers["status"],
        }

    def score(self, inputs, targets):
        """The model's scores of given translations, as a whole and token by token."""
        status = _Status()
        source = self._source(inputs, status)
        target_ids, is_cut = self._with_end(self.target_tokenizer, targets)
        status.note("target_repaired", _is_repaired(targets))
        status.note("target_truncated", is_cut)
        log_probs, *_ = self._log_probs_and_alignment(source.token_ids, target_ids)
        length = tf.reduce_sum(tf.cast(target_ids != 0, tf.float32), axis=1)
        scores = tf.reduce_sum(log_probs, axis=1) / length**self.translator.length_penalty
        return {
            "scores": scores,
            "token_scores": log_probs,
            "tokens": self._token_strings(self.target_tokenizer, target_ids),
            "status": status.text(),
        }

    def encode(self, inputs):
        """A vector for each text: the mean of the encoder's output over its tokens, without END."""
        status = _Status()
        source = self._source(inputs, status)
        model = self.translator.model
        is_text = (source.token_ids != model.pad_token_id) & (
            source.token_ids != self.source_tokenizer.end_token_id
        )
        weights = tf.cast(is_text, tf.float32)[:, :, tf.newaxis]
        sequence = tf.cast(model.encode(source.token_ids), tf.float32) * weights
        return {
            "outputs": tf.reduce_sum(sequence, axis=1) / tf.maximum(tf.reduce_sum(weights, axis=1), 1.0),
            "status": status.text(),
        }

    def _source(self, texts, status):
        token_ids, is_cut, is_repaired = self._source_ids(texts)
        status.note("source_repaired", is_repaired)
        status.note("source_truncated", is_cut)
        has_text = token_ids[:, 0] != self.source_tokenizer.end_token_id
        return _Source(token_ids, has_text, lambda: self._encoded(token_ids))

    def _tokenize_source(self, texts):
        return *self._with_end(self.source_tokenizer, texts), _is_repaired(texts)

    def _detokenize(self, token_ids):
        return to_texts(self.target_tokenizer, token_ids)

    def _with_end(self, tokenizer, texts):
        """Ids (B, S) with END at the end, cut to `max_sequence_length`, and which rows were cut."""
        token_ids, is_cut = with_end(tokenizer, texts, self.translator.model.max_sequence_length)
        dense = token_ids.to_tensor()
        # An empty batch has no widest row, but needs a first column.
        return tf.pad(dense, [[0, 0], [0, tf.maximum(1 - tf.shape(dense)[1], 0)]]), is_cut

    def _prefix(self, texts, status):
        """Ids (B, PREFIX_LENGTH), -1 after the end of each."""
        whole = self.target_tokenizer.tokenize(texts)
        status.note("prefix_repaired", _is_repaired(texts))
        status.note("prefix_truncated", whole.row_lengths() > PREFIX_LENGTH)
        return whole.to_tensor(-1, shape=[None, PREFIX_LENGTH])

    def _token_ids(self, name, values, status):
        is_token = (values >= 0) & (values < self.target_tokenizer.vocabulary_size)
        status.note(f"{name}_clamped", tf.reduce_any(~is_token & (values != -1), axis=1))
        return tf.where(is_token, values, -1)

    def _encode(self, token_ids):
        model = self.translator.model
        return model.init_cache(token_ids, 0, token_ids != model.pad_token_id)

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

    def _search(self, source, num_return_sequences, length_penalty=None, options=None):
        search = self.translator.search_options(num_return_sequences=num_return_sequences)
        if length_penalty is not None:
            search["length_penalty"] = length_penalty
        search |= {"options": options, "cache": source.cache()}
        return self.translator.generate(source.token_ids, search)

    def _answers(self, hypotheses, source, status, stop_token_ids=None):
        """The outputs of a search. An empty text has one answer, "", whatever the search found."""
        token_ids, scores = hypotheses
        has_text = source.has_text[:, tf.newaxis]
        ends = token_ids[:, 0] == self.target_tokenizer.end_token_id
        if stop_token_ids is not None:
            stops = token_ids[:, 0, :, tf.newaxis] == stop_token_ids[:, tf.newaxis]
            ends |= tf.reduce_any(stops, axis=-1)
        status.note("unfinished", source.has_text & ~tf.reduce_any(ends, axis=-1))
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
        pad = self.translator.model.pad_token_id
        target_ids = tf.where(source.has_text[:, tf.newaxis], target_ids, pad)
        longest = tf.reduce_max(tf.reduce_sum(tf.cast(target_ids != pad, tf.int32), axis=1))
        target_ids = target_ids[:, : tf.maximum(longest, 1)]
        _, aligned = self._log_probs_and_alignment(source.token_ids, target_ids)
        return {
            "source_tokens": self._token_strings(self.source_tokenizer, source.token_ids),
            "target_tokens": self._token_strings(self.target_tokenizer, target_ids),
            "alignment": tf.where(target_ids == pad, -1, aligned),
        }

    def _token_strings(self, tokenizer, token_ids):
        with tf.init_scope():  # the vocabulary is looked up once, not in every request
            names = tokenizer.token_strings(range(tokenizer.vocabulary_size))
        names[self.translator.model.pad_token_id] = ""
        return tf.gather(tf.constant(names), token_ids)


class XlaSignatures(Signatures):
    """Only the default signature, with its model part compiled with XLA for few shapes.

    XLA has no strings, so the tokenizers stay outside the compiled part. Its inputs are ids padded to one of
    few lengths, in chunks of one of few batch sizes. A larger batch is split into chunks of the largest size.
    Whatever clients send, at most `len(batch_sizes) * len(lengths)` shapes are compiled.

    Args:
        translator: As in `Signatures`.
        batch_sizes: Increasing integers.
        lengths: Increasing integers, the number of tokens of a source with END. The last is the model's
            `max_sequence_length`. Defaults to the powers of two from 16.
    """

    def __init__(self, translator, batch_sizes=(1, 4, 16, 64), lengths=None):
        super().__init__(translator, ["serving_default"])
        longest = translator.model.max_sequence_length
        self.batch_sizes = _rising("batch_sizes", batch_sizes)
        self.lengths = powers_of_two(16, longest) if lengths is None else _rising("lengths", lengths)
        if self.lengths[-1] != longest:
            raise ValueError(
                f"`lengths` must end with the model's max_sequence_length={longest}. Received: {self.lengths}."
            )

    def _best(self, source):
        search = self.translator.search_options(num_return_sequences=None)

        def best(token_ids):
            return self.translator.generate(token_ids, search).token_ids[:, 0]

        chunks = in_buckets(
            source.token_ids, self.batch_sizes, self.lengths, self.source_tokenizer.end_token_id
        )
        spec = tf.TensorSpec([None, self.translator.max_length], tf.int32)
        found = tf.map_fn(compiled_with_xla(best), chunks, fn_output_signature=spec)
        return tf.reshape(found, [-1, self.translator.max_length])[: tf.shape(source.token_ids)[0]]


def _rising(name, sizes):
    sizes = list(sizes)
    if not sizes or min(sizes) < 1 or sizes != sorted(set(sizes)):
        raise ValueError(f"`{name}` must be rising positive integers. Received: {name}={sizes}.")
    return sizes


class _Status:
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


def _spec(name):
    given = INPUTS[name]
    return tf.TensorSpec([None] if given.size is None else [None, given.size], given.dtype, name=name)


def _or_default(values, default):
    """Replaces 0 by the default."""
    return tf.where(values == 0, default, values)


def _is_repaired(texts):
    return texts != tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8")
