"""Schedules, losses, metrics and callbacks for `model.compile` and `model.fit`."""

from keras_attn.training.callbacks import (
    KeepBest,
    LearningRateLogger,
    StopOnInvalidLoss,
    TranslationQuality,
)
from keras_attn.training.losses import LabelSmoothedCrossentropy, token_negative_log_likelihood
from keras_attn.training.metrics import (
    CorpusScore,
    MaskedAccuracy,
    Perplexity,
    corpus_bleu,
    corpus_chrf,
    exact_match,
)
from keras_attn.training.schedules import (
    InverseSquareRootSchedule,
    NoamSchedule,
    WarmupCosineSchedule,
    WarmupLinearSchedule,
)

__all__ = [
    "CorpusScore",
    "InverseSquareRootSchedule",
    "KeepBest",
    "LabelSmoothedCrossentropy",
    "LearningRateLogger",
    "MaskedAccuracy",
    "NoamSchedule",
    "Perplexity",
    "StopOnInvalidLoss",
    "TranslationQuality",
    "WarmupCosineSchedule",
    "WarmupLinearSchedule",
    "corpus_bleu",
    "corpus_chrf",
    "exact_match",
    "token_negative_log_likelihood",
]
