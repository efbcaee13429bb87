"""What `keras-attn info` says of a folder, and checkpoints by their names on the hub."""

import dataclasses
import json
import re
import shutil
import subprocess
import sys

import pytest
import tensorflow as tf
from helpers_checkpoint_tasks import checkpoint, new_folder
from helpers_checkpoints import change_config
from helpers_text_generators import byte_generator

import keras_attn_cli
from keras_attn import info, runs, task_registry
from keras_attn.export import write_quantization, write_shortlist
from keras_attn.huggingface import checkpoint_folder


def described(folder):
    return dict(info.describe(folder))


def test_info_of_a_checkpoint_counts_what_transformers_counts(capsys):
    folder, twin, _ = checkpoint("gpt2")
    rows = described(folder)
    count = sum(parameter.numel() for parameter in twin.parameters())
    assert rows["parameters"].startswith(f"{count:,} in ")
    assert (rows["model_type"], rows["architectures"], rows["n_embd"]) == ("gpt2", "GPT2LMHeadModel", "30")
    assert (rows["dtype"], rows["task"], rows["missing"]) == ("F32", "TextGenerator", "nothing")
    assert rows["tokenizer"] == "BPE, 331 pieces, 2 added tokens"
    assert keras_attn_cli.main(["info", str(folder)]) == 0
    assert "task           TextGenerator" in capsys.readouterr().out
    assert described(checkpoint("t5")[0])["task"] == "Translator"


def test_info_says_what_is_missing():
    folder = new_folder()
    (folder / "config.json").write_text(
        json.dumps({"model_type": "bert", "architectures": ["BertForNothing"]})
    )
    rows = described(folder)
    assert rows["missing"] == (
        "weights: model.safetensors, or its shards and their index; the files of a tokenizer"
    )
    assert rows["task"].startswith("none: BertForNothing is not read: there is no such head of bert here.")
    (folder / "model.safetensors").write_bytes(b"nothing")
    assert "weights that can be read: " in described(folder)["missing"]


