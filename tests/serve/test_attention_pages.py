"""Pages of attention that the server makes of tasks, and what it refuses."""

import contextlib
import io
import json
import types
import urllib.parse

import pytest
from helpers_encoder_tasks import answerer, classifier
from helpers_serving import Client

from keras_attn.serve import attention_pages
from keras_attn.serve.app import App
from keras_attn.serve.attention_pages import AttentionPages
from keras_attn.serve.errors import NOT_FOUND, RequestError


class Models(dict):
    """Models by name, as the application asks for them."""

    def find(self, name, number=None, label=None):
        if name not in self:
            raise RequestError(f"Servable not found for request: Latest({name})", NOT_FOUND)
        return self[name]


@pytest.fixture
def ask(monkeypatch):
    """Asks an application whose models are two tasks and an export for a page."""
    tasks = {"mood": classifier(), "questions": answerer()}
    loaded = []

    def load(folder):
        loaded.append(folder)
        return tasks[folder]

    monkeypatch.setattr(attention_pages, "load_task", load)
    models = Models({name: types.SimpleNamespace(attention=AttentionPages(name)) for name in tasks})
    models["export"] = types.SimpleNamespace(attention=None)
    app = App(models, "127.0.0.1")

    def ask(site="same-origin", method="GET", **given):
        answer = {}

        def start_response(status, headers):
            answer.update(status=int(status.split()[0]), headers=dict(headers))

        environ = {
            "REQUEST_METHOD": method,
            "REQUEST_URI": f"/page/attention?{urllib.parse.urlencode(given)}",
            "HTTP_HOST": "127.0.0.1:8501",
            "HTTP_SEC_FETCH_SITE": site,
            "CONTENT_LENGTH": "0",
            "wsgi.input": io.BytesIO(),
        }
        [body] = app(environ, start_response)
        return answer["status"], answer["headers"], body.decode("utf-8")

    ask.tasks, ask.loaded = tasks, loaded
    return ask


def test_the_page_is_that_of_the_task_which_is_loaded_once(ask):
    for text in ("the dog", "<script>alert(1)</script>"):
        status, headers, body = ask(model="mood", text=text)
        assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
        assert body == ask.tasks["mood"].show(text).html
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Content-Security-Policy"] == "frame-ancestors 'none'"
    assert ask.loaded == ["mood"]
    _, _, body = ask(model="questions", text="the dog", pair="the cat")
    assert body == ask.tasks["questions"].show("the dog", "the cat").html


@pytest.mark.parametrize(
    ("given", "status", "message"),
    [
        ({"model": "mood"}, 400, "The address must name a `model` and a `text`."),
        ({"model": "nothing", "text": "a"}, 404, "Servable not found for request: Latest(nothing)"),
        (
            {"model": "export", "text": "a"},
            400,
            "export is an export alone. Attention is shown of runs and saved tasks.",
        ),
        ({"model": "questions", "text": "a"}, 400, "A question answerer reads a question and its context"),
        (
            {"model": "mood", "text": "a", "site": "cross-site"},
            403,
            "asked for by the server's own page only",
        ),
    ],
)
def test_what_cannot_be_shown_is_answered_with_the_reason(ask, given, status, message):
    found, headers, body = ask(**given)
    assert found == status
    assert headers["Content-Type"] == "application/json"
    assert message in json.loads(body)["error"]


def test_an_export_has_no_such_page(client):
    with contextlib.closing(client):
        assert isinstance(client, Client)
        status, _ = client.ask("GET", "/page/attention?model=plain&text=a")
        assert status == 400
        described = json.loads(client.ask("GET", "/page/models")[1])
        assert not any(model["shows_attention"] for model in described)
