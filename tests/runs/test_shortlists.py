"""The commands about shortlists, on a translator that knows nothing."""

import keras
import pytest

import keras_attn_cli
from keras_attn import Translator, runs
from keras_attn.data import TextPairs
from keras_attn.models import Seq2SeqTransformer
from keras_attn.tasks import Shortlist
from keras_attn.text import SentencePieceTokenizer

SOURCES = ["hund bellt", "der hund", "schnee", "der schnee bellt", "hund"]
TARGETS = ["a dog barks", "the dog", "snow", "the snow barks", "dog"]


@pytest.fixture(scope="module")
def translator():
    keras.utils.set_random_seed(3)
    tokenizer = SentencePieceTokenizer.train([*SOURCES, *TARGETS], 300, "bpe")
    model = Seq2SeqTransformer.from_sizes(
        300, 1, 1, hidden_dim=6, num_heads=2, intermediate_dim=7, max_sequence_length=13
    )
    return Translator(model, tokenizer, tokenizer, num_beams=2, max_length=5)


@pytest.mark.extended
def test_the_report_counts_what_the_shortlist_changes(translator):
    pairs, tokenizer = TextPairs(SOURCES, TARGETS, "five"), translator.target_tokenizer
    everything = runs.evaluate_shortlist(translator, pairs, Shortlist(range(300), {}))
    assert (everything.num_equal, everything.listed_share, everything.mean_listed) == (5, 1.0, 300.0)
    assert everything.bleu == everything.bleu_of_all
    assert "equal translations 5 (100.00%)" in everything.report()
    expected = translator(SOURCES)
    of_third = tokenizer.encode([expected[2]])[0]
    source = tokenizer.encode([SOURCES[2]])[0]
    some = runs.evaluate_shortlist(
        translator, pairs, Shortlist([tokenizer.end_token_id], {source[-1]: [*of_third, 299]})
    )
    tokens = tokenizer.encode(expected)
    listed = {*of_third, 299, tokenizer.end_token_id}
    rows = [number for number, text in enumerate(SOURCES) if source[-1] in tokenizer.encode([text])[0]]
    found = sum(i in listed for number in rows for i in tokens[number])
    assert some.listed_share == pytest.approx(found / sum(map(len, tokens)))
    assert some.mean_listed == pytest.approx((len(listed) * len(rows) + 5 - len(rows)) / 5)


@pytest.mark.extended
def test_the_commands(translator, tmp_path, capsys):
    folder, output = tmp_path / "translator", str(tmp_path / "list.txt")
    translator.save(folder)
    data = []
    for name, texts in (
        ("a.de", SOURCES),
        ("a.en", TARGETS),
        ("links", ["0-1 1-2", "0-0 1-1", "0-0", "1-1", "0-0"]),
    ):
        (tmp_path / name).write_text("".join(f"{text}\n" for text in texts))
        data.append(str(tmp_path / name))
    command = ["shortlist", str(folder), "--data", *data[:2], "--output", output, "--num-anywhere", "1"]
    assert keras_attn_cli.main([*command, "--alignments", data[2], "--num-of-source", "3"]) == 0
    tokenizer = translator.target_tokenizer
    shortlist = Shortlist.load(output, tokenizer, tokenizer)
    dog, hund = tokenizer.encode(["dog", "hund"])
    assert {*shortlist.anywhere, *shortlist.by_source[hund[-1]]} >= set(dog)
    assert keras_attn_cli.main(command) == 0  # aligned by attention
    assert keras_attn_cli.main([*command, "--alignments", data[0]]) == 2
    assert "line 1, must have links" in capsys.readouterr().err
    assert keras_attn_cli.main(["evaluate", str(folder), "--data", *data[:2], "--shortlist", output]) == 0
    assert "shortlist against all tokens, 2 beams" in capsys.readouterr().out
    command = ["export", str(folder), str(tmp_path / "served"), "--shortlist", output]
    assert keras_attn_cli.main([*command, "--signatures", "score"]) == 0
    assert keras_attn_cli.main([*command, "--xla"]) == 2
    assert "exports without `xla`" in capsys.readouterr().err
    assert keras_attn_cli.main([*command, "--format", "onnx"]) == 2
    assert "Received: a shortlist" in capsys.readouterr().err
