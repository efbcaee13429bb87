"""What users call, save and export: tokenizers, model and generation as one object."""

from keras_attn.tasks.alignment import Word, WordAlignment
from keras_attn.tasks.translator import AttentionMap, Translator

__all__ = ["AttentionMap", "Translator", "Word", "WordAlignment"]
