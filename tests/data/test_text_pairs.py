import gzip

import pytest

from keras_attn.data import TextPairs, read_text_pairs, read_tsv

SOURCES = ["A dog.", "Two cats run.", "Über €5, 🐕!"]
TARGETS = ["Ein Hund.", "Zwei Katzen rennen.", "Over 5 euros."]


def write(path, data):
    path.write_bytes(data if isinstance(data, bytes) else data.encode("utf-8"))
    return path


def write_two(folder, source, target="Ein Hund.\nZwei Katzen rennen.\nOver 5 euros.\n"):
    return write(folder / "train.en", source), write(folder / "train.de", target)


def joined(texts, newline="\n"):
    return "".join(text + newline for text in texts)


@pytest.mark.parametrize(
    "data",
    [
        joined(SOURCES).encode(),
        joined(SOURCES).encode().removesuffix(b"\n"),
        joined(SOURCES, "\r\n").encode(),
        joined(SOURCES, "\r\n").encode().removesuffix(b"\r\n"),
        b"\xef\xbb\xbf" + joined(SOURCES).encode(),
        gzip.compress(joined(SOURCES).encode()),
        gzip.compress(b"\xef\xbb\xbf" + joined(SOURCES, "\r\n").encode()),
    ],
    ids=["lf", "no-last-newline", "crlf", "crlf-no-last-newline", "bom", "gz", "gz-bom-crlf"],
)
def test_every_way_to_store_the_lines_gives_the_same_pairs(tmp_path, data):
    pairs = read_text_pairs(*write_two(tmp_path, data))
    assert pairs.sources == SOURCES
    assert pairs.targets == TARGETS
    assert len(pairs) == 3


@pytest.mark.parametrize("name", ["train.en.gz", "train.en"])
@pytest.mark.parametrize("pack", [gzip.compress, bytes], ids=["packed", "plain"])
def test_gzip_is_told_by_content_not_by_name(tmp_path, name, pack):
    source = write(tmp_path / name, pack(joined(SOURCES).encode()))
    target = write(tmp_path / "train.de", joined(TARGETS))
    assert read_text_pairs(source, target).sources == SOURCES


@pytest.mark.parametrize(
    "separator", ["\u2028", "\u2029", "\x85", "\x0c", "\x0b", "\x1c", "\x1e", "\r", "\x00"]
)
def test_only_newlines_end_a_line(tmp_path, separator):
    sources = [f"A{separator}dog.", "Two cats run.", f"Three{separator}birds."]
    assert len(sources[0].splitlines()) == 2 or separator == "\x00"
    assert read_text_pairs(*write_two(tmp_path, joined(sources))).sources == sources
    assert read_tsv(write(tmp_path / "x.tsv", f"{sources[0]}\tEin Hund.\n")).sources == sources[:1]


def test_missing_file(tmp_path):
    source, target = write_two(tmp_path, joined(SOURCES))
    missing = tmp_path / "nowhere.de"
    for files in [(source, missing), (missing, target)]:
        with pytest.raises(FileNotFoundError, match=r"nowhere\.de does not exist") as error:
            read_text_pairs(*files)
        assert "\n" not in str(error.value)
    with pytest.raises(FileNotFoundError, match=r"nowhere\.de does not exist"):
        read_tsv(missing)


def test_unequal_line_counts_are_both_named(tmp_path):
    with pytest.raises(ValueError, match=r"2 lines in .*train\.en and 3 lines in .*train\.de"):
        read_text_pairs(*write_two(tmp_path, joined(SOURCES[:2])))


@pytest.mark.parametrize("data", [b"", b"\xef\xbb\xbf", gzip.compress(b"")], ids=["empty", "bom", "gz"])
def test_empty_file(tmp_path, data):
    with pytest.raises(ValueError, match=r"train\.en is empty"):
        read_text_pairs(*write_two(tmp_path, data))
    with pytest.raises(ValueError, match=r"x\.tsv is empty"):
        read_tsv(write(tmp_path / "x.tsv", data))


