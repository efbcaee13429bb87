"""Data sets of text pairs, and batches of token ids for training."""

from keras_attn.data.batch_plan import batch_by_tokens, pack_by_tokens
from keras_attn.data.batching import Place, TranslationBatches, translation_batches
from keras_attn.data.dates import date_pairs
from keras_attn.data.multi30k import multi30k_pairs
from keras_attn.data.text_pairs import TextPairs, read_text_pairs, read_tsv

__all__ = [
    "Place",
    "TextPairs",
    "TranslationBatches",
    "batch_by_tokens",
    "date_pairs",
    "multi30k_pairs",
    "pack_by_tokens",
    "read_text_pairs",
    "read_tsv",
    "translation_batches",
]
