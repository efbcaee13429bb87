"""The local server: it loads models, listens, says what it serves, and stops quietly."""

import contextlib
import os
import pathlib
import shlex
import signal
import socket
import socketserver
import threading
import urllib.parse

from werkzeug.serving import ThreadedWSGIServer, WSGIRequestHandler

from keras_attn.serve.app import App, is_loopback
from keras_attn.serve.folders import find_versions
from keras_attn.serve.models import loaded_models
from keras_attn.terminal import say

DEFAULT_PORT = 8501  # TF Serving's REST port


class Handler(WSGIRequestHandler):
    """Answers the requests of one connection, which stays open between them.

    Werkzeug closes every connection, because an application may leave a part of a body unread; `App` reads it all.
    """

    protocol_version = "HTTP/1.1"
    wbufsize = -1  # status, headers and body leave in one packet
    disable_nagle_algorithm = True
    timeout = 600  # seconds that an idle connection is kept

    def run_wsgi(self):
        """Answers one request."""
        (body,) = self.server.app(self.make_environ(), self._send_head)
        self.wfile.write(body)
        self.wfile.flush()

    def make_environ(self):
        """As werkzeug's, but with all values of `Content-Length` if several differ: werkzeug takes the last."""
        environ = super().make_environ()
        lengths = dict.fromkeys(self.headers.get_all("Content-Length", []))
        if lengths:
            environ["CONTENT_LENGTH"] = ", ".join(lengths)
        if self.headers.defects:  # a line that is not a header hides all headers after it
            environ["CONTENT_LENGTH"] = "unknown: the headers cannot be read"
        return environ

    def handle_expect_100(self):
        """Answers "Expect: 100-continue": the client sends its body when it reads this."""
        is_wanted = super().handle_expect_100()
        self.wfile.flush()
        return is_wanted

    def _send_head(self, status, headers):
        code, phrase = status.split(" ", 1)
        self.send_response_only(int(code), phrase)
        for name, value in headers:
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()

    def log(self, type, message, *arguments):
        """Nothing is written for a request, as TF Serving writes nothing."""


class Server(ThreadedWSGIServer):
    """Listens on an address, with a thread for each connection.

    Args:
        app: WSGI application.
        host: String.
        port: Integer; 0 for any that is free.

    Raises:
        OSError: if the address is taken or not this machine's.
    """

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, app, host, port):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as listener:
            try:
                if os.name == "posix":
                    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind((host, port))
                listener.listen(self.request_queue_size)
            except OSError as error:
                raise OSError(
                    f"Cannot listen on {host}, port {port}: {error.strerror or error}. Choose another with --port or --host."
                ) from None
            super().__init__(host, port, app, handler=Handler, fd=listener.fileno())

    def serve_forever(self, poll_interval=0.5):
        """Serves as the standard library does: werkzeug swallows Ctrl-C, and the command would end with code 0."""
        socketserver.BaseServer.serve_forever(self, poll_interval)

    @property
    def url(self):
        """The address for a browser or client on this machine."""
        if self.host in ("0.0.0.0", "::"):
            host = "localhost"
        elif ":" in self.host:
            host = f"[{self.host}]"
        else:
            host = self.host
        return f"http://{host}:{self.port}"


def serve(folders, host="127.0.0.1", port=DEFAULT_PORT, xla=False, ignored_fields=()):
    """Serves models over TF Serving's REST API, with a page to try them, until Ctrl-C or SIGTERM.

    It binds the address first, so that a bad one fails before models are loaded.

    Args:
        folders: List of paths: folders of exported models (the newest version is served), version folders, run folders,
            folders of saved tasks or of checkpoints, which are exported to the user's cache. A SavedModel is a program: give only
            those that you trust. In the other folders none is run.
        host: String, the address to listen on; the default answers this machine alone.
        port: Integer; 0 for any that is free.
        xla: Boolean, whether graphs may be compiled with XLA, as by a server with `--xla_cpu_compilation_enabled`. A
            version that was exported for XLA is always run with it.
        ignored_fields: Of checkpoints, as in `keras_attn.huggingface.load_model`.

    Raises:
        OSError: if the address is taken, a folder holds nothing to serve, or a model does not load.
        ValueError: if two models have the same name, or a file of a version is damaged.

    Example:

    ```
    keras_attn.serve.serve(["saved_models/dates"], port=8501)
    ```
    """
    server = Server(None, host, port)
    try:
        with stopped_by_sigterm(), loaded_models(find_versions(folders, ignored_fields), xla, say) as models:
            server.app = App(models, host)
            say(_greeting(server, models))
            server.serve_forever()
    finally:
        server.server_close()


@contextlib.contextmanager
def stopped_by_sigterm():
    """Raises `SystemExit` on SIGTERM in the block, as Ctrl-C raises `KeyboardInterrupt`, so that processes are ended."""

    def stop(number, frame):
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    older = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, older)


def _greeting(server, models):
    lines = [f"Serving at {server.url}/ (stop with Ctrl-C)"]
    for model in models:
        lines.append(f"  {model.name}, version {model.number}: {model.folder}")
    if not is_loopback(server.host):
        lines.append(f"Everybody who reaches {server.host} can ask: there is no password and no encryption.")
    body = shlex.quote('{"instances": ["..."]}')
    for model in models:
        url = f"{server.url}/v1/models/{urllib.parse.quote(model.name)}:predict"
        lines.append(f"Ask it: curl -d {body} {url}")
    lines.append("This server is for trying models. For production, run TF Serving:")
    lines += [f"  {shlex.join(command)}" for command in _commands_for_production(models)]
    return "\n".join(lines)


def _commands_for_production(models):
    """The commands that export what is not exported yet, and the one that writes what runs TF Serving."""
    commands = []
    folders = []
    for model in models:
        folder = model.folder
        if model.task is not None:
            folder = pathlib.Path("saved_models", model.name)
            commands.append(["keras-attn", "export", str(model.task), str(folder)])
        elif folder.name.isdecimal():
            folder = folder.parent
        folders.append(str(folder))
    commands.append(["keras-attn", "deploy", *folders])
    return commands
