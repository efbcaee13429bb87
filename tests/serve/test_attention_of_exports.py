"""An export of a translator with the signature `attention`: a real model, a real server, a real browser."""

import contextlib
import json
import urllib.parse

import numpy as np
import pytest
from helpers_explorer import EXPLORER
from helpers_serving import Client, running
from helpers_translators import byte_translator

from keras_attn.inspection import capture_attention

pytestmark = pytest.mark.extended  # the graphs of a search, and a browser, take seconds

TEXT = "4 </script>"


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    translator = byte_translator(max_length=5)
    folder = tmp_path_factory.mktemp("served") / "seen"
    translator.export(folder, ["a"], signatures=["translate"], attention=True)
    with running([folder]) as (port, models):
        yield translator, f"http://127.0.0.1:{port}", models


def expected_maps(translator):
    """By kind, the scores (N, T, S) of the one layer, for the text and its best translation."""
    _, attention_map = translator(TEXT, return_attention_scores=True)
    tokenizer = translator.target_tokenizer
    names = tokenizer.token_strings(range(tokenizer.vocabulary_size))
    written = [names.index(token) for token in attention_map.target_tokens]
    inputs = {
        "encoder_token_ids": np.array([[*tokenizer.encode([TEXT])[0], tokenizer.end_token_id]]),
        "decoder_token_ids": np.array([[translator.start_token_id, *written[:-1]]]),
    }
    with capture_attention(translator.model, dtype="float32") as maps:
        translator.model(inputs)
    return {path.split("_block")[0] + path.split("/")[1][:4]: scores[0] for path, scores in maps.items()}


def test_the_tab_shows_the_heads_of_the_export(served, browser):
    translator, url, models = served
    [model] = models
    assert model.description["shows_attention"]
    assert model.description["task"]["kind"] == "translator"
    expected = expected_maps(translator)
    asked = urllib.parse.urlencode({"text": TEXT, "view": "attention"})
    page = browser.page(f"{url}/#{asked}")
    frame = page.frame(f"{url}/page/attention?")
    frame.wait_for(f"Boolean({EXPLORER})")
    frame.evaluate(f"{EXPLORER}.ready")
    assert frame.text("h1") == TEXT
    for group, kind in enumerate(("encoderself", "decoderself", "decodercros")):
        for head in range(2):
            place = json.dumps({"model": 0, "group": group, "layer": 0, "head": head})
            shown = np.array(frame.evaluate(f"{EXPLORER}.maps.scores({place}).then(scores => [...scores])"))
            scores = expected[kind][head].ravel()
            assert np.all(np.abs(shown - scores) <= np.sqrt(scores) / 255 + 1e-4)
    page.wait_for("!document.querySelector('#attention-note').textContent")
    # A person chooses a view inside the frame: its scripts run.
    frame.evaluate("document.querySelector('[data-view=matrix]').click()")
    frame.wait_for(f"{EXPLORER}.state.view === 'matrix'")
    assert page.errors() == frame.errors() == []
    page.close()


def test_rest_answers_with_the_maps_of_a_request(served):
    translator, url, _ = served
    body = {"signature_name": "attention", "instances": [{"inputs": TEXT, "given_targets": ""}]}
    with contextlib.closing(Client(urllib.parse.urlsplit(url).port)) as client:
        [answer] = client.predict(body, model="seen")["predictions"]
    expected = expected_maps(translator)
    for kind, name in (("encoder", "encoderself"), ("decoder", "decoderself"), ("cross", "decodercros")):
        np.testing.assert_allclose(answer[f"{kind}_attention"], [expected[name]], atol=2e-5)


def test_the_neutral_values_of_an_export_change_nothing(served):
    translator, url, [model] = served
    inputs = model.description["task"]["signatures"]["translate"]["inputs"]
    row = {name: declared["neutral"] for name, declared in inputs.items() if name != "inputs"}
    body = {"signature_name": "translate", "instances": [{"inputs": "ab", **row}]}
    with contextlib.closing(Client(urllib.parse.urlsplit(url).port)) as client:
        [answer] = client.predict(body, model="seen")["predictions"]
    assert answer["outputs"][0] == translator(["ab"])[0]
