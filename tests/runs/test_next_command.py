"""The command that a person may run next, and the stages of a long one."""

import io
import pathlib
import re
import shlex
import sys

import pytest

import keras_attn_cli
from keras_attn.runs import next_command
from keras_attn.runs.evaluation import Advice
from keras_attn.terminal import stage, stages_shown

EXAMPLE = "it's 4\x1b o'clock"
LINES = {
    next_command.after_training("runs/a b", "translator", EXAMPLE): [
        "translate",
        "runs/a b",
        r"it's 4\x1b o'clock",
    ],
    next_command.after_training("runs/play", "text_generator", None): ["generate", "runs/play", "..."],
    next_command.after_training("r", "translator", "x", was_stopped=True): [
        "train",
        "--recipe",
        "r",
        "--output",
        "r",
    ],
    next_command.after_distillation("r", "x", was_stopped=True): [
        "distill",
        "--recipe",
        "r",
        "--output",
        "r",
    ],
    next_command.after_distillation("r", "x"): ["translate", "r", "x"],
    next_command.after_combining("mean"): ["evaluate", "mean", "--data", "SOURCE", "TARGET"],
    next_command.after_evaluation("runs/mine/translator"): [
        "export",
        "runs/mine/translator",
        "saved_models/mine",
    ],
    next_command.after_evaluation("runs/mine/"): ["export", "runs/mine/", "saved_models/mine"],
    next_command.after_export("s/mine/3", "runs/mine", was_verified=False): [
        "verify",
        "s/mine/3",
        "--task",
        "runs/mine",
    ],
    next_command.after_export("s/mine/3", "runs/mine", was_verified=True): ["deploy", "s/mine"],
    next_command.after_verification("s/mine/3"): ["deploy", "s/mine"],
}


@pytest.mark.parametrize("line", LINES)
def test_each_next_command_is_one_that_the_parser_takes(line):
    start, program, *words = shlex.split(line, comments=True)
    assert (start, program) == ("Next:", "keras-attn")
    assert words == LINES[line]
    keras_attn_cli.make_parser().parse_args(words)


@pytest.mark.parametrize("rows", [[], ["few pairs"], ["wrong pairs, shifted files"], ["few updates"]])
def test_a_bad_run_is_told_where_to_read(rows):
    line = next_command.after_training("r", "translator", "x", advice=Advice("text", rows))
    page = pathlib.Path(__file__).parents[2].joinpath("docs", "when_a_run_is_bad.md").read_text("utf-8")
    title, *named = re.findall('"(.*?)"', line)
    assert page.startswith(f"# {title}\n")
    assert named == rows
    assert all(f"| [{row}](#" in page for row in rows)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def shown(stream, monkeypatch):
    times = iter([10.0, 10.0, 12.0, 16.0])
    monkeypatch.setattr("time.monotonic", lambda: next(times))
    monkeypatch.setattr(sys, "stderr", stream)
    with stages_shown("the export"):
        stage("reading", done=0.0)
        stage("tracing", done=0.25)
    return stream.getvalue()


def test_stages_are_lines_that_are_written_when_they_begin(monkeypatch):
    text = shown(io.StringIO(), monkeypatch)
    assert text == "reading ...\ntracing ... (2 s so far, about 6 s left)\nthe export took 6 s\n"


def test_in_a_terminal_one_line_changes(monkeypatch):
    lines = shown(Terminal(), monkeypatch).split("\r\x1b[K")
    assert lines == ["", "reading ...", "tracing ...; about 6 s left", "the export took 6 s\n"]


def test_outside_of_a_command_nothing_is_shown(capsys):
    stage("reading", done=0.5)
    assert capsys.readouterr().err == ""
