"""A tokenizer.json of Hugging Face in the graph: added tokens, normalizer, pre-tokenizer, model, template, decoder."""

import functools
import json

import tensorflow as tf

from keras_attn.text.added_tokens import AddedTokens, is_added
from keras_attn.text.byte_level import spelled
from keras_attn.text.decoders import Decoder
from keras_attn.text.framing import Framing
from keras_attn.text.normalizers import read_normalizer
from keras_attn.text.pipeline_offsets import tokenize_with_offsets
from keras_attn.text.pre_tokenizers import PreTokenizer
from keras_attn.text.resources import read_file, write_file
from keras_attn.text.templates import read_template
from keras_attn.text.tokenizer import Tokenizer
from keras_attn.text.word_models import read_model

DESCRIPTION_FILE = "pipeline.json"
_PARTS = {"model", "added_tokens", "normalizer", "pre_tokenizer", "post_processor", "decoder"}
_KNOWN = _PARTS | {"version", "truncation", "padding"}
_STRATEGIES = {"LongestFirst": "longest_first", "OnlyFirst": "only_first", "OnlySecond": "only_second"}
ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class PipelineTokenizer(Tokenizer):
    """The tokenizer that a tokenizer.json of Hugging Face describes.

    `tokenize` gives the ids of `tokenizers` without special tokens, `preprocess` those with them. All steps run in
    the graph. A part of the file that is not understood is an error; none is ignored. Its padding id is the file's,
    not 0.

    Ids differ from those of `tokenizers` in these cases only: two spellings of a Unigram model whose scores have the
    same sum; lower case and compatibility forms of characters that are new in Unicode 16; a character with combining
    marks, or Hangul taken apart, under a `Precompiled` map, where ours are sentencepiece's ids; and the first word under
    `prepend_scheme="first"` where a normalizer removed the start of the text. Offsets differ where a character was
    composed of several or lost its marks, or spaces became one: ours span all of them, and a space that was put before a text has none.
    Bytes of a byte fallback that are no UTF-8 are decoded as in `detokenize`, not each as one U+FFFD.

    Args:
        description: The content of tokenizer.json, a dictionary.
        special_tokens: Dictionary from roles (`"bos_token"`, `"eos_token"`, `"unk_token"`, `"pad_token"`,
            `"cls_token"`, `"sep_token"`, `"mask_token"`) to tokens, as tokenizer_config.json has them. START is
            `cls_token` or `bos_token`, END is `sep_token` or `eos_token`.
        split_special_tokens: Boolean, whether the names of special tokens in a text are read as text.

    Raises:
        ValueError: If the description has a part that is damaged or not understood.
        ImportError: If sentencepiece or tensorflow-text is not installed.

    Example:

    ```
    from keras_attn.text import PipelineTokenizer

    words = {"[UNK]": 0, "play": 1, "##ing": 2}
    tokenizer = PipelineTokenizer(
        {
            "model": {"type": "WordPiece", "vocab": words, "unk_token": "[UNK]"},
            "pre_tokenizer": {"type": "WhitespaceSplit"},
            "decoder": {"type": "WordPiece"},
        }
    )
    assert tokenizer.encode(["playing play"]) == [[1, 2, 1]]
    assert tokenizer.decode([[1, 2, 1]]) == ["playing play"]
    ```

    Reference:
        - https://github.com/huggingface/tokenizers
    """

    def __init__(self, description, special_tokens=None, *, split_special_tokens=False):
        description = _checked_description(description)
        try:
            normalizer = read_normalizer(description.get("normalizer"))
            pre_tokenizer = PreTokenizer(description.get("pre_tokenizer"))
            model = read_model(description["model"], spells_bytes=pre_tokenizer.spells_bytes)
            template = read_template(description.get("post_processor"))
        except RecursionError as error:
            raise ValueError("The tokenizer's parts are nested too deeply.") from error
        added = AddedTokens(
            description.get("added_tokens") or [],
            functools.partial(_normalized_texts, normalizer),
            split_special_tokens=split_special_tokens,
        )
        pieces = _all_pieces(model.pieces, added)
        numbers = {piece: number for number, piece in enumerate(pieces) if piece}
        roles = _role_ids(special_tokens or {}, numbers)
        super().__init__(
            vocabulary_size=len(pieces),
            start_token_id=_first_of(roles, "cls_token", "bos_token"),
            end_token_id=_first_of(roles, "sep_token", "eos_token"),
            unknown_token_id=model.unknown_id,
            special_token_ids=sorted(added.special_ids),
        )
        # Kept as text, because a `tf.Module` would track every entry of a dictionary.
        self._description = json.dumps(description)
        self.special_tokens = dict(special_tokens or {})
        self.split_special_tokens = split_special_tokens
        padding = description.get("padding") or {}
        self.pad_token_id = roles.get("pad_token", padding.get("pad_id", 0))
        self.unused_token_ids = tuple(number for number, piece in enumerate(pieces) if not piece)
        self._piece_of = pieces.__getitem__
        self._id_of = numbers.get
        self._normalizer = normalizer
        self._pre_tokenizer = pre_tokenizer
        self._model = model.model
        self._added = added
        texts = [added.texts.get(number, piece) for number, piece in enumerate(pieces)]
        self._decoder = Decoder(description.get("decoder"), texts)
        self.open_end = self._decoder.open_end
        self._framing = Framing(template, *read_truncation(description.get("truncation")))

    @property
    def framing(self):
        """`Framing`: the special tokens around texts, and how they are cut, as the file says."""
        return self._framing

    @property
    def max_sequence_length(self):
        """The number of tokens that the file cuts sequences to, or `None`."""
        return self.framing.max_length

    def preprocess(self, texts, pairs=None, max_length=None):
        """Turns texts, or pairs of texts, into the ids that a model takes, special tokens included.

        Args:
            texts: As in `tokenize`.
            pairs: `None`, or the second texts, as many.
            max_length: The largest number of tokens in a row. Defaults to `max_sequence_length`; without either,
                nothing is cut.

        Returns:
            Two `tf.RaggedTensor`s of shape `(B, None)`, int32: the ids and their types (segments).

        Raises:
            ValueError: If `max_length` has no room for the special tokens.
        """
        second = None if pairs is None else self.tokenize(pairs)
        framed = self.framing(self.tokenize(texts), second, max_length)
        return framed.token_ids, framed.token_type_ids

    @property
    def description(self):
        """The content of tokenizer.json."""
        return json.loads(self._description)

    @property
    def around(self):
        """The ids that the template puts before a text, and after it: two tuples."""
        before, after = (), ()
        is_after = False
        for part in self.framing.template.single:
            is_after |= part.source is not None
            if is_after:
                after += part.special
            else:
                before += part.special
        return before, after

    def token_id(self, token):
        """The id of a token, for example a language's.

        Args:
            token: `str`, a piece of the vocabulary or an added token.

        Returns:
            An int.

        Raises:
            ValueError: If there is no such token.
        """
        token_id = self._id_of(token)
        if token_id is None:
            raise ValueError(f"`token` must be one of this tokenizer's. Received: token={token!r}.")
        return token_id

    def with_special_tokens(self, special_tokens):
        """The same tokenizer with other roles, as in the constructor."""
        return PipelineTokenizer(
            self.description, special_tokens, split_special_tokens=self.split_special_tokens
        )

    def get_config(self):
        return {"description": self.description, **self._roles_and_options()}

    def _roles_and_options(self):
        return {
            "special_tokens": dict(self.special_tokens),
            "split_special_tokens": self.split_special_tokens,
        }

    def _write_config(self, folder):
        sha256 = write_file(folder, DESCRIPTION_FILE, self._description.encode("utf-8"))
        return {"description_sha256": sha256, **self._roles_and_options()}

    @classmethod
    def _read_config(cls, folder, config):
        content = read_file(folder, DESCRIPTION_FILE, config["description_sha256"])
        options = {"split_special_tokens": config["split_special_tokens"]}
        return cls(json.loads(content), config["special_tokens"], **options)

    def _texts_to_ids(self, texts):
        pieces = self._added.cut(texts)
        if self._normalizer is not None:
            added = is_added(pieces.values)
            normalized = self._normalizer(tf.where(added, "", pieces.values))
            pieces = pieces.with_values(tf.where(added, pieces.values, normalized))
        pieces = self._added.cut_normalized(pieces)
        is_first = tf.ragged.range(pieces.row_lengths()).values == 0
        texts = tf.where(is_added(pieces.values), "", pieces.values)
        words = self._pre_tokenizer(texts, is_first)
        ids = words.with_values(self._words_to_ids(words.values)).merge_dims(1, 2)
        # Each piece either is an added token or has words.
        added_ids = self._added.ids_of(pieces.values)
        has_id = added_ids >= 0
        added_ids = tf.RaggedTensor.from_row_lengths(
            tf.boolean_mask(added_ids, has_id), tf.cast(has_id, tf.int64)
        )
        return pieces.with_values(tf.concat([ids, added_ids], axis=1)).merge_dims(1, 2)

    def _texts_to_ids_with_offsets(self, texts):
        moving = ("Prepend", "Strip")
        if any(f'"{name}"' in json.dumps(self.description.get("normalizer")) for name in moving):
            raise ValueError(
                f"Offsets are not counted through the normalizers {moving}, which this tokenizer has."
            )
        keeping = PreTokenizer(self.description.get("pre_tokenizer"), keeps_removed=True)
        return tokenize_with_offsets(texts, self._added, self._normalizer, keeping, self._model)

    def _words_to_ids(self, words):
        # Most words occur several times in a batch.
        words, index = tf.unique(words)
        if self._pre_tokenizer.spells_bytes:
            words = spelled(words)
        return tf.gather(self._model.tokenize(words), index)

    def _ids_to_texts(self, token_ids):
        return self._decoder(token_ids)

    def _token_string(self, token_id):
        return self._piece_of(token_id)


