"""Every example runs as a user would run it, with a small setting, and says and writes what it promises."""

import importlib.util
import os
import pathlib
import re
import runpy
import subprocess
import sys

import numpy as np
import pytest
from helpers_explorer import ExplorerParser

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"
SENTENCE = "The animal didn't cross the street because it was too tired."


def run_example(name, folder, *arguments, **environment):
    """What `python examples/<name> <arguments>` prints, run in `folder`."""
    # What Keras and this library warn of is an error here, as it is in every test.
    environment = {**os.environ, "PYTHONUTF8": "1", "PYTHONWARNINGS": "error::UserWarning", **environment}
    child = subprocess.run(
        [sys.executable, EXAMPLES / name, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=3600,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    return child.stdout


def load(name):
    """An example as a module."""
    specification = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_every_example_is_run_in_this_folder():
    tests = [path.read_text(encoding="utf-8") for path in pathlib.Path(__file__).parent.glob("test_*.py")]
    run_here = set(re.findall(r'run_example\("(\w+\.py)"', "".join(tests)))
    assert run_here == {path.name for path in EXAMPLES.glob("*.py")}


WITH_NUMBERS = {
    path.stem: flags
    for path in sorted(EXAMPLES.glob("*.py"))
    if (flags := re.findall(r'"(--[\w-]+)", type=(?:int|float)', path.read_text(encoding="utf-8")))
}


@pytest.fixture
def refusal(monkeypatch, capsys):
    """Gives what an example says of arguments that it refuses, called in this process."""
    monkeypatch.syspath_prepend(EXAMPLES)  # lora_in_a_minute.py imports another example

    def call(example, *arguments):
        monkeypatch.setattr(sys, "argv", [f"{example.__name__}.py", *arguments])
        with pytest.raises(SystemExit) as exit_of:
            example.main()
        assert exit_of.value.code == 2
        return capsys.readouterr().err.splitlines()[-1]

    return call


@pytest.mark.parametrize("name", WITH_NUMBERS)
def test_examples_refuse_numbers_that_cannot_be(name, refusal):
    example = load(name)
    for flag in WITH_NUMBERS[name]:
        for number in ("0", "-1"):
            if (flag, number) != ("--lora-rank", "0"):  # trains all weights
                assert re.search(rf"error: .*{flag}\b", refusal(example, flag, number))


def test_search_lines_refuses_an_empty_question(refusal):
    message = refusal(load("search_lines"), "folder", "a question", " ")
    assert message == "search_lines.py: error: a question is empty"


def numbers(text):
    return np.array([float(number) for number in re.findall(r"-?\d+\.\d*", text)])


def test_attention_by_hand_shows_each_step_and_writes_the_pictures(tmp_path, monkeypatch, capsys):
    # In this process, which has imported everything; an extended test runs it in one of its own.
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["attention_by_hand.py"])
    with np.printoptions():
        runpy.run_path(str(EXAMPLES / "attention_by_hand.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert printed.startswith(SENTENCE)
    steps = dict(re.findall(r"^\d\. (.*?)  \(.*\n   'it': \[(.*)\]$", printed, flags=re.MULTILINE))
    assert list(steps) == [
        "x = embeddings",
        "Q = x W_Q",
        "K = x W_K",
        "V = x W_V",
        "Q K^T",
        "Q K^T / sqrt(8)",
        "softmax",
        "softmax V",
    ]
    steps = {name: numbers(values) for name, values in steps.items()}
    # Two decimals are printed.
    np.testing.assert_allclose(steps["Q K^T"] / 8**0.5, steps["Q K^T / sqrt(8)"], atol=0.01)
    exponentials = np.exp(steps["Q K^T / sqrt(8)"])
    np.testing.assert_allclose(steps["softmax"], exponentials / exponentials.sum(), atol=0.01)

    differences = re.findall(r"(\S+): largest difference (\S+)", printed)
    assert [name for name, _ in differences] == [
        "keras_attn.ops.dot_product_attention",
        "keras_attn.layers.MultiHeadAttention",
        "dot_product_attention(mask=...)",
        "dot_product_attention(mask=...)",
    ]
    assert all(float(difference) < 1e-5 for _, difference in differences)
    causal = numbers(re.search(r"Causal mask:.*?'it': \[(.*?)\]", printed, flags=re.DOTALL)[1])
    assert np.all(causal[:8] > 0)
    assert not causal[8:].any()
    assert "only training" in printed

    folder = tmp_path / "runs" / "attention_by_hand"
    words = "The animal didn't cross the street because it was too tired .".split()
    for name in ("attention.html", "causal_attention.html"):
        page = (folder / name).read_text(encoding="utf-8")
        [group] = ExplorerParser(page).data["groups"]
        assert group["keys"] == words
        assert str(pathlib.Path("runs", "attention_by_hand", name)) in printed


@pytest.mark.slow
def test_attention_by_hand_does_without_matplotlib(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util\nfind = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *rest: None if name == 'matplotlib' else find(name, *rest)\n"
    )
    printed = run_example("attention_by_hand.py", tmp_path, "--output", "here", PYTHONPATH=str(tmp_path))
    assert ".png" not in printed
    assert sorted(path.name for path in (tmp_path / "here").iterdir()) == [
        "attention.html",
        "causal_attention.html",
    ]


@pytest.mark.extended
def test_compose_layers_trains_saves_and_reloads(tmp_path):
    printed = run_example("compose_layers.py", tmp_path, "--epochs", "2", "--output", "models")
    accuracy = re.search(r"Token accuracy on new words: (.*)%", printed)[1]
    # One letter in 26 is the answer of a model that learnt nothing.
    assert float(accuracy) > 50
    assert re.search(r"^  attention -> \w+$", printed, flags=re.MULTILINE)
    assert "The subclassed model with the weights of the functional one gives the same outputs." in printed
    if importlib.util.find_spec("matplotlib"):
        assert (tmp_path / "models" / "attention.png").stat().st_size > 5000
    for name in ("functional.keras", "subclassed.keras"):
        file = pathlib.Path("models", name)
        assert f"Saved to {file}; reloaded, it gives the same outputs." in printed
        assert (tmp_path / file).stat().st_size > 100_000


@pytest.mark.extended
def test_translate_does_the_whole_road(tmp_path):
    arguments = """
        --data dates --epochs 1 --num-pairs 300 --output run --saved-models served
    """.split()
    printed = run_example("translate.py", tmp_path, *arguments)
    # After so little training the translations are nonsense, or nothing.
    translations = re.findall(r"^  (.+?)  ->  (.*)$", printed, flags=re.MULTILINE)
    assert [sentence for sentence, _ in translations] == [
        "4th of July 2016",
        "Montag, 4. Juli 2016",
        "le 1er mars 1999",
        "2 Feb. 1977",
        "31.12.2038",
    ]
    assert (tmp_path / "served" / "dates" / "1" / "saved_model.pb").is_file()
    assert (tmp_path / "run" / "translator" / "translator.json").is_file()
    assert f"What it attends to, epoch by epoch: {pathlib.Path('run', 'attention.html')}" in printed
    page = (tmp_path / "run" / "attention.html").read_text(encoding="utf-8")
    assert len(ExplorerParser(page).data["groups"]) == 3
