"""The normalizers of a tokenizer.json: functions of a string tensor."""

import base64
import functools

import tensorflow as tf

from keras_attn.text.bert_words import bert_normalized, lowercased_with_nul
from keras_attn.text.json_parts import pattern_of, read_part
from keras_attn.text.patterns import WHITE_SPACE, escaped, one_pattern, ranges
from keras_attn.text.resources import TENSORFLOW_TEXT, import_package
from keras_attn.text.sentencepiece_models import Charsmap

# Marks that are newer than Unicode 8, which `tokenizers` does not know.
_LATER_MARKS = ranges(
    "7FD-7FD 898-89F 8CA-8D3 9FE-9FE AFA-AFF B55-B55 C04-C04 C3C-C3C CF3-CF3 D00-D00 D3B-D3C D81-D81 EBA-EBA "
    "ECE-ECE 1715-1715 180F-180F 1ABF-1ACE 1CF7-1CF7 1DF6-1DFA A82C-A82C A8FF-A8FF 10D24-10D27 10EAB-10EAC "
    "10EFD-10EFF 10F46-10F50 10F82-10F85 11070-11070 11073-11074 110C2-110C2 11145-11146 111C9-111C9 "
    "111CE-111CF 11241-11241 1133B-1133B 1145E-1145E 1182C-1183A 11930-11935 11937-11938 1193B-1193E "
    "11940-11940 11942-11943 119D1-119D7 119DA-119E0 119E4-119E4 11A01-11A0A 11A33-11A39 11A3B-11A3E "
    "11A47-11A47 11A51-11A5B 11A8A-11A99 11D31-11D36 11D3A-11D3A 11D3C-11D3D 11D3F-11D45 11D47-11D47 "
    "11D8A-11D8E 11D90-11D91 11D93-11D97 11EF3-11EF6 11F00-11F01 11F03-11F03 11F34-11F3A 11F3E-11F42 "
    "13440-13440 13447-13455 16F4F-16F4F 16F7F-16F87 16FE4-16FE4 16FF0-16FF1 1CF00-1CF2D 1CF30-1CF46 "
    "1E08F-1E08F 1E130-1E136 1E2AE-1E2AE 1E2EC-1E2EF 1E4EC-1E4EF"
)
_NOTHING = r"[^\x00-\x{10FFFF}]"  # matches no character


def read_normalizer(part):
    """The function of a normalizer; `None`, which stands for no normalizer, gives `None`."""
    return None if part is None else read_part(part, "normalizer", _BUILDERS)


def _sequence(normalizers):
    steps = [read_normalizer(part) for part in normalizers]

    def normalize(texts):
        for step in steps:
            texts = step(texts)
        return texts

    return normalize


def _bert(clean_text, handle_chinese_chars, strip_accents, lowercase):
    accents = lowercase if strip_accents is None else strip_accents
    normalize_utf8 = _normalize_utf8()
    return functools.partial(
        bert_normalized,
        normalize_utf8=normalize_utf8,
        clean_text=clean_text,
        space_chinese=handle_chinese_chars,
        lowercase=lowercase,
        strip_accents=accents,
    )


def _unicode_form(name):
    return lambda: functools.partial(_normalize_utf8(), normalization_form=name)


def _normalize_utf8():
    return import_package("tensorflow_text", TENSORFLOW_TEXT, "A normalizer").normalize_utf8


def _replacing(pattern, rewrite):
    return lambda texts: tf.strings.regex_replace(texts, pattern, rewrite)


def _replace(pattern, content):
    kind, text = pattern_of(pattern)
    pattern = one_pattern(text) if kind == "Regex" else escaped(text)
    return _replacing(pattern, content.replace("\\", r"\\"))


def _prepend(prepend):
    # An empty text stays empty.
    return _replacing(r"(?s)\A(.)", prepend.replace("\\", r"\\") + r"\1")


def _strip(strip_left, strip_right):
    ends = []
    if strip_left:
        ends.append(rf"\A[{WHITE_SPACE}]+")
    if strip_right:
        ends.append(rf"[{WHITE_SPACE}]+\z")
    return _replacing("|".join(ends) or _NOTHING, "")


def _nmt():
    dropped = r"[\x{1}-\x{8}\x{B}\x{E}-\x{1F}\x{7F}\x{8F}\x{9F}]"
    spaces = r"[\t\n\x{C}\r\x{1680}\x{200B}-\x{200F}\x{2028}\x{2029}\x{2581}\x{FEFF}\x{FFFD}]"

    def normalize(texts):
        texts = tf.strings.regex_replace(texts, dropped, "")
        return tf.strings.regex_replace(texts, spaces, " ")

    return normalize


def _precompiled(precompiled_charsmap):
    content = base64.b64decode(precompiled_charsmap or "", validate=True)
    if not content:
        return lambda texts: texts
    return Charsmap(content)


_BUILDERS = {
    "Sequence": _sequence,
    "BertNormalizer": _bert,
    "NFC": _unicode_form("NFC"),
    "NFD": _unicode_form("NFD"),
    "NFKC": _unicode_form("NFKC"),
    "NFKD": _unicode_form("NFKD"),
    "Lowercase": lambda: lowercased_with_nul,
    "StripAccents": lambda: _replacing(rf"[^\P{{M}}{_LATER_MARKS}]|[\x{{1CF2}}-\x{{1CF3}}]", ""),
    "Strip": _strip,
    "Replace": _replace,
    "Prepend": _prepend,
    "Nmt": _nmt,
    "Precompiled": _precompiled,
}
