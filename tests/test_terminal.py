"""What commands print of a stranger's folder commands nothing to the terminal."""

import ast
import io
import json
import pathlib
import sys

import pytest

import keras_attn
import keras_attn_cli
from keras_attn.runs.task_commands import translate_lines
from keras_attn.serve.server import _greeting
from keras_attn.terminal import printable, printable_line, say_fault, write_answer
from keras_attn.text import ByteTokenizer

ROOT = pathlib.Path(keras_attn.__file__).parent
# Clears the screen, sets the window's title and the clipboard, turns the direction of writing, begins a line of its own.
EVIL = "a\x1b[2J\x1b]0;t\x07\x1b]52;c;eA==\x07\x9b31m\u202e\r\nkind  trusted\x7f"
RAW = set("\x00\x07\x08\x0b\x0c\x0d\x1b\x7f\x9b\u2028\u202e\ud800")


def is_safe(text):
    return not RAW & set(text)


def test_control_characters_are_written_out_and_texts_stay():
    assert printable("a\x1b[2Jb\x9b\u202e\ud8ff") == r"a\x1b[2Jb\x9b\u202e\ud8ff"
    assert all(is_safe(printable(character)) for character in RAW)
    text = (
        "tab\t, line\n, \u00e9, \u4e2d, \U0001f468\u200d\U0001f469, \u0646\u200c\u0647, no\u00a0break, \\x1b"
    )
    assert printable(text) == text
    assert printable_line("a \n b\tc\x1b") == r"a b c\x1b"


def test_every_print_of_the_library_goes_through_it():
    """But that of the runner, whose lines are JSON for a process."""
    found = set()
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print":
                found.add(path.relative_to(ROOT).as_posix())
            if isinstance(node, ast.Attribute) and node.attr == "print_exc":
                found.add(path.relative_to(ROOT).as_posix())
    assert found == {"terminal.py", "export/saved_model_runner.py"}


def write(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")


def checkpoint(folder):
    config = {"model_type": EVIL, "architectures": [EVIL], "hidden_size": EVIL}
    write(folder / "config.json", config)
    write(folder / "tokenizer.json", {"model": {"type": EVIL}})
    return ["info", folder]


def saved_task(folder):
    options = {EVIL: EVIL}
    task = {"model": {"class_name": EVIL}, "options": options, "decoding": EVIL, "conventions": {EVIL: 1}}
    write(folder / "translator.json", task)
    write(folder / f"x{EVIL.replace('/', '')}tokenizer" / "tokenizer.json", {"class_name": EVIL})
    return ["info", folder]


def damaged(folder):
    write(folder / "config.json", f'{{"{EVIL}": 1')
    return ["info", folder]


def opennmt(folder):
    write(folder / "ckpt-1.index", "")
    write(folder / "checkpoint", 'model_checkpoint_path: "ckpt-1"')
    write(folder / "data.yml", json.dumps({"model_type": EVIL, "data": {"source_vocabulary": EVIL}}))
    return ["info", folder]


def run(folder):
    write(folder / "run.json", {"recipe": {"model": EVIL, "epochs": EVIL}})
    return ["info", folder]


def export(folder):
    write(folder / EVIL / "1" / "saved_model.pb", "")
    write(folder / EVIL / "1" / "assets.extra" / "quantization.json", {"quantization": EVIL})
    return ["info", folder / EVIL]


def verified(folder):
    write(folder / "1" / "saved_model.pb", "")
    write(folder / "1" / "assets" / EVIL, "")
    write(folder / "1" / "assets.extra" / "fingerprint.json", {EVIL: "0"})
    return ["verify", folder]


def shown(folder):
    write(folder / "config.json", {"model_type": EVIL, "architectures": [EVIL]})
    return ["show", folder, "a text", "--output", folder / "page.html"]


def exported(folder):
    write(folder / "text_classifier.json", {"format": EVIL})
    return ["export", folder, folder / "out"]


def served(folder):
    write(folder / "model" / "1" / "saved_model.pb", "x")
    write(folder / "model" / "1" / "assets.extra" / EVIL, "")
    return ["serve", folder / "model", "--port", "0"]


COMMANDS = [checkpoint, saved_task, damaged, opennmt, run, export, verified, shown, exported, served]


@pytest.mark.parametrize("make", COMMANDS, ids=lambda make: make.__name__)
def test_no_command_prints_a_strangers_control_characters(tmp_path, capsys, make):
    arguments = list(map(str, make(tmp_path / "folder")))
    keras_attn_cli.main(arguments)
    written = capsys.readouterr()
    assert is_safe(written.out + written.err)
    assert "\nkind  trusted" not in written.out
    assert written.out + written.err


def test_neither_does_the_servers_greeting_nor_its_log(tmp_path, capsys):
    class Model:
        name = EVIL
        number = 1
        folder = tmp_path / EVIL / "1"
        needs_xla = False
        task = tmp_path / EVIL

    class Server:
        url = "http://127.0.0.1:1"
        host = "127.0.0.1"

    assert is_safe(printable(_greeting(Server, [Model])))
    try:
        raise KeyError(EVIL.encode()) from ValueError(EVIL)
    except KeyError:
        say_fault()
    written = capsys.readouterr().err
    assert is_safe(written)
    assert "ValueError" in written


class Terminal(io.BytesIO):
    def __init__(self, seen):
        super().__init__()
        self.isatty = lambda: seen


@pytest.mark.parametrize("seen", [True, False])
def test_answers_are_written_out_on_a_terminal_and_as_they_are_elsewhere(monkeypatch, seen):
    stream = io.TextIOWrapper(Terminal(seen), encoding="utf-8", write_through=True, newline="")
    monkeypatch.setattr(sys, "stdout", stream)
    write_answer("a\x1b[2J")

    def translator(texts, **options):
        return ["b\x1b\n"]

    translator.source_tokenizer = ByteTokenizer()
    translate_lines(translator, texts=["x"])
    first = b"a\\x1b[2J\nb\\x1b \n" if seen else b"a\x1b[2J\nb\x1b \n"
    assert stream.buffer.getvalue() == first
