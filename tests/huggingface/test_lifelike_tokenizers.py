"""Folders of tokenizers as people keep them, strings to strings, against transformers' AutoTokenizer."""

import collections
import json

import numpy as np
import pytest
import torch
import transformers
from helpers_checkpoint_tasks import MAX_LENGTH, answers_there, sizes_of_bart, write_model
from helpers_checkpoints import randomized
from helpers_lifelike_tokenizers import (
    FAIRSEQ,
    Draw,
    byte_level,
    differences,
    draw,
    model,
    numbered,
    options,
    tokenizer_there,
    word_pieces,
    write,
)
from helpers_tokenizer_parity import proto_of, scored, streamed

import keras_attn
from keras_attn.huggingface import read_tokenizer, save_tokenizer
from keras_attn.text import load_tokenizer

SAMPLE, HUNDREDS, PART = 11, 707, 58


def check(seeds):
    """No draw differs, but for the classes in docs/checkpoints.md, and these are few."""
    named, count = collections.Counter(), 0
    for seed in seeds:
        one = draw(seed)
        wrong, of_draw = differences(one)
        assert wrong == [], (seed, one.kind, one.files.get("tokenizer_config.json"))
        named += of_draw
        count += len(one.texts)
    assert sum(named.values()) <= count / 100


def test_a_sample_of_life_like_folders_has_the_ids_and_texts_of_transformers():
    check(range(SAMPLE))


@pytest.mark.extended
@pytest.mark.parametrize("first", range(SAMPLE, HUNDREDS, PART))
def test_hundreds_of_life_like_folders_have_the_ids_and_texts_of_transformers(first):
    check(range(first, first + PART))


@pytest.mark.parametrize(
    ("bos", "eos", "unk"),
    [
        ("rstrip", None, None),
        (None, "rstrip", None),
        (None, "rstrip", "text"),
        (None, "rstrip", "plain"),
        (None, "plain", "rstrip"),
        ("lstrip", "text", "rstrip"),
        ("rstrip", "plain", None),
    ],
)
def test_a_token_of_several_roles_has_the_options_that_it_has_in_transformers(bos, eos, unk):
    text = "<|endoftext|>"
    roles = {}
    for role, way in {"bos_token": bos, "eos_token": eos, "unk_token": unk}.items():
        if way is not None:
            strips = {name: way == name for name in ("lstrip", "rstrip")}
            roles[role] = (
                text
                if way == "text"
                else {"content": text, "single_word": False, "normalized": True, **strips}
            )
    drawn = next(
        one for one in map(draw, range(HUNDREDS)) if one.kind == "gpt2" and "vocab.json" in one.files
    )
    files = {name: drawn.files[name] for name in ("vocab.json", "merges.txt")}
    files |= {"special_tokens_map.json": roles, "config.json": {"model_type": "gpt2", "vocab_size": 5000}}
    one = Draw("gpt2", files, [f"A man {text}  runs", f"{text} runs", f"runs{text}"])
    assert differences(one) == ([], {})


def folder_of(tmp_path, model_type, files, **fields):
    """A folder, and transformers' tokenizer of it."""
    files = {
        **files,
        "config.json": {"model_type": model_type, "vocab_size": 1009},
        "tokenizer_config.json": fields,
    }
    write(tmp_path, files)
    return tmp_path, tokenizer_there(files)


def same(folder, theirs, texts):
    """Ours, whose ids are checked to be theirs."""
    ours = read_tokenizer(folder)
    assert ours.preprocess(texts)[0].to_list() == theirs(texts)["input_ids"]
    return ours


def marian_files():
    pieces = [piece.piece for piece in proto_of(model("source")).pieces[3:]]
    names = ["</s>", "<unk>", ">>fra<<", *pieces, *"😀あ⇔Ж", "日本", "<pad>"]
    return {"source.spm": model("source"), "target.spm": model("target"), "vocab.json": numbered(names)}


def test_pieces_are_looked_up_by_their_text_and_languages_stand_at_the_start_of_marians_texts_alone(tmp_path):
    folder, theirs = folder_of(tmp_path, "marian", marian_files())
    codes = [">>fra<< Hi", ">>xx<< Hi", " >>fra<< Hi", "Hi >>fra<< a", ">>a>b<c<<d", ">><<", ">> Hi"]
    ours = same(folder, theirs, [*codes, "Home >> Products", "😀", "あ日本日あ", "a⇔b", "ЖЖ", ""])
    ids, starts, stops = (ragged.to_list()[0] for ragged in ours.tokenize_with_offsets([">>fra<< Hi 😀"]))
    assert (ids[0], starts[0], stops[0]) == (2, 0, 7)
    assert (ids[-1], starts[-1], stops[-1]) == (ours.token_id("😀"), 11, 15)
    ours.save(tmp_path / "saved")
    assert load_tokenizer(tmp_path / "saved").encode(codes) == ours.encode(codes)


