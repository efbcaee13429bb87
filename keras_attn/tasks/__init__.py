"""The object that users call, save and export: tokenizers, model and generation in one."""

from keras_attn.huggingface import checkpoint_folder
from keras_attn.tasks.alignment import Word, WordAlignment
from keras_attn.tasks.chat_templates import ChatTemplate
from keras_attn.tasks.fill_mask import FILL_MASK_SIGNATURES, Fill, FillMask
from keras_attn.tasks.generator_signatures import GENERATOR_SIGNATURES
from keras_attn.tasks.image_classifier import ImageClassifier
from keras_attn.tasks.image_preprocessing import ImagePreprocessing
from keras_attn.tasks.image_signatures import IMAGE_CLASSIFIER_SIGNATURES
from keras_attn.tasks.languages import Languages
from keras_attn.tasks.loading import load_task
from keras_attn.tasks.question_answerer import ANSWERER_SIGNATURES, Answer, QuestionAnswerer
from keras_attn.tasks.shortlist import Shortlist, make_shortlist, read_links
from keras_attn.tasks.signatures import SIGNATURES
from keras_attn.tasks.source_form import SourceForm
from keras_attn.tasks.teacher_forcing import AttentionMap
from keras_attn.tasks.text_classifier import CLASSIFIER_SIGNATURES, TextClassifier
from keras_attn.tasks.text_embedder import EMBEDDER_SIGNATURES, TextEmbedder
from keras_attn.tasks.text_generator import TextGenerator
from keras_attn.tasks.token_classifier import TOKEN_CLASSIFIER_SIGNATURES, Span, TokenClassifier
from keras_attn.tasks.translator import Translator
from keras_attn.tasks.unknown_words import replace_unknown_words

__all__ = [
    "ANSWERER_SIGNATURES",
    "CLASSIFIER_SIGNATURES",
    "EMBEDDER_SIGNATURES",
    "FILL_MASK_SIGNATURES",
    "GENERATOR_SIGNATURES",
    "IMAGE_CLASSIFIER_SIGNATURES",
    "SIGNATURES",
    "TOKEN_CLASSIFIER_SIGNATURES",
    "Answer",
    "AttentionMap",
    "ChatTemplate",
    "Fill",
    "FillMask",
    "ImageClassifier",
    "ImagePreprocessing",
    "Languages",
    "QuestionAnswerer",
    "Shortlist",
    "SourceForm",
    "Span",
    "TextClassifier",
    "TextEmbedder",
    "TextGenerator",
    "TokenClassifier",
    "Translator",
    "Word",
    "WordAlignment",
    "checkpoint_folder",
    "load_task",
    "make_shortlist",
    "read_links",
    "replace_unknown_words",
]
