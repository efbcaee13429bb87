"""Subword units: sentencepiece trains the vocabulary, tensorflow-text applies it in the graph."""

import base64
import hashlib
import io
import re

import tensorflow as tf

from keras_attn.checks import check_positive
from keras_attn.compat.tensorflow import sentencepiece_resource, set_sentencepiece_resource
from keras_attn.text.bpe_dropout import BpeDropout
from keras_attn.text.characters import characters_of
from keras_attn.text.resources import TENSORFLOW_TEXT, import_package, read_file, write_file
from keras_attn.text.tokenizer import Tokenizer, check_not_blank

MODEL_FILE = "sentencepiece.model"
_MODEL_TYPES = ("bpe", "unigram")
# sentencepiece's normalization rule, by (white space is kept, case is folded).
_RULES = {
    (False, False): "nmt_nfkc",
    (False, True): "nmt_nfkc_cf",
    (True, False): "identity",
    (True, True): "nfkc_cf",
}
# sentencepiece silently drops longer lines. This is the largest limit it accepts.
_MAX_LINE_BYTES = 2**30


class SentencePieceTokenizer(Tokenizer):
    """Splits text into subword units with a sentencepiece model, BPE or unigram.

    The model is part of the graph: an exported signature takes strings. `detokenize(tokenize(x))` is the
    normalised text: for models from `train` that is sentencepiece's `nmt_nfkc` rule (Unicode NFKC; control
    characters removed; zero-width spaces, U+FFFD and U+2581, sentencepiece's own sign for a space, read as
    spaces), with white space stripped and collapsed to single spaces. Without byte fallback, a character the
    vocabulary lacks becomes the unknown id, which is decoded as " ⁇ ".

    Unlike KerasHub's tokenizer of this name, it checks that the model has every id that translation needs,
    and it keeps working after `keras.utils.set_random_seed` and `clear_session`. For this, a model stays in
    memory until the process ends, once for all tokenizers that use it.

    Args:
        model_proto: The content of a sentencepiece `.model` file, as `bytes`. Its padding id must be 0, and
            it must have a START (bos) and an END (eos) id.

    Raises:
        ValueError: If `model_proto` is no sentencepiece model or lacks one of these ids.
        ImportError: If sentencepiece or tensorflow-text is not installed.

    Example:

    ```
    from keras_attn.text import SentencePieceTokenizer

    tokenizer = SentencePieceTokenizer.train(["a dog and a cat", "a cat and a dog"], vocabulary_size=280)
    token_ids = tokenizer.tokenize(["a  cat and a zebra "])
    assert tokenizer.decode(token_ids) == ["a cat and a zebra"]
    ```

    Reference:
        - Kudo and Richardson, 2018, "SentencePiece: A simple and language independent subword tokenizer and
          detokenizer for Neural Text Processing" (arXiv:1808.06226), section 3
        - Sennrich et al., 2016 (arXiv:1508.07909), section 3.2, for BPE
        - Kudo, 2018 (arXiv:1804.10959), section 3.2, for the unigram model
        - Provilkov et al., 2020 (arXiv:1910.13267), for `bpe_dropout`
    """

    def __init__(self, model_proto):
        processor = _load_processor(model_proto)
        super().__init__(
            vocabulary_size=processor.vocab_size(),
            start_token_id=processor.bos_id(),
            end_token_id=processor.eos_id(),
            unknown_token_id=processor.unk_id(),
            special_token_ids=[i for i in range(processor.vocab_size()) if processor.is_control(i)],
        )
        self.model_proto = model_proto
        self._processor = processor
        self._graph_tokenizer = shared_graph_tokenizer(model_proto)

    @classmethod
    def train(
        cls,
        texts,
        vocabulary_size,
        model_type="bpe",
        byte_fallback=True,
        character_coverage=1.0,
        lowercase=False,
        split_digits=False,
        keep_white_space=False,
    ):
        """Trains a vocabulary on texts and returns its tokenizer.

        The ids 0 to 3 are padding, unknown, START and END. The same texts in the same order always give the
        same vocabulary.

        Args:
            texts: Iterable of `str` or `bytes`, one sentence each, of any length. They are held in memory.
            vocabulary_size: Number of ids. It includes the 4 special ones, 256 for the bytes if
                `byte_fallback` is set, and one for each character that is covered.
            model_type: `"bpe"` (merges, Sennrich et al.) or `"unigram"` (Kudo).
            byte_fallback: Whether a character outside the vocabulary is spelled in bytes rather than unknown.
            character_coverage: Share of the texts' characters that get an id of their own, in (0, 1]. For
                Chinese or Japanese 0.9995 is usual.
            split_digits: Whether each digit is a token of its own, so that numbers that were never seen are read like
                the others.
            lowercase: Whether to fold case as part of the normalisation (sentencepiece's `nmt_nfkc_cf`).
                `detokenize` cannot undo it.

            keep_white_space: Whether texts are taken as they are: no normalisation, and every space and line break
                stays, so that `decode(encode(x)) == x` with byte fallback, as a language model of running text needs it.

        Returns:
            A `SentencePieceTokenizer`.

        Raises:
            ValueError: If the texts are empty, or `vocabulary_size` does not fit them; the message then names
                a size that does.
        """
        _check_training_arguments(vocabulary_size, model_type, character_coverage)
        sentences = check_not_blank(texts)
        sentencepiece = import_package("sentencepiece", "sentencepiece", SentencePieceTokenizer.__name__)
        model = io.BytesIO()
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(sentences),
                model_writer=model,
                vocab_size=vocabulary_size,
                model_type=model_type,
                byte_fallback=byte_fallback,
                character_coverage=character_coverage,
                normalization_rule_name=_RULES[keep_white_space, lowercase],
                remove_extra_whitespaces=not keep_white_space,
                add_dummy_prefix=not keep_white_space,
                split_digits=split_digits,
                pad_id=cls.pad_token_id,
                unk_id=1,
                bos_id=2,
                eos_id=3,
                max_sentence_length=_MAX_LINE_BYTES,
                num_threads=1,  # fixed order of float sums: the same model every time
                minloglevel=2,
            )
        except RuntimeError as error:
            raise ValueError(_training_advice(str(error), vocabulary_size)) from error
        tokenizer = cls(model.getvalue())
        tokenizer.characters = characters_of([sentence.decode("utf-8") for sentence in sentences])
        return tokenizer

    def bpe_dropout(self):
        library = import_package("sentencepiece.sentencepiece_model_pb2", "sentencepiece", "BPE-dropout")
        model = library.ModelProto.FromString(self.model_proto)
        is_bpe = model.trainer_spec.model_type == model.trainer_spec.BPE
        if not is_bpe or any(piece.type in (piece.USER_DEFINED, piece.UNUSED) for piece in model.pieces):
            kind = "with pieces of users" if is_bpe else "that is not BPE"
            raise ValueError(
                '`subword_sampling` leaves out merges of sentencepiece\'s BPE: train with `tokenizer` "bpe", or set '
                f"`subword_sampling` to 0. Received: a sentencepiece model {kind}."
            )
        pieces = [piece.piece if piece.type == piece.NORMAL else None for piece in model.pieces]
        return BpeDropout(pieces, [piece.score for piece in model.pieces])

    def get_config(self):
        return {"model_proto": base64.b64encode(self.model_proto).decode("ascii")}

    @classmethod
    def from_config(cls, config):
        return cls(base64.b64decode(config["model_proto"], validate=True))

    def _write_config(self, folder):
        # The model is a separate file, which sentencepiece's own tools can read.
        return {"model_sha256": write_file(folder, MODEL_FILE, self.model_proto)}

    @classmethod
    def _read_config(cls, folder, config):
        return cls(read_file(folder, MODEL_FILE, config["model_sha256"]))

    def _as_read(self, texts):
        tensorflow_text = import_package("tensorflow_text", TENSORFLOW_TEXT, type(self).__name__)
        # The model holds its rule in compiled form alone; these two letters tell it.
        [wide, capital] = self._processor.normalize(["Ａ", "A"])
        if "Ａ" not in wide:
            texts = tensorflow_text.normalize_utf8(texts, "NFKC")
        if "A" not in capital:
            texts = tensorflow_text.case_fold_utf8(texts)
        return texts

    def _texts_to_ids(self, texts):
        return self._graph_tokenizer.tokenize(texts)

    def _texts_to_ids_with_offsets(self, texts):
        return tuple(tf.cast(x, tf.int32) for x in self._graph_tokenizer.tokenize_with_offsets(texts))

    def _ids_to_texts(self, token_ids):
        return self._graph_tokenizer.detokenize(token_ids)

    def _token_string(self, token_id):
        return self._processor.id_to_piece(token_id)


