"""Damaged, lying and foreign checkpoints: a clear error, before memory is taken, and no model."""

import json
import pickle
import shutil
import subprocess

import numpy as np
import pytest
import torch
from helpers_checkpoints import change_config, checkpoint, twins

from keras_attn import huggingface
from keras_attn.models import read_weights, write_weights

WORD = "embeddings.word_embeddings.weight"
NORM = "encoder.layer.1.output.LayerNorm.weight"


@pytest.fixture
def folder(tmp_path):
    """A copy of a small BERT checkpoint."""
    shutil.copytree(checkpoint("bert")[0], tmp_path / "bert")
    return tmp_path / "bert"


def change_weights(folder, change):
    arrays = read_weights(folder / "model.safetensors")
    change(arrays)
    write_weights(arrays, folder / "model.safetensors")


def in_shards(folder):
    """The same checkpoint in two shards with an index, which is returned."""
    arrays = read_weights(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    index = {}
    for number, names in enumerate((sorted(arrays)[::2], sorted(arrays)[1::2]), start=1):
        file = f"model-0000{number}-of-00002.safetensors"
        write_weights({name: arrays[name] for name in names}, folder / file)
        index |= dict.fromkeys(names, file)
    write_index(folder, index)
    return index


def write_index(folder, index):
    text = json.dumps({"metadata": {}, "weight_map": index})
    (folder / "model.safetensors.index.json").write_text(text, "utf-8")


def refused(folder, match, error=ValueError):
    with pytest.raises(error, match=match):
        huggingface.read_report(folder)


def test_shards_are_one_checkpoint(folder):
    whole = huggingface.read_report(folder)
    in_shards(folder)
    assert sorted(huggingface.read_report(folder)) == sorted(whole)
    model = huggingface.load_model(folder)
    for ours, expected in zip(model.weights, twins("bert")[0].weights, strict=True):
        np.testing.assert_array_equal(np.asarray(ours), np.asarray(expected))


def test_the_report_names_each_tensor_once_with_its_variable(folder):
    report = {row.tensor: row for row in huggingface.read_report(folder)}
    assert set(report) == set(read_weights(folder / "model.safetensors"))
    assert report[WORD][1:] == ("embedding/token/embeddings", (53, 35), "")
    row = report["encoder.layer.1.intermediate.dense.weight"]
    assert row[1:] == ("block_1/feed_forward/intermediate/kernel", (31, 35), "transposed")
    assert report["pooler.dense.bias"][1:] == (None, (35,), "head: the pooler")


def test_missing_and_foreign_tensors_are_both_named(folder):
    change_weights(folder, lambda arrays: arrays.update(extra=arrays.pop(NORM)))
    refused(folder, f"Missing: {NORM}. Not understood: extra.")


def test_a_tensor_of_another_shape(folder):
    change_weights(folder, lambda arrays: arrays.update({NORM: np.ones(34, "float32")}))
    refused(folder, rf"{NORM} .* must have shape \(35,\) by the config. Received: shape \(34,\)")


def test_a_tensor_stored_with_and_without_a_prefix(folder):
    change_weights(folder, lambda arrays: arrays.update({f"bert.{WORD}": arrays[WORD]}))
    refused(folder, "are one weight, stored twice")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("value", "dtype"), [(np.nan, "float32"), (np.inf, "float32"), (1e30, "float16")])
def test_values_that_are_no_numbers(folder, value, dtype):
    def change(arrays):
        arrays[NORM] = np.full(35, value, "float32")

    change_weights(folder, change)
    with pytest.raises(ValueError, match=f"{NORM} in .* NaN or infinite in {dtype}"):
        huggingface.load_model(folder, dtype=dtype)


@pytest.mark.parametrize(
    "name", ["../x.safetensors", "/x.safetensors", "a/b.safetensors", "..\\x.safetensors", "x.bin"]
)
def test_an_index_that_leaves_its_folder(folder, name):
    index = in_shards(folder)
    shutil.copy(folder / index[WORD], folder.parent / "x.safetensors")
    write_index(folder, {**index, WORD: name})
    refused(folder, "must name files of its own folder")


