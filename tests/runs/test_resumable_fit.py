"""`resumable_fit` with labelled texts: batches, the best epoch, and the same bits after a kill."""

import keras
import numpy as np
import pytest

from keras_attn.data import LabelledBatches, LabelledTexts, read_labelled_texts
from keras_attn.layers import ClassificationHead
from keras_attn.models import EncoderTransformer, EncoderWithHead
from keras_attn.runs import resumable_fit
from keras_attn.runs.progress import Progress
from keras_attn.runs.run_folder import SavedStates
from keras_attn.text import ByteTokenizer

DATA = LabelledTexts([f"{a}{b}" for a in "abcde" for b in "fgh"], ["x", "y", "z"] * 5)


class KilledError(Exception):
    pass


def make(folder, epochs, scores, **options):
    keras.utils.set_random_seed(3)
    encoder = EncoderTransformer.from_sizes(
        259, 1, hidden_dim=6, num_heads=2, intermediate_dim=7, dropout=0.2
    )
    model = EncoderWithHead(encoder, ClassificationHead(3))
    model.compile(
        keras.optimizers.Adam(0.03),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        run_eagerly=True,
    )
    batches = LabelledBatches(DATA, ByteTokenizer(), ["x", "y", "z"], batch_size=4)
    scores = iter(scores)
    rows = resumable_fit(
        model, batches, folder, epochs, lambda: next(scores), save_updates=3, verbose=0, **options
    )
    return rows, model.get_weights()


def losses(rows):
    return [row["loss"] for row in rows]


@pytest.mark.extended
def test_a_killed_fit_ends_with_the_same_bits_and_the_best_epoch(tmp_path, monkeypatch):
    rows, weights = make(tmp_path / "whole", 3, [0.3, 0.5, 0.4])
    assert losses(rows)[2] < losses(rows)[0]
    assert [row["val_score"] for row in rows] == [0.3, 0.5, 0.4]

    on_train_batch_end, batches = Progress.on_train_batch_end, []

    def killed_at(progress, batch, logs=None):
        on_train_batch_end(progress, batch, logs)
        batches.append(batch)
        if len(batches) == 8:  # after a save, in the middle of the second epoch
            raise KilledError

    monkeypatch.setattr(Progress, "on_train_batch_end", killed_at)
    with pytest.raises(KilledError):
        make(tmp_path / "killed", 3, [0.3])
    monkeypatch.setattr(Progress, "on_train_batch_end", on_train_batch_end)
    others, other_weights = make(tmp_path / "killed", 3, [0.5, 0.4])
    assert losses(rows) == losses(others)
    for ours, theirs in zip(weights, other_weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    # At its end it reads the best weights and trains no more.
    _, again = make(tmp_path / "whole", 3, [])
    for ours, theirs in zip(weights[:5], again[:5], strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.extended
def test_callbacks_get_the_loss_of_a_batch_unread_and_the_numbers_of_an_epoch(tmp_path, monkeypatch):
    on_train_batch_end, are_tensors = Progress.on_train_batch_end, []

    def recorded(progress, batch, logs=None):
        are_tensors.append(keras.ops.is_tensor(logs["loss"]))
        on_train_batch_end(progress, batch, logs)

    monkeypatch.setattr(Progress, "on_train_batch_end", recorded)
    rows, _ = make(tmp_path, 2, [0.3, 0.5])
    assert are_tensors == [True] * 8
    assert all(isinstance(loss, float) for loss in losses(rows))


def test_no_state_is_saved_after_an_update_whose_loss_is_invalid(tmp_path, monkeypatch):
    on_train_batch_end = Progress.on_train_batch_end

    def breaks_the_weights(progress, batch, logs=None):
        if batch == 1:  # The third loss is invalid, and a state is due after it.
            weight = progress.model.trainable_variables[0]
            weight.assign(weight * np.nan)
        on_train_batch_end(progress, batch, logs)

    monkeypatch.setattr(Progress, "on_train_batch_end", breaks_the_weights)
    with pytest.raises(FloatingPointError, match=r"epoch 1, batch 3\. No checkpoint"):
        make(tmp_path, 2, [0.3, 0.5])
    assert SavedStates(tmp_path).newest() is None


def test_every_text_is_in_one_batch_as_its_framing_has_it():
    batches = LabelledBatches(DATA, ByteTokenizer(), ["x", "y", "z"], batch_size=4)
    found = []
    for inputs, labels in batches.dataset().take(len(batches)):
        for ids, mask, label in zip(
            inputs["token_ids"].numpy(), inputs["padding_mask"].numpy(), labels.numpy()
        ):
            assert ids[0] == ByteTokenizer().start_token_id
            found.append((ByteTokenizer().decode([ids[mask]])[0], "xyz"[label]))
    assert sorted(found) == sorted(zip(DATA.texts, DATA.labels))


def test_pairs_have_types():
    data = LabelledTexts(["ab"], ["x"], ["c"])
    batches = LabelledBatches(data, ByteTokenizer(), ["x"], token_types=True)
    inputs, _ = next(iter(batches.dataset()))
    assert inputs["token_type_ids"].numpy().tolist() == [[0, 0, 0, 0, 1, 1]]


def test_files_are_read_or_their_line_is_named(tmp_path):
    file = tmp_path / "a.tsv"
    file.write_text("a text\tgood\nanother\tbad\n", encoding="utf-8")
    data = read_labelled_texts(file)
    assert (list(data.texts), data.labels, data.pairs) == (["a text", "another"], ["good", "bad"], None)
    file.write_text("a\tb\tsame\nc\td\tother\n", encoding="utf-8")
    assert list(read_labelled_texts(file).pairs) == ["b", "d"]
    for content, message in {"a\tb\nc\n": "line 2.*1 columns", "a\t \n": "empty label", "": "empty"}.items():
        file.write_text(content, encoding="utf-8")
        with pytest.raises(ValueError, match=message):
            read_labelled_texts(file)


def test_unknown_labels_and_lists_of_other_lengths_are_refused():
    with pytest.raises(ValueError, match=r"must be among x, y\. Received: z"):
        LabelledBatches(DATA, ByteTokenizer(), ["x", "y"])
    with pytest.raises(ValueError, match="as many labels as texts"):
        LabelledTexts(["a"], ["x", "y"])
