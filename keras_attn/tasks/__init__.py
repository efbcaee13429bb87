"""The object that users call, save and export: tokenizers, model and generation in one."""

from keras_attn.huggingface import checkpoint_folder
from keras_attn.tasks.alignment import Word, WordAlignment
from keras_attn.tasks.chat_templates import ChatTemplate
from keras_attn.tasks.checkpoints import holds_checkpoint, load_checkpoint
from keras_attn.tasks.generator_signatures import GENERATOR_SIGNATURES
from keras_attn.tasks.languages import Languages
from keras_attn.tasks.loading import load_task
from keras_attn.tasks.signatures import SIGNATURES
from keras_attn.tasks.source_form import SourceForm
from keras_attn.tasks.teacher_forcing import AttentionMap
from keras_attn.tasks.text_generator import TextGenerator
from keras_attn.tasks.translator import Translator
from keras_attn.tasks.unknown_words import replace_unknown_words

__all__ = [
    "GENERATOR_SIGNATURES",
    "SIGNATURES",
    "AttentionMap",
    "ChatTemplate",
    "Languages",
    "SourceForm",
    "TextGenerator",
    "Translator",
    "Word",
    "WordAlignment",
    "checkpoint_folder",
    "holds_checkpoint",
    "load_checkpoint",
    "load_task",
    "replace_unknown_words",
]
