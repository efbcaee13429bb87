"""A server that answers the page's routes with fixed answers, for what a real model does not do when asked to."""

import copy
import html
import http.server
import json
import pathlib
import threading
import time
import urllib.parse

from keras_attn.export import read_task_declaration
from keras_attn.serve.pages import ATTENTION_HEADERS, HEADERS, page_files

ROOT = pathlib.Path(__file__).resolve().parents[1]
NUM_BEAMS, MAX_LENGTH, MAX_SOURCE = 4, 16, 63
# True when the page shows the whole answer to what was asked last.
IS_DONE = (
    "document.querySelector('#answer').getAttribute('aria-busy') === 'false' && "
    "document.querySelector('#time').textContent !== ''"
)
MARKUP = "<img src=x onerror=document.title='hurt'>"
# What the texts of tests are answered with, and for each character of the answer the source character it came from.
KNOWN = {"4th of July 2016": ("2016-07-04", [12, 13, 14, 15, 15, 7, 7, 0, 0, 0])}
TRANSLATOR = read_task_declaration(ROOT / "saved_models" / "dates" / "1")


def described(name, declaration, shows_attention=False):
    """What `/page/models` says of a model with a declaration, whose graph has what it declares."""
    signatures = {}
    for signature_name, signature in declaration["signatures"].items():
        inputs = {name: _info(declared.get("neutral")) for name, declared in signature["inputs"].items()}
        outputs = {name: {"dtype": "string", "shape": [None]} for name in signature["outputs"]}
        signatures[signature_name] = {"inputs": inputs, "outputs": outputs}
    return {
        "name": name,
        "version": 1,
        "task": declaration,
        "shows_attention": shows_attention,
        "signatures": signatures,
        "neutral": {},
    }


def _info(neutral):
    dtype = {int: "int32", float: "float32", list: "int32"}.get(type(neutral), "string")
    return {"dtype": dtype, "shape": [None, len(neutral)] if isinstance(neutral, list) else [None]}


def _generator():
    """The declaration of a text generator with the options of the translator."""
    declaration = copy.deepcopy(TRANSLATOR)
    declaration |= {
        "kind": "text_generator",
        "ask": "generate",
        "attention": None,
        "labels": {"input": "Prompt", "placeholder": "Type how it begins", "output": "Continuation"},
    }
    translator = declaration["signatures"]
    signatures = {
        "serving_default": translator["serving_default"],
        "generate": translator["translate"],
        "sample": translator["sample"],
    }
    for signature in signatures.values():
        signature["view"] = "continuation"
        signature["inputs"].pop("target_prefix", None)
    signatures["generate"]["outputs"] = {name: {"meaning": ""} for name in ("outputs", "scores", "status")}
    return {**declaration, "signatures": signatures}


GENERATOR = _generator()
MODELS = [
    described("dates", TRANSLATOR, shows_attention=True),
    described("stories", GENERATOR),
    {
        "name": "pixels",
        "version": 1,
        "task": None,
        "shows_attention": False,
        "signatures": {
            "serving_default": {
                "inputs": {"pixels": {"dtype": "float32", "shape": [None, 2, 3]}},
                "outputs": {"probabilities": {"dtype": "float32", "shape": [None, 7]}},
            }
        },
        "neutral": {},
    },
]


def predict(model, signature, instance):
    """The prediction for an instance. A text with "fail" in it is an error."""
    if model == "pixels":
        return [0.25, 0.75]
    text = instance["inputs"]
    if "fail" in text:
        raise ValueError('The text holds "fail".\nA second line, which nobody needs to read.')
    declaration = GENERATOR if model == "stories" else TRANSLATOR
    if set(instance) != set(declaration["signatures"][signature]["inputs"]):
        raise ValueError(f"An instance of {signature} has other inputs. Received: {sorted(instance)}.")
    answer = " and so on" if model == "stories" else instance.get("target_prefix", "") + _translation(text)
    if signature == "sample":
        answer = f"{answer} {instance['seed']}"
    if "slow" in text:
        # As a model: a greedy answer is sooner than the best of several beams, and another one.
        num_beams = instance.get("num_beams") or NUM_BEAMS
        answer = answer if num_beams > 1 else answer.lower()
        time.sleep(0.02 * num_beams * min(len(answer) + 1, instance.get("max_length") or MAX_LENGTH))
    if "late" in text:  # beginnings come after the answer itself
        time.sleep(0.6 if instance.get("num_beams") == 1 else 0.25)
    return _answer(text, answer, signature, instance)


def _translation(text):
    return KNOWN[text][0] if text in KNOWN else text.upper()


def _answer(text, answer, signature, instance):
    longest = min(instance.get("max_length") or MAX_LENGTH, MAX_LENGTH)
    num_beams = instance.get("num_beams") or NUM_BEAMS
    target = [*answer.replace(" ", "▁"), "</s>"]
    statuses = ["source_truncated"] * (len(text) > MAX_SOURCE)
    statuses += [f"{name}_clamped" for name in ("max_length",) if instance.get(name, 0) > MAX_LENGTH]
    if len(target) > longest:
        statuses.append("unfinished")
        answer, target = answer[:longest], target[:longest]
    status = ",".join(statuses) or "ok"
    if signature == "sample":
        return {"outputs": answer, "scores": -0.5, "status": status}
    found = [answer + "?" * rank for rank in range(num_beams)]
    scores = [-0.1 - 0.25 * rank for rank in range(num_beams)]
    answers = {
        "outputs": found + [""] * (NUM_BEAMS - num_beams),
        "scores": scores + [-1e30] * (NUM_BEAMS - num_beams),
        "status": status,
    }
    if signature == "translate":
        source = [*text[:MAX_SOURCE].replace(" ", "▁"), "</s>"]
        aligned = KNOWN.get(text, (None, range(len(source))))[1]
        aligned = [*aligned, *[len(source) - 1] * len(target)][: len(target)]
        answers |= {"source_tokens": source, "target_tokens": target, "alignment": aligned}
    return answers


class PageServer:
    """Serves the page and `models`, whose requests `predict` answers, until it is closed.

    Attributes:
        url: String, "http://127.0.0.1:PORT".
    """

    def __init__(self, models=tuple(MODELS), predict=predict, port=0):
        list_of_models = _json(200, list(models))
        names = {f"/v1/models/{model['name']}:predict": model["name"] for model in models}

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                if self.path == "/page/models":
                    return self._send(list_of_models)
                if self.path.startswith("/page/attention?"):
                    text = urllib.parse.parse_qs(self.path.partition("?")[2])["text"][0]
                    return self._send(
                        (200, "text/html", f"<p>{html.escape(text)}</p>".encode()), ATTENTION_HEADERS
                    )
                file = page_files().get(self.path)
                self._send((200, *file) if file else _json(404, {"error": f"There is no {self.path}."}))

            def do_POST(self):
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                name = names.get(self.path)
                try:
                    signature = request.get("signature_name", "serving_default")
                    predictions = [predict(name, signature, instance) for instance in request["instances"]]
                    self._send(_json(200, {"predictions": predictions}))
                except ValueError as error:
                    self._send(_json(400, {"error": str(error)}))

            def _send(self, answer, headers=HEADERS):
                status, content_type, body = answer
                self.send_response(status)
                sizes = [("Content-Type", content_type), ("Content-Length", str(len(body)))]
                for name, value in headers + sizes:
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()


def _json(status, answer):
    return status, "application/json", json.dumps(answer).encode()
