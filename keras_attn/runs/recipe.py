"""A recipe: all settings of a training run, from a TOML file, a run's record, or arguments."""

import dataclasses
import inspect
import json
import pathlib
import tomllib

import keras

from keras_attn.files import read_json, replaced_file
from keras_attn.models import PRESETS, DecoderTransformer, RNNSeq2Seq, Seq2SeqTransformer, Sizes
from keras_attn.ops import processor_flags
from keras_attn.runs.recipe_fields import PLANNED, RecipeFields, docstring_lines

RECORD = "run.json"
_BUILT_IN = pathlib.Path(__file__).parent / "recipes"


@dataclasses.dataclass(frozen=True)
class Recipe(RecipeFields):
    """All settings of a training run, from a TOML file or from arguments.

    Args:
        FIELDS

    Raises:
        ValueError: for a field with an invalid value, or fields that exclude each other.

    Example:

    ```python
    recipe = Recipe.load("multi30k").replace(epochs=3, dtype="float32")
    assert recipe.model_arguments["hidden_dim"] == 128
    ```
    """

    def __post_init__(self):
        super().__post_init__()
        if "size" in self.model and self.model_class is not Seq2SeqTransformer:
            raise ValueError(
                "A named `size` is only for an encoder-decoder Transformer. "
                f"Received: size={self.model['size']!r}, model kind={self.model_kind!r}."
            )
        _check_start(self)
        if self.start_from is None:
            _check_model_arguments(self.model_class, self.model_arguments)
        _check_language_model(self)
        if self.distill is not None:
            _check_student(self)
        makes_tokenizer = self.start_from is None and self.distill is None
        lacks_bpe = makes_tokenizer and self.tokenizer != "bpe"
        if self.subword_sampling and (self.is_language_model or lacks_bpe):
            raise ValueError(
                '`subword_sampling` is for translators with `tokenizer` "bpe". Received: '
                f"subword_sampling={self.subword_sampling:g}, tokenizer={self.tokenizer!r}, "
                f"model kind={self.model_kind!r}."
            )

    @classmethod
    def load(cls, path):
        """Reads a recipe: a TOML file, the recipe of a run from its folder or its `run.json`, or a built-in one by its name.

        Built-in are `dates`, `reverse`, `shakespeare`, `multi30k` and others, see the folder keras_attn/runs/recipes.

        Raises:
            FileNotFoundError: if there is no such file, and no built-in recipe of this name.
            ValueError: if it is not a recipe; the message names the problem.

        Example: `Recipe.load("multi30k")`, `Recipe.load("mine.toml")`.
        """
        path = _recipe_file(path)
        is_record = path.suffix == ".json"
        try:
            fields = read_json(path)["recipe"] if is_record else tomllib.loads(path.read_text("utf-8"))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"{path} is no recipe: {error!r}. {_what_a_recipe_is()}") from error
        known = {field.name for field in dataclasses.fields(cls)}
        if unknown := sorted(set(fields) - known):
            raise ValueError(
                f"{path} sets {', '.join(unknown)}, which no recipe has. It may set: {', '.join(sorted(known))}."
            )
        # A record holds what was planned, a file only what somebody has written.
        planned = [name for name in PLANNED if name in fields]
        if not is_record and fields.get("minutes") is not None and planned:
            raise ValueError(
                f"{path} sets `minutes`, which plans {', '.join(f'`{name}`' for name in PLANNED)}. Leave "
                f"{' and '.join(f'`{name}`' for name in planned)} out, or `minutes`."
            )
        if "model" not in fields and fields.get("start_from") is None:
            raise ValueError(f"{path} must have a table [model], for example with `size`, or `start_from`.")
        try:
            return cls(**fields)
        except (ValueError, TypeError, AttributeError) as error:
            raise ValueError(f"{path}: {error}") from error

    def save(self, path):
        """Writes the settings that are not the defaults to a TOML file, each below the sentence that says what it is.

        Raises:
            ValueError: for a value that TOML has no word for.

        Example: `Recipe.load("multi30k").replace(epochs=3).save("short.toml")`
        """
        lines = []
        tables = []
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            declared = field.metadata["setting"]
            is_planned = declared.planned and self.minutes is not None
            if value == _default(field) or is_planned:
                continue
            comment = f"# {declared.help}"
            if isinstance(value, dict):
                entries = [f"{key} = {_toml(entry)}" for key, entry in value.items()]
                tables += ["", comment, f"[{field.name}]", *entries]
            else:
                lines += [comment, f"{field.name} = {_toml(value)}"]
        with replaced_file(pathlib.Path(path)) as aside:
            aside.write_text("\n".join(lines + tables) + "\n", encoding="utf-8")

    def replace(self, **changes):
        """A copy with the given fields changed; None leaves a field as it is."""
        given = {name: value for name, value in changes.items() if value is not None}
        return dataclasses.replace(self, **given)

    def with_size(self, size):
        """A copy with the layers, widths, heads and dropout of a named size instead of its own."""
        replaced = _sizes(size)
        own = {name: value for name, value in self.model.items() if name not in replaced}
        return dataclasses.replace(self, model={**own, "size": size})

    @property
    def model_kind(self):
        """The kind of the model: a key of the table below."""
        return self.model.get("kind", "transformer")

    @property
    def is_language_model(self):
        """Whether the model is decoder-only and continues a text."""
        return self.model_class is DecoderTransformer

    @property
    def lower_is_better(self):
        """Whether a lower value of the metric is better."""
        return self.metric == "loss"

    def reaches(self, score, other):
        """Whether a value of the metric is as good as another one, or better."""
        return score <= other if self.lower_is_better else score >= other

    @property
    def model_class(self):
        """The class of the model."""
        if self.model_kind not in _MODELS:
            raise ValueError(
                f"`kind` of a model must be one of {', '.join(_MODELS)}. Received: kind={self.model_kind!r}."
            )
        return _MODELS[self.model_kind]

    def make_model(self, **arguments):
        """The model with fresh weights; the run sets `arguments`, for example the vocabulary sizes."""
        return _factory(self.model_class)(**arguments, **self.model_arguments)

    @property
    def model_arguments(self):
        """The sizes of the model, with its named size resolved."""
        arguments = dict(self.model)
        arguments.pop("kind", None)
        size = arguments.pop("size", None)
        return arguments if size is None else {**_sizes(size), **arguments}

    @property
    def dtype_policy(self):
        """The name of the dtype policy that the run uses on this machine."""
        if self.dtype != "auto":
            return self.dtype
        return "mixed_bfloat16" if _multiplies_bfloat16() else "float32"


