"""The server around the REST routes: its connections, the page's files, who may ask, and its command."""

import contextlib
import functools
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import types
import urllib.parse
import urllib.request

import numpy as np
import pytest
import tensorflow as tf
from helpers_serving import Client, running
from helpers_translators import byte_translator

import keras_attn_cli
from keras_attn.export import export_saved_model, write_task_declaration, write_warmup_requests
from keras_attn.serve.app import MOST_BODY_BYTES, is_loopback
from keras_attn.serve.folders import find_version, find_versions
from keras_attn.serve.models import ServedModel, loaded_models
from keras_attn.serve.server import _greeting

ROOT = pathlib.Path(__file__).parents[2]
SERVING = ROOT / "examples" / "serving"
DATES = ROOT / "saved_models" / "dates"


def raw(port, content):
    """What the server sends for bytes on a connection, until it closes it or has nothing more to say."""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.sendall(content)
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def post(body, *headers):
    lines = ["POST /v1/models/plain:predict HTTP/1.1", "Host: localhost", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


def test_a_connection_serves_one_request_after_another(client):
    client.connection.connect()
    port = client.connection.sock.getsockname()[1]
    for number in range(3):
        assert client.predict({"instances": [f"{number}"]}) == {"predictions": [f"<{number}>"]}
        assert client.ask("POST", "/v1/models/plain:predict", b"{")[0] == 400
        assert client.ask("HEAD", "/")[1] == b""
        assert client.ask("GET", "/nothing")[0] == 404
    assert client.connection.sock.getsockname()[1] == port


def test_requests_may_be_sent_before_the_answers_are_read(server):
    body = b'{"instances": ["a"]}'
    request = post(body, f"Content-Length: {len(body)}")
    assert raw(server[0], request * 2).count(b'{"predictions": ["<a>"]}') == 2


def test_a_body_in_chunks_is_read_and_the_connection_goes_on(server):
    chunks = b'b\r\n{"instances\r\n9\r\n": ["a"]}\r\n0\r\n\r\n'
    answer = raw(server[0], post(chunks, "Transfer-Encoding: chunked") * 2)
    assert answer.count(b'{"predictions": ["<a>"]}') == 2


def test_a_client_that_asks_first_is_told_to_go_on(server):
    body = b'{"instances": ["a"]}'
    with socket.create_connection(("127.0.0.1", server[0]), timeout=5) as connection:
        connection.sendall(post(b"", "Expect: 100-continue", f"Content-Length: {len(body)}"))
        assert connection.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(body)
        assert connection.recv(1000).endswith(b'{"predictions": ["<a>"]}')


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (f"Content-Length: {MOST_BODY_BYTES + 1}", b"413"),
        ("Content-Length: -1", b"400"),
        ("Content-Length: 9", b"400"),
        (f"Content-Length: {'9' * 5000}", b"413"),
        ("Transfer-Encoding: chunked", b"400"),
    ],
)
def test_a_body_that_cannot_be_read_ends_the_connection(server, capsys, header, status):
    answer = raw(server[0], post(b"{}", header))
    assert answer.startswith(b"HTTP/1.1 " + status)
    assert b"\r\nConnection: close\r\n" in answer
    assert b'"error": "' in answer
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8501", 200),
        ("127.0.0.1", 200),
        ("127.0.0.2:1", 200),
        ("[::1]:8501", 200),
        ("model.localhost", 200),
        ("example.com", 403),
        ("example.com:8501", 403),
        ("127.0.0.1.example.com", 403),
        ("localhost.", 403),
        ("", 403),
        ("[::1", 403),
        ("user@localhost", 403),
    ],
)
def test_only_names_of_this_machine_are_answered(client, host, status):
    for path in ("/v1/models/plain", "/", "/page/models"):
        found, content = client.ask("GET", path, headers={"Host": host})
        assert found == status
        assert status == 200 or b"answers requests to this machine only" in content


