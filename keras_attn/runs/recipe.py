import dataclasses
import pathlib

import keras

from keras_attn.models import PRESETS


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Everything a training run is made of, but its data: one value, written beside what it made.

    Args:
        model: Dict of `Seq2SeqTransformer` arguments other than the vocabulary sizes.
        tokenizer: `"bytes"`, or `"bpe"` or `"unigram"` for a joint SentencePiece vocabulary of both languages.
        vocabulary_size: Integer, of the SentencePiece vocabulary.
        max_tokens: Integer, the positions of one side of a batch, pads included.
        bucket_boundaries: Tuple of integers, the lengths that batches are padded to.
        epochs: Integer.
        learning_rate: Float, the highest, reached after `warmup_steps` updates (inverse square root after that).
        warmup_steps: Integer.
        label_smoothing: Float.
        global_clipnorm: Float, the largest norm of the gradient of one update.
        dtype: A Keras dtype policy, or `"auto"`: mixed_bfloat16 where the processor multiplies bfloat16 matrices in
            hardware, else float32.
        metric: `"bleu"` or `"exact_match"`, of validation translations, by which the best weights are chosen.
        stop_at: Float or None; training ends early once the metric is this high.
        num_averaged: Integer; the weights after each of the last so many epochs are averaged at the end, and kept
            if they score better on validation than the best single epoch. 1 means no averaging.
        num_beams, length_penalty, max_length: Of the translator that the run makes; validation after each epoch is
            greedy.
        seed: Integer, of weights, dropout and the order of the data.
    """

    model: dict
    tokenizer: str
    vocabulary_size: int = 8000
    max_tokens: int = 2048
    bucket_boundaries: tuple = (8, 12, 16, 20, 24, 32, 48, 64, 96, 128)
    epochs: int = 30
    learning_rate: float = 0.002
    warmup_steps: int = 1000
    label_smoothing: float = 0.1
    global_clipnorm: float = 25.0
    dtype: str = "auto"
    metric: str = "bleu"
    stop_at: float | None = None
    num_averaged: int = 10
    num_beams: int = 5
    length_penalty: float = 1.0
    max_length: int | None = None
    seed: int = 0

    def replace(self, **changes):
        """A copy with the given fields changed; None leaves a field as it is."""
        return dataclasses.replace(
            self, **{name: value for name, value in changes.items() if value is not None}
        )

    def with_size(self, preset):
        """A copy with the layers, widths, heads and dropout of a named size in place of its own."""
        if preset not in PRESETS:
            raise ValueError(f"`size` must be one of {', '.join(PRESETS)}. Received: size={preset!r}.")
        return dataclasses.replace(self, model={**self.model, **PRESETS[preset]})

    @property
    def dtype_policy(self):
        """The name of the dtype policy that the run uses on this machine."""
        if self.dtype != "auto":
            return self.dtype
        return "mixed_bfloat16" if _multiplies_bfloat16() else "float32"


def _multiplies_bfloat16():
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        for device in tf.config.list_physical_devices("GPU"):
            details = tf.config.experimental.get_device_details(device)
            return details.get("compute_capability", (0, 0)) >= (8, 0)
    cpuinfo = pathlib.Path("/proc/cpuinfo")
    flags = cpuinfo.read_text(encoding="utf-8").split() if cpuinfo.is_file() else []
    return "avx512_bf16" in flags or "amx_bf16" in flags


# Sizes for the built-in dates: bytes in, ten digits and dashes out, in minutes on two cores.
DATES = Recipe(
    model={
        "num_encoder_layers": 2,
        "num_decoder_layers": 2,
        "hidden_dim": 64,
        "num_heads": 4,
        "intermediate_dim": 256,
        "dropout": 0.1,
        "normalize_first": True,
        "max_sequence_length": 64,
    },
    tokenizer="bytes",
    max_tokens=4096,
    bucket_boundaries=(16, 20, 24, 28, 32, 40),
    epochs=12,
    learning_rate=0.003,
    warmup_steps=400,
    global_clipnorm=1.0,
    dtype="float32",
    metric="exact_match",
    stop_at=99.9,
    num_averaged=1,
    num_beams=4,
    max_length=16,
)

# Wu et al. 2021's Transformer-Tiny (arXiv:2105.14462), with pre-norm, a lower rate and smaller batches, which learn
# more in an hour on two cores than the published recipe's do.
MULTI30K = Recipe(
    model={"normalize_first": True, "max_sequence_length": 128},
    tokenizer="bpe",
    vocabulary_size=8000,
    max_tokens=2048,
    epochs=36,
).with_size("tiny")

# Two languages in two files: Multi30k's recipe, with room for longer sentences.
TEXT_FILES = MULTI30K.replace(model={**MULTI30K.model, "max_sequence_length": 256}, max_tokens=4096)
