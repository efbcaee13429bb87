"""From a recipe and a text to a run folder and a text generator."""

import contextlib
import json
import os
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers_explorer import ExplorerParser

from keras_attn import runs
from keras_attn.data import PlainText
from keras_attn.inspection import capture_attention
from keras_attn.models import assign_weights, read_weights
from keras_attn.runs.evaluation import text_token_ids
from keras_attn.runs.language_model_run import LanguageModelRun
from keras_attn.runs.processes import Processes
from keras_attn.tasks import TextGenerator, saved_tasks
from keras_attn.text import ByteTokenizer, load_tokenizer

RECIPE = runs.Recipe.load("shakespeare").replace(
    model={
        "kind": "decoder",
        "num_layers": 1,
        "hidden_dim": 8,
        "num_heads": 2,
        "intermediate_dim": 11,
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "max_sequence_length": 7,
    },
    max_tokens=5 * 7,
    epochs=5,
    steps_per_epoch=11,
    learning_rate=0.03,
    warmup_steps=5,
)


def make_data():
    text = "abcde fghij " * 53
    return runs.DataSplits(PlainText(text, "letters"), PlainText(text[:101], "few letters"), None)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "letters"
    with open(folder.parent / "shown.txt", "w") as shown, contextlib.redirect_stdout(shown):
        return folder, runs.train(make_data(), folder, RECIPE, verbose=1)


def history(folder):
    names, *rows = [line.split(",") for line in (folder / "history.csv").read_text().splitlines()]
    return [dict(zip(names, map(float, row))) for row in rows]


def cross_entropy(model, text, length):
    """Every token but the first, each after those of its window, one window at a time in float64."""
    token_ids = np.array([byte + 3 for byte in text.encode()])
    total = 0.0
    for start in range(0, len(token_ids) - 1, length):
        read, following = token_ids[start : start + length], token_ids[start + 1 : start + length + 1]
        logits = keras.ops.convert_to_numpy(model(read[np.newaxis, : len(following)]))[0].astype("float64")
        total += sum(np.logaddexp.reduce(row) - row[token] for row, token in zip(logits, following))
    return total / (len(token_ids) - 1)


@pytest.mark.extended
def test_the_loss_is_that_of_the_whole_validation_text(run):
    folder, generator = run
    model = generator.model
    record = json.loads((folder / "run.json").read_text())
    assert record["data"] == {
        "train": ["letters, 636 characters"],
        "validation": ["few letters, 101 characters"],
        "test": None,
    }
    texts = runs.example_texts(folder)
    assert 0 < len(texts) <= 3
    for text in texts:
        assert text in " ".join(make_data().validation.text.split())
    expected = cross_entropy(model, make_data().validation.text, 7)
    assert record["results"]["validation"]["loss"] == pytest.approx(expected, rel=1e-5)
    assert expected < 1.5 < np.log(10)  # ten letters, which it has begun to tell apart


@pytest.mark.extended
def test_tensorboard_shows_training_and_validation_under_the_same_tags(run):
    folder, _ = run
    steps = {"train": {}, "validation": {}}
    for part, of_tag in steps.items():
        for path in (folder / "tensorboard" / part).iterdir():
            for event in tf.compat.v1.train.summary_iterator(str(path)):
                for value in event.summary.value:
                    of_tag.setdefault(value.tag, []).append(event.step)
    ends = [11, 22, 33, 44, 55]
    assert steps["validation"] == dict.fromkeys(("loss", "perplexity", "samples"), ends)
    by_update = sorted([*ends, *(end - 5 for end in ends)])  # two points an epoch
    assert steps["train"].pop("recipe") == [0]
    assert {"loss", "perplexity"} < set(steps["train"])
    assert all(of_tag == by_update for of_tag in steps["train"].values())


@pytest.mark.extended
@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="attention of given texts needs TensorFlow"
)
def test_a_run_ends_with_a_page_of_attention_from_epoch_to_epoch(run):
    folder, generator = run
    page = ExplorerParser((folder / "attention.html").read_text("utf-8"))
    epochs = [f"epoch {number}" for number in range(1, 6)]
    assert page.data["models"] == [*epochs, "the run's text generator"]
    # As many tokens as the model reads: the line break before the text, and the text but its last token.
    [group] = page.data["groups"]
    assert (group["kind"], group["queries"]) == ("decoder", ["<0x0A>", *"abcde▁"])
    assert page.data["title"] == "abcde f"
    for step, came in zip(page.data["steps"], "abcde▁f", strict=True):
        assert came in dict(map(tuple, step))
    # The last frame is the attention of the generator that was saved; the others are those of other weights.
    token_ids = np.array([[3 + ord(character) for character in "\nabcde "]])
    with capture_attention(generator.model) as maps:
        generator.model(token_ids)
    [[scores]] = maps.values()
    for head in range(2):
        frames = [page.codes(f"{number}.0.0", head).reshape(7, 7) / 255 for number in range(6)]
        assert frames[-1] ** 2 == pytest.approx(scores[head], abs=6e-3)
        assert not np.triu(frames[0], 1).any()
        assert len({frame.tobytes() for frame in frames[:-1]}) == 5
    assert not (folder / "attention").exists()
    assert f"What it attends to, epoch by epoch: {folder / 'attention.html'}" in (
        folder.parent / "shown.txt"
    ).read_text("utf-8")


