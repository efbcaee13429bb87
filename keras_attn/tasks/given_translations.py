"""Given translations and texts: their log-probabilities, their attention, and word alignments by it."""

import collections
import re

import numpy as np
import tensorflow as tf

from keras_attn.tasks.batches import for_model, padded, run_in_batches
from keras_attn.text import as_utf8

AttentionMap = collections.namedtuple("AttentionMap", ["source_tokens", "target_tokens", "attention_scores"])
AttentionMap.__doc__ = """The attention scores of a translation.

source_tokens: list of S strings, END included.
target_tokens: list of T strings, END included if the translation has one.
attention_scores: float32 array (L, N, T, S): decoder layer, head, target token, source token.
"""


def token_log_probs(translator, source_ids, target_ids, cache=None):
    """The log-probability (B, T) of each target id, 0 after the last; ids are int32, (B, S) and (B, T), see `padded`.

    `cache` is as in `Seq2SeqGeneration.generate`.
    """
    source_ids, mask = for_model(source_ids)
    logits = translator.model.teacher_forced(
        source_ids, _after_start(translator, target_ids), mask, cache=cache
    )
    return _log_probs(translator, logits, target_ids)


def cross_attention(translator, source_ids, target_ids):
    """The scores of cross-attention, (B, L, N, T, S)."""
    source_ids, mask = for_model(source_ids)
    _, scores = translator.model.teacher_forced(
        source_ids, _after_start(translator, target_ids), mask, return_attention_scores=True
    )
    return tf.stack(scores, axis=1)


def alignment(translator, source_ids, target_ids):
    """For each target token, the index of the source token with the most attention, int32 (B, T).

    The scores are the mean over the heads of the last layer but one, which aligns words best (Garg et al.,
    2019, https://arxiv.org/abs/1909.02074, section 4.1).
    """
    return _most_attended(cross_attention(translator, source_ids, target_ids))


def token_log_probs_and_alignment(translator, source_ids, target_ids, cache=None):
    """The results of `token_log_probs` and `alignment` by one forward pass."""
    source_ids, mask = for_model(source_ids)
    logits, scores = translator.model.teacher_forced(
        source_ids, _after_start(translator, target_ids), mask, return_attention_scores=True, cache=cache
    )
    return _log_probs(translator, logits, target_ids), _most_attended(tf.stack(scores, axis=1))


def _log_probs(translator, logits, target_ids):
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.maximum(target_ids, 0), logits)
    is_given = target_ids < 0
    if translator.options.first_token_id is not None:  # which a search takes at no cost
        is_given |= tf.range(tf.shape(target_ids)[1]) == 0
    return tf.where(is_given, 0.0, -losses)


def _most_attended(scores):
    layer_scores = scores[:, alignment_layer(scores.shape[1])]
    return tf.argmax(tf.reduce_mean(layer_scores, axis=1), axis=-1, output_type=tf.int32)


def alignment_layer(num_layers):
    """The index of the layer whose attention aligns words: the last but one."""
    return max(num_layers - 2, 0)


def run_on_pairs(translator, function, source_ids, target_ids, batch_size):
    """The results of a function (translator, ids (B, S), ids (B, T)) for each pair of lists of ids.

    Each result is an array, with the padding of its batch.
    """
    spec = tf.TensorSpec([None, None], tf.int32)
    graph = translator.graph_of(function.__name__, lambda *ids: function(translator, *ids), [spec, spec])

    def answer(rows):
        sources = padded([source_ids[row] for row in rows])
        targets = padded([target_ids[row] for row in rows])
        return graph(sources, targets).numpy()

    return run_in_batches(answer, target_ids, batch_size)


def attention_maps(translator, source_ids, target_ids, batch_size):
    """An `AttentionMap` for each pair of lists of ids."""
    scores = run_on_pairs(translator, cross_attention, source_ids, target_ids, batch_size)
    return [
        AttentionMap(
            translator.source_tokenizer.token_strings(source),
            translator.target_tokenizer.token_strings(target),
            pair_scores[:, :, : len(target), : len(source)],
        )
        for source, target, pair_scores in zip(source_ids, target_ids, scores)
    ]


def empty_attention_map(model):
    """The map of an empty text, which has no tokens."""
    return AttentionMap([], [], np.zeros((*model.cross_attention_shape, 0, 0), "float32"))


def _after_start(translator, target_ids):
    """`target_ids` (B, T) as the decoder's input: START before them, and without the last."""
    start = tf.fill([tf.shape(target_ids)[0], 1], translator.start_token_id)
    return tf.concat([start, tf.maximum(target_ids[:, :-1], 0)], axis=1)


Word = collections.namedtuple("Word", ["text", "start", "stop"])
Word.__doc__ = """A word of a text: its characters from `start` up to `stop`."""

WordAlignment = collections.namedtuple("WordAlignment", ["source_words", "target_words", "links"])
WordAlignment.__doc__ = """The links between the words of a source and of its translation.

source_words, target_words: lists of `Word`, split at white space.
links: list of pairs of indices (source word, target word), in the order of the target.
"""


