"""Tasks of encoders that XLA compiles answer as the others do, in Python and exported, over few shapes."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from helpers_encoder_tasks import (
    CONTEXT,
    MAX_LENGTH,
    TEXTS,
    D,
    answerer,
    classifier,
    embedder,
    fill_mask,
    tagger,
)
from helpers_marks import CUTS_ARE_EXPECTED
from helpers_models import assert_close
from helpers_translators import ODD_TEXTS, files_below

from keras_attn import TextEmbedder
from keras_attn.export import read_warmup_requests, run_saved_model, verify_saved_model
from keras_attn.tasks.batches import Buckets

pytestmark = CUTS_ARE_EXPECTED

BATCH_SIZES, LENGTHS = (2, 5), (11, MAX_LENGTH)
MASKED = ["the [MASK] runs [MASK].", "", "[MASK]"]


@pytest.mark.extended
def test_a_pooled_task_in_python(tmp_path):
    task = embedder(jit_compile=True)
    assert_close(task(TEXTS), embedder()(TEXTS), 1e-6)
    assert task([]).shape == (0, D)
    task.save(tmp_path / "embedder")
    assert TextEmbedder.load(tmp_path / "embedder").jit_compile


@pytest.mark.slow
def test_tasks_of_tokens_in_python():
    for ours, theirs in zip(tagger(jit_compile=True)(TEXTS), tagger()(TEXTS)):
        assert [span[::2] for span in ours] == [span[::2] for span in theirs]  # label, start, text
        assert_close([span.score for span in ours], [span.score for span in theirs], 1e-5)
    assert fill_mask(jit_compile=True).filled(MASKED) == fill_mask().filled(MASKED)
    assert classifier(jit_compile=True)(TEXTS, TEXTS[::-1]) == classifier()(TEXTS, TEXTS[::-1])
    ours, theirs = (answerer(**more)("Where lives Ada?", CONTEXT) for more in ({"jit_compile": True}, {}))
    assert (ours.text, ours.start, ours.end) == (theirs.text, theirs.start, theirs.end)


def in_known_shapes(inputs):
    """For each token its number in the row, and the shape that it was computed in."""
    ids = inputs["token_ids"]
    rows, length = tf.unstack(tf.shape(ids))
    return tf.cast(1000 * rows + 100 * length + 10 * tf.range(length) + ids, tf.float32)[:, :, tf.newaxis]


@tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32)], autograph=False)
def computed(token_ids):
    return Buckets((2, 5), (3, 7), 7, "")(in_known_shapes, {"token_ids": token_ids}, (None, 1))


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 5, 7, 11])
@pytest.mark.parametrize("length", [1, 3, 4, 7])
def test_every_row_is_answered_once(rng, rows, length):
    token_ids = rng.integers(0, 9, (rows, length)).astype("int32")
    shape = 1000 * (2 if rows <= 2 else 5) + 100 * (3 if length <= 3 else 7)
    np.testing.assert_array_equal(computed(token_ids)[..., 0], shape + 10 * np.arange(length) + token_ids)


@pytest.mark.extended
@pytest.mark.parametrize("make", [embedder, pytest.param(tagger, marks=pytest.mark.slow)])
def test_exported_it_answers_as_python(make, tmp_path):
    task = make()
    twin = task.export(tmp_path / "it_xla", [CONTEXT], xla=True, batch_sizes=BATCH_SIZES, lengths=LENGTHS)
    texts = [text for text in TEXTS if isinstance(text, str)] + ODD_TEXTS
    batches = [[], texts[:1], texts, texts * 2]
    answers = run_saved_model(twin, [{"inputs": {"inputs": batch}} for batch in batches], 300, xla=True)
    for batch, answer in zip(batches, answers):
        outputs, expected = answer["outputs"]["outputs"], task.default_answers(batch)
        if make is tagger:
            assert outputs == expected
        else:
            assert_close(np.reshape(outputs, expected.shape), expected, 1e-6)
    (answer,) = run_saved_model(twin, [{"inputs": {"inputs": texts}}])
    assert answer["error"].startswith("This model must be compiled with XLA")
    requests = read_warmup_requests(twin)
    assert {name for name, _ in requests} == {"serving_default"}
    shapes = [(len(inputs["inputs"]), *lengths_of(task, inputs)) for _, inputs in requests]
    assert [(rows, next(size for size in LENGTHS if size >= length)) for rows, length in shapes] == [
        (rows, length) for length, rows in itertools.product(LENGTHS, BATCH_SIZES)
    ]
    assert "--xla_cpu_compilation_enabled" in (twin / "README.md").read_text(encoding="utf-8")
    assert {"batching_params.pbtxt", "assets.extra/xla_buckets.json"} <= set(files_below(twin))


def lengths_of(task, inputs):
    return {int(length) for length in task.framed(tf.constant(inputs["inputs"])).token_ids.row_lengths()}


@pytest.mark.slow
@pytest.mark.parametrize("make", [classifier, fill_mask, answerer])
def test_every_kind_is_verified(make, tmp_path):
    task = make()
    twin = task.export(tmp_path / "it_xla", [CONTEXT], xla=True, batch_sizes=[3], lengths=LENGTHS)
    texts = [*ODD_TEXTS, "Ada [MASK]"]
    checks = verify_saved_model(twin, texts, expected=task.default_answers)
    assert [(check.name, check.problems) for check in checks if check.problems] == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"signatures": ["embed"]}, "An export for XLA has `serving_default` alone: give `xla` or `signat"),
        ({"batch_sizes": [3, 2]}, "`batch_sizes` must be rising"),
        (
            {"lengths": [11, 22]},
            r"`lengths` must end with the text embedder's max_length=23\. Received: \[11, 22\]",
        ),
    ],
)
def test_what_cannot_be_exported(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        embedder().export(tmp_path / "it", xla=True, **options)
