"""The start of the command: quick, quiet, and honest about what goes wrong."""

import os
import pathlib
import subprocess
import sys

import pytest
from helpers_translators import byte_translator

ROOT = pathlib.Path(__file__).parents[1]


def run(*arguments, path=(), code=None, environment=None):
    search = os.pathsep.join([*map(str, path), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": search, **(environment or {})}
    environment.pop("TF_CPP_MIN_LOG_LEVEL", None)
    command = ["-c", code] if code else ["-m", "keras_attn_cli", *arguments]
    return subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True)


def test_arguments_are_read_without_keras():
    code = """
import sys, keras_attn_cli
try:
    keras_attn_cli.main(["train", "--help"])
finally:
    assert not {"keras", "numpy", "tensorflow", "keras_attn"} & set(sys.modules)
"""
    finished = run(code=code)
    assert finished.returncode == 0, finished.stderr
    assert "--vocabulary-size" in finished.stdout


@pytest.mark.extended
def test_a_command_writes_its_own_lines_only(tmp_path):
    finished = run("translate", str(tmp_path))
    assert finished.returncode == 2
    assert finished.stdout == ""
    expected = f"keras-attn: error: There is no translator in {tmp_path}: it has no translator.json.\n"
    assert finished.stderr == expected


@pytest.mark.slow
@pytest.mark.parametrize("setting", ["1", None])
def test_onednn_is_quiet_about_what_the_processor_lacks(setting):
    code = """
import keras_attn_cli
with keras_attn_cli.quiet_imports():
    import tensorflow as tf
tf.transpose(tf.zeros([3, 5], tf.int64))
"""
    environment = {} if setting is None else {"TF_ENABLE_ONEDNN_OPTS": setting}
    assert run(code=code, environment=environment).stderr == ""


@pytest.mark.extended
def test_a_reader_that_has_enough_ends_the_command_quietly(tmp_path):
    byte_translator(max_length=3).save(tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "keras_attn_cli", "translate", str(tmp_path), "--num-beams", "1"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=environment, **pipes) as process:
        process.stdout.close()
        process.stdin.write(b"ab\n" * 3000)
        process.stdin.close()
        errors = process.stderr.read()
        assert process.wait() == 141
    assert errors == b""


def test_what_is_written_during_a_failed_import_is_shown(tmp_path):
    (tmp_path / "tensorflow").mkdir()
    (tmp_path / "tensorflow" / "__init__.py").write_text(
        "import os, sys\n"
        "os.write(2, b'a native line\\n')\n"
        "sys.stderr.write('a line of Python\\n')\n"
        "raise ImportError('no such library')\n"
    )
    finished = run("translate", "x", path=[tmp_path])
    assert finished.returncode == 1
    for text in ("a native line\n", "a line of Python\n", "ImportError: no such library"):
        assert text in finished.stderr


def test_ctrl_c_during_the_import_ends_quietly(tmp_path):
    (tmp_path / "tensorflow").mkdir()
    (tmp_path / "tensorflow" / "__init__.py").write_text(
        "import os\nos.write(2, b'a native line\\n')\nraise KeyboardInterrupt\n"
    )
    finished = run("translate", "x", path=[tmp_path])
    assert (finished.returncode, finished.stdout, finished.stderr) == (130, "", "")


@pytest.mark.parametrize(("given", "expected"), [({}, "1"), ({"TF_ENABLE_ONEDNN_OPTS": "0"}, "0")])
def test_training_uses_onednn_unless_told_otherwise(monkeypatch, tmp_path, given, expected):
    monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS", raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "tensorflow").mkdir()
    (tmp_path / "tensorflow" / "__init__.py").write_text(
        "import os\nraise ImportError('oneDNN ' + os.environ.get('TF_ENABLE_ONEDNN_OPTS', 'by default'))\n"
    )
    for command, value in ((["train", "a", "b"], expected), (["translate", "x"], given and expected)):
        finished = run(*command, path=[tmp_path])
        assert f"ImportError: oneDNN {value or 'by default'}\n" in finished.stderr
