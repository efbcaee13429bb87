"""How fast a served model answers: latency, and sentences a second with many clients at once.

Against a server, with Python's standard library alone:

```
python examples/serving/load_test.py --clients 32
```

Against an exported model itself, in TensorFlow's C library and without a server, with NumPy and TensorFlow installed:

```
python examples/serving/load_test.py --clients 32 --saved-model saved_models/dates/1
```

Each client sends one text a request, and the next one when it has the answer.
"""

import argparse
import contextlib
import http.client
import importlib.util
import itertools
import json
import pathlib
import threading
import time
import urllib.parse

TEXTS = (
    "4th of July 2016",
    "3. Oktober 1990",
    "le 1er mars 1999",
    "Monday, the 22nd of November 2021",
    "12/31/99",
)
RUNNER = pathlib.Path(__file__).parents[2] / "keras_attn" / "export" / "saved_model_runner.py"


class Figures:
    """What a load test found.

    seconds: Float, from the first request to the last answer.
    latencies: Rising list of floats, the seconds of each request that was answered.
    errors: List of strings, one for each request that was not.
    """

    def __init__(self, seconds, latencies, errors):
        self.seconds, self.latencies, self.errors = seconds, sorted(latencies), errors

    def percentile(self, percent):
        """The latency that `percent` of the answered requests did not exceed (nearest rank)."""
        rank = -(-len(self.latencies) * percent // 100)
        return self.latencies[max(int(rank), 1) - 1]

    def report(self):
        """The figures on one line."""
        if not self.latencies:
            return f"no answer to {len(self.errors)} requests"
        return (
            f"{len(self.latencies)} answers, {len(self.errors)} errors, p50 {1e3 * self.percentile(50):.1f} ms, "
            f"p99 {1e3 * self.percentile(99):.1f} ms, {len(self.latencies) / self.seconds:.1f} sentences/s"
        )


def measure(new_client, texts, clients, requests):
    """Sends `requests` texts, in turn from `texts`, from `clients` threads.

    Args:
        new_client: Function without arguments, called by each thread, that returns a function from a text to its
            answer, which raises where there is none.
        texts: List of strings.
        clients, requests: Integers.

    Returns:
        `Figures`.
    """
    numbers, latencies, errors = itertools.count(), [], []
    start_together = threading.Barrier(clients + 1)

    def work():
        ask = new_client()
        start_together.wait()
        while (number := next(numbers)) < requests:
            start = time.perf_counter()
            try:
                ask(texts[number % len(texts)])
            except (OSError, ValueError, RuntimeError, http.client.HTTPException) as error:
                errors.append(f"{type(error).__name__}: {error}")
            else:
                latencies.append(time.perf_counter() - start)

    threads = [threading.Thread(target=work) for _ in range(clients)]
    for thread in threads:
        thread.start()
    start_together.wait()
    start = time.perf_counter()
    for thread in threads:
        thread.join()
    return Figures(time.perf_counter() - start, latencies, errors)


def rest_client(server, model, timeout):
    """A function that asks TF Serving, over one connection that stays open."""
    address = urllib.parse.urlsplit(server)
    kind = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}[address.scheme]
    connection = kind(address.netloc, timeout=timeout)
    path = f"{address.path.rstrip('/')}/v1/models/{urllib.parse.quote(model, safe='')}:predict"

    def ask(text):
        try:
            body = json.dumps({"instances": [text]})
            connection.request("POST", path, body, {"Content-Type": "application/json"})
            reply = connection.getresponse()
            content = reply.read()
        except (OSError, http.client.HTTPException):
            connection.close()  # the next request opens it again
            raise
        if reply.status != http.client.OK:
            raise RuntimeError(f"{reply.status} {content[:200].decode(errors='replace')}")
        [prediction] = json.loads(content)["predictions"]
        return prediction

    return ask


@contextlib.contextmanager
def loaded_model(folder):
    """A SavedModel in TensorFlow's C library, XLA enabled if it was exported for it; `run` may be called by threads."""
    spec = importlib.util.spec_from_file_location("saved_model_runner", RUNNER)
    runner = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(runner)
    xla = pathlib.Path(folder, "assets.extra", "xla_buckets.json").is_file()
    try:
        model = runner.SavedModel(runner.CApi(xla), folder)
    except runner.TensorFlowError as error:
        raise SystemExit(f"Cannot load a SavedModel from {folder}: {error}") from None
    with contextlib.closing(model):
        yield model


def translate(model, texts):
    """The translations of a batch by a `loaded_model`."""
    return model.run("serving_default", {"inputs": list(texts)})["outputs"].tolist()


def _read_texts(path):
    texts = pathlib.Path(path).read_text(encoding="utf-8").splitlines() if path else TEXTS
    return list(filter(str.strip, texts))


def main():
    parser = argparse.ArgumentParser(description="Measures latency and throughput of a served translator.")
    parser.add_argument("--clients", type=int, default=32, help="at the same time (default: %(default)s)")
    parser.add_argument("--requests", type=int, default=1000, help="of all together (default: %(default)s)")
    parser.add_argument(
        "--texts", metavar="FILE", help="what to translate, a text a line (default: some dates)"
    )
    parser.add_argument("--server", default="http://localhost:8501", help="(default: %(default)s)")
    parser.add_argument("--model", default="dates", help="name in models.config (default: %(default)s)")
    parser.add_argument("--timeout", type=float, default=30.0, help="seconds (default: %(default)s)")
    parser.add_argument(
        "--saved-model", metavar="FOLDER", help="a version folder to run instead of asking a server"
    )
    options = parser.parse_args()
    if options.clients < 1 or options.requests < 1:
        parser.error("`--clients` and `--requests` must be positive.")
    if not options.server.startswith(("http://", "https://")):
        parser.error(f"`--server` must start with http:// or https://. Received: {options.server}")
    texts = _read_texts(options.texts)
    if not texts:
        parser.error(f"{options.texts} has no text.")

    with contextlib.ExitStack() as stack:
        if options.saved_model:
            model = stack.enter_context(loaded_model(options.saved_model))
            new_client = lambda: lambda text: translate(model, [text])  # noqa: E731
        else:
            new_client = lambda: rest_client(options.server, options.model, options.timeout)  # noqa: E731
        measure(new_client, texts, 1, len(texts))  # the first requests to a model are slower
        figures = measure(new_client, texts, options.clients, options.requests)
    print(f"{options.clients} clients: {figures.report()}")
    if figures.errors:
        raise SystemExit(f"The first error: {figures.errors[0]}")


if __name__ == "__main__":
    main()
