"""The tokenizers against Python's own codecs, sentencepiece without TensorFlow, and WordPiece written out."""

import gc
import io
import json
import random
import sys
import unicodedata

import keras
import numpy as np
import pytest
import sentencepiece
import tensorflow as tf
from hypothesis import example, given, settings
from hypothesis import strategies as st

from keras_attn.text import (
    ByteTokenizer,
    SentencePieceTokenizer,
    Tokenizer,
    WordPieceTokenizer,
    as_utf8,
    load_tokenizer,
)
from keras_attn.text.bert_words import bert_words

WORDS = (
    "der Hund läuft über die Straße weil er müde ist animal didn't cross street too tired été garçon".split()
)
ODD_TEXTS = {
    "empty": "",
    "whitespace": " \t \n ",
    "nul": "a\0b",
    "emoji": "ein 👩‍👩‍👧 und 🇩🇪",
    "right_to_left": "שלום \u202eעולם\u202c",
    "names_of_special_pieces": "<s> <pad> </s> <0x41>",
    "byte_order_mark": "\ufeffHund",
    "noncharacter": "\uffff\U0010ffff",
    "combining": "e\u0301",
}


def sentences(count, seed):
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(1, 13))) for _ in range(count)]


def sentencepiece_proto(**arguments):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences(50, seed=1)),
        model_writer=model,
        vocab_size=43,
        minloglevel=2,
        **arguments,
    )
    return model.getvalue()


@pytest.fixture(scope="module")
def bpe():
    return SentencePieceTokenizer.train(sentences(200, seed=2), vocabulary_size=337)


@pytest.fixture(scope="module")
def unigram():
    return SentencePieceTokenizer.train(sentences(200, seed=2), vocabulary_size=293, model_type="unigram")


@pytest.fixture(scope="module")
def wordpiece():
    return WordPieceTokenizer.train(sentences(200, seed=2), vocabulary_size=79)


@pytest.fixture(params=["byte", "bpe", "unigram", "wordpiece"])
def tokenizer(request):
    return ByteTokenizer() if request.param == "byte" else request.getfixturevalue(request.param)


def normalized(text):
    normalizer = sentencepiece.SentencePieceNormalizer(
        rule_name="nmt_nfkc", add_dummy_prefix=False, escape_whitespaces=False, remove_extra_whitespaces=True
    )
    return normalizer.normalize(text)


def read_back(tokenizer, text):
    """What a text in the words of the vocabulary reads like afterwards."""
    return text.replace("'", " ' ") if isinstance(tokenizer, WordPieceTokenizer) else text


def is_mark(character):
    """BERT's punctuation, and the CJK characters that are words each."""
    is_ascii_mark = (
        character.isascii() and character.isprintable() and not character.isalnum() and character != " "
    )
    is_cjk = unicodedata.name(character, "").startswith("CJK UNIFIED")
    return is_ascii_mark or is_cjk or unicodedata.category(character).startswith("P")


def is_gap(character):
    return character in "\t\n\r" or unicodedata.category(character) in ("Zs", "Zl", "Zp")


def is_dropped(character):
    """Control and format characters and the like, which BERT does not see."""
    is_other = unicodedata.category(character) in ("Cc", "Cf", "Co") or character == "\ufffd"
    return is_other and character not in "\t\n\r"


def wordpiece_ids(vocabulary, text):
    """Devlin et al.'s splitting and the longest piece first, one word after the other."""
    text = "".join(" " if is_gap(c) else f" {c} " if is_mark(c) else c for c in text if not is_dropped(c))
    ids = []
    for word in text.split():
        pieces, start = [], 0
        while start < len(word):
            ends = range(len(word), start, -1)
            candidates = (("##" if start else "") + word[start:end] for end in ends)
            piece = next((piece for piece in candidates if piece in vocabulary), None)
            if piece is None:
                pieces = ["[UNK]"]
                break
            pieces.append(piece)
            start += len(piece.removeprefix("##") if start else piece)
        ids += map(vocabulary.index, pieces)
    return ids


def oracle_ids(tokenizer, text):
    if isinstance(tokenizer, ByteTokenizer):
        return [byte + 3 for byte in text.encode()]
    if isinstance(tokenizer, WordPieceTokenizer):
        return wordpiece_ids(tokenizer.vocabulary, text)
    return sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model_proto).encode(text)


