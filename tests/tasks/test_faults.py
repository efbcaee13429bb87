"""What goes wrong in translating and serving, and what must then happen: what no test of a single part shows."""

import base64
import contextlib
import json
import pathlib
import pickle
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
from helpers_marks import CUTS_ARE_EXPECTED
from helpers_translators import SENTENCES, byte_translator, request_of, serving

import keras_attn
from keras_attn.export import export_saved_model, saved_model_runner
from keras_attn.generation import DecodingOptions
from keras_attn.tasks.search_functions import TranslatorFunctions

pytestmark = [pytest.mark.extended, CUTS_ARE_EXPECTED]

END = 2


def translator_that(likes_end):
    """Whatever the text, END is by far the likeliest token, or the least likely."""
    translator = byte_translator()
    model = translator.model
    norm, embedding = model.decoder_norm, model.target_embedding.token
    ends = np.asarray(embedding.embeddings)[END]
    norm.gamma.assign(np.zeros_like(norm.gamma))
    norm.beta.assign(ends / (ends @ ends) * (30.0 if likes_end else -30.0))
    return translator


@pytest.fixture(
    scope="module",
    params=[True, pytest.param(False, marks=pytest.mark.slow)],
    ids=["ends_at_once", "never_ends"],
)
def exported(request, tmp_path_factory):
    """A translator, a process that answers for its `translate` signature, and whether it likes END."""
    translator = translator_that(request.param)
    with serving(export_translate(translator, tmp_path_factory.mktemp("models"))) as server:
        yield translator, server, request.param


def export_translate(translator, folder):
    signatures = {"translate": TranslatorFunctions(translator).all()["translate"]}
    resources = [translator.source_tokenizer, translator.target_tokenizer]
    return export_saved_model(folder / "it", signatures, [translator.model], resources)


def served(server, texts, **options):
    [answer] = server(request_of(keras_attn.Translator, "translate", texts, **options))
    return answer


# --- options at odds with each other, with the vocabulary and with the model ---


def test_more_beams_than_the_vocabulary_has_tokens():
    translator = byte_translator(num_beams=300, max_length=3)
    texts, scores = translator(SENTENCES[:2], num_return_sequences=300, return_scores=True)
    assert [text[0] for text in texts] == translator(SENTENCES[:2], num_beams=300)
    for row_scores in scores:
        assert len(row_scores) == 300
        assert np.isfinite(row_scores).all()
        assert (np.diff(row_scores) <= 0).all()


def test_more_answers_than_the_beams_of_a_row_are_as_many_as_there_are():
    options = DecodingOptions(num_beams=[1, 2])
    texts = byte_translator()(SENTENCES[:2], num_return_sequences=3, options=options)
    assert [len(row) for row in texts] == [1, 2]


def test_a_least_length_beyond_the_greatest_fills_the_greatest(exported):
    translator, server, likes_end = exported
    options = DecodingOptions(min_length=20)
    _, scores, maps = translator(
        SENTENCES[:2], return_scores=True, return_attention_scores=True, options=options
    )
    assert np.isfinite(scores).all()
    assert [len(one.target_tokens) for one in maps] == [translator.max_length] * 2
    assert "</s>" not in maps[0].target_tokens
    # A server clamps it to the greatest, and END may be the last token.
    answer = served(server, SENTENCES[:2], min_length=20)
    clamped = translator(SENTENCES[:2], options=DecodingOptions(min_length=translator.max_length))
    assert [row[0] for row in answer["outputs"]] == clamped
    assert answer["status"] == ["min_length_clamped" + ("" if likes_end else ",unfinished")] * 2