@pytest.mark.parametrize("blank", ["", "  ", "\t", "\u3000"])
def test_a_blank_line_is_named(tmp_path, blank):
    with pytest.raises(ValueError, match=r"train\.en, line 2: the line is blank.*1 blank of 3 lines\.$"):
        read_text_pairs(*write_two(tmp_path, joined(["A dog.", blank, "c"])))
    source, target = write_two(tmp_path, joined(SOURCES), joined(["Ein Hund.", "b", blank]))
    with pytest.raises(ValueError, match=r"train\.de, line 3: the line is blank"):
        read_text_pairs(source, target)


def test_several_blank_lines_are_listed(tmp_path):
    with pytest.raises(ValueError, match=r"line 1: .*2 blank of 3 lines, also 3\."):
        read_text_pairs(*write_two(tmp_path, "\nb\n\n"))
    numbers = r"2, 3, 4, 5, 6, 7, 8, 9, 10 \.\.\."
    with pytest.raises(ValueError, match=rf"line 1: .*13 blank of 13 lines, also {numbers}"):
        read_text_pairs(*write_two(tmp_path, "\n" * 13, "a\n" * 13))


def test_invalid_utf8_is_named_with_its_line(tmp_path):
    latin1 = "A dog.\nÜber\nc\n".encode("latin-1")
    with pytest.raises(ValueError, match=r"train\.en, line 2: .*UTF-8.*0xdc at position 1 of the line"):
        read_text_pairs(*write_two(tmp_path, latin1))
    with pytest.raises(ValueError, match=r"x\.tsv, line 1: .*UTF-8.*0xed at position 3"):
        read_tsv(write(tmp_path / "x.tsv", b"A \xed\xa0\x80\tb\n"))  # a lone surrogate, as UTF-8 forbids it
    with pytest.raises(ValueError, match=r"line 1: .*UTF-8.*0xff"):
        read_text_pairs(*write_two(tmp_path, "A dog.".encode("utf-16")))


@pytest.mark.parametrize("damage", [lambda data: data[:-5], lambda data: data[:20] + b"\xff\xff" + data[22:]])
def test_broken_gzip(tmp_path, damage):
    data = damage(gzip.compress(joined(SOURCES * 7).encode()))
    with pytest.raises(ValueError, match=r"train\.en is not a whole gzip file"):
        read_text_pairs(*write_two(tmp_path, data))


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(ValueError, match="is a folder"):
        read_tsv(tmp_path)


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("pack", [gzip.compress, bytes], ids=["gz", "plain"])
def test_tsv(tmp_path, newline, pack):
    rows = joined([f"{source}\t{target}" for source, target in zip(SOURCES, TARGETS)], newline)
    pairs = read_tsv(write(tmp_path / "x.tsv", pack(rows.encode())))
    assert (pairs.sources, pairs.targets) == (SOURCES, TARGETS)


def test_tsv_quotes_are_text(tmp_path):
    pairs = read_tsv(write(tmp_path / "x.tsv", '"A dog.\tEin "Hund".\nb"\tc\n'))
    assert pairs.sources == ['"A dog.', 'b"']
    assert pairs.targets == ['Ein "Hund".', "c"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("one column", r"line 2: .*Received: 1 column\.$"),
        ("a\tb\tc", r"line 2: .*Received: 3 columns\."),
        ("a\t", "line 2: the target column is blank"),
        ("\tb", "line 2: the source column is blank"),
        ("", r"line 2: .*Received: 1 column\."),
    ],
)
def test_tsv_bad_lines(tmp_path, line, message):
    with pytest.raises(ValueError, match=message):
        read_tsv(write(tmp_path / "x.tsv", f"A dog.\tEin Hund.\n{line}\nc\td\n"))


def test_a_file_of_one_column_is_told_to_come_with_another(tmp_path):
    with pytest.raises(
        ValueError,
        match=r"line 1: .*Received: 1 column\. .* give two files: .*x\.txt and its translations\.$",
    ):
        read_tsv(write(tmp_path / "x.txt", "All the world's a stage,\nand all the men\n"))


def test_unequal_sides_are_refused():
    with pytest.raises(ValueError, match=r"len\(sources\)=2, len\(targets\)=3"):
        TextPairs(["a", "b"], ["c", "d", "e"])