def oracle_text(tokenizer, token_ids):
    """`detokenize` of one row, in plain Python."""
    if tokenizer.end_token_id in token_ids:
        token_ids = token_ids[: token_ids.index(tokenizer.end_token_id)]
    token_ids = [i for i in token_ids if i not in (0, tokenizer.start_token_id)]
    if isinstance(tokenizer, ByteTokenizer):
        return bytes(i - 3 for i in token_ids).decode("utf-8", "replace")
    if isinstance(tokenizer, WordPieceTokenizer):
        pieces = [tokenizer.vocabulary[i] for i in token_ids]
        return "".join(
            pieces[:1] + [p.removeprefix("##") if p.startswith("##") else f" {p}" for p in pieces[1:]]
        )
    return sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model_proto).decode(token_ids)


# Ids


def test_special_ids(tokenizer):
    unknown, start, end, size = {
        "ByteTokenizer": (None, 1, 2, 259),
        "SentencePieceTokenizer": (1, 2, 3, tokenizer.vocabulary_size),
        "WordPieceTokenizer": (1, 2, 3, tokenizer.vocabulary_size),
    }[type(tokenizer).__name__]
    assert tokenizer.pad_token_id == 0
    assert tokenizer.unknown_token_id == unknown
    assert tokenizer.start_token_id == start
    assert tokenizer.end_token_id == end
    assert tokenizer.vocabulary_size == size


def test_vocabulary_size_is_what_was_asked_for(bpe, unigram):
    assert bpe.vocabulary_size == 337
    assert unigram.vocabulary_size == 293


def test_ids_equal_those_of_sentencepiece(tokenizer):
    texts = sentences(300, seed=3)
    token_ids = tokenizer.tokenize(texts)
    assert token_ids.dtype == tf.int32
    assert token_ids.to_list() == [oracle_ids(tokenizer, text) for text in texts]


@pytest.mark.extended
@given(texts=st.lists(st.text(), min_size=5, max_size=17))
@settings(max_examples=5, deadline=None)
@example(texts=["\0", "\ufeff", "👩‍👩‍👧"])
def test_bytes_round_trip_exactly(texts):
    tokenizer = ByteTokenizer()
    assert tokenizer.encode(texts) == [oracle_ids(tokenizer, text) for text in texts]
    assert tokenizer.decode(tokenizer.tokenize(texts)) == texts


@pytest.mark.parametrize("name", ["bpe", "unigram"])
def test_sentencepiece_round_trip_is_the_normalised_text(name, request):
    tokenizer = request.getfixturevalue(name)

    @given(texts=st.lists(st.text(), min_size=5, max_size=17))
    @settings(max_examples=5, deadline=None)
    @example(texts=["a\u2581 b\u2581", "\u2581", " a  b ", "\0"])
    def check(texts):
        assert tokenizer.decode(tokenizer.tokenize(texts)) == [normalized(text) for text in texts]

    check()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ﬁn Ａ１ ½ e\u0301", unicodedata.normalize("NFKC", "ﬁn Ａ１ ½ e\u0301")),
        (" a \t b\n", "a b"),
        ("a\x01b\x7fc", "abc"),
        ("a\u200bb\u2581c\ufffdd", "a b c d"),
    ],
)
def test_normalisation_is_what_the_docstring_says(bpe, text, expected):
    assert bpe.decode(bpe.tokenize([text])) == [expected]


def test_without_byte_fallback_only_what_is_not_covered_is_unknown():
    tokenizer = SentencePieceTokenizer.train(sentences(50, seed=4), vocabulary_size=61, byte_fallback=False)
    covered = "die müde Straße"
    assert tokenizer.unknown_token_id not in tokenizer.encode([covered])[0]
    assert tokenizer.decode(tokenizer.tokenize([covered])) == [covered]
    assert tokenizer.unknown_token_id in tokenizer.encode(["Ω"])[0]
    assert tokenizer.decode(tokenizer.tokenize(["die Ω"])) == ["die  ⁇ "]


# Detokenizing


@pytest.mark.sampled(1)
def test_detokenize_equals_the_oracle_on_any_ids(tokenizer):
    ids = st.integers(0, tokenizer.vocabulary_size - 1) | st.sampled_from([0, 1, 2, 3])

    @given(rows=st.lists(st.lists(ids, max_size=11), max_size=23))
    @settings(max_examples=5, deadline=None)
    @example(rows=[])
    @example(rows=[[], [], []])
    @example(rows=[[tokenizer.end_token_id, 5], [5, 7], [tokenizer.end_token_id] * 2, []])
    def check(rows):
        expected = [oracle_text(tokenizer, row) for row in rows]
        assert tokenizer.decode(rows) == expected
        if rows:
            padded = tf.ragged.constant(rows, dtype=tf.int32, ragged_rank=1).to_tensor()
            assert tokenizer.decode(padded) == expected
            assert tokenizer.decode(padded.numpy().astype("int64")) == expected

    check()


