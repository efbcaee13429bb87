"""BERT's WordPiece: tensorflow-text learns the vocabulary and applies it in the graph."""

import collections

import tensorflow as tf

from keras_attn.checks import check_positive
from keras_attn.text.bert_words import bert_normalized, bert_words, bert_words_with_owners
from keras_attn.text.characters import characters_of
from keras_attn.text.resources import TENSORFLOW_TEXT, import_package, read_file, write_file
from keras_attn.text.tokenizer import Tokenizer, check_not_blank

VOCABULARY_FILE = "vocab.txt"

_PAD, _UNKNOWN, _START, _END = RESERVED_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
_MASK = "[MASK]"
_SUFFIX = "##"
_TEXTS_PER_CALL = 4096
# A longer word is always unknown.
_MAX_CHARACTERS = 100
_LONG_WORD = "\0"  # in no vocabulary: this character is dropped from texts


class WordPieceModel(tf.Module):
    """Splits words into the longest pieces of a vocabulary. A word that cannot be spelled, or is too long, is unknown.

    Args:
        pieces: List of strings, the piece of each id.
        unknown: The piece of unknown words.
        prefix: String, with which pieces begin that continue a word.
        max_characters: Integer, of the longest word that is split.
        support_detokenization: Boolean, whether pieces can be joined again.
    """

    def __init__(self, pieces, unknown, prefix, max_characters, *, support_detokenization=False):
        super().__init__()
        self._max_characters = max_characters
        self._unknown_id = pieces.index(unknown)
        tensorflow_text = import_package("tensorflow_text", TENSORFLOW_TEXT, "WordPiece")
        self._graph_tokenizer = tensorflow_text.FastWordpieceTokenizer(
            vocab=pieces,
            suffix_indicator=prefix,
            max_bytes_per_word=4 * max_characters,
            token_out_type=tf.int32,
            unknown_token=unknown,
            no_pretokenization=True,  # tensorflow-text does not split words as BERT does
            support_detokenization=support_detokenization,
        )

    def tokenize(self, words):
        """The ids of each word: strings of shape (N,) to ragged int32 of shape (N, None)."""
        return self._graph_tokenizer.tokenize(self._without_long_words(words))

    def tokenize_with_offsets(self, words):
        """Like `tokenize`, and the first byte in its word of each token, and the byte after its last."""
        words_to_split = self._without_long_words(words)
        token_ids, starts, stops = self._graph_tokenizer.tokenize_with_offsets(words_to_split)
        # An unknown word spans all its bytes.
        sizes = tf.repeat(tf.strings.length(words), token_ids.row_lengths())
        is_unknown = tf.equal(token_ids.values, self._unknown_id)
        stops = tf.where(is_unknown, sizes, tf.cast(stops.values, tf.int32))
        return token_ids, tf.cast(starts, tf.int32), token_ids.with_values(stops)

    def detokenize(self, token_ids):
        """Ragged ids of shape (B, None) to strings of shape (B,)."""
        return self._graph_tokenizer.detokenize(token_ids)

    def _without_long_words(self, words):
        is_long = tf.strings.length(words, unit="UTF8_CHAR") > self._max_characters
        return tf.where(is_long, _LONG_WORD, words)


