"""What the folder of an OpenNMT-tf model says besides its weights. TensorFlow is not needed, and nothing is run.

The YAML file of the training names the vocabularies, the tokenization and the options of the search. model_description.py,
which OpenNMT-tf writes into the folder, is a Python program: it is read for the names and numbers in it.
"""

import ast
import collections
import dataclasses
import itertools
import pathlib
import re

DESCRIPTION_FILE = "model_description.py"
_CHECKPOINT = re.compile(r"ckpt-(\d+)")
_OLD_CHECKPOINT = re.compile(r"model\.ckpt-(\d+)")
_MAX_BYTES = 2**28

_Size = collections.namedtuple("_Size", "num_heads hidden_dim")
# The Transformers of OpenNMT-tf's catalog, opennmt/models/catalog.py.
_CATALOG = {
    "ScalingNmtEnDe": _Size(16, 1024),
    "ScalingNmtEnFr": _Size(16, 1024),
    "Transformer": _Size(8, 512),
    "TransformerBase": _Size(8, 512),
    "TransformerBaseSharedEmbeddings": _Size(8, 512),
    "TransformerBig": _Size(16, 1024),
    "TransformerBigSharedEmbeddings": _Size(16, 1024),
    "TransformerTiny": _Size(2, 64),
}
_RELATIVE = ("TransformerRelative", "TransformerBaseRelative", "TransformerBigRelative")
_MODEL_TYPES = sorted(_CATALOG.keys() | set(_RELATIVE))
_ACTIVATIONS = {
    "tf.nn.relu": "relu",
    "tf.nn.gelu": "gelu",
    "tf.nn.silu": "silu",
    "tf.nn.swish": "silu",
    "gelu": "gelu_tanh",  # OpenNMT-tf's own
}
# Fields of `params` that change a search and have no equal here, with the values that change nothing.
_NEUTRAL_PARAMS = {
    "coverage_penalty": (0,),
    "sampling_topk": (1,),
    "decoding_noise": ([],),
    "replace_unknown_target": (False,),
}


