"""Heads: logits of every kind of head are those of transformers, from checkpoints with random weights."""

import shutil

import keras
import numpy as np
import pytest
import torch
from helpers_checkpoints import END, PAD, change_config, checkpoint, make_twin, rows
from helpers_models import assert_close
from keras import ops

from keras_attn import huggingface
from keras_attn.huggingface.heads import labels
from keras_attn.huggingface.model_types import TASKS
from keras_attn.models import EncoderTransformer, EncoderWithHead, read_weights, write_weights

NAMES = {0: "good", 1: "bad", 2: "ugly"}


def saved(name, task, folder, **options):
    """transformers' model with a head, saved in `folder`."""
    if task in ("SequenceClassification", "TokenClassification"):
        options = {"id2label": NAMES, "label2id": {label: i for i, label in NAMES.items()}, **options}
    twin = make_twin(name, end=f"For{task}", **options)
    twin.save_pretrained(folder)
    return twin


def logits_of(twin, task, **inputs):
    with torch.no_grad():
        found = twin(
            **{name: torch.tensor(np.ascontiguousarray(array)).long() for name, array in inputs.items()}
        )
    if task == "QuestionAnswering":
        return torch.stack([found.start_logits, found.end_logits], dim=-1).numpy()
    return found.logits.numpy()


def assert_same_logits(model, twin, task):
    pad = twin.config.pad_token_id
    ids, mask = rows(5, 13, PAD if pad is None else pad)
    ours, theirs = {"token_ids": ids, "padding_mask": mask}, {"input_ids": ids, "attention_mask": mask}
    if getattr(twin.config, "type_vocab_size", 1) > 1 and model.encoder.embedding.token_type is not None:
        types = (np.arange(13) > 5).astype("int32") * np.ones_like(ids)
        ours["token_type_ids"] = theirs["token_type_ids"] = types
    expected, found = logits_of(twin, task, **theirs), ops.convert_to_numpy(model(ours))
    if task != "SequenceClassification":
        expected, found = expected[mask], found[mask]
    assert np.ptp(expected, axis=0).min() > 0.01  # rows differ
    assert_close(found, expected)


ENCODERS = "bert roberta electra distilbert albert mpnet modernbert".split()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("task", TASKS)
def test_logits_are_theirs(task, name, tmp_path):
    twin = saved(name, task, tmp_path)
    model = huggingface.load_model(tmp_path)
    assert isinstance(model, EncoderWithHead)
    assert_same_logits(model, twin, task)
    unused = {row.tensor for row in huggingface.read_report(tmp_path) if row.variable is None}
    assert not unused - {name for name in unused if name.endswith("position_ids")}


@pytest.mark.extended
@pytest.mark.parametrize(
    ("task", "options"),
    [
        ("SequenceClassification", {"classifier_pooling": "mean", "classifier_bias": True}),
        ("MaskedLM", {"decoder_bias": False, "classifier_activation": "relu"}),
    ],
)
def test_the_fields_of_modernberts_heads_are_heeded(task, options, tmp_path):
    twin = saved("modernbert", task, tmp_path, **options)
    assert_same_logits(huggingface.load_model(tmp_path), twin, task)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2", "qwen3"])
@pytest.mark.parametrize("side", ["right", "left"])
def test_decoders_classify_by_the_last_token(name, side, tmp_path):
    twin = saved(name, "SequenceClassification", tmp_path)
    model = huggingface.load_model(tmp_path)
    ids, mask = rows(5, 13, twin.config.pad_token_id, side)
    positions = np.maximum(np.cumsum(mask, axis=1) - 1, 0)
    theirs = {"input_ids": ids, "attention_mask": mask, "position_ids": positions}
    expected = logits_of(twin, "SequenceClassification", **theirs)
    ours = {"token_ids": ids, "padding_mask": mask, "positions": positions.astype("int32")}
    assert_close(ops.convert_to_numpy(model(ours)), expected)


def texts_for_a_decoder(name, rng):
    """Ids (B, T) and their mask: each row has two ENDs, and mBART's a language after them."""
    ids, mask = rng.integers(5, 53, (3, 11)), np.arange(11) < np.array([[11], [7], [9]])
    for row, length in zip(ids, mask.sum(1)):
        after = 1 if name == "mbart" else 0
        row[[3, length - 1 - after]] = END
        row[length:] = PAD
    return ids, mask


