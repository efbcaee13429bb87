"""Checkpoints of Hugging Face: their files in, models and tokenizers of this library out, and back again."""

from keras_attn.huggingface.checkpoint_files import Folder, checkpoint_folder
from keras_attn.huggingface.heads import Labels, labels
from keras_attn.huggingface.loading import load_model, read_report
from keras_attn.huggingface.saving import model_type_of_origin, save_model
from keras_attn.huggingface.sentence_transformers import (
    SentenceEncoder,
    is_sentence_transformer,
    load_sentence_encoder,
    read_sentence_tokenizer,
)
from keras_attn.huggingface.tokenizer_loading import read_tokenizer
from keras_attn.huggingface.tokenizer_saving import save_tokenizer
from keras_attn.huggingface.translator_saving import save_translator
from keras_attn.models.checkpoint_names import ReportRow

__all__ = [
    "Folder",
    "Labels",
    "ReportRow",
    "SentenceEncoder",
    "checkpoint_folder",
    "is_sentence_transformer",
    "labels",
    "load_model",
    "load_sentence_encoder",
    "model_type_of_origin",
    "read_report",
    "read_sentence_tokenizer",
    "read_tokenizer",
    "save_model",
    "save_tokenizer",
    "save_translator",
]