def m2m_100_files():
    pieces = [piece.piece for piece in proto_of(model("fairseq")).pieces[3:]]
    return {
        "sentencepiece.bpe.model": model("fairseq"),
        "vocab.json": numbered([*FAIRSEQ, *pieces, ">>", "😀"]),
    }


@pytest.mark.parametrize("fields", [{}, {"src_lang": None}, {"src_lang": "de"}])
def test_m2m_100_reads_brackets_as_text_and_takes_english_where_no_language_is_named(fields, tmp_path):
    folder, theirs = folder_of(tmp_path, "m2m_100", m2m_100_files(), **fields)
    ours = same(folder, theirs, ["Home >> Products", ">>fr<< Hi", "😀 a😀"])
    assert ours.around[0] == (ours.token_id(f"__{fields.get('src_lang') or 'en'}__"),)


def nllb_files(after):
    """NLLB's tokenizer.json, with the template of 2022 or of today."""
    _, theirs = nllb_tokenizer(legacy_behaviour=after)
    return {"tokenizer.json": json.loads(theirs.backend_tokenizer.to_str())}


def nllb_tokenizer(**fields):
    files = {"sentencepiece.bpe.model": model("nllb"), "config.json": {"model_type": "m2m_100"}}
    size = len(proto_of(model("nllb")).pieces) + 1
    names = dict(enumerate(FAIRSEQ)) | {
        size + i: name for i, name in enumerate(["deu_Latn", "eng_Latn", "<mask>"])
    }
    listed = {str(number): {"content": name, **options(special=True)} for number, name in names.items()}
    config = {"tokenizer_class": "NllbTokenizer", "added_tokens_decoder": listed, **fields}
    files["tokenizer_config.json"] = {**config, "additional_special_tokens": ["deu_Latn", "eng_Latn"]}
    return files, tokenizer_there(files)


@pytest.mark.parametrize("fields", [{}, {"legacy_behaviour": True}, {"src_lang": "deu_Latn"}])
def test_nllbs_old_template_is_replaced_unless_the_old_behaviour_is_asked_for(fields, tmp_path):
    fields = {"tokenizer_class": "NllbTokenizer", **fields}
    folder, theirs = folder_of(tmp_path, "m2m_100", nllb_files(after=True), **fields)
    ours = same(folder, theirs, ["A dog runs."])
    assert len(ours.around[0]) == ("legacy_behaviour" not in fields)


def test_a_language_that_has_no_token_is_an_error_with_a_way_out(tmp_path):
    folder, _ = folder_of(tmp_path, "m2m_100", nllb_files(after=False), tokenizer_class="NllbTokenizer")
    content = json.loads((folder / "tokenizer.json").read_text().replace("eng_Latn", "kor_Hang"))
    (folder / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(
        ValueError, match=r"`source_language` must be a language .*source_language='eng_Latn'"
    ):
        read_tokenizer(folder)
    ours = read_tokenizer(folder, source_language="kor_Hang")
    assert ours.around[0] == (ours.token_id("kor_Hang"),)


@pytest.mark.parametrize("name", ["BertTokenizer", "PreTrainedTokenizerFast"])
@pytest.mark.parametrize("side", ["Left", "Right"])
def test_what_the_last_call_of_transformers_left_is_not_followed_but_for_the_side(name, side, tmp_path):
    pieces = word_pieces(True)
    files = {"vocab.txt": "\n".join(sorted(pieces, key=pieces.get)), "config.json": {"model_type": "bert"}}
    content = json.loads(tokenizer_there(files).backend_tokenizer.to_str())
    content["truncation"] = {"direction": side, "max_length": 5, "strategy": "LongestFirst", "stride": 0}
    content["padding"] = {"strategy": {"Fixed": 12}, "direction": "Right", "pad_to_multiple_of": None}
    content["padding"] |= {"pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"}
    folder, theirs = folder_of(tmp_path, "bert", {"tokenizer.json": content}, tokenizer_class=name)
    texts = ["a dog runs in the park", "a dog"]
    ours = same(folder, theirs, texts)
    cut = theirs(texts, truncation=True, max_length=4)["input_ids"]
    assert ours.preprocess(texts, max_length=4)[0].to_list() == cut
    ours.save(tmp_path / "saved")
    assert load_tokenizer(tmp_path / "saved").preprocess(texts, max_length=4)[0].to_list() == cut
    save_tokenizer(ours, tmp_path / "again")
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "again")
    assert again(texts, truncation=True, max_length=4)["input_ids"] == cut


