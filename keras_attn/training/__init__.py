"""Schedules, losses, metrics and callbacks for `model.compile` and `model.fit`."""

from keras_attn.training.callbacks import (
    AttentionImages,
    KeepBest,
    LearningRateLogger,
    StopOnInvalidLoss,
    TranslationQuality,
)
from keras_attn.training.losses import (
    LabelSmoothedCrossentropy,
    token_negative_log_likelihood,
)
from keras_attn.training.metrics import (
    CorpusScore,
    MaskedAccuracy,
    Perplexity,
    corpus_bleu,
    corpus_chrf,
    exact_match,
)
from keras_attn.training.optimizers import Adam, AdamW
from keras_attn.training.schedules import (
    InverseSquareRootSchedule,
    NoamSchedule,
    PerUpdateSchedule,
    WarmupCosineSchedule,
    WarmupLinearSchedule,
)
from keras_attn.training.significance import p_value_of_differences, paired_p_value
from keras_attn.training.state import (
    averaged_weights,
    restore_training_state,
    training_state,
)

__all__ = [
    "Adam",
    "AdamW",
    "AttentionImages",
    "CorpusScore",
    "InverseSquareRootSchedule",
    "KeepBest",
    "LabelSmoothedCrossentropy",
    "LearningRateLogger",
    "MaskedAccuracy",
    "NoamSchedule",
    "PerUpdateSchedule",
    "Perplexity",
    "StopOnInvalidLoss",
    "TranslationQuality",
    "WarmupCosineSchedule",
    "WarmupLinearSchedule",
    "averaged_weights",
    "corpus_bleu",
    "corpus_chrf",
    "exact_match",
    "p_value_of_differences",
    "paired_p_value",
    "restore_training_state",
    "token_negative_log_likelihood",
    "training_state",
]
