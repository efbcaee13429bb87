import ast
import concurrent.futures
import http.server
import importlib.util
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

SERVING = pathlib.Path(__file__).parents[2] / "examples" / "serving"

TRANSLATIONS = {"4th of July 2016": "2016-07-04", "3. Oktober 1990": "1990-10-03", "": ""}
SIGNATURES = ("serving_default", "translate_n_best")


class TFServing(http.server.BaseHTTPRequestHandler):
    """The predict call of TF Serving's REST API (api_rest.md), for a model `dates` that translates from a table."""

    def do_POST(self):
        self.server.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
        if not re.fullmatch(r"/v1/models/[^/:]+(/versions/\d+|/labels/[^/:]+)?:predict", self.path):
            return self.reply(404, {"error": f"Malformed request: POST {self.path}"})
        if self.path != "/v1/models/dates:predict":
            return self.reply(404, {"error": "Servable not found for request: Latest(times)"})
        return self.reply(*self.predict(json.loads(self.server.bodies[-1])))

    def predict(self, body):
        if not set(body) <= {"signature_name", "instances"} or not isinstance(body.get("instances"), list):
            return 400, {"error": "Missing 'inputs' or 'instances' key"}
        if body.get("signature_name", "serving_default") not in SIGNATURES:
            return 400, {"error": 'Serving signature name: "x" not found in signature def'}
        unknown = [text for text in body["instances"] if text not in TRANSLATIONS]
        if unknown:
            return 400, {"error": f"Cannot translate {json.dumps(unknown)}"}
        translations = [TRANSLATIONS[text] for text in body["instances"]]
        if body.get("signature_name") == "translate_n_best":
            rows = [{"outputs": [text, "?", "??"], "scores": [-0.25, -1.5, -12.125]} for text in translations]
            return 200, {"predictions": rows}
        return 200, {"predictions": translations}

    def reply(self, status, content):
        self.send(status, json.dumps(content, indent=4).encode(), "application/json")

    def send(self, status, body, content_type):
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


class Proxy(TFServing):
    """Something else than TF Serving that listens on the port."""

    status = 502

    def do_POST(self):
        self.send(self.status, b"<h1>Bad gateway</h1>\n", "text/html")


class CheerfulProxy(Proxy):
    status = 200


@pytest.fixture
def serve():
    servers = []

    def start(handler):
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        server.bodies = []
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        servers.append((server, thread))
        return server, f"http://127.0.0.1:{server.server_port}"

    yield start
    for server, thread in servers:
        server.shutdown()
        thread.join()
        server.server_close()


def run_client(name, *arguments, **environment):
    # A proxy meant for the network outside must not be asked for 127.0.0.1.
    environment = {**os.environ, "no_proxy": "127.0.0.1", "PYTHONUTF8": "1", **environment}
    command = [sys.executable, str(SERVING / name), *arguments]
    return subprocess.run(command, capture_output=True, env=environment, timeout=60)


def test_rest_client_prints_a_translation_a_line(serve):
    server, url = serve(TFServing)
    client = run_client("rest_client.py", "--server", url, "4th of July 2016", "", "3. Oktober 1990")
    assert client.returncode == 0, client.stderr
    assert client.stdout.decode() == "2016-07-04\n\n1990-10-03\n"
    [body] = server.bodies
    assert json.loads(body) == {
        "signature_name": "serving_default",
        "instances": ["4th of July 2016", "", "3. Oktober 1990"],
    }


def test_rest_client_prints_candidates_with_their_scores(serve):
    _, url = serve(TFServing)
    client = run_client("rest_client.py", "--server", url + "/", "--n-best", "4th of July 2016")
    assert client.returncode == 0, client.stderr
    lines = ["4th of July 2016", "    -0.250  2016-07-04", "    -1.500  ?", "   -12.125  ??"]
    assert client.stdout.decode().splitlines() == lines


