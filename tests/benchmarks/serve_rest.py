"""What `keras-attn serve` adds to a model: sentences a second over REST, against TensorFlow's C library in one process.

python tests/benchmarks/serve_rest.py VERSION_FOLDER

One client sends requests of 32 sentences; then 32 clients send one sentence a request. The clients run on the same cores
as the server. In one process, the 32 clients' requests are run one by one, and merged into batches as the server merges
them.
"""

import contextlib
import http.client
import json
import os
import pathlib
import re
import subprocess
import sys

import serve
from helpers_benchmarks import parser, print_table

ROOT = pathlib.Path(__file__).parents[2]
ROWS = 32
CLIENTS = 32


@contextlib.contextmanager
def served(folder):
    """Gives the address and the model's name of a `keras-attn serve` in a new process."""
    command = [
        sys.executable,
        "-m",
        "keras_attn_cli",
        "serve",
        str(pathlib.Path(folder).resolve()),
        "--port",
        "0",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            lines = iter(process.stdout.readline, "")
            path = next(
                match
                for line in lines
                if (match := re.search(r"http://(\S+?)/v1/models/(\S+):predict", line))
            )
            yield path[1], path[2]
        finally:
            process.terminate()


def rest_asker(address, model):
    """A function from sentences to their translations over one connection that stays open."""
    connection = http.client.HTTPConnection(address, timeout=60)

    def ask(texts):
        body = json.dumps({"instances": texts})
        connection.request("POST", f"/v1/models/{model}:predict", body, {"Content-Type": "application/json"})
        reply = connection.getresponse()
        content = reply.read()
        if reply.status != http.client.OK:
            raise RuntimeError(f"{reply.status} {content[:200]}")
        return json.loads(content)["predictions"]

    return ask


def measured(folder, texts, rounds, seconds):
    """Yields (arrangement, best sentences/s) over the rounds."""
    most, timeout = serve.batching_parameters(folder)
    block = (texts * ROWS)[:ROWS]
    with contextlib.ExitStack() as stack:
        model = stack.enter_context(serve.load_test.loaded_model(folder))
        translate = serve.load_test.translate
        merger = serve.Merger(lambda batch: translate(model, batch), most, timeout, os.cpu_count())
        stack.callback(merger.close)
        server = stack.enter_context(served(folder))
        arrangements = {
            f"{ROWS} a request, one process": (lambda: lambda _: translate(model, block), 1, ROWS),
            f"{ROWS} a request, REST": (lambda: rest_with(server, lambda ask, _: ask(block)), 1, ROWS),
            f"{CLIENTS} clients, one process": (lambda: lambda text: translate(model, [text]), CLIENTS, 1),
            f"{CLIENTS} clients, one process, merged": (lambda: merger.ask, CLIENTS, 1),
            f"{CLIENTS} clients, REST": (
                lambda: rest_with(server, lambda ask, text: ask([text])),
                CLIENTS,
                1,
            ),
        }
        found = {name: [] for name in arrangements}
        requests = {name: 4 * clients for name, (_, clients, _) in arrangements.items()}
        for round_number in range(rounds + 1):
            for name, (new_client, clients, rows) in arrangements.items():
                figures = serve.load_test.measure(new_client, texts, clients, requests[name])
                if figures.errors:
                    raise SystemExit(f"{name}: {figures.errors[0]}")
                if round_number:
                    found[name].append(requests[name] * rows / figures.seconds)
                else:  # the first round warms up, and says how many requests fill the time
                    requests[name] = max(int(requests[name] / figures.seconds * seconds), clients)
    for name, speeds in found.items():
        yield name, sorted(speeds)[len(speeds) // 2]


def rest_with(server, function):
    ask = rest_asker(*server)
    return lambda text: function(ask, text)


def main():
    options = parser(__doc__.splitlines()[0], rounds=3)
    options.add_argument("folder", metavar="VERSION_FOLDER", help="for example saved_models/dates/1")
    options.add_argument(
        "--texts", metavar="FILE", help="what to translate, a text a line (default: some dates)"
    )
    options.add_argument(
        "--seconds", type=float, default=5.0, help="of each measurement (default: %(default)s)"
    )
    options = options.parse_args()
    texts = list(serve.load_test.TEXTS)
    if options.texts:
        texts = pathlib.Path(options.texts).read_text(encoding="utf-8").splitlines()
    speeds = dict(measured(options.folder, texts, options.rounds, options.seconds))
    whole, merged = (
        speeds[f"{ROWS} a request, one process"],
        speeds[f"{CLIENTS} clients, one process, merged"],
    )
    rows = [
        (name, f"{speed:.0f}", f"{speed / (whole if 'request' in name else merged):.2f}")
        for name, speed in speeds.items()
    ]
    title = f"{options.folder} on {os.cpu_count()} cores, median of {options.rounds} rounds of {options.seconds} s"
    print_table(title, ("arrangement", "sentences/s", "x one process"), rows)


if __name__ == "__main__":
    main()
