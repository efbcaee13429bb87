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
from keras_attn.huggingface.heads import labels, with_head
from keras_attn.huggingface.loading import without_variables
from keras_attn.huggingface.model_types import MODEL_TYPES, class_of, is_body, task_of, writers
from keras_attn.huggingface.name_tables import places
from keras_attn.huggingface.origin import body_of, origin_of
from keras_attn.huggingface.tokenizer_saving import tokenizer_files, write_files
from keras_attn.layers import (
    ClassificationHead,
    ImageClassificationHead,
    MaskedLanguageModelHead,
    TokenClassificationHead,
)
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
    "origin",
}


def save_model(model, folder, model_type=None, tokenizer=None, **fields):
    """Writes config.json and model.safetensors, from which transformers, and `load_model`, make the same model.

    What a model was loaded with goes out again: the fields of its config.json and its generation_config.json, the names of
    labels and the class in `architectures` among them, unless the model has been changed since, or `fields` say otherwise.
    Other fields are made from the model's parts. A model made again from this config must have the same parts, or nothing is
    written: what an architecture cannot express is an error.

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
    model_type = origin.config.get("model_type") if model_type is None else model_type
    config_of = choose("model_type", model_type, writers())
    kind = MODEL_TYPES[model_type].kind
    if tokenizer is not None and kind == "images":
        raise ValueError(
            f"A {model_type} reads images, and has no tokenizer. Received: {type(tokenizer).__name__}."
        )
    description = _Description(model, model_type, origin, tokenizer, fields)
    written = _written(model, description, config_of)
    length = getattr(model, "max_sequence_length", None)
    files = {} if tokenizer is None else tokenizer_files(tokenizer, kind, length)
    folder = pathlib.Path(folder)
    write_weights(written.tensors, folder / "model.safetensors", metadata={"format": "pt"})
    _write_json(written.config, folder / "config.json")
    if origin.generation_config is not None:
        changed = {name: value for name, value in written.config.items() if name in description.given}
        _write_json({**origin.generation_config, **changed}, folder / GENERATION_FILE)
    write_files(files, folder)


def model_type_of_origin(model):
    """The architecture of the checkpoint that a model was loaded from, if it can be written; else None."""
    model_type = origin_of(model).config.get("model_type")
    return model_type if model_type in writers() else None


def _write_json(value, path):
    with replaced_file(path) as aside:
        aside.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", "utf-8")


_Written = collections.namedtuple("_Written", ["config", "tensors"])


def _written(model, description, config_of):
    """The config and the tensors: by the config that the model was loaded with if it still describes the model, else by
    one that is made from the model's parts."""
    if description.loaded.get("model_type") == description.model_type:
        try:
            return _described_by(model, description, description.config_as_loaded())
        except ValueError:  # the model was changed; what follows names a difference if there is one
            pass
    try:
        own = config_of(body_of(model))
    except (AttributeError, IndexError, TypeError) as error:
        raise ValueError(f"This model has not the parts of a {description.model_type}: {error}.") from error
    return _described_by(model, description, description.config_of_parts(own))


def _described_by(model, description, config):
    """What is written with this config.

    Raises:
        ValueError: if it is not that of the model.
    """
    model_type = description.model_type
    fields = Fields(config, 2**62, 2**31)
    architecture = MODEL_TYPES[model_type].understand(fields, _NoFiles(model, description.task))
    fields.check_all_read()
    if description.task is not None:
        architecture = with_head(architecture, choose("head", description.task, architecture.heads)())
    prefix = architecture.prefix if description.has_prefix else ""
    twin = without_variables(architecture.make)
    has_alternating_sines = _has_alternating_sines(model)
    of_no_effect = _OF_NO_EFFECT | ({"interleaved"} if has_alternating_sines else set())
    _check_same(model.get_config(), twin.config, "model", model_type, of_no_effect)
    arrays = _arrays_by_their_names(model, twin, model_type)
    if has_alternating_sines:
        arrays = {name: _with_sines_first(name, array) for name, array in arrays.items()}
    tensors = _tensors(arrays, architecture, prefix)
    tensors |= {
        prefix + name: np.zeros(shape, "float32") for name, shape in architecture.written_as_zeros.items()
    }
    if config.get("tie_word_embeddings") is False:
        # Then transformers takes no table for another.
        tensors |= {
            _in_files(other, prefix): tensors[_in_files(name, prefix)]
            for group in architecture.same
            for name in group
            for other in group
            if _in_files(name, prefix) in tensors
        }
    return _Written(config, tensors)