COMPUTING = {
    "predict": ("POST", "/v1/models/plain:predict", b'{"instances": ["a"]}', 200),
    "predict of a version": ("POST", "/v1/models/plain/versions/1:predict", b'{"instances": ["a"]}', 200),
    "classify": ("POST", "/v1/models/plain:classify", b'{"examples": [{}]}', 400),
    "regress": ("POST", "/v1/models/plain:regress", b'{"examples": [{}]}', 400),
    "status": ("GET", "/v1/models/plain", b"", 200),
    "metadata": ("GET", "/v1/models/plain/metadata", b"", 200),
    "images": ("POST", "/page/images", b"an image", 200),
    "attention": ("GET", "/page/attention?model=plain&text=a", b"", 400),
    "models": ("GET", "/page/models", b"", 200),
    "nothing": ("POST", "/nothing", b"x", 404),
}
# `{}` is the server's own address.
OWN = [
    {},
    {"Sec-Fetch-Site": "none"},
    {"Sec-Fetch-Site": "same-origin"},
    {"Origin": "http://{}"},
    {"Origin": "HTTP://{}", "Sec-Fetch-Site": "same-origin"},
]
FOREIGN = [
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "a new word"},
    {"Origin": "http://example.com"},
    {"Origin": "null"},
    {"Origin": ""},
    {"Origin": "http://localhost:1"},
    {"Origin": "http://{}.example.com"},
    {"Origin": "http://example.com#{}"},
    {"Origin": "http://{}", "Sec-Fetch-Site": "cross-site"},
    {"Origin": "http://example.com", "Sec-Fetch-Site": "same-origin"},
]


@pytest.mark.parametrize("route", COMPUTING)
def test_pages_of_other_sites_make_the_server_compute_and_keep_nothing(client, route):
    method, path, body, status = COMPUTING[route]
    own = f"127.0.0.1:{client.connection.port}"
    for headers in OWN:
        given = {name: value.replace("{}", own) for name, value in headers.items()}
        assert client.ask(method, path, body, given)[0] == status, headers
    for headers in FOREIGN:
        given = {name: value.replace("{}", own) for name, value in headers.items()}
        found, content = client.ask(method, path, body, given)
        assert found == 403, headers
        assert b"for its own page and for programs" in content
    for headers in [*OWN, *FOREIGN]:  # a link to the page, and what it loads
        given = {name: value.replace("{}", own) for name, value in headers.items()}
        assert client.ask("GET", "/", headers=given)[0] == 200


@pytest.mark.parametrize(
    "headers",
    [
        ["Content-Length: 20", "Content-Length: 2"],
        ["Content-Length: 2", "Content-Length: 20"],
        ["Content-Length: 20, 2"],
        ["Content-Length: 20", "Transfer-Encoding: chunked"],
        ["Transfer-Encoding: chunked", "Transfer-Encoding: chunked"],
        ["Transfer-Encoding: gzip, chunked"],
        ["Transfer-Encoding: identity", "Content-Length: 20"],
        ["Transfer-Encoding: xchunked"],
        ["Content-Length : 20"],
        ["nothing", "Content-Length: 20"],
    ],
    ids=", ".join,
)
def test_a_body_whose_end_is_not_sure_ends_the_connection(server, headers):
    """A proxy before the server may read it otherwise, so what follows it may be hidden in it."""
    answer = raw(server[0], post(b'{"instances": ["a"]}', *headers) + post(b"{}", "Content-Length: 2"))
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1") == 1


def test_a_length_that_is_said_twice_alike_is_one(server):
    answer = raw(server[0], post(b'{"instances": ["a"]}', "Content-Length: 20", "Content-Length: 20"))
    assert answer.endswith(b'{"predictions": ["<a>"]}')


def test_no_page_of_another_site_is_given_leave(client):
    client.ask("OPTIONS", "/v1/models/plain:predict", headers={"Origin": "http://example.com"})
    assert not [name for name in client.headers if name.lower().startswith("access-control")]


