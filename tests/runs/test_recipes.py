"""Recipes as files and as Python: the same values, and clear words about anything else."""

import csv
import dataclasses
import inspect
import json
import pathlib
import re

import keras
import make_settings
import numpy as np
import pytest

import keras_attn_cli
from keras_attn import runs
from keras_attn.data import TextPairs
from keras_attn.runs.optimizer import make_optimizer
from keras_attn.runs.recipe_fields import PLANNED

ROOT = pathlib.Path(__file__).parents[2]
FOLDER = ROOT / "keras_attn" / "runs" / "recipes"
RESULTS = ROOT / "docs" / "results"
DOCUMENT = (ROOT / "docs" / "archive" / "results.md").read_text(encoding="utf-8")
DECLARED = {field.name: field.metadata["setting"] for field in dataclasses.fields(runs.Recipe)}
# What the recipes of the first students said.
FIRST_STUDENTS = {"schedule": "inverse_square_root", "epochs": 27, "num_averaged": 10}
# Of a folder `docs/results/NAME-sSEED`: its recipe, and what the command line replaced in it.
RECIPE_OF_RUN = {
    "dates": ("dates", {}),
    "tok": ("multi30k_tokenized", {}),
    "tok-amx": ("multi30k_tokenized", {}),
    "tok-cosine": ("multi30k_tokenized", {"schedule": "cosine", "num_averaged": 10}),
    "tok-gpu": (
        "multi30k_tokenized",
        {
            "schedule": "cosine",
            "num_averaged": 10,
            "epochs": 100,
            "max_tokens": 4096,
            "learning_rate": 0.005,
            "padding": "packed",
            "dtype": "mixed_bfloat16",
        },
    ),
    "tok-fr-cosine": (
        "multi30k_tokenized",
        {"schedule": "cosine", "num_averaged": 10, "target_language": "fr"},
    ),
    "tok-sinusoidal": ("multi30k_tokenized", {"model": runs.Recipe.load("multi30k").model, "epochs": 90}),
    "raw": ("multi30k", {}),
    "raw-de-en": ("multi30k", {"source_language": "de", "target_language": "en"}),
    "tok-student-6-1": (
        "multi30k_6_1",
        {**FIRST_STUDENTS, "distill": {"references": True, "num_beams": 5, "teachers": ["runs/bd-s1-avg"]}},
    ),
    "tok-student-4-4": (
        "multi30k_6_1",
        {
            **FIRST_STUDENTS,
            "model": {
                **runs.Recipe.load(FOLDER / "multi30k_6_1.toml").model,
                "num_encoder_layers": 4,
                "num_decoder_layers": 4,
            },
            "distill": {"references": True, "num_beams": 5, "teachers": ["runs/tok-s1", "runs/tok-s2"]},
        },
    ),
    "tok-student-4-4-cosine": (
        "multi30k_4_4",
        {"distill": {"references": True, "num_beams": 5, "teachers": ["runs/cos-s1", "runs/cos-s2"]}},
    ),
    "tok-student-6-1-cosine": (
        "multi30k_4_4",
        {
            "model": runs.Recipe.load(FOLDER / "multi30k_6_1.toml").model,
            "distill": {"references": True, "num_beams": 5, "teachers": ["runs/cos-s1", "runs/cos-s2"]},
        },
    ),
    "tok-student-6-1-of-students": (
        "multi30k_6_1",
        {
            "distill": {
                "references": True,
                "num_beams": 5,
                "teachers": ["runs/kd44-cos-s1", "runs/kd44-cos-s2", "runs/kd44-cos-s3"],
            }
        },
    ),
    "rnn": ("multi30k_rnn", {}),
    "reverse": ("reverse", {}),
    "shakespeare": ("shakespeare", {}),
}


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.toml")), ids=lambda file: file.stem)
def test_every_recipe_can_be_read_and_goes_through_json(file, tmp_path):
    recipe = runs.Recipe.load(file)
    assert recipe.model_arguments["hidden_dim"] > 0
    record = json.dumps({"recipe": dataclasses.asdict(recipe)})
    (tmp_path / "run.json").write_text(record, encoding="utf-8")
    assert runs.Recipe.load(tmp_path) == runs.Recipe.load(tmp_path / "run.json") == recipe
    recipe.save(tmp_path / "written.toml")
    assert runs.Recipe.load(tmp_path / "written.toml") == recipe
    assert runs.Recipe.load(file.stem) == recipe


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.toml")), ids=lambda file: file.stem)
def test_every_recipe_says_what_it_is_for(file):
    text = file.read_text(encoding="utf-8")
    assert re.search(r"^# Source: \S", text, re.MULTILINE)
    assert re.search(r"^# Cost: \S", text, re.MULTILINE)
    [command] = re.findall(r"^# Command: (keras-attn .+)$", text, re.MULTILINE)
    has_data = bool(runs.Recipe.load(file).data)
    assert command.endswith(f" --recipe {file.stem}") == has_data