def test_rest_client_sends_bytes_that_are_not_utf8_in_base64(serve):
    class Recorder(TFServing):
        def predict(self, body):
            return 200, {"predictions": ["done"]}

    server, url = serve(Recorder)
    client = run_client("rest_client.py", "--server", url, b"\xff4 July")
    assert client.stdout.decode() == "done\n"
    assert json.loads(server.bodies[0])["instances"] == [{"b64": "/zQgSnVseQ=="}]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tomorrow"], '/v1/models/dates:predict answered 400: Cannot translate ["tomorrow"]'),
        (
            ["--model", "times", "x"],
            "/v1/models/times:predict answered 404: Servable not found for request: Latest(times)",
        ),
        (["--model", "a/b", "x"], "/v1/models/a%2Fb:predict answered 404: Servable not found"),
    ],
)
def test_rest_client_prints_the_error_of_the_server(serve, arguments, message):
    _, url = serve(TFServing)
    client = run_client("rest_client.py", "--server", url, *arguments)
    assert client.returncode == 1
    assert client.stdout == b""
    [line] = client.stderr.decode().splitlines()
    assert line.startswith(url + message)


@pytest.mark.parametrize(
    ("handler", "message"),
    [
        (Proxy, "answered 502: <h1>Bad gateway</h1>"),
        (CheerfulProxy, "answered something that is not TF Serving's JSON."),
    ],
)
def test_rest_client_says_when_another_server_replies(serve, handler, message):
    _, url = serve(handler)
    client = run_client("rest_client.py", "--server", url, "4th of July 2016")
    assert client.returncode == 1
    assert client.stderr.decode() == f"{url}/v1/models/dates:predict {message}\n"


def test_rest_client_says_in_one_line_that_nobody_listens():
    with socket.socket() as bound_but_not_listening:
        bound_but_not_listening.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{bound_but_not_listening.getsockname()[1]}"
        client = run_client("rest_client.py", "--server", url, "4th of July 2016")
    assert client.returncode == 1
    [line] = client.stderr.decode().splitlines()
    assert line.startswith(f"No answer from {url}/v1/models/dates:predict (")
    assert "refused" in line
    assert line.endswith("Is the server running?")


def test_rest_client_says_when_the_port_does_not_speak_http():
    with socket.create_server(("127.0.0.1", 0)) as server:

        def reply_with_noise():
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"\0\0\x12\x04 not HTTP\n")

        thread = threading.Thread(target=reply_with_noise)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        client = run_client("rest_client.py", "--server", url, "4th of July 2016")
        thread.join()
    assert client.returncode == 1
    expected = f"{url}/v1/models/dates:predict does not answer in HTTP. Is this the server's REST port?\n"
    assert client.stderr.decode() == expected


def test_rest_client_refuses_a_server_without_a_scheme():
    client = run_client("rest_client.py", "--server", "localhost:8501", "x")
    assert client.returncode == 2
    assert b"`--server` must start with http:// or https://. Received: localhost:8501" in client.stderr


@pytest.mark.parametrize("name", ["rest_client.py", "load_test.py"])
def test_it_needs_the_standard_library_alone(name):
    tree = ast.parse((SERVING / name).read_text(encoding="utf-8"))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in names} - sys.stdlib_module_names == set()


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("4th of July 2016\n\n3. Oktober 1990\n", encoding="utf-8")
    return str(path)


def test_load_test_sends_every_request_and_prints_figures(serve, texts):
    server, url = serve(TFServing)
    arguments = ["--server", url, "--clients", "5", "--requests", "37", "--texts", texts]
    client = run_client("load_test.py", *arguments)
    assert client.returncode == 0, client.stderr
    pattern = r"5 clients: 37 answers, 0 errors, p50 [\d.]+ ms, p99 [\d.]+ ms, [\d.]+ sentences/s\n"
    assert re.fullmatch(pattern, client.stdout.decode())
    sent = [json.loads(body)["instances"] for body in server.bodies]
    # Each text once before the measurement, and then in turn.
    assert sorted(sent) == sorted([["4th of July 2016"]] * 20 + [["3. Oktober 1990"]] * 19)


