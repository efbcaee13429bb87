"""The base class of tokenizers: it repairs text, cuts at END, drops special ids, and saves to a folder."""

import json
import re
from collections.abc import Iterable

import tensorflow as tf

from keras_attn.files import replaced_folder
from keras_attn.text.characters import count_others
from keras_attn.text.framing import Framing

TOKENIZER_FILE = "tokenizer.json"
CHARACTERS_FILE = "characters.txt"


def as_utf8(texts):
    """Turns Python text into valid UTF-8 byte strings.

    TensorFlow refuses a `str` that holds a lone surrogate, which Python produces from undecodable file names
    and broken JSON. Here such a character, like every invalid byte sequence, becomes U+FFFD.

    Args:
        texts: A `str`, a `bytes`, or an iterable of them. One string counts as a batch of one.

    Returns:
        A list of `bytes`, one per text, each valid UTF-8.

    Raises:
        ValueError: If an element is neither `str` nor `bytes`.

    Example:

    ```
    from keras_attn.text import as_utf8

    assert as_utf8(["café", b"caf\\xe9"]) == [b"caf\\xc3\\xa9", b"caf\\xef\\xbf\\xbd"]
    ```
    """
    if isinstance(texts, str | bytes):
        texts = [texts]
    if not isinstance(texts, Iterable):
        raise ValueError(f"`texts` must be a string or an iterable of strings. Received: texts={texts!r}.")
    valid = []
    for text in texts:
        if isinstance(text, bytes):
            text = text.decode("utf-8", "replace")
        if not isinstance(text, str):
            raise ValueError(f"`texts` must hold `str` or `bytes` only. Received an element {text!r}.")
        try:
            valid.append(text.encode("utf-8"))
        except UnicodeEncodeError:
            # UTF-16 joins a high and a low surrogate into their character, and replaces only the lone ones.
            repaired = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            valid.append(repaired.encode("utf-8"))
    return valid


def check_not_blank(texts):
    """The training texts of a vocabulary as UTF-8, or a ValueError if they are all blank."""
    if isinstance(texts, str | bytes):
        raise ValueError(f"`texts` must be an iterable of sentences, not one string. Received: {texts!r:.50}")
    sentences = as_utf8(texts)
    if not any(sentence.strip() for sentence in sentences):
        raise ValueError(
            f"`texts` must hold text to train on. Received {len(sentences)} texts, none with a character."
        )
    return sentences


