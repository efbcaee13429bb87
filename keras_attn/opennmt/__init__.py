"""Transformers of OpenNMT-tf 2: checkpoints of TensorFlow in, models and tokenizers of this library out."""

from keras_attn.opennmt.settings import Settings, holds_checkpoint
from keras_attn.opennmt.tokenizers import read_tokenizer
from keras_attn.opennmt.transformer import load_model, read_report

__all__ = ["Settings", "holds_checkpoint", "load_model", "read_report", "read_tokenizer"]
