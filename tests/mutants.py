"""Breaks one line of the library at a time, and asks whether the tests notice.

    python tests/mutants.py [NAME ...] [--jobs 2]

Each mutant of mutants.txt is an edit of one place in a temporary copy of the library, found by the function it is in
and the code it changes. Every test named beside it must fail there, and pass on an unchanged copy. A mutant whose place
is gone, or that a named test lets live, fails the script; so does one of QUALITY_FAULTS that no test of the default run
kills.
"""

import argparse
import ast
import dataclasses
import functools
import gc
import importlib
import itertools
import json
import multiprocessing
import multiprocessing.connection
import os
import pathlib
import re
import shutil
import sys
import tempfile
import textwrap
import time
import warnings

ROOT = pathlib.Path(__file__).resolve().parents[1]
SECONDS_A_RUN = 600
# What every child needs, imported once: the children are forks. The library itself must not be among it.
WARM_UP = ("tensorflow", "keras", "tensorflow_text", "sentencepiece", "hypothesis", "pytest")


@dataclasses.dataclass(frozen=True)
class Mutant:
    """`original`, which stands once in the function or class `where`, becomes `mutated`; each of `tests` must fail then.

    Code is compared as `ast.unparse` writes it: layout, comments, quotes and superfluous brackets do not count.
    `where` is looked for in the whole package; code that has left it is found by the last name of `where` alone, and at
    last by itself.
    """

    name: str
    where: str
    original: str
    mutated: str
    tests: tuple[str, ...]

    def applied(self, sources):
        """The file that changes and its mutated code, given the code of every file.

        Raises:
            ValueError: if `original` is nowhere, or more than once where it was looked for.
        """
        wanted = _tokens(_canonical(self.original))
        words = [token for token, _, _ in wanted if token.isidentifier()]
        sources = {file: source for file, source in sources.items() if all(word in source for word in words)}
        name = self.where.rpartition(".")[2]
        for where in (self.where, name, None):
            places = [
                (file, code, *span)
                for file, source in sources.items()
                if where is None or name in source
                for code, tree in [unparsed(source)]
                for span in _spans(code, tree, where, wanted)
            ]
            if places:
                break
        if len(places) != 1:
            raise ValueError(
                f"{self.original!r} stands {len(places)} times in {where or 'the package'}; it must stand once"
            )
        file, code, first, last = places[0]
        column = first - (code.rfind("\n", 0, first) + 1)
        mutated = textwrap.indent(_canonical(self.mutated), " " * column).lstrip()
        return file, code[:first] + mutated + code[last:]

    def apply(self, root):
        folder = root / "keras_attn"
        paths = folder.rglob("*.py")
        sources = {path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8") for path in paths}
        file, mutated = self.applied(sources)
        (folder / file).write_text(mutated, encoding="utf-8")


@functools.cache
def unparsed(source):
    """Code as `ast.unparse` writes it, and its syntax tree."""
    code = ast.unparse(ast.parse(source))
    return code, ast.parse(code)


def _canonical(code):
    """`code` as `ast.unparse` writes it: statements, arguments, items of a dict, the head of a statement or its rest."""
    code = code.strip().rstrip(",")
    for before, after in (("", ""), ("f(", ")"), ("{", "}"), ("", " pass")):
        try:
            tree = ast.parse(f"{before}{code}{after}")
        except SyntaxError:
            continue
        # `a, b` has brackets as an expression of its own, and none as arguments.
        if before or not (len(tree.body) == 1 and isinstance(tree.body[0], ast.Expr)):
            return ast.unparse(tree).removeprefix(before).removesuffix(after).rstrip()
    return code


def _tokens(code):
    """(token, start, end) of names, numbers and single signs."""
    return [(match[0], *match.span()) for match in re.finditer(r"\w+|\S", code)]


def _spans(code, tree, where, wanted):
    """The places of the tokens `wanted` in the functions and classes named `where` (`Class.method.inner`) of `code`."""
    nodes = [tree]
    for name in where.split(".") if where else ():
        inner = (node for parent in nodes for node in ast.walk(parent) if node is not parent)
        kinds = (ast.FunctionDef, ast.ClassDef)
        nodes = [node for node in inner if isinstance(node, kinds) and node.name == name]
    starts = [0, *itertools.accumulate(len(line) for line in code.splitlines(keepends=True))]
    spans = set()
    for node in nodes:
        start, stop = (0, len(code)) if node is tree else (starts[node.lineno - 1], starts[node.end_lineno])
        tokens = _tokens(code[start:stop])
        for i in range(len(tokens) - len(wanted) + 1):
            part = tokens[i : i + len(wanted)]
            if all(one[0] == other[0] for one, other in zip(part, wanted)):
                spans.add((start + part[0][1], start + part[-1][2]))
    return sorted(spans)


def read_mutants(text):
    """The mutants of mutants.txt: `NAME in FUNCTION`, then the code that goes, the code that comes, and the tests."""
    mutants = []
    for block in re.findall(r"(?m)^\w.*\n(?:  .*\n)+", text):
        head, *lines = block.splitlines()
        name, _, where = head.partition(" in ")
        original = "\n".join(line[4:] for line in lines if line.startswith("  -"))
        mutated = "\n".join(line[4:] for line in lines if line.startswith("  +"))
        tests = tuple(line[2:] for line in lines if line[2] not in "-+")
        mutants.append(Mutant(name, where, original, mutated, tests))
    return mutants


MUTANTS = read_mutants((ROOT / "tests" / "mutants.txt").read_text(encoding="utf-8"))


# The faults that the default tests must find, each with its mutant.
QUALITY_FAULTS = {
    "query, key and value weights swapped on import": "query_and_value_swapped_on_import",
    "mask polarity flipped": "mask_polarity_flipped",
    "causal shifted by one": "causal_sees_one_place_ahead",
    "causal aligned top-left with a cache": "causal_aligned_top_left_with_a_cache",
    "mask skipped in cross-attention": "mask_skipped_in_cross_attention",
    "mask only in the first layer": "mask_only_in_the_first_encoder_layer",
    "1/sqrt(key_dim) dropped": "square_root_of_key_dim_dropped",
    "positions all zero": "positions_all_zero",
    "positions ignoring left padding": "left_padding_ignored_in_a_cache",
    "dropout left on": "dropout_left_on",
    "finished beams extended": "finished_beams_extended",
    "length penalty ignored": "length_penalty_ignored",
    "one get_config key dropped": "config_key_of_a_layer_dropped",
    "pads counted in the loss": "pads_counted_in_the_loss",
    "schedule off by one": "schedule_off_by_one",
    "tied weights untied after reload": "tied_weights_untied_after_reload",
}
# Of all mutants, the share that the default tests must kill.
SHARE_OF_THE_DEFAULT = 0.8


class Recorder:
    """A plugin of pytest: which tests failed, and which of them are not in the default run."""

    def __init__(self):
        self.failed, self.extended = set(), set()

    def pytest_collection_modifyitems(self, items):
        self.extended = {item.nodeid for item in items if item.get_closest_marker("extended")}

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.failed.add(report.nodeid)

    def pytest_collectreport(self, report):
        if report.failed:
            self.failed.add(report.nodeid)


class Run:
    """A forked process that runs tests on the copy of the project at `root`, and on no other."""

    def __init__(self, root, tests, name="run"):
        self.root, self.name = root, name
        self.start = time.perf_counter()
        (root / f"{name}.json").unlink(missing_ok=True)
        fork = multiprocessing.get_context("fork")
        self.process = fork.Process(target=_run_tests, args=(root, tests, name))
        self.process.start()

    def seconds(self):
        return time.perf_counter() - self.start

    def failed_tests(self):
        """The node ids, without the folder tests/, of the tests that failed: {id: whether it is an extended one}.

        Raises:
            RuntimeError: if pytest could not run them.
        """
        self.process.join(max(0, SECONDS_A_RUN - self.seconds()))
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
            raise RuntimeError(f"no answer in {SECONDS_A_RUN} s")
        record = self.root / f"{self.name}.json"
        code, failed, extended = json.loads(record.read_text()) if record.exists() else (None, [], [])
        # pytest exits with 0 when all passed and with 1 when some failed.
        if code not in (0, 1) or code != bool(failed):
            raise RuntimeError((self.root / f"{self.name}.txt").read_text(errors="replace")[-2000:])
        return {name.removeprefix("tests/"): name in extended for name in failed}


def _run_tests(root, tests, name):
    output = os.open(root / f"{name}.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(root)
    here = str(ROOT / "tests")
    sys.path[:] = [str(root), *(path for path in sys.path if path not in (here, str(ROOT), ""))]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))
    import pytest

    import keras_attn

    found = pathlib.Path(keras_attn.__file__).resolve().parents[1]
    assert found == root.resolve(), f"keras_attn was imported from {found}"
    recorder = Recorder()
    # The parent has imported hypothesis, whose own asserts pytest would have rewritten.
    quiet = ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    options = [
        *quiet,
        "-p",
        "no:cacheprovider",
        "--processes=0",
        "-q",
        "--tb=no",
        "--color=no",
        "-m",
        "not slow",
    ]
    code = pytest.main([*options, *(f"tests/{test}" for test in tests)], plugins=[recorder])
    (root / f"{name}.json").write_text(
        json.dumps([int(code), sorted(recorder.failed), sorted(recorder.extended)])
    )