def _arrays_by_their_names(model, twin, model_type):
    """{name in the twin: values} of a model's weights. The two models have the same parts, and perhaps other names of them."""
    weights = named_weights(model)
    if len(weights) != len(twin.shapes):
        raise ValueError(
            f"A {model_type} of these sizes has {len(twin.shapes)} weights: LoRA must be merged before, and quantised "
            f"weights cannot be written. Received: {len(weights)} weights."
        )
    names = _names_of_parts(model.get_config(), twin.config)
    arrays = {_renamed(name, names): np.asarray(variable) for name, variable in weights.items()}
    # A part that is a copy, a block's second norm for instance, has a name of its own: it is the only other one at its place.
    others = _by_place(name for name in twin.shapes if name not in arrays)
    arrays = {
        name if name in twin.shapes else others.get(_place_of(name), name): array
        for name, array in arrays.items()
    }
    shapes = {name: array.shape for name, array in arrays.items()}
    if shapes != twin.shapes:
        differing = sorted(set(shapes.items()) ^ set(twin.shapes.items()))[:4]
        raise ValueError(f"A {model_type} cannot be this model: these weights differ: {differing}.")
    return arrays


def _place_of(name):
    """The path of a weight without the name of the layer that holds it."""
    *above, _, kind = ("", *name.split("/"))
    return (*above, kind)


def _by_place(names):
    """{place: name} of names of weights, none of which is at the place of another."""
    places = collections.defaultdict(list)
    for name in names:
        places[_place_of(name)].append(name)
    return {place: found[0] for place, found in places.items() if len(found) == 1}


def _names_of_parts(ours, theirs, above=()):
    """{path of names of layers: the last layer's name in the other config}, of two configs of the same parts."""
    names = {}
    if isinstance(ours, dict) and isinstance(theirs, dict):
        config, other = ours.get("config"), theirs.get("config")
        if isinstance(config, dict) and isinstance(other, dict) and "name" in config:
            above = (*above, config["name"])
            names[above] = other["name"]
        for key in ours:
            names |= _names_of_parts(ours[key], theirs.get(key), above)
    elif isinstance(ours, list | tuple) and isinstance(theirs, list | tuple):
        for one, other in zip(ours, theirs):
            names |= _names_of_parts(one, other, above)
    return names


def _renamed(name, names):
    """A weight's name with the names of layers replaced. Layers that no config describes have the same names in both."""
    path, steps = (), []
    for step in name.split("/"):
        if (*path, step) in names:
            path = (*path, step)
            step = names[path]
        steps.append(step)
    return "/".join(steps)


# The tasks that a head of a kind may be for; the first unless a class says another.
_TASKS_OF = {
    MaskedLanguageModelHead: ("MaskedLM",),
    ClassificationHead: ("SequenceClassification",),
    TokenClassificationHead: ("TokenClassification", "QuestionAnswering"),
}
# Fields that transformers' classes of every type have, which hold for a model that goes out as another type too.
_OF_ALL_TYPES = {
    *(
        "bos_token_id",
        "eos_token_id",
        "decoder_start_token_id",
        "sep_token_id",
        "cls_token_id",
        "mask_token_id",
    ),
    *(
        "forced_bos_token_id",
        "forced_eos_token_id",
        "suppress_tokens",
        "begin_suppress_tokens",
        "bad_words_ids",
    ),
    *(
        "id2label",
        "label2id",
        "num_labels",
        "problem_type",
        "finetuning_task",
        "task_specific_params",
        "prefix",
    ),
    *(
        "max_length",
        "min_length",
        "num_beams",
        "length_penalty",
        "no_repeat_ngram_size",
        "repetition_penalty",
    ),
    *("early_stopping", "do_sample", "temperature", "top_k", "top_p"),
}
# Fields that writers of configs give a value because transformers' default is another; no part of a model says them.
_NOT_OF_PARTS = ("decoder_start_token_id", "forced_eos_token_id")


