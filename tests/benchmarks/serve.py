"""Latency and throughput of an exported model in TensorFlow's C library, as a TF Serving has it.

python tests/benchmarks/serve.py VERSION_FOLDER

One client sends one sentence at a time; then 32 clients do, each running its own batch of one; then 32 clients whose
requests are merged into batches, as the server's batching does it, by the parameters that the export has in its
batching_params.pbtxt. HTTP and gRPC are not in these figures. A twin for XLA runs with XLA.
"""

import concurrent.futures
import contextlib
import importlib.util
import os
import pathlib
import queue
import re
import sys
import threading
import time

from helpers_benchmarks import parser, print_table

_LOAD_TEST = pathlib.Path(__file__).parents[2] / "examples" / "serving" / "load_test.py"
_SPEC = importlib.util.spec_from_file_location("load_test", _LOAD_TEST)
load_test = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(load_test)

CLIENTS = 32
REQUESTS = 1000


class Merger:
    """Runs requests in batches: at most `max_batch_size`, waiting at most `seconds` for company once a thread is free.

    Reference: tensorflow/serving, tensorflow_serving/batching/README.md.
    """

    def __init__(self, translate, max_batch_size, seconds, threads):
        self._translate = translate
        self._max_batch_size = max_batch_size
        self._seconds = seconds
        self._waiting = queue.Queue()
        self._forming = threading.Lock()  # one thread at a time takes requests; the others run theirs
        self._threads = [threading.Thread(target=self._work) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    def ask(self, text):
        """Blocks until the answer is there."""
        future = concurrent.futures.Future()
        self._waiting.put((text, future))
        return future.result()

    def close(self):
        """Ends the threads, when no request waits any more."""
        for _ in self._threads:
            self._waiting.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self):
        while batch := self._next_batch():
            texts, futures = zip(*batch)
            try:
                for future, translation in zip(futures, self._translate(texts), strict=True):
                    future.set_result(translation)
            except (RuntimeError, ValueError) as error:
                for future in futures:
                    future.set_exception(error)

    def _next_batch(self):
        with self._forming:
            batch = [self._waiting.get()]
            deadline = time.perf_counter() + self._seconds
            while batch[-1] is not None and len(batch) < self._max_batch_size:
                try:
                    batch.append(self._waiting.get(timeout=max(deadline - time.perf_counter(), 0)))
                except queue.Empty:
                    break
        if batch[-1] is None and len(batch) > 1:
            self._waiting.put(batch.pop())
        return [] if batch == [None] else batch


def batching_parameters(folder):
    """(most texts in a batch, seconds that a request waits) of the export."""
    path = pathlib.Path(folder, "batching_params.pbtxt")
    if not path.is_file():
        return 64, 0.002
    text = re.sub(r"#.*", "", path.read_text(encoding="utf-8"))
    values = dict(re.findall(r"(\w+) \{ value: (\d+) \}", text))
    return int(values["max_batch_size"]), int(values["batch_timeout_micros"]) / 1e6


def measured(folder, texts, rounds):
    """Yields (arrangement, median p50 ms, median p99 ms, median sentences/s) over the rounds."""
    most, seconds = batching_parameters(folder)
    threads = os.cpu_count()
    with contextlib.ExitStack() as stack:
        model = stack.enter_context(load_test.loaded_model(folder))
        for text in texts:  # every shape that a batch can have
            for size in (1, 2, 4, 8, 16, CLIENTS):
                load_test.translate(model, [text] * size)
        merger = Merger(lambda batch: load_test.translate(model, batch), most, seconds, threads)
        stack.callback(merger.close)
        arrangements = {
            "1 client": (lambda text: load_test.translate(model, [text]), 1),
            f"{CLIENTS} clients": (lambda text: load_test.translate(model, [text]), CLIENTS),
            f"{CLIENTS} clients, merged into batches": (merger.ask, CLIENTS),
        }
        found = {name: [] for name in arrangements}
        for _ in range(rounds):
            for name, (ask, clients) in arrangements.items():
                figures = load_test.measure(lambda ask=ask: ask, texts, clients, REQUESTS)
                if figures.errors:
                    raise SystemExit(f"{name}: {figures.errors[0]}")
                found[name].append(
                    (1e3 * figures.percentile(50), 1e3 * figures.percentile(99), REQUESTS / figures.seconds)
                )
    for name, rows in found.items():
        yield name, *(sorted(column)[len(column) // 2] for column in zip(*rows))


def main():
    options = parser(__doc__.splitlines()[0], rounds=3)
    options.add_argument("folder", metavar="VERSION_FOLDER", help="for example saved_models/dates/1")
    options.add_argument(
        "--texts", metavar="FILE", help="what to translate, a text a line (default: some dates)"
    )
    options = options.parse_args()
    texts = list(load_test.TEXTS)
    if options.texts:
        texts = pathlib.Path(options.texts).read_text(encoding="utf-8").splitlines()
    rows = [
        (name, *(f"{value:.1f}" for value in values))
        for name, *values in measured(options.folder, texts, options.rounds)
    ]
    print_table(
        f"{options.folder} on {os.cpu_count()} cores, {REQUESTS} requests of one sentence, {options.rounds} rounds",
        ("arrangement", "p50 ms", "p99 ms", "sentences/s"),
        rows,
    )
    if "tensorflow" in sys.modules:
        raise SystemExit("TensorFlow's Python was imported, which a server has not.")


if __name__ == "__main__":
    main()
