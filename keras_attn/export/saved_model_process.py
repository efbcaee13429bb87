"""Runs an exported SavedModel in a new process with only what TF Serving has: see saved_model_runner.py."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading

_RUNNER = pathlib.Path(__file__).resolve().with_name("saved_model_runner.py")


def run_saved_model(folder, requests, timeout=120, xla=False, threads=1, before_request=None):
    """Answers `requests` with an exported SavedModel in a process without TensorFlow's Python and XLA.

    Unlike `tf.saved_model.load`, which runs in a process where every op and XLA are available, this shows
    what a stock TF Serving answers.

    Args:
        folder: Path of a version folder, the one that holds `saved_model.pb`.
        requests: List of dicts `{"signature": str, "inputs": {name: nested lists}}`. `signature` defaults to
            `"serving_default"`. Bytes that are not UTF-8 are given as `{"b64": str}`.
        timeout: Seconds, the time limit for loading the model and answering all requests together.
        xla: Boolean, whether graphs may be compiled with XLA, as by a server that was started with
            `--xla_cpu_compilation_enabled`.
        threads: Integer, the number of requests that are answered at the same time.
        before_request: Function that is called with the index of the first request that has no answer yet: with 0, and after each answer.

    Returns:
        A list of as many dicts as `requests`, in their order: `{"outputs": {name: nested lists}}`, or
        `{"error": message}` for a request that failed.

    Raises:
        RuntimeError: If the process dies; the message holds its stderr.
        subprocess.TimeoutExpired: If it takes longer than `timeout`.

    Example:

    ```
    answers = run_saved_model("saved_models/dates/1", [{"inputs": {"inputs": ["4th of July 2016"]}}])
    print(answers[0]["outputs"]["outputs"])  # ["2016-07-04"]
    ```
    """
    command = runner_command(folder, xla, threads)
    lines = "".join(json.dumps(request) + "\n" for request in requests)
    code, answers, errors = _run(command, lines.encode(), timeout, before_request)
    if code:
        raise RuntimeError(f"The process that runs {folder} ended with code {code}. It wrote:\n{errors}")
    return [json.loads(line) for line in answers]


def _run(command, given, timeout, before_line):
    """(exit code, lines of stdout, text of stderr) of a process."""
    lines = []
    expired = threading.Event()
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as stderr:
        stdin.write(given)
        stdin.seek(0)
        with subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, stderr=stderr) as child:

            def stop():
                expired.set()
                child.kill()

            timer = threading.Timer(timeout, stop)
            timer.start()
            try:
                if before_line:
                    before_line(0)
                for line in child.stdout:
                    lines.append(line)
                    if before_line:
                        before_line(len(lines))
                child.wait()
            except BaseException:
                child.kill()
                raise
            finally:
                timer.cancel()
        if expired.is_set():
            raise subprocess.TimeoutExpired(command, timeout)
        stderr.seek(0)
        return child.returncode, lines, stderr.read().decode(errors="replace")


def runner_command(folder, xla=False, threads=1, *options):
    """The command that runs saved_model_runner.py on a version folder.

    Args:
        folder: Path of the version folder.
        xla: Boolean, whether graphs may be compiled with XLA.
        threads: Integer, the number of requests that are answered at the same time.
        options: More arguments of the script.

    Returns:
        A list of strings.

    Example:

    ```python
    import subprocess

    subprocess.run(runner_command("saved_models/dates/1"), input=b'{"inputs": {"inputs": ["4 July"]}}')
    ```
    """
    # -P keeps the script's folder, which holds modules of keras_attn, off the child's import path.
    command = [sys.executable, "-P", str(_RUNNER), os.fspath(folder), f"--threads={threads}"]
    if xla:
        command.append("--xla")
    return command + list(options)
