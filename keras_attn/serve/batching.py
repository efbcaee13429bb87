"""Requests of several clients merged into batches, by the parameters in a version's batching_params.pbtxt.

References: tensorflow_serving/batching/batching_session.cc; tensorflow/core/kernels/batching_util/
shared_batch_scheduler.h.
"""

import collections
import os
import threading
import time

from keras_attn.serve.errors import FAILED_PRECONDITION, INTERNAL, UNAVAILABLE, RequestError
from keras_attn.serve.metrics import Metrics
from keras_attn.terminal import say_fault

# session_bundle_config.proto and the scheduler's QueueOptions
DEFAULTS = {
    "max_batch_size": 1000,
    "batch_timeout_micros": 0,
    "max_enqueued_batches": 10,
    "allowed_batch_sizes": (),
}


class _Task:
    """A request that waits: its inputs, the number of its rows, and its outputs or error when it is done."""

    def __init__(self, inputs, num_rows):
        self.inputs = inputs
        self.num_rows = num_rows
        self.start = time.monotonic()
        self.outputs = None
        self.error = None
        self._done = threading.Event()

    def finish(self, outputs=None, error=None):
        self.outputs = outputs
        self.error = error
        self._done.set()

    def result(self):
        self._done.wait()
        if self.error is not None:
            raise self.error
        return self.outputs


class _Batch:
    """Tasks that run together."""

    def __init__(self, key, task):
        self.key = key
        self.tasks = [task]
        self.num_rows = task.num_rows
        self.start = time.monotonic()

    def add(self, task):
        self.tasks.append(task)
        self.num_rows += task.num_rows