def test_padding_and_what_follows_end_change_nothing(tokenizer):
    texts = sentences(7, seed=5)
    token_ids = tokenizer.tokenize(texts)
    texts = [read_back(tokenizer, text) for text in texts]
    left_padded = np.zeros((7, 97), "int32")
    for row, ids in zip(left_padded, token_ids.to_list()):
        row[97 - len(ids) :] = ids
    end = tf.fill([7, 1], tokenizer.end_token_id)
    garbage = tf.fill([7, 3], 5)
    ended = tf.concat([token_ids, end, garbage, end, garbage], axis=1)
    assert tokenizer.decode(token_ids) == texts
    assert tokenizer.decode(token_ids.to_tensor()) == texts
    assert tokenizer.decode(left_padded) == texts
    assert tokenizer.decode(ended) == texts


@pytest.mark.sampled(1)
def test_an_id_outside_the_vocabulary_is_an_error_eagerly_and_skipped_in_a_graph(tokenizer):
    size = tokenizer.vocabulary_size
    good = tokenizer.encode(["die Straße"])[0]
    in_graph = tf.function(
        tokenizer.detokenize, [tf.TensorSpec([None, len(good) + 1], tf.int64)], autograph=False
    )
    for bad_id in (-1, size, 2**32 + 5):
        rows = np.array([[*good, bad_id], [*good[:3], bad_id, *good[3:]]], "int64")
        with pytest.raises(ValueError, match=rf"`token_ids` must lie in \[0, {size}\).*is {bad_id}"):
            tokenizer.detokenize(rows)
        assert in_graph(rows).numpy().tolist() == ["die Straße".encode()] * 2


@pytest.mark.sampled(1)
def test_graph_equals_eager(tokenizer):
    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)], autograph=False)
    def round_trip(texts):
        token_ids = tokenizer.tokenize(texts)
        return token_ids.to_tensor(), tokenizer.detokenize(token_ids)

    for batch in [list(ODD_TEXTS.values()), sentences(5, seed=6), []]:
        token_ids, texts = round_trip(tf.constant(as_utf8(batch), tf.string))
        assert token_ids.numpy().tolist() == tokenizer.tokenize(batch).to_tensor().numpy().tolist()
        assert [text.decode() for text in texts.numpy()] == tokenizer.decode(tokenizer.tokenize(batch))


@pytest.mark.extended
@pytest.mark.parametrize(
    "reset",
    [
        pytest.param(lambda: keras.utils.set_random_seed(7), marks=pytest.mark.slow, id="set_random_seed"),
        keras.utils.clear_session,
    ],
)
def test_a_reset_of_keras_leaves_tokenizers_and_their_graphs_working(tokenizer, reset):
    texts = sentences(5, seed=10)
    expected = [oracle_ids(tokenizer, text) for text in texts]
    function = tf.function(lambda inputs: tokenizer.detokenize(tokenizer.tokenize(inputs)), autograph=False)
    dataset = tf.data.Dataset.from_tensor_slices(texts).batch(5).map(tokenizer.tokenize)
    function(tf.constant(texts))
    reset()
    gc.collect()
    assert tokenizer.encode(texts) == expected
    assert [text.decode() for text in function(tf.constant(texts)).numpy()] == [
        read_back(tokenizer, text) for text in texts
    ]
    assert [batch.to_list() for batch in dataset] == [expected]


def test_a_deleted_tokenizer_leaves_its_twin_working(bpe):
    twin = SentencePieceTokenizer(bpe.model_proto)
    del twin
    gc.collect()
    assert bpe.encode(["die Straße"]) == [oracle_ids(bpe, "die Straße")]


@pytest.mark.parametrize(
    ("token_ids", "message"),
    [
        ([3], r"`token_ids` must be a list of lists of int. Received: \[3\]"),
        ([[3.5]], r"`token_ids` must be a list of lists of int. Received: \[\[3.5\]\]"),
        (np.zeros((2, 3)), r"integer tensor of shape \(B, T\). Received: dtype=float64, shape=\(2, 3\)"),
        (np.zeros((2, 3, 5), "int32"), r"Received: dtype=int32, shape=\(2, 3, 5\)"),
        (np.array([b"a"]), r"Received: dtype=string, shape=\(1,\)"),
    ],
)
def test_detokenize_refuses_what_is_no_batch_of_ids(token_ids, message):
    with pytest.raises(ValueError, match=message):
        ByteTokenizer().detokenize(token_ids)


# Odd text