def test_loopback_addresses_are_known():
    assert [
        name
        for name in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "::", "10.0.0.1", "host")
        if is_loopback(name)
    ] == ["127.0.0.1", "::1", "localhost"]


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "text/html"),
        ("/page/page.js", "text/javascript"),
        ("/page/page.css", "text/css"),
        ("/page/base.css", "text/css"),
        ("/page/dom.js", "text/javascript"),
        ("/?x=1", "text/html"),
    ],
)
def test_the_pages_files_are_served_with_a_strict_policy(client, path, kind):
    status, content = client.ask("GET", path)
    assert (status, client.headers["Content-Type"]) == (200, f"{kind}; charset=utf-8")
    name = path.rpartition("/")[2].partition("?")[0] or "page.html"
    room = "plots" if name in ("base.css", "dom.js", "words.js") else "serve"
    assert content == (ROOT / "keras_attn" / room / name).read_bytes()
    policy = client.headers["Content-Security-Policy"].split("; ")
    assert {"default-src 'none'", "script-src 'self'", "connect-src 'self'"} <= set(policy)


@pytest.mark.parametrize("path", ["/page/server.py", "/page/../server.py", "/page/%2e%2e/server.py", "/page"])
def test_no_other_file_is_served(client, path):
    assert client.ask("GET", path)[0] == 404


SPECS = [
    tf.TensorSpec([None], tf.string, name="inputs"),
    tf.TensorSpec([None], tf.float32, name="length_penalty"),
    tf.TensorSpec([None, 8], tf.int32, name="stop_token_ids"),
]
SHAPES = {
    "inputs": {
        "inputs": {"dtype": "string", "shape": [None]},
        "length_penalty": {"dtype": "float", "shape": [None]},
        "stop_token_ids": {"dtype": "int32", "shape": [None, 8]},
    },
    "outputs": {
        "outputs": {"dtype": "string", "shape": [None, 1]},
        "scores": {"dtype": "float", "shape": [None, 1]},
    },
}


def export_translate(folder):
    """A version whose only signature has the name of a translator's."""

    def translate(inputs, length_penalty, stop_token_ids):
        return {"outputs": inputs[:, tf.newaxis], "scores": length_penalty[:, tf.newaxis]}

    return export_saved_model(folder, {"translate": (translate, SPECS)})


def declared(**changes):
    """What an export of this signature may declare."""
    inputs = {name: {"meaning": name, "widget": None} for name in SHAPES["inputs"]}
    outputs = {name: {"meaning": name} for name in SHAPES["outputs"]}
    signature = {"meaning": "", "view": "answers", "beginnings": None, "inputs": inputs, "outputs": outputs}
    return {
        "format": 1,
        "task": "Translator",
        "ask": "translate",
        "sample": None,
        "attention": None,
        "signatures": {"translate": signature},
        **changes,
    }


def test_the_page_is_told_what_a_model_takes_and_never_guesses_its_kind(tmp_path):
    version = export_translate(tmp_path / "model")
    neutral = {"length_penalty": 0.5, "stop_token_ids": [-1] * 8}
    request = {"length_penalty": np.array([0.5], "float32"), "stop_token_ids": np.full([1, 8], -1, "int32")}
    write_warmup_requests(version, "model", [("translate", {"inputs": np.array(["a"]), **request})])
    expected = {
        "name": "model",
        "version": 1,
        "task": None,
        "shows_attention": False,
        "signatures": {"translate": SHAPES},
        "neutral": neutral,
    }
    with running([tmp_path / "model"]) as (port, _):
        assert ask_page(port) == [expected]
    write_task_declaration(version, declared())
    with running([tmp_path / "model"]) as (port, _):
        assert ask_page(port) == [{**expected, "task": declared()}]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"signatures": {}}, "does not declare `translate`, its signature for 'ask'"),
        ({"sample": "sample"}, "does not declare `sample`, its signature for 'sample'"),
        (
            {"signatures": {"translate": {"inputs": {}, "outputs": {}}}},
            "declares a signature `translate` that the graph does not have",
        ),
        ({"signatures": {"translate": []}}, "does not declare a task"),
        ({"format": 2}, "task.json"),
    ],
)
def test_a_declaration_that_does_not_fit_the_graph_is_refused(tmp_path, changes, message):
    version = export_translate(tmp_path / "model")
    write_task_declaration(version, declared(**changes))
    with pytest.raises(ValueError, match=message):
        ServedModel(find_version(tmp_path / "model"))