# A field, the class that obeys it, and a text that shows it.
FIELDS = [
    ("bert", {"do_lower_case": False}, "A Dog"),
    ("bert", {"do_lower_case": True, "strip_accents": False}, "ÉTÉ"),
    ("bert", {"tokenize_chinese_chars": False}, "ab你好"),
    ("bert", {"do_basic_tokenize": False, "never_split": ["a"]}, "a dog."),
    ("gpt2", {"add_prefix_space": True}, "dog"),
    ("gpt2", {"add_bos_token": True}, "dog"),
    ("gpt2", {"split_special_tokens": True}, "a<|endoftext|>"),
    ("gpt2", {"clean_up_tokenization_spaces": True}, "a ."),
    ("llama", {"legacy": True}, "a<s>b c"),
    ("llama", {"add_prefix_space": False}, "a b"),
    ("llama", {"add_bos_token": True, "add_eos_token": True}, "a b"),
    ("t5", {"extra_ids": 7}, "<extra_id_0> <extra_id_6>"),
    ("albert", {"keep_accents": True, "do_lower_case": False}, "Éé"),
]


@pytest.mark.sampled(9)
@pytest.mark.parametrize("with_file", [False, True])
@pytest.mark.parametrize(("kind", "fields", "text"), FIELDS)
def test_each_field_is_obeyed_with_and_without_tokenizer_json(kind, fields, text, with_file, tmp_path):
    fields = dict(fields)
    if kind == "bert":
        pieces = word_pieces(False)
        files = {"vocab.txt": "\n".join(sorted(pieces, key=pieces.get))}
    elif kind == "gpt2":
        vocabulary, pairs = byte_level(("<|endoftext|>",))
        files = {
            "vocab.json": vocabulary,
            "merges.txt": "".join(f"{left} {right}\n" for left, right in pairs),
        }
    else:
        name = {"llama": "tokenizer.model"}.get(kind, "spiece.model")
        files = {name: model(kind)}
        fields |= {"tokenizer_class": "LlamaTokenizer"} if kind == "llama" else {}
    if with_file:
        plain = {name: value for name, value in fields.items() if name in ("tokenizer_class", "extra_ids")}
        first = tokenizer_there(
            {**files, "config.json": {"model_type": kind}, "tokenizer_config.json": plain}
        )
        files = {"tokenizer.json": json.loads(first.backend_tokenizer.to_str())}
    folder, theirs = folder_of(tmp_path, kind, files, **fields)
    ours = same(folder, theirs, [text, f"{text} {text}", "It 's a dog ."])
    rows = [
        [i for i in ids if i != ours.start_token_id] for ids in theirs(["It 's a dog .", text])["input_ids"]
    ]
    assert ours.decode(rows) == theirs.batch_decode(rows, skip_special_tokens=True)


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"fix_mistral_regex": True}, "`fix_mistral_regex` .* must be false"),
        ({"separate_vocabs": True}, "`separate_vocabs` .* must be false"),
        ({"sp_model_kwargs": {"enable_sampling": True}}, "`sp_model_kwargs` .* must be without options"),
        ({"fast_tokenizer_files": ["tokenizer.4.0.0.json"]}, "`fast_tokenizer_files` .* must be a list"),
        ({"tokenizer_class": "BertJapaneseTokenizer"}, "`tokenizer_class` must be one of .*BertJapanese"),
    ],
)
def test_fields_that_are_not_obeyed_are_refused_by_name(fields, match, tmp_path):
    pieces = word_pieces(False)
    write(tmp_path, {"vocab.txt": "\n".join(sorted(pieces, key=pieces.get)), "tokenizer_config.json": fields})
    with pytest.raises(ValueError, match=match):
        read_tokenizer(tmp_path)
    if "tokenizer_class" not in fields:
        assert read_tokenizer(tmp_path, ignored_fields=tuple(fields)).encode(["a"]) != [[]]


@pytest.mark.parametrize("model_type", ["t5", "gpt2"])
def test_a_tokenizer_json_of_2020_does_not_name_the_type_of_its_model(model_type, tmp_path):
    if model_type == "t5":
        content = {"unk_id": 2, "vocab": [list(piece) for piece in scored(proto_of(model("t5")))]}
    else:
        vocabulary, pairs = byte_level(("<|endoftext|>",))
        content = {"vocab": vocabulary, "merges": [" ".join(pair) for pair in pairs], "dropout": None}
    first = {"type": "Metaspace", "replacement": "▁", "str_rep": "▁", "add_prefix_space": True}
    split = (
        first
        if model_type == "t5"
        else {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    )
    description = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
    }
    description |= {"pre_tokenizer": split, "post_processor": None, "decoder": split, "model": content}
    folder, theirs = folder_of(tmp_path, model_type, {"tokenizer.json": description})
    same(folder, theirs, ["A dog runs.", "two  spaces"])