@pytest.mark.sampled(9)
@pytest.mark.parametrize("text", ODD_TEXTS.values(), ids=ODD_TEXTS)
def test_odd_text_is_answered_and_neighbours_are_unchanged(tokenizer, text):
    expected = normalized(text) if isinstance(tokenizer, SentencePieceTokenizer) else text
    if isinstance(tokenizer, WordPieceTokenizer):
        expected = oracle_text(tokenizer, oracle_ids(tokenizer, text))
    before, odd, after = tokenizer.tokenize(["die Straße", text, "müde"]).to_list()
    assert before == oracle_ids(tokenizer, "die Straße")
    assert odd == oracle_ids(tokenizer, text)
    assert after == oracle_ids(tokenizer, "müde")
    assert tokenizer.decode([before, odd, after]) == ["die Straße", expected, "müde"]


def test_empty_batch_and_empty_text_have_no_tokens(tokenizer):
    assert tokenizer.encode([]) == []
    assert tokenizer.encode(["", ""]) == [[], []]
    assert tokenizer.tokenize(tf.constant([], tf.string)).shape.as_list() == [0, None]
    assert tokenizer.detokenize(tf.zeros((0, 3), tf.int32)).shape == (0,)
    assert tokenizer.decode(tf.zeros((3, 0), tf.int32)) == ["", "", ""]
    assert tokenizer.decode([]) == []


SOME_BYTES = st.lists(
    st.sampled_from([0x00, 0x41, 0x80, 0xAC, 0xC0, 0xE2, 0x82, 0xED, 0xA0, 0xF0, 0x9F, 0xF4, 0xFF])
)


@given(rows=st.lists(SOME_BYTES, min_size=5, max_size=17))
@settings(max_examples=5, deadline=None)
def test_invalid_utf8_is_repaired_as_python_does(rows):
    tokenizer = ByteTokenizer()
    texts = [bytes(row) for row in rows]
    expected = [text.decode("utf-8", "replace") for text in texts]
    assert tokenizer.decode(tokenizer.tokenize(tf.constant(texts))) == expected
    assert tokenizer.decode([[byte + 3 for byte in row] for row in rows]) == expected
    assert as_utf8(texts) == [text.encode() for text in expected]


def test_invalid_utf8_in_a_sentencepiece_batch_leaves_neighbours_unchanged(bpe):
    assert bpe.decode(bpe.tokenize(tf.constant([b"die", b"a\xff\xfeb", "Straße"]))) == [
        "die",
        "a b",
        "Straße",
    ]


@pytest.mark.extended
def test_a_line_of_a_megabyte(tokenizer):
    line = " ".join(sentences(3_000, seed=7) * 10)
    assert len(line.encode()) > 1_000_000
    assert tokenizer.decode(tokenizer.tokenize([line, "müde"])) == [read_back(tokenizer, line), "müde"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\ud800b", "a\ufffdb"),
        ("\udc00", "\ufffd"),
        ("a\ud800", "a\ufffd"),
        ("\ud83d\ude00", "😀"),
        ("\ud800😀", "\ufffd😀"),
    ],
)
def test_lone_surrogates_are_replaced_and_pairs_joined(tokenizer, text, expected):
    assert as_utf8(text) == [expected.encode()]
    assert tokenizer.encode([text]) == [oracle_ids(tokenizer, expected)]


@pytest.mark.parametrize("texts", [3, None, [3], ["a", None]])
def test_as_utf8_refuses_what_is_no_text(texts):
    with pytest.raises(ValueError, match=r"`texts` must .* Received"):
        as_utf8(texts)


@pytest.mark.parametrize("texts", ["a", [["a"]], [3]])
def test_tokenize_refuses_what_is_no_batch_of_strings(texts):
    with pytest.raises(
        ValueError, match=r"`texts` must be a string tensor of shape \(B,\). Received: dtype="
    ):
        ByteTokenizer().tokenize(tf.constant(texts))


def test_token_strings(bpe):
    assert ByteTokenizer().token_strings([1, 0, 100, 35, 3, 258, 2]) == [
        *["<s>", "<pad>", "a", "▁", "<0x00>", "<0xFF>", "</s>"]
    ]
    assert bpe.token_strings([0, 1, 2, 3, 4 + 0x41]) == ["<pad>", "<unk>", "<s>", "</s>", "<0x41>"]
    text = "müde Straße"
    assert "".join(bpe.token_strings(bpe.encode([text])[0])) == "▁müde▁Straße"
    assert bpe.token_strings([]) == []
    with pytest.raises(ValueError, match=r"`token_ids` must lie in \[0, 337\).*the first is 337"):
        bpe.token_strings([5, 337])


# Training