class WordPieceTokenizer(Tokenizer):
    """Splits text at white space and punctuation, and words into the longest pieces in the vocabulary.

    A BERT vocabulary works unchanged and gives the ids of `transformers.BertTokenizer`, except that the names
    of special tokens in a text are read as text. START is `[CLS]` and END `[SEP]`. A word that cannot be
    spelled, or has more than 100 characters, is one `[UNK]`. Control characters are dropped. The white space
    between words is not kept: `detokenize(tokenize("Hi, you"))` is "Hi , you". For text that people read, or
    that is scored against untokenised text, `SentencePieceTokenizer` is the better choice.

    Unlike KerasHub's tokenizer of this name, it uses the linear-time algorithm, is part of an exported graph,
    and joins pieces into words again.

    Args:
        vocabulary: List of distinct strings without white space, in the order of their ids. The first is
            `[PAD]`; `[UNK]`, `[CLS]` and `[SEP]` are among them. Pieces that continue a word begin with `##`.
        lowercase: Whether text is lower-cased, as in BERT's "uncased" models.
        strip_accents: Whether accents are removed. Defaults to `lowercase`, as in BERT's models.

    Raises:
        ValueError: If the vocabulary is not as described.
        ImportError: If tensorflow-text is not installed.

    Example:

    ```
    from keras_attn.text import WordPieceTokenizer

    tokenizer = WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "play", "##ing", ","])
    assert tokenizer.encode(["playing, play"]) == [[4, 5, 6, 4]]
    assert tokenizer.decode([[4, 5, 6, 4]]) == ["playing , play"]
    ```

    Reference:
        - Song et al., 2021, "Fast WordPiece Tokenization" (arXiv:2012.15524)
        - Devlin et al., 2019 (arXiv:1810.04805), section 3, for the vocabulary
    """

    def __init__(self, vocabulary, lowercase=False, strip_accents=None):
        tensorflow_text = import_package("tensorflow_text", TENSORFLOW_TEXT, type(self).__name__)
        vocabulary = _checked_vocabulary(vocabulary)
        number_of = {piece: number for number, piece in enumerate(vocabulary)}
        super().__init__(
            vocabulary_size=len(vocabulary),
            start_token_id=number_of[_START],
            end_token_id=number_of[_END],
            unknown_token_id=number_of[_UNKNOWN],
            special_token_ids=[number_of[name] for name in (_PAD, _START, _END, _MASK) if name in number_of],
        )
        self.vocabulary = vocabulary
        self.lowercase = lowercase
        self.strip_accents = strip_accents
        self._splitting = _splitting(tensorflow_text, lowercase, strip_accents)
        self._model = WordPieceModel(
            list(vocabulary), _UNKNOWN, _SUFFIX, _MAX_CHARACTERS, support_detokenization=True
        )

    @classmethod
    def train(cls, texts, vocabulary_size, lowercase=False, strip_accents=None):
        """Learns a vocabulary from texts and returns its tokenizer.

        The ids 0 to 3 are padding, unknown, START and END. The same texts always give the same vocabulary. On
        a corpus of 60,000 lines it takes a minute.

        Args:
            texts: Iterable of `str` or `bytes`, one sentence each. They are held in memory.
            vocabulary_size: The largest number of ids. It includes the 4 special ones and two for each
                character of the texts. The word list is cut between different counts, so there may be
                somewhat fewer.
            lowercase, strip_accents: As in the class.

        Returns:
            A `WordPieceTokenizer`.

        Raises:
            ValueError: If the texts are empty, or have too many characters for `vocabulary_size`; the message
                names the smallest size that fits.
        """
        vocabulary_size = check_positive("vocabulary_size", vocabulary_size)
        if vocabulary_size <= len(RESERVED_TOKENS):
            raise ValueError(
                f"`vocabulary_size` must be an int above {len(RESERVED_TOKENS)}, the number of special ids. "
                f"Received: vocabulary_size={vocabulary_size!r}."
            )
        sentences = check_not_blank(texts)
        learner = import_package(
            "tensorflow_text.tools.wordpiece_vocab.wordpiece_tokenizer_learner_lib",
            TENSORFLOW_TEXT,
            cls.__name__,
        )
        tensorflow_text = import_package("tensorflow_text", TENSORFLOW_TEXT, cls.__name__)
        splitting = _splitting(tensorflow_text, lowercase, strip_accents)
        words = tf.data.Dataset.from_tensor_slices(sentences).batch(_TEXTS_PER_CALL)
        vocabulary = learner.learn(
            learner.count_words(words.map(lambda batch: bert_words(batch, **splitting))),
            vocabulary_size,
            list(RESERVED_TOKENS),
            lower_thresh=1,  # no word is too rare if the vocabulary has space for it
            joiner=_SUFFIX,
        )
        if len(vocabulary) > vocabulary_size:
            raise ValueError(
                f"`vocabulary_size` must be at least {len(vocabulary)}, for the special ids and the characters of these "
                f"texts. Received: vocabulary_size={vocabulary_size}."
            )
        tokenizer = cls(vocabulary, lowercase, strip_accents)
        tokenizer.characters = characters_of([sentence.decode("utf-8") for sentence in sentences])
        return tokenizer

    def get_config(self):
        return {
            "vocabulary": list(self.vocabulary),
            "lowercase": self.lowercase,
            "strip_accents": self.strip_accents,
        }

    def _write_config(self, folder):
        # The format of BERT's own vocab.txt.
        content = "".join(f"{piece}\n" for piece in self.vocabulary).encode("utf-8")
        return {
            "vocabulary_sha256": write_file(folder, VOCABULARY_FILE, content),
            "lowercase": self.lowercase,
            "strip_accents": self.strip_accents,
        }

    @classmethod
    def _read_config(cls, folder, config):
        content = read_file(folder, VOCABULARY_FILE, config["vocabulary_sha256"])
        vocabulary = content.decode("utf-8").split("\n")[:-1]
        return cls(vocabulary, config["lowercase"], config["strip_accents"])

    def _texts_to_ids(self, texts):
        words = bert_words(texts, **self._splitting)
        return words.with_values(self._model.tokenize(words.values)).merge_dims(1, 2)

    def _texts_to_ids_with_offsets(self, texts):
        words, owner_starts, owner_stops = bert_words_with_owners(texts, **self._splitting)
        token_ids, starts, stops = self._model.tokenize_with_offsets(words.values)
        # Offsets in a word become indices into the bytes of all words.
        sizes = tf.strings.length(words.values)
        before = tf.repeat(tf.cumsum(sizes, exclusive=True), token_ids.row_lengths())
        starts = tf.gather(owner_starts, before + starts.values)
        stops = tf.gather(owner_stops, before + stops.values - 1)
        return tuple(
            words.with_values(token_ids.with_values(values)).merge_dims(1, 2)
            for values in (token_ids.values, starts, stops)
        )

    def _as_read(self, texts):
        return bert_normalized(texts, clean_text=True, space_chinese=False, **self._splitting)

    def _ids_to_texts(self, token_ids):
        return self._model.detokenize(token_ids)

    def _token_string(self, token_id):
        return self.vocabulary[token_id]


def _splitting(tensorflow_text, lowercase, strip_accents):
    """The arguments of `bert_words` after the texts."""
    return {
        "normalize_utf8": tensorflow_text.normalize_utf8,
        "lowercase": lowercase,
        "strip_accents": lowercase if strip_accents is None else strip_accents,
    }


def _checked_vocabulary(vocabulary):
    vocabulary = tuple(vocabulary)
    for piece in vocabulary:
        if not isinstance(piece, str) or not piece or piece.split() != [piece]:
            raise ValueError(
                f"`vocabulary` must hold strings without white space. Received an element {piece!r}."
            )
    if repeated := [piece for piece, count in collections.Counter(vocabulary).items() if count > 1]:
        raise ValueError(f"`vocabulary` must hold each piece once. Received twice: {repeated[0]!r}.")
    missing = [name for name in RESERVED_TOKENS if name not in vocabulary]
    if missing or vocabulary[0] != _PAD:
        raise ValueError(
            f"`vocabulary` must begin with {_PAD} and hold {', '.join(RESERVED_TOKENS[1:])}. "
            f"Received: {vocabulary[:5]}, without {', '.join(missing) or 'none of them'}."
        )
    return vocabulary
