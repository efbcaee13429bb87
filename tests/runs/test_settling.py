"""The same words give the same run, or the same error, on the command line and in Python."""

import dataclasses
import json
import pathlib

import numpy as np
import pytest
from helpers_recipes import TINY, record_runs
from helpers_seed import set_seed

import keras_attn
import keras_attn_cli
from keras_attn import runs
from keras_attn.runs.recipe_fields import fields_where
from keras_attn.text import ByteTokenizer

FLAGS = {"start_from": "from"}
PAIRS = ["a.x", "a.y"]
RECIPE = runs.Recipe(
    model=TINY,
    data=("a.x", "a.y"),
    tokenizer="bytes",
    max_tokens=64,
    epochs=3,
    steps_per_epoch=5,
    warmup_steps=2,
)
PLANNED = dataclasses.replace(RECIPE, minutes=5.0, schedule="cosine")
STUDENT = dataclasses.replace(RECIPE, distill={"teachers": ["teacher"]})
TEXT = runs.Recipe.load("plain_text").replace(data=("t.txt",), epochs=3, steps_per_epoch=5, warmup_steps=2)


@pytest.fixture(scope="module")
def material(tmp_path_factory):
    """A folder with data, a teacher, and what runs have left in their folders."""
    folder = tmp_path_factory.mktemp("material")
    for name, letter in (("a.x", "a"), ("a.y", "A"), ("b.x", "b"), ("b.y", "B")):
        (folder / name).write_text("".join(f"{letter} {n} {n % 7} {n % 5}\n" for n in range(120)))
    (folder / "t.txt").write_text("".join(f"line {n} of a text\n" for n in range(900)))
    (folder / "recipe.toml").write_text(
        'data = ["a.x", "a.y"]\ntokenizer = "bytes"\nepochs = 4\nwarmup_steps = 2\n[model]\nsize = "tiny"\n'
    )
    (folder / "planned.toml").write_text(
        (folder / "recipe.toml").read_text().replace("epochs = 4\nwarmup_steps = 2", "minutes = 5")
    )
    (folder / "both.toml").write_text(f"minutes = 5\n{(folder / 'recipe.toml').read_text()}")
    set_seed(1)
    model = keras_attn.models.Seq2SeqTransformer.from_sizes(
        259, 1, 1, hidden_dim=8, num_heads=2, intermediate_dim=11, max_sequence_length=32
    )
    keras_attn.Translator(model, ByteTokenizer(), ByteTokenizer()).save(folder / "teacher")
    started = dataclasses.replace(RECIPE, model={}, start_from="teacher", start_options={})
    recipes = {
        "fresh": RECIPE,
        "planned": PLANNED,
        "student": STUDENT,
        "text": TEXT,
        "started": started,
        "in_python": dataclasses.replace(RECIPE, data=()),
    }
    for name, recipe in recipes.items():
        for ended in (False, True):
            run = folder / (f"{name}_ended" if ended else name)
            run.mkdir()
            results = {"ended": ended, "training_seconds": 60.0}
            record = {"recipe": dataclasses.asdict(recipe), "data": {}, "results": results}
            (run / "run.json").write_text(json.dumps(record))
    return folder


def arguments_of(command, words):
    """The command line of some words; `None` as a name stands for what has no flag."""
    arguments = [command]
    for name, value in words.items():
        if name in ("data", "teachers") and command == "distill" and name == "teachers":
            arguments[1:1] = value
        elif isinstance(value, bool):
            arguments.append(f"--{'' if value else 'no-'}{name.replace('_', '-')}")
        elif value is not None:
            flag = f"--{FLAGS.get(name, name).replace('_', '-')}"
            arguments += [flag, *map(str, value if isinstance(value, list) else [value])]
    return arguments


