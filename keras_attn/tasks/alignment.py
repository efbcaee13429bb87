import collections
import re

Word = collections.namedtuple("Word", ["text", "start", "stop"])
Word.__doc__ = """A word of a text: its characters from `start` up to `stop`."""

WordAlignment = collections.namedtuple("WordAlignment", ["source_words", "target_words", "links"])
WordAlignment.__doc__ = """The links between the words of a source and of its translation.

source_words, target_words: lists of `Word`, split at white space.
links: list of pairs of indices (source word, target word), in the order of the target.
"""


def word_alignment(source, target, source_spans, target_spans, looked_at):
    """Links the words whose tokens are linked by attention.

    Args:
        source, target: Strings.
        source_spans, target_spans: Lists of pairs, the byte span of each token in the UTF-8 text. Tokens past
            the end of a list, for example END, have no span.
        looked_at: List of integers, for each target token the index of its source token.
    """
    source_words, target_words = _words(source), _words(target)
    of_source = _words_of_tokens(source, source_words, source_spans)
    of_target = _words_of_tokens(target, target_words, target_spans)
    links = {
        (of_target[target_token], of_source[source_token])
        for target_token, source_token in enumerate(looked_at[: len(of_target)])
        if source_token < len(of_source) and None not in (of_target[target_token], of_source[source_token])
    }
    return WordAlignment(
        source_words, target_words, [(source_word, word) for word, source_word in sorted(links)]
    )


def words_of_tokens(text, spans):
    """For each token the index of its word, or None, by the byte spans of the tokens; words are what white space parts."""
    return _words_of_tokens(text, _words(text), spans)


def _words(text):
    return [Word(match[0], match.start(), match.end()) for match in re.finditer(r"\S+", text)]


def _words_of_tokens(text, words, spans):
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
