"""An exported text generator answers as the Python one does, through TensorFlow's C library with XLA off."""

import base64

import numpy as np
import pytest
from helpers_marks import CUTS_ARE_EXPECTED
from helpers_text_generators import PROMPTS, byte_generator, piece_generator
from helpers_translators import INVALID_UTF8, ODD_TEXTS, exported_once, request_of, serving

from keras_attn.export import read_batching_parameters, read_warmup_requests
from keras_attn.generation import DecodingOptions
from keras_attn.tasks import TextGenerator

# The graphs of every signature take half a minute to make.
pytestmark = [pytest.mark.extended, CUTS_ARE_EXPECTED]

PIECES = pytest.param(piece_generator, marks=pytest.mark.slow)


@pytest.fixture(scope="module", params=[byte_generator, PIECES])
def exported(request, tmp_path_factory):
    return exported_once(tmp_path_factory, request.param)


@pytest.fixture(scope="module")
def server(exported):
    with serving(exported[1]) as server:
        yield server


def asked(server, signature, texts, **options):
    return server(request_of(TextGenerator, signature, texts, **options))[0]


def test_the_default_continues_as_python_does(exported, server):
    generator, _ = exported
    assert asked(server, "serving_default", PROMPTS) == {"outputs": generator(PROMPTS)}


def test_odd_prompts_are_answered_and_neighbours_unchanged(exported, server):
    generator, _ = exported
    as_json = [*ODD_TEXTS, {"b64": base64.b64encode(INVALID_UTF8).decode()}]
    answers = asked(server, "serving_default", [PROMPTS[1], *as_json])["outputs"]
    assert answers == generator([PROMPTS[1], *ODD_TEXTS, INVALID_UTF8])
    assert answers[0] == generator(PROMPTS[1])


def test_empty_batches_and_single_prompts(server):
    for signature in TextGenerator.signatures:
        assert not any(asked(server, signature, []).values())
        together, alone = (asked(server, signature, texts) for texts in (PROMPTS, PROMPTS[3:4]))
        for name in ("outputs", "scores"):
            if name in together:
                assert (
                    np.ravel(together[name][3]).tolist() == pytest.approx(np.ravel(alone[name]).tolist())
                    if (name == "scores")
                    else together[name][3] == alone[name][0]
                )


def test_beam_search_with_options_for_each_prompt(exported, server):
    generator, _ = exported
    given = {
        "num_beams": [0, 1, 2, 3, 0, 0][: len(PROMPTS)],
        "length_penalty": [1.0, 0.5, 0.0, 1.0, 2.0, 1.0],
        "max_length": [0, 3, 5, 0, 2, 7],
        "no_repeat_ngram_size": [0, 0, 2, 1, 0, 0],
        "repetition_penalty": [1.0, 1.2, 1.0, 1.0, 1.0, 1.5],
        "min_length": [0, 3, 0, 0, 1, 2],
    }
    outputs = asked(server, "generate", PROMPTS, **given)
    for row, text in enumerate(PROMPTS):
        of_row = {name: values[row] for name, values in given.items()}
        most = of_row.pop("num_beams") or generator.num_beams
        of_row["max_length"] = of_row["max_length"] or generator.max_length
        penalty = of_row.pop("length_penalty")
        texts, scores = generator(
            text,
            num_return_sequences=generator.num_beams,
            return_scores=True,
            length_penalty=penalty,
            options=DecodingOptions(num_beams=min(most, generator.num_beams), **of_row),
        )
        assert outputs["outputs"][row][: len(texts)] == texts
        np.testing.assert_allclose(outputs["scores"][row][: len(scores)], scores, rtol=1e-3)


def test_samples_are_pythons_whatever_the_batch(exported, server):
    generator, _ = exported
    given = {
        "temperature": [0.8] * len(PROMPTS),
        "top_k": [40] * len(PROMPTS),
        "seed": [*range(len(PROMPTS))],
    }
    outputs = asked(server, "sample", PROMPTS, **given)["outputs"]
    options = DecodingOptions(temperature=0.8, top_k=40, seed=np.arange(len(PROMPTS)))
    assert outputs == generator(PROMPTS, options=options)
    alone = asked(server, "sample", PROMPTS[2:3], temperature=[0.8], top_k=[40], seed=[2])["outputs"]
    assert alone == outputs[2:3]


def test_scores_are_pythons(exported, server):
    generator, _ = exported
    texts = ["To be", "", "é?"]
    outputs = asked(server, "score", [*texts, "z" * 99])
    scores, of_tokens = generator.score(texts, return_token_scores=True)
    np.testing.assert_allclose(outputs["scores"][:3], scores, rtol=1e-4, atol=1e-5)
    assert [name for name in outputs["tokens"][0] if name] == [name for name, _ in of_tokens[0]]
    np.testing.assert_allclose(
        outputs["token_scores"][2][: len(of_tokens[2])], [value for _, value in of_tokens[2]], rtol=1e-4
    )
    assert outputs["status"] == ["ok", "ok", "ok", "text_truncated"]


def test_the_status_says_what_was_changed(exported, server):
    texts = ["To be", "w" * 99, {"b64": base64.b64encode(INVALID_UTF8).decode()}]
    status = asked(server, "sample", texts, top_p=[1.0, 1.0, 7.0], max_length=[2, 2, 2])["status"]
    assert [set(one.split(",")) - {"unfinished", "ok"} for one in status] == [
        set(),
        {"prompt_truncated"},
        {"prompt_repaired", "top_p_clamped"},
    ]
    generator, _ = exported
    no_end = [[generator.tokenizer.end_token_id, *[-1] * 7]]
    given = {"num_beams": [1000], "max_length": [-1], "suppressed_token_ids": no_end}
    status = asked(server, "generate", ["To be"], **given)["status"]
    assert set(status[0].split(",")) == {"num_beams_clamped", "max_length_clamped", "unfinished"}


def test_fuzzed_prompts_change_no_neighbour(exported, server):
    generator, _ = exported
    rng = np.random.default_rng(7)
    expected = generator("To be")
    for _ in range(5):
        odd = [rng.integers(0, 256, rng.integers(0, 60)).astype("uint8").tobytes() for _ in range(7)]
        as_json = [{"b64": base64.b64encode(text).decode()} for text in odd]
        answers = asked(server, "serving_default", [*as_json, "To be"])["outputs"]
        assert answers == [*generator(odd), expected]


def test_the_files_beside_the_graph(exported):
    _, folder = exported
    assert {name for name, _ in read_warmup_requests(folder)} == set(TextGenerator.signatures)
    readme = (folder / "README.md").read_text(encoding="utf-8")
    assert f"a request has at most {read_batching_parameters(folder)['max_batch_size']} texts" in readme
    assert "A language model that takes prompts" in readme
    assert "`TextGenerator.export` of keras_attn" in readme
    assert all(f"### `{name}`" in readme for name in TextGenerator.signatures)
