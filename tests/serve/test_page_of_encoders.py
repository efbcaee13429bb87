"""What the page shows of the answers of encoders: a server that answers with what is written here, in a real browser."""

import urllib.parse

import pytest
from helpers_page_server import MARKUP, PageServer

pytestmark = pytest.mark.extended  # a browser takes seconds to start

TEXT = f"é😀 Ada {MARKUP}"
# For each kind: the signature, its answer, what the answer's box then holds, and the lines with bars.
KINDS = {
    "text_classifier": (
        "classify",
        {"labels": ["good", MARKUP], "scores": [0.75, 0.25], "status": "text_truncated"},
        "good",
        ["good", MARKUP],
    ),
    "token_classifier": (
        "spans",
        {"labels": ["PER", ""], "scores": [0.9, 0], "starts": [3, -1], "ends": [6, -1], "texts": ["Ada", ""]},
        f"é😀 Ada PER {MARKUP}",
        [],
    ),
    "mask_filler": (
        "fill",
        {
            "outputs": "a b",
            "tokens": [["a", "c"], ["b", "d"]],
            "scores": [[0.5, 0.2], [0.4, 0.1]],
            "texts": [],
        },
        "a b",
        ["1: a", "1: c", "2: b", "2: d"],
    ),
    "question_answerer": (
        "answer",
        {"outputs": "Ada", "scores": 0.5, "starts": 3, "ends": 6},
        "Adaé😀 Ada 50.0 % runs",
        [],
    ),
    "text_embedder": ("embed", {"outputs": [0.6, 0.8]}, "2 numbers, length 1.000: 0.6000, 0.8000", []),
}
IS_DONE = "document.querySelector('#time').textContent !== ''"


def model(kind):
    names = ["inputs", "contexts"] if kind == "question_answerer" else ["inputs"]
    signature, answer, *_ = KINDS[kind]
    return {
        "name": kind,
        "version": 1,
        "kind": kind,
        "signatures": {
            signature: {
                "inputs": {name: {"dtype": "string", "shape": [-1]} for name in names},
                "outputs": {name: {"dtype": "string", "shape": [-1]} for name in answer},
            }
        },
        "neutral": {"contexts": ""} if kind == "question_answerer" else {},
        "meanings": {},
    }


def predict(name, signature, instance):
    expected, answer, *_ = KINDS[name]
    assert (signature, instance["inputs"]) == (expected, TEXT)
    return answer if len(answer) > 1 else answer["outputs"]


@pytest.fixture(scope="module")
def url():
    server = PageServer([model(kind) for kind in KINDS], predict)
    yield server.url
    server.close()


@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_shown(kind, url, browser):
    state = {"model": kind, "text": TEXT, "contexts": "é😀 Ada runs"}
    page = browser.page(f"{url}/#{urllib.parse.urlencode(state)}")
    _, answer, shown, bars = KINDS[kind]
    page.wait_for(IS_DONE)
    assert page.evaluate("document.querySelector('#answer').textContent") == shown
    visible = (
        "[...document.querySelectorAll('#best bdi')].filter(e => e.checkVisibility()).map(e => e.textContent)"
    )
    assert page.evaluate(visible) == bars
    assert page.evaluate("[...document.querySelectorAll('mark bdi')].map(e => e.textContent)") == (
        ["Ada"] if "starts" in answer else []
    )
    assert bool(page.text("#notes")) == ("status" in answer)
    assert page.evaluate("document.title") != "hurt"
    assert not page.errors()
    page.close()