def test_training_twice_gives_the_same_model(unigram):
    again = SentencePieceTokenizer.train(
        iter(sentences(200, seed=2)), vocabulary_size=293, model_type="unigram"
    )
    assert again.model_proto == unigram.model_proto


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
@pytest.mark.parametrize(("vocabulary_size", "bound"), [(100_003, "at most"), (5, "at least")])
def test_a_vocabulary_size_that_does_not_fit_is_refused_with_one_that_does(
    model_type, vocabulary_size, bound
):
    texts = sentences(50, seed=8)
    with pytest.raises(
        ValueError, match=rf"`vocabulary_size` must be {bound} \d+.*={vocabulary_size}\."
    ) as error:
        SentencePieceTokenizer.train(texts, vocabulary_size, model_type=model_type)
    named = int(str(error.value).split(bound)[1].split(",")[0])
    assert SentencePieceTokenizer.train(texts, named, model_type=model_type).vocabulary_size == named


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"texts": []}, "`texts` must hold text to train on. Received 0 texts"),
        ({"texts": ["", " \n"]}, "`texts` must hold text to train on. Received 2 texts"),
        ({"texts": ["\x01"]}, "sentencepiece cannot train on these texts"),
        ({"texts": "der Hund"}, "must be an iterable of sentences, not one string. Received: 'der Hund'"),
        ({"texts": ["a", 3]}, "`texts` must hold `str` or `bytes` only. Received an element 3"),
        ({"vocabulary_size": 4}, "`vocabulary_size` must be an int above 4.*Received: vocabulary_size=4"),
        ({"vocabulary_size": 300.0}, "Received: vocabulary_size=300.0"),
        ({"model_type": "word"}, r"must be one of \('bpe', 'unigram'\). Received: model_type='word'"),
        ({"character_coverage": 0}, r"must lie in \(0, 1\]. Received: character_coverage=0"),
    ],
)
def test_training_refuses_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        SentencePieceTokenizer.train(**{"texts": ["der Hund"], "vocabulary_size": 300} | arguments)


def test_training_reads_long_lines_and_broken_text():
    # sentencepiece by default drops lines over 4192 bytes, which here would leave nothing.
    tokenizer = SentencePieceTokenizer.train(["zyx wvu " * 2000 + "\ud800\0"], vocabulary_size=273)
    assert tokenizer.token_strings(tokenizer.encode(["zyx wvu"])[0]) == ["▁zyx", "▁wvu"]


def test_lowercase_folds_case():
    tokenizer = SentencePieceTokenizer.train(sentences(50, seed=9), vocabulary_size=300, lowercase=True)
    assert tokenizer.decode(tokenizer.tokenize(["Die STRASSE ÜBER Straße"])) == ["die strasse über straße"]


def test_character_coverage_leaves_rare_characters_to_bytes():
    texts = ["ab ba " * 50] * 20 + ["ж"]
    covered = SentencePieceTokenizer.train(texts, vocabulary_size=264)
    cut = SentencePieceTokenizer.train(texts, vocabulary_size=263, character_coverage=0.99)
    assert "ж" in covered.token_strings(covered.encode(["ж"])[0])
    assert cut.token_strings(cut.encode(["ж"])[0])[-2:] == ["<0xD0>", "<0xB6>"]


# Configuration and files


def test_config_round_trip_is_idempotent(tokenizer):
    config = json.loads(json.dumps(tokenizer.get_config()))
    again = type(tokenizer).from_config(config)
    assert again.get_config() == tokenizer.get_config()
    assert again.encode(["die müde Straße"]) == tokenizer.encode(["die müde Straße"])


def test_save_and_load(tokenizer, tmp_path):
    folder = tmp_path / "new" / "folder"
    tokenizer.save(folder)
    again = load_tokenizer(str(folder))
    assert type(again) is type(tokenizer)
    assert again.get_config() == tokenizer.get_config()
    own_file = {SentencePieceTokenizer: {"sentencepiece.model"}, WordPieceTokenizer: {"vocab.txt"}}
    files = {"tokenizer.json"} | own_file.get(type(tokenizer), set())
    if tokenizer.characters is not None:
        files.add("characters.txt")
    assert {path.name for path in folder.iterdir()} == files


def test_the_saved_model_is_what_sentencepiece_itself_reads(bpe, tmp_path):
    bpe.save(tmp_path)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "sentencepiece.model"))
    assert processor.encode("die Straße") == bpe.encode(["die Straße"])[0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "must be JSON with `class_name` and `config`"),
        ("[]", "must be JSON with `class_name` and `config`"),
        ('{"class_name": "ByteTokenizer"}', "must be JSON with `class_name` and `config`"),
        ('{"class_name": "ByteTokenizer", "config": 3}', "must be JSON with `class_name` and `config`"),
        (
            '{"class_name": "os.system", "config": {}}',
            "must name one of .*'ByteTokenizer'.* class_name='os.system'",
        ),
        ('{"class_name": ["ByteTokenizer"], "config": {}}', "must name one of"),
        ('{"class_name": "ByteTokenizer", "config": {"a": 1}}', "must hold the config of a ByteTokenizer"),
        (
            '{"class_name": "SentencePieceTokenizer", "config": {}}',
            "must hold the config of a SentencePieceTok",
        ),
    ],
)
def test_a_damaged_description_is_refused(bpe, tmp_path, content, message):
    bpe.save(tmp_path)
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        load_tokenizer(tmp_path)


