"""The tokenizer that needs no training: one id for each byte."""

import tensorflow as tf

from keras_attn.text.tokenizer import Tokenizer

_SPECIAL_NAMES = ("<pad>", "<s>", "</s>")
_NUM_SPECIAL_IDS = len(_SPECIAL_NAMES)
_NUM_BYTES = 256


class ByteTokenizer(Tokenizer):
    """Spells text as its UTF-8 bytes, with 0, 1 and 2 for padding, START and END.

    Nothing is normalised and nothing is unknown: `detokenize(tokenize(x)) == x` for every valid UTF-8 `x`,
    NUL and emoji included. It needs core TensorFlow only, so it works where tensorflow-text has no wheel. The
    ids are byte value + 3, as in ByT5, which has END at 1 and an unknown id at 2 where this one has START and
    END.

    Example:

    ```
    from keras_attn.text import ByteTokenizer

    tokenizer = ByteTokenizer()
    assert tokenizer.encode(["é"]) == [[0xC3 + 3, 0xA9 + 3]]
    assert tokenizer.decode([[1, 75, 108, 2, 99, 0]]) == ["Hi"]
    assert tokenizer.token_strings([1, 75, 35, 2]) == ["<s>", "H", "▁", "</s>"]
    ```

    Reference:
        - Xue et al., 2022, "ByT5: Towards a token-free future with pre-trained byte-to-byte models"
          (arXiv:2105.13626), section 3.1
    """

    def __init__(self):
        super().__init__(
            vocabulary_size=_NUM_BYTES + _NUM_SPECIAL_IDS,
            start_token_id=_SPECIAL_NAMES.index("<s>"),
            end_token_id=_SPECIAL_NAMES.index("</s>"),
            unknown_token_id=None,
            special_token_ids=range(_NUM_SPECIAL_IDS),
        )

    def _texts_to_ids(self, texts):
        # The batch is joined and decoded as one string; a string per byte would take 24 times the memory.
        values = tf.io.decode_raw(tf.strings.reduce_join(texts), tf.uint8)
        lengths = tf.cast(tf.strings.length(texts, unit="BYTE"), tf.int64)
        values = tf.cast(values, tf.int32) + _NUM_SPECIAL_IDS
        # The lengths are those of the strings: a check would only add to the graph.
        return tf.RaggedTensor.from_row_lengths(values, lengths, validate=False)

    def _texts_to_ids_with_offsets(self, texts):
        token_ids = self._texts_to_ids(texts)
        starts = tf.ragged.range(tf.cast(token_ids.row_lengths(), tf.int32))
        starts = token_ids.with_values(starts.values)
        return token_ids, starts, starts + 1

    def _ids_to_texts(self, token_ids):
        strings = tf.constant([bytes([value]) for value in range(_NUM_BYTES)])
        characters = tf.gather(strings, token_ids.values - _NUM_SPECIAL_IDS)
        return tf.strings.unsorted_segment_join(characters, token_ids.value_rowids(), token_ids.nrows())

    def _token_string(self, token_id):
        if token_id < _NUM_SPECIAL_IDS:
            return _SPECIAL_NAMES[token_id]
        value = token_id - _NUM_SPECIAL_IDS
        if value == ord(" "):
            return "▁"  # as sentencepiece shows a space, which alone would be an empty label
        return chr(value) if ord("!") <= value <= ord("~") else f"<0x{value:02X}>"
