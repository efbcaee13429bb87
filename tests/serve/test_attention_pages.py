"""Pages of attention that the server makes of tasks, and what it refuses."""

import base64
import contextlib
import io
import json
import types
import urllib.parse

import pytest
from helpers_encoder_tasks import answerer, classifier
from helpers_explorer import ExplorerParser
from helpers_images import encoded, patch_classifier, pixels
from helpers_serving import Client

from keras_attn.serve import pages
from keras_attn.serve.app import App
from keras_attn.serve.errors import NOT_FOUND, RequestError
from keras_attn.serve.pages import ExportPages, TaskPages
from keras_attn.tasks.export_cache import content_of


class Models(dict):
    """Models by name, as the application asks for them."""

    def find(self, name, number=None, label=None):
        if name not in self:
            raise RequestError(f"Servable not found for request: Latest({name})", NOT_FOUND)
        return self[name]


def declaration(**kinds):
    """The declaration of an export with a signature `attention`, whose inputs have widgets of these kinds."""
    inputs = {name: {"widget": kind and {"kind": kind}, "neutral": ""} for name, kind in kinds.items()}
    return {"attention": "attention", "signatures": {"attention": {"inputs": inputs}}}


def see(signature_name, inputs):
    """What an export of an image classifier answers: a patch that looks at itself alone, of the first byte's level."""
    [content] = inputs["inputs"]
    level = base64.b64decode(content["b64"])[0]
    return {
        "grid": [[1, 1]],
        "image": [[[[level]]]],
        "encoder_layers": [["only"]],
        "encoder_attention": [[[[[1.0]]]]],
        "status": ["ok"],
    }


def run(signature_name, inputs):
    """What an export answers: the characters of its texts, each of which looks at all as much."""
    assert signature_name == "attention"
    assert inputs.get("option", [""]) == [""]
    [text] = ["".join(texts) for texts in zip(*inputs.values())]
    width = len(text) + 2
    scores = [[1 / len(text)] * len(text) + [0.0] * 2 for _ in text] + [[0.0] * width] * 2
    return {
        "encoder_tokens": [[*text, "", ""]],
        "encoder_layers": [["only"]],
        "encoder_attention": [[[scores]]],
        "status": ["ok"],
    }


@pytest.fixture
def ask(monkeypatch):
    """Asks an application whose models are two tasks and an export for a page."""
    tasks = {"mood": classifier(), "questions": answerer()}
    loaded = []

    def load(folder):
        loaded.append(folder)
        return tasks[folder]

    monkeypatch.setattr(pages, "load_task", load)
    monkeypatch.setattr(pages, "content_of", lambda folder: f"of {folder}")
    models = Models({name: types.SimpleNamespace(attention=TaskPages(name, f"of {name}")) for name in tasks})
    models["export"] = types.SimpleNamespace(attention=ExportPages("export", None, None))
    models["export with it"] = types.SimpleNamespace(
        attention=ExportPages("export", declaration(inputs="text", option=None), run)
    )
    models["export of images"] = types.SimpleNamespace(
        attention=ExportPages("pictures", declaration(inputs="image"), see)
    )
    of_pairs = ExportPages("pairs", declaration(inputs="text", contexts="second_text"), run)
    models["export of pairs"] = types.SimpleNamespace(attention=of_pairs)
    app = App(models, "127.0.0.1")

    def ask(site="same-origin", method="GET", destination="empty", sent=None, **given):
        answer = {}

        def start_response(status, headers):
            answer.update(status=int(status.split()[0]), headers=dict(headers))

        environ = {
            "REQUEST_METHOD": method if sent is None else "POST",
            "REQUEST_URI": f"/page/attention?{urllib.parse.urlencode(given)}"
            if sent is None
            else "/page/images",
            "HTTP_HOST": "127.0.0.1:8501",
            "HTTP_SEC_FETCH_SITE": site,
            "HTTP_SEC_FETCH_DEST": destination,
            "CONTENT_LENGTH": str(len(sent or b"")),
            "wsgi.input": io.BytesIO(sent or b""),
        }
        [body] = app(environ, start_response)
        return answer["status"], answer["headers"], body.decode("utf-8")

    ask.tasks, ask.loaded, ask.models = tasks, loaded, models
    return ask


@pytest.mark.extended
def test_the_page_is_that_of_the_task_which_is_loaded_once(ask):
    for text in ("the dog", "<script>alert(1)</script>"):
        status, headers, body = ask(model="mood", text=text)
        assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
        assert body == ask.tasks["mood"].show(text).html
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Content-Security-Policy"] == "frame-ancestors 'self'"
    assert ask.loaded == ["mood"]
    _, _, body = ask(model="questions", text="the dog", pair="the cat")
    assert body == ask.tasks["questions"].show("the dog", pair="the cat").html