def test_a_description_that_is_no_text_is_refused(tmp_path):
    (tmp_path / "tokenizer.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="must be JSON with `class_name` and `config`"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("name", ["tokenizer.json", "sentencepiece.model"])
def test_a_missing_file_is_named(bpe, tmp_path, name):
    bpe.save(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"`folder` must hold {name}"):
        load_tokenizer(tmp_path)


def test_a_damaged_model_file_is_refused(bpe, tmp_path):
    bpe.save(tmp_path)
    path = tmp_path / "sentencepiece.model"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"sentencepiece.model is damaged or belongs to another tokenizer"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("model_proto", [b"", b"junk", "text", None])
def test_what_is_no_model_is_refused(model_proto):
    with pytest.raises(ValueError, match="`model_proto` must be the content of a sentencepiece model"):
        SentencePieceTokenizer(model_proto)


def test_a_truncated_model_is_refused(bpe):
    for length in range(7, len(bpe.model_proto), 50_021):
        with pytest.raises(ValueError, match=rf"Received: {length} bytes that sentencepiece cannot read"):
            SentencePieceTokenizer(bpe.model_proto[:length])


@pytest.mark.parametrize(
    ("ids", "received"),
    [
        ({}, "pad_id=-1, bos_id=1, eos_id=2"),
        ({"pad_id": 3}, "pad_id=3, bos_id=1, eos_id=2"),
        ({"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": 2}, "pad_id=0, bos_id=-1, eos_id=2"),
        ({"pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": -1}, "pad_id=0, bos_id=2, eos_id=-1"),
    ],
)
def test_a_model_without_the_special_ids_is_refused(ids, received):
    with pytest.raises(ValueError, match=f"must have pad_id=0, a bos_id and an eos_id.*Received: {received}"):
        SentencePieceTokenizer(sentencepiece_proto(**ids))


def test_special_ids_are_read_from_the_model():
    proto = sentencepiece_proto(pad_id=0, unk_id=3, bos_id=5, eos_id=4, control_symbols=["<de>"])
    tokenizer = SentencePieceTokenizer(proto)
    control = sentencepiece.SentencePieceProcessor(model_proto=proto).piece_to_id("<de>")
    assert (tokenizer.start_token_id, tokenizer.end_token_id, tokenizer.unknown_token_id) == (5, 4, 3)
    token_ids = tokenizer.encode(["die Straße"])[0]
    assert tokenizer.decode([[5, control, *token_ids, 4, *token_ids]]) == ["die Straße"]


# WordPiece


def test_a_vocabulary_of_bert_is_read_as_it_is():
    vocabulary = "[PAD] [unused0] [UNK] [CLS] [SEP] [MASK] hello ##o wor ##ld !".split()
    tokenizer = WordPieceTokenizer(vocabulary, lowercase=True)
    assert tokenizer.unknown_token_id == 2
    assert (tokenizer.start_token_id, tokenizer.end_token_id) == (3, 4)
    assert tokenizer.encode(["Héllo  WORLD! [SEP]"]) == [[6, 8, 9, 10, 2, 2, 2]]
    assert tokenizer.decode([[3, 6, 5, 8, 9, 10, 4, 6]]) == ["hello world !"]
    assert tokenizer.token_strings([0, 5, 9]) == ["[PAD]", "[MASK]", "##ld"]


def test_wordpiece_equals_the_longest_piece_first():
    vocabulary = "[PAD] [UNK] [CLS] [SEP] der d ##e ##r ##er la ##u ##uf l ü".split()
    vocabulary += ["##a", "##f", "a", "u", "ß", "##ß", "'", ".", "!", "日", "é", "e", "##́"]
    tokenizer = WordPieceTokenizer(vocabulary)
    text = st.text(st.sampled_from("derlauf üßé\u0301'.,-!@[日本\u00a0\u200b\ufeff\0\t"), max_size=23)

    @given(texts=st.lists(text, min_size=7, max_size=23))
    @settings(max_examples=15, deadline=None)
    def check(texts):
        assert tokenizer.encode(texts) == [wordpiece_ids(vocabulary, text) for text in texts]

    check()


GERMAN = [
    "Zwei junge weiße Männer sind im Freien … nahe vieler Büsche.",
    "Ein Mann mit „Straße“-Schild, ½ Liter; für 5€ (ca. 3 £)!",
    "Eﬃzient: ﬁnden – ＡＢＣ１２３ ｶﾀｶﾅ, 日本語 und 한국어.",
    "ΟΔΥΣΣΕΥΣ Σ ΣΑΣ, İSTANBUL Iğdır ıssız, Ça\u0327 n\u0303 ŉ ǅ ẞ",
    "So\u00adft\u200bhyphen \ufeffNUL\0 \ufffd tab\there\x85next\u2028line\u3000wide\u00a0gap \ue000",
    "हिन्दी العَرَبِيَّة עִבְרִית ไทย 👩‍👩‍👧 ';' \u037e \u1fef",
]
FOLDS = [(True, None), (False, None), (True, False), (False, True)]
FOLDS_OF_WHICH_TWO_ARE_EXTENDED = [
    pytest.param(*fold, marks=pytest.mark.extended if i in (1, 3) else ()) for i, fold in enumerate(FOLDS)
]


def as_transformers_reads(vocabulary, lowercase, strip_accents):
    import transformers

    numbers = {piece: number for number, piece in enumerate(vocabulary)}
    theirs = transformers.BertTokenizer(vocab=numbers, do_lower_case=lowercase, strip_accents=strip_accents)
    return lambda texts: [theirs.encode(text, add_special_tokens=False) for text in texts]


@pytest.mark.parametrize(("lowercase", "strip_accents"), FOLDS_OF_WHICH_TWO_ARE_EXTENDED)
def test_wordpieces_of_odd_text_are_those_of_transformers(lowercase, strip_accents):
    # All characters of the texts are in the vocabulary, as they are read, so that nothing hides in [UNK].
    tokenizer = WordPieceTokenizer.train(GERMAN, 900, lowercase, strip_accents)
    expected = as_transformers_reads(tokenizer.vocabulary, lowercase, strip_accents)
    rng = random.Random(5)
    alphabet = [chr(c) for c in range(0x110000) if unicodedata.category(chr(c)) not in ("Cn", "Cs")]
    odd = "".join(GERMAN)
    fuzzed = [
        "".join(rng.choice(alphabet if rng.random() < 0.2 else odd) for _ in range(rng.randrange(40)))
        for _ in range(1000)
    ]
    long = [letter * n for letter in "aä日" for n in (99, 100, 101, 200)]
    texts = GERMAN + fuzzed + long
    assert tokenizer.encode(texts) == expected(texts)
    assert tokenizer.tokenize_with_offsets(texts)[0].to_list() == tokenizer.encode(texts)
    assert tokenizer.unknown_token_id not in {i for ids in tokenizer.encode(GERMAN) for i in ids}


@pytest.mark.extended
@pytest.mark.parametrize(
    ("lowercase", "strip_accents"), FOLDS_OF_WHICH_TWO_ARE_EXTENDED[2:]
)  # the one without the other
def test_every_character_is_read_as_transformers_reads_it(lowercase, strip_accents):
    import tensorflow_text
    import tokenizers

    normalizer = tokenizers.normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, lowercase=lowercase, strip_accents=strip_accents
    )
    splitter = tokenizers.pre_tokenizers.BertPreTokenizer()
    numbers = [c for c in range(1, 0x30000) if not 0xD800 <= c < 0xE000]
    texts = [f"x{chr(c)}y" for c in numbers]
    expected = [[w for w, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text))] for text in texts]
    strip = lowercase if strip_accents is None else strip_accents
    found = bert_words(tf.constant(texts), tensorflow_text.normalize_utf8, lowercase, strip).to_list()
    differing = {c for c, e, f in zip(numbers, expected, found) if e != [word.decode() for word in f]}
    # Letters of Unicode 13 and later, whose cases or parts TensorFlow's tables and those of `tokenizers` have not both.
    assert not [chr(c) for c in differing if c < 0x1C80]
    assert len(differing) < 120


