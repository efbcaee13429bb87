"""The twin for XLA answers as Python does, over no other shapes than those it was exported for."""

import itertools
import pathlib
import re

import numpy as np
import pytest
import tensorflow as tf
from helpers_marks import CUTS_ARE_EXPECTED
from helpers_translators import ODD_TEXTS, SENTENCES, byte_translator, files_below, subword_translator

import keras_attn_cli
from keras_attn.export import read_warmup_requests, run_saved_model, verify_saved_model
from keras_attn.tasks.batches import bucket_of, in_buckets, powers_of_two

pytestmark = [pytest.mark.extended, CUTS_ARE_EXPECTED]

BATCH_SIZES, LENGTHS = (5,), (11, 37)


@pytest.fixture(scope="module")
def translator():
    return byte_translator(num_beams=2, max_length=7)


@pytest.fixture(scope="module")
def twin(translator, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "it_xla"
    return translator.export(folder, SENTENCES, xla=True, batch_sizes=BATCH_SIZES, lengths=LENGTHS)


def compiled_shapes(folder):
    """(rows, length) of the source ids of each module that XLA compiled, from what it wrote down of them."""
    shapes = []
    for path in pathlib.Path(folder).glob("*_best*.before_optimizations.txt"):
        entry = re.search(r"entry_computation_layout=\{\((.*?)\)->", path.read_text())
        shapes += re.findall(r"s32\[(\d+),(\d+)\]", entry[1])
    return sorted((int(rows), int(length)) for rows, length in shapes)


def test_it_answers_as_python_over_few_shapes(translator, twin, tmp_path, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", f"--xla_dump_to={tmp_path}")
    short = ["a dog", "the snow", "", "zwei"]
    texts = [*SENTENCES, *short, *ODD_TEXTS]
    batches = [[], short[:1], short[:2], short, short[:3] * 4, texts[:1], texts, texts[::-1] * 2]
    answers = run_saved_model(twin, [{"inputs": {"inputs": batch}} for batch in batches], 300, xla=True)
    expected = dict(zip(texts, translator(texts)))
    assert [answer["outputs"]["outputs"] for answer in answers] == [
        [expected[text] for text in batch] for batch in batches
    ]
    # Nothing for the batches of 0, 1, 2, 4, 12, 18 and 36 texts themselves, nor for lengths between.
    assert compiled_shapes(tmp_path) == sorted(itertools.product(BATCH_SIZES, LENGTHS))


def test_the_warmup_has_every_shape(translator, twin):
    requests = read_warmup_requests(twin)
    assert {name for name, _ in requests} == {"serving_default"}
    shapes = []
    for _, inputs in requests:
        (length,) = {len(ids) + 1 for ids in translator.source_tokenizer.encode(inputs["inputs"].tolist())}
        shapes.append((len(inputs["inputs"]), length))
    assert sorted(shapes) == sorted(itertools.product(BATCH_SIZES, LENGTHS))


def test_without_xla_it_says_what_to_do(twin):
    (answer,) = run_saved_model(twin, [{"inputs": {"inputs": SENTENCES}}])
    assert answer["error"].startswith("This model must be compiled with XLA")
    assert "--xla_cpu_compilation_enabled" in answer["error"]
    assert "XLA compilation disabled" in answer["error"]


@pytest.mark.slow
def test_verify_knows_a_twin_by_its_marker(translator, twin, tmp_path, capsys):
    translator.save(tmp_path / "translator")
    assert keras_attn_cli.main(["verify", str(twin), "--task", str(tmp_path / "translator")]) == 0
    printed = capsys.readouterr().out
    for name in ("run of serving_default", "run of the warm-up", "answers", "exported for XLA"):
        assert re.search(rf"^ok +{name}", printed, re.MULTILINE)
    (twin / "assets.extra/xla_buckets.json").rename(tmp_path / "marker")
    try:
        found = {check.name: check.problems for check in verify_saved_model(twin) if check.problems}
    finally:
        (tmp_path / "marker").rename(twin / "assets.extra/xla_buckets.json")
    assert any("is compiled with XLA" in problem for problem in found["ops"])
    assert "XLA, which is off here" in found["run of serving_default"][0]


def test_the_twin_has_the_files_of_a_version(twin):
    files = files_below(twin)
    assert {"README.md", "batching_params.pbtxt", "assets.extra/tf_serving_warmup_requests"} <= set(files)
    readme = (twin / "README.md").read_text(encoding="utf-8")
    assert "--xla_cpu_compilation_enabled" in readme
    assert "a request has at most 5 texts" in readme
    assert "`translate`" not in readme


@pytest.mark.slow
def test_a_twin_of_subwords(tmp_path):
    translator = subword_translator()
    folder = translator.export(tmp_path / "it", SENTENCES, xla=True, batch_sizes=[3], lengths=[5, 41])
    (answer,) = run_saved_model(folder, [{"inputs": {"inputs": SENTENCES}}], 300, xla=True)
    assert answer["outputs"]["outputs"] == translator(SENTENCES)
    sizes = [
        len(ids) + 1
        for _, inputs in read_warmup_requests(folder)
        for ids in translator.source_tokenizer.encode(inputs["inputs"].tolist()[:1])
    ]
    assert 0 < sizes[0] <= 5 < sizes[1] <= 41


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_sizes": []}, r"`batch_sizes` must be rising positive integers\. Received: batch_sizes=\[\]"),
        ({"batch_sizes": [3, 2]}, "`batch_sizes` must be rising"),
        ({"batch_sizes": 3}, r"`batch_sizes` must be rising positive integers\. Received: batch_sizes=3"),
        ({"batch_sizes": (2.5,)}, "`batch_sizes` must be rising"),
        ({"batch_sizes": (2,), "xla": False}, "are those of an export for XLA: give `xla=True`"),
        ({"lengths": [5, 37], "xla": False}, "are those of an export for XLA: give `xla=True`"),
        ({"examples": "abc"}, "`examples` must be a list of texts.*Received: examples='abc'"),
        ({"lengths": [0, 37]}, "`lengths` must be rising"),
        (
            {"lengths": [11, 36]},
            r"`lengths` must end with the model's max_sequence_length=37\. Received: \[11, 36\]",
        ),
    ],
)
def test_buckets_that_cannot_be(translator, tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        translator.export(tmp_path / "it", **{"xla": True, **options})
    assert list(tmp_path.iterdir()) == []


def test_powers_of_two_end_with_the_last():
    assert powers_of_two(16, 64) == [16, 32, 64]
    assert powers_of_two(16, 37) == [16, 32, 37]
    assert powers_of_two(16, 11) == [11]


def test_the_bucket_is_the_smallest_that_holds_the_size():
    sizes = [2, 5, 11]
    found = [int(bucket_of(size, sizes)) for size in range(14)]
    assert found == [next((s for s in sizes if s >= size), 11) for size in range(14)]


@tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32)], autograph=False)
def chunks_in_a_graph(token_ids):
    return in_buckets(token_ids, [2, 5], [7, 13], end_token_id=3)


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 5, 7, 11, 12])
@pytest.mark.parametrize("length", [1, 7, 8, 13])
def test_chunks_hold_every_row_once_and_then_the_last(rng, rows, length):
    token_ids = rng.integers(1, 99, (rows, length)).astype("int32")
    chunks = chunks_in_a_graph(token_ids).numpy()
    size, padded = (2 if rows <= 2 else 5), (7 if length <= 7 else 13)
    assert chunks.shape == (max(-(-rows // size), 1), size, padded)
    flat = chunks.reshape(-1, padded)
    np.testing.assert_array_equal(flat[:rows, :length], token_ids)
    assert (flat[:rows, length:] == -1).all()
    last = flat[rows - 1] if rows else [3] + [-1] * (padded - 1)
    np.testing.assert_array_equal(flat[rows:], np.broadcast_to(last, (len(flat) - rows, padded)))