def test_a_recipe_in_the_way_is_no_built_in_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dates").mkdir()  # a folder that is no run
    assert runs.Recipe.load("dates").data == ("dates",)
    runs.Recipe.load("reverse").replace(epochs=77).save("dates/mine.toml")
    assert runs.Recipe.load("dates/mine.toml").epochs == 77
    with pytest.raises(FileNotFoundError, match=r"There is no recipe date\. .* built-in: dates, multi30k, "):
        runs.Recipe.load("date")


def test_a_written_recipe_says_what_its_settings_are(tmp_path):
    recipe = runs.Recipe.load("dates").replace(
        data=(("a.en", "a.de"), ("b \"'\\.tsv",)), data_weights=(1, 0.5), minutes=7, schedule="cosine"
    )
    recipe.save(tmp_path / "mine.toml")
    text = (tmp_path / "mine.toml").read_text(encoding="utf-8")
    # What the minutes plan is not written: a file that sets both is refused.
    again = runs.Recipe.load(tmp_path / "mine.toml")
    assert again == recipe.replace(**{name: getattr(again, name) for name in PLANNED})
    for name in ("data_weights", "minutes", "model"):
        assert f"# {DECLARED[name].help}\n{name} = " in text or f"# {DECLARED[name].help}\n[{name}]" in text
    with pytest.raises(ValueError, match="TOML has no word for None"):
        dataclasses.replace(recipe, save_minutes=None).save(tmp_path / "mine.toml")


def test_every_setting_is_declared_whole():
    for name, declared in DECLARED.items():
        assert re.fullmatch(r"\S.*[^.\s]", declared.help), name
        assert f"\n    {name}: " in inspect.getdoc(runs.Recipe)


def test_the_table_of_the_docs_is_what_the_declarations_say():
    written = make_settings.PAGE.read_text(encoding="utf-8")
    assert make_settings.page(written) == written, "python docs/make_settings.py"


def test_options_of_the_command_line_come_from_the_declarations():
    parsers = next(
        action.choices for action in keras_attn_cli.make_parser()._actions if action.dest == "command"
    )
    for command, parser in parsers.items():
        options = {action.dest: action for action in parser._actions}
        assert all(action.help for action in options.values()), command
        for name, declared in DECLARED.items():
            if command in declared.commands:
                purpose = declared.purposes.get(command)
                said = (
                    declared.help if purpose is None else purpose + declared.help[declared.help.index(":") :]
                )
                assert options[name].help.replace("%%", "%") == said


@pytest.mark.parametrize(
    "changes",
    [
        {"minutes": 30},
        {"learning_rate": np.float32(0.5), "epochs": np.int64(3)},
        {"data": "dates", "validation": "pairs.tsv", "test": pathlib.Path("pairs.tsv")},
        {"data": [["a.en", "a.de"], [pathlib.Path("b.tsv")]], "data_dir": pathlib.Path("here")},
        {"bucket_boundaries": [8, 16]},
    ],
)
def test_values_of_python_become_those_of_a_file(tmp_path, changes):
    recipe = runs.Recipe.load("dates").replace(**changes)
    recipe.save(tmp_path / "mine.toml")
    again = runs.Recipe.load(tmp_path / "mine.toml")
    assert repr(again) == repr(
        dataclasses.replace(recipe, **{name: getattr(again, name) for name in PLANNED})
    )
    assert json.loads(json.dumps(dataclasses.asdict(recipe))) == json.loads(
        json.dumps(dataclasses.asdict(runs.Recipe(**dataclasses.asdict(recipe))))
    )


