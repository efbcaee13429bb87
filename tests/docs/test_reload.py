"""Every block of the page "Save, and reload in a new process" does what it says: in a new process."""

import os
import pathlib
import subprocess
import sys

import pytest
from helpers_markdown import code_blocks

ROOT = pathlib.Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reload.md"
NEW_PROCESS = "# in a new process\n"
MODULE = "# my_layers.py\n"


def python_blocks():
    """The blocks of the first process, those of new processes, and the code of the module."""
    blocks = [block for block in code_blocks(PAGE.read_text("utf-8")) if block.language == "python"]
    others = [block for block in blocks if block.code.startswith(NEW_PROCESS)]
    (module,) = [block for block in blocks if block.code.startswith(MODULE)]
    first = [block for block in blocks if block not in others and block is not module]
    return first, others, module.code


def run(code, folder):
    (folder / "process.py").write_text(code, "utf-8")
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}"}
    result = subprocess.run(
        [sys.executable, "process.py"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-3000:]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The folder in which the first process has saved all that the page saves."""
    folder = tmp_path_factory.mktemp("reload")
    first, _, module = python_blocks()
    (folder / "my_layers.py").write_text(module, "utf-8")
    run("\n".join(block.code for block in first), folder)
    return folder


def test_the_page_has_both_kinds_of_blocks():
    first, others, module = python_blocks()
    assert len(first) >= 7
    assert len(others) >= 8
    assert "class ScaledBlock" in module


@pytest.mark.slow
@pytest.mark.parametrize(
    "block", [pytest.param(block, id=f"line {block.line}") for block in python_blocks()[1]]
)
def test_a_new_process_reloads(saved, block):
    run(block.code, saved)
