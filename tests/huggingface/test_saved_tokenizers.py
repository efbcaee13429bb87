"""Tokenizers as files: AutoTokenizer makes one with the ids of ours, and so does `read_tokenizer`."""

import re
import unicodedata

import pytest
import sentencepiece
import transformers
from helpers_texts import fuzzed_texts, hard_texts, sentences

from keras_attn.huggingface import read_tokenizer, save_tokenizer
from keras_attn.text import ByteLevelBPETokenizer, ByteTokenizer, SentencePieceTokenizer, WordPieceTokenizer

SENTENCES = sentences(400)
TEXTS = [*hard_texts(), *fuzzed_texts(500), *SENTENCES[:50]]
KINDS = {
    "bpe": lambda: SentencePieceTokenizer.train(SENTENCES, 700),
    "bpe of running text": lambda: SentencePieceTokenizer.train(
        SENTENCES, 700, keep_white_space=True, split_digits=True
    ),
    "bpe without bytes": lambda: SentencePieceTokenizer.train(
        SENTENCES, 500, byte_fallback=False, lowercase=True
    ),
    "unigram": lambda: SentencePieceTokenizer.train(SENTENCES, 440, "unigram"),
    "unigram without bytes": lambda: SentencePieceTokenizer.train(
        SENTENCES, 180, "unigram", byte_fallback=False
    ),
    "words": lambda: WordPieceTokenizer.train(SENTENCES, 503),
    "lower-cased words": lambda: WordPieceTokenizer.train(SENTENCES, 503, lowercase=True),
    "bytes": ByteTokenizer,
}
_SPECIAL = re.compile(r"<(/?s|pad|unk|0x[0-9A-F]{2})>|\[(PAD|UNK|CLS|SEP)\]", re.IGNORECASE)
_DROPPED = re.compile("[\x00-\x1f\x7f-\x9f\u200b-\u200f\ufeff]")


def names_a_special_token(text):
    return _SPECIAL.search(unicodedata.normalize("NFKC", _DROPPED.sub("", text))) is not None


def with_their_normal_form(tokenizer, theirs, texts):
    """The texts to which `tokenizers` does what sentencepiece does: its map of characters loses marks after some."""
    if not isinstance(tokenizer, SentencePieceTokenizer) or theirs.backend_tokenizer.normalizer is None:
        return texts
    processor = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model_proto)
    normalize = theirs.backend_tokenizer.normalizer.normalize_str
    spaced = [processor.normalize(text).replace("▁", " ").removeprefix(" ") for text in texts]
    same = [text for text, form in zip(texts, spaced) if normalize(text) == form]
    assert len(same) > 0.97 * len(texts)
    return same


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_those_of_the_saved_files(kind, tmp_path):
    tokenizer = KINDS[kind]()
    save_tokenizer(tokenizer, tmp_path, "seq2seq", max_length=10**6)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    texts = with_their_normal_form(tokenizer, theirs, TEXTS)
    if kind.startswith("unigram"):  # their names are pieces to `tokenizers`
        texts = [text for text in texts if not names_a_special_token(text)]
    assert len(texts) > 600
    encoded = theirs(texts)
    assert [[*ids, tokenizer.end_token_id] for ids in tokenizer.encode(texts)] == encoded["input_ids"]
    assert set(encoded) == {"input_ids", "attention_mask"}
    again = read_tokenizer(tmp_path)
    assert again.preprocess(texts)[0].to_list() == theirs(texts)["input_ids"]
    ids = tokenizer.encode(SENTENCES[:50])
    assert theirs.batch_decode(ids, skip_special_tokens=True) == tokenizer.decode(ids)
    for role in ("bos", "eos", "pad"):
        ours = {"bos": tokenizer.start_token_id, "eos": tokenizer.end_token_id, "pad": tokenizer.pad_token_id}
        assert getattr(theirs, f"{role}_token_id") == ours[role]


@pytest.mark.parametrize(
    ("kind", "single", "pair", "types"),
    [
        ("encoder", [2, 4, 3], [2, 4, 3, 5, 3], [0, 0, 0, 1, 1]),
        ("seq2seq", [4, 3], [4, 3, 5, 3], None),
        ("decoder", [2, 4], [2, 4, 5], None),
    ],
)
def test_special_tokens_are_those_of_the_kind_of_model(kind, single, pair, types, tmp_path):
    tokenizer = WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "hi", "you"])
    save_tokenizer(tokenizer, tmp_path, kind, max_length=29)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert theirs.model_max_length == 29
    assert theirs("hi")["input_ids"] == single
    assert theirs("hi", "you")["input_ids"] == pair
    assert theirs("hi", "you").get("token_type_ids") == types
    ids, type_ids = read_tokenizer(tmp_path).preprocess(["hi"], ["you"])
    assert ids.to_list() == [pair]
    assert types is None or type_ids.to_list() == [types]


def test_a_pipeline_goes_out_as_it_came(tmp_path):
    vocabulary = {"a": 0, "b": 1, "Ġ": 2, "ab": 3, "Ġab": 4, "<s>": 5, "</s>": 6}
    special = {"bos_token": "<s>", "eos_token": "</s>"}
    tokenizer = ByteLevelBPETokenizer(vocabulary, [("a", "b"), ("Ġ", "ab")], special_tokens=special)
    save_tokenizer(tokenizer, tmp_path, "decoder")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    again = read_tokenizer(tmp_path)
    assert theirs(["ab abb<s>"])["input_ids"] == tokenizer.encode(["ab abb<s>"]) == [[3, 4, 1, 5]]
    assert again.encode(["ab abb<s>"]) == [[3, 4, 1, 5]]
    assert (again.start_token_id, again.end_token_id) == (theirs.bos_token_id, theirs.eos_token_id) == (5, 6)


def test_what_has_no_tokenizer_json_is_refused(tmp_path):
    tokenizer = WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
    with pytest.raises(ValueError, match="`kind` must be one of"):
        save_tokenizer(tokenizer, tmp_path, "picture")
    with pytest.raises(ValueError, match=r"`tokenizer` must be one of .*ByteTokenizer\. Received: str"):
        save_tokenizer("a tokenizer", tmp_path)
    assert not any(tmp_path.iterdir())
