"""Folders of sentence-transformers: an encoder, and what modules.json says becomes of its vectors."""

import collections
import json
import pathlib

import numpy as np

from keras_attn.checks import choose
from keras_attn.huggingface.checkpoint_files import Folder, read_json
from keras_attn.huggingface.config_fields import Fields
from keras_attn.huggingface.loading import load_model
from keras_attn.huggingface.tokenizer_loading import read_tokenizer
from keras_attn.layers.prediction_heads import VectorHead
from keras_attn.models import EncoderWithHead
from keras_attn.text import PipelineTokenizer

SentenceEncoder = collections.namedtuple("SentenceEncoder", "model pooling normalize max_length folder")
SentenceEncoder.__doc__ = """What `TextEmbedder` is made of.

model: An `EncoderTransformer`, or with a dense layer after the pooling an `EncoderWithHead`.
pooling: "first", "mean", "max" or "last", or None if the model's head pools.
normalize: Boolean, whether vectors get length 1.
max_length: Integer, the most tokens of a text, or None.
folder: `pathlib.Path`, where the tokenizer's files are, for `read_sentence_tokenizer`.
"""

_FILE = "modules.json"
_POOLINGS = {"cls": "first", "mean": "mean", "max": "max", "lasttoken": "last"}
_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}
_ACTIVATIONS = {"Identity": "linear", "Tanh": "tanh", "ReLU": "relu", "GELU": "gelu", "Sigmoid": "sigmoid"}
_MODULE_LISTS = (
    ["Transformer", "Pooling"],
    ["Transformer", "Pooling", "Normalize"],
    ["Transformer", "Pooling", "Dense"],
    ["Transformer", "Pooling", "Dense", "Normalize"],
)
# The first is today's name; older folders use one for each kind of model.
_SETTINGS_FILES = [
    f"sentence_{kind}_config.json"
    for kind in "bert roberta distilbert camembert albert xlm-roberta mpnet".split()
]
_NULL_SETTINGS = (
    "config_args config_kwargs document_length model_args model_kwargs processing_kwargs "
    "processor_kwargs query_expansion query_length tokenizer_args tokenizer_name_or_path"
)
# The fields that change vectors, each with the one value that is implemented; null is, too.
_KNOWN_SETTINGS = {
    "transformer_task": "feature-extraction",
    "module_output_name": "token_embeddings",
    "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
    **dict.fromkeys(_NULL_SETTINGS.split()),
}


def is_sentence_transformer(folder):
    """Whether a folder is one of sentence-transformers."""
    return (pathlib.Path(folder) / _FILE).is_file()


def load_sentence_encoder(folder, dtype=None, ignored_fields=()):
    """The encoder in a folder of sentence-transformers, and how its vectors become one for each text.

    Reads modules.json: Transformer, Pooling (cls, mean, max or lasttoken), then Dense or Normalize or both. Anything else is
    refused by name.

    Args:
        folder: Path of a folder with modules.json.
        dtype, ignored_fields: As in `load_model`.

    Returns:
        `SentenceEncoder`.

    Raises:
        FileNotFoundError: if a file is missing.
        ValueError: if a module or a mode is not one of these, a path leaves the folder, or for what `load_model` refuses.

    Example:

    ```python
    encoder = load_sentence_encoder("all-MiniLM-L6-v2")
    encoder.pooling, encoder.normalize, encoder.max_length  # ("mean", True, 256), for `TextEmbedder`
    tokenizer = keras_attn.huggingface.read_sentence_tokenizer(encoder.folder)
    ```

    Reference: [Reimers and Gurevych, 2019](https://arxiv.org/abs/1908.10084), section 3.
    """
    folder = pathlib.Path(folder)
    modules = _modules(folder)
    _refuse_prompts(folder)
    body = modules["Transformer"]
    max_length = _settings(body).get("max_seq_length") or _longest(body)
    pooling = _pooling(read_json(modules["Pooling"] / "config.json"), modules["Pooling"])
    # Read before the encoder, so that an error comes early.
    dense = _Dense(modules["Dense"]) if "Dense" in modules else None
    model = load_model(body, dtype=dtype, ignored_fields=ignored_fields, head=False)
    if dense is not None:
        model = dense.on(model, pooling)
        pooling = None
    if max_length is not None:
        max_length = min(max_length, model.max_sequence_length)
    return SentenceEncoder(model, pooling, "Normalize" in modules, max_length, body)


def read_sentence_tokenizer(folder, ignored_fields=()):
    """The tokenizer of an encoder in a folder of sentence-transformers, whose settings may put texts in lower case.

    Args:
        folder: `SentenceEncoder.folder`.
        ignored_fields: As in `read_tokenizer`.

    Returns:
        `PipelineTokenizer`.

    Raises:
        FileNotFoundError, ValueError: as `read_tokenizer`.

    Example: `tokenizer = read_sentence_tokenizer(load_sentence_encoder("all-MiniLM-L6-v2").folder)`.
    """
    tokenizer = read_tokenizer(folder, ignored_fields=ignored_fields)
    if not _settings(pathlib.Path(folder)).get("do_lower_case"):
        return tokenizer
    description = tokenizer.description
    normalizer = description.get("normalizer")
    steps = [{"type": "Lowercase"}]
    if normalizer is not None:
        steps.append(normalizer)
    description["normalizer"] = {"type": "Sequence", "normalizers": steps}
    return PipelineTokenizer(
        description, tokenizer.special_tokens, split_special_tokens=tokenizer.split_special_tokens
    )


