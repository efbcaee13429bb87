"""From a recipe and data to a run folder, a translator and its export."""

import dataclasses
import gzip
import json
import os
import shlex
import signal
import unicodedata

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers_explorer import ExplorerParser
from helpers_recipes import TINY

import keras_attn
from keras_attn import runs
from keras_attn.data import PlainText, TextPairs, translation_batches
from keras_attn.models import read_metadata, read_weights
from keras_attn.runs.combined_translators import weights_origin
from keras_attn.runs.data import held_out, shared_notes
from keras_attn.runs.processes import Processes
from keras_attn.runs.run_folder import with_plan_of
from keras_attn.runs.translation_run import TranslationRun
from keras_attn.text import ByteTokenizer
from keras_attn.text.bpe_dropout import BpeDropout

RECIPE = runs.Recipe(
    model={**TINY, "dropout": 0.0, "max_sequence_length": 16, "normalize_first": True},
    tokenizer="bytes",
    max_tokens=128,
    bucket_boundaries=(8, 16),
    epochs=3,
    learning_rate=0.01,
    warmup_steps=5,
    dtype="float32",
    metric="exact_match",
    num_averaged=2,
    num_beams=1,
    max_length=8,
)
WITH_TENSORFLOW = keras.backend.backend() == "tensorflow"


def make_data():
    texts = [f"{a}{b}" for a in "abcd" for b in "efgh"]
    pairs = TextPairs(texts, [text.upper() for text in texts], "capitals")
    return runs.DataSplits(pairs, pairs, TextPairs(texts[:3], pairs.targets[:3], "three"))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "capitals"
    return folder, runs.train(make_data(), folder, RECIPE, verbose=0)


def test_a_run_folder_holds_what_its_documentation_says(run):
    folder, translator = run
    record = json.loads((folder / "run.json").read_text())
    assert record["recipe"]["epochs"] == 3
    capitals = ["capitals, 16 pairs"]
    assert record["data"] == {"train": capitals, "validation": capitals, "test": ["three, 3 pairs"]}
    assert record["versions"]["keras"] == keras.__version__
    assert record["versions"]["tensorflow"] == tf.__version__
    assert record["backend"] == keras.backend.backend()
    assert record["results"]["test"]["num_pairs"] == 3
    assert runs.example_texts(folder) == runs.example_texts(folder / "translator") == ["ae", "af", "ag"]
    assert runs.example_texts(folder / "translator" / "nothing") is None
    assert record["results"]["training_seconds"] > 0
    assert len((folder / "history.csv").read_text().splitlines()) == 1 + 3
    columns = (folder / "history.csv").read_text().splitlines()[0].split(",")
    assert columns == [
        *("epoch", "loss", "perplexity", "tokens_per_second", "padding"),
        *("val_exact_match", *(["val_perplexity"] if WITH_TENSORFLOW else []), "learning_rate"),
    ]
    checkpoints = {path.name for path in (folder / "checkpoints").iterdir()}
    states = {name for name in checkpoints if name.startswith("state-")}
    assert len(states) == 2
    assert checkpoints - states - {"average.safetensors"} == {
        "best.safetensors",
        "epoch-002.safetensors",
        "epoch-003.safetensors",
    }
    origins = [read_metadata(path) for path in (folder / "checkpoints").glob("[abe]*.safetensors")]
    assert all(origin == origins[0] for origin in origins)
    assert set(origins[0]) == set(weights_origin(translator))
    assert not (folder / "attention").exists()
    texts = ["ae", "bf"]
    assert keras_attn.Translator.load(folder / "translator")(texts) == translator(texts)


