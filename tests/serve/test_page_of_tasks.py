"""Every task's exports get the page of their task: real models, a real server, a real browser."""

import json
import shlex

import pytest
from helpers_encoder_tasks import answerer, classifier, embedder, fill_mask, tagger
from helpers_images import encoded, patch_classifier, pixels
from helpers_page_server import IS_DONE
from helpers_serving import running
from helpers_text_generators import byte_generator
from helpers_translators import byte_translator

pytestmark = pytest.mark.extended  # exports, and a browser, take seconds

TEXT = "ada [MASK]"
EXAMPLES = [
    "ada lives in london the dog runs in the b . " * 2
]  # words that every tokenizer of these tasks knows
# For each task: the labels of its page; what is asked of an export with all signatures; one of its signatures, and what is
# asked of an export with that one.
TASKS = {
    "translator": (byte_translator, ("Text", "Translation"), "translate", "score", "serving_default"),
    "text_generator": (byte_generator, ("Prompt", "Continuation"), "generate", "sample", "serving_default"),
    "text_embedder": (embedder, ("Text", "Vector"), "embed", "similarity", "serving_default"),
    "text_classifier": (classifier, ("Text", "Label"), "classify", "classify", "classify"),
    "token_classifier": (tagger, ("Text", "Spans"), "spans", "spans", "spans"),
    "mask_filler": (fill_mask, ("Text", "Filled"), "fill", "fill", "fill"),
    "question_answerer": (answerer, ("Question", "Answer"), "answer", "answer", "answer"),
    "image_classifier": (
        patch_classifier,
        ("Image", "Label"),
        "classify_images",
        "classify_images",
        "classify_images",
    ),
}


@pytest.mark.parametrize("kind", TASKS)
def test_every_export_gets_the_page_of_its_task(kind, browser, tmp_path):
    make, labels, rich, single, single_asked = TASKS[kind]
    task = make()
    exports = {"plain": ({}, rich), "single": ({"signatures": [single]}, single_asked)}
    if kind != "image_classifier":
        exports["compiled"] = ({"xla": True, "batch_sizes": [1]}, "serving_default")
    for name, (options, _) in exports.items():
        task.export(tmp_path / name, None if kind == "image_classifier" else EXAMPLES, **options)
    image = tmp_path / "image.png"
    image.write_bytes(encoded(pixels(8, 12)))
    with running([tmp_path / name for name in exports]) as (port, _):
        for name, (_, asked) in exports.items():
            page = browser.page(f"http://127.0.0.1:{port}/#model={name}")
            page.wait_for("document.querySelector('#model').options.length > 0")
            assert page.visible("#raw, #failure") == []
            assert (page.text("#text-label"), page.text("#answer-label")) == labels
            if kind == "image_classifier":
                page.choose_file("#image", image)
            else:
                page.focus("#text")
                page.insert(TEXT)
            page.wait_for(IS_DONE)
            assert page.visible("#failure") == []
            request = page.requests()[0]
            assert json.loads(request)["signature_name"] == asked
            if kind != "image_classifier":
                assert request == shlex.split(page.text("#request"))[-1]
            draws = kind in ("translator", "text_generator") and (name == "plain" or single == "sample")
            assert bool(page.visible("#modes")) == (draws and name != "compiled")
            assert page.errors() == []
            page.close()