class Tokenizer(tf.Module):
    """Turns strings into token ids and back, in Python and inside an exported graph.

    Unlike a KerasHub tokenizer, it is a `tf.Module` and not a layer. It adds no START, END or padding (the
    data pipeline and decoding do that), and it uses only operations that TF Serving links. A subclass
    implements `_texts_to_ids` and `_ids_to_texts`; this class does the rest, including the handling of bad
    input.

    Args:
        vocabulary_size: Number of ids, special ones included.
        start_token_id: The id that opens a sequence, or `None`.
        end_token_id: The id that closes a sequence, or `None`.
        unknown_token_id: The id of text that the vocabulary cannot spell, or `None` if it can spell
            everything.
        special_token_ids: All ids that stand for no text. They are skipped by `detokenize`.

    Attributes:
        characters: String, the characters that the model has met in training, as `characters_of` gives them, or None where
            they are not known. `train` takes those of its texts, and a training run those of its data. `save` keeps them.

    Example:

    ```
    from keras_attn.text import ByteTokenizer

    tokenizer = ByteTokenizer()
    token_ids = tokenizer.tokenize(["Hund", ""])
    assert token_ids.to_list() == [[75, 120, 113, 103], []]
    assert tokenizer.detokenize(token_ids).numpy().tolist() == [b"Hund", b""]
    ```
    """

    characters = None
    # In this library's data, a padding mask is `token_ids != 0`.
    pad_token_id = 0
    # Ids below `vocabulary_size` without a piece.
    unused_token_ids = ()
    # The end of a decoded text that further tokens may still change: bytes of an incomplete character.
    open_end = re.compile("\ufffd+\\Z")

    def __init__(self, vocabulary_size, start_token_id, end_token_id, unknown_token_id, special_token_ids):
        super().__init__()
        self.vocabulary_size = vocabulary_size
        self.start_token_id = start_token_id
        self.end_token_id = end_token_id
        self.unknown_token_id = unknown_token_id
        self.special_token_ids = tuple(special_token_ids)

    @property
    def framing(self):
        """`Framing`, which makes ids what an encoder takes: START, the text, END."""
        return Framing.from_ids(self.start_token_id, self.end_token_id)

    def tokenize(self, texts):
        """Turns a batch of strings into token ids, without special ids.

        Args:
            texts: String tensor of shape `(B,)`, or a list of `str` or `bytes`. Invalid UTF-8 is read as
                U+FFFD.

        Returns:
            `tf.RaggedTensor` of int32 with shape `(B, None)`. An empty string gives an empty row.

        Raises:
            ValueError: If `texts` is a tensor of another dtype or rank.
        """
        return self._texts_to_ids(_valid_utf8(texts))

    def tokenize_with_offsets(self, texts):
        """Turns a batch of strings into token ids, and gives the bytes of the text that each id stands for.

        Args:
            texts: As in `tokenize`.

        Returns:
            Three `tf.RaggedTensor`s of shape `(B, None)`: the int32 ids of `tokenize`, and the int32 span of
            each: its first byte, and the byte after its last, in the text after invalid UTF-8 is repaired. A
            token without a byte of its own has an empty span, for example the first of several tokens of one
            character.

        Raises:
            ValueError: If `texts` is a tensor of another dtype or rank.
        """
        return self._texts_to_ids_with_offsets(_valid_utf8(texts))

    def detokenize(self, token_ids):
        """Turns a batch of token ids into strings.

        Each row ends before its first END; padding, START and other special ids are skipped. The result is
        valid UTF-8 for any ids: an invalid byte sequence becomes U+FFFD.

        Args:
            token_ids: Integer tensor of shape `(B, T)`, dense or ragged, or a list of lists of int. An id
                outside the vocabulary is an error in eager mode. In a graph it is skipped, because one bad
                row must not fail the other rows of its batch.

        Returns:
            String tensor of shape `(B,)`.

        Raises:
            ValueError: If `token_ids` is of another dtype or rank, or (eagerly) holds an id outside the
                vocabulary.
        """
        token_ids = _as_ragged_ids(token_ids)
        if tf.executing_eagerly():
            self._check_in_vocabulary(token_ids.values)
        is_text = self._is_text(token_ids.values)
        if self.end_token_id is not None:
            is_text &= _is_before_first(self.end_token_id, token_ids)
        token_ids = tf.ragged.boolean_mask(token_ids, token_ids.with_values(is_text))
        return _valid_utf8(self._ids_to_texts(tf.cast(token_ids, tf.int32)))

    def count_unknown_characters(self, texts):
        """Counts the characters that the model has not met in training, as the tokenizer reads them.

        A tokenizer that spells anything in bytes has no unknown token, and yet its model can say nothing of such text.

        Args:
            texts: As in `tokenize`.

        Returns:
            Two int32 tensors (B,): how many characters of each text are unknown, and how many it has; white space and control
            characters are not counted. None where `characters` is None.

        Example:

        ```
        from keras_attn.text import ByteTokenizer, characters_of

        tokenizer = ByteTokenizer()
        tokenizer.characters = characters_of(["der Hund"])
        num_unknown, num_characters = tokenizer.count_unknown_characters(["der Hut", "猫"])
        assert num_unknown.numpy().tolist() == [1, 1]
        assert num_characters.numpy().tolist() == [6, 1]
        ```
        """
        if not self.characters:
            return None
        with tf.init_scope():
            read = self._as_read(tf.constant(self.characters, shape=[1]))
            characters = read.numpy()[0].decode("utf-8")
        return count_others(self._as_read(_valid_utf8(texts)), characters)

    def encode(self, texts):
        """Turns Python strings into lists of token ids.

        Args:
            texts: A list of `str` or `bytes`.

        Returns:
            A list of lists of int, without special ids.
        """
        return self.tokenize(texts).to_list()

    def decode(self, token_ids):
        """Turns lists of token ids into Python strings, as `detokenize` does.

        Args:
            token_ids: A list of lists of int, or an array or tensor of shape `(B, T)`.

        Returns:
            A list of `str`.
        """
        return [text.decode("utf-8") for text in self.detokenize(token_ids).numpy()]

    def token_strings(self, token_ids):
        """Returns a label for each id, special ones included, for plots of attention.

        Args:
            token_ids: A list of int, the ids of one sequence.

        Returns:
            A list of `str`, one per id.

        Raises:
            ValueError: If an id is outside the vocabulary.
        """
        token_ids = [int(token_id) for token_id in token_ids]
        self._check_in_vocabulary(tf.constant(token_ids, tf.int64))
        return [self._token_string(token_id) for token_id in token_ids]

    def bpe_dropout(self):
        """The `BpeDropout` that draws other segmentations of texts, from their ids, for training.

        Raises:
            ValueError: if the tokenizer is not one of sentencepiece's BPE.
        """
        raise ValueError(
            '`subword_sampling` leaves out merges of sentencepiece\'s BPE: train with `tokenizer` "bpe", or set '
            f"`subword_sampling` to 0. Received: {type(self).__name__}."
        )

    def get_config(self):
        """Returns what `from_config` needs to build an equal tokenizer, as values that JSON can hold."""
        return {}

    @classmethod
    def from_config(cls, config):
        """Builds the tokenizer that `get_config` described."""
        return cls(**config)

    def save(self, folder):
        """Writes the tokenizer to a folder for `load_tokenizer`; an older tokenizer there is replaced.

        Args:
            folder: Path of the folder. It is created if missing.

        Raises:
            ValueError: If `folder` holds anything other than a tokenizer.
        """
        with replaced_folder(folder, TOKENIZER_FILE, "tokenizer") as built:
            description = {"class_name": type(self).__name__, "config": self._write_config(built)}
            (built / TOKENIZER_FILE).write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")
            if self.characters is not None:
                (built / CHARACTERS_FILE).write_bytes(self.characters.encode("utf-8"))

    def _write_config(self, folder):
        """Writes data that does not belong in JSON to separate files, and returns the rest of the config."""
        return self.get_config()

    @classmethod
    def _read_config(cls, folder, config):
        """Builds the tokenizer from what `_write_config` returned and wrote."""
        return cls.from_config(config)

    def _as_read(self, texts):
        """Valid UTF-8 of shape (B,) with the characters for which the vocabulary is asked: normalised, if this tokenizer does."""
        return texts

    def _texts_to_ids(self, texts):
        """Maps valid UTF-8 of shape (B,) to ragged int32 ids of shape (B, None)."""
        raise NotImplementedError(f"{type(self).__name__} must implement `_texts_to_ids`.")

    def _texts_to_ids_with_offsets(self, texts):
        """Like `_texts_to_ids`, and each token's first byte and the byte after its last, ragged int32."""
        raise NotImplementedError(f"{type(self).__name__} must implement `_texts_to_ids_with_offsets`.")

    def _ids_to_texts(self, token_ids):
        """Maps ragged int32 ids of shape (B, None), none of them special, to strings of shape (B,)."""
        raise NotImplementedError(f"{type(self).__name__} must implement `_ids_to_texts`.")

    def _token_string(self, token_id):
        """The label of one id of the vocabulary."""
        raise NotImplementedError(f"{type(self).__name__} must implement `_token_string`.")

    def _is_text(self, values):
        in_vocabulary = (values >= 0) & (values < self.vocabulary_size)
        special = tf.constant(self.special_token_ids, values.dtype)
        is_special = tf.reduce_any(tf.equal(values[:, tf.newaxis], special), axis=1)
        return in_vocabulary & ~is_special

    def _check_in_vocabulary(self, values):
        outside = tf.boolean_mask(values, (values < 0) | (values >= self.vocabulary_size))
        if tf.size(outside) > 0:
            raise ValueError(
                f"`token_ids` must lie in [0, {self.vocabulary_size}), the vocabulary of this tokenizer. "
                f"Received {int(tf.size(outside))} outside it, the first is {int(outside[0])}."
            )


