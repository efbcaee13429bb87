"""A model of this library as a checkpoint that transformers loads: the tables of names, read from right to left."""

import collections
import json
import pathlib
import re

import numpy as np

from keras_attn.checks import choose
from keras_attn.files import replaced_file
from keras_attn.huggingface.architecture import Output
from keras_attn.huggingface.config_fields import Fields
from keras_attn.huggingface.generation_fields import GENERATION_FILE
from keras_attn.huggingface.heads import with_head
from keras_attn.huggingface.loading import body_of, origin_of
from keras_attn.huggingface.model_types import MODEL_TYPES, writers
from keras_attn.huggingface.saved_config import SavedConfig
from keras_attn.huggingface.tokenizer_saving import tokenizer_files, write_files
from keras_attn.models import write_weights
from keras_attn.models.checkpoint_names import measured_model, places
from keras_attn.models.weight_names import named_weights

# Keys of layers' configs that do not change the outputs of a model.
_KEYS_WITHOUT_EFFECT = set(
    (
        "beta_initializer bias_initializer build_config dtype embeddings_initializer flash_attention "
        "gamma_initializer initializer kernel_initializer max_sequence_length memory_efficient module "
        "name origin registered_name remat reverse_dtype seed shared_layer stochastic_depth trainable"
    ).split()
)


