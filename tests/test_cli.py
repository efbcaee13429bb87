"""The command line as a user meets it: output, one-line errors, exit codes."""

import dataclasses
import functools
import io
import json
import pathlib
import re
import shutil
import sys

import numpy as np
import pytest
import tensorflow as tf
from helpers_explorer import ExplorerParser
from helpers_images import encoded, pixels
from helpers_recipes import record_runs
from helpers_text_generators import byte_generator
from helpers_translators import byte_translator

import keras_attn
import keras_attn.runs  # it keeps `load_task` itself, not what a test puts in its place
import keras_attn_cli
from keras_attn import ImageClassifier, TextGenerator, Translator
from keras_attn.generation import DecodingOptions
from keras_attn.models import save_weights
from keras_attn.runs import recipe_fields
from keras_attn.tasks import Shortlist


@pytest.fixture(scope="module")
def translator():
    return byte_translator()


def run(arguments):
    assert keras_attn_cli.main(list(map(str, arguments))) == 0


def refused(arguments, message, capsys):
    assert keras_attn_cli.main(list(map(str, arguments))) == 2
    assert message in capsys.readouterr().err


load_once = functools.cache(Translator.load)


@pytest.fixture
def loaded_once(folder, monkeypatch):
    """The translator of `folder`, which the commands then load with the graphs that it has made."""
    monkeypatch.setattr(Translator, "load", staticmethod(load_once))
    return load_once(folder)


@pytest.fixture(scope="module")
def folder(translator, tmp_path_factory):
    translator.save(tmp_path_factory.mktemp("translators") / "bytes")
    return str(tmp_path_factory.getbasetemp() / "translators0" / "bytes")


@pytest.mark.extended
def test_translate_writes_a_line_for_a_line(folder, loaded_once, tmp_path):
    (tmp_path / "in.txt").write_bytes(
        "4 July\r\n\nété\u2028x\n\xff last without end".encode("utf-8", "surrogateescape")
    )
    run(["translate", folder, "--input", tmp_path / "in.txt", "--output", tmp_path / "out.txt"])
    lines = (tmp_path / "out.txt").read_bytes().split(b"\n")
    expected = loaded_once(["4 July", "", "été\u2028x", "\xff last without end"])
    assert lines == [text.replace("\n", " ").encode() for text in expected] + [b""]


@pytest.mark.extended
def test_show_writes_a_page(folder, loaded_once, tmp_path, capsys):
    page = tmp_path / "new" / "page.html"
    command = ["show", folder, "4 July", "--target", "2016", "--title", "A title"]
    run([*command, "--output", page])
    assert capsys.readouterr().out == f"{page}\n"
    assert page.read_text("utf-8") == loaded_once.show("4 July", target="2016", title="A title").html
    refused([*command, "--pair", "b", "--output", page], "A translator is shown without pair.", capsys)
    refused([*command, "--grid", "2x3", "--output", page], "A translator is shown without grid.", capsys)


@pytest.mark.extended
def test_show_compares_two_folders(folder, loaded_once, tmp_path, capsys):
    other = tmp_path / "newer"
    loaded_once.save(other)
    page = tmp_path / "page.html"
    command = ["show", folder, "4 July", "--target", "2016", "--output", str(page), "--compare"]
    run([*command, other])
    expected = loaded_once.show(
        "4 July", target="2016", compare={"newer": load_once(str(other))}, name="bytes"
    )
    assert page.read_text("utf-8") == expected.html
    assert ExplorerParser(expected.html).data["models"] == ["newer", "bytes"]
    # Of two runs, the folders of translators are named alike.
    alike = tmp_path / "run" / "bytes"
    loaded_once.save(alike)
    run([*command, alike])
    assert ExplorerParser(page.read_text("utf-8")).data["models"] == [str(alike), folder]
    capsys.readouterr()
    byte_generator().save(tmp_path / "generator")
    refused(
        [*command, tmp_path / "generator"],
        "`compare` must be a translator too. Received: text generator",
        capsys,
    )