Recipe.__doc__ = Recipe.__doc__.replace("FIELDS", "\n        ".join(docstring_lines()))

_MODELS = {"transformer": Seq2SeqTransformer, "rnn": RNNSeq2Seq, "decoder": DecoderTransformer}
# Arguments of models that the run sets.
_SET_BY_THE_RUN = {"vocabulary_size", "target_vocabulary_size", "pad_token_id", "dtype", "name"}


def built_in_names():
    """The names of the built-in recipes: a sorted list."""
    return sorted(file.stem for file in _BUILT_IN.glob("*.toml"))


def holds_run(folder):
    """Whether a folder holds a run, whose recipe can be loaded."""
    return (pathlib.Path(folder) / RECORD).is_file()


def _recipe_file(path):
    """The file of a recipe that a user names."""
    file = pathlib.Path(path)
    if file.is_file():
        return file
    if holds_run(file):
        return file / RECORD
    if str(path) in built_in_names():
        return _BUILT_IN / f"{path}.toml"
    raise FileNotFoundError(f"There is no recipe {file}. {_what_a_recipe_is()}")


def _what_a_recipe_is():
    return f"A recipe is a TOML file, a run's folder, its {RECORD}, or one of the built-in: {', '.join(built_in_names())}."


def _default(field):
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _toml(value):
    """A value as TOML has it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, dict):
        entries = ", ".join(f"{json.dumps(key)} = {_toml(entry)}" for key, entry in value.items())
        return f"{{{entries}}}"
    raise ValueError(f"TOML has no word for {value!r}: keep the recipe in Python.")


def _check_start(recipe):
    if recipe.start_from is None and recipe.start_options:
        raise ValueError(
            f"`start_options` are for `start_from`. Received: start_options={recipe.start_options}."
        )
    if recipe.start_from is not None and recipe.model:
        raise ValueError(
            "With `start_from`, the model is the one in that folder, and `model` must be empty. "
            f"Received: model={recipe.model}."
        )


def _check_language_model(recipe):
    is_wordpiece = recipe.tokenizer == "wordpiece"
    if recipe.is_language_model != (recipe.metric == "loss") or (recipe.is_language_model and is_wordpiece):
        raise ValueError(
            'A language model has `metric` "loss" and `tokenizer` "bytes", "bpe" or "unigram", a model of two sides has '
            f"another `metric`. Received: model kind={recipe.model_kind!r}, metric={recipe.metric!r}, "
            f"tokenizer={recipe.tokenizer!r}."
        )
    if recipe.documents and not recipe.is_language_model:
        raise ValueError(
            "`documents` is for a language model: leave it out, or train one on plain text with --language-model. "
            "Received: documents=True."
        )


def _check_student(recipe):
    if recipe.start_from is not None:
        raise ValueError(
            "A student with `distill` begins with fresh weights, not with those of `start_from`: give a recipe without it. "
            f"Received: start_from={recipe.start_from!r}."
        )
    if recipe.is_language_model or recipe.minutes is not None:
        raise ValueError(
            "A student with `distill` is a translator, and trains for `epochs`, not for `minutes`. "
            f"Received: model kind={recipe.model_kind!r}, minutes={recipe.minutes}."
        )


def _sizes(size):
    if size not in PRESETS:
        raise ValueError(f"`size` must be one of {', '.join(PRESETS)}. Received: size={size!r}.")
    return PRESETS[size]


def _factory(model_class):
    """The function that makes a model from sizes."""
    return getattr(model_class, "from_sizes", model_class)


def _check_model_arguments(model_class, arguments):
    factory = _factory(model_class)
    parameters = dict(inspect.signature(factory).parameters)
    if factory is not model_class:
        parameters |= inspect.signature(Sizes).parameters
    parameters = {
        name: parameter
        for name, parameter in parameters.items()
        if name not in _SET_BY_THE_RUN and parameter.kind is not parameter.VAR_KEYWORD
    }
    if unknown := sorted(set(arguments) - set(parameters)):
        raise ValueError(
            f"`model` sets {', '.join(unknown)}, which {model_class.__name__} does not have. "
            f"It may set: {', '.join(sorted(parameters))}."
        )
    required = {name for name, parameter in parameters.items() if parameter.default is parameter.empty}
    if missing := sorted(required - set(arguments)):
        raise ValueError(f"`model` must set {', '.join(missing)}. Received: model={arguments}.")


def _multiplies_bfloat16():
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        for device in tf.config.list_physical_devices("GPU"):
            details = tf.config.experimental.get_device_details(device)
            return details.get("compute_capability", (0, 0)) >= (8, 0)
    return bool({"avx512_bf16", "amx_bf16"} & processor_flags())