def copy_of_the_project(folder, source=ROOT):
    for name in ("keras_attn", "saved_models", "tests", "setup.cfg"):
        copy = shutil.copytree if (source / name).is_dir() else shutil.copy2
        copy(source / name, folder / name)
    return folder


def is_case_of(node_id, test):
    return node_id == test or node_id.startswith(f"{test}[")


def verdict(mutant, run):
    """(what killed it: "default", "extended" or None; what to print) of one mutant."""
    try:
        failed = run.failed_tests()
    except RuntimeError as error:
        return None, f"ERROR: {error}"
    cases = {test: [name for name in failed if is_case_of(name, test)] for test in mutant.tests}
    survived = [test for test, names in cases.items() if not names]
    if survived:
        return None, f"SURVIVED {', '.join(survived)}"
    by_default = any(not failed[name] for names in cases.values() for name in names)
    killers = ", ".join(test.partition("::")[2] for test in mutant.tests)
    return "default" if by_default else "extended", killers


def in_turn(jobs, num_at_once):
    """Runs (key, function that starts a Run) a few at once; yields (key, Run) as they end."""
    waiting, running = list(jobs), {}
    while waiting or running:
        while waiting and len(running) < num_at_once:
            key, start = waiting.pop(0)
            run = start()
            running[run.process.sentinel] = key, run
        first = min(run.start for _, run in running.values())
        left = max(0, SECONDS_A_RUN - (time.perf_counter() - first))
        ended = multiprocessing.connection.wait(list(running), timeout=left)
        for sentinel in ended or [min(running, key=lambda sentinel: running[sentinel][1].start)]:
            yield running.pop(sentinel)


