"""A student learns from its teachers' translations, whether or not the run was killed on its way."""

import dataclasses
import json
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest
from helpers_recipes import record_runs
from helpers_seed import set_seed

import keras_attn
import keras_attn_cli
from keras_attn import runs
from keras_attn.data import TextPairs
from keras_attn.models import read_weights
from keras_attn.runs import distillation
from keras_attn.runs.combined_translators import load_ensemble
from keras_attn.runs.distillation import DistillationRun, TeacherTranslations
from keras_attn.runs.processes import Processes
from keras_attn.text import ByteTokenizer, WordPieceTokenizer

CHILD = pathlib.Path(__file__).with_name("train_until_killed.py")
SIZES = {"hidden_dim": 8, "num_heads": 2, "intermediate_dim": 11, "max_sequence_length": 64}
RECIPE = runs.Recipe(
    model={"num_encoder_layers": 1, "num_decoder_layers": 1, **SIZES, "dropout": 0.0},
    max_tokens=128,
    epochs=1,
    warmup_steps=2,
    dtype="float32",
    metric="chrf",
    num_averaged=1,
    num_beams=1,
    max_length=5,
)


def make_teacher(folder, seed, layers=1, tokenizer=None):
    """Saves an untrained translator."""
    set_seed(seed)
    tokenizer = tokenizer or ByteTokenizer()
    model = keras_attn.models.Seq2SeqTransformer.from_sizes(tokenizer.vocabulary_size, 1, layers, **SIZES)
    translator = keras_attn.Translator(model, tokenizer, tokenizer, num_beams=2, max_length=5)
    translator.save(folder)
    return translator


def make_data():
    texts = [f"{a}{b}" for a in "abcd" for b in "efgh"]
    pairs = TextPairs(texts, [text.upper() for text in texts], "capitals")
    return runs.DataSplits(pairs, pairs, None)


class KilledError(Exception):
    pass


def upper(texts):
    return [text.upper() for text in texts]


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(distillation, "_SOURCES_A_PIECE", 5)


SOURCES = [f"text {number}" for number in range(17)]


def open_translations(folder, sources=SOURCES, said=None, **made_with):
    said = [] if said is None else said
    return TeacherTranslations(
        folder / "teacher.jsonl", sources, {"teachers": "one", **made_with}, said.append
    )


@pytest.mark.parametrize("cut", [0, 1, 30])
def test_translations_that_a_kill_has_cut_short_are_gone_on_with(small_pieces, tmp_path, cut):
    calls = []

    def dies_at_the_third(texts):
        calls.append(texts)
        if len(calls) == 3:
            raise KilledError
        return upper(texts)

    with pytest.raises(KilledError):
        open_translations(tmp_path).complete(dies_at_the_third)
    path = tmp_path / "teacher.jsonl"
    path.write_bytes(path.read_bytes()[: -cut or None])
    said = []
    again = open_translations(tmp_path, said=said)
    assert again.done == (2 if cut == 0 else 1)
    again.complete(lambda texts: calls.append(texts) or upper(texts))
    assert again.is_complete
    assert len(calls) == 3 + (2 if cut == 0 else 3)
    assert said == ["Translated 17 of 17 sources; 0 s left"]
    assert open_translations(tmp_path).read() == upper(SOURCES)


def test_translations_of_something_else_are_not_taken(small_pieces, tmp_path):
    open_translations(tmp_path).complete(upper)
    with pytest.raises(ValueError, match=r"made otherwise: sources\."):
        open_translations(tmp_path, ["text", *SOURCES])
    with pytest.raises(ValueError, match=r"made otherwise: teachers\."):
        open_translations(tmp_path, teachers="another")
    path = tmp_path / "teacher.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], lines[2], lines[1]]))
    with pytest.raises(ValueError, match="damaged in line 2"):
        open_translations(tmp_path)
    path.write_bytes(b"no JSON\n")
    with pytest.raises(ValueError, match=r"teacher\.jsonl is damaged"):
        open_translations(tmp_path)