@pytest.mark.extended
def test_the_best_epoch_is_kept(run):
    folder, generator = run
    model = generator.model
    losses = [row["val_loss"] for row in history(folder)]
    assert len(losses) == 5
    record = json.loads((folder / "run.json").read_text())
    assert record["results"]["validation"]["loss"] == pytest.approx(min(losses), rel=1e-6)
    best = type(model).from_config(model.get_config())
    assign_weights(best, read_weights(folder / "checkpoints" / "best.safetensors"))
    for array, expected in zip(model.get_weights(), best.get_weights(), strict=True):
        np.testing.assert_array_equal(array, expected)


@pytest.mark.extended
def test_what_is_saved_goes_on_with_a_text(run):
    folder, generator = run
    assert generator.start_token_id == 3 + ord("\n")
    loaded, tokenizer = TextGenerator.load(folder), load_tokenizer(folder / "tokenizer")
    prompt = np.array(tokenizer.encode(["\nab"]))
    continued = np.asarray(generator.model.generate(prompt, tokenizer.end_token_id, max_length=4))
    [text] = tokenizer.decode(continued)
    assert loaded("ab") == text
    for weight, expected in zip(loaded.model.get_weights(), generator.model.get_weights(), strict=True):
        np.testing.assert_array_equal(weight, expected)
    assert len(text) == 4
    assert set(text) <= set("abcdefghij ")


@pytest.mark.extended
def test_a_save_that_fails_leaves_the_older_generator(tmp_path, monkeypatch):
    saves, save = [], saved_tasks.save_weights

    def save_half(model, path):
        saves.append(path)
        save(model, path)
        if len(saves) == 2:
            os.truncate(path, os.path.getsize(path) // 2)
            raise OSError("No space left on device")

    monkeypatch.setattr("keras_attn.tasks.saved_tasks.save_weights", save_half)
    with pytest.raises(OSError, match="No space left"):
        runs.train(make_data(), tmp_path / "run", RECIPE.replace(epochs=1), verbose=0)
    assert TextGenerator.load(tmp_path / "run").model.count_params() > 0
    runs.train(make_data(), tmp_path / "run", RECIPE.replace(epochs=1), verbose=0)
    assert not [path for path in (tmp_path / "run").glob(".*") if path.name != ".lock"]


def test_samples_of_a_run_with_a_large_seed_can_be_drawn(tmp_path):
    run = LanguageModelRun(RECIPE.replace(seed=2**32 - 1), make_data(), tmp_path, 0, Processes())
    run.generator = lambda text, max_length, options: options.row_arrays([0], 1)["seed"].item()
    seeds = run.samples()
    assert len(set(seeds)) == 3


def test_only_line_feeds_end_documents():
    ids = text_token_ids(ByteTokenizer(), "a\u2028b\x0cc\r\n \r\nd\re", documents=True)
    assert ids.count(ByteTokenizer().end_token_id) == 2


@pytest.mark.extended
@pytest.mark.parametrize("tokenizer", [pytest.param("bytes", marks=pytest.mark.slow), "bpe"])
def test_each_line_may_be_a_document(tmp_path, tokenizer):
    text = "one two three\n\nfour  five\n" * 40
    recipe = RECIPE.replace(tokenizer=tokenizer, documents=True, vocabulary_size=290, epochs=1)
    data = runs.DataSplits(PlainText(text, "numbers"), PlainText(text[:26], "two lines"), None)
    generator = runs.train(data, tmp_path / "run", recipe, verbose=0)
    end = generator.tokenizer.end_token_id
    assert generator.start_token_id == end
    ids = text_token_ids(generator.tokenizer, data.validation.text, documents=True)
    assert ids.count(end) == 2
    assert ids[-1] == end
    assert generator.tokenizer.decode([ids[: ids.index(end)]]) == ["one two three"]
    evaluation = runs.evaluate_text(TextGenerator.load(tmp_path / "run"), data.validation)
    record = json.loads((tmp_path / "run" / "run.json").read_text())["results"]["validation"]
    assert record["loss"] == pytest.approx(evaluation.loss, rel=1e-5)
    assert evaluation.num_tokens == len(ids) - 1
    assert evaluation.nats_a_byte == pytest.approx(evaluation.loss * (len(ids) - 1) / evaluation.num_bytes)
    assert evaluation.bits_a_byte == pytest.approx(evaluation.nats_a_byte / np.log(2))


def test_a_text_without_anything_to_predict_is_refused(tmp_path):
    data = make_data()._replace(validation=PlainText("a", "one letter"))
    with pytest.raises(ValueError, match="one letter must have two bytes or more"):
        runs.train(data, tmp_path / "run", RECIPE, verbose=0)


@pytest.mark.extended
def test_a_run_says_how_well_it_writes(run):
    folder, _ = run
    shown = (folder.parent / "shown.txt").read_text()
    assert re.search(r"few letters: loss \d\.\d{4} nats a byte, perplexity \d+\.\d{3}\n", shown)
    assert re.search(r"\d nats a byte, \d\.\d{4} bits a byte; 100 tokens, 100 bytes\n", shown)
    assert f"The text generator lies in {folder / 'text_generator'}" in shown
    assert f"keras-attn generate {folder} 'To be'" in shown


@pytest.mark.extended
def test_training_ends_once_the_loss_is_low_enough(tmp_path):
    runs.train(make_data(), tmp_path / "run", RECIPE.replace(stop_at=2.9), verbose=0)
    losses = [row["val_loss"] for row in history(tmp_path / "run")]
    assert len(losses) < 5
    assert losses[-1] <= 2.9
    assert all(loss > 2.9 for loss in losses[:-1])


@pytest.mark.slow
def test_accumulated_windows_equal_one_big_batch(tmp_path):
    # An epsilon of the size of the gradients, where Adam does not blow up their last bits.
    recipe = RECIPE.replace(epochs=1, epsilon=1e-2)
    whole = runs.train(make_data(), tmp_path / "a", recipe.replace(max_tokens=6 * 7), verbose=0)
    parts = recipe.replace(max_tokens=2 * 7, gradient_accumulation_steps=3, steps_per_epoch=33)
    accumulated = runs.train(make_data(), tmp_path / "b", parts, verbose=0)
    for variable, other in zip(whole.model.weights, accumulated.model.weights, strict=True):
        np.testing.assert_allclose(variable, other, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metric": "bleu"}, "has `metric` \"loss\".*metric='bleu'"),
        ({"tokenizer": "wordpiece"}, "`tokenizer` .bytes.*tokenizer='wordpiece'"),
        (
            {"model": {"kind": "decoder", "size": "tiny"}},
            "encoder-decoder Transformer. Received: size='tiny', model kind='decoder'",
        ),
        ({"model": {"size": "tiny"}}, "model kind='transformer', metric='loss'"),
    ],
)
def test_what_a_language_model_cannot_have_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        RECIPE.replace(**changes)


