import dataclasses
import inspect
import pathlib
import tomllib

import keras

from keras_attn.files import read_json
from keras_attn.models import PRESETS, DecoderTransformer, RNNSeq2Seq, Seq2SeqTransformer, Sizes
from keras_attn.ops import processor_flags
from keras_attn.runs.recipe_checks import check_values
from keras_attn.runs.time_plan import PLANNED

_RECORD = "run.json"


@dataclasses.dataclass(frozen=True)
class Recipe:
    """All settings of a training run, from a TOML file or from arguments.

    Args:
        model: Dict of arguments of `Seq2SeqTransformer.from_sizes` other than the vocabulary sizes; `size`
            stands for those of a named size (`"tiny"`, `"base"`, `"big"`). With `kind = "rnn"`, arguments of
            `RNNSeq2Seq`; with `kind = "decoder"`, of `DecoderTransformer.from_sizes`, a language model. Empty with
            `start_from`.
        data: What to train on: `("dates",)`, `("reverse",)`, `("multi30k",)`, `("multi30k-tokenized",)`, a
            source and a target file, or one TSV file; or a tuple of several of these. For a language model:
            `("shakespeare",)`, or text files, which are joined.
        data_weights: Floats, one for each of several corpora: how often each of its pairs occurs in an epoch.
            Default: 1.
        validation, test: One or two files, as in `data`. Without validation files, a part of the data is held
            out.
        data_dir: Folder of Multi30k; without it, the data are downloaded.
        source_language, target_language: Of Multi30k.
        tokenizer: `"bytes"`, or `"bpe"` or `"unigram"` for a joint SentencePiece vocabulary of both
            languages, or `"wordpiece"` for a joint one of words and pieces, which a language model cannot have.
        documents: Boolean, for a language model: whether each line is a document, which END ends, or the lines are running
            text.
        split_digits: Boolean, whether each digit is a token of its own (`"bpe"` and `"unigram"`).
        vocabulary_size: Integer, the size of the vocabulary that is trained.
        subword_sampling: Float in [0, 1), for translators with sentencepiece's BPE (`"bpe"`). With more than 0, the training
            texts are segmented anew for each epoch, with this share of the merges left out at random by the seed
            (BPE-dropout: 0.1). What is translated is always segmented in the usual way.
        max_tokens: Integer, the positions of one side of a batch, pads included. A language model reads
            windows of `max_sequence_length`, as many as fit.
        gradient_accumulation_steps: Integer, the number of batches of one update, which equals one batch with
            that many times `max_tokens`.
        padding: `"longest"` (each batch to its longest sentence: fewest pads, the default without a
            compiler), `"buckets"` (to `bucket_boundaries`: few shapes, the default where XLA compiles), or
            `"packed"` (several pairs per row, whose length is the last of `bucket_boundaries`: one shape, few
            pads). None means the default.
        bucket_boundaries: Tuple of integers.
        epochs: Integer.
        steps_per_epoch: Integer, the number of batches after which translations are scored and the best
            weights saved. None means one pass over the data.
        optimizer: `"adam"`, or `"adamw"` with `weight_decay`.
        beta_1, beta_2, epsilon, weight_decay: Floats.
        schedule: `"inverse_square_root"`, `"noam"` (its peak is the paper's), `"cosine"` or `"linear"` (down
            to 0 at the end of the last epoch), or `"constant"`, each with a warm-up.
        learning_rate: Float, the peak, reached after `warmup_steps` updates.
        warmup_steps: Integer.
        label_smoothing: Float.
        global_clipnorm: Float, the largest norm of the gradient of one update.
        ema_momentum: Float or None; if set, the weights that are scored and kept are an exponential moving
            average.
        dtype: A Keras dtype policy, or `"auto"`: mixed_bfloat16 where the processor multiplies bfloat16
            matrices in hardware, else float32.
        metric: `"bleu"`, `"chrf"` or `"exact_match"`, of validation translations, by which the best weights
            are chosen. For a language model, `"loss"`, the mean cross-entropy in nats; lower is better.
        bleu_tokenize: sacreBLEU's tokenizer; `"none"` for text that is tokenised already.
        stop_at: Float or None; training ends early once the metric is this good.
        patience: Integer or None; training ends early after this many epochs without a better metric.
        minutes: Float or None; the run ends, evaluation included, within so many minutes of this machine: its first
            updates are timed, and epochs, updates an epoch, warm-up and a cosine schedule follow from that.
        num_averaged: Integer; the weights of this many epochs are averaged at the end, and kept unless a paired test on
            validation says that the best single epoch is better (p < 0.05). 1 means no averaging.
        averaged: `"last"` or `"best"`: which epochs are averaged.
        save_updates, save_minutes: The state to resume from is saved after this many updates or minutes,
            whichever comes first, and after each epoch. None means no such limit.
        distill: Dict or None; if set, the model is a student, which learns from the translations that teachers make of the
            training sources (Kim and Rush, 2016), with their tokenizers. `teachers`: list of folders of translators or of
            the runs that made them, several as an ensemble; `references`: boolean, whether it learns from the given
            targets too (default: true); `num_beams`, `length_penalty`: of the teachers' search (default: their own).
        num_beams, length_penalty, max_length: Options of the resulting translator; validation after each
            epoch is greedy.
        seed: Integer, the seed of weights, dropout and the order of the data.
        start_from: Path of a translator, of the run that made it, or of a checkpoint's folder: training begins with its
            weights, and its tokenizers are used; `tokenizer` and `vocabulary_size` mean nothing then.
        start_options: Dict of what its files leave open: `source_language` and `target_language` of a multilingual model,
            `text_prefix`, `purpose` or `ignored_fields` of a checkpoint.

    Raises:
        ValueError: for a field with an invalid value.
    """

    model: dict = dataclasses.field(default_factory=dict)
    data: tuple = ()
    data_weights: tuple | None = None
    validation: tuple | None = None
    test: tuple | None = None
    data_dir: str | None = None
    source_language: str = "en"
    target_language: str = "de"
    tokenizer: str = "bpe"
    vocabulary_size: int = 8000
    subword_sampling: float = 0.0
    documents: bool = False
    split_digits: bool = False
    max_tokens: int = 2048
    gradient_accumulation_steps: int = 1
    padding: str | None = None
    bucket_boundaries: tuple = (8, 12, 16, 20, 24, 32, 48, 64, 96, 128)
    epochs: int = 30
    steps_per_epoch: int | None = None
    optimizer: str = "adam"
    beta_1: float = 0.9
    beta_2: float = 0.98
    epsilon: float = 1e-9
    weight_decay: float = 0.0
    schedule: str = "inverse_square_root"
    learning_rate: float = 0.002
    warmup_steps: int = 1000
    label_smoothing: float = 0.1
    global_clipnorm: float = 25.0
    ema_momentum: float | None = None
    dtype: str = "auto"
    metric: str = "bleu"
    bleu_tokenize: str = "13a"
    stop_at: float | None = None
    patience: int | None = None
    minutes: float | None = None
    num_averaged: int = 10
    averaged: str = "last"
    save_updates: int | None = None
    save_minutes: float | None = 10.0
    distill: dict | None = None
    num_beams: int = 5
    length_penalty: float = 1.0
    max_length: int | None = None
    seed: int = 0
    start_from: str | None = None
    start_options: dict = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, list):  # from TOML or JSON
                value = tuple(tuple(item) if isinstance(item, list) else item for item in value)
                object.__setattr__(self, field.name, value)
        check_values(self)
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                known = ", ".join(repr(choice) for choice in choices)
                raise ValueError(
                    f"`{name}` must be one of {known}. Received: {name}={getattr(self, name)!r}."
                )
        if "size" in self.model and self.model_class is not Seq2SeqTransformer:
            raise ValueError(
                "A named `size` is only for an encoder-decoder Transformer. "
                f"Received: size={self.model['size']!r}, model kind={self.model['kind']!r}."
            )
        _check_start(self)
        if self.start_from is None:
            _check_model_arguments(self.model_class, self.model_arguments)
        if self.is_language_model != (self.metric == "loss") or (
            self.is_language_model and self.tokenizer == "wordpiece"
        ):
            raise ValueError(
                'A language model has `metric` "loss" and `tokenizer` "bytes", "bpe" or "unigram", a model of two sides has '
                f"another `metric`. Received: model kind={self.model.get('kind', 'transformer')!r}, metric={self.metric!r}, "
                f"tokenizer={self.tokenizer!r}."
            )
        if self.distill is not None and self.start_from is not None:
            raise ValueError(
                "A student with `distill` begins with fresh weights, not with those of `start_from`: give a recipe without it. "
                f"Received: start_from={self.start_from!r}."
            )
        if self.distill is not None and (self.is_language_model or self.minutes is not None):
            raise ValueError(
                "A student with `distill` is a translator, and trains for `epochs`, not for `minutes`. "
                f"Received: model kind={self.model.get('kind', 'transformer')!r}, minutes={self.minutes}."
            )
        own_tokenizer = self.start_from is None and self.distill is None
        if self.subword_sampling and (self.is_language_model or (own_tokenizer and self.tokenizer != "bpe")):
            raise ValueError(
                '`subword_sampling` is for translators with `tokenizer` "bpe". Received: '
                f"subword_sampling={self.subword_sampling}, tokenizer={self.tokenizer!r}, "
                f"model kind={self.model.get('kind', 'transformer')!r}."
            )
        if self.documents and not self.is_language_model:
            raise ValueError(
                "`documents` is for a language model: leave it out, or train one on plain text with --language-model. "
                "Received: documents=True."
            )

    @classmethod
    def load(cls, path):
        """Reads a recipe from a TOML file, or the recipe of a run from its `run.json` or its folder.

        Raises:
            FileNotFoundError: if there is no such file.
            ValueError: if it is not a recipe; the message names the problem.
        """
        path = pathlib.Path(path)
        path = path / _RECORD if path.is_dir() else path
        if not path.is_file():
            raise FileNotFoundError(
                f"There is no recipe {path}. A recipe is a TOML file, as in examples/recipes, a run's folder, or its {_RECORD}."
            )
        try:
            is_record = path.suffix == ".json"
            fields = read_json(path)["recipe"] if is_record else tomllib.loads(path.read_text("utf-8"))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(
                f"{path} is no recipe: {error!r}. A recipe is a TOML file, as in examples/recipes, a run's folder, or its {_RECORD}."
            ) from error
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

    def replace(self, **changes):
        """A copy with the given fields changed; None leaves a field as it is."""
        return dataclasses.replace(
            self, **{name: value for name, value in changes.items() if value is not None}
        )

    def with_size(self, size):
        """A copy with the layers, widths, heads and dropout of a named size instead of its own."""
        replaced = _sizes(size)
        own = {name: value for name, value in self.model.items() if name not in replaced}
        return dataclasses.replace(self, model={**own, "size": size})

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
        kind = self.model.get("kind", "transformer")
        if kind not in _MODELS:
            raise ValueError(
                f"`kind` of a model must be one of {', '.join(_MODELS)}. Received: kind={kind!r}."
            )
        return _MODELS[kind]

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