def test_the_least_length_gives_way_to_the_greatest_and_nan_to_the_neutral_value(exported):
    _, server, likes_end = exported
    unfinished = [] if likes_end else ["unfinished"]
    answer = served(server, SENTENCES[:2], min_length=5, max_length=3)
    expected = served(server, SENTENCES[:2], min_length=3, max_length=3)
    assert answer["outputs"] == expected["outputs"]
    assert answer["status"] == [",".join(["min_length_clamped", *unfinished])] * 2
    nan = float("nan")
    answer = served(server, SENTENCES[:2], length_penalty=nan, repetition_penalty=nan)
    assert answer["outputs"] == served(server, SENTENCES[:2])["outputs"]
    assert {*answer["status"][0].split(",")} == {
        "length_penalty_is_nan",
        "repetition_penalty_is_nan",
        *unfinished,
    }


def test_a_prefix_that_is_no_utf8_is_repaired_and_named(exported):
    _, server, _ = exported
    answer = served(server, SENTENCES[:2], target_prefix={"b64": "Y2Fm6SA="})
    assert all("prefix_repaired" in status.split(",") for status in answer["status"])


def test_end_at_the_first_step_and_no_end_at_all(exported):
    translator, server, likes_end = exported
    texts, scores = translator(SENTENCES, return_scores=True)
    answer = served(server, SENTENCES)
    assert [row[0] for row in answer["outputs"]] == texts
    assert [row[0] for row in answer["scores"]] == pytest.approx(scores, abs=1e-4)
    assert np.isfinite(scores).all()
    lengths = {len([token for token in row if token]) for row in answer["target_tokens"]}
    if likes_end:
        assert texts == [""] * 5
        assert scores == pytest.approx(translator.score(SENTENCES, [""] * 5), abs=1e-5)
        assert (answer["status"], lengths) == (["ok"] * 5, {1})
    else:
        assert (answer["status"], lengths) == (["unfinished"] * 5, {translator.max_length})


@pytest.mark.parametrize(
    "options",
    [
        DecodingOptions(suppressed_token_ids=range(259)),
        DecodingOptions(repetition_penalty=1e33, min_length=11),
    ],
    ids=["nothing_allowed", "nothing_likely"],
)
def test_where_no_answer_is_possible_there_is_none_and_the_next_call_works(options):
    translator = byte_translator(max_length=11)
    expected = translator(SENTENCES[0])
    if options.suppressed_token_ids is not None:
        assert translator("ab", return_scores=True, options=options) == ("", -np.inf)
        assert translator("ab", num_return_sequences=2, options=options) == [""]
    else:
        assert isinstance(translator("ab", options=options), str)
    assert translator(SENTENCES[0]) == expected


@pytest.mark.parametrize("length_penalty", [float("nan"), float("inf"), -float("inf")])
def test_a_length_penalty_that_is_no_number_is_refused_at_once(length_penalty):
    with pytest.raises(ValueError, match=r"`length_penalty` must be finite\. Received: length_penalty="):
        byte_translator()("a", length_penalty=length_penalty)


# --- texts ---


@pytest.mark.slow
def test_a_line_of_a_megabyte_and_broken_text_leave_their_neighbours_alone(tmp_path):
    translator = byte_translator()
    odd = ["long line " * 100_000, "a\0b\0", "lone \ud800 surrogate", "\u200fשלום עולם", "ab"]
    answers = translator([*odd, *SENTENCES])
    assert answers[len(odd) :] == translator(SENTENCES)
    assert answers[: len(odd)] == [translator(text) for text in odd]
    raw = [text.encode("utf-8", "surrogatepass") for text in odd]
    given = [{"b64": base64.b64encode(text).decode()} for text in raw]
    with serving(export_translate(translator, tmp_path)) as server:
        answer = served(server, [*given, *SENTENCES])
    assert [row[0] for row in answer["outputs"]][len(odd) :] == answers[len(odd) :]
    statuses = [set(status.split(",")) - {"unfinished", "ok"} for status in answer["status"]]
    assert statuses == [{"source_truncated"}, set(), {"source_repaired"}, set(), set(), *[set()] * 5]


# --- folders ---

