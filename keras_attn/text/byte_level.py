"""GPT-2's spelling of bytes as visible characters.

Reference:
    - Radford et al., 2019, "Language Models are Unsupervised Multitask Learners", section 2.2, and
      `bytes_to_unicode` in encoder.py of https://github.com/openai/gpt-2
"""

import tensorflow as tf


def _byte_characters():
    visible = set(range(0x21, 0x7F)) | set(range(0xA1, 0xAD)) | set(range(0xAE, 0x100))
    code_points = []
    next_hidden = 256
    for byte in range(256):
        if byte in visible:
            code_points.append(byte)
        else:
            code_points.append(next_hidden)
            next_hidden += 1
    return "".join(map(chr, code_points))


# The character of each byte, at its index.
BYTE_CHARACTERS = _byte_characters()
_BYTES_BY_CHARACTER = {character: byte for byte, character in enumerate(BYTE_CHARACTERS)}


def spelled(texts):
    """Spells each byte of the strings, which need not be UTF-8, as its character.

    Args:
        texts: String tensor of shape (N,).

    Returns:
        String tensor of shape (N,), valid UTF-8.
    """
    code_points = tf.constant([ord(character) for character in BYTE_CHARACTERS], tf.int32)
    values = tf.io.decode_raw(tf.strings.reduce_join(texts), tf.uint8)
    lengths = tf.cast(tf.strings.length(texts), tf.int64)
    characters = tf.gather(code_points, tf.cast(values, tf.int32))
    ragged = tf.RaggedTensor.from_row_lengths(characters, lengths, validate=False)
    return tf.strings.unicode_encode(ragged, "UTF-8")


def bytes_of(piece):
    """The bytes that a piece spells; a piece with other characters stands for its own UTF-8, as an added token does."""
    if all(character in _BYTES_BY_CHARACTER for character in piece):
        return bytes(_BYTES_BY_CHARACTER[character] for character in piece)
    return piece.encode("utf-8")