TRAIN = [
    {"data": PAIRS},
    {"data": PAIRS, "epochs": 4},
    {"data": PAIRS, "minutes": 5.0, "seed": 3},
    {"data": PAIRS, "minutes": 5.0, "epochs": 3},
    {"data": PAIRS, "minutes": 5.0, "warmup_steps": 3},
    {"data": PAIRS, "warmup_steps": 3000},
    {"data": PAIRS, "size": "tiny", "max_tokens": 128, "gradient_accumulation_steps": 2},
    {"data": PAIRS, "size": "huge"},
    {"data": PAIRS, "tokenizer": "bytes", "vocabulary_size": 300, "patience": 2, "dtype": "float32"},
    {"data": PAIRS, "validation": ["b.x", "b.y"], "test": ["b.x", "b.y"], "output": "new"},
    {"data": PAIRS, "learning_rate": -1.0},
    {"data": PAIRS, "subword_sampling": 0.1},
    {"data": ["dates"], "seed": 5, "epochs": 2},
    {"data": ["dates"], "size": "base"},
    {"data": ["dates"], "test": ["a.x", "a.y"]},
    {"data": ["a.x", "b.x", "b.y"]},
    {"data": ["none.x", "none.y"]},
    {},
    {"output": "new"},
    {"recipe": "recipe.toml"},
    {"recipe": "recipe.toml", "data": ["b.x", "b.y"], "epochs": 7},
    {"recipe": "recipe.toml", "minutes": 3.0},
    {"recipe": "recipe.toml", "start_from": "teacher"},
    {"recipe": "planned.toml", "epochs": 3},
    {"recipe": "planned.toml", "warmup_steps": 3},
    {"recipe": "both.toml"},
    {"recipe": "none.toml"},
    {"recipe": "fresh", "output": "new"},
    *(
        {"output": run, **words}
        for run in ("fresh", "fresh_ended", "planned", "planned_ended")
        for words in (
            {},
            {"epochs": 40},
            {"epochs": 2},
            {"minutes": 10.0},
            {"minutes": 10.0, "epochs": 40},
            {"warmup_steps": 7},
            {"data": PAIRS},
            {"data": PAIRS, "epochs": 40},
            {"data": ["b.x", "b.y"]},
            {"seed": 3},
            {"size": "tiny"},
            {"start_from": "teacher"},
        )
    ),
    {"output": "student", "epochs": 9},
    {"output": "student", "minutes": 9.0},
    {"output": "in_python"},
    {"output": "in_python", "data": PAIRS},
    {"data": PAIRS, "start_from": "teacher"},
    {"data": PAIRS, "start_from": "teacher", "minutes": 2.0, "learning_rate": 0.01},
    {"data": PAIRS, "start_from": "teacher", "size": "tiny"},
    {"data": PAIRS, "start_from": "teacher", "tokenizer": "bpe", "vocabulary_size": 300},
    {"data": PAIRS, "start_from": "teacher", "source_language": "en"},
    {"data": PAIRS, "start_from": "teacher", "text_prefix": "to x: "},
    {"data": PAIRS, "start_from": "none"},
    {"data": PAIRS, "text_prefix": "to x: "},
    {"data": PAIRS, "purpose": "x", "output": "new"},
    {"output": "started"},
    {"output": "started", "start_from": "teacher", "epochs": 9},
    {"output": "started", "start_from": "other"},
    {"data": ["t.txt"], "language_model": True},
    {"data": ["t.txt"], "language_model": True, "documents": True, "minutes": 2.0},
    {"data": ["t.txt"], "language_model": True, "tokenizer": "bpe", "epochs": 3},
    {"data": ["t.txt"], "language_model": True, "tokenizer": "wordpiece"},
    {"data": ["t.txt"], "language_model": True, "start_from": "teacher"},
    {"data": ["t.txt"]},
    {"recipe": "recipe.toml", "language_model": True},
    {"output": "text", "epochs": 9},
    {"output": "text", "start_from": "teacher"},
    {"output": "text_ended", "minutes": 9.0, "warmup_steps": 3},
]
DISTILL = [
    {},
    {"teachers": ["teacher"]},
    {"teachers": ["none"], "data": PAIRS},
    {"teachers": ["teacher"], "data": PAIRS},
    {"teachers": ["teacher"], "data": PAIRS, "references": False, "layers": "2+1", "teacher_num_beams": 3},
    {"teachers": ["teacher"], "data": PAIRS, "size": "tiny", "epochs": 3, "validation": ["b.x", "b.y"]},
    {"teachers": ["teacher"], "data": PAIRS, "layers": "2"},
    {"teachers": ["teacher"], "data": ["dates"], "teacher_length_penalty": 0.5, "output": "new"},
    {"teachers": ["teacher"], "recipe": "recipe.toml", "seed": 4},
    {"teachers": ["teacher"], "recipe": "planned.toml"},
    {"output": "student"},
    {"output": "student_ended", "epochs": 9},
    {"output": "student", "data": ["b.x", "b.y"]},
    {"output": "fresh", "teachers": ["teacher"]},
]
TABLE = [*(("train", words) for words in TRAIN), *(("distill", words) for words in DISTILL)]


def in_python(command, words):
    words = dict(words)
    folder = words.pop("output", None)
    if command == "train":
        runs.train(words.pop("data", None), folder, words.pop("recipe", None), **words)
    else:
        renamed = {name.removeprefix("teacher_"): value for name, value in words.items()}
        runs.distill(renamed.pop("teachers", ()), folder, **renamed)