@pytest.mark.extended
def test_several_teachers_are_an_ensemble_and_must_agree_on_tokens(tmp_path):
    for layers in (1, 2):
        make_teacher(tmp_path / str(layers), layers, layers)
    both = load_ensemble([tmp_path / "1", tmp_path / "2"])
    assert [len(member.decoder_blocks) for member in both.model.members] == [1, 2]
    assert (both.num_beams, both.max_length) == (2, 5)
    make_teacher(tmp_path / "words", 3, tokenizer=WordPieceTokenizer.train(["abc ABC"] * 3, 37))
    with pytest.raises(
        ValueError, match=r"words has other source tokenizer, target tokenizer, START, tokens"
    ):
        load_ensemble([tmp_path / "1", tmp_path / "words"])


@pytest.mark.parametrize("references", [True, False])
def test_what_a_student_trains_on(tmp_path, references):
    make_teacher(tmp_path / "teacher", 4)
    distill = {"teachers": [str(tmp_path / "teacher")], "references": references}
    one = make_data().train
    data = runs.DataSplits([one, TextPairs(["x", "y"], ["X", "Y"], "more")], one, None)
    recipe = RECIPE.replace(distill=distill, data_weights=(1.0, 2.0))
    run = DistillationRun(recipe, data, tmp_path / "run", 0, Processes())
    run.save_tokenizers(load_ensemble(distill["teachers"]))
    source, target = run.make_tokenizers()
    assert isinstance(source, ByteTokenizer)
    assert source is target
    run.translations().complete(lambda texts: ["" if text == "y" else f"{text}!" for text in texts])
    [of_one, of_more, *rest], weights = run.training_pairs()
    assert of_one.targets == [f"{text}!" for text in one.sources]
    assert (of_more.sources, of_more.targets) == (["x"], ["x!"])  # a blank translation teaches nothing
    assert rest == (data.train if references else [])
    assert tuple(weights) == ((1.0, 2.0, 1.0, 2.0) if references else (1.0, 2.0))


@pytest.mark.extended
def test_a_student_trains_on_translations_and_references_with_the_tokenizers_of_its_teacher(tmp_path):
    tokenizer = WordPieceTokenizer.train([text for pairs in make_data()[:2] for text in pairs.targets], 41)
    teacher = make_teacher(tmp_path / "teacher", 4, tokenizer=tokenizer)
    recipe = runs.student_recipe([tmp_path / "teacher"], RECIPE, layers="2+1", num_beams=3)
    assert (recipe.model["num_encoder_layers"], recipe.model["num_decoder_layers"]) == (2, 1)
    data, folder = make_data(), tmp_path / "run"
    student = runs.train(data, folder, recipe, verbose=0)
    assert len(student.model.encoder_blocks) == 2
    assert student.source_tokenizer.vocabulary_size == tokenizer.vocabulary_size
    assert student.source_tokenizer.encode(["AB"]) == tokenizer.encode(["AB"])
    translations = teacher(data.train.sources, num_beams=3)
    run = DistillationRun(recipe, data, folder, 0, Processes())
    (taught, references), weights = run.training_pairs()
    assert weights is None
    assert taught.targets == [text for text in translations if text.strip()]
    assert references is data.train
    record = json.loads((folder / "run.json").read_text())
    assert record["recipe"]["distill"] == {"teachers": [str(tmp_path / "teacher")], "num_beams": 3}
    assert runs.Recipe.load(folder) == recipe
    make_teacher(tmp_path / "teacher", 5, tokenizer=tokenizer)  # another one in the same place
    with pytest.raises(ValueError, match=r"holds a run on other data than the folders of the teachers hold"):
        runs.train(data, folder, recipe.replace(epochs=2), verbose=0)


