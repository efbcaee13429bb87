"""The WSGI application: TF Serving's REST routes, and the page with what it asks.

References: tensorflow_serving/model_servers/http_rest_api_util.cc (routes), http_rest_api_handler.cc (what they answer),
http_server.cc (statuses).
"""

import http
import ipaddress
import re
import time
import urllib.parse
import zlib

from keras_attn.serve import metrics, pages, rest
from keras_attn.serve.errors import INTERNAL, INVALID_ARGUMENT, OK, RequestError
from keras_attn.serve.json_text import TOO_DEEP, encode
from keras_attn.terminal import say_fault

# TF Serving takes any size. This server is for one machine, and says what it does not take.
MOST_BODY_BYTES = 64 * 1024 * 1024

_ROUTES = {
    "POST": re.compile(
        r"/v1/models/([^/:]+)(?:(?:/versions/(\d+))|(?:/labels/([^/:]+)))?:(classify|regress|predict)",
        re.I | re.A,
    ),
    "GET": re.compile(
        r"/v1/models(?:/([^/:]+))?(?:(?:/versions/(\d+))|(?:/labels/([^/:]+)))?(?:/(metadata))?", re.I | re.A
    ),
}
_MOST_DIGITS = 100  # of a number in a path or a header; Python reads no more than 4,300
_JSON = [("Content-Type", "application/json")]
# libevent's page for a path that no handler takes.
_NOT_FOUND = b"""<HTML><HEAD>
<TITLE>404 Not Found</TITLE>
</HEAD><BODY>
<H1>Not Found</H1>
</BODY></HTML>
"""


class App:
    """Answers requests to a server.

    Args:
        models: `ServedModels`.
        host: String, the address that the server listens on. On a loopback address, only requests to a name of this
            machine's own are answered, so that no page of another site can reach it by a name that it makes point here.
    """

    def __init__(self, models, host):
        self._models = models
        self._host = host
        self._only_local_names = is_loopback(host)
        self._images = pages.SentImages()

    def __call__(self, environ, start_response):
        try:
            status, headers, body = self._answer(environ)
        except Exception:  # a fault of this server's own, which must not end the connection without an answer
            say_fault()
            status = 500
            headers = _JSON
            body = _error("An internal error; the server's terminal shows it.")
        phrase = "Client Closed Request" if status == 499 else http.HTTPStatus(status).phrase
        start_response(f"{status} {phrase}", [*headers, ("Content-Length", str(len(body)))])
        if environ["REQUEST_METHOD"] == "HEAD":
            return [b""]
        return [body]

    def _answer(self, environ):
        """(status, headers, body)."""
        method = environ["REQUEST_METHOD"]
        path = environ["REQUEST_URI"]
        try:
            body = _body(environ)
        except _BodyError as error:
            return error.status, [*_JSON, ("Connection", "close")], _error(error.message)
        if self._only_local_names and not self._is_own_name(environ.get("HTTP_HOST", "")):
            message = f"This server answers requests to this machine only. Received: Host: {environ.get('HTTP_HOST')}"
            return 403, _JSON, _error(message)
        is_read = method in ("GET", "HEAD")
        file = pages.page_files().get(path.partition("?")[0])
        if is_read and file:  # also for a page of another site, which may link here
            content_type, content = file
            return 200, [("Content-Type", content_type), *pages.HEADERS], content
        if foreign := _foreign_header(environ):
            message = "This server computes for its own page and for programs, not for pages of other sites."
            return 403, _JSON, _error(f"{message} Received: {foreign}")
        if re.match("/v1/", path, re.I):
            return self._rest_answer(method, path, body)
        if path.partition("?")[0] == metrics.PATH:
            return 200, [("Content-Type", "text/plain")], self._models.metrics.text().encode()
        if method == "POST" and path == "/page/images":
            return _page_json({"image": self._images.keep(body)})
        if method == "GET" and path.startswith("/page/attention?"):
            return self._attention_answer(path, environ.get("HTTP_SEC_FETCH_DEST"))
        if is_read and path.partition("?")[0] == "/page/models":
            return _page_json([model.description for model in self._models])
        return 404, [("Content-Type", "text/html")], _NOT_FOUND

    def _rest_answer(self, method, path, body):
        start = time.perf_counter()
        match = method in _ROUTES and _ROUTES[method].fullmatch(path)
        code = INTERNAL
        try:
            content = self._rest_body(match, method, path, body)
            code = OK
            return 200, _JSON, content
        except RecursionError:
            code = INVALID_ARGUMENT
            return 400, _JSON, _error(TOO_DEEP)
        except RequestError as error:
            code = error.code
            return error.http_status, _JSON, _error(error.message)
        finally:
            name = _unquoted(match[1] or "") if match else ""
            api = match[4].lower() if match and method == "POST" else ""
            self._models.metrics.record_request(name, api, code, time.perf_counter() - start)

    def _rest_body(self, match, method, path, body):
        if not match:
            raise RequestError(f"Malformed request: {method} {path}")
        name, number, label, action = match.groups()
        name = _unquoted(name)
        label = _unquoted(label)
        if number is not None:
            if len(number) > _MOST_DIGITS or int(number) >= 2**63:
                raise RequestError(f"Failed to convert version: {number} to numeric.")
            number = int(number)
        if method == "POST":
            return self._prediction(lambda: self._models.find(name, number, label), action.lower(), body)
        if name is None:
            raise RequestError("Missing model name in request.")
        if action is not None:
            return encode(self._models.find(name, number, label).metadata(), indent=1)
        return encode(self._models.status(name, number), indent=1)

    def _prediction(self, find_model, action, body):
        # TF Serving reads the body before it looks for the model, which tells what it says of a request with two faults.
        def signature(name):
            return find_model().signature(name)

        if action != "predict":
            rest.refuse_examples(body, signature, action)
        call = rest.read_predict(body, signature)
        model = find_model()
        return encode(rest.answer(call, model.ask(call), model.signature(call.signature_name).outputs))

    def _attention_answer(self, path, destination):
        query = urllib.parse.parse_qs(path.partition("?")[2], keep_blank_values=True)
        given = {name: values[0] for name, values in query.items()}
        status = 200
        try:
            page = self._attention_page(given)
        except RequestError as error:
            status = error.http_status
            if destination not in ("document", "iframe"):
                return status, _JSON + pages.ATTENTION_HEADERS, _error(error.message)
            page = pages.refusal(error.message)
        headers = [("Content-Type", "text/html; charset=utf-8"), *pages.ATTENTION_HEADERS]
        return status, headers, page.encode("utf-8", "replace")

    def _attention_page(self, given):
        has_one = ("text" in given) != ("image" in given)
        if "model" not in given or not has_one:
            raise RequestError("The address must name a `model`, and a `text` or an `image`.")
        content = given["text"] if "text" in given else self._images.find(given["image"])
        return self._models.find(given["model"]).attention.page(content, given.get("pair"))

    def _is_own_name(self, host):
        if not _is_plain_host(host):
            return False
        name = urllib.parse.urlsplit(f"//{host}").hostname
        return name in ("localhost", self._host) or (name is not None and is_loopback(name))


