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
# Words that every tokenizer of these tasks knows.
EXAMPLES = ["ada lives in london the dog runs in the b . " * 2]
# For each task: the labels of its page; the one signature that is exported beside the default one; what the page asks.
TASKS = {
    "translator": (byte_translator, ("Text", "Translation"), "score", "serving_default"),
    "text_generator": (byte_generator, ("Prompt", "Continuation"), "sample", "serving_default"),
    "text_embedder": (embedder, ("Text", "Vector"), "similarity", "serving_default"),
    "text_classifier": (classifier, ("Text", "Label"), "classify", "classify"),
    "token_classifier": (tagger, ("Text", "Spans"), "spans", "spans"),
    "mask_filler": (fill_mask, ("Text", "Filled"), "fill", "fill"),
    "question_answerer": (answerer, ("Question", "Answer"), "answer", "answer"),
    "image_classifier": (patch_classifier, ("Image", "Label"), "classify_images", "classify_images"),
}
# Nothing of the page depends on whether an export is compiled: those of two tasks are opened.
COMPILED = ("translator", "text_classifier")


@pytest.mark.parametrize("kind", TASKS)
def test_every_export_gets_the_page_of_its_task(kind, browser, tmp_path):
    make, labels, signature, asked = TASKS[kind]
    examples = None if kind == "image_classifier" else EXAMPLES
    make().export(tmp_path / "single", examples, signatures=[signature])
    exports = {"single": asked}
    if kind in COMPILED:
        make().export(tmp_path / "compiled", examples, xla=True, batch_sizes=[1])
        exports["compiled"] = "serving_default"
    image = tmp_path / "image.png"
    image.write_bytes(encoded(pixels(8, 12)))
    with running([tmp_path / name for name in exports]) as (port, _):
        for name, asked in exports.items():
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
            assert bool(page.visible("#modes")) == (signature == "sample")
            assert page.errors() == []
            page.close()
