"""Every mutant of mutants.py has its place in the library, and the tests that must kill it exist."""

import ast

import mutants
import pytest


@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda mutant: mutant.name)
def test_the_edit_applies_and_compiles(mutant):
    text = (mutants.ROOT / "keras_attn" / mutant.file).read_text(encoding="utf-8")
    assert text.count(mutant.original) == 1
    compile(text.replace(mutant.original, mutant.mutated), mutant.file, "exec")


@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda mutant: mutant.name)
def test_the_named_tests_exist(mutant):
    assert mutant.tests
    for test in mutant.tests:
        file, _, name = test.partition("::")
        tree = ast.parse((mutants.ROOT / "tests" / file).read_text(encoding="utf-8"))
        assert name.partition("[")[0] in {
            node.name for node in tree.body if isinstance(node, ast.FunctionDef)
        }


def test_names_are_distinct_and_no_edit_is_empty():
    assert len({mutant.name for mutant in mutants.MUTANTS}) == len(mutants.MUTANTS)
    assert all(mutant.original != mutant.mutated for mutant in mutants.MUTANTS)


def test_failures_are_told_from_passes_and_from_tests_that_did_not_run(tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "keras_attn").mkdir()
    (tmp_path / "keras_attn" / "__init__.py").write_text("")
    (tmp_path / "setup.cfg").write_text("[tool:pytest]\naddopts = -ra\n")
    (tmp_path / "tests" / "test_toy.py").write_text(
        "import pytest\n"
        "def test_right(): pass\n"
        "@pytest.mark.parametrize('n', [2, 3])\n"
        "def test_odd(n): assert n % 2, 'some - text'\n"
    )
    assert mutants.failed_tests(tmp_path, ["test_toy.py::test_right"]) == []
    assert mutants.failed_tests(tmp_path, ["test_toy.py"]) == ["test_toy.py::test_odd[2]"]
    with pytest.raises(RuntimeError, match="not found"):
        mutants.failed_tests(tmp_path, ["test_toy.py::test_absent"])
    (tmp_path / "keras_attn" / "__init__.py").write_text("1 / 0")
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        mutants.failed_tests(tmp_path, ["test_toy.py"])


def test_a_test_and_its_cases_are_not_mistaken_for_another():
    assert mutants.is_case_of("a.py::test_x[1]", "a.py::test_x")
    assert mutants.is_case_of("a.py::test_x[1]", "a.py::test_x[1]")
    assert not mutants.is_case_of("a.py::test_xy", "a.py::test_x")
    assert not mutants.is_case_of("a.py::test_x[1]", "a.py::test_x[12]")