@pytest.mark.extended
def test_show_writes_the_page_of_a_stage_of_an_image_classifier(tmp_path, capsys):
    encoder = keras_attn.models.SwinTransformer.from_sizes(
        patch_size=2, hidden_dim=8, num_layers=(1, 1), num_heads=(2, 4), window_size=2
    )
    model = keras_attn.models.EncoderWithHead(encoder, keras_attn.layers.ImageClassificationHead(2))
    preprocessing = keras_attn.tasks.ImagePreprocessing((8, 12))
    keras_attn.ImageClassifier(model, preprocessing, ["cat", "dog"]).save(tmp_path / "swin")
    image, page = tmp_path / "image.png", tmp_path / "page.html"
    image.write_bytes(encoded(pixels(8, 12)))
    command = ["show", str(tmp_path / "swin"), str(image), "--output", str(page), "--grid"]
    run([*command, "2x3"])
    shown = ExplorerParser(page.read_text("utf-8")).data
    assert (shown["image"]["rows"], shown["image"]["columns"]) == (2, 3)
    assert len(shown["groups"][0]["paths"]) == 1
    capsys.readouterr()
    refused([*command, "3x3"], "The stages have [(4, 6), (2, 3)]", capsys)
    for wrong in ("2", "2x", "0x3", "2x3x1", "axb"):
        with pytest.raises(SystemExit):
            keras_attn_cli.main([*command, wrong])
        assert f"must be rows and columns, for example 14x14, not {wrong}" in capsys.readouterr().err


def test_messages_name_a_task_with_its_article(monkeypatch, capsys):
    monkeypatch.setattr(
        "keras_attn.runs.task_commands.load_task", lambda folder: object.__new__(ImageClassifier)
    )
    refused(
        ["show", "folder", "image.png", "--pair", "b"], "An image classifier is shown without pair.", capsys
    )
    refused(["export", "folder", "out", "--shortlist", "pairs.txt"], "Received: an image classifier.", capsys)


@pytest.mark.extended
def test_translate_reads_standard_input(folder, loaded_once, monkeypatch, capfdbinary):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"ab\ncd\n")))
    run(["translate", folder, "--num-beams", "1"])
    expected = loaded_once(["ab", "cd"], num_beams=1)
    assert (
        capfdbinary.readouterr().out
        == "".join(f"{text.replace(chr(10), ' ')}\n" for text in expected).encode()
    )


@pytest.mark.extended
def test_translate_takes_texts_before_its_options_and_after_them(folder, loaded_once, capfdbinary):
    expected = "".join(
        f"{text.replace(chr(10), ' ')}\n" for text in loaded_once(["é b", ""], num_beams=1)
    ).encode()
    for arguments in (["é b", "", "--num-beams", "1"], ["--num-beams", "1", "é b", ""]):
        run(["translate", folder, *arguments])
        assert capfdbinary.readouterr().out == expected


def test_prompts_may_stand_after_the_options(monkeypatch):
    seen = []
    monkeypatch.setattr("keras_attn.cli.run", lambda options: seen.append(options.prompts))
    for arguments in (
        ["ab", "c d", "--max-length", "3"],
        ["--max-length", "3", "ab", "c d"],
        ["--max-length", "3"],
    ):
        keras_attn_cli.main(["generate", "folder", *arguments])
    assert seen == [["ab", "c d"], ["ab", "c d"], []]


def test_translate_leaves_the_output_as_it_was_unless_all_is_translated(
    folder, loaded_once, tmp_path, monkeypatch, capsys
):
    text, output = tmp_path / "in.txt", tmp_path / "out.txt"
    text.write_text("ab\n")
    output.write_text("from before\n")
    same = ["translate", folder, "--input", str(text), "--output", str(tmp_path / "." / "in.txt")]
    refused(same, "another file than the input", capsys)
    assert text.read_text() == "ab\n"

    def fail(*_, **__):
        raise ValueError("no translation")

    monkeypatch.setattr(Translator, "__call__", fail)
    assert keras_attn_cli.main(["translate", folder, "--input", str(text), "--output", str(output)]) == 2
    assert output.read_text() == "from before\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "out.txt"]


@pytest.mark.extended
def test_translate_writes_to_a_device(folder, loaded_once, tmp_path):
    (tmp_path / "in.txt").write_text("ab\n")
    arguments = ["translate", folder, "--input", str(tmp_path / "in.txt"), "--output", "/dev/null"]
    run(arguments)
    assert not pathlib.Path("/dev/null").is_file()


