"""A server that answers the page's routes with fixed answers, for what a real model does not do when asked to."""

import html
import http.server
import json
import threading
import time
import urllib.parse

from keras_attn.serve import attention_pages
from keras_attn.serve.page_files import HEADERS, page_files
from keras_attn.tasks import Translator

NUM_BEAMS, MAX_LENGTH, MAX_SOURCE = 4, 16, 63
MARKUP = "<img src=x onerror=document.title='hurt'>"
# What the texts of tests are answered with, and for each character of the answer the source character it came from.
KNOWN = {"4th of July 2016": ("2016-07-04", [12, 13, 14, 15, 15, 7, 7, 0, 0, 0])}


def _signature(names_of_inputs, outputs):
    inputs = {
        name: {
            "dtype": Translator.signature_inputs[name].dtype.name,
            "shape": [-1]
            + [Translator.signature_inputs[name].size] * bool(Translator.signature_inputs[name].size),
        }
        for name in names_of_inputs
    }
    strings = ("outputs", "status", "source_tokens", "target_tokens", "tokens")
    shapes = {"outputs": [-1, NUM_BEAMS], "scores": [-1, NUM_BEAMS]}
    return {
        "inputs": inputs,
        "outputs": {
            name: {"dtype": "string" if name in strings else "float32", "shape": shapes.get(name, [-1, -1])}
            for name in outputs
        },
    }


def _model(name, kind, signatures):
    neutral = {
        name: given.neutral
        for name, given in Translator.signature_inputs.items()
        if given.neutral is not None
    }
    return {
        "name": name,
        "version": 1,
        "kind": kind,
        "shows_attention": kind == "translator",
        "signatures": signatures,
        "neutral": {**neutral, "length_penalty": 1.0}
        if signatures.keys() & {"translate", "generate"}
        else {},
        "meanings": {name: given.meaning for name, given in Translator.signature_inputs.items()},
    }


_TRANSLATOR = {
    name: _signature(each.inputs, each.outputs)
    for name, each in Translator.signatures.items()
    if name != "encode"
}
_GENERATOR = {
    "serving_default": _signature(["inputs"], ["outputs"]),
    "generate": _signature(
        [name for name in Translator.signatures["translate"].inputs if name != "target_prefix"],
        ["outputs", "scores", "status"],
    ),
    "sample": _signature(
        [name for name in Translator.signatures["sample"].inputs if name != "target_prefix"],
        ["outputs", "scores", "status"],
    ),
}
_IMAGES = {
    "serving_default": {
        "inputs": {"pixels": {"dtype": "float32", "shape": [-1, 2, 3]}},
        "outputs": {"probabilities": {"dtype": "float32", "shape": [-1, 7]}},
    }
}
MODELS = [
    _model("dates", "translator", _TRANSLATOR),
    _model("stories", "text_generator", _GENERATOR),
    _model("pixels", "other", _IMAGES),
]


def predict(model, signature, instance):
    """The prediction for an instance. A text with "fail" in it is an error."""
    if model == "pixels":
        return [0.25, 0.75]
    text = instance["inputs"]
    if "fail" in text:
        raise ValueError('The text holds "fail".\nA second line, which nobody needs to read.')
    expected = _GENERATOR if model == "stories" else _TRANSLATOR
    if set(instance) != set(expected[signature]["inputs"]):
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
                        (200, "text/html", f"<p>{html.escape(text)}</p>".encode()), attention_pages.HEADERS
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
                headers = {**headers, "Content-Type": content_type, "Content-Length": str(len(body))}
                for name, value in headers.items():
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
