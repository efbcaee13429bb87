"""The map in CONTRIBUTING.md names files that exist."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[2]
SECTION = "## To change X, open Y, run Z\n"
ROWS = [
    line.strip("| ").split(" | ")
    for line in (ROOT / "CONTRIBUTING.md").read_text("utf-8").split(SECTION)[1].split("\n## ")[0].splitlines()
    if line.startswith("| ")
][1:]


def named_files(cell):
    """The files and folders that a cell names; one without a folder is in that of the one before it."""
    folder = ""
    for name in re.findall(r"`([\w/]+(?:\.py|\.js|/))`", cell):
        if "/" in name:
            folder = name.rpartition("/")[0] + "/"
            yield name
        else:
            yield folder + name


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_the_map_leads_to_files(row):
    _, to_open, to_run = row
    opened = list(named_files(to_open))
    assert opened
    for root, names in (("keras_attn", opened), ("tests", named_files(to_run))):
        for name in names:
            found = (ROOT / root / name).exists() or (ROOT / root / pathlib.Path(name).name).exists()
            assert found, f"{root}/{name} does not exist"


def test_files_are_found_in_the_folder_before_them():
    assert list(named_files("`a/b.py`, `c.py`: `word`, or `d/`, `e.js`")) == [
        "a/b.py",
        "a/c.py",
        "d/",
        "d/e.js",
    ]
