"""What the page shows of answers in each view: a server that answers with what is written here, in a real browser."""

import json
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


# Vectors of other texts, and the cosine with that of TEXT, which is (0.6, 0.8).
VECTORS = {"across": [-0.8, 0.6], "same way": [1.2, 1.6], "between": [2.0, 0.0], "opposite": [-0.6, -0.8]}
COSINES = {"same way": "1.000", "between": "0.600", "across": "0.000", "opposite": "−1.000"}


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
    if view == "vector" and instance["inputs"] in VECTORS:
        return VECTORS[instance["inputs"]]
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


def test_an_embedder_ranks_lines_and_compares_two_texts(url, browser):
    page = browser.page(f"{url}/#{urllib.parse.urlencode({'model': 'vector', 'text': TEXT})}")
    page.wait_for(IS_DONE)
    page.focus("#compared")
    page.insert("\n".join(["across", "", " same way ", "between", "opposite"]))
    page.wait_for("document.querySelectorAll('#best li').length === 4")
    ranked = dict(zip(page.visible("#best bdi"), page.visible("#best .score")))
    assert list(ranked.items()) == list(COSINES.items())
    assert page.text("#answer") == "same way"
    assert page.text("#answer-label") == "Closest"
    assert "cosine" in page.text("#best-label")
    body = json.loads(page.requests()[-1])
    assert [instance["inputs"] for instance in body["instances"]] == [TEXT, *VECTORS]
    # The address holds it; one line is a comparison of two texts; none is the vector as before.
    page.reload()
    page.wait_for("document.querySelectorAll('#best li').length === 4")
    for typed, shown in (("between", "Cosine 0.600"), ("", VIEWS["vector"][1])):
        page.evaluate("document.querySelector('#compared').select()")
        page.focus("#compared")
        page.insert(typed)
        page.wait_for(f"document.querySelector('#answer').textContent === {json.dumps(shown)}")
    assert page.text("#answer-label") == "Answer"
    assert not page.visible("#best-card")
    assert not page.errors()
    page.close()
    page = browser.page(f"{url}/#{urllib.parse.urlencode({'model': 'text', 'text': TEXT})}")
    page.wait_for(IS_DONE)
    assert not page.visible("#lines-box")
    page.close()


def test_unknown_characters_are_told_with_their_numbers(browser):
    declared = declaration("labels")
    declared["statuses"] = {
        "unknown_characters": "{} of {} characters are not in this model's training data."
    }

    def answer(*_):
        return {"labels": ["good"], "scores": [0.5], "status": "unknown_characters_9_of_12,text_truncated"}

    server = PageServer([described("labels", declared)], answer)
    page = browser.page(f"{server.url}/#{urllib.parse.urlencode({'text': 'a'})}")
    page.wait_for(IS_DONE)
    assert page.visible("#notes li") == [
        "9 of 12 characters are not in this model's training data.",
        "Text was too long and was cut.",
    ]
    page.close()
    server.close()