def test_shards_that_are_not_as_the_index_says(folder):
    index = in_shards(folder)
    write_index(folder, {**index, "ghost": index[WORD]})
    refused(folder, "ghost is in no file, by the index in model")
    write_index(folder, {name: file for name, file in index.items() if name != WORD})
    refused(folder, f"{WORD} is in model.*, by the index in no file")
    write_index(folder, {**index, WORD: index[NORM] if index[NORM] != index[WORD] else "other.safetensors"})
    refused(folder, "does not describe the files|lacks other", (ValueError, FileNotFoundError))
    write_index(folder, {})
    refused(folder, '"weight_map"')


def test_a_tensor_in_two_shards(folder):
    index = in_shards(folder)
    other = next(file for file in sorted(set(index.values())) if file != index[WORD])
    arrays = read_weights(folder / other)
    write_weights({**arrays, WORD: np.zeros((53, 35), "float32")}, folder / other)
    refused(folder, f"{WORD} is in model.* and in model")


def test_a_missing_shard(folder):
    index = in_shards(folder)
    (folder / index[WORD]).unlink()
    refused(folder, f"lacks {index[WORD]}", FileNotFoundError)


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", "header is longer than the file"),
        (b"\xff" * 20, "header is longer than the file"),
        ((10**9).to_bytes(8, "little") + b"{}", "header is longer than the file"),
        ((2).to_bytes(8, "little") + b"[]", "must hold a JSON object"),
        ((7).to_bytes(8, "little") + b"{'a': 1", "damaged"),
        ((200_000).to_bytes(8, "little") + b'{"a":' + b"[" * 199_995, "nested too deeply|damaged"),
    ],
)
def test_header_nonsense(folder, content, match):
    (folder / "model.safetensors").write_bytes(content)
    refused(folder, match)


@pytest.mark.parametrize(
    ("entry", "match"),
    [
        ({"dtype": "F32", "shape": [2], "data_offsets": [0, 9]}, "describes a as"),
        ({"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}, "describes a as"),
        ({"dtype": "F99", "shape": [2], "data_offsets": [0, 8]}, "describes a as"),
        ({"dtype": "F32", "shape": "2", "data_offsets": [0, 8]}, "describes a as"),
        ({"dtype": "F32", "shape": [2], "data_offsets": [8, 16]}, "begins at byte"),
        ({"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4 * 10**12]}, "it has .* bytes"),
        (7, "describes a as"),
    ],
)
def test_entries_of_a_header_that_lie(folder, entry, match):
    header = json.dumps({"a": entry}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    refused(folder, match)


def test_an_adapter_beside_the_model(folder):
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "mine/base"}))
    refused(
        folder, r"holds an adapter \(adapter_config.json\) of the model 'mine/base', which is not read. Merge"
    )


def test_a_name_twice_in_a_header(folder):
    entry = '{"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}'
    header = f'{{"a": {entry}, "a": {entry}}}'.encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    refused(folder, "'a' is there twice")


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"hidden_size": 10**9}, "`hidden_size` of a bert config must be at most .*: the weight files hold"),
        ({"vocab_size": 2500, "hidden_size": 3000}, "must have shape|divisible"),
        ({"vocab_size": 54}, r"must have shape \(54, 35\) by the config"),
        ({"hidden_size": -1}, "must be a positive integer"),
        ({"hidden_size": "35"}, "must be a positive integer"),
        ({"layer_norm_eps": "x"}, "`layer_norm_eps` of a bert config must be a number"),
        (
            {"hidden_act": "xielu"},
            "`hidden_act` of a bert config cannot be 'xielu': .* has weights of its own",
        ),
        (
            {"position_embedding_type": "relative_key"},
            "must be .*: nothing else is known here. .*--ignored-fields ",
        ),
        ({"is_decoder": True}, "must be .*: nothing else is known here. .*--ignored-fields "),
        (
            {"quantization_config": {"bits": 4}},
            r"config.json asks for weights that are quantised, which nothing here does: quantization_config=\{'bits': 4\}. "
            "To go on without it, .*--ignored-fields quantization_config",
        ),
        ({"per_layer_config": {"0": {}}}, "asks for layers with sizes of their own"),
        (
            {"model_type": "phi3", "architectures": ["Phi3ForCausalLM"]},
            r"'phi3' \(Phi3ForCausalLM\) cannot be read: .* Those that can: gpt2, llama, .*gemma3_text\.$",
        ),
        ({"model_type": None}, "config.json names no `model_type`"),
        (
            {"model_type": ["bert"]},
            "cannot be read: there is no such architecture here. Those that can: bert",
        ),
        ({"model_type": "gpt_oss"}, "'gpt_oss' .* cannot be read: .* mixtures of experts"),
    ],
)
def test_configs_that_lie_or_ask_for_what_is_not_implemented(folder, fields, match):
    change_config(folder, **fields)
    refused(folder, match)