class Batcher:
    """Merges requests to the same signature; several batches run at the same time.

    A batch runs when a thread is free and it is full or its first request has waited `batch_timeout_micros`.
    Requests whose inputs differ in shape past the first axis are never merged.

    Args:
        run: Function from a signature's name and a dict of nested lists to a dict of nested lists.
        parameters: Dict as `read_batching_parameters` gives it.
        threads: Integer, the number of batches that run at the same time; `num_batch_threads` is for a whole server.
        metrics: `Metrics` of the server; by default its own.
    """

    def __init__(self, run, parameters, threads=None, metrics=None):
        values = {**DEFAULTS, **parameters}
        self._run = run
        self._metrics = metrics or Metrics()
        self._most_rows = values["max_batch_size"]
        self._seconds = values["batch_timeout_micros"] / 1e6
        self._most_batches = values["max_enqueued_batches"]
        self._sizes = tuple(values["allowed_batch_sizes"])
        self._changed = threading.Condition()
        self._waiting = collections.defaultdict(collections.deque)  # key: batches, of which the last is open
        self._is_closed = False
        self._threads = [
            threading.Thread(target=self._work, daemon=True) for _ in range(threads or os.cpu_count())
        ]
        for thread in self._threads:
            thread.start()

    def ask(self, signature_name, inputs):
        """The outputs of one request, nested lists by name.

        Args:
            signature_name: String.
            inputs: Dict of `Tensor`s whose dtypes and shapes are those of the signature.

        Raises:
            RequestError: if the request is too large, the queue is full, or the graph fails.
        """
        num_rows = common_rows(inputs)
        if num_rows > self._most_rows:
            raise RequestError(
                f"Task size {num_rows} is larger than maximum input batch size {self._most_rows}"
            )
        task = _Task(inputs, num_rows)
        key = signature_name, tuple(tensor.shape[1:] for tensor in inputs.values())
        with self._changed:
            self._add(self._waiting[key], key, task)
            self._changed.notify()
        return task.result()

    def close(self):
        """Ends the threads; requests that wait are failed."""
        with self._changed:
            self._is_closed = True
            batches = [batch for batches in self._waiting.values() for batch in batches]
            self._waiting.clear()
            self._changed.notify_all()
        for batch in batches:
            for task in batch.tasks:
                task.finish(error=RequestError("The server is stopping.", UNAVAILABLE))
        for thread in self._threads:
            thread.join()

    def _add(self, batches, key, task):
        if self._is_closed:
            raise RequestError("The server is stopping.", UNAVAILABLE)
        if batches and batches[-1].num_rows + task.num_rows <= self._most_rows:
            batches[-1].add(task)
            return
        if len(batches) >= self._most_batches:
            raise RequestError(
                "The batch scheduling queue to which this task was submitted is full; currently "
                f"{len(batches)} batches enqueued and max_enqueued_batches is {self._most_batches}",
                UNAVAILABLE,
            )
        batches.append(_Batch(key, task))

    def _work(self):
        while (batch := self._next_batch()) is not None:
            now = time.monotonic()
            self._metrics.record_batch([now - task.start for task in batch.tasks])
            self._process(batch)

    def _next_batch(self):
        with self._changed:
            while not self._is_closed:
                batch, seconds = self._oldest_ready()
                if batch is not None:
                    self._changed.notify()  # another thread may have waited for this one's time to come
                    return batch
                self._changed.wait(seconds)
        return None

    def _oldest_ready(self):
        """The batch that waits longest among those that may run, and the seconds until one may."""
        now = time.monotonic()
        ready = None
        seconds = None
        for key, batches in list(self._waiting.items()):
            if not batches:
                del self._waiting[key]
                continue
            first = batches[0]
            left = first.start + self._seconds - now
            may_run = len(batches) > 1 or first.num_rows >= self._most_rows or left <= 0
            if may_run and (ready is None or first.start < ready.start):
                ready = first
            if not may_run and (seconds is None or left < seconds):
                seconds = left
        if ready is not None:
            self._waiting[ready.key].popleft()
        return ready, seconds

    def _process(self, batch):
        try:
            outputs = self._run_tasks(batch.key[0], batch.tasks)
        except Exception as error:  # a thread that ended here would leave clients waiting
            if not isinstance(error, RequestError):
                say_fault()
                error = RequestError("An internal error; the server's terminal shows it.", INTERNAL)
            if len(batch.tasks) == 1 or error.http_status == 503:
                for task in batch.tasks:
                    task.finish(error=error)
                return
            for task in batch.tasks:  # the graph refused one of them
                self._process(_Batch(batch.key, task))
            return
        for task, part in zip(batch.tasks, outputs, strict=True):
            task.finish(part)

    def _run_tasks(self, signature_name, tasks):
        """The outputs of each task. Those of one batch share their width, as in the server."""
        num_rows = sum(task.num_rows for task in tasks)
        allowed = next((size for size in self._sizes if size >= num_rows), num_rows)
        batch_size = allowed if num_rows else 0  # there is no row to fill an empty batch with
        last = [task for task in tasks if task.num_rows][-1:]
        merged = {}
        for name in tasks[0].inputs:
            rows = [row for task in tasks for row in task.inputs[name].values]
            padding = [task.inputs[name].values[0] for task in last] * (batch_size - num_rows)
            merged[name] = rows + padding
        outputs = self._run(signature_name, merged)
        for column in outputs.values():
            if not isinstance(column, list):
                raise RequestError("Batched output tensor has 0 dimensions", FAILED_PRECONDITION)
            if len(column) != batch_size:
                raise RequestError(
                    "Batched output tensor's 0th dimension does not equal the sum of the 0th dimension sizes of "
                    "the input tensors",
                    FAILED_PRECONDITION,
                )
        parts = []
        start = 0
        for task in tasks:
            end = start + task.num_rows
            parts.append({name: column[start:end] for name, column in outputs.items()})
            start = end
        return parts


def common_rows(inputs):
    """The number of rows that all inputs, a dict of `Tensor`s, have.

    Raises:
        RequestError: if they differ, or one has no axis.
    """
    shapes = [tensor.shape for tensor in inputs.values()]
    if not all(shapes):
        raise RequestError("Batching Run() input tensors must have at least one dimension")
    if len({shape[0] for shape in shapes}) > 1:
        raise RequestError("Batching Run() input tensors must have equal 0th-dimension size")
    return shapes[0][0]


class Unbatched:
    """Runs each request by itself, as TF Serving does with a version that has no batching parameters.

    Args:
        run: As of `Batcher`.
    """

    def __init__(self, run):
        self._run = run

    def ask(self, signature_name, inputs):
        """As of `Batcher`."""
        return self._run(signature_name, {name: tensor.values for name, tensor in inputs.items()})

    def close(self):
        """Nothing waits here."""
