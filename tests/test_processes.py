"""Files run in forked processes are reported as pytest reports those that it runs itself."""

import os
import pathlib
import re
import subprocess
import sys

import helpers_processes
import pytest

CONFTEST = """
import pytest, helpers_processes

def pytest_addoption(parser):
    helpers_processes.add_option(parser)

@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session):
    return helpers_processes.run_in_processes(session) if helpers_processes.are_wanted(session) else None
"""
ODD = """
import os, signal, warnings, pytest

@pytest.fixture(scope="session")
def broken():
    yield
    raise OSError("torn down")

def test_right(): print("unseen")
def test_wrong(): two = 2; print("said"); assert two == 3
def test_crash(): os.kill(os.getpid(), signal.SIGKILL)
def test_after_a_crash(tmp_path): assert not list(tmp_path.iterdir())
@pytest.mark.skip(reason="as an example")
def test_skipped(): pass
def test_warns(): warnings.warn("mind")
def test_last(broken): pass
"""
GROWS = """
import os, pathlib
def test_grows():
    pathlib.Path("{name}").write_text(str(os.getpid()))
    bytearray(b"x") * (2**20 * {megabytes})
def test_last(): pass
"""


def run(folder, *arguments):
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "pytest.ini").write_text(f"[pytest]\npythonpath = {pathlib.Path(__file__).parent}\n")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "-rA", *arguments]
    # Plugins that happen to be installed may warn too.
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    child = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    return child.returncode, child.stdout


@pytest.mark.extended
@pytest.mark.skipif(not hasattr(helpers_processes.os, "fork"), reason="this system cannot fork")
def test_outcomes_output_and_warnings_are_told(tmp_path):
    for name in "ab":
        (tmp_path / f"test_{name}.py").write_text(ODD)
    code, printed = run(tmp_path)
    assert code == 1
    outcomes = sorted(re.findall(r"^([A-DF-Z]\w+) test_a.py::(\w+)", printed, flags=re.MULTILINE))
    assert outcomes == [
        ("FAILED", "test_crash"),
        ("FAILED", "test_wrong"),
        ("PASSED", "test_after_a_crash"),
        ("PASSED", "test_last"),
        ("PASSED", "test_right"),
        ("PASSED", "test_warns"),
    ]
    # One process may have run the ends of both files, and then it tears down once.
    assert re.search("4 failed, 8 passed, 2 skipped, 2 warnings, [12] error", printed), printed
    assert printed.count("ended with exit code -9") >= 2
    for text in ("assert 2 == 3", "said", "OSError: torn down", "UserWarning: mind", "as an example"):
        assert text in printed
    code, printed = run(tmp_path, "-x")
    assert "1 failed" in printed


@pytest.mark.extended
@pytest.mark.skipif(not hasattr(helpers_processes.os, "fork"), reason="this system cannot fork")
def test_a_process_that_has_grown_is_replaced(tmp_path):
    small, large = 1, helpers_processes.MEGABYTES_OF_GROWTH + 50
    for name, megabytes in {"a": small, "b": large, "c": small}.items():
        (tmp_path / f"test_{name}.py").write_text(GROWS.format(name=name, megabytes=megabytes))
    code, printed = run(tmp_path, "--processes", "1")
    assert code == 0, printed
    a, b, c = ((tmp_path / name).read_text() for name in "abc")
    assert a == b != c
