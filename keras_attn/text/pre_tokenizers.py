"""The pre-tokenizers of a tokenizer.json: functions that cut texts into words."""

import functools

import tensorflow as tf

from keras_attn.text.added_tokens import REMOVED
from keras_attn.text.bert_words import PUNCTUATION
from keras_attn.text.json_parts import check_value, pattern_of, read_part
from keras_attn.text.patterns import (
    CUT,
    GPT2_PATTERN,
    NUMBER,
    WHITE_SPACE,
    WORD,
    cutter,
    escaped,
    looks_ahead,
    one_pattern,
)

# Marks a word whose first character is not in the text, where offsets are counted.
PREFIX = b"\xfc"
_BYTE_LEVEL = "ByteLevel"
_ISOLATED = CUT + rb"\0" + CUT  # the rewrite of a match that becomes a word
_SCHEMES = ("always", "first", "never")
# `tokenizers` takes numbers from Unicode 17, and joiners for parts of words.
_NUMBER = NUMBER + r"\x{11DE0}-\x{11DE9}\x{16FF4}-\x{16FF6}"
_WORD = WORD + r"\x{200C}-\x{200D}"


class PreTokenizer:
    """Cuts texts into words.

    Args:
        part: The object `pre_tokenizer` of a tokenizer.json, or `None`: each text is one word.
        keeps_removed: Whether what is not part of a word is kept as one that begins with `REMOVED`, and `PREFIX` is put
            before a word that gets a prefix.
    """

    def __init__(self, part, keeps_removed=False):
        parts = [] if part is None else _flat(part)
        names = [step.get("type") for step in parts]
        if _BYTE_LEVEL in names[:-1]:
            raise ValueError(f"The pre-tokenizer ByteLevel must be the last. Received: {names}.")
        if any(step.get("prepend_scheme") == "first" for step in parts[1:]):
            raise ValueError(
                f"A pre-tokenizer with prepend_scheme='first' must be the first. Received: {names}."
            )
        self.spells_bytes = names[-1:] == [_BYTE_LEVEL]
        removed = CUT + REMOVED + rb"\0" + CUT if keeps_removed else CUT
        prefix = PREFIX + CUT if keeps_removed else b""
        builders = _Builders(removed, prefix).by_type
        self._steps = [read_part(step, "pre-tokenizer", builders) for step in parts]

    def __call__(self, texts, is_first):
        """Cuts texts.

        Args:
            texts: String tensor of shape (N,).
            is_first: Boolean tensor of shape (N,), whether each is the start of what the user gave.

        Returns:
            Ragged string tensor of shape (N, None), without empty words.
        """
        words = tf.RaggedTensor.from_row_lengths(texts, tf.ones_like(is_first, tf.int64))
        for number, step in enumerate(self._steps):
            cut = step(words.values, is_first)
            if number > 0:
                cut = tf.where(is_no_word(words.values), words.values, cut)
            words = words.with_values(tf.strings.split(cut, CUT)).merge_dims(1, 2)
        return tf.ragged.boolean_mask(words, words.with_values(tf.strings.length(words.values) > 0))


def is_no_word(words):
    """Whether each word of a flat string tensor is what stood between words, or the sign of a prefix."""
    first = tf.strings.substr(words, 0, 1)
    return tf.equal(first, REMOVED) | tf.equal(first, PREFIX)


def _flat(part):
    """The steps of a pre-tokenizer, sequences within sequences opened."""
    if not isinstance(part, dict):
        raise ValueError(f"A pre-tokenizer must be an object. Received: {part!r:.50}")
    if part.get("type") != "Sequence":
        return [part]
    return [step for inner in part["pretokenizers"] for step in _flat(inner)]


class _Builders:
    """The functions that build the steps of a pre-tokenizer; each step is a function of texts and `is_first`.

    Args:
        removed: Rewrite of what is not part of a word.
        prefix: Bytes before a word that gets a prefix.
    """

    def __init__(self, removed, prefix):
        self._prefix = prefix
        self._rewrites = {
            "Isolated": _ISOLATED,
            "Removed": removed,
            "MergedWithPrevious": rb"\0" + CUT,
            "MergedWithNext": CUT + rb"\0",
        }
        without_space = (f"[{WHITE_SPACE}]+", removed)
        words = (f"[{_WORD}]+|[^{_WORD}{WHITE_SPACE}]+", _ISOLATED)
        self.by_type = {
            "Split": self._split,
            "ByteLevel": self._byte_level,
            "Metaspace": functools.partial(_metaspace, prefix),
            "BertPreTokenizer": lambda: _replacing(without_space, (PUNCTUATION, _ISOLATED)),
            "Punctuation": lambda behavior="Isolated": self._by_behavior(PUNCTUATION, behavior),
            "WhitespaceSplit": lambda: _replacing(without_space),
            "Whitespace": lambda: _replacing(without_space, words),
            "Digits": _digits,
            "CharDelimiterSplit": lambda delimiter: _replacing((escaped(delimiter), removed)),
        }

    def _split(self, pattern, behavior, invert=False):
        kind, text = pattern_of(pattern)
        if kind == "Regex" and looks_ahead(text):
            # Every character is part of a match, so there is nothing between matches.
            known = [("Isolated", False), ("Isolated", True), ("Removed", True)]
            check_value("pre-tokenizer Split", "(behavior, invert)", (behavior, invert), known)
            cut = cutter(text)
            return lambda texts, _: cut(texts)
        known = (False, True) if behavior == "Isolated" else (False,)
        check_value("pre-tokenizer Split", "invert", invert, known)
        pattern = one_pattern(text) if kind == "Regex" else escaped(text)
        return self._by_behavior(pattern, behavior)

    def _by_behavior(self, pattern, behavior):
        if behavior == "Contiguous":
            return _replacing((f"(?:{pattern})+", _ISOLATED))
        return _replacing((pattern, self._rewrites[behavior]))

    def _byte_level(self, add_prefix_space=True, trim_offsets=True, use_regex=True):
        cut = cutter(GPT2_PATTERN)

        def step(texts, _):
            if add_prefix_space:
                texts = tf.strings.regex_replace(texts, r"(?s)\A([^ ])", self._prefix + rb" \1")
            return cut(texts) if use_regex else texts

        return step


def _replacing(*pairs):
    """A step that replaces one pattern after the other."""

    def step(texts, _):
        for pattern, rewrite in pairs:
            texts = tf.strings.regex_replace(texts, pattern, rewrite)
        return texts

    return step


def _digits(individual_digits=False):
    pattern = f"[{_NUMBER}]" if individual_digits else f"[{_NUMBER}]+"
    return _replacing((pattern, _ISOLATED))


def _metaspace(prefix, replacement="▁", prepend_scheme=None, split=True, add_prefix_space=True, str_rep=None):
    check_value("pre-tokenizer Metaspace", "str_rep", str_rep, (None, replacement))
    if prepend_scheme is None:
        prepend_scheme = "always" if add_prefix_space else "never"
    check_value("pre-tokenizer Metaspace", "prepend_scheme", prepend_scheme, _SCHEMES)
    mark = escaped(replacement)

    def step(texts, is_first):
        texts = tf.strings.regex_replace(texts, " ", replacement)
        if prepend_scheme != "never":
            prefixed = tf.strings.regex_replace(
                texts, rf"(?s)\A([^{mark}])", prefix + replacement.encode() + rb"\1"
            )
            if prepend_scheme == "first":
                prefixed = tf.where(is_first, prefixed, texts)
            texts = prefixed
        if split:
            texts = tf.strings.regex_replace(texts, mark, CUT + rb"\0")
        return texts

    return step