SERVE = """
import contextlib, json, runpy, sys
runner = runpy.run_path(sys.argv[1])
api = runner["CApi"]()
request = json.loads(sys.argv[2])
with contextlib.closing(runner["SavedModel"](api, sys.argv[3])) as good:
    answers = [good.run("translate", request)["outputs"][0, 0].decode()]
    for folder in sys.argv[4:]:
        stage = "load"
        try:
            bad = runner["SavedModel"](api, folder)
            stage = "first request"
            bad.run("translate", request)
            stage = "nowhere"
        except runner["TensorFlowError"]:
            pass
        answers += [stage, good.run("translate", request)["outputs"][0, 0].decode()]
print(json.dumps(answers))
"""


def damage(version_folder, how):
    graph, variables = (version_folder / name for name in ("saved_model.pb", "variables"))
    data = variables / "variables.data-00000-of-00001"
    if how == "no graph":
        graph.unlink()
    elif how == "half a graph":
        graph.write_bytes(graph.read_bytes()[: graph.stat().st_size // 2])
    elif how == "half the variables":
        data.write_bytes(data.read_bytes()[: data.stat().st_size // 2])
    else:
        shutil.rmtree(variables)


@pytest.mark.slow
def test_a_half_written_or_corrupt_version_leaves_the_good_one_serving(tmp_path):
    translator = byte_translator(max_length=5)
    good = export_translate(translator, tmp_path)
    damages = ("no graph", "half a graph", "half the variables", "no variables")
    bad = [tmp_path / "it" / str(number) for number in range(2, 2 + len(damages))]
    for folder, how in zip(bad, damages):
        shutil.copytree(good, folder)
        damage(folder, how)
    request = json.dumps(request_of(keras_attn.Translator, "translate", ["ab"])["inputs"])
    command = [sys.executable, "-P", "-c", SERVE, saved_model_runner.__file__, request, good, *bad]
    child = subprocess.run(command, capture_output=True, text=True, check=True)
    answers = json.loads(child.stdout.splitlines()[-1])
    assert answers[::2] == [translator("ab")] * 5
    # TensorFlow takes a folder without variables for a model that has none; a server's warm-up is then what refuses it.
    assert dict(zip(damages, answers[1::2])) == {
        **dict.fromkeys(damages, "load"),
        "no variables": "first request",
    }
    assert export_translate(translator, tmp_path).name == "6"


EXPORT_SLOWLY = """
import sys, time
sys.path.insert(0, sys.argv[2])
import tensorflow as tf
from helpers_translators import byte_translator
save = tf.saved_model.save
def slow(module, folder, **options):
    save(module, folder, **options)
    print("written", flush=True)
    time.sleep(600)
tf.saved_model.save = slow
byte_translator(max_length=5).export(sys.argv[1])
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs POSIX signals")
def test_an_export_that_is_killed_leaves_no_version(tmp_path):
    helpers = str(pathlib.Path(__file__).parents[1])
    command = [sys.executable, "-c", EXPORT_SLOWLY, str(tmp_path / "it"), helpers]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    with contextlib.closing(child.stdout):
        assert child.stdout.readline() == "written\n"
        child.kill()
        child.wait()
    assert [path.name for path in (tmp_path / "it").iterdir() if not path.name.startswith(".")] == []
    assert byte_translator(max_length=5).export(tmp_path / "it").name == "1"


class Bomb:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return pathlib.Path.touch, (self.path,)


@pytest.mark.parametrize("name", ["model.safetensors", "source_tokenizer/tokenizer.json", "translator.json"])
def test_a_pickle_in_a_strangers_folder_is_refused_and_not_run(tmp_path, name):
    byte_translator().save(tmp_path / "translator")
    (tmp_path / "translator" / name).write_bytes(pickle.dumps(Bomb(tmp_path / "harm")))
    with pytest.raises(ValueError, match=r"damaged|cannot be read"):
        keras_attn.Translator.load(tmp_path / "translator")
    assert not (tmp_path / "harm").exists()
    pickle.loads(pickle.dumps(Bomb(tmp_path / "harm")))
    assert (tmp_path / "harm").exists()