@pytest.mark.skipif(not WITH_TENSORFLOW, reason="attention of given texts needs TensorFlow")
def test_a_run_ends_with_a_page_of_attention_from_epoch_to_epoch(run):
    folder, translator = run
    page = ExplorerParser((folder / "attention.html").read_text("utf-8"))
    assert page.data["models"] == ["epoch 1", "epoch 2", "epoch 3", "the run's translator"]
    kinds = {group["kind"]: group for group in page.data["groups"]}
    assert set(kinds) == {"encoder", "decoder", "cross"}
    source, target = kinds["encoder"]["queries"], kinds["cross"]["queries"]
    assert "".join(source[:-1]).upper() == "".join(target[:-1]) == page.data["title"].upper()
    # The last frame is the translator's own attention to the reference.
    shown = translator.show(page.data["title"], target=page.data["title"].upper())
    [cross] = [number for number, group in enumerate(page.data["groups"]) if group["kind"] == "cross"]
    assert [page.codes(f"3.{cross}.0", head).tolist() for head in range(2)] == [
        ExplorerParser(shown.html).codes(f"0.{cross}.0", head).tolist() for head in range(2)
    ]
    assert page.codes(f"0.{cross}.0", 0).tolist() != page.codes(f"3.{cross}.0", 0).tolist()


def test_what_tensorboard_shows_is_what_the_documentation_says(run):
    train, validation = (steps_of_tags(run[0] / "tensorboard" / part) for part in ("train", "validation"))
    by_update = {
        key: [1, 2, 3] for key in ("loss", "perplexity", "learning_rate", "tokens_per_second", "padding")
    }
    assert train == {"recipe": [0], **by_update}
    tags = {"exact_match", "translations"}
    if WITH_TENSORFLOW:
        pictures = ("1/mean", "1/head_1", "1/head_2", "2/mean")
        tags |= {"perplexity", *(f"cross_attention_{picture}" for picture in pictures)}
    assert validation == {key: [1, 2, 3] for key in tags}


def steps_of_tags(folder):
    """The steps of each tag in the event files of a folder."""
    steps = {}
    for path in folder.rglob("events.out.tfevents.*"):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                steps.setdefault(value.tag, []).append(event.step)
    return steps


def test_the_weights_are_the_average_unless_a_test_on_validation_says_otherwise(run):
    folder, translator = run
    results = json.loads((folder / "run.json").read_text())["results"]
    best = results["validation, best epoch"]["exact_match"]
    average = results["validation, average of the last 2 epochs"]["exact_match"]
    p_value = results["kept"]["p_value"]
    assert (p_value is None) == (average >= best)
    chosen = "average" if p_value is None or p_value >= 0.05 else "best"
    assert results["kept"]["weights"].startswith(chosen)
    arrays = read_weights(folder / "checkpoints" / f"{chosen}.safetensors")
    kernel = translator.model.encoder_blocks[0].feed_forward_layer.output_dense.kernel
    np.testing.assert_array_equal(arrays["encoder_block_0/feed_forward/output/kernel"], np.array(kernel))
    assert results["validation"]["exact_match"] == {"average": average, "best": best}[chosen]


def test_a_folder_with_a_run_is_not_written_over(run):
    folder, _ = run
    with pytest.raises(ValueError, match=r"holds a run that has ended.*more than 3 epochs"):
        runs.train(make_data(), folder, RECIPE, verbose=0)


def test_a_folder_of_other_files_stays_as_it_is(tmp_path):
    (tmp_path / "history.csv").write_text("mine\n")
    (tmp_path / "log.txt").write_text("of a run that was killed early\n")
    for folder, message in [
        (tmp_path, "holds no run, but history.csv, which a run would overwrite. Choose another folder"),
        (tmp_path / "history.csv", "history.csv cannot be the folder of a run: File exists. Choose another"),
    ]:
        with pytest.raises((ValueError, OSError), match=message):
            runs.train(make_data(), folder, RECIPE, verbose=0)
    assert (tmp_path / "history.csv").read_text() == "mine\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["history.csv", "log.txt"]