def test_a_run_folder_stands_for_its_translator(translator, tmp_path, capsys):
    translator.save(tmp_path / "run" / "translator")
    loaded = Translator.load(tmp_path / "run")
    assert type(loaded.source_tokenizer) is type(translator.source_tokenizer)
    for weight, expected in zip(loaded.model.get_weights(), translator.model.get_weights(), strict=True):
        np.testing.assert_array_equal(weight, expected)
    (tmp_path / "served" / "1").mkdir(parents=True)
    (tmp_path / "served" / "1" / "saved_model.pb").touch()
    refused(["translate", tmp_path / "served"], "It holds an export", capsys)


@pytest.mark.extended
def test_evaluate_prints_scores_with_signatures(folder, loaded_once, tmp_path, capsys):
    (tmp_path / "pairs.tsv").write_text("a b\tc d\ne\tf\n")
    run(["evaluate", folder, "--data", tmp_path / "pairs.tsv", "--num-beams", "1"])
    printed = capsys.readouterr().out
    assert "2 pairs, greedy" in printed
    assert "BLEU" in printed
    assert "chrF" in printed
    assert "tok:13a" in printed


def test_export_passes_its_options_on_and_prints_the_version_folder(folder, tmp_path, monkeypatch, capsys):
    calls = []
    monkeypatch.setattr(
        "keras_attn.Translator.export",
        lambda self, folder, examples, **others: calls.append((folder, examples, others)) or f"{folder}/7",
    )
    (tmp_path / "texts").write_text("4 July\n\nü\n", encoding="utf-8")
    run(["export", folder, "served", "--xla"])
    run(["export", folder, "served", "--examples", tmp_path / "texts"])
    run(["export", folder, "served", "--signatures", "score", "sample"])
    run(["export", folder, "served", "--attention"])
    record = {"recipe": {}, "data": {}, "results": {}, "examples": ["of validation", " "]}
    shutil.copytree(folder, tmp_path / "run" / "translator")
    (tmp_path / "run" / "run.json").write_text(json.dumps(record), encoding="utf-8")
    run(["export", tmp_path / "run", "served"])
    assert calls == [
        ("served", None, {"signatures": None, "xla": True}),
        ("served", ["4 July", "ü"], {"signatures": None}),
        ("served", None, {"signatures": ["score", "sample"]}),
        ("served", None, {"signatures": None, "attention": True}),
        ("served", ["of validation"], {"signatures": None}),
    ]
    assert capsys.readouterr().out == "served/7\n" * 5


def test_export_writes_for_another_engine(folder, tmp_path, capsys):
    pytest.importorskip("ctranslate2", reason='needs CTranslate2: pip install "keras_attn[ctranslate2]"')
    model = str(tmp_path / "model")
    run(["export", folder, model, "--format", "ctranslate2", "--quantization", "int8"])
    assert capsys.readouterr().out.strip() == model
    assert (tmp_path / "model" / "model.bin").is_file()


def test_train_passes_its_options_on(tmp_path, monkeypatch):
    calls = record_runs(monkeypatch)
    (tmp_path / "pairs.tsv").write_text("a\tb\n" * 20)
    arguments = ["train", "--data", str(tmp_path / "pairs.tsv"), "--output", str(tmp_path / "run")]
    options = ["--size", "base", "--epochs", "3", "--tokenizer", "bytes", "--dtype", "float32", "--seed", "7"]
    run([*arguments, *options])
    ((data, output, recipe),) = calls
    assert (recipe.epochs, recipe.tokenizer, recipe.dtype, recipe.seed) == (3, "bytes", "float32", 7)
    assert recipe.model_arguments["hidden_dim"] == 512
    assert len(data.train) == 18
    assert output == str(tmp_path / "run")


def test_train_takes_a_recipe_that_options_change(tmp_path, monkeypatch):
    calls = record_runs(monkeypatch)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pairs.tsv").write_text("a\tb\n" * 20)
    (tmp_path / "mine.toml").write_text(
        'data = ["pairs.tsv"]\ntokenizer = "bytes"\nepochs = 3\n[model]\nsize = "tiny"\n'
    )
    run(["train", "--recipe", "mine.toml", "--epochs", "5", "--patience", "2"])
    ((data, output, recipe),) = calls
    assert (recipe.epochs, recipe.patience, recipe.tokenizer, recipe.data) == (5, 2, "bytes", ("pairs.tsv",))
    assert (len(data.train), str(output)) == (18, "runs/pairs")


