"""tf_model.h5: what transformers' TF classes saved is the same model as the safetensors file; damage is an error.

transformers 5 writes no such file, so these are written here by the inverse of the rule in version 4.
"""

import shutil

import h5py
import numpy as np
import pytest
import torch
from helpers_checkpoints import change_config, checkpoint, make_twin

from keras_attn import huggingface
from keras_attn.huggingface.tf_weights import torch_name
from keras_attn.models import read_weights
from keras_attn.models.weight_names import named_weights

# The shared embeddings, in a scope of their own name.
SHARED = {"shared.weight": "shared/shared/weight", "model.shared.weight": "model.shared/model.shared/weight"}


def tf_weight(name, array, modules):
    """The path without the model's scope, and the array, of a tensor in version 4's TF classes."""
    if name in SHARED or "/" not in name.replace(".", "/"):
        return SHARED.get(name, name), array
    layer, _, kind = name.rpartition(".")
    module = modules.get(layer)
    path = []
    for part in layer.split("."):
        if part.isdigit():
            path[-1] += f"_._{part}"
        else:
            path.append(part)
    path[0] = "mlm___cls" if path[0] == "cls" else path[0]
    if isinstance(module, torch.nn.Linear) and kind == "weight":
        kind, array = "kernel", array.T
    elif isinstance(module, torch.nn.LayerNorm):
        kind = {"weight": "gamma", "bias": "beta"}[kind]
    elif isinstance(module, torch.nn.Embedding) and "position" in layer:
        kind = "embeddings"
    elif type(module).__name__ == "Conv1D" and kind == "bias":
        array = array[None]
    return "/".join([*path, kind]), array


def write(path, weights, scope="tf_model"):
    """Writes {path without scope: array} as Keras' `save_weights` did."""
    layers = {}
    for name, array in weights.items():
        layers.setdefault(name.split("/")[0], {})[name] = array
    with h5py.File(path, "w") as file:
        file.attrs["layer_names"] = [layer.encode() for layer in layers]
        for layer, of_layer in layers.items():
            group = file.create_group(layer)
            # The lists of long models are cut in two.
            names = [(name if name in SHARED.values() else f"{scope}/{name}") + ":0" for name in of_layer]
            for i, part in enumerate((names[::2], names[1::2])):
                group.attrs[f"weight_names{i}"] = [name.encode() for name in part]
            for name, array in zip(names, of_layer.values()):
                group.create_dataset(name, data=array)


def tf_folder(folder, twin, dtype="float32"):
    """A folder with config.json and tf_model.h5 alone."""
    twin.save_pretrained(folder)
    modules = dict(twin.named_modules())
    arrays = read_weights(folder / "model.safetensors")
    weights = dict(tf_weight(name, array.astype(dtype), modules) for name, array in arrays.items())
    shutil.move(folder / "model.safetensors", folder / "other.safetensors")
    write(folder / "tf_model.h5", weights)
    return folder


@pytest.fixture
def folder(tmp_path):
    return tf_folder(tmp_path, checkpoint("bert-with-head")[1])


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "name",
    """
    bert-with-head gpt2 marian albert mpnet t5 distilbert xlm-roberta t5-1.1 bart pegasus
    """.split(),
)
def test_it_is_the_model_of_the_safetensors_file(name, tmp_path):
    tf_folder(tmp_path, checkpoint(name)[1])
    theirs = named_weights(huggingface.load_model(tmp_path))
    shutil.move(tmp_path / "other.safetensors", tmp_path / "model.safetensors")
    ours = named_weights(huggingface.load_model(tmp_path))
    assert set(ours) == set(theirs)
    for path, weight in ours.items():
        np.testing.assert_array_equal(np.asarray(weight), np.asarray(theirs[path]), err_msg=path)


def test_half_precision_and_a_classifier(tmp_path):
    tf_folder(tmp_path, make_twin("distilbert", end="ForSequenceClassification"), "float16")
    report = {row.tensor: row for row in huggingface.read_report(tmp_path)}
    assert report["pre_classifier.weight"][1:] == ("head/intermediate/kernel", (35, 35), "transposed")
    assert {weight.dtype for weight in huggingface.load_model(tmp_path).weights} == {"float32"}