@pytest.mark.parametrize(("minutes", "ended", "epochs"), [(None, True, 9), (None, False, 3), (2.0, False, 6)])
def test_more_minutes_are_more_epochs_of_the_run_that_is_there(minutes, ended, epochs):
    results = {"ended": ended, "training_seconds": 80.0}
    before = RECIPE.replace(minutes=minutes, steps_per_epoch=7, warmup_steps=4)
    record = {"recipe": dataclasses.asdict(before), "results": results}
    assert with_plan_of(record, before.replace(minutes=4.0)) == before.replace(minutes=4.0, epochs=epochs)


def test_commands_to_copy_are_quoted(tmp_path):
    run = TranslationRun(RECIPE, make_data(), tmp_path / "my run", 0, Processes())
    assert shlex.split(run.next_command(), comments=True)[3] == str(tmp_path / "my run")


def test_other_data_of_the_same_size_are_another_run(run, tmp_path):
    folder, _ = run
    data = make_data()
    targets = [text.replace("AE", "AF") for text in data.train.targets]
    changed = data._replace(train=TextPairs(data.train.sources, targets, data.train.name))
    with pytest.raises(ValueError, match=r"run on other data than the targets of capitals hold now") as error:
        runs.train(changed, folder, RECIPE, verbose=0)
    assert len(str(error.value)) < 3 * len(str(folder)) + 220
    assert f"--from {folder} --output {folder}-2" in str(error.value)


def test_more_lines_in_the_files_of_a_run_are_named_and_so_is_the_way_out(tmp_path):
    files = [tmp_path / "a.x", tmp_path / "a.y"]
    recipe = RECIPE.replace(data=tuple(map(str, files)))

    def write(count, second="B"):
        files[0].write_text("".join(f"{n}a\n" for n in range(count)))
        files[1].write_text("".join(f"{n}{second}\n" for n in range(count)))

    def message():
        run = TranslationRun(recipe, runs.open_splits(recipe), tmp_path / "run", 0, Processes())
        with pytest.raises(ValueError, match="on other data") as error:
            run.check_folder()
        return str(error.value)

    write(50)
    run = TranslationRun(recipe, runs.open_splits(recipe), tmp_path / "run", 0, Processes())
    (tmp_path / "run").mkdir()
    run.write_record()
    write(60)
    assert f"other data than {files[0]} and {files[1]} hold now. Choose another folder" in message()
    (tmp_path / "run" / "translator").mkdir()
    assert f"--from {tmp_path / 'run'} --output {tmp_path / 'run-2'} " in message()
    write(50, "C")
    assert f"other data than {files[1]} hold now" in message()
    # The same lines in files of another name, or without held-out data that were there, are told by content too.
    write(50)
    moved = [file.rename(file.with_suffix(f"{file.suffix}z")) for file in files]
    recipe = recipe.replace(data=tuple(map(str, moved)))
    assert TranslationRun(recipe, runs.open_splits(recipe), tmp_path / "run", 0, Processes()).check_folder()
    recipe = recipe.replace(test=recipe.data)
    assert f"other data than {moved[0]} and {moved[1]} hold" in message()
    recipe = dataclasses.replace(recipe, test=None, seed=4, model={**recipe.model, "num_heads": 4})
    run = TranslationRun(recipe, runs.open_splits(recipe), tmp_path / "run", 0, Processes())
    with pytest.raises(
        ValueError, match=r"other settings: model\.num_heads=2 there, 4 here; seed=0 there, 4 here\."
    ):
        run.check_folder()


@pytest.mark.extended
def test_training_ends_early_at_the_wanted_score(tmp_path):
    runs.train(make_data(), tmp_path / "run", RECIPE.replace(stop_at=0.0, num_averaged=1), verbose=0)
    assert len((tmp_path / "run" / "history.csv").read_text().splitlines()) == 1 + 1


