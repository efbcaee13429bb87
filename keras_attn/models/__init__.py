"""Whole models, composed from `keras_attn.layers`."""

from keras_attn.models.seq2seq_transformer import PRESETS, Seq2SeqCache, Seq2SeqTransformer

__all__ = ["PRESETS", "Seq2SeqCache", "Seq2SeqTransformer"]
