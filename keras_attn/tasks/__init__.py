"""The object that users call, save and export: tokenizers, model and generation in one.

The names of the tasks themselves are those of `keras_attn.task_registry`; a task is imported when it is first asked for.
"""

from keras_attn import task_registry
from keras_attn.huggingface import checkpoint_folder
from keras_attn.tasks.encoder_task import EncoderFunctions, EncoderTask
from keras_attn.tasks.fill_mask import Fill
from keras_attn.tasks.given_translations import AttentionMap, Word, WordAlignment, replace_unknown_words
from keras_attn.tasks.image_preprocessing import ImagePreprocessing
from keras_attn.tasks.loading import load_task
from keras_attn.tasks.question_answerer import Answer
from keras_attn.tasks.shortlist import Shortlist, make_shortlist, read_links
from keras_attn.tasks.signatures import Signature
from keras_attn.tasks.text_forms import ChatTemplate, Languages, SourceForm
from keras_attn.tasks.token_classifier import Span

__all__ = [
    *task_registry.CLASS_NAMES,
    "Answer",
    "AttentionMap",
    "ChatTemplate",
    "EncoderFunctions",
    "EncoderTask",
    "Fill",
    "ImagePreprocessing",
    "Languages",
    "Shortlist",
    "Signature",
    "SourceForm",
    "Span",
    "Word",
    "WordAlignment",
    "checkpoint_folder",
    "load_task",
    "make_shortlist",
    "read_links",
    "replace_unknown_words",
]


def __getattr__(name):
    if name in task_registry.CLASS_NAMES:
        return task_registry.task_class(name)
    raise AttributeError(f"module 'keras_attn.tasks' has no attribute {name!r}")
