"""Tiny random vision checkpoints: transformers' models with random weights, saved by transformers, loaded by us."""

import copy
import functools
import pathlib
import tempfile

import numpy as np
import torch
import transformers
from helpers_checkpoints import randomized
from keras import ops

from keras_attn import huggingface

C, L = 2, 5
_FOLDERS = []


def _vit(**options):
    return {
        "hidden_size": 35,
        "num_hidden_layers": 2,
        "num_attention_heads": 5,
        "image_size": 21,
        "patch_size": 3,
        "num_channels": C,
        **options,
    }


def _swin(**options):
    return {
        "embed_dim": 12,
        "depths": [2, 3],
        "num_heads": [3, 2],
        "window_size": 4,
        "mlp_ratio": 2.5,
        "image_size": 24,
        "patch_size": 2,
        "num_channels": C,
        **options,
    }


# name: (model_type, the beginning of transformers' class names, the fields of the config)
CASES = {
    "vit": ("vit", "ViT", _vit(intermediate_size=31, layer_norm_eps=1e-5)),
    "vit-no-bias": ("vit", "ViT", _vit(intermediate_size=31, qkv_bias=False, hidden_act="gelu_new")),
    "deit": ("deit", "DeiT", _vit(intermediate_size=31)),
    "dinov2": ("dinov2", "Dinov2", _vit(layerscale_value=0.3, mlp_ratio=3)),
    "dinov2-swiglu": ("dinov2", "Dinov2", _vit(use_swiglu_ffn=True, hidden_act="relu")),
    "dinov2-registers": (
        "dinov2_with_registers",
        "Dinov2WithRegisters",
        _vit(num_register_tokens=3, layerscale_value=1.5),
    ),
    "swin": ("swin", "Swin", _swin()),
    "swin-positions": (
        "swin",
        "Swin",
        _swin(use_absolute_embeddings=True, depths=[1, 2], window_size=3, qkv_bias=False),
    ),
}
# The image of the config, and smaller and larger ones: none is square, and they are no whole number of patches.
_SIZES = ((21, 21), (16, 31), (25, 14))
# transformers cannot run a Swin on images smaller than a window in the last stage, nor resize positions for sizes that patches
# do not divide. Windows divide none of these sizes, and one window covers an axis of the last: nothing is shifted there.
SIZES = {"swin": ((24, 24), (29, 43), (57, 16)), "swin-positions": ((24, 24), (28, 42), (38, 12))}


def sizes_of(name):
    return SIZES.get(name, _SIZES)


HEADS = [(name, "ForImageClassification") for name in CASES] + [("deit", "ForImageClassificationWithTeacher")]


@functools.cache
def checkpoint(name, end="Model", in_memory_names=False):
    """The folder of a random checkpoint, and transformers' model."""
    _, start, fields = CASES[name]
    if "For" in end:
        fields = {**fields, "num_labels": L}
    twin = getattr(transformers, start + end)(getattr(transformers, f"{start}Config")(**fields))
    twin = randomized(twin).eval()
    _FOLDERS.append(tempfile.TemporaryDirectory(prefix="checkpoint-"))
    folder = pathlib.Path(_FOLDERS[-1].name)
    twin.save_pretrained(folder, save_original_format=not in_memory_names)
    return folder, twin


@functools.cache
def loaded(name, end="Model"):
    return huggingface.load_model(checkpoint(name, end)[0])


def images(height, width):
    return np.random.default_rng(height).normal(size=(2, height, width, C)).astype("float32")


def theirs(twin, x):
    """What transformers' model returns for images of any size."""
    resizes = {} if "Dinov2" in type(twin).__name__ else {"interpolate_pos_encoding": True}
    twin = copy.deepcopy(twin)  # one call of a Swin changes the windows of later ones
    with torch.no_grad():
        output = twin(torch.tensor(x).permute(0, 3, 1, 2), **resizes)
    return (output.logits if hasattr(output, "logits") else output.last_hidden_state).numpy()


def ours(model, x):
    return ops.convert_to_numpy(model(ops.convert_to_tensor(x)))


def hidden_states(name):
    """What every block returns, or every stage of a Swin, as pairs (ours, theirs)."""
    model, (_, twin) = loaded(name), checkpoint(name)
    x = images(*sizes_of(name)[0])
    with torch.no_grad():
        expected = copy.deepcopy(twin)(torch.tensor(x).permute(0, 3, 1, 2), output_hidden_states=True)
    y = model.embedding(ops.convert_to_tensor(x))
    if CASES[name][0] == "swin":
        y = ops.reshape(y, (len(x), *model.embedding.grid_size(x.shape[1:3]), y.shape[-1]))
    found = [y]
    for i, block in enumerate(model.blocks):
        y = block(y)
        if CASES[name][0] != "swin" or i == len(model.blocks) - 1 or not hasattr(block, "self_attention"):
            found.append(y)
    found = [ops.convert_to_numpy(y).reshape(len(x), -1, y.shape[-1]) for y in found]
    return list(zip(found, (y.numpy() for y in expected.hidden_states), strict=True))


# By how much a middle-sized config of a case is larger.
_WIDER, _DEEPER = 8, 3


def add_middle_sized(name):
    """Adds the middle-sized config of a case to `CASES`, and returns its name."""
    model_type, start, fields = CASES[name]
    larger = {
        field: _WIDER * fields[field]
        for field in ("hidden_size", "intermediate_size", "embed_dim")
        if field in fields
    }
    if "num_hidden_layers" in fields:
        larger["num_hidden_layers"] = _DEEPER * fields["num_hidden_layers"]
    else:
        larger["depths"] = [_DEEPER * depth for depth in fields["depths"]]
    new = f"{name}, middle-sized"
    CASES[new] = (model_type, start, fields | larger)
    if name in SIZES:
        SIZES[new] = SIZES[name]
    return new