def failures_without_mutation(base, mutants, num_at_once):
    """The named tests that fail in `base`, where the runs leave compiled files for the copies made of it."""
    tests = {test for mutant in mutants for test in mutant.tests}
    files = sorted({test.partition("::")[0] for test in tests})
    jobs = [
        (
            file,
            functools.partial(
                Run, base, sorted(test for test in tests if test.startswith(f"{file}::")), str(i)
            ),
        )
        for i, file in enumerate(files)
    ]
    failures = []
    for file, run in in_turn(jobs, num_at_once):
        try:
            failures += run.failed_tests()
        except RuntimeError as error:
            failures.append(f"{file}: {error}")
    return failures


def report(mutants, base, num_at_once):
    """Prints a line for each mutant; returns {name: what killed it}."""
    width = max(len(mutant.name) for mutant in mutants)
    print(f"{'mutant':{width}}  seconds  killed by the", flush=True)
    killers = {}
    with tempfile.TemporaryDirectory() as folder:

        def start(mutant):
            root = pathlib.Path(folder) / mutant.name
            root.mkdir()
            mutant.apply(copy_of_the_project(root, base))
            return Run(root, mutant.tests)

        jobs = [(mutant, functools.partial(start, mutant)) for mutant in mutants]
        for mutant, run in in_turn(jobs, num_at_once):
            killer, text = verdict(mutant, run)
            killers[mutant.name] = killer
            shutil.rmtree(run.root)
            print(
                f"{mutant.name:{width}}  {run.seconds():7.1f}  {(killer or 'nobody') + ':':9} {text}",
                flush=True,
            )
    return killers


def faults_of(killers):
    """What is wrong with a run: survivors, and what the default tests should have killed and did not."""
    names = [name for name, killer in killers.items() if killer is None]
    faults = [f"alive: {', '.join(names)}"] if names else []
    missed = [
        fault for fault, name in QUALITY_FAULTS.items() if name in killers and killers[name] != "default"
    ]
    faults += [f"not killed by default tests: {', '.join(missed)}"] if missed else []
    by_default = sum(killer == "default" for killer in killers.values())
    if len(killers) == len(MUTANTS) and by_default < SHARE_OF_THE_DEFAULT * len(MUTANTS):
        faults.append(
            f"the default tests kill {by_default} of {len(MUTANTS)}, fewer than {SHARE_OF_THE_DEFAULT:.0%}"
        )
    return faults


def chosen_mutants(names):
    known = {mutant.name: mutant for mutant in MUTANTS}
    unknown = sorted(set(names) - set(known))
    if unknown:
        sys.exit(f"Unknown: {', '.join(unknown)}. Mutants: {', '.join(known)}.")
    return [known[name] for name in names] or MUTANTS


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="mutants to run; all of them by default")
    parser.add_argument("--jobs", type=int, default=2, help="how many to run at once")
    options = parser.parse_args()
    mutants = chosen_mutants(options.names)
    start = time.perf_counter()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    for name in WARM_UP:
        importlib.import_module(name)
    warnings.simplefilter(
        "ignore"
    )  # of forks beside threads, those of NumPy; the tests have filters of their own
    gc.collect()
    gc.freeze()
    with tempfile.TemporaryDirectory() as folder:
        base = copy_of_the_project(pathlib.Path(folder))
        failures = failures_without_mutation(base, mutants, options.jobs)
        if failures:
            sys.exit("These tests fail without any mutation:\n" + "\n".join(failures))
        print(f"The tests pass without mutation ({time.perf_counter() - start:.0f} s).\n", flush=True)
        killers = report(mutants, base, options.jobs)
    by_default, by_extended = (sum(x == kind for x in killers.values()) for kind in ("default", "extended"))
    print(
        f"\n{by_default + by_extended} of {len(mutants)} killed in {time.perf_counter() - start:.0f} seconds: "
        f"{by_default} by default tests, {by_extended} by extended ones alone."
    )
    faults = faults_of(killers)
    sys.exit("\n".join(faults) if faults else 0)


if __name__ == "__main__":
    main()