@pytest.mark.parametrize(
    ("given", "status", "message"),
    [
        ({"model": "mood"}, 400, "The address must name a `model`, and a `text` or an `image`."),
        ({"model": "mood", "text": "a", "image": "b"}, 400, "and a `text` or an `image`."),
        ({"model": "mood", "image": "b"}, 404, "The server does not have this image any more."),
        ({"model": "export of images", "text": "a"}, 400, "pictures reads images. Received: a text."),
        ({"model": "nothing", "text": "a"}, 404, "Servable not found for request: Latest(nothing)"),
        (
            {"model": "export", "text": "a"},
            400,
            "export is an export without a signature `attention`. Export it again with one, `keras-attn export TASK FOLDER "
            "--attention`, or serve the run or the saved task itself.",
        ),
        ({"model": "questions", "text": "a"}, 400, "A question answerer reads a question and its context"),
        (
            {"model": "export with it", "text": ""},
            400,
            "The answer has no token: it is that of an empty text.",
        ),
        (
            {"model": "export with it", "text": "a", "pair": "b"},
            400,
            "export reads one text. Received: a pair.",
        ),
        (
            {"model": "export of pairs", "text": "a"},
            400,
            "pairs reads two texts, `inputs` and `contexts`. Received: one text.",
        ),
        (
            {"model": "mood", "text": "a", "site": "cross-site"},
            403,
            "computes for its own page and for programs",
        ),
    ],
)
def test_what_cannot_be_shown_is_answered_with_the_reason(ask, given, status, message):
    found, headers, body = ask(**given)
    assert found == status
    assert headers["Content-Type"] == "application/json"
    assert message in json.loads(body)["error"]


@pytest.mark.parametrize(
    ("given", "tokens"),
    [
        ({"model": "export with it", "text": "<b>&"}, "<b>&"),
        ({"model": "export of pairs", "text": "ab", "pair": "c"}, "abc"),
    ],
)
def test_the_page_of_an_export_is_that_of_its_own_answer(ask, given, tokens):
    status, headers, body = ask(**given)
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    page = ExplorerParser(body)
    assert page.data["title"] == given["text"]
    [group] = page.data["groups"]
    assert (group["kind"], group["queries"], group["paths"]) == ("encoder", [*tokens], ["only"])
    assert page.codes("0.0.0", 0) / 255 == pytest.approx(
        [len(tokens) ** -0.5] * len(tokens) ** 2, abs=1 / 255
    )


@pytest.mark.extended
def test_a_text_is_no_path_of_an_image_of_the_server(ask, tmp_path, monkeypatch):
    secret = tmp_path / "secret.png"
    secret.write_bytes(encoded(pixels(8, 12)))
    monkeypatch.setattr(pages, "load_task", lambda folder: patch_classifier())
    ask.models["pets"] = types.SimpleNamespace(attention=TaskPages("pets", "of pets"))
    status, _, body = ask(model="pets", text=str(secret))
    assert status == 400
    assert json.loads(body)["error"] == "image classifier reads images. Received: a text."
    name = json.loads(ask(sent=secret.read_bytes())[2])["image"]
    assert ask(model="pets", image=name)[0] == 200


@pytest.mark.parametrize("destination", ["document", "iframe"])
def test_a_window_or_a_frame_is_told_in_html_why_there_is_no_page(ask, destination):
    status, headers, body = ask(model="<script>", text="a", destination=destination)
    assert (status, headers["Content-Type"]) == (404, "text/html; charset=utf-8")
    assert "Latest(&lt;script&gt;)" in body
    assert "<script>" not in body


def test_a_pair_for_a_task_of_one_text_is_refused(monkeypatch):
    generator = types.SimpleNamespace(name="text generator", takes="texts", show_options=())
    monkeypatch.setattr(pages, "load_task", lambda folder: generator)
    monkeypatch.setattr(pages, "content_of", lambda folder: "of folder")
    with pytest.raises(RequestError, match=r"A text generator reads one text\. Received: a pair too"):
        TaskPages("folder", "of folder").page("a", "b")


def test_a_folder_that_was_changed_since_the_start_gives_no_page_of_another_model(monkeypatch, tmp_path):
    mood = classifier()
    monkeypatch.setattr(pages, "load_task", lambda folder: mood)
    (tmp_path / "file").write_text("a")
    content = content_of(tmp_path)
    assert TaskPages(tmp_path, content).page("the dog") == mood.show("the dog").html
    (tmp_path / "file").write_text("b")
    with pytest.raises(RequestError, match="was changed since the server started"):
        TaskPages(tmp_path, content).page("the dog")


def test_an_image_that_was_sent_can_be_named_in_an_address(ask):
    status, headers, body = ask(sent=b"\x07 bytes")
    assert (status, headers["Content-Type"]) == (200, "application/json")
    name = json.loads(body)["image"]
    status, _, body = ask(model="export of images", image=name)
    page = ExplorerParser(body)
    assert (status, page.data["title"]) == (200, "pictures")
    assert (page.data["image"]["rows"], page.data["image"]["columns"]) == (1, 1)
    assert page.pixels().tolist() == [[[7, 7, 7]]]
    for model in ("mood", "export with it"):
        status, _, body = ask(model=model, image=name)
        assert status == 400
        assert "reads texts. Received: an image." in json.loads(body)["error"]


def test_the_newest_images_are_kept(ask):
    names = [json.loads(ask(sent=bytes([number]))[2])["image"] for number in range(9)]
    assert json.loads(ask(sent=bytes([1]))[2])["image"] == names[1]  # sent again, so it is the newest
    assert ask(model="export of images", image=names[0])[0] == 404
    assert json.loads(ask(sent=bytes([9]))[2])["image"] not in names
    assert [ask(model="export of images", image=name)[0] for name in names] == [404, 200, 404] + [200] * 6


def test_another_site_can_send_no_image(ask):
    status, _, body = ask(site="cross-site", sent=b"bytes")
    assert status == 403
    assert "computes for its own page and for programs" in json.loads(body)["error"]


@pytest.mark.extended
def test_an_export_has_no_such_page(client):
    with contextlib.closing(client):
        assert isinstance(client, Client)
        status, _ = client.ask("GET", "/page/attention?model=plain&text=a")
        assert status == 400
        described = json.loads(client.ask("GET", "/page/models")[1])
        assert not any(model["shows_attention"] for model in described)
