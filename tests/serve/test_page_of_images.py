"""The page of a served image classifier: a real model, a real server, a real browser, a file that a person chooses."""

import hashlib
import json
import subprocess

import numpy as np
import pytest
from helpers_explorer import EXPLORER
from helpers_images import encoded, patch_classifier, pixels
from helpers_page_server import IS_DONE
from helpers_serving import running

pytestmark = pytest.mark.extended  # a browser takes seconds to start


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    classifier = patch_classifier()
    folder = tmp_path_factory.mktemp("served") / "pets"
    classifier.export(folder, attention=True)
    with running([folder]) as (port, models):
        yield classifier, f"http://127.0.0.1:{port}", models


@pytest.fixture
def open_page(served, browser):
    page = browser.page(served[1])
    page.wait_for("document.querySelector('#model').options.length > 0")
    yield page
    assert not page.errors()
    page.close()


def test_a_file_that_is_chosen_gets_labels_and_a_command(served, open_page, tmp_path):
    classifier, _, [model] = served
    assert model.description["task"]["kind"] == "image_classifier"
    page = open_page
    assert not page.visible("#text, #options-card, #raw")
    assert page.visible("label[for=image]") == ["Image"]
    file = tmp_path / "Ada's é.png"
    file.write_bytes(encoded(pixels(31, 17, seed=5)))
    page.choose_file("#image", file)
    page.wait_for(IS_DONE)
    labels, scores = classifier(str(file), top_k=3, return_scores=True)
    assert page.text("#answer") == labels[0]
    assert page.visible("#best bdi") == labels
    shown = [float(text) for text in page.visible("#best .score")]
    assert shown == pytest.approx(scores, abs=6e-4)
    assert page.evaluate("document.querySelector('#image-shown img').naturalWidth") == 17
    command = page.text("#request")
    answer = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, check=True).stdout
    [prediction] = json.loads(answer)["predictions"]
    assert (prediction["labels"], prediction["status"]) == (labels, "ok")

    broken = tmp_path / "broken.png"
    broken.write_bytes(file.read_bytes()[:90])
    page.choose_file("#image", broken)
    page.wait_for("document.querySelector('#notes').textContent")
    assert page.visible("#notes li") == ["This is no JPEG or PNG file, or a damaged one."]
    assert not page.visible("#best bdi")


def test_the_tab_shows_where_the_heads_look_in_the_image(served, open_page, tmp_path):
    classifier, url, _ = served
    page = open_page
    page.click("#attention-tab")
    files = [tmp_path / f"{seed}.png" for seed in (1, 2)]
    for seed, file in enumerate(files):
        file.write_bytes(encoded(pixels(23, 29, seed=seed)))
        page.choose_file("#image", file)
        name = hashlib.sha256(file.read_bytes()).hexdigest()
        page.wait_for(
            f"document.querySelector('iframe')?.src.endsWith('{name}') && "
            "!document.querySelector('#attention-note').textContent"
        )
    frame = page.frame(f"{url}/page/attention?model=pets&image={name}")
    frame.wait_for(f"Boolean({EXPLORER})")
    frame.evaluate(f"{EXPLORER}.ready")
    place = json.dumps({"model": 0, "group": 0, "layer": 0, "head": 1})
    shown = np.array(frame.evaluate(f"{EXPLORER}.maps.scores({place}).then(scores => [...scores])"))
    _, [answer], _ = classifier.attention_answers([files[1].read_bytes()])
    expected = answer["encoder_attention"][0, 1].ravel()
    assert np.all(np.abs(shown - expected) <= np.sqrt(expected) / 255 + 1e-4)
    assert not frame.errors()