class _Description:
    """What is said of a model beside its parts: its class, its labels, and fields that it was loaded with or is given.

    Attributes:
        loaded: Dict, the fields of the checkpoint that it was loaded from.
        given: Dict, those given now.
        task: What its head is for, or None.
        has_prefix: Boolean, whether names of tensors of the body have a prefix, as in all classes but bodies.
    """

    def __init__(self, model, model_type, origin, tokenizer, fields):
        self.model_type, self.loaded = model_type, origin.config
        if origin.config.get("model_type") not in (None, model_type):
            self.loaded = {name: value for name, value in origin.config.items() if name in _OF_ALL_TYPES}
        self.given = {**_special_ids(tokenizer, self.loaded), **fields}
        self._head = model.head if isinstance(model, EncoderWithHead) else None
        self._gives_logits = gives_logits(body_of(model)) and MODEL_TYPES[model_type].kind in (
            "decoder",
            "seq2seq",
        )
        self._check_problem_type()
        self.task, self._class = self._task_and_class()
        self.has_prefix = not is_body({"architectures": [self._class]})

    def config_as_loaded(self):
        """The config that it was loaded with, and what is given."""
        return self._completed(self.loaded)

    def config_of_parts(self, own):
        """The config of a model's parts, and what it was loaded with beside them.

        Args:
            own: Dict, the fields of its parts.
        """
        parts = {name: value for name, value in own.items() if name not in _NOT_OF_PARTS}
        return self._completed({**own, **self.loaded, **parts, **self._of_head()})

    def _completed(self, config):
        config = {**config, **self.given, "model_type": self.model_type, "architectures": [self._class]}
        if "id2label" in config:
            config.pop("num_labels", None)
            if config["id2label"] != self.loaded.get("id2label") or "label2id" not in config:
                config["label2id"] = {name: int(i) for i, name in config["id2label"].items()}
        is_single = config.get("problem_type") == "single_label_classification"
        # Without the field, one label means the same, and several mean this.
        is_said_twice = self.loaded and self.loaded.get("problem_type") is None
        if is_single and (is_said_twice or len(labels(config).names) == 1):
            config["problem_type"] = None
        return config

    def _check_problem_type(self):
        kind = self.given.get("problem_type")
        if kind == "single_label_classification" and getattr(self._head, "num_labels", None) == 1:
            raise ValueError(
                '`problem_type` of a classifier with one label must be "regression", "multi_label_classification" or None: '
                f"transformers opens no other. Received: problem_type={kind!r}."
            )

    def _of_head(self):
        """Fields without which loading would not make the head."""
        count = getattr(self._head, "num_labels", None)
        if count is None or self.task == "QuestionAnswering":
            return {}
        fields = (
            {"classifier_dropout": self._head.dropout}
            if MODEL_TYPES[self.model_type].kind == "encoder"
            else {}
        )
        if len(labels(self.loaded).names) != count:
            fields["id2label"] = {str(i): f"LABEL_{i}" for i in range(count)}
        return fields

    def _task_and_class(self):
        """The task of the head, and the name of transformers' class: that of the checkpoint if it fits, or is given."""
        model_type = MODEL_TYPES[self.model_type]
        possible = self._possible_tasks()
        for source in (self.given, self.loaded):
            name = class_of(source)
            if name is None:
                continue
            task = task_of(
                {"model_type": self.model_type, "architectures": [name]}, head=self._head is not None
            )
            if self._head is not None and task in possible:
                return task, name
            if self._head is None and is_body(source) and not (self._gives_logits and source is self.given):
                return None, name
            if self._head is None and self._gives_logits and name == model_type.writer_class:
                return None, name
            if source is self.given:
                raise ValueError(
                    f"`architectures` must be a class of this model. Received: architectures=[{name!r}], a model "
                    f"{'without a head' if self._head is None else f'with a head for {possible[0]}'}."
                )
        if self._head is not None:
            return possible[0], f"{model_type.class_name}For{possible[0]}"
        return None, model_type.writer_class if self._gives_logits else f"{model_type.class_name}Model"

    def _possible_tasks(self):
        if self._head is None:
            return ()
        if isinstance(self._head, ImageClassificationHead):
            return ("ImageClassification" + "WithTeacher" * self._head.use_distillation_token,)
        tasks = next((tasks for kind, tasks in _TASKS_OF.items() if isinstance(self._head, kind)), None)
        if tasks is None:
            raise ValueError(
                f"A head of this kind is not in checkpoints. Received: {type(self._head).__name__}."
            )
        return tasks


def _special_ids(tokenizer, loaded):
    """The ids of START and END; those that a model was loaded with stay if the tokenizer's is among them."""
    if not isinstance(tokenizer, Tokenizer):
        return {}
    ids = {"bos_token_id": tokenizer.start_token_id, "eos_token_id": tokenizer.end_token_id}
    ids = {name: number for name, number in ids.items() if number is not None}
    if not loaded:
        return ids
    return {name: number for name, number in ids.items() if number not in _known_ids(loaded, name, number)}


def _known_ids(loaded, name, default):
    """The ids of a role in a config that a model was loaded with; `default` if it names none, which is left to it then."""
    value = loaded.get(name)
    return value if isinstance(value, list) else [default if value is None else value]


class _NoFiles:
    """In place of a checkpoint: the model says what its files will hold."""

    def __init__(self, model, task):
        body = body_of(model)
        embedding = getattr(body, "target_embedding", getattr(body, "embedding", None))
        self._token, self.task = getattr(embedding, "token", None), task
        self._has_two_tables = (
            getattr(getattr(body, "source_embedding", embedding), "token", None) is not self._token
        )

    def output(self, fields, output, token):
        fields.flag("tie_word_embeddings", True)
        return Output(self._token.tie_weights and self._token.gives_logits, self._token.gives_logits)

    def differ(self, name, other):
        return self._has_two_tables and name.startswith("encoder.") and other.startswith("decoder.")

    def called(self, name):
        is_there = not name.startswith("transformer.")
        if name == "final_logits_bias":
            is_there = self._token.use_output_bias
        return [name] if is_there else []


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
        is_head = place.variable.startswith("head/") and not name.startswith("pooler.")
        tensors[name if is_head else _in_files(name, prefix)] = np.ascontiguousarray(array)
    return tensors


def _in_files(name, prefix):
    """The name of a tensor of the body, or of the output projection, which is no part of it."""
    return name if name in ("lm_head.weight", "final_logits_bias") else prefix + name


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