@pytest.mark.extended
def test_average_writes_a_translator_with_the_mean(translator, folder, tmp_path, capsys):
    weights = [np.array(weight) for weight in translator.model.weights]
    files = []
    for number, factor in enumerate((0.5, 1.5)):
        twin = Translator.load(folder)
        for weight, value in zip(twin.model.weights, weights):
            weight.assign(factor * value)
        files.append(str(tmp_path / f"{number}.safetensors"))
        save_weights(twin.model, files[-1])
    output = str(tmp_path / "averaged")
    run(["average", *files, "--translator", folder, "--output", output])
    assert capsys.readouterr().out.strip() == output
    for weight, value in zip(Translator.load(output).model.weights, weights):
        np.testing.assert_allclose(np.array(weight), value, rtol=1e-6)
    run(["average", files[0], "--translator", folder, "--output", output])
    for weight, value in zip(Translator.load(output).model.weights, weights):
        np.testing.assert_array_equal(np.array(weight), (0.5 * value).astype(value.dtype))


def test_ensemble_writes_several_translators_as_one(translator, tmp_path, capsys):
    shortlist = Shortlist(range(translator.target_tokenizer.vocabulary_size), {})
    twin = translator.replaced(num_beams=translator.num_beams + 1, shortlist=shortlist)
    twin.save(tmp_path / "twin")
    translator.replaced(max_length=translator.max_length - 1).save(tmp_path / "shorter")
    output = str(tmp_path / "both")
    command = ["ensemble", str(tmp_path / "twin"), str(tmp_path / "shorter"), "--output", output]
    run(command)
    assert capsys.readouterr().out.strip() == output
    both = Translator.load(output)
    assert (both.num_beams, both.max_length) == (twin.num_beams, translator.max_length - 1)
    assert len(both.model.members) == 2
    for member in both.model.members:
        for weight, value in zip(member.weights, translator.model.weights, strict=True):
            np.testing.assert_array_equal(np.array(weight), np.array(value))


def test_train_goes_on_with_the_unfinished_run_of_the_same_command(tmp_path, monkeypatch):
    calls = record_runs(monkeypatch)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.en").write_text("a\n" * 20)
    command = ["train", "a.en", "a.en"]
    run(command)
    recipe = calls[0][2]
    for has_ended, changes, expected in [
        (False, [], "runs/a"),
        (False, ["--seed", "3"], "runs/a-2"),
        (True, [], "runs/a-2"),
    ]:
        record = {"recipe": dataclasses.asdict(recipe), "data": {}, "results": {"ended": has_ended}}
        (tmp_path / "runs" / "a").mkdir(parents=True, exist_ok=True)
        (tmp_path / "runs" / "a" / "run.json").write_text(json.dumps(record))
        run([*command, *changes])
        assert str(calls[-1][1]) == expected
    # The folder alone says which run it is, and options change it.
    run(["train", "--output", "runs/a", "--epochs", "77"])
    assert calls[-1][2] == recipe.replace(epochs=77)
    # Epochs end a plan for some minutes, whose time is over.
    record["recipe"]["minutes"] = 3.0
    (tmp_path / "runs" / "a" / "run.json").write_text(json.dumps(record))
    run(["train", "--output", "runs/a", "--epochs", "77"])
    assert calls[-1][2] == recipe.replace(epochs=77, minutes=None)