def is_loopback(host):
    """Whether an address or name is this machine's own."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _is_plain_host(host):
    return re.fullmatch(r"[\w.-]+(:\d+)?|\[[0-9a-fA-F:.]+\](:\d+)?", host, re.A)


def _unquoted(part):
    return part and urllib.parse.unquote(part, errors="surrogateescape")


def _foreign_header(environ):
    """The header by which a browser says that a page of another origin asks, or None.

    Every browser sends `Origin` with a POST, and `Sec-Fetch-Site` with all requests to this machine. Programs send neither.
    """
    site = environ.get("HTTP_SEC_FETCH_SITE")
    if site not in (None, "none", "same-origin"):
        return f"Sec-Fetch-Site: {site}"
    origin = environ.get("HTTP_ORIGIN")
    host = environ.get("HTTP_HOST", "").lower()
    if origin is None or origin.lower() in (f"http://{host}", f"https://{host}"):
        return None
    return f"Origin: {origin}"


class _BodyError(Exception):
    def __init__(self, status, message):
        super().__init__(message)
        self.status = status
        self.message = message


def _too_large():
    return _BodyError(413, f"A request may have at most {MOST_BODY_BYTES} bytes.")


def _body(environ):
    """The bytes of a request's body, read to their end so that the next request on the connection begins there."""
    try:
        body = _sent_body(environ["wsgi.input"], environ)
    except OSError as error:  # wrong chunks, or a client that has gone
        raise _BodyError(400, f"The body cannot be read: {error}.") from None
    if "gzip" in environ.get("HTTP_CONTENT_ENCODING", ""):
        return _unpacked(body)
    return body


def _sent_body(stream, environ):
    length = environ.get("CONTENT_LENGTH") or "0"
    coding = environ.get("HTTP_TRANSFER_ENCODING")
    if coding is not None:
        # What is read otherwise than a proxy has read it could hide a second request.
        is_in_chunks = coding.lower() == "chunked" and environ.get("wsgi.input_terminated")
        if not is_in_chunks or "CONTENT_LENGTH" in environ:
            raise _BodyError(
                400,
                f"A body is sent in chunks or with one Content-Length. Received: Transfer-Encoding: {coding}",
            )
        return _read_all(stream)
    if not length.isdecimal():
        raise _BodyError(400, f"Content-Length must be a number. Received: {length}")
    if len(length) > _MOST_DIGITS or int(length) > MOST_BODY_BYTES:
        raise _too_large()
    if int(length) == 0:
        return b""
    body = stream.read(int(length))
    if len(body) < int(length):
        raise _BodyError(400, f"The body ended after {len(body)} of {length} bytes.")
    return body


def _unpacked(body):
    unpacker = zlib.decompressobj(wbits=31)
    try:
        body = unpacker.decompress(body, MOST_BODY_BYTES)
    except zlib.error:
        return b""  # evhttp_request.cc takes what cannot be unpacked for no body
    if unpacker.unconsumed_tail:
        raise _too_large()
    return body if unpacker.eof else b""


def _read_all(stream):
    parts = []
    size = 0
    while part := stream.read(65536):
        parts.append(part)
        size += len(part)
        if size > MOST_BODY_BYTES:
            raise _too_large()
    return b"".join(parts)


def _page_json(value):
    return 200, _JSON + pages.HEADERS, encode(value)


def _error(message):
    return encode({"error": message}, indent=4)
