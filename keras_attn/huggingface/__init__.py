"""Checkpoints of Hugging Face: their files in, models and tokenizers of this library out, and back again."""

from keras_attn.huggingface.folder import Folder
from keras_attn.huggingface.hub import checkpoint_folder
from keras_attn.huggingface.loading import ReportRow, load_model, read_report
from keras_attn.huggingface.saving import save_model
from keras_attn.huggingface.tokenizers import read_tokenizer

__all__ = [
    "Folder",
    "ReportRow",
    "checkpoint_folder",
    "load_model",
    "read_report",
    "read_tokenizer",
    "save_model",
]
