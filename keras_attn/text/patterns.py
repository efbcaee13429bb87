r"""Regular expressions of tokenizer files, rewritten for RE2, the engine of TensorFlow's graphs.

The files are written for Oniguruma, whose tables are those of Unicode 16. RE2's are those of Unicode 15, so the
characters that are new are added to each class. RE2 has no look-ahead. The only one in use,
`\s+(?!\S)|\s+`, gives the last white-space character of a run to the word after it, so runs are cut before
their last character first.

In the graph, cuts are bytes 0xFF in the text. UTF-8 has no such byte, and no class of RE2 matches it.
"""

import re

import tensorflow as tf

CUT = b"\xff"
WHITE_SPACE = r"\t-\r\x{20}\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000}"
_NEWLINES = r"\r\n"
_WHITE_SPACE_BUT_NEWLINES = WHITE_SPACE.replace(r"\t-\r", r"\t\x{B}\x{C}")


def ranges(text):
    """The inside of an RE2 class, from pairs of code points such as "41-5A 61-7A"."""
    return "".join(rf"\x{{{low}}}-\x{{{high}}}" for low, _, high in (x.partition("-") for x in text.split()))


_NEW = {
    "Lu": "1C89-1C89 A7CB-A7CC A7DA-A7DA A7DC-A7DC 10D50-10D65",
    "Ll": "1C8A-1C8A A7CD-A7CD A7DB-A7DB 10D70-10D85",
    "Lm": "10D4E-10D4E 10D6F-10D6F 16D40-16D42 16D6B-16D6C",
    "Lo": "105C0-105F3 10D4A-10D4D 10D4F-10D4F 10EC2-10EC4 11380-11389 1138B-1138B 1138E-1138E 11390-113B5 "
    "113B7-113B7 113D1-113D1 113D3-113D3 11BC0-11BE0 13460-143FA 16100-1611D 16D43-16D6A 18CFF-18CFF 1E5D0-1E5ED "
    "1E5F0-1E5F0 2EBF0-2EE5D",
    "Nd": "10D40-10D49 116D0-116E3 11BF0-11BF9 16130-16139 16D70-16D79 1CCF0-1CCF9 1E5F1-1E5FA",
    "M": "897-897 10D69-10D6D 10EFC-10EFC 113B8-113C0 113C2-113C2 113C5-113C5 113C7-113CA 113CC-113D0 113D2-113D2 "
    "113E1-113E2 11F5A-11F5A 1611E-1612F 1E5EE-1E5EF",
    "P": "1B4E-1B4F 1B7F-1B7F 10D6E-10D6E 113D4-113D5 113D7-113D8 11BE1-11BE1 16D6D-16D6F 1E5FF-1E5FF",
    "S": "2427-2429 2FFC-2FFF 31E4-31E5 31EF-31EF 10D8E-10D8F 1CC00-1CCEF 1CD00-1CEB3 1F8B2-1F8BB 1F8C0-1F8C1 "
    "1FA89-1FA89 1FA8F-1FA8F 1FABE-1FABE 1FAC6-1FAC6 1FADC-1FADC 1FADF-1FADF 1FAE9-1FAE9 1FBCB-1FBEF",
}
_NEW["L"] = " ".join(_NEW[name] for name in ("Lu", "Ll", "Lm", "Lo"))
_NEW["N"] = _NEW["Nd"]
_CLASSES = {name: rf"\p{{{name}}}{ranges(new)}" for name, new in _NEW.items()} | {
    "Lt": r"\p{Lt}",
    "Pc": r"\p{Pc}",
    "Nl": r"\p{Nl}",
    "No": r"\p{No}",
    "Z": r"\p{Z}",
    "Zs": r"\p{Zs}",
}
# Alphabetic characters that are not letters, marks or digits.
_OTHER_ALPHABETIC = r"\p{Nl}\x{24B6}-\x{24E9}\x{1F130}-\x{1F149}\x{1F150}-\x{1F169}\x{1F170}-\x{1F189}"
WORD = _CLASSES["L"] + _CLASSES["M"] + _CLASSES["Nd"] + _CLASSES["Pc"] + _OTHER_ALPHABETIC
NUMBER = _CLASSES["N"]
_SHORT = {"s": WHITE_SPACE, "d": _CLASSES["Nd"], "w": WORD}
# The pre-splits of published models.
GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_NEWLINE_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2_PATTERN = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_NEWLINE_TAIL}"
LLAMA3_PATTERN = QWEN2_PATTERN.replace(r"|\p{N}|", r"|\p{N}{1,3}|")