def word_alignment(source, target, source_spans, target_spans, source_tokens):
    """Links the words whose tokens are linked by attention.

    Args:
        source, target: Strings.
        source_spans, target_spans: Lists of pairs, the byte span of each token in the UTF-8 text. Tokens past
            the end of a list, for example END, have no span.
        source_tokens: List of integers, for each target token the index of its source token.
    """
    source_words = _words(source)
    target_words = _words(target)
    source_numbers = _word_numbers(source, source_words, source_spans)
    target_numbers = _word_numbers(target, target_words, target_spans)
    links = set()
    for target_number, source_token in zip(target_numbers, source_tokens):
        source_number = source_numbers[source_token] if source_token < len(source_numbers) else None
        if source_number is not None and target_number is not None:
            links.add((target_number, source_number))
    links = [(source_number, target_number) for target_number, source_number in sorted(links)]
    return WordAlignment(source_words, target_words, links)


def word_numbers(text, spans):
    """For each token the index of its word, or None, by the byte spans of the tokens; words are what white space parts."""
    return _word_numbers(text, _words(text), spans)


def _words(text):
    return [Word(match[0], match.start(), match.end()) for match in re.finditer(r"\S+", text)]


def _word_numbers(text, words, spans):
    """The index of the word that each token's last character belongs to, or None."""
    characters = _characters_of_bytes(text)
    numbers = [None] * (len(text) + 1)
    for number, word in enumerate(words):
        numbers[word.start : word.stop] = [number] * (word.stop - word.start)
    # A token with an empty span, for example the first bytes of a character, counts as the character after
    # it.
    return [numbers[characters[max(stop - 1, start)]] for start, stop in spans]


def _characters_of_bytes(text):
    """For each byte of the UTF-8 text, and for its end, the index of the character that it is part of."""
    numbers = [i for i, character in enumerate(text) for _ in character.encode("utf-8", "surrogatepass")]
    return [*numbers, len(text)]


def replace_unknown_words(translator, texts, num_beams=None, options=None, batch_size=64):
    """Translates texts and replaces each unknown token of a translation by a word of the source.

    It is the word of the source token with the most attention from the unknown token, by the mean over the
    heads of the last layer but one. A vocabulary with byte fallback does not need this: there, and if
    `unknown_token_id` is None, translations are those of the translator.

    Args:
        translator: `Translator`.
        texts: String, or list of strings.
        num_beams, options, batch_size: As in a call of the translator.

    Returns:
        A string, or a list of strings.

    Example:

    ```python
    translator = keras_attn.Translator.load("runs/dates/translator")
    replace_unknown_words(translator, "4th of July 2016")
    ```

    Reference: [Luong et al., 2015](https://arxiv.org/abs/1410.8206), section 3.3, and
    [Jean et al., 2015](https://arxiv.org/abs/1412.2007), section 4.1.
    """
    single = isinstance(texts, str | bytes)
    sources = [texts] if single else list(texts)
    translations, maps = translator(
        sources, num_beams=num_beams, options=options, batch_size=batch_size, return_attention_scores=True
    )
    if translator.target_tokenizer.unknown_token_id is not None:
        spans = _spans(translator.source_tokenizer, sources)
        translations = list(map(_Replacement(translator), translations, maps, sources, spans))
    return translations[0] if single else translations


class _Replacement:
    def __init__(self, translator):
        tokenizer = translator.target_tokenizer
        [self.name] = tokenizer.token_strings([tokenizer.unknown_token_id])
        self.shown = tokenizer.decode([[tokenizer.unknown_token_id]])[0].strip()

    def __call__(self, translation, attention_map, source, spans):
        """The translation, with each `shown` that stands for an unknown token replaced by a word."""
        is_unknown = [token == self.name for token in attention_map.target_tokens]
        parts = translation.split(self.shown)
        if not any(is_unknown) or len(parts) != sum(is_unknown) + 1:
            return translation
        end = len(attention_map.source_tokens) - 1
        scores = attention_map.attention_scores
        source_tokens = scores[alignment_layer(len(scores))].mean(axis=0)[is_unknown].argmax(axis=-1)
        text = parts[0]
        for token, part in zip(source_tokens, parts[1:]):
            word = _word_at(source, spans[token]) if token < end else None
            # An unknown token stays if its source token is END or white space after the last word.
            text += (word or self.shown) + part
        return re.sub(" {2,}", " ", text).strip()


def _spans(tokenizer, texts):
    """For each text the first byte of each of its tokens, and the byte after its last."""
    _, starts, stops = (x.to_list() for x in tokenizer.tokenize_with_offsets(texts))
    return [list(zip(*row)) for row in zip(starts, stops)]


def _word_at(text, span):
    """The word that a token is part of; for white space, the word after it."""
    [text] = as_utf8([text])
    last = max(span[1] - 1, span[0])
    words = re.finditer(rb"\S+", text.decode("utf-8", "replace").encode())  # spans are of the repaired text
    return next((word[0].decode() for word in words if last < word.end()), None)