def shared_graph_tokenizer(model_proto, out_type=tf.int32):
    """tensorflow-text's tokenizer of a model, which keeps working when the cache of kernels is emptied."""
    tensorflow_text = import_package("tensorflow_text", TENSORFLOW_TEXT, SentencePieceTokenizer.__name__)
    try:
        graph_tokenizer = tensorflow_text.SentencepieceTokenizer(model=model_proto, out_type=out_type)
    except tf.errors.OpError as error:
        raise ValueError(f"A sentencepiece model cannot be used: {error.message}.") from error
    set_sentencepiece_resource(graph_tokenizer, _SharedModel(model_proto))
    return graph_tokenizer


class _SharedModel(tf.saved_model.experimental.TrackableResource):
    """The model as a TensorFlow resource, named after its content."""

    def __init__(self, model_proto):
        super().__init__()
        self._model_proto = model_proto
        _ = self.resource_handle  # Reading it creates the resource here, outside any graph.

    def _create_resource(self):
        name = "sentencepiece_" + hashlib.sha256(self._model_proto).hexdigest()
        return sentencepiece_resource(self._model_proto, name)


def _load_processor(model_proto):
    sentencepiece = import_package("sentencepiece", "sentencepiece", SentencePieceTokenizer.__name__)
    if not isinstance(model_proto, bytes) or not model_proto:
        raise ValueError(
            "`model_proto` must be the content of a sentencepiece model, as bytes. "
            f"Received: {type(model_proto).__name__} {model_proto!r:.50}"
        )
    try:
        processor = sentencepiece.SentencePieceProcessor(model_proto=model_proto)
    except RuntimeError as error:
        raise ValueError(
            f"`model_proto` must be the content of a sentencepiece model. Received: {len(model_proto)} bytes "
            f"that sentencepiece cannot read ({error})."
        ) from error
    pad, start, end = processor.pad_id(), processor.bos_id(), processor.eos_id()
    if pad != Tokenizer.pad_token_id or start < 0 or end < 0:
        raise ValueError(
            "`model_proto` must have pad_id=0, a bos_id and an eos_id. Train it with "
            "SentencePieceTokenizer.train, or with spm_train --pad_id=0 --unk_id=1 --bos_id=2 --eos_id=3. "
            f"Received: pad_id={pad}, bos_id={start}, eos_id={end}."
        )
    return processor


def _check_training_arguments(vocabulary_size, model_type, character_coverage):
    if check_positive("vocabulary_size", vocabulary_size) <= 4:
        raise ValueError(
            f"`vocabulary_size` must be an int above 4, the number of special ids. Received: vocabulary_size={vocabulary_size!r}."
        )
    if model_type not in _MODEL_TYPES:
        raise ValueError(f"`model_type` must be one of {_MODEL_TYPES}. Received: model_type={model_type!r}.")
    if not 0 < character_coverage <= 1:
        raise ValueError(
            f"`character_coverage` must lie in (0, 1]. Received: character_coverage={character_coverage}."
        )


def _training_advice(message, vocabulary_size):
    if most := re.search(r"too high .* a value <= (\d+)", message):
        bound = f"at most {most[1]}, all that these texts can fill"
    elif least := re.search(r"smaller than required_chars. \d+ vs (\d+)", message):
        bound = f"at least {least[1]}, for the special ids, bytes and characters of these texts"
    else:
        return f"sentencepiece cannot train on these texts: {message}"
    return f"`vocabulary_size` must be {bound}. Received: vocabulary_size={vocabulary_size}."
