"""What users call, save and export: tokenizers, model and generation as one object."""

from keras_attn.tasks.alignment import Word, WordAlignment
from keras_attn.tasks.translator import AttentionMap, Translator
from keras_attn.tasks.unknown_words import replace_unknown_words

__all__ = ["AttentionMap", "Translator", "Word", "WordAlignment", "replace_unknown_words"]