# A default run takes every fourth row.
ROWS = [
    pytest.param(*row, marks=[pytest.mark.extended] if number % 4 else []) for number, row in enumerate(TABLE)
]


@pytest.mark.parametrize(
    ("command", "words"),
    ROWS,
    ids=lambda x: x if isinstance(x, str) else "-".join(f"{k}={v}" for k, v in x.items()),
)
def test_the_command_and_python_settle_alike(material, monkeypatch, capsys, command, words):
    monkeypatch.chdir(material)
    begun = record_runs(monkeypatch)
    code = keras_attn_cli.main(arguments_of(command, words))
    printed = capsys.readouterr()
    if code:
        assert code == 2
        with pytest.raises((ValueError, OSError)) as error:
            in_python(command, words)
        text = " ".join(str(error.value).split())
        if error.value.__class__ is FileNotFoundError and error.value.filename:
            text = f"{error.value.filename} does not exist. Check the path."
        assert printed.err == f"keras-attn: error: {text}\n"
        assert begun == []
        return
    in_python(command, words)
    assert capsys.readouterr().out == printed.out
    of_command, of_python = begun
    assert of_command.recipe == of_python.recipe
    assert of_command.folder == of_python.folder
    assert describe(of_command.data) == describe(of_python.data)


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        ({"folder": "fresh"}, {}),
        ({"folder": "fresh", "epochs": 40}, {"epochs": 40}),
        ({"folder": "fresh_ended", "minutes": 10.0}, {"minutes": 10.0}),
        # Epochs end the plan for some minutes.
        ({"folder": "planned", "epochs": 40}, {"epochs": 40, "minutes": None, "schedule": "cosine"}),
        ({"folder": "planned", "minutes": 10.0}, {"minutes": 10.0, "schedule": "cosine"}),
        (
            {"folder": "planned", "data": ["b.x", "b.y"]},
            {"minutes": 5.0, "schedule": "cosine", "data": ("b.x", "b.y")},
        ),
        ({"folder": "new", "recipe": "fresh", "epochs": 4, "minutes": None}, {"epochs": 4}),
        ({"folder": "new", "recipe": PLANNED, "epochs": 7}, {"epochs": 7, "schedule": "cosine"}),
    ],
)
def test_words_replace_what_the_run_in_the_folder_or_the_recipe_says(material, monkeypatch, words, changes):
    monkeypatch.chdir(material)
    begun = record_runs(monkeypatch)
    runs.train(verbose=0, **words)
    assert begun[0].recipe == dataclasses.replace(RECIPE, **changes)


def test_words_that_exclude_each_other_or_that_nobody_knows_are_refused(material, monkeypatch):
    monkeypatch.chdir(material)
    for words, message in (
        (
            {"minutes": 5, "epochs": 3, "schedule": "cosine"},
            "Leave `epochs` and `schedule` out, or `minutes`",
        ),
        (
            {"folder": "planned", "steps_per_epoch": 3},
            "Leave `steps_per_epoch` out, or `minutes`. Received: minutes=5",
        ),
        ({"size": "tiny", "model": TINY}, "Give `size` or `model`, not both"),
        (
            {"recipe": "both.toml"},
            "both.toml sets `minutes`, which plans .* Leave `epochs` and `warmup_steps` out",
        ),
        ({"data": runs.open_splits(RECIPE)}, "`folder` must be given for data that are no files"),
        ({"start_from": "teacher", "model": TINY}, "those of the folder. Leave `model` out"),
        ({"folder": "in_python", "data": None}, r"on with it there, by runs\.train\(data, 'in_python'\)"),
    ):
        with pytest.raises(ValueError, match=message):
            runs.train(words.pop("data", PAIRS), verbose=0, **words)
    with pytest.raises(TypeError, match="no setting `warm_up`"):
        runs.train(PAIRS, warm_up=3)
    with pytest.raises(ValueError, match=r"its teachers'\. Leave `tokenizer`, `vocabulary_size` out"):
        runs.distill(["teacher"], data=PAIRS, tokenizer="bytes", vocabulary_size=300)
    for words in ({"size": "tiny"}, {"layers": "2+1"}):
        with pytest.raises(ValueError, match="or `model`, not both"):
            runs.distill(["teacher"], data=PAIRS, model=TINY, **words)
    with pytest.raises(TypeError, match="no setting `purpose`"):
        runs.distill(["teacher"], data=PAIRS, purpose="x")


