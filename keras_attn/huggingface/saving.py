"""A model of this library as a checkpoint that transformers loads: the tables of names, read from right to left."""

import collections
import json
import pathlib
import re

import numpy as np

from keras_attn.checks import choose
from keras_attn.files import replaced_file
from keras_attn.huggingface.architecture import Output
from keras_attn.huggingface.configs import CONFIGS
from keras_attn.huggingface.fields import Fields
from keras_attn.huggingface.heads import config_of_head, with_head
from keras_attn.huggingface.loading import without_variables
from keras_attn.huggingface.model_types import MODEL_TYPES
from keras_attn.huggingface.names import places
from keras_attn.huggingface.tokenizer_saving import tokenizer_files, write_files
from keras_attn.models import EncoderWithHead, gives_logits, write_weights
from keras_attn.models.weight_names import named_weights
from keras_attn.text import Tokenizer

# What does not change the outputs of a model.
_OF_NO_EFFECT = {
    *(
        "name",
        "dtype",
        "trainable",
        "module",
        "registered_name",
        "build_config",
        "shared_layer",
        "seed",
        "remat",
    ),
    *("kernel_initializer", "bias_initializer", "embeddings_initializer", "initializer", "beta_initializer"),
    *("gamma_initializer", "flash_attention", "memory_efficient", "reverse_dtype", "max_sequence_length"),
    "stochastic_depth",
}