@pytest.mark.extended
def test_a_student_begins_the_same_whether_or_not_its_teacher_was_loaded_in_this_process(tmp_path):
    """A kill after the last translation, before the first state: the run goes on without a teacher."""
    make_teacher(tmp_path / "teacher", 6)
    recipe = RECIPE.replace(distill={"teachers": [str(tmp_path / "teacher")]})

    def new_run(folder):
        (tmp_path / folder).mkdir(exist_ok=True)
        keras.utils.set_random_seed(recipe.seed)  # as a run begins
        return DistillationRun(recipe, make_data(), tmp_path / folder, 0, Processes())

    whole = new_run("whole")
    whole.prepare()
    new_run("killed").translate()
    gone_on_with = new_run("killed")
    gone_on_with.prepare()
    weights, expected = (run.model.get_weights() for run in (gone_on_with, whole))
    assert all(np.array_equal(found, other) for found, other in zip(weights, expected, strict=True))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"model": {**RECIPE.model, "num_heads": 3}}, "`hidden_dim` must be divisible by `num_heads`"),
        ({"subword_sampling": 0.1}, "`subword_sampling` leaves out merges"),
    ],
)
def test_a_wrong_recipe_is_refused_before_anything_is_translated(tmp_path, changes, why):
    make_teacher(tmp_path / "teacher", 6)
    recipe = RECIPE.replace(distill={"teachers": [str(tmp_path / "teacher")]}, **changes)
    with pytest.raises(ValueError, match=why):
        runs.train(make_data(), tmp_path / "run", recipe, verbose=0)
    # The right recipe may follow in the same folder.
    assert {path.name for path in (tmp_path / "run").iterdir()} <= {"lock", "log.txt", "source_tokenizer"}


@pytest.mark.extended
def test_killed_in_either_part_the_student_is_the_same(tmp_path):
    make_teacher(tmp_path / "teacher", 6)

    def train(*lines):
        lines = "".join(
            json.dumps([str(tmp_path / folder), "student", *how]) + "\n" for folder, *how in lines
        )
        child = subprocess.run([sys.executable, str(CHILD)], input=lines, capture_output=True, text=True)
        assert child.returncode == 0, child.stderr
        return [int(code) for code in child.stdout.split()]

    codes = train(
        ("whole", "never", 0),
        ("killed", "translation", 3),
        ("killed", "translation", 1),
        ("killed", "batch", 4),
        ("killed", "renamed", 3),
        ("killed", "never", 0),
    )
    assert codes == [0, -9, -9, -9, -9, 0]
    whole, killed = (tmp_path / folder for folder in ("whole", "killed"))
    assert (whole / "teacher.jsonl").read_bytes() == (killed / "teacher.jsonl").read_bytes()
    arrays, others = (read_weights(folder / "translator" / "model.safetensors") for folder in (whole, killed))
    assert all(np.array_equal(arrays[name], others[name]) for name in arrays)
    assert (killed / "log.txt").read_text().count("Resumed after update") == 2


@pytest.mark.extended
def test_a_part_that_is_an_ensemble_itself_is_refused_by_its_folder(tmp_path):
    for number in (1, 2):
        make_teacher(tmp_path / str(number), number)
    runs.ensemble_translators([tmp_path / "1", tmp_path / "2"], tmp_path / "both")
    with pytest.raises(ValueError, match=r"each be of one Seq2SeqTransformer\. .*both holds a Ensemble"):
        load_ensemble([tmp_path / "1", tmp_path / "both"])


