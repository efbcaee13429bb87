"""What a run writes for TensorBoard: one line a quantity, by update, also where the run was interrupted."""

import csv
import math
import sys
import types
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers_recipes import TINY

import keras_attn
from keras_attn import plots, runs
from keras_attn.data import TextPairs
from keras_attn.runs.attention_views import figures
from keras_attn.runs.tensorboard_logs import TrainingCurves, cut_off, perplexity
from keras_attn.runs.translation_run import TranslationRun
from keras_attn.tasks.given_translations import AttentionMap
from keras_attn.training.summaries import Summaries, samples_table

with warnings.catch_warnings():  # of a copy of html5lib inside TensorBoard
    warnings.simplefilter("ignore", DeprecationWarning)
    from tensorboard.plugin_util import markdown_to_safe_html

RECIPE = runs.Recipe(
    model={**TINY, "dropout": 0.1, "max_sequence_length": 16},
    tokenizer="bytes",
    max_tokens=128,
    epochs=2,
    steps_per_epoch=13,
    learning_rate=0.01,
    warmup_steps=5,
    dtype="float32",
    metric="exact_match",
    num_averaged=1,
    num_beams=1,
    max_length=8,
    save_updates=5,
)
WITH_IMAGES = keras.backend.backend() == "tensorflow"


def events_of(folder):
    """The values of each tag in the files as they are: TensorBoard's own reader would hide a line drawn twice."""
    values = {}
    for path in sorted(folder.rglob("events.out.tfevents.*")):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                values.setdefault(value.tag, []).append((event.step, tf.make_ndarray(value.tensor)))
    return values


def steps_of(events, tag):
    return [step for step, _ in events[tag]]


@pytest.fixture(scope="module")
def resumed(tmp_path_factory):
    """The folder of a run that broke off in update 9, after the state of update 5 and the point of update 7."""
    # Rows of the same length, so that all updates weigh the same in a mean.
    texts = [f"{a}{b}" for a in "abcd" for b in "efgh"]
    pairs = TextPairs(texts, [text.upper() for text in texts], "capitals")
    odd = TextPairs(["a|b", "<i>", "*a*"], ["A|B", "<I>", "*A*"], "odd")
    data, folder = runs.DataSplits(pairs, odd, None), tmp_path_factory.mktemp("runs") / "capitals"
    after_update = TrainingCurves.after_update

    def broken(self):
        if self._progress.updates == 9:
            raise OSError("disk full")
        after_update(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainingCurves, "after_update", broken)
        with pytest.raises(OSError, match="disk full"):
            runs.train(data, folder, RECIPE, verbose=0)
    before = steps_of(events_of(folder / "tensorboard" / "train"), "loss")
    runs.train(data, folder, RECIPE, verbose=0)
    assert before == [7]
    return folder


@pytest.fixture(scope="module")
def events(resumed):
    return {part: events_of(resumed / "tensorboard" / part) for part in ("train", "validation")}


@pytest.mark.extended
def test_tags_are_those_of_the_documentation(events):
    scalars = {"loss", "perplexity", "learning_rate", "tokens_per_second", "padding"}
    assert set(events["train"]) == scalars | {"recipe"}
    pictures = {"cross_attention_1/mean", "cross_attention_1/head_1", "cross_attention_1/head_2"}
    pictures |= {"cross_attention_2/mean", "perplexity"}
    assert set(events["validation"]) == {"exact_match", "translations"} | (pictures if WITH_IMAGES else set())


@pytest.mark.extended
def test_a_resumed_run_draws_one_line_by_update(events):
    train, validation = events["train"], events["validation"]
    for tag in set(train) - {"recipe"}:
        assert steps_of(train, tag) == [7, 13, 20, 26]
    assert steps_of(train, "recipe") == [0]
    for tag in validation:
        assert steps_of(validation, tag) == [13, 26]


@pytest.mark.extended
def test_points_are_means_over_all_updates_since_the_last_one(resumed, events):
    with open(resumed / "history.csv") as file:
        rows = list(csv.DictReader(file))
    of_tag = {
        tag: [float(value) for _, value in points]
        for tag, points in events["train"].items()
        if tag != "recipe"
    }
    for epoch, row in enumerate(rows):
        first, second = 2 * epoch, 2 * epoch + 1  # of 7 and of 6 updates
        loss, nats, padding = (
            (7 * values[first] + 6 * values[second]) / 13
            for values in (of_tag["loss"], np.log(of_tag["perplexity"]), of_tag["padding"])
        )
        assert loss == pytest.approx(float(row["loss"]), rel=1e-5)
        assert math.exp(nats) == pytest.approx(float(row["perplexity"]), rel=1e-5)
        assert padding == pytest.approx(float(row["padding"]), abs=1e-6)
        assert of_tag["learning_rate"][second] == pytest.approx(float(row["learning_rate"]), rel=1e-5)
    assert of_tag["learning_rate"][0] == pytest.approx(0.01 * (5 / 7) ** 0.5, rel=1e-5)
    assert min(of_tag["tokens_per_second"]) > 0