def save_model(model, folder, model_type, tokenizer=None, **fields):
    """Writes config.json and model.safetensors, from which transformers, and `load_model`, make the same model.

    The config is made from the model's parts. A model made again from this config must have the same parts, or nothing
    is written: what an architecture cannot express is an error.

    Args:
        model: A model of this library; of "bert" and of images also an `EncoderWithHead`, whose labels get names by the field
            `id2label`.
        folder: Path; it is created if missing.
        model_type: The architecture: "bert", "gpt2", "llama", "t5", "marian", "pegasus"; of images "vit", "deit", "dinov2",
            "dinov2_with_registers", "swin".
        tokenizer: Tokenizer of `keras_attn.text`, which is written too, see `save_tokenizer`, and gives the config the ids of
            START and END; or None.
        **fields: More fields of the config, `eos_token_id=3` for instance.

    Raises:
        ValueError: if the architecture is not known, or is not that of the model; the message names a difference.
        OSError: if a file cannot be written.

    Example:

    ```python
    model = keras_attn.models.DecoderTransformer.from_sizes(100, 2, hidden_dim=16, num_heads=2, intermediate_dim=32)
    save_model(model, "gpt2-of-mine", "gpt2", eos_token_id=3)
    ```
    """
    own_class, prefix, config_of = choose("model_type", model_type, CONFIGS)
    kind = MODEL_TYPES[model_type].kind
    if tokenizer is not None and kind == "images":
        raise ValueError(
            f"A {model_type} reads images, and has no tokenizer. Received: {type(tokenizer).__name__}."
        )
    has_head = isinstance(model, EncoderWithHead)
    task, of_head = config_of_head(model.head) if has_head else (None, {})
    try:
        config = {"model_type": model_type, **config_of(model.encoder if has_head else model), **of_head}
    except (AttributeError, IndexError, TypeError) as error:
        raise ValueError(f"This model has not the parts of a {model_type}: {error}.") from error
    config |= {"architectures": [own_class], **_special_ids(tokenizer), **fields}
    architecture = MODEL_TYPES[model_type].understand(Fields(config, 2**62, 2**31), _NoFiles(model))
    if has_head:
        architecture = with_head(architecture, choose("head", task, architecture.heads)())
        own_class, prefix = re.sub(r"(LMHead)?Model$|For\w+$", f"For{task}", own_class), architecture.prefix
        config = {**config, "architectures": [own_class], **fields}
    if "id2label" in config:
        config.setdefault("label2id", {name: int(i) for i, name in config["id2label"].items()})
    twin = without_variables(architecture.make)
    has_alternating_sines = _has_alternating_sines(model)
    of_no_effect = _OF_NO_EFFECT | ({"interleaved"} if has_alternating_sines else set())
    _check_same(model.get_config(), twin.config, "model", model_type, of_no_effect)
    weights = named_weights(model)
    if len(weights) != len(twin.shapes):
        raise ValueError(
            f"A {model_type} of these sizes has {len(twin.shapes)} weights: LoRA must be merged before, and quantised "
            f"weights cannot be written. Received: {len(weights)} weights."
        )
    arrays = {name: np.asarray(variable) for name, variable in zip(twin.shapes, weights.values())}
    if has_alternating_sines:
        arrays = {name: _with_sines_first(name, array) for name, array in arrays.items()}
    tensors = _tensors(arrays, architecture, prefix)
    tensors |= {prefix + name: np.zeros(shape, "float32") for name, shape in architecture.of_no_use.items()}
    if config.get("tie_word_embeddings") is False:
        # Then transformers takes no table for another.
        tensors |= {
            prefix + other: tensors[prefix + name]
            for group in architecture.same
            for name in group
            for other in group
            if prefix + name in tensors
        }
    length = getattr(model, "max_sequence_length", None)
    files = {} if tokenizer is None else tokenizer_files(tokenizer, kind, length)
    folder = pathlib.Path(folder)
    write_weights(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with replaced_file(folder / "config.json") as aside:
        aside.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", "utf-8")
    write_files(files, folder)


def _special_ids(tokenizer):
    if not isinstance(tokenizer, Tokenizer):
        return {}
    ids = {"bos_token_id": tokenizer.start_token_id, "eos_token_id": tokenizer.end_token_id}
    return {name: number for name, number in ids.items() if number is not None}


class _NoFiles:
    """In place of a checkpoint: the config alone says whether the output is tied, the model whether there are logits, and
    whether they have a bias."""

    task = None

    def __init__(self, model):
        self._has_bias = any(weight.name == "output_bias" for weight in model.weights)
        body = model.encoder if isinstance(model, EncoderWithHead) else model
        self._gives_logits = gives_logits(body)

    def output(self, fields, output, token):
        is_tied = fields.flag("tie_word_embeddings", MODEL_TYPES[fields.get("model_type")].is_tied)
        return Output(self._gives_logits and is_tied, self._gives_logits)

    def differ(self, name, other):
        return False

    def called(self, name):
        return [name] if name != "final_logits_bias" or self._has_bias else []


def _tensors(arrays, architecture, prefix):
    """{name in the files: array}, from {name of a variable: array}."""
    shapes = {name: array.shape for name, array in arrays.items()}
    parts = collections.defaultdict(list)
    for place in places(shapes, architecture.names):
        parts[place.tensor].append((place, arrays[place.variable]))
    tensors = {}
    for name, found in parts.items():
        found.sort(key=lambda pair: pair[0].at.part)
        array = np.concatenate([place.to_tensor(array) for place, array in found], axis=-1)
        place = found[0][0]
        if place.is_transposed and len(found) > 1:
            array = array.T
        # A pooler is the head's in our models, and the body's in theirs.
        is_head = name in ("lm_head.weight", "final_logits_bias") or (
            place.variable.startswith("head/") and not name.startswith("pooler.")
        )
        tensors[name if is_head else prefix + name] = np.ascontiguousarray(array)
    return tensors


def _has_alternating_sines(model):
    """Whether sines and cosines alternate in the positions; in checkpoints all sines come first."""
    embedding = getattr(model, "source_embedding", None)
    return getattr(getattr(embedding, "position", None), "interleaved", False)


# Which axis of a variable has the width of the model, by the end of its name.
_AXES = {
    r"token/embeddings": 1,
    r"token/reverse_embeddings": 0,
    r"(query|key|value|gate|intermediate)/kernel": 0,
    r"(attention_output|output)/kernel": -1,
    r"(attention_output|output)/bias": 0,
    r"norm/(gamma|beta|scale)": 0,
}


def _with_sines_first(name, array):
    """A variable of a model whose even channels come first: the channels of all layers are exchanged alike, so that the
    model computes the same."""
    axis = next((axis for end, axis in _AXES.items() if re.search(rf"(^|[/_]){end}$", name)), None)
    if axis is None:
        return array
    channels = np.arange(array.shape[axis])
    return array.take(np.concatenate([channels[::2], channels[1::2]]), axis=axis)


def _check_same(ours, theirs, path, model_type, of_no_effect):
    """Raises ValueError unless two configs describe models with the same outputs."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for name in {**ours, **theirs}:
            if name not in of_no_effect:
                _check_same(ours.get(name), theirs.get(name), f"{path}.{name}", model_type, of_no_effect)
    elif isinstance(ours, list | tuple) and isinstance(theirs, list | tuple) and len(ours) == len(theirs):
        for number, pair in enumerate(zip(ours, theirs)):
            _check_same(*pair, f"{path}[{number}]", model_type, of_no_effect)
    elif ours != theirs:
        raise ValueError(
            f"A {model_type} cannot be this model: {path} would be {theirs!r}. Received: {ours!r}."
        )