def _normalized_texts(normalizer, texts):
    if normalizer is None:
        return texts
    return [text.decode("utf-8") for text in normalizer(tf.constant(texts)).numpy()]


def _checked_description(description):
    if not isinstance(description, dict) or "model" not in description:
        raise ValueError("`description` must be the content of a tokenizer.json, an object with a model.")
    if unknown := sorted(set(description) - _KNOWN):
        raise ValueError(f"A tokenizer.json may have the parts {sorted(_KNOWN)}. Received also: {unknown}.")
    return description


def _all_pieces(pieces, added):
    """The piece of each id, added tokens among them."""
    highest = max([len(pieces) - 1] + list(added.ids.values()))
    if highest > 2 * len(pieces) + 10**5:
        raise ValueError(
            f"The ids of added tokens must lie near those of the vocabulary. Received: id={highest}."
        )
    all_pieces = pieces + [""] * (highest + 1 - len(pieces))
    for content, number in added.ids.items():
        if all_pieces[number] not in ("", content):
            raise ValueError(
                f"An added token must have an id of its own. Received: {content!r} with id={number}, which is "
                f"{all_pieces[number]!r} in the vocabulary."
            )
        all_pieces[number] = content
    return all_pieces


def _role_ids(special_tokens, ids):
    if unknown := sorted(set(special_tokens) - set(ROLES)):
        raise ValueError(f"`special_tokens` must have keys in {list(ROLES)}. Received: {unknown}.")
    missing = sorted(token for token in special_tokens.values() if token not in ids)
    if missing:
        raise ValueError(f"`special_tokens` must name tokens of the vocabulary. Received: {missing}.")
    return {role: ids[token] for role, token in special_tokens.items()}


def _first_of(roles, *names):
    return next((roles[name] for name in names if name in roles), None)


def read_truncation(part):
    """The largest number of tokens or `None`, the strategy, and whether tokens are cut on the left."""
    if part is None:
        return None, "longest_first", False
    try:
        length = part["max_length"]
        if length is not None:
            length = int(length)
        strategy = _STRATEGIES[part.get("strategy", "LongestFirst")]
        from_left = {"Right": False, "Left": True}[part.get("direction", "Right")]
    except (TypeError, KeyError, ValueError) as error:
        raise ValueError(
            f"A tokenizer's truncation must be one of `tokenizers`. Received: {part!r:.100}"
        ) from error
    return length, strategy, from_left
