"""Exported tasks of encoders answer as the Python ones do, through TensorFlow's C library with XLA off."""

import base64

import numpy as np
import pytest
from helpers_encoder_tasks import CONTEXT, MAKERS, TEXTS, answerer, classifier, embedder, fill_mask, tagger
from helpers_marks import CUTS_ARE_EXPECTED, slow_but
from helpers_models import assert_close
from helpers_translators import ODD_TEXTS, serving

from keras_attn.export import read_warmup_requests, verify_saved_model

# Each export is verified in processes of its own.
pytestmark = [pytest.mark.extended, CUTS_ARE_EXPECTED]

MASKED = ["the [MASK] runs [MASK].", "", "[MASK]", "no mask"]
INVALID = {"b64": base64.b64encode(TEXTS[4]).decode()}
AS_JSON = [*TEXTS[:4], INVALID, *TEXTS[5:]]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A function of a maker to the task and a function that asks its export: each is exported when it is first asked."""
    open_ones, made = [], {}

    def of(make):
        if make not in made:
            task = make()
            folder = task.export(tmp_path_factory.mktemp(make.__name__) / "model")
            context = serving(folder)
            open_ones.append(context)
            ask = context.__enter__()
            made[make] = (
                task,
                lambda signature, **inputs: ask({"signature": signature, "inputs": inputs})[0],
                folder,
            )
        return made[make]

    yield of
    for context in open_ones:
        context.__exit__(None, None, None)


def test_vectors(served):
    task, ask, _ = served(embedder)
    assert_close(ask("serving_default", inputs=AS_JSON)["outputs"], task(TEXTS), 1e-6)
    answers = ask("embed", inputs=AS_JSON)
    assert answers["status"] == ["ok", "ok", "ok", "text_truncated", "text_repaired", "ok"]
    alone = ask("embed", inputs=AS_JSON[2:3])
    assert_close(alone["outputs"][0], answers["outputs"][2], 1e-6)
    alike = ask("similarity", inputs=AS_JSON, pairs=AS_JSON[::-1])
    assert_close(alike["scores"], task.similarity(TEXTS, TEXTS[::-1], pairwise=True), 1e-6)
    assert alike["status"][2:4] == ["text_truncated"] * 2
    assert alike["status"][1] == "text_repaired"


def test_labels(served):
    task, ask, _ = served(classifier)
    assert ask("serving_default", inputs=AS_JSON) == {"outputs": task(TEXTS)}
    for pairs, signature in ((None, "classify"), (TEXTS[::-1], "classify_pairs")):
        second = {} if pairs is None else {"pairs": AS_JSON[::-1]}
        answers = ask(signature, inputs=AS_JSON, **second)
        labels, scores = task(TEXTS, pairs, top_k=3, return_scores=True)
        assert answers["labels"] == labels
        assert_close(answers["scores"], scores, 1e-6)


def test_spans(served):
    task, ask, _ = served(tagger)
    assert ask("serving_default", inputs=AS_JSON) == {"outputs": task.default_answers(TEXTS)}
    answers = ask("spans", inputs=AS_JSON)
    for row, spans in enumerate(task(TEXTS)):
        for name, values in (("labels", "label"), ("starts", "start"), ("ends", "end"), ("texts", "text")):
            assert answers[name][row][: len(spans)] == [getattr(span, values) for span in spans]
            assert not set(answers[name][row][len(spans) :]) - {"", -1}
        assert_close(answers["scores"][row][: len(spans)], [span.score for span in spans], 1e-6)


def test_fills(served):
    task, ask, _ = served(fill_mask)
    assert ask("serving_default", inputs=MASKED) == {"outputs": task.filled(MASKED)}
    answers = ask("fill", inputs=MASKED)
    assert answers["outputs"] == task.filled(MASKED)
    for row, masks in enumerate(task(MASKED)):
        for number, fills in enumerate(masks):
            assert answers["tokens"][row][number] == [fill.token for fill in fills]
            assert answers["texts"][row][number] == [fill.text for fill in fills]
            assert_close(answers["scores"][row][number], [fill.score for fill in fills], 1e-6)
        assert not np.any(answers["scores"][row][len(masks) :])


def test_answers(served):
    task, ask, _ = served(answerer)
    questions = ["Where lives Ada?", "", "b?"]
    contexts = [CONTEXT, CONTEXT, "é 😀 in London"]
    answers = ask("answer", inputs=questions, contexts=contexts)
    for row, answer in enumerate(task(questions, contexts)):
        found = [answers[name][row] for name in ("outputs", "starts", "ends")]
        assert found == [answer.text, answer.start, answer.end]
        assert answers["scores"][row] == pytest.approx(answer.score, rel=1e-5)
    assert ask("serving_default", inputs=questions, contexts=contexts) == {"outputs": answers["outputs"]}
    status = ask("answer", inputs=["b", "b"], contexts=["", CONTEXT * 2])
    assert status["status"] == ["ok", "text_truncated"]
    assert [status[name][0] for name in ("outputs", "scores", "starts", "ends")] == ["", 0, 0, 0]


@pytest.mark.parametrize("make", slow_but((embedder, answerer), MAKERS))
def test_exports_are_verified_with_their_warmup_and_their_readme(served, make):
    task, _, folder = served(make)
    checks = verify_saved_model(folder, [*ODD_TEXTS, "Ada [MASK]"], expected=task.default_answers)
    assert [(check.name, check.problems) for check in checks if check.problems] == []
    assert checks[-1].name == "answers"
    assert {name for name, _ in read_warmup_requests(folder)} == set(task.signatures)
    readme = (folder / "README.md").read_text(encoding="utf-8")
    assert all(f"### `{name}`" in readme for name in task.signatures)
    assert len(readme) < 20_000  # vectors are shortened
