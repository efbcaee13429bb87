"""The process that runs one version of a model with only what TF Serving has: export/saved_model_runner.py."""

import concurrent.futures
import contextlib
import itertools
import json
import subprocess
import tempfile
import threading

from keras_attn.export import runner_command
from keras_attn.serve.errors import UNAVAILABLE, RequestError

# A process that has not ended so many seconds after its pipe was closed is killed.
_SECONDS_TO_END = 5


class ModelProcess:
    """Runs signatures in a process of its own; threads may ask at the same time.

    If the process dies, the requests that it was answering fail, and another process is started.

    Args:
        folder: Path of the version folder.
        xla: Boolean, whether graphs may be compiled with XLA.
        threads: Integer, how many requests run at the same time.

    Raises:
        ChildProcessError: if the model does not load; the message holds what the process wrote.
    """

    def __init__(self, folder, xla, threads):
        self._command = runner_command(folder, xla, threads, "--stay")
        self._folder = folder
        self._lock = threading.Lock()  # of the fields below and of the pipe to the process
        self._is_closed = False
        self._process = None
        self._pending = None  # {id of a request: its future} of the process, or None if it has ended
        self._ids = itertools.count()
        with self._lock:
            self._start()

    def run(self, signature_name, inputs):
        """The outputs of a signature, nested lists by name, in which strings have surrogate escapes.

        Args:
            signature_name: String.
            inputs: Dict of nested lists by name.

        Raises:
            RequestError: if the graph fails, or the process dies.
        """
        number = next(self._ids)
        line = json.dumps({"id": number, "signature": signature_name, "inputs": inputs}).encode() + b"\n"
        future = concurrent.futures.Future()
        with self._lock:
            self._start_if_ended()
            self._pending[number] = future
            with contextlib.suppress(OSError):  # it has just died: its reader fails the request
                self._process.stdin.write(line)
                self._process.stdin.flush()
        answer = future.result()
        if "error" in answer:
            raise RequestError(answer["error"], answer["code"])
        return answer["outputs"]

    @property
    def process_id(self):
        """Integer, of the process that runs now or ran last."""
        return self._process.pid

    def close(self):
        """Ends the process; the requests that it is answering fail."""
        with self._lock:
            self._is_closed = True
            process = self._process
            with contextlib.suppress(OSError):
                process.stdin.close()
        try:
            process.wait(_SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _start_if_ended(self):
        if self._is_closed:
            raise RequestError("The server is stopping.", UNAVAILABLE)
        if self._pending is None:
            try:
                self._start()
            except ChildProcessError as error:
                raise RequestError(str(error), UNAVAILABLE) from None

    def _start(self):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        # Ctrl-C in a terminal reaches every process of its session; this one ends when its pipe is closed.
        with tempfile.TemporaryFile() as errors:
            process = subprocess.Popen(self._command, **pipes, stderr=errors, start_new_session=True)
            if not process.stdout.readline():
                process.stdin.close()
                process.stdout.close()
                code = process.wait()
                errors.seek(0)
                raise ChildProcessError(
                    f"The process that runs {self._folder} ended with code {code}. It wrote:\n"
                    + errors.read().decode(errors="replace")
                )
        self._process = process
        self._pending = {}
        threading.Thread(target=self._read, args=(process, self._pending), daemon=True).start()

    def _read(self, process, pending):
        with process.stdout:
            for line in process.stdout:
                answer = json.loads(line)
                pending.pop(answer["id"]).set_result(answer)
        code = process.wait()
        with self._lock:
            with contextlib.suppress(OSError):  # closing flushes what the process had not read of a request
                process.stdin.close()
            if self._pending is pending:
                self._pending = None
            unanswered = list(pending.values())
        message = f"The process that runs {self._folder} ended with code {code} during this request."
        for future in unanswered:
            future.set_result({"error": message, "code": UNAVAILABLE})
        if not self._is_closed:
            with self._lock, contextlib.suppress(RequestError):
                self._start_if_ended()