def test_load_test_counts_what_fails(serve, texts):
    class EveryOther(TFServing):
        def predict(self, body):
            if body["instances"] == ["3. Oktober 1990"]:
                return 500, {"error": "no such day"}
            return super().predict(body)

    _, url = serve(EveryOther)
    client = run_client(
        "load_test.py", "--server", url, "--clients", "3", "--requests", "8", "--texts", texts
    )
    assert client.returncode == 1
    assert b"3 clients: 4 answers, 4 errors" in client.stdout
    assert client.stderr.decode().startswith(
        'The first error: RuntimeError: 500 {\n    "error": "no such day"'
    )


def test_load_test_without_a_server(texts):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        arguments = ["--server", f"http://127.0.0.1:{free.getsockname()[1]}", "--texts", texts]
    client = run_client("load_test.py", *arguments, "--clients", "2", "--requests", "4")
    assert client.returncode == 1
    assert client.stdout == b"2 clients: no answer to 4 requests\n"
    assert b"The first error: ConnectionRefusedError" in client.stderr


@pytest.mark.extended
def test_load_test_runs_an_exported_model_itself():
    folder = SERVING.parents[1] / "saved_models" / "dates" / "1"
    client = run_client("load_test.py", "--saved-model", str(folder), "--clients", "3", "--requests", "11")
    assert client.returncode == 0, client.stderr
    assert client.stdout.startswith(b"3 clients: 11 answers, 0 errors, p50 ")


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("count", [1, 2, 3, 99, 100, 101, 257])
def test_percentiles_are_of_the_nearest_rank(rng, count):
    latencies = rng.exponential(size=count).tolist()
    figures = load(SERVING / "load_test.py").Figures(1.0, latencies, [])
    for percent in (1, 50, 99, 100):
        assert figures.percentile(percent) == np.percentile(latencies, percent, method="inverted_cdf")


@pytest.fixture
def merger_class(monkeypatch):
    benchmarks = SERVING.parents[1] / "tests" / "benchmarks"
    monkeypatch.syspath_prepend(str(benchmarks))
    return load(benchmarks / "serve.py").Merger


def test_merged_requests_get_their_own_answers(merger_class):
    sizes = []

    def translate(texts):
        sizes.append(len(texts))
        if "bad" in texts:
            raise RuntimeError("one bad text fails its batch")
        time.sleep(0.002)
        return [text[::-1] for text in texts]

    merger = merger_class(translate, max_batch_size=5, seconds=0.01, threads=2)
    with concurrent.futures.ThreadPoolExecutor(23) as pool:
        texts = [f"text {row}" for row in range(200)]
        assert list(pool.map(merger.ask, texts)) == [text[::-1] for text in texts]
        assert sum(sizes) == 200
        assert max(sizes) == 5
        with pytest.raises(RuntimeError, match="fails its batch"):
            merger.ask("bad")
        assert merger.ask("next") == "txen"
    merger.close()


@pytest.mark.parametrize("missing", ["grpc", "tensorflow_serving"])
def test_grpc_client_without_its_package_tells_the_pip_line(tmp_path, missing):
    (tmp_path / "grpc.py").touch()
    (tmp_path / f"{missing}.py").write_text(f'raise ModuleNotFoundError("No module named {missing!r}")\n')
    client = run_client("grpc_client.py", "4th of July 2016", PYTHONPATH=str(tmp_path))
    assert client.returncode == 1
    [line] = client.stderr.decode().splitlines()
    assert line == (
        f"The gRPC client needs TF Serving's API (No module named {missing!r}): pip install tensorflow-serving-api"
    )


def test_models_config_serves_dates():
    config = (SERVING / "models.config").read_text(encoding="utf-8")
    assert re.findall(r'^ *(\w+): "(.*)"', config, flags=re.MULTILINE) == [
        ("name", "dates"),
        ("base_path", "/models/dates"),
        ("model_platform", "tensorflow"),
    ]