# Valid characters, without surrogates.
_UTF8 = r"[\x{0}-\x{D7FF}\x{E000}-\x{10FFFF}]*"


def _valid_utf8(texts):
    """Texts as a string tensor (B,), whose invalid bytes are U+FFFD."""
    if not tf.is_tensor(texts):
        texts = tf.constant(as_utf8(texts), tf.string)
    if texts.dtype != tf.string or texts.shape.rank not in (1, None):
        raise ValueError(
            "`texts` must be a string tensor of shape (B,). "
            f"Received: dtype={texts.dtype.name}, shape={texts.shape}."
        )
    # Checking that nothing needs repair takes a quarter of the time of a repair.
    is_valid = tf.reduce_all(tf.strings.regex_full_match(texts, _UTF8))
    return tf.cond(
        is_valid,
        lambda: tf.identity(texts),
        lambda: tf.strings.unicode_transcode(texts, input_encoding="UTF-8", output_encoding="UTF-8"),
    )


def _as_ragged_ids(token_ids):
    if isinstance(token_ids, list | tuple):
        token_ids = _ragged_from_lists(token_ids)
    elif not tf.is_tensor(token_ids):
        token_ids = tf.convert_to_tensor(token_ids)
    if not token_ids.dtype.is_integer or token_ids.shape.rank != 2:
        raise ValueError(
            "`token_ids` must be an integer tensor of shape (B, T). "
            f"Received: dtype={token_ids.dtype.name}, shape={token_ids.shape}."
        )
    if not isinstance(token_ids, tf.RaggedTensor):
        token_ids = tf.RaggedTensor.from_tensor(token_ids)
    # int64, so that no id of any integer dtype wraps around into the vocabulary.
    return tf.cast(token_ids, tf.int64)


def _ragged_from_lists(token_ids):
    try:
        return tf.ragged.constant(token_ids, dtype=tf.int64, ragged_rank=1, inner_shape=())
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"`token_ids` must be a list of lists of int. Received: {token_ids!r:.100}"
        ) from error


def _is_before_first(token_id, token_ids):
    """For each flat value, whether it comes before the first `token_id` of its row."""
    seen = tf.cumsum(tf.cast(tf.equal(token_ids.values, token_id), tf.int64))
    # The count runs over all rows, so it is compared with the count before each row.
    seen_before_row = tf.gather(tf.concat([[0], seen], axis=0), token_ids.row_starts())  # (B,)
    # Not `==`, which loses the static shape.
    return tf.equal(seen, tf.gather(seen_before_row, token_ids.value_rowids()))