def test_an_answer_whose_spaces_are_cleaned_up_streams_in_pieces_that_stay(tmp_path):
    pieces = ["<unk>", "▁do", "▁n", "'t", "▁."]
    description = dict.fromkeys(("normalizer", "pre_tokenizer", "post_processor", "truncation", "padding"))
    description |= {
        "version": "1.0",
        "added_tokens": [],
        "model": {"type": "Unigram", "unk_id": 0, "vocab": [[piece, -1.0] for piece in pieces]},
        "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"},
    }
    fields = {"clean_up_tokenization_spaces": True, "tokenizer_class": "PreTrainedTokenizerFast"}
    folder, theirs = folder_of(tmp_path, "t5", {"tokenizer.json": description}, **fields)
    ours = read_tokenizer(folder)
    rows = [[1, 2, 3, 4], [1, 2], [4, 1]]
    assert ours.decode(rows) == theirs.batch_decode(rows) == ["don't.", "do n", ". do"]
    assert streamed(ours, rows[0]) == ["do", "n't", "."]
    save_tokenizer(ours, tmp_path / "again", "seq2seq")
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "again")
    assert again.batch_decode(rows) == ours.decode(rows)


SEQ2SEQ = {
    "marian": ("MarianMTModel", "MarianConfig"),
    "nllb": ("M2M100ForConditionalGeneration", "M2M100Config"),
    "m2m_100": ("M2M100ForConditionalGeneration", "M2M100Config"),
    "mbart-50": ("MBartForConditionalGeneration", "MBartConfig"),
}


@pytest.mark.extended
@pytest.mark.parametrize("kind", SEQ2SEQ)
@pytest.mark.parametrize("seed", range(3))
def test_a_translator_of_a_life_like_folder_answers_as_transformers_does(kind, seed, tmp_path):
    for number in range(100 * seed, 100 * seed + 100):
        one = draw(number, [kind])
        theirs = tokenizer_there(one.files)
        if theirs.eos_token_id is not None:  # a language has been named, too
            break
    name, config = SEQ2SEQ[kind]
    ids = {"pad_token_id": theirs.pad_token_id, "eos_token_id": theirs.eos_token_id}
    ids |= {"bos_token_id": theirs.eos_token_id, "decoder_start_token_id": theirs.eos_token_id}
    size = max(theirs.get_vocab().values()) + 1
    torch.manual_seed(3)
    twin = getattr(transformers, name)(getattr(transformers, config)(**sizes_of_bart(vocab_size=size, **ids)))
    write(tmp_path, one.files)
    write_model(tmp_path, twin)
    task = keras_attn.load(tmp_path)
    texts = [text[:40] for text in one.texts]
    # An empty source has an empty answer here, and pads in a text count for nothing.
    tokens = [ids[1:-1] for ids in theirs([f"a {text}" for text in texts])["input_ids"]]
    texts = [
        t for t, ids in zip(texts, tokens, strict=True) if len(ids) > 2 and theirs.pad_token_id not in ids
    ]
    options = {"num_beams": 1}
    if task.languages is not None and task.languages.target is not None:
        options["forced_bos_token_id"] = task.languages.ids[task.languages.target]
    expected = answers_there(task, twin, theirs, texts, **options)
    assert task(texts, num_beams=1, max_length=MAX_LENGTH) == expected


@pytest.mark.extended
def test_an_embedder_reads_texts_to_their_end_whatever_the_last_call_of_transformers_cut(tmp_path):
    pieces = word_pieces(True)
    lines = {"vocab.txt": "\n".join(sorted(pieces, key=pieces.get)), "config.json": {"model_type": "bert"}}
    content = json.loads(tokenizer_there(lines).backend_tokenizer.to_str())
    content["truncation"] = {"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0}
    sizes = {"hidden_size": 14, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 11}
    twin = transformers.BertModel(transformers.BertConfig(vocab_size=len(pieces), **sizes))
    randomized(twin)
    twin.save_pretrained(tmp_path)
    write(
        tmp_path, {"tokenizer.json": content, "tokenizer_config.json": {"tokenizer_class": "BertTokenizer"}}
    )
    texts = ["a dog runs in the park and a man sees the dog " * 3, "a dog", "A Man"]
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    inputs = theirs(texts, return_tensors="pt", padding=True)
    with torch.no_grad():
        sequence, mask = twin(**inputs).last_hidden_state, inputs["attention_mask"][..., None]
    vectors = ((sequence * mask).sum(1) / mask.sum(1)).numpy()
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    np.testing.assert_allclose(keras_attn.load(tmp_path)(texts), vectors, atol=1e-5)