def test_recipes_of_students(tmp_path):
    recipe = runs.student_recipe(
        ["a", "b"], runs.Recipe.load("multi30k_tokenized"), "base", "6+1", references=False
    )
    assert recipe.distill == {"teachers": ["a", "b"], "references": False}
    arguments = recipe.model_arguments
    assert (arguments["num_encoder_layers"], arguments["num_decoder_layers"], arguments["hidden_dim"]) == (
        6,
        1,
        512,
    )
    for layers in ("6", "6+0", "a+1", "6+1+1"):
        with pytest.raises(ValueError, match="`layers` must be"):
            runs.student_recipe(["a"], runs.Recipe.load("multi30k"), layers=layers)
    for distill, message in (
        ({"teacher": ["a"]}, "`distill` may have"),
        ({"teachers": "a"}, "`teachers` must be a list"),
        ({"references": 1}, "`references` must be true or false"),
        ({"num_beams": 0}, "`num_beams`"),
    ):
        with pytest.raises(ValueError, match=message):
            RECIPE.replace(distill=distill)
    with pytest.raises(ValueError, match="trains for `epochs`"):
        RECIPE.replace(distill={}, minutes=3)
    with pytest.raises(ValueError, match="begins with fresh weights"):
        RECIPE.replace(distill={}, model={}, start_from="runs/dates")
    with pytest.raises(ValueError, match=r"needs teachers: `keras-attn distill TEACHER"):
        runs.train(make_data(), tmp_path, RECIPE.replace(distill={}), verbose=0)


def test_settings_are_fitted_to_translations_and_references_together():
    data = make_data()
    recipe = runs.Recipe.load("text_pairs").replace(epochs=3, max_tokens=64)
    both, alone = (
        runs.fit_student_recipe(data, recipe, ["epochs", "max_tokens"], it) for it in (True, False)
    )
    assert "32 training pairs are few" in both.note
    assert "16 training pairs are few" in alone.note
    assert both.reasons["vocabulary"] == "the teachers'"


def test_the_command_names_what_is_missing(tmp_path, capsys, monkeypatch):
    # Multi30k would be downloaded.
    monkeypatch.setattr(
        "keras_attn.runs.settling.open_splits", lambda recipe: pytest.fail("data were opened")
    )
    for arguments, message in (
        (["distill"], "Give a teacher"),
        (["distill", str(tmp_path)], "Give the data with --data"),
        (
            ["distill", str(tmp_path / "none"), "--data", "multi30k", "--output", str(tmp_path / "run")],
            "does not exist. Check the path.",
        ),
    ):
        assert keras_attn_cli.main(arguments) == 2
        assert message in capsys.readouterr().err


def test_the_command_takes_what_the_teacher_was_trained_with(tmp_path, monkeypatch):
    calls = record_runs(monkeypatch)
    teacher, pairs = tmp_path / "teacher", tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"{n}\tN{n}\n" for n in range(20)))
    for name in ("teacher", "a", "b"):
        (tmp_path / name).mkdir()
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    recipe = RECIPE.replace(data=(str(pairs),), distill={"teachers": ["its own"], "num_beams": 7})
    (teacher / "run.json").write_text(json.dumps({"recipe": dataclasses.asdict(recipe)}))
    output = str(tmp_path / "student")
    command = [
        "distill",
        str(teacher),
        b,
        "--layers",
        "3+1",
        "--no-references",
        "--epochs",
        "9",
        "--output",
        output,
    ]
    assert keras_attn_cli.main(command) == 0
    data, folder, of_student = calls.pop()
    assert (len(data.train), folder) == (18, output)
    expected = runs.student_recipe([teacher, b], recipe.replace(distill={}), layers="3+1", references=False)
    assert of_student == expected.replace(
        epochs=9, distill={"teachers": [str(teacher), b], "references": False}
    )
    # A run that was killed goes on with its output alone.
    pathlib.Path(output).mkdir()
    record = {"recipe": dataclasses.asdict(of_student), "data": {}, "results": {}}
    (pathlib.Path(output) / "run.json").write_text(json.dumps(record))
    assert keras_attn_cli.main(["distill", "--output", output]) == 0
    assert calls.pop()[2] == of_student
    # A teacher that is no run: settings are fitted to the data.
    assert (
        keras_attn_cli.main(["distill", a, "--data", str(pairs), "--teacher-num-beams", "3", "--output", "x"])
        == 0
    )
    fitted = calls.pop()[2]
    assert fitted.distill == {"teachers": [a], "num_beams": 3}
    assert fitted.steps_per_epoch == 100