def test_train_without_output_takes_the_next_free_folder(tmp_path, monkeypatch):
    calls = record_runs(monkeypatch)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pairs.tsv.gz").write_bytes(__import__("gzip").compress(b"a\tb\n" * 20))
    (tmp_path / "runs" / "pairs").mkdir(parents=True)
    run(["train", "--data", "pairs.tsv.gz"])
    assert [folder for _, folder, _ in calls] == ["runs/pairs-2"]


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["translate", "nowhere"], "nowhere does not exist. Check the path."),
        (["translate", "FOLDER", "--input", "no.txt"], "error: no.txt does not exist. Check the path.\n"),
        (
            ["translate", "FOLDER", "cd", "--input", "two.txt"],
            "the texts themselves or a file of them, not both. Received: 'cd' and the file two.txt.",
        ),
        (["train", "--data", "a.en", "b.de"], "a.en does not exist"),
        (["train"], "Give two text files to train on"),
        (["train", "a.en", "--data", "b.en", "c.de"], "Give the files once"),
        (["train", "--recipe", "none.toml"], "There is no recipe none.toml"),
        (["train", "--recipe", "wrong.toml"], "wrong.toml sets learning_rat, which no recipe has"),
        (["average", "none.safetensors", "--translator", "FOLDER", "--output", "out"], "none.safetensors"),
        (["ensemble", "FOLDER", "--output", "out"], "two translators or more. Received: 1."),
        (["ensemble", "FOLDER", "missing", "--output", "out"], "missing"),
        (
            ["train", "--data", "three.txt", "two.txt"],
            "Received: 3 lines in three.txt and 2 lines in two.txt",
        ),
        (["train", "--data", "1", "2", "3"], "Received 3: 1 2 3"),
        (["train", "three.txt", "three.txt", "--dtype", "int32"], "`dtype` must be"),
        (["train", "three.txt", "three.txt", "--learning-rate", "-1"], "`learning_rate` must be a positive"),
        (["train", "three.txt", "three.txt", "--seed", "-1"], "`seed` must be an integer from 0"),
        (
            ["train", "three.txt", "three.txt", "--minutes", "2", "--epochs", "3"],
            "`minutes` plans `epochs`, `steps_per_epoch`, `warmup_steps`, `schedule`. Leave `epochs` out, or `minutes`.",
        ),
        (
            ["train", "three.txt", "three.txt", "--minutes", "2", "--warmup-steps", "3"],
            "Leave `warmup_steps` out, or `minutes`. Received: minutes=2, warmup_steps=3.",
        ),
        (["train", "--output", "damaged"], "run.json"),
        (["evaluate", "FOLDER", "--data", "pair.tsv", "--bleu-tokenize", "nope"], "must be one of 13a"),
        (["train", "--data", "dates", "--size", "huge"], "`size` must be one of tiny, base, big"),
        (["train", "--data", "dates", "--test", "x.tsv"], "give no files for them"),
        (["evaluate", "FOLDER", "--data", "multi30k", "--data-dir", "."], "test_2016_flickr.en"),
        (
            ["evaluate", "FOLDER", "--data", "multi30k", "--target-language", "it"],
            "must be two of en, de, fr",
        ),
        (["export", "nowhere", "out"], "nowhere does not exist. Check the path."),
        (["verify", "nowhere"], "nowhere does not exist. Check the path."),
        (["serve", "nowhere", "--port", "0"], "nowhere does not exist. Check the path."),
        (["verify", "FOLDER"], "is no exported model: it holds translator.json"),
        (["export", ".", "out"], "Give the folder of a run, of a saved task, or of a checkpoint"),
        (["export", "FOLDER", "out", "--examples", "none.txt"], "none.txt"),
        (["export", "FOLDER", "two.txt"], "two.txt cannot hold a new folder: File exists. Choose another"),
        (
            ["export", "FOLDER", "out", "--examples", "blank.txt"],
            "`examples` must be a list of texts, one or more",
        ),
        (["export", "FOLDER", "out", "--examples", "latin.txt"], "latin.txt, line 2: the text must be UTF-8"),
        (
            ["export", "FOLDER", "out", "--format", "onnx", "--quantization", "int8"],
            "`quantization` is for SavedModels and for the format ctranslate2",
        ),
        (
            ["export", "FOLDER", "out", "--format", "onnx", "--xla"],
            "--xla, --examples, --signatures, --attention and --verify are for a SavedModel",
        ),
        (
            ["export", "FOLDER", "out", "--format", "onnx", "--attention"],
            "--xla, --examples, --signatures, --attention and --verify are for a SavedModel",
        ),
        (
            ["export", "FOLDER", "out", "--xla", "--attention"],
            "export `attention` to another folder, without `xla`",
        ),
    ],
)
def test_wrong_input_gives_one_line_and_exit_code_2(
    folder, tmp_path, monkeypatch, capsys, arguments, message
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"ab\n")))
    (tmp_path / "three.txt").write_text("a\nb\nc\n")
    (tmp_path / "two.txt").write_text("a\nb\n")
    (tmp_path / "blank.txt").write_text("\n \n")
    (tmp_path / "latin.txt").write_bytes(b"a\ncaf\xe9\n")
    (tmp_path / "wrong.toml").write_text("learning_rat = 1\n")
    (tmp_path / "pair.tsv").write_text("a\tb\n")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "run.json").write_text("{")
    assert keras_attn_cli.main([folder if argument == "FOLDER" else argument for argument in arguments]) == 2
    written = capsys.readouterr().err.removeprefix("reading the task ...\n")
    assert written.startswith("keras-attn: error: ")
    assert message in written
    assert written.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "required: COMMAND (see keras-attn --help)"),
        (["fly"], "invalid choice: 'fly'"),
        (["average", "a"], "required: --translator, --output (see keras-attn average --help)"),
        (["train", "--data", "dates", "--epochs", "x"], "--epochs: invalid integer value: 'x'"),
        (["train", "--data", "dates", "--epochs", "0"], "--epochs: must be a positive integer, not 0"),
        (["translate", "a", "--num-beams", "-2"], "--num-beams: must be a positive integer, not -2"),
        (["evaluate", "a", "--data", "dates", "--speed", "3"], "unrecognized arguments: --speed 3"),
        (["info", "a", "b"], "unrecognized arguments: b"),
        (["translate", "a", "--beams", "2"], "unrecognized arguments: --beams 2"),
        (["generate", "a", "--lenght", "2"], "unrecognized arguments: --lenght 2"),
    ],
)
def test_a_wrong_argument_gives_one_line_and_exit_code_2(arguments, message, capsys):
    with pytest.raises(SystemExit) as exit_:
        keras_attn_cli.main(arguments)
    assert exit_.value.code == 2
    written = capsys.readouterr().err
    assert written.startswith("keras-attn")
    assert message in written
    assert written.count("\n") == 1