@pytest.mark.parametrize(
    "run", sorted(filter(pathlib.Path.is_dir, RESULTS.iterdir())), ids=lambda run: run.name
)
def test_the_runs_of_the_results_are_runs_of_the_recipes(run):
    recipe = runs.Recipe.load(run)
    name, _, seed = run.name.rpartition("-s")
    file, changes = RECIPE_OF_RUN[name]
    assert recipe == runs.Recipe.load(FOLDER / f"{file}.toml").replace(seed=int(seed), **changes)
    record = json.loads((run / "run.json").read_text(encoding="utf-8"))
    assert record["results"]["ended"]
    with open(run / "history.csv", encoding="utf-8", newline="") as file:
        epochs = list(csv.DictReader(file))
    last = float(epochs[-1][f"val_{recipe.metric}"])
    stopped = recipe.stop_at is not None and recipe.reaches(last, recipe.stop_at)
    assert (len(epochs) == recipe.epochs) is not stopped
    score = record["results"]["test" if record["data"]["test"] else "validation"]
    shown = f"{score['bleu']:.2f}" if "bleu" in score else f"{score['loss']:.4f}"
    assert shown in DOCUMENT


def test_several_corpora_with_weights(tmp_path):
    (tmp_path / "a.tsv").write_text("".join(f"a{row}\tb{row}\n" for row in range(31)))
    (tmp_path / "b.tsv").write_text("".join(f"c{row}\td{row}\n" for row in range(7)))
    (tmp_path / "recipe.toml").write_text(
        f'data = [["{tmp_path}/a.tsv"], ["{tmp_path}/b.tsv"]]\ndata_weights = [1, 2.5]\n[model]\nsize = "tiny"\n'
    )
    recipe = runs.Recipe.load(tmp_path / "recipe.toml")
    assert recipe.data_weights == (1, 2.5)
    splits = runs.open_splits(recipe)
    assert [len(part) for part in splits.train] == [28, 7]  # three of the first are held out
    assert len(splits.validation) == 3
    assert runs.data_name(recipe.data) == "a"


def test_files_and_built_in_data_go_together(tmp_path):
    (tmp_path / "val.tsv").write_text("a\tb\n" * 3)
    recipe = runs.Recipe.load("dates").replace(data=(("dates",), (str(tmp_path / "val.tsv"),)))
    splits = runs.open_splits(recipe.replace(validation=(str(tmp_path / "val.tsv"),)))
    assert [part.name for part in splits.train][1] == "val.tsv"
    assert splits.validation == TextPairs(["a"] * 3, ["b"] * 3, "val.tsv")
    assert splits.test.name == runs.open_splits(runs.Recipe.load("dates")).test.name


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("learning_rat = 1", r"sets learning_rat, which no recipe has\. It may set: averaged, "),
        ("epochs = ", r"is no recipe: TOMLDecodeError"),
        ("epochs = 3", r"must have a table \[model\]"),
        (
            '[model]\nsize = "tiny"\nnum_head = 3',
            r"`model` sets num_head, which Seq2SeqTransformer does not have\. It may set: activation, ",
        ),
        (
            "[model]\nhidden_dim = 8\nnum_heads = 2\nintermediate_dim = 5",
            r"`model` must set num_decoder_layers, num_encoder_layers\. Received: model=\{'hidden_dim': 8, ",
        ),
        ('[model]\nkind = "rnn"\nsize = "tiny"', "A named `size` is only for an encoder-decoder Transformer"),
        (
            'schedule = "step"\n[model]\nsize = "tiny"',
            "`schedule` must be one of 'inverse_square_root', 'noam'",
        ),
        (
            'subword_sampling = 0.1\ntokenizer = "unigram"\n[model]\nsize = "tiny"',
            r"`subword_sampling` is for translators with `tokenizer` \"bpe\"\. Received: .*='unigram'",
        ),
        (
            'subword_sampling = 1\n[model]\nsize = "tiny"',
            r"`subword_sampling` must be a number in \[0, 1\)\. Received: subword_sampling=1",
        ),
    ],
)
def test_a_wrong_file_says_what_is_wrong(tmp_path, text, message):
    (tmp_path / "recipe.toml").write_text(text)
    with pytest.raises(ValueError, match=message):
        runs.Recipe.load(tmp_path / "recipe.toml")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("epochs = 0", "`epochs` must be a positive integer"),
        ("split_digits = 1", "`split_digits` must be true or false"),
        ("data = [1]", "`data` must be names of files"),
        ("validation = 3", "`validation` must be names of files"),
        ("data_weights = [1, 0]", "`data_weights` must be a positive number"),
        ("source_language = 3", "`source_language` must be a text or a path"),
        ('epochs = "many"', "`epochs` must be a positive integer"),
        ("max_tokens = 0.5", "`max_tokens` must be a positive integer"),
        ("learning_rate = -0.1", "`learning_rate` must be a positive number"),
        ("learning_rate = nan", "`learning_rate` must be a positive number"),
        ("label_smoothing = 1.5", "`label_smoothing` must be a number in"),
        ("weight_decay = -1", "`weight_decay` must be a number, 0 or more"),
        ("ema_momentum = 2", "`ema_momentum` must be a number in"),
        ("patience = 0", "`patience` must be a positive integer"),
        ("num_beams = true", "`num_beams` must be a positive integer"),
        ('length_penalty = "long"', "`length_penalty` must be a number"),
        ("seed = 1.5", "`seed` must be an integer from 0"),
        ("bucket_boundaries = [8, 8]", "`bucket_boundaries` must be ascending"),
        ("bucket_boundaries = []", "`bucket_boundaries` must be ascending"),
        ('dtype = "int32"', "`dtype` must be"),
        ('dtype = "float33"', "`dtype` must be"),
        ("save_minutes = -1", "`save_minutes` must be a positive number"),
    ],
)
def test_a_value_that_no_run_could_use_is_named_with_its_file(tmp_path, line, message):
    (tmp_path / "recipe.toml").write_text(f'{line}\n[model]\nsize = "tiny"\n')
    with pytest.raises(ValueError, match=f"recipe.toml: .*{message}"):
        runs.Recipe.load(tmp_path / "recipe.toml")