def test_info_of_a_saved_task_and_of_an_export(tmp_path, capsys):
    generator = byte_generator()
    generator.save(tmp_path / "run" / "text_generator")
    rows = described(tmp_path / "run")
    assert (rows["kind"], rows["task"], rows["tokenizer"]) == ("saved task", "TextGenerator", "ByteTokenizer")
    count = sum(int(tf.size(weight)) for weight in generator.model.weights)
    assert rows["parameters"].startswith(f"{count:,} in ")
    version = tmp_path / "served" / "3"
    (version / "variables").mkdir(parents=True)
    (version / "saved_model.pb").write_bytes(b"12345")
    (version / "variables" / "variables.data-00000-of-00001").write_bytes(b"123")
    rows = described(tmp_path / "served")
    assert (rows["version"], rows["bytes"], rows["missing"]) == ("3", "8", "nothing")
    assert (rows["quantization"], rows["shortlist"]) == ("no", "no")
    write_quantization(version, {"quantization": "bfloat16"})
    write_shortlist(version, [2], {})
    rows = described(tmp_path / "served")
    assert (rows["quantization"], rows["shortlist"]) == ("bfloat16", "yes")
    assert keras_attn_cli.main(["info", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith(f"keras-attn: error: There is nothing known in {tmp_path}: ")


def test_what_is_read_of_a_task_is_what_its_class_says():
    declared = task_registry.declarations()
    assert set(task_registry.CLASS_NAMES) <= set(declared)
    for name in task_registry.CLASS_NAMES:
        assert task_registry.task_class(name).declaration() == declared[name]


def test_info_of_a_run_that_has_made_nothing_yet(tmp_path):
    recipe = runs.Recipe.load("dates").replace(epochs=7, distill={"teachers": ["runs/teacher"]})
    record = {"recipe": dataclasses.asdict(recipe), "data": {}, "results": {}}
    (tmp_path / "run.json").write_text(json.dumps(record))
    rows = described(tmp_path)
    assert (rows["kind"], rows["epochs"]) == ("run", "7")
    assert "runs/teacher" in rows["distill"]
    assert "its first epoch has not ended" in rows["missing"]


def changed_copy(name, to, **fields):
    """A copy of a checkpoint with other fields in its config."""
    folder = shutil.copytree(checkpoint(name)[0], to)
    change_config(folder, **fields)
    return folder


@pytest.mark.parametrize(
    ("name", "fields", "match"),
    [
        ("gpt2", {"model_type": "phi3"}, "none: A checkpoint of `model_type` 'phi3' "),
        ("gpt2", {"add_cross_attention": True}, "none: `add_cross_attention` of a gpt2 config must be False"),
        ("gpt2", {"n_embd": 60}, "none: .* must have shape"),
        ("gpt2", {"quantization_config": {"bits": 4}}, "none: .*--ignored-fields quantization_config"),
        ("gpt2", {"architectures": ["GPT2ForNothing"]}, "none: GPT2ForNothing is not read: "),
    ],
)
def test_info_says_what_export_says(name, fields, match, tmp_path, capsys):
    folder = changed_copy(name, tmp_path / "changed", **fields)
    assert keras_attn_cli.main(["info", str(folder)]) == 0
    rows = dict(line.split("  ", 1) for line in capsys.readouterr().out.splitlines())
    answer = rows["task"].strip()
    assert re.match(match, answer)
    assert keras_attn_cli.main(["export", str(folder), str(tmp_path / "export")]) == 2
    assert answer.removeprefix("none: ") in capsys.readouterr().err


def test_info_lists_fields_without_effect_and_goes_on_without_refused_ones(tmp_path, capsys):
    fields = {"author": "me", "n_ctx": 5, "is_nothing": None, "quantization_config": {"bits": 4}}
    folder = changed_copy("gpt2", tmp_path / "changed", **fields)
    assert keras_attn_cli.main(["info", str(folder), "--ignored-fields", "quantization_config"]) == 0
    text = capsys.readouterr().out
    assert re.search("task +TextGenerator\nwithout effect +config.json: author, n_ctx\n", text)


def test_info_imports_neither_tensorflow_nor_keras(tmp_path):
    """Where no model has to be made: of a checkpoint that is not read, for instance."""
    folder = changed_copy("gpt2", tmp_path / "changed", model_type="phi3")
    code = f"""
import sys, keras_attn_cli
assert keras_attn_cli.main(["info", {str(folder)!r}]) == 0
assert not {{"keras", "tensorflow", "torch", "keras_attn"}} & set(sys.modules)
"""
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr


def test_a_name_is_looked_for_on_the_hub_only_if_nothing_here_has_it(tmp_path, monkeypatch):
    huggingface_hub = pytest.importorskip("huggingface_hub", reason='pip install "keras_attn[hub]"')
    asked = []

    def download(name, allow_patterns):
        asked.append((name, allow_patterns))
        if name == "org/none":
            raise FileNotFoundError("no such repository")
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    for name in (str(tmp_path), "../runs", "runs"):
        (tmp_path.parent / "runs").mkdir(exist_ok=True)
        assert str(checkpoint_folder(name)) == name
    for name in ("runs/mistyped", "nowhere", "a/b/c"):
        with pytest.raises(FileNotFoundError, match=f"^{name} does not exist"):
            checkpoint_folder(name)
    assert not asked
    assert checkpoint_folder("org/name") == tmp_path
    [(name, patterns)] = asked
    assert name == "org/name"
    assert "*.safetensors" in patterns
    assert not any(
        pattern.endswith((".bin", ".py", ".h5", ".pt", ".msgpack")) or pattern == "*" for pattern in patterns
    )
    with pytest.raises(OSError, match=r"org/none does not exist. .* The hub did not give it: no such"):
        checkpoint_folder("org/none")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match=r"org/other does not exist. .* pip install \"keras_attn\[hub\]\""):
        checkpoint_folder("org/other")
