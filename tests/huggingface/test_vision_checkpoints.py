"""Vision models: random checkpoints that transformers saved give the outputs of transformers, in both directions."""

import json

import keras
import numpy as np
import pytest
import torch
import transformers
from helpers_models import assert_close
from helpers_vision import (
    CASES,
    HEADS,
    C,
    L,
    checkpoint,
    hidden_states,
    images,
    loaded,
    ours,
    sizes_of,
    theirs,
)
from keras import ops

from keras_attn import huggingface, info, layers
from keras_attn.models import EncoderWithHead, SwinTransformer, VisionTransformer, read_weights, write_weights
from keras_attn.text import ByteTokenizer

# Another configuration of an architecture is of the second rank, and so is what another one shows, too.
VARIANTS = {"vit-no-bias", "dinov2-registers", "dinov2-swiglu", "swin-positions"}


def cases(names=CASES, first_rank=()):
    """Names of checkpoints, or such names and heads."""
    found = []
    for case in names:
        values = (case,) if isinstance(case, str) else case
        is_first = case in first_rank if first_rank else values[0] not in VARIANTS
        found.append(pytest.param(*values, marks=() if is_first else pytest.mark.extended))
    return found


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", cases())
def test_vectors_are_theirs(name):
    model, (_, twin) = loaded(name), checkpoint(name)
    for size in sizes_of(name):
        assert_close(ours(model, images(*size)), theirs(twin, images(*size)))


@pytest.mark.extended
@pytest.mark.parametrize("name", ["deit", "swin"])
def test_what_blocks_and_stages_return_is_theirs(name):
    pairs = hidden_states(name)
    assert len(pairs) == 3
    for found, expected in pairs:
        assert_close(found, expected)


@pytest.mark.parametrize(
    ("name", "end"),
    cases(
        HEADS,
        first_rank=[("dinov2", "ForImageClassification"), ("deit", "ForImageClassificationWithTeacher")],
    ),
)
def test_logits_are_theirs(name, end):
    model, (_, twin) = loaded(name, end), checkpoint(name, end)
    for size in sizes_of(name)[1:]:
        found = ours(model, images(*size))
        assert found.shape == (2, L)
        assert_close(found, theirs(twin, images(*size)))


@pytest.mark.parametrize("name", cases(first_rank=["vit"]))
def test_a_body_comes_out_of_a_classifier(name):
    folder, twin = checkpoint(name, "ForImageClassification")
    model = huggingface.load_model(folder, head=False)
    assert isinstance(model, SwinTransformer if CASES[name][0] == "swin" else VisionTransformer)
    x = images(*sizes_of(name)[1])
    assert_close(ours(model, x), theirs(twin.base_model, x))


@pytest.mark.parametrize("name", cases(first_rank=["deit", "dinov2"]))
def test_names_of_transformers_5_are_read(name):
    """Files have the old names unless one asks for others."""
    (folder, twin), (old, _) = checkpoint(name, in_memory_names=True), checkpoint(name)
    assert set(read_weights(folder / "model.safetensors")) != set(read_weights(old / "model.safetensors"))
    x = images(*sizes_of(name)[1])
    assert_close(ours(huggingface.load_model(folder), x), theirs(twin, x))


def model_of_sizes(image_size=(9, 12), **options):
    sizes = {"hidden_dim": 24, "num_heads": 3, "intermediate_dim": 72, "num_channels": C, **options}
    model = VisionTransformer.from_sizes(image_size, (3, 2), 2, **sizes)
    rng = np.random.default_rng(3)
    for weight in model.weights:
        weight.assign(rng.normal(size=weight.shape) * 0.3)
    return model


@pytest.mark.parametrize(
    ("model_type", "class_name", "options"),
    [
        ("vit", "ViT", {"activation": "gelu_tanh"}),
        pytest.param("dinov2", "Dinov2", {"layer_scale": 0.1}, marks=pytest.mark.extended),
        pytest.param(
            "dinov2_with_registers",
            "Dinov2WithRegisters",
            {
                "layer_scale": 0.1,
                "num_register_tokens": 3,
                "gated": True,
                "activation": "silu",
                "intermediate_dim": 64,
            },
            marks=pytest.mark.extended,
        ),
    ],
)
def test_a_model_of_our_sizes_goes_out(model_type, class_name, options, tmp_path):
    size = (9, 6) if "dinov2" in model_type else (9, 12)
    model = model_of_sizes(size, **options)
    if model_type == "dinov2_with_registers":
        model.embedding.antialias = True
    head = layers.ImageClassificationHead(L, "first", model.num_special_tokens)
    if "dinov2" in model_type:
        head = layers.ImageClassificationHead(L, "first_and_mean", model.num_special_tokens)
    classifier = EncoderWithHead(model, head)
    names = {str(i): f"kind {i}" for i in range(L)}
    huggingface.save_model(classifier, tmp_path, model_type, id2label=names)
    twin = getattr(transformers, f"{class_name}ForImageClassification").from_pretrained(tmp_path).eval()
    assert twin.config.id2label[3] == "kind 3"
    x = images(*size)
    with torch.no_grad():
        expected = twin(torch.tensor(x).permute(0, 3, 1, 2)).logits.numpy()
    for found in (classifier, huggingface.load_model(tmp_path)):
        assert_close(ours(found, x), expected)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("model_type", "options", "match"),
    [
        ("vit", {"position_encoding": "rotary"}, "position would be 'learned'"),
        ("vit", {"num_register_tokens": 1}, "num_register_tokens would be 0"),
        ("vit", {"layer_scale": 0.1}, "layer_scale would be None"),
        ("deit", {}, "use_distillation_token would be True"),
        ("dinov2", {"image_size": (9, 6)}, "`layerscale_value` of a dinov2 config must be a number"),
        ("dinov2", {"layer_scale": 0.1}, "as many rows as columns"),
        (
            "dinov2",
            {"layer_scale": 0.1, "intermediate_dim": 71, "image_size": (9, 6)},
            "a whole number of times as wide",
        ),
        ("bert", {}, "not the parts of a bert"),
    ],
)
def test_what_an_architecture_cannot_express_is_refused(model_type, options, match, tmp_path):
    with pytest.raises(ValueError, match=match):
        huggingface.save_model(model_of_sizes(**options), tmp_path, model_type)
    assert not list(tmp_path.iterdir())