@pytest.mark.extended
@pytest.mark.skipif(not WITH_IMAGES, reason="texts are scored by TensorFlow")
def test_validation_perplexity_is_that_of_the_references(resumed, events):
    translator = keras_attn.Translator.load(resumed / "translator")
    best = max(range(2), key=lambda epoch: float(events["validation"]["exact_match"][epoch][1]))
    pairs = [("a|b", "A|B"), ("<i>", "<I>"), ("*a*", "*A*")]
    log_probs = [
        log_prob for pair in pairs for _, log_prob in translator.score(*pair, return_token_scores=True)[1]
    ]
    assert len(log_probs) == 3 * 4  # END counts
    assert float(events["validation"]["perplexity"][best][1]) == pytest.approx(
        math.exp(-np.mean(log_probs)), rel=1e-4
    )


@pytest.mark.extended
def test_the_same_samples_are_shown_after_each_epoch_with_their_markup_as_text(events):
    tables = [markdown_to_safe_html(value.item()) for _, value in events["validation"]["translations"]]
    for table in tables:
        for cell in ("a|b", "A|B", "&lt;i&gt;", "&lt;I&gt;", "*a*", "*A*"):
            assert f"<td>{cell}</td>" in table
        assert table.count("✗ wrong") + table.count("✓ right") == 3


def test_samples_are_marked():
    table = markdown_to_safe_html(samples_table(["a", "_b_"], ["A", "`C`"], ["A", "[B](c)"]))
    rows = [row.split("</td>")[:-1] for row in table.split("<tr>")[2:]]
    assert [[cell.split("<td>")[1] for cell in row] for row in rows] == [
        ["a", "A", "A", "✓ right"],
        ["_b_", "`C`", "[B](c)", "✗ wrong"],
    ]


@pytest.mark.extended
def test_the_recipe_is_written_once(events):
    table = markdown_to_safe_html(events["train"]["recipe"][0][1].item())
    assert "<td>warmup_steps</td>\n<td>5</td>" in table


@pytest.mark.extended
@pytest.mark.skipif(not WITH_IMAGES, reason="attention maps are made by TensorFlow")
def test_pictures_are_480_pixels_wide(events):
    for tag, points in events["validation"].items():
        for _, value in points if tag.startswith("cross_attention") else ():
            width, height, file = value
            assert (width, tf.io.decode_png(file).shape[1:]) == (b"480", (480, 3))
            assert 300 < int(height) < 600


def test_figures_name_layer_head_and_tokens():
    scores = np.random.default_rng(1).dirichlet(np.ones(3), (4, 7, 2)).astype("float32")
    drawn = figures(AttentionMap(["der", "Hund", "</s>"], ["dog", "</s>"], scores), num_heads=2)
    titles = {name: figure.get_suptitle() for name, figure in drawn.items()}
    assert titles == {
        "mean": "Cross-attention, layer 3 of 4, mean of all heads",
        "head_1": "Cross-attention, layer 3 of 4, head 1 of 7",
        "head_2": "Cross-attention, layer 3 of 4, head 2 of 7",
    }
    for name, shown in (("mean", scores[2].mean(0)), ("head_2", scores[2, 1])):
        panel = drawn[name].axes[0]
        assert [label.get_text() for label in panel.get_xticklabels()] == ["der", "Hund", "</s>"]
        assert [label.get_text() for label in panel.get_yticklabels()] == ["dog", "</s>"]
        np.testing.assert_allclose(panel.images[0].get_array(), shown, rtol=1e-6)


@pytest.mark.parametrize("width", [480, 337])
def test_pixels_have_the_width_asked_for(width):
    figure = plots.plot_attention(
        np.full((5, 7), 0.1), list("abcdefg"), ["水"] * 5
    )  # a character of no font here
    assert plots.figure_pixels(figure, width).shape[1:] == (width, 3)


def test_without_matplotlib_a_run_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    said, kept = [], []
    run = TranslationRun.__new__(TranslationRun)
    run.say = said.append
    run.film = types.SimpleNamespace(keep=kept.append)
    run.progress = types.SimpleNamespace(epoch=7)
    draw = run.pictures()
    assert draw() == {}
    assert kept == [7]
    assert len(said) == WITH_IMAGES
    assert all('pip install "keras_attn[plots]"' in line for line in said)


def write_points(folder, steps):
    summaries = Summaries(folder)
    for step in steps:
        summaries.write(step, {"loss": float(step)})
    summaries.close()


def test_points_after_the_state_are_cut_off(tmp_path):
    write_points(tmp_path / "train", [3, 5])
    write_points(tmp_path / "validation", [5, 7, 11])
    (whole,) = (tmp_path / "train").iterdir()
    content, time = whole.read_bytes(), whole.stat().st_mtime_ns
    cut_off(tmp_path, 5)
    assert (whole.read_bytes(), whole.stat().st_mtime_ns) == (content, time)
    assert steps_of(events_of(tmp_path / "validation"), "loss") == [5]


def test_a_file_that_ends_within_a_record_is_repaired(tmp_path):
    write_points(tmp_path, [3, 5, 7])
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-3])
    cut_off(tmp_path, 7)
    assert steps_of(events_of(tmp_path), "loss") == [3, 5]


def test_a_run_without_a_state_begins_with_no_file(tmp_path):
    write_points(tmp_path, [3])
    cut_off(tmp_path, 0)
    assert not list(tmp_path.iterdir())


def test_a_loss_that_grows_out_of_bounds_has_a_perplexity():
    assert perplexity(math.log(7)) == pytest.approx(7)
    assert perplexity(1e5) == math.inf
