"""The object that users call, save and export: tokenizers, model and generation in one."""

from keras_attn.tasks.alignment import Word, WordAlignment
from keras_attn.tasks.signatures import SIGNATURES
from keras_attn.tasks.teacher_forcing import AttentionMap
from keras_attn.tasks.translator import Translator
from keras_attn.tasks.unknown_words import replace_unknown_words

__all__ = ["SIGNATURES", "AttentionMap", "Translator", "Word", "WordAlignment", "replace_unknown_words"]
