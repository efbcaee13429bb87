"""What a built wheel holds of the server and of the explorer."""

import os
import pathlib
import shutil
import subprocess
import sys
import zipfile

import pytest

ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.extended
def test_a_wheel_holds_the_pages_files_and_names_what_the_server_needs(tmp_path):
    pytest.importorskip("setuptools", reason="pip install setuptools")
    source = tmp_path / "source"  # a build writes into its source
    source.mkdir()
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE", "keras_attn_cli.py"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "keras_attn", source / "keras_attn", ignore=shutil.ignore_patterns("__pycache__"))
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        ".",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(tmp_path),
    ]
    built = subprocess.run(command, cwd=source, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        names = wheel.namelist()
        metadata = wheel.read(next(name for name in names if name.endswith("METADATA"))).decode()
    for room, some in (
        ("serve", {"page.html", "page.js", "page.css", "server.py"}),
        ("plots", {"explorer.html", "explorer.js", "explorer.css", "explorer.py"}),
    ):
        files = [path.name for path in (ROOT / "keras_attn" / room).iterdir() if path.is_file()]
        assert {f"keras_attn/{room}/{name}" for name in files} <= set(names)
        assert some <= set(files)
    assert "Requires-Dist: werkzeug" in metadata
    # What was built writes a page, far from its source.
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        wheel.extractall(tmp_path / "installed")
    code = """
import sys
import numpy as np
import keras_attn
assert keras_attn.__file__.startswith(sys.argv[1]), keras_attn.__file__
keras_attn.plots.explore({"a": np.full((1, 2, 2), 0.5)}, ["b", "c"], path=sys.argv[2])
"""
    command = [sys.executable, "-c", code, str(tmp_path / "installed"), str(tmp_path / "page.html")]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "installed")}
    written = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert written.returncode == 0, written.stderr
    assert "data-explorer-data" in (tmp_path / "page.html").read_text("utf-8")