@pytest.mark.parametrize(
    ("theirs", "expected"),
    [
        ("tf_bert_model/bert/embeddings/word_embeddings/weight:0", "bert.embeddings.word_embeddings.weight"),
        (
            "tf_bert_model/bert/encoder/layer_._11/output/LayerNorm/gamma:0",
            "bert.encoder.layer.11.output.LayerNorm.weight",
        ),
        ("tf_bert_for_masked_lm/mlm___cls/predictions/bias:0", "cls.predictions.bias"),
        ("model.shared/model.shared/weight:0", "model.shared.weight"),
        ("tf_marian_mt_model/model.shared/model.shared/embeddings:0", "model.shared.weight"),
        ("shared/shared/weight:0", "shared.weight"),
        ("final_logits_bias:0", "final_logits_bias"),
        ("tf_marian_mt_model/final_logits_bias/final_logits_bias:0", "final_logits_bias"),
        ("tf_gpt2/transformer/h_._0/attn/c_attn/bias:0", "transformer.h.0.attn.c_attn.bias"),
        (
            "tf_t5/encoder/block_._1/layer_._0/SelfAttention/q/kernel:0",
            "encoder.block.1.layer.0.SelfAttention.q.weight",
        ),
        (
            "tf_t5/encoder/block_._0/layer_._0/layer_norm/weight:0",
            "encoder.block.0.layer.0.layer_norm.weight",
        ),
    ],
)
def test_names(theirs, expected):
    assert torch_name(theirs) == expected


def refused(folder, match):
    with pytest.raises(ValueError, match=match):
        huggingface.load_model(folder)


KERNEL = "bert/tf_model/bert/encoder/layer_._0/output/dense/kernel:0"
NORM = "bert/tf_model/bert/encoder/layer_._0/output/LayerNorm/gamma:0"


def replace(folder, path, make):
    with h5py.File(folder / "tf_model.h5", "a") as file:
        old = np.asarray(file[path])
        del file[path]
        make(file, path, old)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda file, path, old: None, "lacks tf_model/bert/encoder/.*, which its own list names"),
        (
            lambda file, path, old: file.create_dataset(path, data=old[:-1]),
            r"must have shape .* by the config",
        ),
        (
            lambda file, path, old: file.create_dataset(path, data=np.full(old.shape, np.nan, "f4")),
            "NaN or infinite",
        ),
        (
            lambda file, path, old: file.create_dataset(path, old.shape, dtype=h5py.string_dtype()),
            "must hold floats. Received: dtype object",
        ),
        (lambda file, path, old: file.create_dataset(path, data=old.astype("i4")), "must hold floats"),
        (lambda file, path, old: file.create_dataset(path, data=old, compression="gzip"), "one plain block"),
        (
            lambda file, path, old: file.create_dataset(
                path, old.shape, "f4", external=[("/etc/hostname", 0, old.size * 4)]
            ),
            "one plain block",
        ),
        (
            lambda file, path, old: file.create_dataset(path, (10**6, 10**6), "f4"),
            "has 4000000000000 bytes by its shape, and holds 0",
        ),
        (
            lambda file, path, old: file.create_dataset(path, (10**6, 10**6), "f4", chunks=(10, 10)),
            "one plain block",
        ),
        (lambda file, path, old: file.create_group(path), "must be a dataset"),
        (
            lambda file, path, old: file.__setitem__(path, h5py.SoftLink(f"/{NORM}")),
            "is a link, which is not followed",
        ),
        (
            lambda file, path, old: file.__setitem__(path, h5py.ExternalLink("other.h5", "/x")),
            "is a link, which is not followed",
        ),
    ],
)
def test_a_weight_that_is_none(make, match, folder):
    replace(folder, KERNEL, make)
    refused(folder, match)


def test_a_file_that_is_cut_or_is_none(folder):
    path = folder / "tf_model.h5"
    content = path.read_bytes()
    for part in (content[: len(content) // 2], content[:100], b"", b"\x00" * 5000):
        path.write_bytes(part)
        refused(folder, "is damaged|not a file of Keras")
    with h5py.File(path, "w") as file:
        file.attrs["something"] = 1
    refused(folder, "has no list `layer_names`")


def test_a_weight_twice_and_a_foreign_one(folder):
    with h5py.File(folder / "tf_model.h5", "a") as file:
        group = file["bert"]
        names = [np.bytes_(name) for name in np.asarray(group.attrs["weight_names1"], "S")]
        group.attrs["weight_names1"] = [*names, b"tf_model/bert/extra:0"]
        group.create_dataset("tf_model/bert/extra:0", data=np.ones(3, "f4"))
    refused(folder, r"Missing: none\. Not understood: bert\.extra\.")
    with h5py.File(folder / "tf_model.h5", "a") as file:
        file["bert"].attrs["weight_names1"] = [*names, names[0]]
    refused(folder, "is twice in")


def test_a_config_that_lies_about_sizes(folder):
    change_config(folder, hidden_size=10**9)
    refused(folder, "`hidden_size` of a bert config must be at most .*: the weight files hold")