@pytest.mark.extended
def test_a_swin_of_our_sizes_goes_out(tmp_path):
    sizes = {"patch_size": (3, 2), "hidden_dim": 12, "num_layers": (1, 2), "num_heads": (2, 3)}
    sizes |= {"window_size": 3, "num_channels": C, "intermediate_ratio": 1.75, "stochastic_depth": 0.1}
    model = SwinTransformer.from_sizes(**sizes, attend_to_padding=True)
    for weight in model.weights:
        weight.assign(np.random.default_rng(3).normal(size=weight.shape) * 0.3)
    classifier = EncoderWithHead(model, layers.ImageClassificationHead(L, "mean", num_special_tokens=0))
    huggingface.save_model(classifier, tmp_path, "swin")
    twin = transformers.SwinForImageClassification.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        expected = twin(torch.tensor(images(32, 21)).permute(0, 3, 1, 2)).logits.numpy()
    for found in (classifier, huggingface.load_model(tmp_path)):
        assert_close(ours(found, images(32, 21)), expected)
    with pytest.raises(ValueError, match="in which pixels attend to padding too"):
        huggingface.save_model(SwinTransformer.from_sizes(**sizes), tmp_path / "other", "swin")


def test_a_model_of_images_has_no_tokenizer(tmp_path):
    with pytest.raises(ValueError, match="A vit reads images, and has no tokenizer"):
        huggingface.save_model(model_of_sizes(), tmp_path, "vit", ByteTokenizer())


def test_info_says_what_a_folder_of_images_holds(tmp_path):
    folder = changed(checkpoint("swin")[0], tmp_path)
    rows = dict(info.describe(folder))
    assert (rows["depths"], rows["window_size"], rows["missing"]) == (
        "[2, 3]",
        "4",
        "preprocessor_config.json",
    )
    assert "tokenizer" not in rows
    (folder / "preprocessor_config.json").write_text("{}", "utf-8")
    assert dict(info.describe(folder))["missing"] == "nothing"


def changed(folder, tmp_path, **fields):
    """A copy of a checkpoint with other fields in its config."""
    write_weights(read_weights(folder / "model.safetensors"), tmp_path / "model.safetensors")
    config = json.loads((folder / "config.json").read_text("utf-8"))
    (tmp_path / "config.json").write_text(json.dumps({**config, **fields}), "utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"image_size": 24}, "position_embeddings .*must have shape"),
        ({"image_size": [21, 21, 3]}, "`image_size` of a vit config must be a positive integer, or two"),
        ({"patch_size": 0}, "`patch_size` of a vit config must be a positive integer, or two"),
        ({"patch_size": 2**30}, "at least one patch"),
        ({"num_channels": 3}, "projection.weight .*must have shape"),
        ({"model_type": "deit"}, "Missing: embeddings.distillation_token"),
    ],
)
def test_files_that_do_not_fit_are_refused(fields, match, tmp_path):
    folder = changed(checkpoint("vit")[0], tmp_path, **fields)
    with pytest.raises(ValueError, match=match):
        huggingface.load_model(folder)


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"depths": [2]}, "`depths` and `num_heads` of a swin config must have as many numbers"),
        ({"depths": [2, 0]}, "`depths` of a swin config must be a list of positive integers"),
        ({"depths": [2, 10**9]}, "`depths` of a swin config must be at most 94 layers"),
        ({"num_heads": [3, 10**9]}, "`num_heads` of a swin config must be at most .* each"),
        ({"window_size": 5}, "relative_position_bias_table .*must have shape"),
        ({"num_layers": 3}, "`num_layers` of a swin config must be 2"),
    ],
)
def test_files_that_do_not_fit_a_swin_are_refused(fields, match, tmp_path):
    folder = changed(checkpoint("swin")[0], tmp_path, **fields)
    with pytest.raises(ValueError, match=match):
        huggingface.load_model(folder)


@pytest.mark.extended
def test_half_precision_is_a_policy():
    folder, twin = checkpoint("vit")
    model = huggingface.load_model(folder, dtype="mixed_bfloat16")
    assert keras.backend.standardize_dtype(model.weights[0].dtype) == "float32"
    assert_close(ops.cast(model(images(21, 21)), "float32"), theirs(twin, images(21, 21)), 5e-2)
