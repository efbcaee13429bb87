"""Data sets of text pairs, and batches of token ids for training."""

from keras_attn.data.batch_plan import batch_by_tokens, pack_by_tokens
from keras_attn.data.downloaded_texts import multi30k_pairs, shakespeare_text
from keras_attn.data.generated_pairs import date_pairs, reverse_pairs
from keras_attn.data.labelled_texts import LabelledBatches, LabelledTexts, read_labelled_texts
from keras_attn.data.pair_batches import TranslationBatches, translation_batches
from keras_attn.data.plain_text import PlainText, TextWindows, consecutive_windows, read_plain_text
from keras_attn.data.seeded_batches import BatchPosition, SeededBatches
from keras_attn.data.text_pairs import TextPairs, read_text_pairs, read_tsv
from keras_attn.data.token_pairs import PairForm

__all__ = [
    "BatchPosition",
    "LabelledBatches",
    "LabelledTexts",
    "PairForm",
    "PlainText",
    "SeededBatches",
    "TextPairs",
    "TextWindows",
    "TranslationBatches",
    "batch_by_tokens",
    "consecutive_windows",
    "date_pairs",
    "multi30k_pairs",
    "pack_by_tokens",
    "read_labelled_texts",
    "read_plain_text",
    "read_text_pairs",
    "read_tsv",
    "reverse_pairs",
    "shakespeare_text",
    "translation_batches",
]
