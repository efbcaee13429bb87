"""Test files run in forked processes, each of which ends once it has grown: TensorFlow keeps a process's graphs for ever.

The process that collects the tests imports everything once and starts no runtime; its children share that memory. Each
child asks for one file after another, sends its reports back, and makes room for a fresh child when it has grown.
"""

import contextlib
import gc
import itertools
import multiprocessing
import multiprocessing.connection
import os
import resource
import sys
import types
import warnings

import pytest

# A process that has grown by so much is replaced after the file that it is at.
MEGABYTES_OF_GROWTH = 300


def add_option(parser):
    parser.addoption(
        "--processes",
        type=int,
        default=2,
        help="how many processes run test files at once; 0 runs them in pytest's own (as --pdb does)",
    )


def are_wanted(session):
    """Whether there are tests to run in processes of ours: pytest-xdist, when it is asked, has its own."""
    config, option = session.config, session.config.option
    return (
        option.processes > 0
        and not (option.collectonly or option.usepdb)
        and (not session.testsfailed or option.continue_on_collection_errors)
        and getattr(option, "numprocesses", None) is None
        and not hasattr(config, "workerinput")
        and hasattr(os, "fork")
        and sys.platform != "darwin"  # whose system libraries do not survive a fork
    )


def run_in_processes(session):
    """pytest's main loop, with each file's tests in one of several children; returns True, as the hook must."""
    config = session.config
    _check_that_tensorflow_has_not_started()
    config._tmp_path_factory.getbasetemp()  # one for all
    files = [list(items) for _, items in itertools.groupby(session.items, key=lambda item: item.path)]
    gc.collect()
    gc.freeze()  # or the first collection in each child would copy every page
    children = []
    try:
        while files or children:
            while files and len(children) < config.option.processes:
                children.append(Child(session, files.pop(0)))
            for connection in multiprocessing.connection.wait([child.connection for child in children]):
                child = next(child for child in children if child.connection is connection)
                if child.answer(files):
                    children.remove(child)
                if session.shouldfail:
                    raise session.Failed(session.shouldfail)
                if session.shouldstop:
                    raise session.Interrupted(session.shouldstop)
    finally:
        for child in children:
            child.process.terminate()
            child.process.join()
    return True


class Child:
    """A forked process, and the tests that it was given and has not yet finished."""

    def __init__(self, session, items):
        self.session = session
        self.items = items
        self.connection, of_child = multiprocessing.Pipe()
        with contextlib.ExitStack() as quiet:
            # Python and JAX warn of a fork beside threads. Those that there are wait for work of NumPy's.
            quiet.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
            arguments = (session, items, of_child, quiet.close)
            self.process = multiprocessing.get_context("fork").Process(target=_work, args=arguments)
            self.process.start()
        of_child.close()

    def answer(self, files):
        """Takes one message, may hand out the first of `files`; returns whether the process has ended."""
        try:
            kind, content = self.connection.recv()
        except (EOFError, ConnectionResetError):
            self.process.join()
            if self.items:
                self._report_crash()
                files[:0] = [self.items] if self.items else []
            return True
        hook, config = self.session.config.hook, self.session.config
        if kind == "report":
            report = hook.pytest_report_from_serializable(config=config, data=content)
            hook.pytest_runtest_logreport(report=report)
        elif kind == "warning":
            hook.pytest_warning_recorded.call_historic(kwargs=content)
        elif kind == "finished":
            item = self.items.pop(0)
            hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        else:
            following = files.pop(0) if files else []
            self.items += following
            # Items were there before the fork: their numbers are enough.
            numbers = {id(item): number for number, item in enumerate(self.session.items)}
            self.connection.send([numbers[id(item)] for item in following])
        return False

    def _report_crash(self):
        item = self.items.pop(0)
        report = pytest.TestReport(
            nodeid=item.nodeid,
            location=item.location,
            keywords={},
            outcome="failed",
            longrepr=f"The process that ran this test ended with exit code {self.process.exitcode}.",
            when="call",
        )
        self.session.config.hook.pytest_runtest_logreport(report=report)
        self.session.config.hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)


class _Sender:
    """Sends to the parent what pytest's reporters would be told."""

    def __init__(self, config, connection):
        self.config = config
        self.connection = connection
        # While it is being registered, pytest tells it every earlier warning again.
        self.is_registered = False

    def pytest_runtest_logreport(self, report):
        data = self.config.hook.pytest_report_to_serializable(config=self.config, report=report)
        self.connection.send(("report", data))

    def pytest_runtest_logfinish(self):
        self.connection.send(("finished", None))

    def pytest_warning_recorded(self, warning_message, when, nodeid, location):
        if not self.is_registered:
            return
        message = warnings.WarningMessage(
            UserWarning(f"{warning_message.category.__name__}: {warning_message.message}"),
            UserWarning,
            warning_message.filename,
            warning_message.lineno,
        )
        content = {"warning_message": message, "when": when, "nodeid": nodeid, "location": location}
        self.connection.send(("warning", content))


def _work(session, items, connection, no_longer_quiet):
    no_longer_quiet()
    config = session.config
    capture = config.pluginmanager.getplugin("capturemanager")
    capture.stop_global_capturing()  # its files are the parent's
    capture.start_global_capturing()
    # pytest asks the reporter for its writer when it explains an assertion: one without hooks takes its place.
    silent = types.SimpleNamespace(_tw=config.get_terminal_writer())
    config.pluginmanager.unregister(name="terminalreporter")
    config.pluginmanager.register(silent, "terminalreporter")
    sender = _Sender(config, connection)
    config.pluginmanager.register(sender)
    sender.is_registered = True
    # Graphs are many objects and little garbage: the usual thresholds look through them all too often.
    gc.set_threshold(50_000, 20, 50)
    at_start = _peak_megabytes()
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError, EOFError):
        while items:
            for item, following in itertools.pairwise(items):
                config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            more = []
            if _peak_megabytes() - at_start < MEGABYTES_OF_GROWTH:
                connection.send(("next", None))
                more = [session.items[number] for number in connection.recv()]
            config.hook.pytest_runtest_protocol(item=items[-1], nextitem=more[0] if more else None)
            items = more
    capture.stop_global_capturing()


def _check_that_tensorflow_has_not_started():
    """Its threads would be missing in a forked process, which would wait for them for ever."""
    if "tensorflow" in sys.modules:
        try:
            # Refused once the runtime has started; as many as it would take by itself.
            sys.modules["tensorflow"].config.threading.set_inter_op_parallelism_threads(os.cpu_count())
        except RuntimeError:
            raise pytest.UsageError(
                "A test module computes a tensor when it is imported, which starts TensorFlow before the tests' "
                "processes are forked. Compute it in the tests, or give --processes 0."
            ) from None


def _peak_megabytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