def test_a_text_file_is_divided_and_given_parts_are_taken(tmp_path):
    (tmp_path / "play.txt").write_text("0123456789", encoding="utf-8")
    (tmp_path / "end.txt").write_text("xyz", encoding="utf-8")
    splits = runs.open_splits(RECIPE.replace(data=(str(tmp_path / "play.txt"),)))
    assert [part and part.text for part in splits] == ["012345678", "9", None]
    given = {"validation": (str(tmp_path / "end.txt"),), "test": (str(tmp_path / "end.txt"),)}
    splits = runs.open_splits(RECIPE.replace(data=(str(tmp_path / "play.txt"),), **given))
    assert [part.text for part in splits] == ["0123456789", "xyz", "xyz"]
    # Several files are one text, each from a new line; documents are not divided.
    several = (str(tmp_path / "end.txt"), str(tmp_path / "play.txt"))
    assert runs.open_splits(RECIPE.replace(data=several)).train.text == "xyz\n01234567"
    (tmp_path / "lines.txt").write_text("ab\n" * 10, encoding="utf-8")
    splits = runs.open_splits(RECIPE.replace(data=(str(tmp_path / "lines.txt"),), documents=True))
    assert [part and part.text for part in splits] == ["ab\n" * 9, "ab\n", None]
    with pytest.raises(ValueError, match=r"learns from one text, of one file or several\. Received: data="):
        runs.open_splits(RECIPE.replace(data=(("a.txt",), ("b.txt",))))


def test_settings_are_fitted_to_a_text():
    text = PlainText("To be, or not to be.\n" * 50_000, "a play")  # 1 MB
    fitted = runs.fit_text_recipe(runs.DataSplits(*text.split(), None), given=["learning_rate"])
    recipe = fitted.recipe
    updates = recipe.epochs * recipe.steps_per_epoch
    assert recipe.warmup_steps <= updates / 5
    assert recipe.learning_rate == runs.Recipe.load("plain_text").learning_rate
    assert recipe.tokenizer == "bytes"
    assert recipe.max_tokens % recipe.model["max_sequence_length"] == 0
    report = fitted.report()
    assert all(f"  {name}" in report for name in ("tokens", "model", "window", "batches", "training", "rate"))
    assert "(learning_rate given)" in report
    little = PlainText("To be.\n" * 300, "few words")
    assert "are little" in runs.fit_text_recipe(runs.DataSplits(*little.split(), None)).note
    recipe = runs.Recipe.load("plain_text").replace(warmup_steps=10**6)
    with pytest.raises(ValueError, match="The warm-up must be shorter than the training"):
        runs.fit_text_recipe(runs.DataSplits(*text.split(), None), recipe, ["warmup_steps"])