@pytest.mark.parametrize(
    "error",
    [
        tf.errors.ResourceExhaustedError(None, None, "No space left\non device"),
        FloatingPointError("The training loss became nan"),
    ],
)
def test_what_ends_a_command_is_told_in_one_line(folder, loaded_once, monkeypatch, capsys, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr("keras_attn.Translator.export", fail)
    assert keras_attn_cli.main(["export", folder, "served"]) == 2
    written = capsys.readouterr().err.removeprefix("reading the task ...\n")
    assert written.startswith("keras-attn: error: ")
    assert written.count("\n") == 1


def test_verify_takes_the_newest_version_of_a_model(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(
        "keras_attn.runs.task_commands.verify_saved_model", lambda folder, **_: calls.append(folder) or []
    )
    for version in ("2", "10", "9"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "saved_model.pb").touch()
    run(["verify", tmp_path])
    run(["verify", tmp_path / "2"])
    assert calls == [tmp_path / "10", tmp_path / "2"]


def test_ctrl_c_while_translating_exits_with_130(folder, monkeypatch):
    def interrupted(**words):
        raise KeyboardInterrupt

    monkeypatch.setattr("keras_attn.runs.translate_lines", interrupted)
    assert keras_attn_cli.main(["translate", folder]) == 130


@pytest.mark.slow
def test_a_trained_folder_goes_through_every_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pairs.tsv").write_text("".join(f"{a}{b}\t{b}{a}\n" for a in "abcd" for b in "efghi"))
    train = ["train", "--data", "pairs.tsv", "--test", "pairs.tsv", "--output", "run", "--epochs", "1"]
    run([*train, "--tokenizer", "bytes", "--dtype", "float32"])
    assert "The translator lies in run/translator" in capsys.readouterr().out
    assert json.loads((tmp_path / "run" / "run.json").read_text())["results"]["test"]["num_pairs"] == 20
    run(["evaluate", "run/translator", "--data", "pairs.tsv"])
    capsys.readouterr()
    run(["export", "run/translator", "served"])
    assert capsys.readouterr().out.strip() == "served/1"
    assert (tmp_path / "served" / "1" / "saved_model.pb").is_file()


@pytest.fixture(scope="module")
def generator_folder(tmp_path_factory):
    """A text generator, as a run saves it."""
    folder = tmp_path_factory.mktemp("generators") / "run"
    byte_generator(num_beams=1).save(folder / "text_generator")
    return folder


load_generator_once = functools.cache(TextGenerator.load)


@pytest.fixture
def generator(generator_folder, monkeypatch):
    monkeypatch.setattr(TextGenerator, "load", staticmethod(lambda folder: load_generator_once(str(folder))))
    return TextGenerator.load(generator_folder)


@pytest.mark.extended
def test_generate_continues_a_prompt(generator_folder, generator, capfd):
    run(["generate", generator_folder, "To be"])
    assert capfd.readouterr().out == f"To be{generator('To be')}\n"


@pytest.mark.extended
def test_generate_draws_continuations_of_lines(generator_folder, generator, monkeypatch, capfd):
    options = ["--temperature", "0.9", "--top-k", "7", "--seed", "5", "--num-return-sequences", "2"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"ab\nc\n")))
    run(["generate", generator_folder, *options])
    drawn = [
        generator(text, num_return_sequences=2, options=DecodingOptions(temperature=0.9, top_k=7, seed=5))
        for text in ("ab", "c")
    ]
    shown = [text + answer for text, answers in zip(("ab", "c"), drawn) for answer in answers]
    assert capfd.readouterr().out == "\n\n".join(shown) + "\n"