def _modules(folder):
    """{kind of module: its folder}."""
    path = folder / _FILE
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {path}.")
    if path.stat().st_size > 10**6:
        raise ValueError(f"{path} is larger than 1,000,000 bytes.")
    try:
        modules = json.loads(path.read_bytes())
        kinds = [module["type"].rpartition(".")[2] for module in modules]
        folders = [_inside(folder, module["path"]) for module in modules]
    except RecursionError:
        raise ValueError(f"{path} is damaged: it is nested too deeply.") from None
    except (TypeError, KeyError, AttributeError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} must list modules, each with a type and a path: {error!r}.") from error
    if kinds not in _MODULE_LISTS:
        raise ValueError(
            f"{path} must list Transformer, Pooling, and after them Dense or Normalize or both. Received: {kinds}."
        )
    return dict(zip(kinds, folders))


def _inside(folder, path):
    if not isinstance(path, str):
        raise TypeError("a path must be a string")
    pure = pathlib.PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts or "\\" in path or "\0" in path or ":" in path:
        raise ValueError(f"{folder / _FILE} must name folders inside its own. Received: {path!r}.")
    return folder / pure


def _refuse_prompts(folder):
    path = folder / "config_sentence_transformers.json"
    if not path.is_file():
        return
    config = read_json(path)
    name = config.get("default_prompt_name")
    if name is not None and (config.get("prompts") or {}).get(name) != "":
        raise ValueError(
            f"{path} puts a prompt before each text, which is not done here. Received: default_prompt_name={name!r}."
        )


def _settings(body):
    """The content of sentence_bert_config.json, what would change the vectors checked."""
    path = next((body / name for name in _SETTINGS_FILES if (body / name).is_file()), None)
    settings = {} if path is None else read_json(path)
    for name, known in _KNOWN_SETTINGS.items():
        value = settings.get(name)
        if value not in (None, {}, [], known):
            raise ValueError(
                f"{path} has a field that is not implemented with this value: {name}={value!r:.80}."
            )
    length = settings.get("max_seq_length")
    if length is not None and (type(length) is not int or length <= 0):
        raise ValueError(f"`max_seq_length` must be a positive integer. Received: max_seq_length={length!r}.")
    return settings


def _longest(body):
    """The most tokens of a text where no setting says it: what the tokenizer's config and the model's do."""
    lengths = []
    for file, name in (
        ("tokenizer_config.json", "model_max_length"),
        ("config.json", "max_position_embeddings"),
    ):
        if not (body / file).is_file():
            continue
        value = read_json(body / file).get(name)
        if isinstance(value, int | float) and value > 0:
            lengths.append(int(value))
    return min(lengths, default=None)


def _pooling(config, folder):
    """The name in this library of the one mode of pooling in a config."""
    modes = [config.get("pooling_mode")]
    if modes == [None]:
        modes = [name for flag, name in _FLAGS.items() if config.get(flag)]
    unknown = [name for name in config if name.startswith("pooling_mode_") and name not in _FLAGS]
    if len(modes) != 1 or not isinstance(modes[0], str) or any(config[name] for name in unknown):
        raise ValueError(
            f"{folder} must have one mode of pooling: several, side by side, are not implemented. Received: "
            f"{modes + unknown}."
        )
    return choose("pooling_mode", modes[0], _POOLINGS)


class _Dense:
    """The dense layer after the pooling."""

    def __init__(self, path):
        self.path = path
        folder = Folder(path)
        fields = Fields(folder.config, folder.num_values, len(folder.tensors))
        self.inputs = fields.size("in_features")
        self.outputs = fields.size("out_features")
        self.use_bias = fields.flag("bias", True)
        name = str(fields.get("activation_function", "torch.nn.modules.activation.Tanh")).rpartition(".")[2]
        self.activation = choose("activation_function", name, _ACTIVATIONS)
        if fields.unknown_names:  # sentence-transformers refuses them too
            raise ValueError(
                f"{path} has fields that a dense layer of sentence-transformers does not have: {fields.unknown_names}."
            )
        shapes = {"linear.weight": (self.outputs, self.inputs)}
        if self.use_bias:
            shapes["linear.bias"] = (self.outputs,)
        received = {name: tensor.shape for name, tensor in folder.tensors.items()}
        if received != shapes:
            raise ValueError(f"{path} must hold {shapes} by its config. Received: {received}.")
        self.arrays = {name: folder.read(name) for name in shapes}
        for name, array in self.arrays.items():
            if not np.isfinite(array).all():
                raise ValueError(f"{name} in {path} has values that are NaN or infinite.")

    def on(self, encoder, pooling):
        """The encoder with this layer as its head."""
        if encoder.hidden_dim != self.inputs:
            raise ValueError(
                f"{self.path} must take vectors of the encoder's size {encoder.hidden_dim}. Received: "
                f"in_features={self.inputs}."
            )
        head = VectorHead(
            self.outputs,
            pooling=pooling,
            activation=self.activation,
            use_intermediate_bias=self.use_bias,
            dtype=encoder.dtype_policy,  # not the global one of today
            name="head",
        )
        model = EncoderWithHead(encoder, head, dtype=encoder.dtype_policy)
        head.intermediate_dense.kernel.assign(self.arrays["linear.weight"].T)
        if self.use_bias:
            head.intermediate_dense.bias.assign(self.arrays["linear.bias"])
        return model