def ask_page(port):
    with contextlib.closing(Client(port)) as client:
        return json.loads(client.ask("GET", "/page/models")[1])


def test_a_port_that_is_taken_is_told_before_anything_is_loaded(capsys):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert keras_attn_cli.main(["serve", str(DATES), "--port", str(port)]) == 2
    [line] = capsys.readouterr().err.splitlines()
    expected = f"keras-attn: error: Cannot listen on 127.0.0.1, port {port}: Address already in use. Choose another with --port or --host."
    assert line == expected


@pytest.mark.parametrize("port", ["-1", "65536", "x"])
def test_a_wrong_port_is_one_line(capsys, port):
    with pytest.raises(SystemExit) as stopped:
        keras_attn_cli.main(["serve", str(DATES), "--port", port])
    assert stopped.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_lines_to_copy_take_any_name():
    exported = types.SimpleNamespace(
        name="m ä' 1", number=3, folder=pathlib.Path("served", "m ä' 1", "3"), task=None
    )
    plain = types.SimpleNamespace(name="plain", number=1, folder=pathlib.Path("plain"), task=None)
    run = types.SimpleNamespace(
        name="a run",
        number=1,
        folder=pathlib.Path("cache", "1"),
        task=pathlib.Path("runs", "a run", "translator"),
    )
    server = types.SimpleNamespace(url="http://127.0.0.1:8501", host="127.0.0.1")
    lines = _greeting(server, [exported, plain, run]).splitlines()
    [ask, *_] = [line for line in lines if "curl" in line]
    url = "http://127.0.0.1:8501/v1/models/m%20%C3%A4%27%201:predict"
    assert shlex.split(ask)[2:] == ["curl", "-d", '{"instances": ["..."]}', url]
    assert shlex.split(lines[-2]) == ["keras-attn", "export", "runs/a run/translator", "saved_models/a run"]
    assert shlex.split(lines[-1]) == ["keras-attn", "deploy", "served/m ä' 1", "plain", "saved_models/a run"]


