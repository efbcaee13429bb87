"""Every mutant of mutants.py has its place in the library, and the tests that must kill it exist."""

import ast
import functools
import os
import subprocess
import sys

import mutants
import pytest


@functools.cache
def functions_of(file):
    tree = ast.parse((mutants.ROOT / "tests" / file).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@functools.cache
def sources():
    folder = mutants.ROOT / "keras_attn"
    return {path.relative_to(folder).as_posix(): path.read_text("utf-8") for path in folder.rglob("*.py")}


@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda mutant: mutant.name)
def test_the_edit_applies_and_compiles_and_its_tests_exist(mutant):
    file, mutated = mutant.applied(sources())
    assert mutants.unparsed(mutated)[0] != mutants.unparsed(sources()[file])[0]
    assert mutant.tests
    for test in mutant.tests:
        file, _, name = test.partition("::")
        assert name.partition("[")[0] in functions_of(file)


def test_names_are_distinct_and_every_fault_that_must_be_found_has_its_mutant():
    names = {mutant.name for mutant in mutants.MUTANTS}
    assert len(names) == len(mutants.MUTANTS)
    assert set(mutants.QUALITY_FAULTS.values()) <= names


CODE = """
def scale(x): return (x * 2)

class Layer:
    def call(self, x):
        x = scale(x)
        if x is not None:
            x = self.call(
                x,  # the inputs
                mask="none",
            )
        a, b = x
        return {"x": x * 2, "y": (
            a + b * x
        )}
"""
MOVED = """
def call(z):
    return z - 5
"""


def edited(where, original, mutated="return 3"):
    mutant = mutants.Mutant("name", where, original, mutated, ())
    return mutant.applied({"file.py": CODE, "moved.py": MOVED})


@pytest.mark.parametrize(
    ("where", "original", "mutated", "expected"),
    [
        ("scale", "return x*2", "return 3", "def scale(x):\n    return 3\n"),
        (
            "Layer",
            "x = self.call(x, mask='none',)",
            "x = 1\nx = 2",
            "None:\n            x = 1\n            x = 2\n",
        ),
        ("Layer.call", "if x is not None:", "if False:", "        if False:\n            x = self.call("),
        ("Layer.call", '"x": x * 2', '"x": None', "{'x': None, 'y'"),
        ("Layer.call", "mask='none'", "mask=()", "self.call(x, mask = ())"),
        ("Layer.call", "a, b = x", "b, a = x", "b, a"),
        ("Layer.call", "+ b *", "- b *", "'y': a - b * x}"),
        ("Layer.call", "(a + b*x)", "(a)", "'y': a}"),
    ],
)
def test_code_is_found_however_it_is_laid_out(where, original, mutated, expected):
    file, code = edited(where, original, mutated)
    assert file == "file.py"
    assert expected in code


@pytest.mark.parametrize("where", ["call", "Block.call", "gone"])
def test_code_that_moved_is_found(where):
    expected = ("moved.py", "def call(z):\n    return 3")
    assert edited(where, "return z - 5") == expected


@pytest.mark.parametrize(
    ("where", "original", "message"),
    [
        ("scale", "return x * 3", "stands 0 times in the package"),
        ("Layer.call", "x", "times in Layer.call; it must stand once"),
        ("gone", "x * 2", "stands 2 times in the package"),
    ],
)
def test_code_that_is_gone_or_not_the_only_one_is_refused(where, original, message):
    with pytest.raises(ValueError, match=message):
        edited(where, original)


ASK = """
import pathlib, sys
import mutants
for test in sys.argv[1:]:
    try:
        print(test, mutants.Run(pathlib.Path.cwd(), [test]).failed_tests())
    except RuntimeError as error:
        print(test, "ERROR", " ".join(str(error).split()))
"""


@pytest.mark.slow
def test_failures_are_told_from_passes_and_from_tests_that_did_not_run(tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "keras_attn").mkdir()
    (tmp_path / "keras_attn" / "__init__.py").write_text("")
    (tmp_path / "setup.cfg").write_text("[tool:pytest]\nmarkers =\n    extended\n    slow\n")
    (tmp_path / "tests" / "conftest.py").write_text(
        "def pytest_addoption(parser): parser.addoption('--processes')\n"
    )
    (tmp_path / "tests" / "test_toy.py").write_text(
        "import pytest\n"
        "def test_right(): pass\n"
        "@pytest.mark.extended\n"
        "@pytest.mark.parametrize('n', [2, 3])\n"
        "def test_odd(n): assert n % 2, 'some - text'\n"
    )
    (tmp_path / "tests" / "test_broken.py").write_text("1 / 0")
    tests = ["test_toy.py::test_right", "test_toy.py", "test_toy.py::test_absent", "test_broken.py::test_x"]
    command = [sys.executable, "-c", ASK, *tests]
    environment = {**os.environ, "PYTHONPATH": str(mutants.ROOT / "tests")}
    child = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    right, toy, absent, broken = child.stdout.splitlines()
    assert right.endswith("{}")
    assert toy.endswith("{'test_toy.py::test_odd[2]': True}")
    assert "ERROR" in absent
    assert "not found" in absent
    assert "ERROR" in broken


def killers(**some):
    return {mutant.name: "default" for mutant in mutants.MUTANTS} | some


def test_a_run_is_good_when_nobody_lives_and_the_default_tests_kill_what_they_must():
    assert mutants.faults_of(killers()) == []
    assert mutants.faults_of(killers(soft_cap_ignored="extended")) == []
    assert mutants.faults_of({"soft_cap_ignored": "extended"}) == []
    assert mutants.faults_of(killers(soft_cap_ignored=None)) == ["alive: soft_cap_ignored"]
    assert mutants.faults_of({"dropout_left_on": "extended"}) == [
        "not killed by default tests: dropout left on"
    ]
    (fault,) = mutants.faults_of(
        {
            mutant.name: "default" if mutant.name in mutants.QUALITY_FAULTS.values() else "extended"
            for mutant in mutants.MUTANTS
        }
    )
    assert fault.startswith(f"the default tests kill {len(set(mutants.QUALITY_FAULTS.values()))} of")


def test_a_test_and_its_cases_are_not_mistaken_for_another():
    assert mutants.is_case_of("a.py::test_x[1]", "a.py::test_x")
    assert mutants.is_case_of("a.py::test_x[1]", "a.py::test_x[1]")
    assert not mutants.is_case_of("a.py::test_xy", "a.py::test_x")
    assert not mutants.is_case_of("a.py::test_x[1]", "a.py::test_x[12]")
