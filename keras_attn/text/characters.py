"""Which characters a model has met in training, and how many of a text it has not."""

import unicodedata

import numpy as np
import tensorflow as tf

# White space, control characters and invisible ones (Unicode's categories Z*, Cc and Cf) are not counted.
_BLANK = r"[\pZ\p{Cc}\p{Cf}]+"
_BLANK_CATEGORIES = {"Zs", "Zl", "Zp", "Cc", "Cf", "Cs"}
_NUM_CODE_POINTS = 0x110000
_TEXTS_AT_ONCE = 4096
_CHARACTERS_AT_ONCE = 1 << 20  # a text may be a whole corpus
_MANY = 4  # a quarter of a text


def characters_of(texts):
    """All characters of texts, white space and control characters aside.

    Args:
        texts: Sequence of `str`.

    Returns:
        A string of different characters, sorted.

    Example:

    ```
    from keras_attn.text import characters_of

    assert characters_of(["Hund und", "Katze"]) == "HKadentuz"
    ```
    """
    is_there = np.zeros(_NUM_CODE_POINTS, bool)
    for start in range(0, len(texts), _TEXTS_AT_ONCE):
        block = "".join(texts[start : start + _TEXTS_AT_ONCE])
        for begin in range(0, len(block), _CHARACTERS_AT_ONCE):
            part = block[begin : begin + _CHARACTERS_AT_ONCE].encode("utf-32-le", "surrogatepass")
            is_there[np.frombuffer(part, "<u4")] = True
    characters = map(chr, np.flatnonzero(is_there).tolist())
    return "".join(one for one in characters if unicodedata.category(one) not in _BLANK_CATEGORIES)


def count_others(texts, characters):
    """How many characters of valid texts (B,) are not among `characters`, and how many there are, two int32 (B,)."""
    texts = tf.strings.regex_replace(texts, _BLANK, "")
    others = tf.strings.regex_replace(texts, _pattern_of(characters), "")
    return tf.strings.length(others, unit="UTF8_CHAR"), tf.strings.length(texts, unit="UTF8_CHAR")


def are_many(num_unknown, num_characters):
    """Whether so many unknown characters are worth a word: a quarter of a text or more, and no single accent in it.

    Args:
        num_unknown, num_characters: Integers, arrays or tensors.
    """
    is_word = (num_unknown > 1) | (num_unknown == num_characters)
    return (num_unknown > 0) & is_word & (_MANY * num_unknown >= num_characters)


def _pattern_of(characters):
    """A regular expression for one or more of these characters."""
    code_points = np.unique([ord(one) for one in characters])
    # Neighbours are written as a range.
    runs = np.split(code_points, np.flatnonzero(np.diff(code_points) > 1) + 1)
    ranges = [rf"\x{{{run[0]:X}}}-\x{{{run[-1]:X}}}" for run in runs]
    return f"[{''.join(ranges)}]+"