_MODELS = {"transformer": Seq2SeqTransformer, "rnn": RNNSeq2Seq, "decoder": DecoderTransformer}
# Arguments of models that the run sets.
_OF_THE_RUN = {"vocabulary_size", "target_vocabulary_size", "pad_token_id", "dtype", "name"}
_START_OPTIONS = ("source_language", "target_language", "text_prefix", "purpose", "ignored_fields")
_CHOICES = {
    "tokenizer": ("bpe", "unigram", "wordpiece", "bytes"),
    "padding": (None, "longest", "buckets", "packed"),
    "optimizer": ("adam", "adamw"),
    "schedule": ("inverse_square_root", "noam", "cosine", "linear", "constant"),
    "metric": ("bleu", "chrf", "exact_match", "loss"),
    "averaged": ("last", "best"),
}


def _check_start(recipe):
    if recipe.start_from is None:
        if recipe.start_options:
            raise ValueError(
                f"`start_options` are for `start_from`. Received: start_options={recipe.start_options}."
            )
        return
    if not isinstance(recipe.start_from, str) or not recipe.start_from:
        raise ValueError(f"`start_from` must be a path. Received: start_from={recipe.start_from!r}.")
    if recipe.model:
        raise ValueError(
            "With `start_from`, the model is the one in that folder, and `model` must be empty. "
            f"Received: model={recipe.model}."
        )
    unknown = sorted(set(recipe.start_options) - set(_START_OPTIONS))
    kinds = {"ignored_fields": list}
    if unknown or not all(
        isinstance(value, kinds.get(name, str)) for name, value in recipe.start_options.items()
    ):
        raise ValueError(
            f"`start_options` may set {', '.join(_START_OPTIONS)}, each a string, the last a list of strings. "
            f"Received: start_options={recipe.start_options}."
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
        if name not in _OF_THE_RUN and parameter.kind is not parameter.VAR_KEYWORD
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