def test_no_data_is_an_error():
    with pytest.raises(ValueError, match="The recipe names no data"):
        runs.open_splits(runs.Recipe.load("text_pairs"))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("schedule", "peak", "after"),
    [
        # The rate of the update at the end of the warm-up, and of update 90 of 100.
        ("inverse_square_root", 0.01, 0.01 * (10 / 90) ** 0.5),
        ("noam", (64 * 10) ** -0.5, (64 * 90) ** -0.5),
        ("cosine", 0.01, None),
        ("linear", 0.01, 0.01 * 10 / 90),
        ("constant", 0.01, 0.01),
    ],
)
def test_every_schedule_rises_over_the_warm_up(schedule, peak, after):
    recipe = runs.Recipe(model={"size": "tiny"}, schedule=schedule, learning_rate=0.01, warmup_steps=10)
    optimizer = make_optimizer(recipe, hidden_dim=64, total_updates=100)
    rates = []
    variable = keras.Variable(1.0)
    optimizer.build([variable])
    for _ in range(100):
        rates.append(float(optimizer.learning_rate))
        optimizer.iterations.assign_add(1)
    assert rates[9] == max(rates) == pytest.approx(peak, rel=1e-5)
    assert rates[0] == pytest.approx(peak / 10, rel=1e-3)
    if after is not None:
        assert rates[89] == pytest.approx(after, rel=0.02)
    if schedule in ("cosine", "linear"):
        assert rates[99] < 0.02 * peak


def test_weight_decay_leaves_biases_and_norms_alone():
    recipe = runs.Recipe(
        model={"size": "tiny"}, optimizer="adamw", weight_decay=0.5, schedule="constant", warmup_steps=1
    )
    optimizer = make_optimizer(recipe, 64, 100)
    model = keras.Sequential([keras.Input((3,)), keras.layers.LayerNormalization(), keras.layers.Dense(2)])
    before = {weight.path: weight.numpy() + 1.0 for weight in model.trainable_variables}
    for weight in model.trainable_variables:
        weight.assign(before[weight.path])
    optimizer.build(model.trainable_variables)
    zeros = [keras.ops.zeros_like(weight) for weight in model.trainable_variables]
    optimizer.apply(zeros, model.trainable_variables)
    changed = {path for path, value in before.items() if (model_value(model, path) != value).any()}
    assert [path.rpartition("/")[2] for path in changed] == ["kernel"]


def model_value(model, path):
    return next(weight.numpy() for weight in model.trainable_variables if weight.path == path)