_TAILS = (r"|\s+(?!\S)|\s+", r"|\s+(?!\S)|\s")
_ITEM = re.compile(
    r"(?P<category>\\[pP]\{\^?[A-Za-z]+\})"
    r"|(?P<edge>\\[Az])"
    r"|(?P<short>\\[sdwSDW])"
    r"|(?P<literal>\\[rntfv\\/.,;:!?'\"`~@#$%^&*()\[\]{}<>|+=_-])"
    r"|(?P<bad>\\.|\(\?(?!:|i:)|[$^]|&&|\[:|[?*+}]\+)"
    r"|(?P<other>.)",
    re.DOTALL,
)


def cutter(pattern):
    """A function that puts cuts around the matches of a pattern.

    Args:
        pattern: `str`, for Oniguruma, as tokenizer.json holds it.

    Returns:
        A function of a string tensor. In its result each match of `pattern` is a stretch between two cuts.

    Raises:
        ValueError: If the pattern has a part that RE2 lacks or that Oniguruma reads in another way.
    """
    tail = next((tail for tail in _TAILS if pattern.endswith(tail)), None)
    if tail is None:
        rewritten = _rewritten(pattern, has_edges=False)
        return lambda texts: tf.strings.regex_replace(texts, rewritten, CUT + rb"\0" + CUT)
    head = pattern.removesuffix(tail)
    last = _WHITE_SPACE_BUT_NEWLINES if r"|\s*[\r\n]" in head else WHITE_SPACE
    long_run = rf"([{WHITE_SPACE}]+)([{last}][^{WHITE_SPACE}])"
    words = f"{_rewritten(head, has_edges=False)}|[{WHITE_SPACE}]+"

    def cut(texts):
        texts = tf.strings.regex_replace(texts, long_run, rb"\1" + CUT + rb"\2")
        # Each character is part of a match: one cut between two of them is enough.
        return tf.strings.regex_replace(texts, words, CUT + rb"\0")

    return cut


def looks_ahead(pattern):
    """Whether a pattern ends in the look-ahead that is understood. Such patterns match every character."""
    return pattern.endswith(_TAILS)


def one_pattern(pattern):
    """Rewrites a pattern that does not look ahead for RE2, with the errors of `cutter`."""
    return _rewritten(pattern)


def escaped(text):
    """The RE2 pattern of a text."""
    return "".join(rf"\x{{{ord(character):X}}}" for character in text)


def _rewritten(pattern, has_edges=True):
    # Possessive repetition differs from the greedy kind only where it must give something back.
    pattern = _KNOWN_POSSESSIVE.get(pattern, pattern)
    out = []
    in_class = 0
    for match in _ITEM.finditer(pattern):
        kind = match.lastgroup
        text = match[0]
        if kind == "other" and text == "[":
            in_class += 1
            if in_class > 1:
                _refuse(pattern, "a class within a class")
        elif kind == "other" and text == "]":
            in_class = max(in_class - 1, 0)
        elif (kind == "bad" and not (in_class and text in "$^")) or (
            kind == "edge" and (in_class or not has_edges)
        ):
            _refuse(pattern, text)
        out.append(_item(pattern, kind, text, bool(in_class)))
    return _checked("".join(out), pattern)


def _checked(rewritten, pattern):
    """The pattern for RE2, which RE2 has read."""
    try:
        with tf.init_scope():
            tf.strings.regex_replace("", rewritten, "")
    except tf.errors.OpError as error:
        _refuse(pattern, error.message)
    return rewritten


def _item(pattern, kind, text, in_class):
    if kind == "category":
        name = text[3:-1]
        if name.removeprefix("^") not in _CLASSES:
            _refuse(pattern, text)
        negated = (text[1] == "P") != name.startswith("^")
        return _class_text(pattern, text, _CLASSES[name.removeprefix("^")], negated, in_class)
    if kind == "short":
        return _class_text(pattern, text, _SHORT[text[1].lower()], text[1].isupper(), in_class)
    if kind == "other" and ord(text) > 0x7F:
        return escaped(text)
    return text


def _class_text(pattern, text, members, negated, in_class):
    if in_class:
        if negated:
            _refuse(pattern, f"{text} within a class")
        return members
    return f"[^{members}]" if negated else f"[{members}]"


def _refuse(pattern, part):
    raise ValueError(
        f"The regular expressions of a tokenizer may hold letters, classes and groups, and look ahead only in "
        rf"`\s+(?!\S)` at their end: TensorFlow's have nothing else. Received: {part!r} in {pattern!r}."
    )


_CL100K_HEAD = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s*[\r\n]"
)
_KNOWN_POSSESSIVE = {_CL100K_HEAD: re.sub(r"([?+*}])\+", r"\1", _CL100K_HEAD)}