@pytest.mark.extended
def test_evaluate_tells_what_a_byte_costs(generator_folder, generator, tmp_path, capsys):
    (tmp_path / "text.txt").write_text("To be, or not to be")
    data = ["--data", str(tmp_path / "text.txt")]
    run(["evaluate", generator_folder, *data])
    shown = capsys.readouterr().out
    ids = generator.tokenizer.encode(["To be, or not to be"])[0]
    logits = np.asarray(generator.model(np.array([ids[:-1]])), "float64")[0]
    losses = [np.logaddexp.reduce(row) - row[token] for row, token in zip(logits, ids[1:])]
    assert f"loss {np.mean(losses):.3f}" in shown
    assert f"perplexity {np.exp(np.mean(losses)):.0f}" in shown
    bits = float(re.search(r"(\S+) bits a byte; 18 tokens, 18 bytes", shown)[1])
    assert bits == pytest.approx(np.mean(losses) / np.log(2), abs=1e-3)
    refused(["evaluate", generator_folder, *data, "--num-beams", "2"], "are for translators", capsys)


def test_train_takes_plain_text_for_a_language_model(tmp_path, monkeypatch, capsys):
    calls = record_runs(monkeypatch)
    monkeypatch.chdir(tmp_path)
    for name in ("one.txt", "two.txt"):
        (tmp_path / name).write_text(f"{name}\n" * 500)
    command = ["train", "--language-model", "one.txt", "two.txt", "--documents", "--epochs", "3"]
    run(command)
    [(data, folder, recipe)] = calls
    assert recipe.is_language_model
    assert (recipe.data, recipe.documents, recipe.epochs) == (("one.txt", "two.txt"), True, 3)
    assert (data.train.text + data.validation.text).count("\n") == 1000
    assert str(folder) == "runs/one"
    shown = capsys.readouterr().out
    assert "Settings fitted to the data" in shown
    assert "one document a line" in shown


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["--xla"]])
def test_a_generator_is_exported_and_verified(generator_folder, generator, tmp_path, capsys, more):
    run(["export", generator_folder, tmp_path / "play", *more])
    run(["verify", tmp_path / "play", "--task", generator_folder])
    assert "FAILED" not in capsys.readouterr().out


@pytest.mark.extended
def test_a_generator_is_exported_as_a_saved_model_alone(generator_folder, generator, tmp_path, capsys):
    command = ["export", str(generator_folder), str(tmp_path / "play"), "--format", "onnx"]
    refused(command, "A text generator is exported as a SavedModel", capsys)


def test_only_train_names_the_option_of_plain_text(tmp_path, translator, capsys):
    file = tmp_path / "train.words"
    file.write_text("one\ntwo\n", encoding="utf-8")
    translator.save(tmp_path / "translator")
    for command in (["train", file], ["evaluate", tmp_path / "translator", "--data", file]):
        assert keras_attn_cli.main(list(map(str, command))) == 2
        error = capsys.readouterr().err
        assert f"give two files: {file} and its translations." in error
        assert ("--language-model" in error) == (command[0] == "train")


def test_help_says_what_the_data_of_each_command_is_for():
    purposes = {
        "train": "train on",
        "distill": "train on",
        "evaluate": "evaluate on",
        "shortlist": "count words in",
    }
    for command, purpose in purposes.items():
        options = dict(recipe_fields.options_of(command))
        assert options["--data"]["help"].startswith(f"what to {purpose}: `dates`")
