"""Checkpoints of Hugging Face's hub, read from their own files into models of this library."""

from keras_attn.huggingface.folder import Folder
from keras_attn.huggingface.loading import ReportRow, load_model, read_report
from keras_attn.huggingface.saving import save_model

__all__ = ["Folder", "ReportRow", "load_model", "read_report", "save_model"]