def test_more_layers_than_tensors(folder):
    """Of a model with so many layers not even the names would fit into memory."""
    change_config(folder, num_hidden_layers=50)
    refused(folder, "`num_hidden_layers` of a bert config must be at most")


def test_a_field_that_the_caller_knows_to_be_harmless(folder):
    change_config(folder, is_decoder=True, quantization_config={"bits": 4}, a_note="hello")
    assert huggingface.read_report(folder, ignored_fields=("is_decoder", "quantization_config"))


@pytest.mark.parametrize(
    ("parameters", "match"),
    [
        ({"rope_type": "longrope", "factor": 2.0}, "`rope_type` must be one of"),
        ({"rope_type": "yarn", "factor": 2.0, "mscale": "0.7", "mscale_all_dim": 1.0}, "must be numbers"),
        ({"rope_type": "yarn", "factor": 2.0, "truncate": 1}, "`truncate` of `scaling` must be a bool"),
        ({"rope_type": "default", "partial_rotary_factor": 0.5}, "`partial_rotary_factor` must be 1"),
    ],
)
def test_rotary_positions_that_are_not_implemented(tmp_path, parameters, match):
    shutil.copytree(checkpoint("llama")[0], tmp_path / "llama")
    change_config(tmp_path / "llama", rope_parameters={"rope_theta": 1e4, **parameters})
    refused(tmp_path / "llama", match)


@pytest.mark.parametrize(
    ("content", "match"), [(b"[1]", "must hold a JSON object"), (b"{", "damaged"), (b"[" * 200_000, "nested")]
)
def test_a_config_that_is_none(folder, content, match):
    (folder / "config.json").write_bytes(content)
    refused(folder, match)


def test_what_is_not_there(folder):
    refused(folder / "nothing", "does not exist", FileNotFoundError)
    (folder / "model.safetensors").unlink()
    refused(folder, "has neither model.safetensors nor", FileNotFoundError)
    (folder / "config.json").unlink()
    refused(folder, "There is no file .*config.json", FileNotFoundError)


class Malice:
    def __reduce__(self):
        return print, ("code from a pickle was run",)


def test_a_pickle_is_not_read(folder, capsys):
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Malice()))
    refused(folder, "a pickle, which can run code")
    assert "was run" not in capsys.readouterr().out


@pytest.mark.extended
def test_the_line_that_converts_a_pickle_does(folder):
    before = sorted(huggingface.read_report(folder))
    state = {name: torch.tensor(array) for name, array in read_weights(folder / "model.safetensors").items()}
    torch.save(state, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="Convert it where you trust it") as error:
        huggingface.read_report(folder)
    subprocess.run(str(error.value).splitlines()[-1], shell=True, check=True)
    assert sorted(huggingface.read_report(folder)) == before
