"""Random bytes and random options through every exported signature, in a process that has TensorFlow's C library alone."""

import json
import pathlib
import subprocess
import sys

import pytest
from helpers_marks import CUTS_ARE_EXPECTED
from helpers_translators import byte_translator, exported_once, subword_translator

from keras_attn.export import saved_model_runner

pytestmark = CUTS_ARE_EXPECTED

SCRIPT = pathlib.Path(__file__).with_name("ask_saved_model.py")
SIGNATURES = ["encode", "sample", "score", "serving_default", "translate", "translate_n_best"]


def ask(translator, folder, what, num_requests, seed, timeout):
    limits = {
        "num_beams": translator.num_beams,
        "max_length": translator.max_length,
        "max_sequence_length": translator.model.max_sequence_length,
        "vocabulary_size": translator.target_tokenizer.vocabulary_size,
        "bytes_are_tokens": translator.target_tokenizer.vocabulary_size == 259,
    }
    arguments = {
        "runner": saved_model_runner.__file__,
        "folder": str(folder),
        "what": what,
        "num_requests": num_requests,
        "seed": seed,
        "limits": limits,
    }
    command = [sys.executable, "-P", str(SCRIPT), json.dumps(arguments)]
    child = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    assert child.returncode == 0, child.stderr[-3000:]
    report = json.loads(child.stdout.splitlines()[-1])
    assert report["unwanted"] == []
    assert report["signatures"] == SIGNATURES
    assert report["num_wrong"] == 0, report["wrong"]
    return report


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    return exported_once(tmp_path_factory, byte_translator)


# What a row can be told, all of which the requests must bring about.
NOTES = {
    *("ok", "unfinished", "source_repaired", "source_truncated", "target_repaired", "target_truncated"),
    *("num_beams_clamped", "min_length_clamped", "max_length_clamped", "no_repeat_ngram_size_clamped"),
    *("repetition_penalty_clamped", "length_penalty_clamped", "stop_token_ids_clamped"),
    *(
        "suppressed_token_ids_clamped",
        "temperature_clamped",
        "top_k_clamped",
        "top_p_clamped",
        "min_p_clamped",
    ),
    *("prefix_repaired", "prefix_truncated"),
    *(f"{name}_is_nan" for name in ("repetition_penalty", "length_penalty", "temperature", "top_p", "min_p")),
}


@pytest.mark.slow
def test_random_bytes_and_options_are_answered_row_by_row(exported):
    report = ask(*exported, "fuzz", num_requests=240, seed=1, timeout=300)
    assert report["rows"] > 500
    assert report["alone"] > 12
    assert set(report["notes"]) - {""} >= NOTES


# oneDNN keeps the last thousand or so kernels that it made for a shape, and malloc an arena for each of some threads:
# both fill for some thousand requests. What grows without them would be ours.
BARE = {"TF_ENABLE_ONEDNN_OPTS": "0", "MALLOC_ARENA_MAX": "1"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "environment", "megabytes"),
    [(byte_translator, BARE, 8), (subword_translator, BARE, 8), (byte_translator, {}, 96)],
    ids=["bytes", "subwords", "as_served"],
)
def test_twenty_thousand_rows_are_answered_in_flat_memory(
    make, environment, megabytes, tmp_path, monkeypatch
):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    translator = make()
    folder = translator.export(tmp_path / "it")
    report = ask(translator, folder, "fuzz", num_requests=5500, seed=2, timeout=3000)
    print(json.dumps(report))
    assert report["rows"] >= 20_000
    assert set(report["notes"]) - {""} >= NOTES
    resident = report["resident"]
    assert resident["5000"] - resident["1000"] < megabytes * 2**20, resident


@pytest.mark.slow
@pytest.mark.parametrize("num_requests", [64, 640])
def test_64_threads_on_one_session_get_their_serial_answers(exported, num_requests):
    report = ask(*exported, "threads", num_requests=num_requests, seed=3, timeout=600)
    assert report["answers"] == num_requests
