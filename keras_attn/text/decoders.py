"""The decoders of a tokenizer.json: the bytes of each token, first in a text or later, and what is done to the whole."""

import re

import tensorflow as tf

from keras_attn.text.byte_level import bytes_of
from keras_attn.text.json_parts import check_value, pattern_of, read_part, replace
from keras_attn.text.patterns import escaped

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_BEFORE = ((" .", "."), (" ?", "?"), (" !", "!"), (" ,", ","), (" ' ", "'"), (" n't", "n't"), (" 'm", "'m"))
_AFTER = ((" 's", "'s"), (" 've", "'ve"), (" 're", "'re"))
# The first list is what transformers applies to a whole text, the second what `tokenizers` applies to each token.
_CLEANED_TEXT = _BEFORE + _AFTER
_CLEANED = _BEFORE + ((" do not", " don't"),) + _AFTER


def cleaned(part):
    """The object of a decoder that takes spaces before punctuation away, `clean_up_tokenization_spaces` of transformers.

    Args:
        part: The object of the decoder without that.
    """
    steps = [part, {"type": "Fuse"}]
    steps += [replace(old, new) for old, new in _CLEANED_TEXT]
    return {"type": "Sequence", "decoders": steps}


class Decoder(tf.Module):
    """Turns ids into texts.

    Args:
        part: The object `decoder` of a tokenizer.json, or `None`: tokens are joined by spaces.
        pieces: List of `str`, the piece of each id.
    """

    def __init__(self, part, pieces):
        super().__init__()
        steps = _Steps()
        read_decoder(part, steps)
        self._first = tf.constant([steps.decode(piece, is_first=True) for piece in pieces])
        self._later = tf.constant([steps.decode(piece, is_first=False) for piece in pieces])
        self._final = steps.final
        # The end of a text that further tokens may still change.
        ends = ["\ufffd+"] + [re.escape(end) for end in steps.open_ends]
        self.open_end = re.compile(rf"(?:{'|'.join(ends)})\Z")

    def __call__(self, token_ids):
        """Ragged ids of shape (B, None) to strings of shape (B,)."""
        is_first = tf.ragged.range(token_ids.row_lengths()).values == 0
        first = tf.gather(self._first, token_ids.values)
        later = tf.gather(self._later, token_ids.values)
        strings = tf.where(is_first, first, later)
        texts = tf.strings.unsorted_segment_join(strings, token_ids.value_rowids(), token_ids.nrows())
        for pattern, rewrite in self._final:
            texts = tf.strings.regex_replace(texts, pattern, rewrite)
        return texts


class _Steps:
    """What the decoders do to one token, in order, and to a whole text after the tokens are joined."""

    def __init__(self):
        self.token_steps = []
        self.final = []
        self.open_ends = []
        self.is_joined = False
        self.spells_bytes = False
        self.has_byte_names = False

    def decode(self, piece, *, is_first):
        if self.has_byte_names and (match := _BYTE.fullmatch(piece)):
            return bytes([int(match[1], 16)])
        for step in self.token_steps:
            piece = step(piece, is_first)
        return bytes_of(piece) if self.spells_bytes else piece.encode("utf-8")

    def add(self, step):
        if self.is_joined or self.spells_bytes:
            raise ValueError("A decoder of single tokens must not follow Fuse or ByteLevel.")
        self.token_steps.append(step)


def read_decoder(part, steps):
    """Adds what a decoder does to the `steps`."""
    if part is None:
        steps.add(_spaced)
        return
    builders = {
        "Sequence": lambda decoders: _sequence(steps, decoders),
        "ByteLevel": lambda **_: setattr(steps, "spells_bytes", True),
        "ByteFallback": lambda: setattr(steps, "has_byte_names", True),
        "Fuse": lambda: setattr(steps, "is_joined", True),
        "WordPiece": lambda **fields: steps.add(_word_piece(**fields)),
        "Metaspace": lambda **fields: steps.add(_metaspace(**fields)),
        "Replace": lambda **fields: _replace(steps, **fields),
        "Strip": lambda **fields: _strip(steps, **fields),
    }
    read_part(part, "decoder", builders)


def _spaced(piece, is_first):
    return piece if is_first else f" {piece}"


def _sequence(steps, decoders):
    for part in decoders:
        read_decoder(part, steps)


def _word_piece(prefix="##", cleanup=True):
    def decoded(piece, is_first):
        if not is_first and piece.startswith(prefix):
            piece = piece.removeprefix(prefix)
        elif not is_first:
            piece = f" {piece}"
        if cleanup:
            for old, new in _CLEANED:
                piece = piece.replace(old, new)
        return piece

    return decoded


def _metaspace(replacement="▁", prepend_scheme=None, split=True, add_prefix_space=True, str_rep=None):
    check_value("decoder Metaspace", "split", split, (True, False))
    check_value("decoder Metaspace", "str_rep", str_rep, (None, replacement))
    has_prefix = prepend_scheme != "never"
    if prepend_scheme is None:
        has_prefix = add_prefix_space

    def decoded(piece, is_first):
        if is_first and has_prefix:
            return piece.replace(replacement, "")
        return piece.replace(replacement, " ")

    return decoded


def _replace(steps, pattern, content):
    kind, text = pattern_of(pattern)
    check_value("decoder Replace", "pattern", kind, ("String",))
    if steps.is_joined:
        steps.final.append((escaped(text), content.replace("\\", r"\\")))
        steps.open_ends += [text[:size] for size in range(len(text) - 1, 0, -1)]
    else:
        steps.add(lambda piece, _: piece.replace(text, content))


def _strip(steps, content, start, stop):
    if not steps.is_joined:
        raise ValueError("A decoder Strip must come after Fuse.")
    character = escaped(content)
    if start:
        steps.final.append((rf"\A{character}{{1,{int(start)}}}", ""))
    if stop:
        steps.final.append((rf"{character}{{1,{int(stop)}}}\z", ""))