def test_a_folder_with_nothing_to_serve_is_told(tmp_path, capsys):
    assert keras_attn_cli.main(["serve", str(tmp_path), "--port", "0"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"keras-attn: error: There is nothing to serve in {tmp_path}: ")


def test_what_is_loaded_is_told_before_and_after(tmp_path):
    lines = []
    export_translate(tmp_path / "model")
    with loaded_models(find_versions([tmp_path / "model"]), tell=lines.append):
        pass
    assert lines[0] == "Loading model, version 1, and running its warm-up requests ..."
    assert re.fullmatch(r"  ready after \d+ s", lines[1])


def test_a_damaged_file_is_told_with_its_folder(tmp_path, capsys):
    shutil.copytree(DATES / "1", tmp_path / "m" / "3")
    (tmp_path / "m" / "3" / "batching_params.pbtxt").write_text("hello {")
    assert keras_attn_cli.main(["serve", str(tmp_path / "m"), "--port", "0"]) == 2
    assert f"error: {tmp_path / 'm' / '3'}: batching_params.pbtxt cannot be read" in capsys.readouterr().err


class Command:
    """`keras-attn serve` in a new process."""

    def __init__(self, *arguments):
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        environment.pop("TF_CPP_MIN_LOG_LEVEL", None)
        command = [sys.executable, "-m", "keras_attn_cli", "serve", *map(str, arguments), "--port", "0"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        # A job in the background of a script ignores SIGINT, and so do its children.
        heeds_sigint = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
        self.process = subprocess.Popen(command, env=environment, text=True, preexec_fn=heeds_sigint, **pipes)
        self.lines = []
        for line in iter(self.process.stdout.readline, ""):
            if not line.startswith(("Loading ", "  ready after ")):
                self.lines.append(line.rstrip())
            if "keras-attn deploy" in line:
                break

    @property
    def url(self):
        return re.match(r"Serving at (\S+)/ ", self.lines[0])[1]

    def children(self):
        """The ids of its processes."""
        path = pathlib.Path(f"/proc/{self.process.pid}/task")
        found = [task.joinpath("children").read_text().split() for task in path.iterdir()]
        return [int(number) for numbers in found for number in numbers]

    def end(self, number):
        """(exit code, what was written to stderr) after a signal."""
        self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=30)
        return self.process.returncode, errors


def wait_until_ended(process_ids):
    end = time.monotonic() + 20
    while any(
        pathlib.Path(f"/proc/{number}/fd").exists() and os.path.exists(f"/proc/{number}/exe")
        for number in process_ids
    ):
        assert time.monotonic() < end
        time.sleep(0.02)


def run_client(name, *arguments):
    environment = {**os.environ, "no_proxy": "127.0.0.1"}
    command = [sys.executable, str(SERVING / name), *arguments]
    return subprocess.run(command, capture_output=True, env=environment, text=True, timeout=60)


@pytest.mark.extended
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
def test_the_command_serves_the_examples_clients_and_ends_quietly():
    command = Command(DATES)
    assert command.lines[1] == f"  dates, version 1: {DATES / '1'}"
    assert (
        command.lines[2]
        == f"""Ask it: curl -d '{{"instances": ["..."]}}' {command.url}/v1/models/dates:predict"""
    )
    assert "For production, run TF Serving" in command.lines[3]
    assert command.lines[4] == f"  keras-attn deploy {DATES}"
    client = run_client("rest_client.py", "--server", command.url, "4th of July 2016", "3. Oktober 1990")
    assert client.stdout.splitlines() == ["2016-07-04", "1990-10-03"], client.stderr
    client = run_client("rest_client.py", "--server", command.url, "--n-best", "4th of July 2016")
    assert re.fullmatch(r"4th of July 2016\n +-\d\.\d{3}  2016-07-04\n( +-\S+  .*\n)+", client.stdout)
    client = run_client("rest_client.py", "--server", command.url, "--model", "times", "x")
    assert client.stderr.endswith("answered 404: Servable not found for request: Latest(times)\n")
    client = run_client("load_test.py", "--server", command.url, "--clients", "5", "--requests", "37")
    assert re.fullmatch(r"5 clients: 37 answers, 0 errors, p50 .*\n", client.stdout), client.stderr
    [child] = command.children()
    assert command.end(signal.SIGTERM) == (143, "")
    wait_until_ended([child])


@pytest.mark.extended
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
@pytest.mark.parametrize(
    ("number", "code"), [pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow), (signal.SIGKILL, -9)]
)
def test_no_process_is_left(folders, number, code):
    command = Command(*folders)
    children = command.children()
    assert len(children) == 2
    assert urllib.request.urlopen(command.url).status == 200  # it is past its greeting
    assert command.end(number) == (code, "")
    wait_until_ended(children)


@pytest.mark.slow
def test_a_saved_translator_is_exported_to_the_cache_once(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_ATTN_CACHE", str(tmp_path / "cache"))
    byte_translator(max_length=3).save(tmp_path / "run" / "translator")
    for has_export in (False, True):
        command = Command(tmp_path / "run")
        assert command.lines.pop(0).startswith("Exporting ") is not has_export
        port = int(urllib.parse.urlsplit(command.url).port) if not has_export else None
        if port:
            client = Client(port)
            assert len(client.predict({"instances": ["a"]}, model="run")["predictions"]) == 1
            status, page = client.ask("GET", "/page/attention?model=run&text=4+July")
            assert status == 200
            assert b"data-explorer-data" in page
            assert [path.name for path in (tmp_path / "run").iterdir()] == ["translator"]
            client.close()
        command.end(signal.SIGTERM)
