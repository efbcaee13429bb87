"""What the page shows of answers in each view: a server that answers with what is written here, in a real browser."""

import urllib.parse

import pytest
from helpers_page_server import IS_DONE, MARKUP, PageServer, described

pytestmark = pytest.mark.extended  # a browser takes seconds to start

TEXT = f"é😀 Ada {MARKUP}"
# For each view: an answer, what the answer's box then holds, and the lines with bars.
VIEWS = {
    "labels": (
        {"labels": ["good", MARKUP], "scores": [0.75, 0.25], "status": "text_truncated"},
        "good",
        ["good", MARKUP],
    ),
    "spans": (
        {"labels": ["PER", ""], "scores": [0.9, 0], "starts": [3, -1], "ends": [6, -1], "texts": ["Ada", ""]},
        f"é😀 Ada PER {MARKUP}",
        [],
    ),
    "fills": (
        {
            "outputs": "a b",
            "tokens": [["a", "c"], ["b", "d"]],
            "scores": [[0.5, 0.2], [0.4, 0.1]],
            "texts": [],
        },
        "a b",
        ["1: a", "1: c", "2: b", "2: d"],
    ),
    "span_of_second": ({"outputs": "Ada", "scores": 0.5, "starts": 3, "ends": 6}, "Adaé😀 Ada 50 % runs", []),
    "vector": ({"outputs": [0.6, 0.8]}, "2 numbers, length 1.000: 0.6000, 0.8000", []),
    "text": ({"outputs": MARKUP}, MARKUP, []),
}


def declaration(view):
    inputs = {"inputs": {"meaning": "", "widget": {"kind": "text"}}}
    if view == "span_of_second":
        inputs["contexts"] = {"meaning": "", "widget": {"kind": "second_text", "label": "Context"}}
    answer, *_ = VIEWS[view]
    signature = {
        "meaning": "",
        "view": view,
        "beginnings": None,
        "inputs": inputs,
        "outputs": {name: {"meaning": ""} for name in answer},
    }
    return {
        "format": 1,
        "task": view,
        "kind": view,
        "labels": {"input": "Text", "placeholder": "", "output": "Answer"},
        "ask": "look",
        "sample": None,
        "attention": None,
        "statuses": {},
        "signatures": {"look": signature},
    }


def predict(view, signature, instance):
    answer, *_ = VIEWS[view]
    assert (signature, instance["inputs"]) == ("look", TEXT)
    return answer if len(answer) > 1 else answer["outputs"]


@pytest.fixture(scope="module")
def url():
    server = PageServer([described(view, declaration(view)) for view in VIEWS], predict)
    yield server.url
    server.close()


@pytest.mark.parametrize("view", VIEWS)
def test_answers_are_shown(view, url, browser):
    state = {"model": view, "text": TEXT, "contexts": "é😀 Ada runs"}
    page = browser.page(f"{url}/#{urllib.parse.urlencode(state)}")
    answer, shown, bars = VIEWS[view]
    page.wait_for(IS_DONE)
    assert page.evaluate("document.querySelector('#answer').textContent") == shown
    assert page.visible("#best bdi") == bars
    assert page.evaluate("[...document.querySelectorAll('mark bdi')].map(e => e.textContent)") == (
        ["Ada"] if "starts" in answer else []
    )
    assert bool(page.text("#notes")) == ("status" in answer)
    assert page.evaluate("document.title") != "hurt"
    assert not page.errors()
    page.close()