@pytest.mark.extended
@pytest.mark.parametrize("name", ["bart", "mbart", "t5", "mt5"])
@pytest.mark.parametrize("task", ["SequenceClassification", "QuestionAnswering"])
def test_full_transformers_read_a_text_twice(name, task, tmp_path, rng):
    twin = saved(name, task, tmp_path / "a")
    model = huggingface.load_model(tmp_path / "a")
    ids, mask = texts_for_a_decoder(name, rng)
    expected = logits_of(twin, task, input_ids=ids, attention_mask=mask)
    found = ops.convert_to_numpy(model({"token_ids": ids, "padding_mask": mask}))
    if task == "QuestionAnswering":
        expected, found = expected[mask], found[mask]
    assert np.ptp(expected, axis=0).min() > 0.01
    assert_close(found, expected)
    assert not [row.tensor for row in huggingface.read_report(tmp_path / "a") if row.variable is None]
    if name != "bart":
        return
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(
        again({"token_ids": ids, "padding_mask": mask}), model({"token_ids": ids, "padding_mask": mask})
    )


def test_a_head_that_bert_has_not_is_refused(tmp_path):
    saved("distilbert", "SequenceClassification", tmp_path / "a")
    model = huggingface.load_model(tmp_path / "a")  # its projection is activated by relu
    with pytest.raises(ValueError, match=r"not the parts of a bert|A bert cannot be this model"):
        huggingface.save_model(model, tmp_path / "b", "bert")
    assert not (tmp_path / "b").exists()


def test_a_body_can_be_had_alone_and_what_has_no_head_is_a_body(tmp_path):
    saved("bert", "SequenceClassification", tmp_path / "a")
    assert isinstance(huggingface.load_model(tmp_path / "a", head=False), EncoderTransformer)
    report = {row.tensor: row for row in huggingface.read_report(tmp_path / "a", head=False)}
    assert report["classifier.weight"][1:] == (None, (3, 35), "head: classification")
    make_twin("bert", end="ForPreTraining").save_pretrained(tmp_path / "b")
    assert isinstance(huggingface.load_model(tmp_path / "b"), EncoderTransformer)
    notes = {row.tensor: row.note for row in huggingface.read_report(tmp_path / "b")}
    assert notes["cls.seq_relationship.weight"] == "head: whether a sentence follows"
    assert notes["cls.predictions.transform.dense.weight"] == "head: masked language model"


def change(folder, function):
    arrays = read_weights(folder / "model.safetensors")
    function(arrays)
    write_weights(arrays, folder / "model.safetensors")


def test_a_head_is_complete_or_an_error(tmp_path):
    saved("bert", "SequenceClassification", tmp_path)
    change(tmp_path, lambda arrays: arrays.update({"classifier.dense.weight": np.ones((3, 3), "float32")}))
    with pytest.raises(ValueError, match=r"Missing: none\. Not understood: classifier\.dense\.weight\."):
        huggingface.load_model(tmp_path)
    change(tmp_path, lambda arrays: [arrays.pop(name) for name in list(arrays) if "classifier" in name])
    with pytest.raises(ValueError, match=r"Missing: classifier\.bias, classifier\.weight"):
        huggingface.load_model(tmp_path)
    assert huggingface.read_report(tmp_path, head=False)


def test_older_masked_language_models_hold_the_tied_tensors_and_the_next_sentence(tmp_path):
    twin = saved("bert", "MaskedLM", tmp_path)

    def older(arrays):
        arrays["cls.predictions.decoder.weight"] = arrays["bert.embeddings.word_embeddings.weight"]
        arrays["cls.predictions.decoder.bias"] = arrays["cls.predictions.bias"]
        arrays["cls.seq_relationship.weight"] = np.ones((2, 35), "float32")

    change(tmp_path, older)
    assert_same_logits(huggingface.load_model(tmp_path), twin, "MaskedLM")


def test_labels_that_do_not_fit_the_tensors(tmp_path):
    shutil.copytree(checkpoint("bert")[0], tmp_path / "x")
    saved("bert", "SequenceClassification", tmp_path / "x")
    for fields, match in (
        ({"id2label": {"0": "a", "1": "b"}}, r"classifier\.\w+ in .* must have shape \(2, ?(35)?\)"),
        ({"id2label": {"0": "a", "2": "b", "3": "c"}}, "`id2label` must name a label for each of 0, 1, 2"),
        ({"id2label": None, "num_labels": 10**9}, "`num_labels` of a bert config must be at most"),
    ):
        change_config(tmp_path / "x", **fields)
        with pytest.raises(ValueError, match=match):
            huggingface.load_model(tmp_path / "x")


def test_labels_of_configs():
    assert labels({"id2label": {"1": "b", "0": "a"}}) == (["a", "b"], False)
    assert labels({"num_labels": 3, "problem_type": "multi_label_classification"}) == (
        ["LABEL_0", "LABEL_1", "LABEL_2"],
        True,
    )
    assert labels({}) == (["LABEL_0", "LABEL_1"], False)
    for config, match in (
        ({"id2label": {}}, "`id2label`"),
        ({"id2label": [1]}, "`id2label`"),
        ({"id2label": {"0": 7}}, "`id2label`"),
        ({"num_labels": -1}, "`num_labels`"),
        ({"problem_type": "poetry"}, "`problem_type` is not known"),
    ):
        with pytest.raises(ValueError, match=match):
            labels(config)