@pytest.mark.parametrize(
    ("command", "words", "arguments"),
    [
        ("train", {"data": "dates", "epochs": 2}, ["--data", "dates", "--epochs", "2"]),
        (
            "train",
            {
                "data": PAIRS,
                "minutes": 5,
                "validation": ("b.x", "b.y"),
                "recipe": pathlib.Path("recipe.toml"),
            },
            ["a.x", "a.y", "--minutes", "5", "--validation", "b.x", "b.y", "--recipe", "recipe.toml"],
        ),
        (
            "train",
            {"data": tuple(PAIRS), "start_from": pathlib.Path("teacher"), "epochs": np.int64(3)},
            [*PAIRS, "--from", "teacher", "--epochs", "3"],
        ),
        ("train", {"data": PAIRS, "minutes": 5, "epochs": 3}, [*PAIRS, "--minutes", "5", "--epochs", "3"]),
        ("train", {"recipe": "dates", "seed": 4}, ["--recipe", "dates", "--seed", "4"]),
        (
            "train",
            {"data": PAIRS, "recipe": "recipe.toml", "test": "t.tsv"},
            [*PAIRS, "--recipe", "recipe.toml", "--test", "t.tsv"],
        ),
        ("distill", {"teachers": "teacher", "data": PAIRS}, ["teacher", "--data", *PAIRS]),
        (
            "distill",
            {"teachers": pathlib.Path("teacher"), "data": PAIRS, "layers": [2, 1]},
            ["teacher", "--data", *PAIRS, "--layers", "2+1"],
        ),
        (
            "distill",
            {"teachers": ["teacher"], "folder": "student", "epochs": 9},
            ["teacher", "--output", "student", "--epochs", "9"],
        ),
        (
            "distill",
            {"teachers": ["teacher"], "data": PAIRS, "size": "tiny", "layers": (3, 1)},
            ["teacher", "--data", *PAIRS, "--size", "tiny", "--layers", "3+1"],
        ),
    ],
)
def test_words_as_they_are_written_in_python_mean_the_same(
    material, monkeypatch, capsys, command, words, arguments
):
    monkeypatch.chdir(material)
    begun = record_runs(monkeypatch)
    code = keras_attn_cli.main([command, *arguments])
    printed = capsys.readouterr()
    if code:
        with pytest.raises((ValueError, OSError)) as error:
            getattr(runs, command)(**words)
        assert printed.err == f"keras-attn: error: {' '.join(str(error.value).split())}\n"
        return
    getattr(runs, command)(**words)
    assert capsys.readouterr().out == printed.out
    of_command, of_python = begun
    assert repr(of_command.recipe) == repr(of_python.recipe)
    assert of_command.folder == of_python.folder


def test_a_student_that_goes_on_keeps_its_settings(material, monkeypatch):
    """The recipe of the run in the folder comes before that of the teacher's, as in `train`."""
    monkeypatch.chdir(material)
    begun = record_runs(monkeypatch)
    runs.distill(["teacher"], "student", epochs=9, verbose=0)
    assert begun[0].recipe == dataclasses.replace(STUDENT, epochs=9)


def test_a_setting_that_is_fitted_is_declared_so(material, monkeypatch):
    monkeypatch.chdir(material)
    begun = record_runs(monkeypatch)
    runs.train(PAIRS, verbose=0)
    runs.train(PAIRS, start_from="teacher", verbose=0)
    runs.train(["t.txt"], language_model=True, verbose=0)
    runs.distill("teacher", data=PAIRS, verbose=0)
    named = {"data", "start_from", "start_options", "distill"}
    for run in begun:
        default = runs.Recipe.load("plain_text" if run.recipe.is_language_model else "text_pairs")
        changed = {name for name, value in vars(run.recipe).items() if value != getattr(default, name)}
        assert changed - named <= set(fields_where("fitted"))


def test_languages_of_a_users_own_data_are_those_of_the_model_to_begin_with(material, monkeypatch):
    monkeypatch.chdir(material)
    monkeypatch.setattr(
        "keras_attn.runs.settling.fit_start",
        lambda data, recipe, given: runs.FittedRecipe(recipe, {"a": "b"}),
    )
    begun = record_runs(monkeypatch)
    words = {"source_language": "en", "target_language": "fr", "purpose": "translation_en_to_fr"}
    for data in (PAIRS, runs.open_splits(RECIPE).train, ["dates"]):
        runs.train(data, "new", verbose=0, start_from="teacher", **words)
    languages = {"source_language": "en", "target_language": "fr"}
    assert [run.recipe.start_options for run in begun] == [
        {"purpose": "translation_en_to_fr", **languages},
        {"purpose": "translation_en_to_fr", **languages},
        {"purpose": "translation_en_to_fr"},
    ]


def describe(data):
    def texts(part):
        return part.text if hasattr(part, "text") else [list(part.sources), list(part.targets)]

    return [part and texts(part) for part in data]