@pytest.mark.parametrize(("lowercase", "strip_accents"), FOLDS)
def test_offsets_are_those_of_the_text_before_it_was_folded(lowercase, strip_accents):
    text = "\u200bÉté… ﬁN\u0303, Straße\u00ad日 " + "ä" * 101
    tokenizer = WordPieceTokenizer.train(["".join(GERMAN), text], 900, lowercase, strip_accents)
    token_ids, starts, stops = (x.to_list() for x in tokenizer.tokenize_with_offsets([text, "", text]))
    assert token_ids[0] == token_ids[2]
    assert starts[0] == starts[2]
    names = tokenizer.token_strings(token_ids[0])
    for name, start, stop in zip(names, starts[0], stops[0]):
        source = text.encode()[start:stop].decode()  # never a part of a character
        if name == "[UNK]":
            assert source == "ä" * 101
            continue
        folded = source.lower() if lowercase else source
        strip = lowercase if strip_accents is None else strip_accents
        if strip:
            folded = "".join(
                c for c in unicodedata.normalize("NFD", folded) if unicodedata.category(c) != "Mn"
            )
        # A mark that was dropped inside a piece is part of its source.
        assert "".join(c for c in folded if not is_dropped(c)) == name.removeprefix("##")
    assert stops[0][-1] == len(text.encode())


