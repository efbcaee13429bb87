"""What a built wheel holds of the server and of the explorer."""

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