def holds_checkpoint(folder):
    """Whether a folder holds checkpoints as OpenNMT-tf names them: ckpt-5000.index and its data."""
    return bool(_prefixes(pathlib.Path(folder)))


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a folder says of its model.

    Args:
        folder: `pathlib.Path`, with the checkpoints.
        home: `pathlib.Path`, with the YAML file: `folder`, or the one above for `avg`.
        data: Dict, `data` of the YAML file.
        params: Dict, its `params`.
        names: Tuple of strings, the models of OpenNMT-tf's catalog that it or model_description.py names.
        arguments: Dict from names of arguments in model_description.py to lists of their values.

    Example:

    ```python
    settings = Settings.read("run-en-de")
    settings.num_heads(hidden_dim=512)  # 8, if the model's type is TransformerBase
    ```
    """

    folder: pathlib.Path
    home: pathlib.Path
    data: dict
    params: dict
    names: tuple
    arguments: dict

    @classmethod
    def read(cls, folder, model_type=None):
        """From a folder.

        Args:
            folder: Path.
            model_type: Name of a model of OpenNMT-tf's catalog, if the folder does not say it.

        Raises:
            FileNotFoundError: if there is no YAML file with the vocabularies.
            ValueError: if a file is damaged, two contradict each other, or `model_type` is not known.
        """
        folder = pathlib.Path(folder)
        home = next((place for place in (folder, folder.parent) if _yaml_files(place)), folder)
        sections = {}
        for path in _yaml_files(home):
            for section, content in read_yaml(path).items():
                if sections.setdefault(section, content) != content:
                    raise ValueError(f"The YAML files in {home} contradict each other in `{section}`.")
        data = sections.get("data")
        if not isinstance(data, dict) or not {"source_vocabulary", "target_vocabulary"} <= set(data):
            raise FileNotFoundError(
                f"{home} has no YAML file whose `data` names source_vocabulary and target_vocabulary. Put the one of the "
                "training (--config of onmt-main) and the vocabularies into the folder."
            )
        params = sections.get("params") or {}
        if not isinstance(params, dict):
            raise ValueError(f"`params` in the YAML files of {home} must be a mapping.")
        names, arguments = (), {}
        for place in (folder, home):
            if (place / DESCRIPTION_FILE).is_file():
                names, arguments = _read_description(place / DESCRIPTION_FILE)
                break
        given = model_type or sections.get("model_type")
        if given is not None and given not in _MODEL_TYPES:
            raise ValueError(f"`model_type` must be one of {_MODEL_TYPES}. Received: model_type={given!r}.")
        if given:
            names = (given,)
        return cls(folder, home, data, params, names, arguments)

    def file(self, name):
        """The path of a file that the YAML file names by a path of the machine that trained: it must be in the folder.

        Raises:
            FileNotFoundError: if it is not there.
            ValueError: if it is larger than 256 MB, or no name.
        """
        if not isinstance(name, str) or not name:
            raise ValueError(f"The YAML file in {self.home} must name files. Received: {name!r:.100}.")
        given = pathlib.PurePosixPath(name.replace("\\", "/"))
        names = [given.name]
        if not given.is_absolute() and ".." not in given.parts:
            names.insert(0, given)
        for place, part in itertools.product((self.home, self.folder), names):
            path = place / part
            if path.is_file():
                if path.stat().st_size > _MAX_BYTES:
                    raise ValueError(f"{path} is larger than {_MAX_BYTES} bytes.")
                return path
        raise FileNotFoundError(f"{self.home} lacks {given.name}, which its YAML file names. Put it there.")

    def prefix(self, checkpoint=None):
        """The path of a checkpoint without ".index".

        Args:
            checkpoint: Name in the folder, "ckpt-5000", "avg" or "avg/ckpt-5000". Defaults to the one that the file
                `checkpoint` calls the newest.

        Raises:
            FileNotFoundError: if it is not there.
            ValueError: if the name leaves the folder, or the checkpoint is one of OpenNMT-tf 1.
        """
        folder = self.folder
        parts = pathlib.PurePosixPath(checkpoint or "").parts
        if ".." in parts or any("\\" in part or part.startswith("/") for part in parts):
            raise ValueError(f"`checkpoint` must be a name in {folder}. Received: checkpoint={checkpoint!r}.")
        if checkpoint and (folder / checkpoint).is_dir():
            folder = folder / checkpoint
            checkpoint = None
        name = folder / (checkpoint or _newest(folder))
        if _OLD_CHECKPOINT.fullmatch(name.name):
            raise ValueError(
                f"{name} is a checkpoint of OpenNMT-tf 1. OpenNMT-tf 2 upgrades it when it restores it once."
            )
        if not name.with_name(f"{name.name}.index").is_file():
            raise FileNotFoundError(f"There is no checkpoint {name} (.index).")
        return name

    def num_heads(self, hidden_dim):
        """The number of heads, which the weights do not show.

        Raises:
            ValueError: if it cannot be told.
        """
        given = self._argument("num_heads")
        if isinstance(given, int) and not isinstance(given, bool) and given > 0:
            return given
        sizes = {_CATALOG[name] for name in self.names if name in _CATALOG}
        fitting = {size.num_heads for size in sizes if size.hidden_dim == hidden_dim}
        if len(sizes) == len(fitting) == 1:
            return fitting.pop()
        raise ValueError(
            f"The number of heads of {self.folder} cannot be told: the weights, whose width is {hidden_dim}, do not show it, "
            f"and the model's type is {' or '.join(self.names) or 'not named'}. Give `num_heads`, or `model_type` as one "
            f"of {sorted(_CATALOG)} (`--num-heads` of a command)."
        )

    @property
    def activation(self):
        """The name of the feed-forward networks' activation in this library."""
        given = self._argument("ffn_activation", "tf.nn.relu")
        named = str(given).removeprefix("tensorflow.").replace("tf.keras.activations.", "tf.nn.")
        name = named if named.startswith("tf.") else named.rpartition(".")[2]
        if name not in _ACTIVATIONS:
            raise ValueError(
                f"`ffn_activation` in {DESCRIPTION_FILE} must be one of {sorted(_ACTIVATIONS)}. Received: {given!r}."
            )
        return _ACTIVATIONS[name]

    def check_positions(self):
        """Refuses models whose positions are not sines."""
        relative = [name for name in self.names if name in _RELATIVE]
        if relative or self._argument("maximum_relative_position"):
            reason = ", ".join(relative) or "maximum_relative_position"
            raise ValueError(
                f"A model with relative positions (Shaw et al., 2018) is not read: {reason}. "
                "There is no layer for them here."
            )
        given = self._argument("position_encoder_class", "SinusoidalPositionEncoder")
        if str(given).rpartition(".")[2] != "SinusoidalPositionEncoder":
            raise ValueError(
                f"Positions must be those of SinusoidalPositionEncoder. Received: position_encoder_class={given}."
            )

    def param(self, name, default):
        """A number in `params`."""
        value = self.params.get(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ValueError(f"`{name}` in `params` must be a number. Received: {name}={value!r}.")
        return value

    def check_params(self, ignored=()):
        """Refuses options of a search that have no equal here."""
        for name, neutral in _NEUTRAL_PARAMS.items():
            value = self.params.get(name)
            if value is not None and value not in neutral and name not in ignored:
                raise ValueError(
                    f"`{name}` in `params` is not implemented as in OpenNMT-tf. Received: {name}={value!r}. Name it in "
                    "`ignored_fields` to search without it."
                )

    @property
    def has_one_tokenizer(self):
        """Whether both sides have the same vocabulary and tokenization."""
        names = ("vocabulary", "tokenization")
        return all(self.data.get(f"source_{name}") == self.data.get(f"target_{name}") for name in names)

    def source_marks(self):
        """Whether START is put before a source's tokens, and END after them."""
        self._marks("target", True)
        return self._marks("source", False)

    def _marks(self, side, default):
        given = self.data.get(f"{side}_sequence_controls") or {}
        marks = [None]
        if isinstance(given, dict):
            marks = [given.get("start", default), given.get("end", default)]
        if not all(isinstance(mark, bool) for mark in marks) or (default and not all(marks)):
            raise ValueError(f"`{side}_sequence_controls` is not understood. Received: {given!r:.100}.")
        return tuple(marks)

    def _argument(self, name, default=None):
        values = self.arguments.get(name) or [default]
        if any(value != values[0] for value in values):
            raise ValueError(f"{DESCRIPTION_FILE} has several values of `{name}`: {values}.")
        return values[0]


def _prefixes(folder):
    """{number: name} of the checkpoints in a folder."""
    names = {}
    if folder.is_dir():
        for path in folder.glob("*.index"):
            name = path.name.removesuffix(".index")
            if number := _CHECKPOINT.fullmatch(name) or _OLD_CHECKPOINT.fullmatch(name):
                names[int(number[1])] = name
    return names


def _newest(folder):
    """The name that the file `checkpoint` has, of which only the last part counts; without it, the highest number."""
    state = folder / "checkpoint"
    if state.is_file():
        text = state.read_text("utf-8", "replace")
        match = re.search(r'^model_checkpoint_path: "(.*)"$', text, re.MULTILINE)
        if not match:
            raise ValueError(f"{state} is damaged: it has no model_checkpoint_path.")
        return pathlib.PurePosixPath(match[1].replace("\\", "/")).name
    prefixes = _prefixes(folder)
    if not prefixes:
        raise FileNotFoundError(f"There is no checkpoint of OpenNMT-tf in {folder}: no ckpt-N.index.")
    return prefixes[max(prefixes)]


def _yaml_files(folder):
    return sorted(
        path for path in folder.glob("*.y*ml") if path.suffix in (".yml", ".yaml") and path.is_file()
    )


def read_yaml(path):
    """The mapping in a YAML file.

    Raises:
        ImportError: if PyYAML is not installed.
        ValueError: if the file is damaged, larger than 1 MB, or holds no mapping.
    """
    try:
        import yaml
    except ImportError as error:
        raise ImportError(
            f'{path.name} needs PyYAML. Install it: pip install "keras_attn[opennmt]".'
        ) from error
    if path.stat().st_size > 2**20:
        raise ValueError(f"{path} is larger than 1 MB, which no configuration is.")
    try:
        content = yaml.safe_load(path.read_text("utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise ValueError(f"{path} is damaged or no YAML: {' '.join(str(error).split())[:200]}.") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a mapping. Received: {type(content).__name__}.")
    return content


def _read_description(path):
    """The names of the catalog in a Python file, and {argument: list of values} of the calls in it."""
    try:
        nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"{path} is damaged or no Python: {error}.") from None
    names, arguments = set(), {}
    for node in nodes:
        words = (getattr(node, name, None) for name in ("attr", "id", "value"))
        names.update(word for word in words if isinstance(word, str) and word in _MODEL_TYPES)
        if isinstance(node, ast.Call):
            for keyword in node.keywords:
                arguments.setdefault(keyword.arg, []).append(_value(keyword.value))
    return tuple(sorted(names)), arguments


def _value(node):
    """The value of a literal, or the text of another expression."""
    try:
        return ast.literal_eval(node)
    except (ValueError, RecursionError):
        return ast.unparse(node)