def save_model(model, folder, model_type=None, tokenizer=None, **fields):
    """Writes config.json and model.safetensors, from which transformers, and `load_model`, make the same model.

    A model that was loaded is written with the fields of its config.json and its generation_config.json, the names of labels
    and the class in `architectures` among them, unless the model was changed since, or `fields` say otherwise. Other fields
    are made from the model's parts. A model made again from this config must have the same parts, or nothing is written:
    what an architecture cannot express is an error.

    Args:
        model: A model of this library; an `EncoderWithHead` too, whose labels get names by the field `id2label`.
        folder: Path; it is created if missing.
        model_type: The architecture: "bert", "gpt2", "llama", "t5", "mt5", "marian", "pegasus"; of images "vit", "deit",
            "dinov2", "dinov2_with_registers", "swin". Defaults to that of the checkpoint that the model was loaded from.
        tokenizer: Tokenizer of `keras_attn.text`, which is written too, see `save_tokenizer`, and gives the config the ids of
            START and END; or None.
        **fields: More fields of the config, `eos_token_id=3` for instance. `architectures=["BertForQuestionAnswering"]` says
            what two logits of each token are, which else are two labels.

    Raises:
        ValueError: if the architecture is not known, or is not that of the model; the message names a difference.
        OSError: if a file cannot be written.

    Example:

    ```python
    model = keras_attn.models.DecoderTransformer.from_sizes(100, 2, hidden_dim=16, num_heads=2, intermediate_dim=32)
    save_model(model, "gpt2-of-mine", "gpt2", eos_token_id=3)
    ```
    """
    origin = origin_of(model)
    if model_type is None:
        model_type = origin.config.get("model_type")
    config_of = choose("model_type", model_type, writers())
    kind = MODEL_TYPES[model_type].kind
    if tokenizer is not None and kind == "images":
        raise ValueError(
            f"A {model_type} reads images, and has no tokenizer. Received: {type(tokenizer).__name__}."
        )
    saved_config = SavedConfig(model, model_type, tokenizer, fields)
    config, tensors = _config_and_tensors(model, saved_config, config_of)
    files = {}
    if tokenizer is not None:
        files = tokenizer_files(tokenizer, kind, getattr(model, "max_sequence_length", None))
    folder = pathlib.Path(folder)
    write_weights(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    _write_json(config, folder / "config.json")
    if origin.generation_config is not None:
        changed = {name: value for name, value in config.items() if name in saved_config.given}
        _write_json({**origin.generation_config, **changed}, folder / GENERATION_FILE)
    write_files(files, folder)


def model_type_of_origin(model):
    """The architecture of the checkpoint that a model was loaded from, if it can be written; else None."""
    model_type = origin_of(model).config.get("model_type")
    return model_type if model_type in writers() else None


def _write_json(value, path):
    with replaced_file(path) as aside:
        aside.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", "utf-8")


def _config_and_tensors(model, saved_config, config_of):
    """The config that the model was loaded with, if it still describes the model, or else one made from the model's parts;
    and the tensors."""
    model_type = saved_config.model_type
    if saved_config.loaded.get("model_type") == model_type:
        try:
            config = saved_config.as_loaded()
            return config, _tensors(model, saved_config, config)
        except ValueError:  # the model was changed; what follows names a difference if there is one
            pass
    try:
        parts = config_of(body_of(model))
    except (AttributeError, IndexError, TypeError) as error:
        raise ValueError(f"This model has not the parts of a {model_type}: {error}.") from error
    config = saved_config.with_parts(parts)
    return config, _tensors(model, saved_config, config)


def _tensors(model, saved_config, config):
    """{name in the files: array} of a model's weights.

    Raises:
        ValueError: if the config is not that of the model.
    """
    model_type = saved_config.model_type
    fields = Fields(config, 2**62, 2**31)
    architecture = MODEL_TYPES[model_type].architecture(fields, _FutureCheckpoint(model, saved_config.task))
    fields.refuse_not_obeyed()
    if saved_config.task is not None:
        make_head = choose("head", saved_config.task, architecture.heads)
        architecture = with_head(architecture, make_head())
    twin = measured_model(architecture.make)
    keys_without_effect = _KEYS_WITHOUT_EFFECT
    alternates_sines = _alternates_sines(model)
    if alternates_sines:
        keys_without_effect = keys_without_effect | {"interleaved"}
    _check_same(model.get_config(), twin.config, "model", model_type, keys_without_effect)
    arrays = _arrays_of_twin(model, twin, model_type)
    if alternates_sines:
        arrays = {name: _with_sines_first(name, array) for name, array in arrays.items()}
    prefix = architecture.prefix if saved_config.has_prefix else ""
    tensors = _in_their_layout(arrays, architecture.names, prefix)
    for name, shape in architecture.written_as_zeros.items():
        tensors[prefix + name] = np.zeros(shape, "float32")
    if config.get("tie_word_embeddings") is False:
        # Then transformers expects every copy in the file.
        for group in architecture.same:
            _add_copies(tensors, [_name_in_files(name, prefix) for name in group])
    return tensors


def _add_copies(tensors, names):
    """Gives all names of one tensor its values, if one of the names has them."""
    stored = [name for name in names if name in tensors]
    for name in names:
        if stored:
            tensors[name] = tensors[stored[-1]]


def _arrays_of_twin(model, twin, model_type):
    """{name in the twin: values} of a model's weights. The two models have the same parts, whose names may differ."""
    weights = named_weights(model)
    if len(weights) != len(twin.shapes):
        raise ValueError(
            f"A {model_type} of these sizes has {len(twin.shapes)} weights: LoRA must be merged before, and quantised "
            f"weights cannot be written. Received: {len(weights)} weights."
        )
    names = _names_of_parts(model.get_config(), twin.config)
    arrays = {_with_names_of_parts(name, names): np.asarray(weight) for name, weight in weights.items()}
    # A copied part, such as a block's second norm, has another name in each model, but is the only other part at its place.
    others = _single_names(name for name in twin.shapes if name not in arrays)
    arrays = {
        name if name in twin.shapes else others.get(_place(name), name): array
        for name, array in arrays.items()
    }
    shapes = {name: array.shape for name, array in arrays.items()}
    if shapes != twin.shapes:
        differing = sorted(set(shapes.items()) ^ set(twin.shapes.items()))[:4]
        raise ValueError(f"A {model_type} cannot be this model: these weights differ: {differing}.")
    return arrays


def _place(name):
    """The path of a weight without the name of the layer that holds it."""
    layer, _, kind = name.rpartition("/")
    return layer.rpartition("/")[0], kind


def _single_names(names):
    """{place: name} of the names of weights that are alone at their place."""
    by_place = collections.defaultdict(list)
    for name in names:
        by_place[_place(name)].append(name)
    return {place: names[0] for place, names in by_place.items() if len(names) == 1}


def _names_of_parts(ours, theirs, above=()):
    """{path of names of layers: the last layer's name in the other config}, of two configs of the same parts."""
    names = {}
    if isinstance(ours, dict) and isinstance(theirs, dict):
        config = ours.get("config")
        other = theirs.get("config")
        if isinstance(config, dict) and isinstance(other, dict) and "name" in config:
            above += (config["name"],)
            names[above] = other["name"]
        for key in ours:
            names |= _names_of_parts(ours[key], theirs.get(key), above)
    elif isinstance(ours, list | tuple) and isinstance(theirs, list | tuple):
        for one, other in zip(ours, theirs):
            names |= _names_of_parts(one, other, above)
    return names


def _with_names_of_parts(name, names):
    """A weight's name with the names of layers replaced. Layers that no config describes have the same names in both."""
    path = ()
    steps = []
    for step in name.split("/"):
        if path + (step,) in names:
            path += (step,)
            step = names[path]
        steps.append(step)
    return "/".join(steps)


class _FutureCheckpoint:
    """In place of a checkpoint, for the function of an architecture: the model says what its files will hold."""

    def __init__(self, model, task):
        self.task = task
        body = body_of(model)
        embedding = getattr(body, "target_embedding", getattr(body, "embedding", None))
        source_embedding = getattr(body, "source_embedding", embedding)
        self._token = getattr(embedding, "token", None)
        self._has_two_tables = getattr(source_embedding, "token", None) is not self._token

    def output(self, fields, output, token):
        fields.flag("tie_word_embeddings", True)
        is_tied = self._token.tie_weights and self._token.gives_logits
        return Output(is_tied, self._token.gives_logits)

    def differ(self, name, other):
        return self._has_two_tables and name.startswith("encoder.") and other.startswith("decoder.")

    def tensors_named(self, name):
        if name.startswith("transformer."):
            return []
        if name == "final_logits_bias" and not self._token.use_output_bias:
            return []
        return [name]


def _in_their_layout(arrays, table, prefix):
    """{name in the files: array}, from {name of a variable: array}, by a table of names."""
    shapes = {name: array.shape for name, array in arrays.items()}
    parts = collections.defaultdict(list)
    for place in places(shapes, table):
        parts[place.tensor].append(place)
    tensors = {}
    for name, tensor_places in parts.items():
        tensor_places.sort(key=lambda place: place.at.part)
        array = np.concatenate([place.to_tensor(arrays[place.variable]) for place in tensor_places], axis=-1)
        first = tensor_places[0]
        if first.is_transposed and len(tensor_places) > 1:
            array = array.T
        # The pooler belongs to the head in our models, and to the body in theirs.
        if not first.variable.startswith("head/") or name.startswith("pooler."):
            name = _name_in_files(name, prefix)
        tensors[name] = np.ascontiguousarray(array)
    return tensors


def _name_in_files(name, prefix):
    """The name of a tensor of the body, or of the output projection, which is no part of it."""
    if name in ("lm_head.weight", "final_logits_bias"):
        return name
    return prefix + name


def _alternates_sines(model):
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


def _check_same(ours, theirs, path, model_type, keys_without_effect):
    """Raises ValueError unless two configs describe models with the same outputs."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for name in {**ours, **theirs}:
            if name not in keys_without_effect:
                _check_same(
                    ours.get(name), theirs.get(name), f"{path}.{name}", model_type, keys_without_effect
                )
    elif isinstance(ours, list | tuple) and isinstance(theirs, list | tuple) and len(ours) == len(theirs):
        for number, (one, other) in enumerate(zip(ours, theirs)):
            _check_same(one, other, f"{path}[{number}]", model_type, keys_without_effect)
    elif ours != theirs:
        raise ValueError(
            f"A {model_type} cannot be this model: {path} would be {theirs!r}. Received: {ours!r}."
        )