class Interrupt(keras.callbacks.Callback):
    """Ctrl-C in the middle of an epoch, once."""

    def __init__(self, epoch):
        super().__init__()
        self.epoch = epoch
        self.now = 0
        self.sent = False

    def on_epoch_begin(self, epoch, logs=None):
        self.now = epoch

    def on_train_batch_end(self, batch, logs=None):
        if self.now == self.epoch and not self.sent:
            self.sent = True
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.extended
@pytest.mark.parametrize("epoch", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_an_interrupted_run_leaves_a_usable_translator(tmp_path, monkeypatch, epoch):
    monkeypatch.setattr("keras_attn.runs.training_run.LearningRateLogger", lambda: Interrupt(epoch))
    translator = runs.train(make_data(), tmp_path / "run", RECIPE, verbose=0)
    loaded = keras_attn.Translator.load(tmp_path / "run" / "translator")
    assert loaded(["ae"]) == translator(["ae"])
    results = json.loads((tmp_path / "run" / "run.json").read_text())["results"]
    assert "test" in results
    assert not results["ended"]


@pytest.mark.extended
def test_a_loss_that_is_not_finite_stops_with_the_last_good_checkpoint(tmp_path, monkeypatch):
    class Break(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1:
                self.model.target_embedding.token.embeddings.assign_add(np.nan)

    monkeypatch.setattr("keras_attn.runs.training_run.LearningRateLogger", Break)
    with pytest.raises(FloatingPointError, match=r"epoch 2, batch 1.*checkpoints"):
        runs.train(make_data(), tmp_path / "run", RECIPE, verbose=0)


@pytest.mark.extended
def test_a_run_that_is_killed_while_it_is_evaluated_goes_on_to_the_weights_of_its_seed(
    run, tmp_path, monkeypatch
):
    class Killed(BaseException):
        pass

    def die(*arguments, **options):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(runs.translation_run, "evaluate", die)
        with pytest.raises(Killed):
            runs.train(make_data(), tmp_path / "run", RECIPE, verbose=0)
    assert (tmp_path / "run" / "tokens" / "tokens.json").is_file()
    runs.train(make_data(), tmp_path / "run", RECIPE, verbose=0)
    assert not (tmp_path / "run" / "tokens").exists()
    folder, _ = run
    for file in ("checkpoints/epoch-003.safetensors", "translator/model.safetensors"):
        one, other = read_weights(folder / file), read_weights(tmp_path / "run" / file)
        assert one.keys() == other.keys()
        for name, array in one.items():
            np.testing.assert_allclose(array, other[name], atol=1e-5, err_msg=f"{file}: {name}")


def test_a_joint_subword_vocabulary_is_trained_on_the_training_part_alone(tmp_path):
    pairs = TextPairs(["a red dog", "a red cat"] * 9, ["ein roter Hund", "eine rote Katze"] * 9, "pets")
    other = TextPairs(["zebra"], ["Quagga"], "others")
    recipe = RECIPE.replace(tokenizer="bpe", vocabulary_size=290)
    run = runs.translation_run.TranslationRun(
        recipe, runs.DataSplits(pairs, other, None), tmp_path, 0, Processes()
    )
    run.prepare()
    translator = run.translator
    assert translator.source_tokenizer is translator.target_tokenizer
    assert translator.model.vocabulary_size == 290
    assert "Z" not in translator.source_tokenizer.token_strings(range(290))[4 + 256 :]


def test_files_become_splits(tmp_path):
    for name, line in (("s.txt", "source"), ("t.txt", "target")):
        (tmp_path / name).write_text("".join(f"{line} {row}\n" for row in range(37)))
    files = (str(tmp_path / "s.txt"), str(tmp_path / "t.txt"))
    recipe = runs.default_recipe(files)
    data = runs.open_splits(recipe)
    assert recipe == runs.Recipe.load("text_pairs").replace(data=files)
    assert (len(data.train), len(data.validation), data.test) == (34, 3, None)
    together = sorted([*data.train.sources, *data.validation.sources])
    assert together == sorted(f"source {row}" for row in range(37))
    assert all(s.split()[1] == t.split()[1] for s, t in zip(data.train.sources, data.train.targets))
    again = runs.open_splits(recipe)
    assert again.validation.sources == data.validation.sources


@pytest.mark.parametrize(
    ("sources", "shared"),
    [
        ([f"{n}" for n in range(600)], 0),
        ([f"{n // 3}" for n in range(600)], 0),
        ([f"{n % 5}" for n in range(600)], 0),
        # Alike for the tokenizers: white space, and forms of one character.
        ([f"{'café' if n % 2 else 'cafe' + chr(0x301)} {' ' * (n % 3)}{n // 6}" for n in range(600)], 0),
        (["the same"] * 600, 60),
    ],
)
def test_no_source_is_both_trained_on_and_held_out(sources, shared):
    pairs = TextPairs(sources, [f"target {n}" for n in range(600)], "pairs")
    splits = held_out(pairs)

    def alike(texts):
        return {" ".join(unicodedata.normalize("NFC", text).split()) for text in texts}

    common = alike(splits.train.sources) & alike(splits.validation.sources)
    assert len(splits.train) + len(splits.validation) == 600
    assert 50 < len(splits.validation) <= 120
    assert bool(common) == bool(shared)
    notes = shared_notes(splits)
    assert bool(notes) == bool(shared)
    assert not shared or notes[0].startswith(
        "Note: 60 of 60 sources of the validation data are trained on too"
    )


def test_a_source_of_another_corpus_is_not_held_out():
    pairs = TextPairs([f"{n}" for n in range(600)], ["t"] * 600, "one")
    other = TextPairs([f"{n}" for n in range(580)], ["t"] * 580, "other")
    splits = held_out(pairs, others=[other])
    assert set(splits.validation.sources) == {str(n) for n in range(580, 600)}
    assert shared_notes(runs.DataSplits([splits.train, other], splits.validation, None)) == []


def test_validation_and_test_data_that_are_trained_on_are_told():
    pairs = TextPairs([f"{n}" for n in range(90)], ["t"] * 90, "one")
    few = TextPairs(["3", "x"], ["t", "t"], "few")
    notes = shared_notes(runs.DataSplits(pairs, few, pairs))
    assert [note.split(",")[0] for note in notes] == [
        "Note: 1 of 2 sources of the validation data are trained on too",
        "Note: 90 of 90 sources of the test data are trained on too",
    ]
    line = "a line of more than forty characters, number"
    new = PlainText("\n".join(f"{line} {n}" for n in range(90)), "text")
    old = PlainText("\n".join(f"{line} {n}" for n in range(5)) + "\nshort\nshort", "text")
    assert shared_notes(runs.DataSplits(*new.split(at_line_breaks=True), None)) == []
    [note] = shared_notes(runs.DataSplits(new, old, None))
    assert note.startswith("Note: 5 of 5 long lines of the validation data")


def test_a_pair_that_is_too_long_is_named_with_its_line_in_the_users_file(tmp_path):
    # Every tenth pair is held out, and the others move up.
    lines = [b"%d\r\n" % line for line in range(1, 401)]
    for line in (71, 230, 398):
        lines[line - 1] = b"%d\r\n" % (10**20 + line)
    (tmp_path / "a.x.gz").write_bytes(gzip.compress(b"\xef\xbb\xbf" + b"".join(lines)))
    (tmp_path / "a.y").write_bytes(b"b\n" * 400)
    (tmp_path / "pairs.tsv").write_bytes(b"".join(line.strip() + b"\tb\n" for line in lines))
    for data in ([tmp_path / "a.x.gz", tmp_path / "a.y"], [tmp_path / "pairs.tsv"]):
        splits = runs.open_splits(runs.default_recipe(data))
        of_user = [splits.train.sources.line(row) for row in range(len(splits.train))]
        assert sorted({*range(1, 401)} - {*of_user}) == [
            splits.validation.sources.line(row) for row in range(len(splits.validation))
        ]
        batches = translation_batches(splits.train, ByteTokenizer(), ByteTokenizer(), 64, 16)
        assert [*batches.over_long.values()] == [tuple(sorted({71, 230, 398} & {*of_user}))]


def test_data_that_cannot_be_used_say_why(tmp_path):
    with pytest.raises(ValueError, match="give no files for them"):
        runs.open_splits(runs.Recipe.load("dates").replace(validation=["a.tsv"]))
    with pytest.raises(ValueError, match="Received 3: a b c"):
        runs.open_splits(runs.default_recipe(["a", "b", "c"]))
    (tmp_path / "few.tsv").write_text("a\tb\n" * 9)
    with pytest.raises(ValueError, match="9 pairs, too few to hold some out"):
        runs.open_splits(runs.default_recipe([tmp_path / "few.tsv"]))


def test_a_free_folder_is_the_first_that_does_not_exist(tmp_path):
    assert runs.free_folder(tmp_path / "run") == tmp_path / "run"
    (tmp_path / "run").mkdir()
    (tmp_path / "run-2").mkdir()
    assert runs.free_folder(tmp_path / "run") == tmp_path / "run-3"


def test_sizes_and_changes_make_new_recipes():
    base = RECIPE.with_size("base").replace(epochs=7, seed=None)
    sizes = base.model_arguments
    assert (sizes["hidden_dim"], sizes["num_encoder_layers"], base.epochs, base.seed) == (512, 6, 7, 0)
    assert sizes["max_sequence_length"] == 16
    assert RECIPE.model["hidden_dim"] == 8
    with pytest.raises(ValueError, match="`size` must be one of tiny, base, big"):
        RECIPE.with_size("huge")


def test_evaluation_reports_scores_and_signatures(run):
    _, translator = run
    evaluation = runs.evaluate(translator, make_data().test, num_beams=1)
    assert evaluation.num_beams == 1
    assert "tok:13a" in evaluation.bleu_signature
    assert "greedy" in evaluation.report()
    assert f"BLEU {evaluation.bleu:.2f}" in evaluation.report()


@pytest.mark.slow
def test_a_served_answer_that_differs_is_found_out(run, tmp_path):
    folder, translator = run
    version_folder = translator.export(tmp_path / "capitals")
    assert runs.check_export(translator, version_folder, ["ae", "bf"]) == translator(["ae", "bf"])
    stranger = keras_attn.Translator.load(folder / "translator")
    embeddings = stranger.model.target_embedding.token.embeddings
    embeddings.assign(np.random.default_rng(1).normal(size=embeddings.shape))
    with pytest.raises(RuntimeError, match="translates 'ae' as"):
        runs.check_export(stranger, version_folder, ["ae"])


@pytest.mark.extended
def test_only_training_draws_segmentations(tmp_path, monkeypatch):
    drawn, drop = [], BpeDropout.__call__

    def recorded(self, values, *arguments):
        drawn.append(values)
        return drop(self, values, *arguments)

    monkeypatch.setattr(BpeDropout, "__call__", recorded)
    data = make_data()
    training = TextPairs([f"x{text}" for text in data.train.sources], data.train.targets, "training")
    recipe = RECIPE.replace(tokenizer="bpe", vocabulary_size=289, subword_sampling=0.2, seed=3, epochs=2)
    translator = runs.train(data._replace(train=training), tmp_path / "run", recipe, verbose=0)
    assert len(drawn) >= 4  # two epochs, two sides
    tokenizer = translator.source_tokenizer
    for number, values in enumerate(drawn):
        ends = np.flatnonzero(values == tokenizer.end_token_id) + 1
        rows = [ids.tolist() for ids in np.split(values, ends)[:-1]]
        assert tokenizer.decode(rows) == [training.sources, training.targets][number % 2]
        assert [ids[number % 2 : -1] for ids in rows] == tokenizer.encode(tokenizer.decode(rows))