def test_offsets_of_wordpieces_are_the_bytes_they_stand_for(wordpiece):
    text = "läuft,  Straße"
    token_ids, starts, stops = (x.to_list()[0] for x in wordpiece.tokenize_with_offsets([text]))
    spelled = [text.encode()[start:stop].decode() for start, stop in zip(starts, stops)]
    names = wordpiece.token_strings(token_ids)
    assert [name.removeprefix("##") if name != "[UNK]" else "," for name in names] == spelled


def test_wordpieces_learned_are_the_frequent_words_and_every_character(wordpiece):
    characters = set("".join(WORDS))
    assert {*characters, *(f"##{c}" for c in characters)} <= set(wordpiece.vocabulary)
    assert wordpiece.vocabulary_size <= 79
    numbers = [str(number) for number in range(50)]
    texts = [" ".join(numbers[i:] + numbers[:i]) for i in range(7)]
    learned = WordPieceTokenizer.train(texts, vocabulary_size=67)
    assert set(numbers) <= set(learned.vocabulary)
    assert WordPieceTokenizer.train(texts, vocabulary_size=67).vocabulary == learned.vocabulary
    assert all(len(ids) == 50 for ids in learned.encode(texts))


def test_lowercase_wordpieces_are_learned_and_read_without_accents():
    tokenizer = WordPieceTokenizer.train(["Été été ÉTÉ"] * 3, vocabulary_size=19, lowercase=True)
    assert tokenizer.decode(tokenizer.tokenize(["ÉTÉ ete"])) == ["ete ete"]


@pytest.mark.parametrize(
    ("vocabulary", "message"),
    [
        (["[UNK]", "[PAD]", "[CLS]", "[SEP]"], r"must begin with \[PAD\]"),
        (["[PAD]", "[UNK]", "[SEP]", "a"], r"hold \[UNK\].*without \[CLS\]"),
        (["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "a"], "each piece once. Received twice: 'a'"),
        (["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a b"], "without white space. Received an element 'a b'"),
        (["[PAD]", "[UNK]", "[CLS]", "[SEP]", ""], "Received an element ''"),
        (["[PAD]", 3], "Received an element 3"),
    ],
)
def test_what_is_no_vocabulary_is_refused(vocabulary, message):
    with pytest.raises(ValueError, match=message):
        WordPieceTokenizer(vocabulary)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"texts": [" "]}, "`texts` must hold text to train on. Received 1 texts"),
        ({"vocabulary_size": 4}, "`vocabulary_size` must be an int above 4.*Received: vocabulary_size=4"),
        ({"vocabulary_size": 5}, r"`vocabulary_size` must be at least 16.*Received: vocabulary_size=5"),
    ],
)
def test_learning_wordpieces_refuses_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        WordPieceTokenizer.train(**{"texts": ["abc de"], "vocabulary_size": 300} | arguments)


def test_a_cut_vocabulary_file_is_refused(wordpiece, tmp_path):
    wordpiece.save(tmp_path)
    path = tmp_path / "vocab.txt"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(ValueError, match=r"vocab\.txt is damaged or belongs to another tokenizer"):
        load_tokenizer(tmp_path)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"`folder` must hold vocab\.txt"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("module", ["tensorflow_text", "sentencepiece"])
def test_a_missing_package_is_named_with_the_pip_line(bpe, monkeypatch, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(
        ImportError, match=rf'needs {module}. Install it: pip install "{module.replace("_", "-")}'
    ):
        SentencePieceTokenizer(bpe.model_proto)
    assert ByteTokenizer().decode([[75, 108]]) == ["Hi"]


def test_the_base_class_names_what_a_subclass_must_give():
    base = Tokenizer(7, start_token_id=1, end_token_id=2, unknown_token_id=None, special_token_ids=[0, 1, 2])
    with pytest.raises(NotImplementedError, match="Tokenizer must implement `_texts_to_ids`"):
        base.tokenize(["a"])
    with pytest.raises(NotImplementedError, match="Tokenizer must implement `_ids_to_texts`"):
        base.detokenize([[5]])
    with pytest.raises(NotImplementedError, match="Tokenizer must implement `_token_string`"):
        base.token_strings([5])
