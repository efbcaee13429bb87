"""Words and their pieces, as BERT splits them: tensorflow-text learns the vocabulary and applies it in the graph."""

import collections

import tensorflow as tf

from keras_attn.text.resources import TENSORFLOW_TEXT, import_package, read_file, write_file
from keras_attn.text.tokenizer import TextOpsTokenizer, check_not_blank

VOCABULARY_FILE = "vocab.txt"

_PAD, _UNKNOWN, _START, _END = RESERVED_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
_MASK = "[MASK]"
_SUFFIX = "##"
_TEXTS_PER_CALL = 4096


class WordPieceTokenizer(TextOpsTokenizer):
    """Splits text at white space and punctuation, and words into the longest pieces that the vocabulary has.

    A vocabulary of BERT works as it is. START is its `[CLS]` and END its `[SEP]`. A word that cannot be spelled is one
    `[UNK]`. What stood between words is not kept: `detokenize(tokenize("Hi, you"))` is "Hi , you", so that for text
    to be read, or scored against text that is not tokenised already, `SentencePieceTokenizer` is the better choice.

    Unlike KerasHub's tokenizer of this name it is the linear-time one, is part of an exported graph, and says how words
    are spelled again.

    Args:
        vocabulary: List of distinct strings without white space, in the order of their ids. The first is `[PAD]`;
            `[UNK]`, `[CLS]` and `[SEP]` are among them. Pieces that go on a word begin with `##`.
        lowercase: Whether text is read in small letters and without accents, as BERT's "uncased" models do.

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

    def __init__(self, vocabulary, lowercase=False):
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
        self._graph_tokenizer = tensorflow_text.FastBertTokenizer(
            vocab=list(vocabulary),
            suffix_indicator=_SUFFIX,
            token_out_type=tf.int32,
            unknown_token=_UNKNOWN,
            support_detokenization=True,
            lower_case_nfd_strip_accents=lowercase,
        )

    @classmethod
    def train(cls, texts, vocabulary_size, lowercase=False):
        """Learns a vocabulary from texts and returns its tokenizer.

        The ids 0 to 3 are padding, unknown, START and END. The same texts always give the same vocabulary. On a
        corpus of 60,000 lines it takes a minute.

        Args:
            texts: Iterable of `str` or `bytes`, one sentence each. They are held in memory.
            vocabulary_size: The largest number of ids. It includes the 4 special ones and two for each character of the
                texts. A word list is cut where counts differ, so that there may be some fewer.
            lowercase: As of the class.

        Returns:
            A `WordPieceTokenizer`.

        Raises:
            ValueError: If the texts are empty, or have too many characters for `vocabulary_size`; the message names
                the smallest that would do.
        """
        if not isinstance(vocabulary_size, int) or vocabulary_size <= len(RESERVED_TOKENS):
            raise ValueError(
                f"`vocabulary_size` must be an int above {len(RESERVED_TOKENS)}, the number of special ids. "
                f"Received: vocabulary_size={vocabulary_size!r}."
            )
        sentences = check_not_blank(texts)
        learner = import_package(
            "tensorflow_text.tools.wordpiece_vocab.bert_vocab_from_dataset", TENSORFLOW_TEXT, cls.__name__
        )
        vocabulary = learner.bert_vocab_from_dataset(
            tf.data.Dataset.from_tensor_slices(sentences).batch(_TEXTS_PER_CALL),
            vocab_size=vocabulary_size,
            reserved_tokens=list(RESERVED_TOKENS),
            bert_tokenizer_params={"lower_case": lowercase},
            learn_params={
                "lower_thresh": 1,
                "joiner": _SUFFIX,
            },  # no word is too rare, if there is room for it
        )
        if len(vocabulary) > vocabulary_size:
            raise ValueError(
                f"`vocabulary_size` must be at least {len(vocabulary)}, for the special ids and the characters of these "
                f"texts. Received: vocabulary_size={vocabulary_size}."
            )
        return cls(vocabulary, lowercase)

    def get_config(self):
        return {"vocabulary": list(self.vocabulary), "lowercase": self.lowercase}

    def _write_config(self, folder):
        # The form of BERT's own vocab.txt.
        content = "".join(f"{piece}\n" for piece in self.vocabulary).encode("utf-8")
        return {
            "vocabulary_sha256": write_file(folder, VOCABULARY_FILE, content),
            "lowercase": self.lowercase,
        }

    @classmethod
    def _read_config(cls, folder, config):
        content = read_file(folder, VOCABULARY_FILE, config["vocabulary_sha256"])
        return cls(content.decode("utf-8").split("\n")[:-1], config["lowercase"])

    def _token_string(self, token_id):
        return self.vocabulary[token_id]


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
